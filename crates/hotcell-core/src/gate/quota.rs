//! The quotas of a workspace: what is allowed, and when what was used becomes free again.

use hotcell_types::{ResourceClass, UnixMillis, limits};

/// An hour in milliseconds: the window of `max_jobs_per_hour`.
pub const HOUR_MS: u64 = 3_600_000;
/// A UTC day in milliseconds; Unix time has no leap seconds.
pub const DAY_MS: u64 = 24 * HOUR_MS;

/// Which UTC day a time lies in, counted from the Unix epoch.
#[must_use]
pub const fn utc_day(at: UnixMillis) -> u64 {
    at.0 / DAY_MS
}

/// When the next UTC day begins.
#[must_use]
pub const fn next_day(at: UnixMillis) -> UnixMillis {
    UnixMillis((utc_day(at) + 1).saturating_mul(DAY_MS))
}

/// One quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quota {
    /// Live sandboxes at once; idle ones count until they end.
    MaxConcurrent,
    /// The largest resource class.
    MaxResourceClass,
    /// The longest single job, in seconds.
    MaxJobSeconds,
    /// Bytes of collected files stored per UTC day.
    MaxArtifactBytesPerDay,
    /// New sandboxes per rolling hour.
    MaxJobsPerHour,
}

impl Quota {
    /// Every quota, in the order of the gate.
    pub const ALL: [Self; 5] = [
        Self::MaxConcurrent,
        Self::MaxResourceClass,
        Self::MaxJobSeconds,
        Self::MaxArtifactBytesPerDay,
        Self::MaxJobsPerHour,
    ];

    /// Its name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxConcurrent => "max_concurrent",
            Self::MaxResourceClass => "max_resource_class",
            Self::MaxJobSeconds => "max_job_seconds",
            Self::MaxArtifactBytesPerDay => "max_artifact_bytes_per_day",
            Self::MaxJobsPerHour => "max_jobs_per_hour",
        }
    }

    /// The name of its denial.
    #[must_use]
    pub const fn denial(self) -> &'static str {
        match self {
            Self::MaxConcurrent => "quota:max_concurrent",
            Self::MaxResourceClass => "quota:max_resource_class",
            Self::MaxJobSeconds => "quota:max_job_seconds",
            Self::MaxArtifactBytesPerDay => "quota:max_artifact_bytes_per_day",
            Self::MaxJobsPerHour => "quota:max_jobs_per_hour",
        }
    }
}

/// The value of a quota, with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaValue {
    /// A number of sandboxes.
    Count(u64),
    /// A time.
    Seconds(u64),
    /// A size.
    Bytes(u64),
    /// A resource class.
    Class(ResourceClass),
}

/// What an operator set for one workspace; what is absent is the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaSettings {
    /// Live sandboxes at once.
    pub max_concurrent: Option<u64>,
    /// The largest resource class.
    pub max_resource_class: Option<ResourceClass>,
    /// The longest single job, in seconds.
    pub max_job_seconds: Option<u64>,
    /// Bytes of collected files stored per UTC day.
    pub max_artifact_bytes_per_day: Option<u64>,
    /// New sandboxes per rolling hour.
    pub max_jobs_per_hour: Option<u64>,
}

impl QuotaSettings {
    /// The quotas that are not the default.
    #[must_use]
    pub fn set(&self) -> Vec<Quota> {
        let is_set = |quota: &Quota| match quota {
            Quota::MaxConcurrent => self.max_concurrent.is_some(),
            Quota::MaxResourceClass => self.max_resource_class.is_some(),
            Quota::MaxJobSeconds => self.max_job_seconds.is_some(),
            Quota::MaxArtifactBytesPerDay => self.max_artifact_bytes_per_day.is_some(),
            Quota::MaxJobsPerHour => self.max_jobs_per_hour.is_some(),
        };
        Quota::ALL.into_iter().filter(is_set).collect()
    }

    /// What counts: the settings over the defaults.
    #[must_use]
    pub fn resolve(&self) -> Quotas {
        let default = Quotas::DEFAULT;
        Quotas {
            max_concurrent: self.max_concurrent.unwrap_or(default.max_concurrent),
            max_resource_class: self
                .max_resource_class
                .unwrap_or(default.max_resource_class),
            max_job_seconds: self.max_job_seconds.unwrap_or(default.max_job_seconds),
            max_artifact_bytes_per_day: self
                .max_artifact_bytes_per_day
                .unwrap_or(default.max_artifact_bytes_per_day),
            max_jobs_per_hour: self.max_jobs_per_hour.unwrap_or(default.max_jobs_per_hour),
        }
    }
}

/// The quotas of one workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Live sandboxes at once; idle ones count until they end.
    pub max_concurrent: u64,
    /// The largest resource class.
    pub max_resource_class: ResourceClass,
    /// The longest single job, in seconds.
    pub max_job_seconds: u64,
    /// Bytes of collected files stored per UTC day.
    pub max_artifact_bytes_per_day: u64,
    /// New sandboxes per rolling hour.
    pub max_jobs_per_hour: u64,
}

/// What a workspace has taken of the quotas of new sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseUsage {
    /// Leases that have not ended, whatever their state.
    pub live: u64,
    /// When the `max_jobs_per_hour`-th newest sandbox was admitted; absent when there were fewer.
    /// The hour is full as long as that one lies in it.
    pub admission_that_fills_the_hour: Option<UnixMillis>,
}

