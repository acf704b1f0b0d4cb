//! Limits that concern only the inside of the agent.

/// Connections at once. User code can open some too; those that never authenticate go first.
pub const MAX_CONNECTIONS: usize = 256;
/// Nonces remembered; the daemon's whole budget of requests in two minutes.
pub const MAX_NONCES: usize = 262_144;
/// The body of a request that has none in the protocol.
pub const MAX_IGNORED_BODY_BYTES: usize = 4 * 1024;
/// What is still read and thrown away of a refused upload, so that its sender gets to see the answer
/// and the connection stays of use: more than the largest input.
pub const MAX_DRAINED_BODY_BYTES: u64 = 64 * 1024 * 1024;
/// How long that may take.
pub const DRAIN_MS: u64 = 2_000;
/// What one read of a pipe takes.
pub const PIPE_READ_BYTES: usize = 64 * 1024;
/// What one read of a file takes.
pub const FILE_READ_BYTES: usize = 256 * 1024;
/// Threads for file work; more transfers wait for one.
pub const MAX_FILE_THREADS: usize = 16;
/// How long a thread for file work stays when it has none.
pub const FILE_THREAD_IDLE_MS: u64 = 1_000;
/// How long no call has come when the shell of the next one is started.
pub const AHEAD_PAUSE_MS: u64 = 20;
/// How long a call waits for a shell that is just being started ahead of it.
pub const AHEAD_PATIENCE_MS: u64 = 500;
/// Idle shims that are kept; more end when their call does.
pub const MAX_IDLE_SHIMS: usize = 4;
/// Shims at once, busy and idle.
pub const MAX_SHIMS: usize = 512;
/// How often starting a process is tried anew because user code killed the idle shim.
pub const MAX_SPAWN_ATTEMPTS: usize = 3;
/// The longest description of a process that a shim takes.
pub const MAX_SPEC_BYTES: usize = 64 * 1024 * 1024;
/// Processes that one look at `/proc` takes in.
pub const MAX_PROCESSES: usize = 65_536;
/// Rounds of stopping everything in a tree before everything in it is killed.
pub const MAX_FREEZE_ROUNDS: usize = 64;
/// How long the agent goes on killing a tree that does not end.
pub const KILL_LIMIT_MS: u64 = 10_000;
/// The first pause between two rounds of killing; it doubles.
pub const KILL_ROUND_MS: u64 = 5;
/// How long after its time limit a call answers at the latest, dead tree or not.
pub const ANSWER_AFTER_TIMEOUT_MS: u64 = 900;
/// Working directory and exports of the chat's shell.
pub const MAX_SHELL_STATE_BYTES: usize = 1024 * 1024;
/// What all jobs together may keep of their output; the longest forget first.
pub const MAX_JOBS_OUTPUT_BYTES: u64 = 64 * 1024 * 1024;
/// How often a byte stream whose caller has closed its side is checked for a caller at all.
pub const STDIO_PROBE_INTERVAL_MS: u64 = 500;
/// The part of `/etc/passwd` that is read.
pub const MAX_PASSWD_BYTES: u64 = 1024 * 1024;
/// How deep a directory is removed in place; what lies deeper is moved up first.
pub const MAX_REMOVE_DEPTH: usize = 64;
/// Pieces of a file on their way between a file and a connection.
pub const FILE_QUEUE_PIECES: usize = 4;
/// The longest text of an agent key.
pub const MAX_KEY_BYTES: usize = 512;
/// The longest time limit of a job, in milliseconds; the lease ends long before.
pub const MAX_JOB_TIMEOUT_MS: u64 = 30 * 24 * 3_600_000;
/// How long accepting connections pauses at most when there are no descriptors.
pub const ACCEPT_PAUSE_MS: u64 = 100;
