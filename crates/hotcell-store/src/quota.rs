//! The gate over what is stored, and what workspaces have taken of their quotas.
//!
//! ```text
//!  max_concurrent      a counter that changes with the row in `live_leases`, in `put_lease` alone
//!  max_jobs_per_hour   one row for each admission of the last hour, numbered without gaps:
//!                        the hour is full while the row `next - limit` lies in it
//!  bytes per day       one row for each UTC day
//! ```
//! All of it is read and written in the transaction of what takes from it, so nothing that fails
//! or crashes leaves a trace, and two that race see each other.
//!
//! **When the clock goes back.** Days keep their own rows, so each day's bytes count for that
//! day whenever the clock says that it is that day. Admissions of a clock that was a little ahead
//! are stamped with the time of the newest one. A step back of more than a minute means that
//! the stamps were wrong: those in the future count as made now, so they leave the window an
//! hour later at most, and never before.

use hotcell_core::{
    gate::{
        self, Admission, Denial, GateFacts, HOUR_MS, LeaseUsage, Quota, QuotaSettings, Quotas,
        next_day, utc_day,
    },
    model::{LeaseRecord, LeaseState},
};
use hotcell_types::{
    ChatId, LeaseId, OrganizationId, ProfileId, ResourceClass, Role, UnixMillis, UserId,
    WorkspaceId, limits,
};
use serde::{Deserialize, Serialize};

use crate::{
    dto::{ClassV1, decode},
    error::StoreError,
    rows::{Order, Snapshot},
    tables::{Span, Table, counter, joined},
    tx::Tx,
};

/// How far the clock may go back before what it said is taken for wrong.
const CLOCK_STEP_MS: u64 = 60_000;

/// What an operator set of a workspace's quotas.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum QuotasDto {
    #[serde(rename = "1")]
    V1 {
        max_concurrent: Option<u64>,
        max_resource_class: Option<ClassV1>,
        max_job_seconds: Option<u64>,
        max_artifact_bytes_per_day: Option<u64>,
        max_jobs_per_hour: Option<u64>,
    },
}

impl From<&QuotaSettings> for QuotasDto {
    fn from(settings: &QuotaSettings) -> Self {
        Self::V1 {
            max_concurrent: settings.max_concurrent,
            max_resource_class: settings.max_resource_class.map(Into::into),
            max_job_seconds: settings.max_job_seconds,
            max_artifact_bytes_per_day: settings.max_artifact_bytes_per_day,
            max_jobs_per_hour: settings.max_jobs_per_hour,
        }
    }
}

impl From<QuotasDto> for QuotaSettings {
    fn from(dto: QuotasDto) -> Self {
        let QuotasDto::V1 {
            max_concurrent,
            max_resource_class,
            max_job_seconds,
            max_artifact_bytes_per_day,
            max_jobs_per_hour,
        } = dto;
        Self {
            max_concurrent,
            max_resource_class: max_resource_class.map(Into::into),
            max_job_seconds,
            max_artifact_bytes_per_day,
            max_jobs_per_hour,
        }
    }
}

/// Where a workspace's admissions begin and end.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum AdmissionHeadDto {
    #[serde(rename = "1")]
    V1(AdmissionHead),
}

/// Rows `first..next` are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AdmissionHead {
    pub(crate) first: u64,
    pub(crate) next: u64,
    /// The latest stamp, which none after it is before.
    pub(crate) latest: UnixMillis,
    /// Rows before this number were stamped by a clock that was put back…
    pub(crate) corrected_before: u64,
    /// … and are from this time at the latest.
    pub(crate) corrected_to: UnixMillis,
}

impl AdmissionHead {
    const EMPTY: Self = Self {
        first: 0,
        next: 0,
        latest: UnixMillis(0),
        corrected_before: 0,
        corrected_to: UnixMillis(0),
    };

    /// Takes note of the time; whether the clock was put back, so that this must be kept.
    fn observe(&mut self, now: UnixMillis) -> bool {
        if self.latest.millis_since(now) <= CLOCK_STEP_MS {
            return false;
        }
        self.corrected_before = self.next;
        self.corrected_to = now;
        self.latest = now;
        true
    }

