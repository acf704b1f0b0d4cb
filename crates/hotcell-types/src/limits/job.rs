//! Limits of jobs, of what ends with a lease, and of deletions.

/// The longest that a job may run on a profile that says nothing else.
pub const DEFAULT_MAX_JOB_MS: u64 = 28_800_000;
/// What is kept of each output stream of a job after its sandbox is gone.
pub const JOB_TAIL_BYTES: u64 = 64 * 1024;
/// Jobs of one chat that are remembered; the oldest ended one is forgotten for a new one.
pub const MAX_JOBS_PER_CHAT: u64 = 200;
/// How often running jobs are looked at.
pub const JOB_POLL_INTERVAL_MS: u64 = 1_000;
/// How long a job may run past its ceiling before the daemon stops it itself.
pub const JOB_OVERDUE_MS: u64 = 30_000;
/// The longest that a read of a job's output waits for more.
pub const MAX_JOB_WAIT_MS: u64 = 25_000;
/// How often a read that waits looks again.
pub const JOB_WAIT_POLL_MS: u64 = 200;

/// How long the last look into a sandbox that reached its hard time limit may take.
pub const FINAL_SWEEP_TIMEOUT_MS: u64 = 60_000;
/// Directories beneath the collected one that the last look goes into.
pub const MAX_FINAL_SWEEP_DIRECTORIES: usize = 64;

/// How many leases there may be, running and stopped, for each sandbox that may run at once.
pub const LEASES_PER_SANDBOX: usize = 4;

/// How long a request to delete a workspace or a member waits until that is done.
pub const DELETION_PATIENCE_MS: u64 = 10_000;
/// The pause before a deletion that could not go on is tried again.
pub const DELETION_RETRY_MS: u64 = 5_000;
