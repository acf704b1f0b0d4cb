//! Every limit has its name here. Sizes in bytes, times in milliseconds unless the name says otherwise.

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// The longest file name that Linux file systems take.
pub const MAX_FILE_NAME_BYTES: usize = 255;
/// The longest path that a caller may name.
pub const MAX_PATH_BYTES: usize = 4096;

/// The longest `bash` command text. Over it: 413 with this number.
pub const MAX_COMMAND_BYTES: usize = 16 * MIB as usize;
/// The longest JSON request body (a command of the longest kind, escaped).
pub const MAX_JSON_BODY_BYTES: usize = 33 * MIB as usize;
/// The longest single environment variable, name and value: the kernel's MAX_ARG_STRLEN.
pub const MAX_ENV_VAR_BYTES: usize = 128 * KIB as usize - 1;
/// How many environment variables a call may set.
pub const MAX_ENV_VARS: usize = 256;

/// What of each output stream is kept from the start.
pub const OUTPUT_HEAD_BYTES: usize = 256 * KIB as usize;
/// What of each output stream is kept from the end. Head and tail together keep a million characters whole.
pub const OUTPUT_TAIL_BYTES: usize = 768 * KIB as usize;
/// The longest payload of one frame between agent and daemon.
pub const MAX_FRAME_BYTES: usize = 64 * KIB as usize;
/// How often a running call reports progress when it has nothing else to say, and
/// how long output may wait before it is passed on.
pub const PROGRESS_INTERVAL_MS: u64 = 250;
/// How often an event stream carries a keep-alive.
pub const KEEP_ALIVE_INTERVAL_MS: u64 = 5_000;

/// The time limit of a `bash` call that names none.
pub const DEFAULT_COMMAND_TIMEOUT_MS: u64 = 120_000;
/// The longest time limit that a `bash` call may name; longer work is a job.
pub const MAX_COMMAND_TIMEOUT_MS: u64 = 3_600_000;
/// What a command that ran out of time gets between TERM and KILL.
pub const KILL_GRACE_MS: u64 = 500;
/// `bash` calls that may run at once in one sandbox.
pub const MAX_CALLS_PER_SANDBOX: usize = 32;
/// How long a finished call's events stay for a client that comes back.
pub const CALL_RETENTION_MS: u64 = 600_000;

/// Jobs that an agent keeps, running and finished.
pub const MAX_JOBS_PER_SANDBOX: usize = 64;
/// What an agent keeps of each output stream of a job.
pub const MAX_JOB_OUTPUT_BYTES: u64 = 16 * MIB;
/// The largest piece of job output that one read returns.
pub const MAX_JOB_READ_BYTES: u64 = MIB;

/// The largest uploaded file.
pub const MAX_UPLOAD_BYTES: u64 = 25 * MIB;
/// All uploads of one chat together: what can be copied into one sandbox.
pub const MAX_UPLOADS_TOTAL_BYTES: u64 = 256 * MIB;
/// How many files one chat may have uploaded.
pub const MAX_UPLOADS_PER_CHAT: usize = 1_000;

/// Files that one `present_files` call may collect.
pub const MAX_OUTPUTS_PER_COLLECTION: usize = 25;
/// Bytes that one `present_files` call may collect.
pub const MAX_OUTPUT_BYTES_PER_COLLECTION: u64 = 100 * MIB;
/// Characters of paths and reasons that one `present_files` answer may hold.
pub const MAX_OUTPUT_CHARACTERS_PER_COLLECTION: usize = 50_000;
/// Paths that one `present_files` call may name: more than can be collected, so that the rest is listed as skipped.
pub const MAX_PATHS_PER_COLLECTION: usize = 200;
/// The only file types that leave a sandbox, by their last extension.
pub const ALLOWED_OUTPUT_TYPES: [&str; 16] = [
    "pptx", "xlsx", "docx", "pdf", "csv", "tsv", "json", "txt", "md", "html", "png", "jpg", "jpeg",
    "gif", "webp", "svg",
];