    fn stamp(&self, number: u64, stored: UnixMillis) -> UnixMillis {
        if number < self.corrected_before {
            stored.min(self.corrected_to)
        } else {
            stored
        }
    }
}

fn admission_key(workspace: &WorkspaceId, number: u64) -> String {
    joined(workspace.as_str(), &format!("{number:016x}"))
}

fn day_key(workspace: &WorkspaceId, day: u64) -> String {
    joined(workspace.as_str(), &format!("{day:016x}"))
}

/// Who asks the gate for what.
#[derive(Debug, Clone, Copy)]
pub struct GateAsk<'a> {
    /// Whether the server's environment forces everything off.
    pub forced_off: bool,
    /// The organization that the caller acts for.
    pub organization: &'a OrganizationId,
    /// The workspace.
    pub workspace: &'a WorkspaceId,
    /// The member's role.
    pub role: Role,
    /// The profiles that can take sandboxes now.
    pub active_profiles: &'a [ProfileId],
}

/// A sandbox that is asked for.
#[derive(Debug, Clone)]
pub struct NewLease {
    /// The lease's id.
    pub id: LeaseId,
    /// The chat.
    pub chat: ChatId,
    /// The member.
    pub user: UserId,
    /// How large it is to be.
    pub class: ResourceClass,
}

/// What a workspace uses of its quotas now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaUsage {
    /// What counts.
    pub quotas: Quotas,
    /// Which of them an operator set.
    pub set: Vec<Quota>,
    /// Leases that have not ended.
    pub live: u64,
    /// Sandboxes that were admitted in the last hour.
    pub admitted_in_hour: u64,
    /// When the oldest of them leaves the hour.
    pub hour_frees_at: Option<UnixMillis>,
    /// Bytes of collected files that were stored today.
    pub stored_bytes_today: u64,
    /// When today ends.
    pub day_ends_at: UnixMillis,
}

