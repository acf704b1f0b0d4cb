//! What `/metrics` counts, in the text format of OpenMetrics, which Prometheus reads.
//!
//! Counters and histograms are fed where things happen. What is a state (leases, quotas) is looked
//! up when somebody asks, so it cannot drift. Other parts of the daemon add families of their
//! own with [`Metrics::register`].

use std::{
    fmt::Write,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

use hotcell_core::gate::Denial;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::actors::lock;

/// Upper ends of the buckets for times, in seconds.
const SECONDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfQuota {
    workspace: String,
    quota: &'static str,
}

fn times() -> Histogram {
    Histogram::new(SECONDS)
}

/// What is true at the moment when somebody asks.
#[derive(Debug, Default)]
pub(crate) struct Moment {
    /// Leases by the name of their state.
    pub(crate) leases: Vec<(&'static str, u64)>,
    /// Workspace, quota, used, limit; only for eyes that may see workspaces.
    pub(crate) quotas: Vec<(String, &'static str, u64, u64)>,
    /// Changes that wait for the store.
    pub(crate) store_waiting: u64,
    /// Sandboxes made ahead that should be there, and those that can be claimed.
    pub(crate) warm: (u64, u64),
}

/// The daemon's metrics. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    denials: Family<Name, Counter>,
    denials_lost: Counter,
    calls: Family<Kind, Histogram, fn() -> Histogram>,
    call_outcomes: Family<Outcome, Counter>,
    starts: Family<Kind, Histogram, fn() -> Histogram>,
    start_failures: Counter,
    claims: Family<Outcome, Counter>,
    commits: Histogram,
    failed_commits: Counter,
    answers: Family<Answered, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Arc::new(Mutex::new(Registry::with_prefix("hotcell"))),
            denials: Family::default(),
            denials_lost: Counter::default(),
            calls: Family::new_with_constructor(times),
            call_outcomes: Family::default(),
            starts: Family::new_with_constructor(times),
            start_failures: Counter::default(),
            claims: Family::default(),
            commits: times(),
            failed_commits: Counter::default(),
            answers: Family::default(),
        };
        // All names are there from the start, so that a rate over them is never without a base.
        for name in Denial::NAMES {
            let name = name.to_owned();
            drop(metrics.denials.get_or_create(&Name { name }));
        }
        let of = metrics.clone();
        metrics.register(|registry| {
            registry.register("denials", "Refusals of the gate, by name", of.denials);
            registry.register(
                "denials_lost",
                "Refusals that were counted but could not be kept for the operator",
                of.denials_lost,
            );
            registry.register(
                "call_duration_seconds",
                "How long calls took, from the request to the end of the command",
                of.calls,
            );
            registry.register("calls", "Calls that ended, by outcome", of.call_outcomes);
            registry.register(
                "start_duration_seconds",
                "How long a call waited for a sandbox that had to be made, claimed or started for it",
                of.starts,
            );
            registry.register(
                "start_failures",
                "Calls that waited for a sandbox and got none",
                of.start_failures,
            );
            registry.register(
                "warm_claims",
                "Sandboxes made ahead that a call was to have: got it (warm), or another one (cold)",
                of.claims,
            );
            registry.register(
                "store_commit_duration_seconds",
                "How long commits of the store took",
                of.commits,
            );
            registry.register(
                "store_commit_failures",
                "Commits of the store that failed",
                of.failed_commits,
            );
            registry.register(
                "http_requests",
                "Requests that were answered, by method and status",
                of.answers,
            );
        });
        metrics
    }
}