/// A quota said no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Exceeded {
    /// Which.
    pub quota: Quota,
    /// What it allows.
    pub limit: QuotaValue,
    /// When it allows the next one by itself; absent when no time makes it.
    pub frees_at: Option<UnixMillis>,
    /// How long that is from the time of the refusal, in milliseconds.
    pub frees_after_ms: Option<u64>,
}

impl std::error::Error for Exceeded {}

impl std::fmt::Display for Exceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let limit = match self.limit {
            QuotaValue::Count(limit) | QuotaValue::Seconds(limit) | QuotaValue::Bytes(limit) => {
                limit.to_string()
            }
            QuotaValue::Class(class) => class_name(class).to_owned(),
        };
        match self.quota {
            Quota::MaxConcurrent => write!(
                f,
                "this workspace may have {limit} sandboxes at once, idle ones included; end one or wait until one ends"
            ),
            Quota::MaxResourceClass => write!(
                f,
                "this workspace may have sandboxes of the class {limit} at most; an operator can allow larger ones"
            ),
            Quota::MaxJobSeconds => write!(
                f,
                "a job of this workspace may take {limit} seconds at most; ask for less, or have an operator allow more"
            ),
            Quota::MaxArtifactBytesPerDay => write!(
                f,
                "this workspace may store {limit} bytes of collected files a UTC day; present fewer or smaller files, or wait until tomorrow"
            ),
            Quota::MaxJobsPerHour => write!(
                f,
                "this workspace may have {limit} new sandboxes in an hour; wait, or go on in a chat whose sandbox lives"
            ),
        }
    }
}

/// The name of a class as settings have it.
pub(crate) const fn class_name(class: ResourceClass) -> &'static str {
    match class {
        ResourceClass::Small => "SMALL",
        ResourceClass::Medium => "MEDIUM",
        ResourceClass::Large => "LARGE",
    }
}

impl Default for Quotas {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Quotas {
    /// Those of a workspace for which nothing was set.
    pub const DEFAULT: Self = Self {
        max_concurrent: limits::DEFAULT_MAX_CONCURRENT,
        max_resource_class: ResourceClass::Small,
        max_job_seconds: limits::DEFAULT_MAX_JOB_SECONDS,
        max_artifact_bytes_per_day: limits::DEFAULT_MAX_ARTIFACT_BYTES_PER_DAY,
        max_jobs_per_hour: limits::DEFAULT_MAX_JOBS_PER_HOUR,
    };

    /// What one of them allows.
    #[must_use]
    pub const fn value(&self, quota: Quota) -> QuotaValue {
        match quota {
            Quota::MaxConcurrent => QuotaValue::Count(self.max_concurrent),
            Quota::MaxResourceClass => QuotaValue::Class(self.max_resource_class),
            Quota::MaxJobSeconds => QuotaValue::Seconds(self.max_job_seconds),
            Quota::MaxArtifactBytesPerDay => QuotaValue::Bytes(self.max_artifact_bytes_per_day),
            Quota::MaxJobsPerHour => QuotaValue::Count(self.max_jobs_per_hour),
        }
    }

    const fn exceeded(&self, quota: Quota) -> Exceeded {
        Exceeded {
            quota,
            limit: self.value(quota),
            frees_at: None,
            frees_after_ms: None,
        }
    }

    fn exceeded_until(&self, quota: Quota, frees_at: UnixMillis, now: UnixMillis) -> Exceeded {
        Exceeded {
            frees_at: Some(frees_at),
            frees_after_ms: Some(frees_at.millis_since(now)),
            ..self.exceeded(quota)
        }
    }

    /// Whether one more sandbox fits.
    ///
    /// # Errors
    /// The first quota that says no.
    pub fn allow_lease(
        &self,
        usage: LeaseUsage,
        class: ResourceClass,
        now: UnixMillis,
    ) -> Result<(), Exceeded> {
        if usage.live >= self.max_concurrent {
            return Err(self.exceeded(Quota::MaxConcurrent));
        }
        if class > self.max_resource_class {
            return Err(self.exceeded(Quota::MaxResourceClass));
        }
        if self.max_jobs_per_hour == 0 {
            return Err(self.exceeded(Quota::MaxJobsPerHour));
        }
        let frees_at = usage
            .admission_that_fills_the_hour
            .map(|at| at.plus_millis(HOUR_MS))
            .filter(|frees_at| *frees_at > now);
        match frees_at {
            Some(frees_at) => Err(self.exceeded_until(Quota::MaxJobsPerHour, frees_at, now)),
            None => Ok(()),
        }
    }

    /// Whether a job may take this long.
    ///
    /// # Errors
    /// `max_job_seconds` says no.
    pub fn allow_job(&self, max_seconds: u64) -> Result<(), Exceeded> {
        if max_seconds > self.max_job_seconds {
            return Err(self.exceeded(Quota::MaxJobSeconds));
        }
        Ok(())
    }

    /// Whether this many bytes may be stored when `stored_bytes` were today.
    ///
    /// # Errors
    /// `max_artifact_bytes_per_day` says no.
    pub fn allow_outputs(
        &self,
        stored_bytes: u64,
        bytes: u64,
        now: UnixMillis,
    ) -> Result<(), Exceeded> {
        let would_be = stored_bytes.saturating_add(bytes);
        if would_be <= self.max_artifact_bytes_per_day {
            return Ok(());
        }
        // What is larger than a whole day's worth fits on no day.
        let quota = Quota::MaxArtifactBytesPerDay;
        Err(if bytes <= self.max_artifact_bytes_per_day {
            self.exceeded_until(quota, next_day(now), now)
        } else {
            self.exceeded(quota)
        })
    }
}