impl Snapshot<'_> {
    fn with_facts<T>(
        &self,
        ask: &GateAsk<'_>,
        look: impl FnOnce(&GateFacts<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let deployment = self.deployment()?;
        let organization = self.organization(ask.organization)?;
        let workspace = self.workspace(ask.workspace)?;
        look(&GateFacts {
            forced_off: ask.forced_off,
            deployment: Some(&deployment),
            organization: organization.as_ref(),
            workspace: workspace.as_ref(),
            role: ask.role,
            active_profiles: ask.active_profiles,
        })
    }

    /// Passes the gate with what is written down now, without taking from any quota: for a
    /// call into a sandbox that is there.
    ///
    /// # Errors
    /// The store cannot be read. The refusal is the inner result.
    pub fn pass_gate(&self, ask: &GateAsk<'_>) -> Result<Result<Admission, Denial>, StoreError> {
        self.with_facts(ask, |facts| Ok(gate::admit(facts)))
    }

    /// Whether a job of this length may start. Ask inside the transaction that records the job.
    ///
    /// # Errors
    /// The store cannot be read. The refusal is the inner result.
    pub fn admit_job(
        &self,
        ask: &GateAsk<'_>,
        max_seconds: u64,
    ) -> Result<Result<Admission, Denial>, StoreError> {
        let quotas = self.quotas(ask.workspace)?;
        self.with_facts(ask, |facts| {
            Ok(gate::admit_job(facts, &quotas, max_seconds))
        })
    }

    /// What an operator set of a workspace's quotas.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn quota_settings(&self, workspace: &WorkspaceId) -> Result<QuotaSettings, StoreError> {
        let dto: Option<QuotasDto> = self.dto(Table::Quotas, workspace.as_str())?;
        Ok(dto.map(Into::into).unwrap_or_default())
    }

    /// The quotas of a workspace.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn quotas(&self, workspace: &WorkspaceId) -> Result<Quotas, StoreError> {
        Ok(self.quota_settings(workspace)?.resolve())
    }

    /// How many leases of a workspace have not ended.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn live_leases_of(&self, workspace: &WorkspaceId) -> Result<u64, StoreError> {
        self.count(&counter::live_leases_of(workspace))
    }

    fn admission_head(&self, workspace: &WorkspaceId) -> Result<AdmissionHead, StoreError> {
        let dto: Option<AdmissionHeadDto> = self.dto(Table::AdmissionHeads, workspace.as_str())?;
        Ok(dto.map_or(AdmissionHead::EMPTY, |AdmissionHeadDto::V1(head)| head))
    }

    fn admission(
        &self,
        workspace: &WorkspaceId,
        head: &AdmissionHead,
        number: u64,
    ) -> Result<Option<UnixMillis>, StoreError> {
        let stored: Option<UnixMillis> =
            self.dto(Table::Admissions, &admission_key(workspace, number))?;
        Ok(stored.map(|stored| head.stamp(number, stored)))
    }

    fn lease_usage(
        &self,
        workspace: &WorkspaceId,
        quotas: &Quotas,
        head: &AdmissionHead,
    ) -> Result<LeaseUsage, StoreError> {
        let filler = head
            .next
            .checked_sub(quotas.max_jobs_per_hour)
            .filter(|number| (head.first..head.next).contains(number));
        Ok(LeaseUsage {
            live: self.live_leases_of(workspace)?,
            admission_that_fills_the_hour: match filler {
                Some(number) => self.admission(workspace, head, number)?,
                None => None,
            },
        })
    }

    fn stored_on(&self, workspace: &WorkspaceId, day: u64) -> Result<u64, StoreError> {
        let stored: Option<u64> = self.dto(Table::OutputDays, &day_key(workspace, day))?;
        Ok(stored.unwrap_or_default())
    }

    /// How many bytes a workspace may still store today.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn output_bytes_left(
        &self,
        workspace: &WorkspaceId,
        now: UnixMillis,
    ) -> Result<u64, StoreError> {
        let quotas = self.quotas(workspace)?;
        let stored = self.stored_on(workspace, utc_day(now))?;
        Ok(quotas.max_artifact_bytes_per_day.saturating_sub(stored))
    }

    /// What a workspace uses of its quotas. Reads up to as many rows as sandboxes were admitted in
    /// the last hour.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn quota_usage(
        &self,
        workspace: &WorkspaceId,
        now: UnixMillis,
    ) -> Result<QuotaUsage, StoreError> {
        let settings = self.quota_settings(workspace)?;
        let mut head = self.admission_head(workspace)?;
        head.observe(now);
        let span = Span::below(workspace.as_str());
        let rows = self.scan(Table::Admissions, &span, Order::Ascending, usize::MAX)?;
        let mut in_hour = Vec::new();
        for ((key, value), number) in rows.iter().zip(head.first..) {
            let stored: UnixMillis = decode(Table::Admissions, key, value)?;
            let leaves_at = head.stamp(number, stored).plus_millis(HOUR_MS);
            if leaves_at > now {
                in_hour.push(leaves_at);
            }
        }
        Ok(QuotaUsage {
            quotas: settings.resolve(),
            set: settings.set(),
            live: self.live_leases_of(workspace)?,
            admitted_in_hour: in_hour.len() as u64,
            hour_frees_at: in_hour.first().copied(),
            stored_bytes_today: self.stored_on(workspace, utc_day(now))?,
            day_ends_at: next_day(now),
        })
    }
}