impl Metrics {
    /// Adds families of another part of the daemon; every name gets the prefix `hotcell_`.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut lock(&self.registry));
    }

    pub(crate) fn denied(&self, name: &str) {
        let name = name.to_owned();
        self.denials.get_or_create(&Name { name }).inc();
    }

    pub(crate) fn denials_lost(&self, count: u64) {
        self.denials_lost.inc_by(count);
    }

    /// A call has ended.
    pub(crate) fn called(&self, kind: &'static str, took: Duration, outcome: &'static str) {
        self.calls
            .get_or_create(&Kind { kind })
            .observe(took.as_secs_f64());
        self.call_outcomes.get_or_create(&Outcome { outcome }).inc();
    }

    /// A call got its sandbox, which was made (`cold`), claimed out of the pool (`warm`) or started
    /// again (`wake`) for it.
    pub(crate) fn started(&self, kind: &'static str, took: Duration) {
        self.starts
            .get_or_create(&Kind { kind })
            .observe(took.as_secs_f64());
    }

    pub(crate) fn start_failed(&self) {
        self.start_failures.inc();
    }

    /// A lease was admitted with a sandbox made ahead, and has it (`warm`) or another one (`cold`).
    pub(crate) fn claimed(&self, outcome: &'static str) {
        self.claims.get_or_create(&Outcome { outcome }).inc();
    }

    pub(crate) fn committed(&self, took: Duration, worked: bool) {
        self.commits.observe(took.as_secs_f64());
        if !worked {
            self.failed_commits.inc();
        }
    }

    pub(crate) fn answered(&self, method: &http::Method, status: u16) {
        let method = match *method {
            http::Method::GET => "GET",
            http::Method::HEAD => "HEAD",
            http::Method::POST => "POST",
            http::Method::PUT => "PUT",
            http::Method::DELETE => "DELETE",
            // Whatever a client makes up is one.
            _ => "other",
        };
        self.answers
            .get_or_create(&Answered { method, status })
            .inc();
    }

    /// Everything as text.
    ///
    /// # Errors
    /// A family cannot be written, which would be a bug in it.
    pub(crate) fn text(&self, moment: &Moment) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &lock(&self.registry))?;
        let end = "# EOF\n";
        text.truncate(text.trim_end_matches(end).len());
        text.write_str(&moment.text()?)?;
        Ok(text)
    }
}

impl Moment {
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("hotcell");
        let leases: Family<State, Gauge<u64, AtomicU64>> = Family::default();
        for (state, count) in &self.leases {
            leases.get_or_create(&State { state }).set(*count);
        }
        registry.register("leases", "Leases that have not ended, by state", leases);
        let waiting = Gauge::<u64, AtomicU64>::default();
        waiting.set(self.store_waiting);
        registry.register(
            "store_waiting_changes",
            "Changes that wait for the store's writer",
            waiting,
        );
        let warm: Family<State, Gauge<u64, AtomicU64>> = Family::default();
        for (state, count) in [("wanted", self.warm.0), ("ready", self.warm.1)] {
            warm.get_or_create(&State { state }).set(count);
        }
        registry.register("warm_sandboxes", "Sandboxes made ahead, by state", warm);
        if !self.quotas.is_empty() {
            let used: Family<OfQuota, Gauge<u64, AtomicU64>> = Family::default();
            let limit: Family<OfQuota, Gauge<u64, AtomicU64>> = Family::default();
            for (workspace, quota, used_now, allowed) in &self.quotas {
                let labels = OfQuota {
                    workspace: workspace.clone(),
                    quota,
                };
                used.get_or_create(&labels).set(*used_now);
                limit.get_or_create(&labels).set(*allowed);
            }
            registry.register(
                "quota_used",
                "What workspaces with live sandboxes use of their quotas",
                used,
            );
            registry.register("quota_limit", "What they may use", limit);
        }
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_one_whole_exposition() {
        let metrics = Metrics::default();
        metrics.denied("quota:max_concurrent");
        metrics.called("bash", Duration::from_millis(3), "ok");
        metrics.started("cold", Duration::from_millis(300));
        metrics.committed(Duration::from_micros(900), true);
        metrics.committed(Duration::from_micros(900), false);
        metrics.answered(&http::Method::from_bytes(b"BREW").unwrap(), 405);
        let extra = Counter::<u64>::default();
        extra.inc();
        metrics.register(|registry| registry.register("dns_decisions", "Added later", extra));
        let moment = Moment {
            leases: vec![("running", 2), ("idle", 0)],
            quotas: vec![("w\"1".to_owned(), "max_concurrent", 1, 2)],
            store_waiting: 0,
            warm: (2, 1),
        };
        let text = metrics.text(&moment).unwrap();
        for line in [
            "hotcell_denials_total{name=\"quota:max_concurrent\"} 1",
            "hotcell_denials_total{name=\"role\"} 0",
            "hotcell_leases{state=\"running\"} 2",
            "hotcell_leases{state=\"idle\"} 0",
            "hotcell_store_commit_duration_seconds_count 2",
            "hotcell_store_commit_failures_total 1",
            "hotcell_calls_total{outcome=\"ok\"} 1",
            "hotcell_call_duration_seconds_bucket{le=\"0.005\",kind=\"bash\"} 1",
            "hotcell_start_duration_seconds_count{kind=\"cold\"} 1",
            "hotcell_http_requests_total{method=\"other\",status=\"405\"} 1",
            "hotcell_warm_sandboxes{state=\"ready\"} 1",
            "hotcell_dns_decisions_total 1",
            "hotcell_quota_limit{workspace=\"w\\\"1\",quota=\"max_concurrent\"} 2",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert_eq!(text.matches("# EOF").count(), 1);
        assert!(text.ends_with("# EOF\n"));
    }
}
