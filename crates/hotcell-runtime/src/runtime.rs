//! The engine's side.

use std::sync::Arc;

use async_trait::async_trait;
use hotcell_types::{AgentKey, LeaseId};
use serde::{Deserialize, Serialize};

use crate::{
    Check, FilterSite, Gateway, ImageRef, Labels, RuntimeError, Sandbox, SandboxSpec, WarmSpec,
};

/// What stands between user code and the host's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// gVisor: user code never talks to the host's kernel.
    Gvisor,
    /// Namespaces and seccomp only: the kernel is shared.
    SharedKernel,
    /// No isolation at all: a fake for tests.
    None,
}

/// What is true of every sandbox of a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// `embedded`, `docker`, `podman`, `fake`, …
    pub kind: String,
    /// The engine and its version, such as `runsc 20240729.0 (systrap, own network stack)`.
    pub engine: String,
    /// What stands between user code and the host.
    pub isolation: Isolation,
    /// Whether `/workspace` has a size that cannot be exceeded.
    pub scratch_is_bounded: bool,
}

/// An image that is ready to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Its digest.
    pub image: ImageRef,
    /// What people call it.
    pub name: String,
    /// Its unpacked size in bytes.
    pub bytes: u64,
}

/// Where the engine says that a sandbox stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObservedState {
    /// There, never started or half-made.
    Created,
    /// Its processes run.
    Running,
    /// It has ended or was stopped; it can be started again or removed.
    Stopped,
}

/// One sandbox as the engine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Its labels; `None` when the engine's record is damaged (it is ours all the same), and while
    /// nobody has begun to claim it.
    pub labels: Option<Labels>,
    /// Its lease.
    pub lease: LeaseId,
    /// Where it stands.
    pub state: ObservedState,
    /// Whether it was made ahead and nobody has claimed it whole: it holds nobody's work, and nobody
    /// may use it.
    pub unclaimed: bool,
}

/// Why a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxEnd {
    /// Its memory limit was hit and the kernel ended it.
    OutOfMemory,
    /// Its first process ended or was killed from outside.
    Exited,
    /// It was stopped or removed by us.
    Stopped,
    /// The engine lost it, for instance in a restart.
    Lost,
}

/// What a sandbox uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Memory in use, in bytes.
    pub memory_bytes: u64,
    /// Processor time since birth, in milliseconds.
    pub cpu_ms: u64,
    /// Processes and threads.
    pub pids: u32,
}

/// Something that makes and ends sandboxes. See the crate's doc for the rules.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// What is true of this runtime, as probed when it was opened.
    fn facts(&self) -> Facts;

    /// Checks everything that sandboxes will need, by trying it.
    async fn preflight(&self) -> Vec<Check>;

    /// The images that are ready.
    async fn images(&self) -> Result<Vec<ImageInfo>, RuntimeError>;

    /// Makes a sandbox without running anything in it. One of this lease that was made ahead and is
    /// unclaimed is removed first.
    async fn create(&self, spec: &SandboxSpec) -> Result<(), RuntimeError>;

    /// Runs it. Returns when its processes run; its agent may need a moment more
    /// ([`Sandbox::ready`]). A stopped sandbox keeps its `/workspace`.
    async fn start(&self, lease: &LeaseId, key: &AgentKey) -> Result<(), RuntimeError>;

    /// Makes and runs a sandbox ahead, that sees no volume and is nobody's until it is claimed. Like
    /// [`start`](Self::start) it returns before the agent answers. What a failure leaves is for
    /// [`remove`](Self::remove).
    ///
    /// # Errors
    /// [`RuntimeError::Unsupported`] where volumes cannot be attached to a running sandbox.
    async fn warm(&self, _spec: &WarmSpec) -> Result<(), RuntimeError> {
        Err(no_warm())
    }

    /// Makes a warm sandbox that of a lease: its labels are written down first, then its volumes are
    /// attached, and only then it counts as claimed. It is as if it had been created and started
    /// with this specification. After any failure it is unclaimed still: [`create`](Self::create)
    /// then removes it and makes another in its place.
    ///
    /// # Errors
    /// Also when it does not run, is not warm, or is not what the specification asks for.
    async fn claim(&self, _spec: &SandboxSpec) -> Result<(), RuntimeError> {
        Err(no_warm())
    }

    /// Removes a sandbox that was made ahead, unless it has been claimed, or created anew, by now.
    async fn remove_unclaimed(&self, _lease: &LeaseId) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Ends its processes and keeps its files.
    async fn stop(&self, lease: &LeaseId) -> Result<(), RuntimeError>;

    /// Ends it and removes all of it; volumes stay.
    async fn remove(&self, lease: &LeaseId) -> Result<(), RuntimeError>;

    /// Every sandbox of this installation, half-made ones too.
    async fn list(&self) -> Result<Vec<Observed>, RuntimeError>;

    /// Returns when a running sandbox has ended, within a second of it, and says why.
    async fn wait(&self, lease: &LeaseId) -> Result<SandboxEnd, RuntimeError>;

    /// Where its filter sits. For sandboxes of [`NetworkMode::Filtered`](crate::NetworkMode).
    async fn filter_site(&self, _lease: &LeaseId) -> Result<FilterSite, RuntimeError> {
        Err(RuntimeError::EgressUnenforceable(
            "this runtime has no place for a filter".into(),
        ))
    }

    /// The namespaces that outlive the sandboxes in them, and so may hold filters of sandboxes that
    /// are gone.
    async fn gateways(&self) -> Result<Vec<Gateway>, RuntimeError> {
        Ok(Vec::new())
    }

    /// What it uses.
    async fn stats(&self, lease: &LeaseId) -> Result<Stats, RuntimeError>;

    /// Waits until work of the runtime's own, such as a probe, has been cleared away. Called
    /// before the process leaves; sandboxes are not touched.
    async fn settle(&self) {}

    /// The way into a running sandbox. Does not wait for it. Keep it for as long as the sandbox
    /// runs: it may hold the connections that make a call cheap.
    fn sandbox(&self, lease: &LeaseId, key: &AgentKey) -> Result<Arc<dyn Sandbox>, RuntimeError>;
}

fn no_warm() -> RuntimeError {
    RuntimeError::Unsupported {
        what: "a sandbox ahead of its volumes",
        reason: "volumes cannot be attached to a running sandbox of it".into(),
    }
}