impl Tx<'_> {
    /// Sets a workspace's quotas. What runs goes on, whatever they are.
    ///
    /// # Errors
    /// There is no such workspace, or the store cannot be read.
    pub fn put_quotas(
        &mut self,
        workspace: &WorkspaceId,
        settings: &QuotaSettings,
    ) -> Result<(), StoreError> {
        self.need_workspace(workspace)?;
        if *settings == QuotaSettings::default() {
            self.remove(Table::Quotas, workspace.as_str().as_bytes());
            return Ok(());
        }
        let dto = QuotasDto::from(settings);
        self.put(Table::Quotas, workspace.as_str(), &dto)
    }

    /// Passes the gate for a new sandbox, takes it from the quotas and writes its lease: all of
    /// that, or a denial. Keep the change even then: it may hold what was learnt about the clock.
    ///
    /// # Errors
    /// As [`Tx::put_lease`]. The refusal is the inner result.
    pub fn admit_lease(
        &mut self,
        ask: &GateAsk<'_>,
        new: &NewLease,
        now: UnixMillis,
    ) -> Result<Result<LeaseRecord, Denial>, StoreError> {
        // Before the quotas: the chat's own lease must not stand in its way.
        if let Some(other) = self.live_lease_of_chat(ask.workspace, &new.chat)? {
            return Err(StoreError::ChatHasLiveLease(other.id));
        }
        let quotas = self.quotas(ask.workspace)?;
        let mut head = self.admission_head(ask.workspace)?;
        if head.observe(now) {
            self.put_head(ask.workspace, &head)?;
        }
        let at = now.max(head.latest);
        let usage = self.lease_usage(ask.workspace, &quotas, &head)?;
        let admission = self.with_facts(ask, |facts| {
            Ok(gate::admit_lease(facts, &quotas, usage, new.class, at))
        })?;
        let admission = match admission {
            Ok(admission) => admission,
            Err(denial) => return Ok(Err(denial)),
        };
        let record = LeaseRecord {
            id: new.id.clone(),
            organization: ask.organization.clone(),
            workspace: ask.workspace.clone(),
            chat: new.chat.clone(),
            user: new.user.clone(),
            profile: admission.profile,
            resource_class: new.class,
            state: LeaseState::Starting,
            created_at: now,
            changed_at: now,
            end: None,
        };
        self.put_lease(&record)?;
        self.record_admission(ask.workspace, head, at)?;
        Ok(Ok(record))
    }

    fn put_head(
        &mut self,
        workspace: &WorkspaceId,
        head: &AdmissionHead,
    ) -> Result<(), StoreError> {
        let dto = AdmissionHeadDto::V1(head.clone());
        self.put(Table::AdmissionHeads, workspace.as_str(), &dto)
    }

    fn record_admission(
        &mut self,
        workspace: &WorkspaceId,
        mut head: AdmissionHead,
        at: UnixMillis,
    ) -> Result<(), StoreError> {
        let key = admission_key(workspace, head.next);
        self.put(Table::Admissions, &key, &at)?;
        head.next += 1;
        head.latest = at;
        for _ in 0..limits::ADMISSIONS_FORGOTTEN_AT_ONCE {
            let Some(first) = self.admission(workspace, &head, head.first)? else {
                break;
            };
            let left_the_hour = first.plus_millis(HOUR_MS) <= at;
            if !left_the_hour && head.next - head.first <= limits::MAX_QUOTA_SANDBOXES {
                break;
            }
            let key = admission_key(workspace, head.first);
            self.remove(Table::Admissions, key.as_bytes());
            head.first += 1;
        }
        self.put_head(workspace, &head)
    }

    /// Takes collected files from the day's bytes. Call it in the transaction that records them.
    ///
    /// # Errors
    /// The store cannot be read. The refusal is the inner result; drop the change then.
    pub fn admit_outputs(
        &mut self,
        workspace: &WorkspaceId,
        bytes: u64,
        now: UnixMillis,
    ) -> Result<Result<(), Denial>, StoreError> {
        let quotas = self.quotas(workspace)?;
        let today = utc_day(now);
        let stored = self.stored_on(workspace, today)?;
        if let Err(denial) = gate::admit_outputs(&quotas, stored, bytes, now) {
            return Ok(Err(denial));
        }
        let today_key = day_key(workspace, today);
        self.put(Table::OutputDays, &today_key, &(stored + bytes))?;
        // The days beside it stay, in case the clock is put over midnight.
        let beside = [
            today_key.clone(),
            day_key(workspace, today.saturating_sub(1)),
            day_key(workspace, today + 1),
        ];
        let span = Span::below(workspace.as_str());
        for (key, _) in self.scan(Table::OutputDays, &span, Order::Ascending, 8)? {
            if !beside.iter().any(|known| known.as_bytes() == key) {
                self.remove(Table::OutputDays, &key);
            }
        }
        Ok(Ok(()))
    }

    /// Forgets everything about the quotas of a workspace that is being deleted.
    pub(crate) fn forget_quotas(&mut self, workspace: &WorkspaceId) -> Result<(), StoreError> {
        for table in [Table::Quotas, Table::AdmissionHeads] {
            self.remove(table, workspace.as_str().as_bytes());
        }
        for table in [Table::Admissions, Table::OutputDays] {
            let span = Span::below(workspace.as_str());
            for (key, _) in self.scan(table, &span, Order::Ascending, usize::MAX)? {
                self.remove(table, &key);
            }
        }
        Ok(())
    }
}
