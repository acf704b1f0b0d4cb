//! What a fake was asked to do.

use std::collections::{BTreeMap, VecDeque};

use hotcell_types::LeaseId;

/// Calls that a fake remembers in order; the counts go on.
const MAX_RECORDED_CALLS: usize = 10_000;

/// A call at the seam.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// `Runtime::preflight`.
    Preflight,
    /// `Runtime::images`.
    Images,
    /// `Runtime::create`.
    Create,
    /// `Runtime::start`.
    Start,
    /// `Runtime::warm`.
    Warm,
    /// `Runtime::claim`; the labels are written between its two hooks.
    Claim,
    /// The part of `Runtime::claim` that attaches the volumes; after it the sandbox is claimed.
    Attach,
    /// `Runtime::remove_unclaimed`.
    RemoveUnclaimed,
    /// `Runtime::stop`.
    Stop,
    /// `Runtime::remove`.
    Remove,
    /// `Runtime::list`.
    List,
    /// `Runtime::wait`; no hook runs around it.
    Wait,
    /// `Runtime::stats`; no hook runs around it.
    Stats,
    /// `Runtime::filter_site`.
    FilterSite,
    /// `Sandbox::ready`.
    Ready,
    /// `Sandbox::exec`.
    Exec,
    /// `Sandbox::restart`.
    Restart,
    /// `Sandbox::start_job`.
    StartJob,
    /// `Sandbox::stop_job`.
    StopJob,
    /// `Sandbox::write_file`.
    WriteFile,
    /// `Sandbox::remove_file`.
    RemoveFile,
    /// Every call that only reads.
    Read,
    /// `Sandbox::stdio`.
    Stdio,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    /// What.
    pub effect: Effect,
    /// Of which sandbox.
    pub lease: Option<LeaseId>,
}

#[derive(Default)]
pub(super) struct Record {
    counts: BTreeMap<Effect, u64>,
    calls: VecDeque<Called>,
}

impl Record {
    pub(super) fn add(&mut self, effect: Effect, lease: Option<&LeaseId>) {
        *self.counts.entry(effect).or_default() += 1;
        if self.calls.len() == MAX_RECORDED_CALLS {
            self.calls.pop_front();
        }
        self.calls.push_back(Called {
            effect,
            lease: lease.cloned(),
        });
    }

    pub(super) fn count(&self, effect: Effect) -> u64 {
        self.counts.get(&effect).copied().unwrap_or_default()
    }

    pub(super) fn calls(&self) -> Vec<Called> {
        self.calls.iter().cloned().collect()
    }
}
