//! What is shown of leases, profiles and parts of the daemon.

use hotcell_core::model::LeaseRecord;
use hotcell_runtime::{Check, Facts};
use hotcell_types::{LeaseId, ProfileId, UnixMillis};

/// A lease, as it is shown.
#[derive(Debug, Clone)]
pub struct LeaseView {
    /// What is written down.
    pub record: LeaseRecord,
    /// The engine of its profile, when that is open.
    pub engine: Option<Facts>,
    /// Calls that hold it now.
    pub active_calls: usize,
    /// Since when no call holds it; absent while one does, or when it does not run.
    pub idle_since: Option<UnixMillis>,
    /// When it ends at the latest.
    pub ends_at: UnixMillis,
}

/// A part of the daemon, for `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// Such as `store` or `profile/default`.
    pub name: String,
    /// Whether it can do its work.
    pub ok: bool,
    /// In words; also set for a warning on a part that is `ok`.
    pub detail: Option<String>,
}

/// Where a profile stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileState {
    /// Its engine is being opened.
    Starting,
    /// Its engine is open.
    Active,
    /// Its engine cannot be opened; tried again with growing pauses.
    Faulted {
        /// Why, in words.
        reason: String,
    },
}

/// A runtime profile, as it is shown.
#[derive(Debug, Clone)]
pub struct ProfileView {
    /// Its id.
    pub name: ProfileId,
    /// Where it stands.
    pub state: ProfileState,
    /// What is true of its engine, once open.
    pub facts: Option<Facts>,
    /// The last preflight's checks.
    pub checks: Vec<Check>,
    /// When they ran.
    pub checked_at: Option<UnixMillis>,
    /// Sandboxes of this installation that the engine has and the store has never heard of.
    pub unknown: Vec<LeaseId>,
    /// Its sandboxes that were made ahead.
    pub warm: WarmView,
}

/// The sandboxes of a profile that were made ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WarmView {
    /// How many there should be.
    pub wanted: usize,
    /// How many can be claimed now.
    pub ready: usize,
    /// Why the last one could not be made.
    pub problem: Option<String>,
}
