//! What every actor needs.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use hotcell_core::{lease::LeaseLimits, profile::ProfileLimits};
use hotcell_store::Store;
use hotcell_types::{Clock, IdSource};

use super::{
    crew::Crew, egress::Egress, jobs::JobBook, live::Live, profile::Profile, sweep::FinalSweep,
};
use crate::{
    denials::Denials, metrics::Metrics, skew::ClockSkew, store_check::StoreCheck,
    switches::Switches, volumes::Volumes,
};

/// What every actor needs. Made once, shared by all.
pub(crate) struct Context {
    pub(crate) store: Store,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ids: Arc<dyn IdSource>,
    pub(crate) volumes: Volumes,
    pub(crate) limits: LeaseLimits,
    pub(crate) scratch_bytes: u64,
    /// What the profile allows besides these two.
    pub(crate) allowed: ProfileLimits,
    /// Collects what is ready in a sandbox that is about to stop or end.
    pub(crate) final_sweep: Option<Arc<dyn FinalSweep>>,
    pub(crate) jobs: JobBook,
    /// The one profile of the configuration, `default`.
    pub(crate) profile: Profile,
    pub(crate) egress: Egress,
    pub(crate) switches: Switches,
    pub(crate) denials: Denials,
    pub(crate) store_check: StoreCheck,
    /// The clocks of backends.
    pub(crate) skew: ClockSkew,
    pub(crate) metrics: Metrics,
    pub(crate) live: Live,
    pub(crate) crew: Crew,
    pub(crate) leaving: AtomicBool,
}

impl Context {
    /// Whether the daemon is shutting down: nothing new begins.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }
}