/// Rows in one page of a listing.
pub const MAX_PAGE_ROWS: usize = 1_000;

/// How long a call waits for its sandbox to be ready.
pub const DEFAULT_START_TIMEOUT_MS: u64 = 90_000;
/// How long a sandbox may be idle before it is stopped.
pub const DEFAULT_IDLE_TIMEOUT_MS: u64 = 600_000;
/// How long a sandbox may live at all.
pub const DEFAULT_HARD_TIMEOUT_MS: u64 = 3_600_000;
/// The size of `/workspace`.
pub const DEFAULT_SCRATCH_BYTES: u64 = 1024 * MIB;
/// The size of `/dev/shm`.
pub const SHM_BYTES: u64 = 64 * MIB;
/// Sandboxes that one daemon holds at once, whatever the quotas say.
pub const DEFAULT_MAX_SANDBOXES: usize = 64;

/// How far a signed request's clock may be off, both ways.
pub const MAX_CLOCK_SKEW_SECONDS: u64 = 60;
/// Nonces remembered at once; past it signed requests are refused as busy.
pub const MAX_NONCES: usize = 1_000_000;
/// How long a request body may take to arrive, without progress.
pub const BODY_IDLE_TIMEOUT_MS: u64 = 30_000;
/// How long the headers of a request may take to arrive.
pub const HEADER_TIMEOUT_MS: u64 = 15_000;
/// Connections that the daemon serves at once.
pub const MAX_CONNECTIONS: usize = 2_048;
/// How long a question to an actor may take before it counts as failed.
pub const ACTOR_CALL_TIMEOUT_MS: u64 = 5_000;

/// How long a connection to an agent may take to be made.
pub const AGENT_CONNECT_TIMEOUT_MS: u64 = 5_000;
/// How long an agent may take to begin its answer.
pub const AGENT_ANSWER_TIMEOUT_MS: u64 = 20_000;
/// The same for what ends processes or removes whole trees.
pub const AGENT_SLOW_ANSWER_TIMEOUT_MS: u64 = 60_000;
/// How long a running call may say nothing at all, keep-alives included, before its sandbox counts as lost.
pub const AGENT_SILENCE_MS: u64 = 4 * KEEP_ALIVE_INTERVAL_MS;
/// What a call gets beyond its own time limit and the kill grace before its sandbox counts as lost.
pub const AGENT_EXEC_BACKSTOP_MS: u64 = 10_000;
/// The longest JSON answer of an agent.
pub const MAX_AGENT_ANSWER_BYTES: usize = MIB as usize;
/// The longest page of a directory: [`MAX_PAGE_ROWS`] of the longest names, escaped and in hex.
pub const MAX_AGENT_LISTING_BYTES: usize = 4 * MIB as usize;
/// What is buffered of one connection to an agent; also the longest head of an answer.
pub const AGENT_READ_BUFFER_BYTES: usize = 256 * KIB as usize;
/// Headers in the answer of an agent.
pub const MAX_AGENT_ANSWER_HEADERS: usize = 32;
/// Idle connections that are kept to one agent.
pub const MAX_AGENT_IDLE_CONNECTIONS: usize = 8;
/// How long one is kept; an agent keeps its end open for longer.
pub const AGENT_IDLE_CONNECTION_MS: u64 = 10_000;
/// The first pause between two tries to reach a starting agent; it doubles up to the longest.
pub const AGENT_READY_POLL_MIN_MS: u64 = 2;
/// The longest pause between two tries to reach a starting agent.
pub const AGENT_READY_POLL_MAX_MS: u64 = 50;
/// How long the first try to connect to a starting agent may take (a lost SYN is only repeated
/// by the kernel after a second); it doubles up to [`AGENT_CONNECT_TIMEOUT_MS`].
pub const AGENT_READY_CONNECT_MS: u64 = 20;
