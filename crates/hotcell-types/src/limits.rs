//! Every limit has its name here. Sizes in bytes, times in milliseconds unless the name says otherwise.

pub mod agent;
pub mod job;

pub use job::*;

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
/// The size of a persistent volume: `/mnt/user-data` of a member, `/mnt/workspace-data`.
pub const DEFAULT_VOLUME_BYTES: u64 = 4096 * MIB;
/// How long a tool may take to make, check, grow or mount a volume.
pub const VOLUME_TOOL_TIMEOUT_MS: u64 = 60_000;
/// How often volumes that nobody uses are unmounted.
pub const VOLUME_RELEASE_INTERVAL_MS: u64 = 300_000;
/// The size of `/workspace`.
pub const DEFAULT_SCRATCH_BYTES: u64 = 1024 * MIB;
/// The size of `/dev/shm`.
pub const SHM_BYTES: u64 = 64 * MIB;
/// Sandboxes that one daemon holds at once, whatever the quotas say.
pub const DEFAULT_MAX_SANDBOXES: usize = 64;

/// How far a signed request's clock may be off, both ways.
pub const MAX_CLOCK_SKEW_SECONDS: u64 = 60;
/// From which distance of a backend's clock an operator is told.
pub const CLOCK_SKEW_WARNING_SECONDS: u64 = 30;
/// How long a clock that was off is remembered: it may have been set right since.
pub const CLOCK_SKEW_MEMORY_MS: u64 = 600_000;
/// Backends whose clocks are off that are remembered at once.
pub const MAX_SKEWED_CLIENTS: usize = 1_000;
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
/// How long writing one file into a sandbox may take, however steadily it moves.
pub const AGENT_UPLOAD_TIMEOUT_MS: u64 = 3_600_000;
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

/// The unpacked size of an image.
pub const MAX_IMAGE_BYTES: u64 = 64 * 1024 * MIB;
/// Files, directories and links in an image.
pub const MAX_IMAGE_ENTRIES: u64 = 4_000_000;
/// Images in one store.
pub const MAX_IMAGES: usize = 256;
/// What must be free on the disk of the sandboxes before another one is made.
pub const MIN_HOST_FREE_BYTES: u64 = 64 * MIB;
/// The size of the agent's own tmpfs in a sandbox.
pub const AGENT_TMPFS_BYTES: u64 = 64 * MIB;
/// Files that one process in a sandbox may have open.
pub const MAX_OPEN_FILES_PER_PROCESS: u64 = 65_536;
/// Sandboxes that one embedded runtime can number.
pub const MAX_EMBEDDED_SANDBOXES: usize = 16_000;
/// How long an OCI runtime may take to start a sandbox.
pub const ENGINE_START_TIMEOUT_MS: u64 = 60_000;
/// How long a tool such as `mkfs.ext4` may take.
pub const ENGINE_TOOL_TIMEOUT_MS: u64 = 30_000;
/// How long killed processes and their kernel objects may take to be gone.
pub const ENGINE_KILL_TIMEOUT_MS: u64 = 15_000;
/// How long a probe waits for an agent to accept a connection.
pub const ENGINE_PROBE_TIMEOUT_MS: u64 = 10_000;
/// What is read of an engine's log or of a record on disk.
pub const MAX_ENGINE_FILE_BYTES: u64 = MIB;
/// Requests that may wait for the thread of the gateway namespace.
pub const MAX_GATEWAY_REQUESTS: usize = 1_024;
/// How long a container engine may take to answer a question.
pub const ENGINE_ANSWER_TIMEOUT_MS: u64 = 10_000;
/// How long a container engine may take for work: creating, starting, removing.
pub const ENGINE_WORK_TIMEOUT_MS: u64 = 60_000;
/// The longest answer of a container engine that is read.
pub const MAX_ENGINE_ANSWER_BYTES: usize = 16 * MIB as usize;
/// What is read of a container's log to tell why it did not start.
pub const MAX_ENGINE_LOG_BYTES: usize = 64 * KIB as usize;
/// How long a container engine may be away, in a restart, before its sandboxes count as lost.
pub const ENGINE_ABSENCE_MS: u64 = 20_000;
/// Memory of the container that only holds a network namespace; enough for gVisor itself.
pub const HOLDER_MEMORY_BYTES: u64 = 128 * MIB;
/// Processes and threads of that container.
pub const HOLDER_PIDS: u32 = 128;
/// The size of `/run` in a container; only `/run/hotcell` in it is used.
pub const RUN_TMPFS_BYTES: u64 = MIB;
/// Entries of a volume whose owner is changed when it moves to a rootless engine.
pub const MAX_VOLUME_ENTRIES: u64 = 1_000_000;
/// How deep directories in a volume are followed.
pub const MAX_VOLUME_DEPTH: usize = 128;

/// Changes that wait for the store's writer; further callers wait for a place.
pub const STORE_QUEUE_CHANGES: usize = 4_096;
/// Changes that share one commit of the store.
pub const STORE_BATCH_CHANGES: usize = 1_024;
/// The largest row of the store.
pub const MAX_STORED_ROW_BYTES: usize = 256 * KIB as usize;
/// Everything that one change writes into the store.
pub const MAX_STORE_CHANGE_BYTES: usize = 16 * MIB as usize;
/// Memory for the store's page cache.
pub const STORE_CACHE_BYTES: usize = 8 * MIB as usize;
/// Organizations of one deployment.
pub const MAX_ORGANIZATIONS: u64 = 10_000;
/// Workspaces of one deployment.
pub const MAX_WORKSPACES: u64 = 100_000;
/// Organizations, network policies and workspaces that one configuration may declare.
pub const MAX_DECLARED_OBJECTS: usize = 4_096;
/// Live secrets of one credential: the current one and, during a rotation, the one before.
pub const MAX_SECRETS_PER_CREDENTIAL: usize = 2;
/// Leases that have not ended.
pub const MAX_LIVE_LEASES: u64 = 100_000;
/// Collected files of one chat.
pub const MAX_OUTPUTS_PER_CHAT: u64 = 10_000;

/// The slowest average at which a request body may come, in bytes per second, once
/// [`BODY_IDLE_TIMEOUT_MS`] has passed.
pub const MIN_BODY_BYTES_PER_SECOND: u64 = KIB;
/// The longest JSON request body of the operators' API.
pub const MAX_ADMIN_BODY_BYTES: usize = 64 * KIB as usize;
/// What is still read and thrown away of a refused body, so that its sender gets to see the
/// answer: of a request that was authenticated.
pub const LINGER_BYTES: u64 = 64 * MIB;
/// The same of one that was not.
pub const LINGER_UNAUTHENTICATED_BYTES: u64 = MIB;
/// How long that may take.
pub const LINGER_MS: u64 = 2_000;
/// Bytes of nonces that are written down before the log is rotated.
pub const MAX_NONCE_LOG_BYTES: u64 = 256 * MIB;
/// Streams that one HTTP/2 connection may have open.
pub const MAX_HTTP2_STREAMS: u32 = 128;
/// How often an HTTP/2 connection is asked whether it is still there, and how long it may take to say so.
pub const HTTP2_PING_MS: u64 = 20_000;
/// How long requests may go on after a shutdown was asked for.
pub const SHUTDOWN_DRAIN_MS: u64 = 10_000;
/// How long a listener pauses after it could not accept a connection.
pub const ACCEPT_PAUSE_MS: u64 = 50;
/// How long a piece of output waits for more before it is passed on.
pub const OUTPUT_FLUSH_MS: u64 = 100;
/// A piece of output of this size is passed on at once.
pub const OUTPUT_PIECE_BYTES: usize = 32 * KIB as usize;
/// How long an event stream's headers wait for the sandbox, so that a refusal is a plain answer.
pub const EVENT_STREAM_PATIENCE_MS: u64 = 2_000;
/// Calls, running and finished, that are remembered at once.
pub const MAX_CALLS: usize = 4_096;
/// Output of finished calls that is remembered at once, in bytes.
pub const MAX_RETAINED_CALL_BYTES: usize = 64 * MIB as usize;
/// How much of a file is read at once while it is served.
pub const FILE_CHUNK_BYTES: usize = 256 * KIB as usize;
/// The longest name of an organization or workspace, in characters.
pub const MAX_DISPLAY_NAME_CHARACTERS: usize = 200;
/// Rows in a page that does not say how many.
pub const DEFAULT_PAGE_ROWS: usize = 100;
/// Credentials that one organization may have.
pub const MAX_CREDENTIALS_PER_ORGANIZATION: usize = 100;
/// Characters of a skipped path that remain when an answer would grow too long.
pub const MAX_SHORTENED_PATH_CHARACTERS: usize = 80;

/// The longest network policy document: room for [`MAX_POLICY_RULES`] rules with names of usual length.
pub const MAX_POLICY_BYTES: usize = MIB as usize;
/// Rules in one network policy.
pub const MAX_POLICY_RULES: usize = 8_192;
/// Problems of a network policy that are named at once.
pub const MAX_POLICY_PROBLEMS: usize = 32;
/// Warnings about a network policy that are named at once.
pub const MAX_POLICY_WARNINGS: usize = 64;
/// How much of an offending text is repeated in a message, in characters.
pub const MAX_QUOTED_CHARACTERS: usize = 80;

/// Children of one supervisor.
pub const MAX_SUPERVISED_CHILDREN: usize = 100_000;
/// How long an actor may take to start: its `pre_start` does next to nothing.
pub const CHILD_START_TIMEOUT_MS: u64 = 5_000;
/// How long an actor may take to stop before it is killed.
pub const CHILD_STOP_TIMEOUT_MS: u64 = 10_000;
/// How long stopping one child may take altogether, its own children included.
pub const MAX_CHILD_STOP_MS: u64 = 120_000;
/// How long a question to a supervisor may take: it may be starting children meanwhile.
pub const SUPERVISOR_CALL_TIMEOUT_MS: u64 = 30_000;

/// How long a runtime may take to stop or remove one sandbox before that counts as failed.
pub const ENGINE_END_TIMEOUT_MS: u64 = 60_000;
/// How long a runtime may take to list its sandboxes.
pub const ENGINE_LIST_TIMEOUT_MS: u64 = 30_000;
/// How often what the runtime has is compared with what the store knows.
pub const SWEEP_INTERVAL_MS: u64 = 60_000;
/// How often a profile's preflight runs by itself.
pub const PREFLIGHT_INTERVAL_MS: u64 = 600_000;
/// How soon it runs again when something failed: the operator may be mending it.
pub const PREFLIGHT_RETRY_MS: u64 = 15_000;
/// Requests that may wait for one preflight.
pub const MAX_PREFLIGHT_WAITERS: usize = 64;
/// How long an asked-for preflight may take.
pub const PREFLIGHT_TIMEOUT_MS: u64 = 120_000;
/// How long ended leases are remembered.
pub const ENDED_LEASE_RETENTION_MS: u64 = 30 * 24 * 3_600_000;
/// How long the daemon waits at its start until every lease that it finds stands where it can stay;
/// what takes longer goes on while it serves.
pub const BOOT_RECONCILE_TIMEOUT_MS: u64 = 30_000;
/// How long a call whose sandbox was lost waits for the reason.
pub const WHY_LOST_TIMEOUT_MS: u64 = 5_000;
/// How long a request to end a lease waits until its sandbox is removed.
pub const END_TIMEOUT_MS: u64 = 10_000;
/// Calls that may wait for one sandbox to be ready.
pub const MAX_WAITING_CALLS: usize = 256;
/// How long the actor of a workspace without leases stays.
pub const WORKSPACE_IDLE_MS: u64 = 60_000;
/// What a call's wait for its sandbox gets beyond the start limit: the lease before it may still
/// be ending.
pub const ACQUIRE_GRACE_MS: u64 = 10_000;
/// How long one `present_files` call may take to read its files.
pub const COLLECTION_TIMEOUT_MS: u64 = 120_000;

/// The size of one change of the packet filter: a table with some thousand ranges, many times over.
pub const MAX_NFT_TRANSACTION_BYTES: usize = 16 * MIB as usize;
/// How long the kernel may take to answer about its packet filter.
pub const NETLINK_ANSWER_TIMEOUT_MS: u64 = 5_000;
/// How often a listing of the packet filter is begun again because it changed meanwhile.
pub const NETLINK_DUMP_TRIES: u32 = 16;
/// What may wait in a socket to the packet filter.
pub const NETLINK_RECEIVE_BUFFER_BYTES: usize = 8 * MIB as usize;
/// Requests that may wait for the thread of the packet filter.
pub const MAX_FIREWALL_REQUESTS: usize = 4_096;
/// Requests to open addresses that are made as one change.
pub const MAX_MERGED_OPENINGS: usize = 256;
/// Changes of the packet filter by others that may wait to be looked at; more are one.
pub const MAX_FOREIGN_CHANGES: usize = 64;
/// How often the packet filter's generation is compared, in case a notice of a change was lost.
pub const FIREWALL_POLL_INTERVAL_MS: u64 = 2_000;
/// Elements that a timed set of the packet filter can hold: the last defence behind the filter's own ceiling.
pub const MAX_TIMED_SET_ELEMENTS: u32 = 65_535;

/// Addresses that one sandbox's filter keeps open at once.
pub const MAX_LEARNED_ADDRESSES: usize = 16_384;
/// How long an address stays open at least after it was last in an answer: clients keep addresses for
/// much longer than the time to live says.
pub const DEFAULT_LEARNED_GRACE_MS: u64 = 3_600_000;
/// The longest that an answer may keep an address open, whatever its time to live.
pub const MAX_LEARNED_MS: u64 = 24 * 3_600_000;
/// Records of one answer that are looked at; the rest is left out of it.
pub const MAX_ANSWER_RECORDS: usize = 512;
/// Aliases that are followed from the question name.
pub const MAX_ALIAS_CHAIN: usize = 16;

/// Questions that one sandbox may ask at once; more are answered with a failure at once.
pub const MAX_DNS_IN_FLIGHT: usize = 512;
/// Questions a second that one sandbox may ask, and how many it may save up.
pub const DEFAULT_DNS_RATE_PER_SECOND: u32 = 2_000;
/// The longest that an upstream resolver may take for one try.
pub const DNS_UPSTREAM_TIMEOUT_MS: u64 = 2_000;
/// Tries before a lookup fails; each goes to the resolver that does best.
pub const DNS_UPSTREAM_TRIES: usize = 3;
/// Answers that the shared cache holds.
pub const MAX_DNS_CACHE_ENTRIES: u64 = 65_536;
/// Questions that may be with the upstream resolvers at once.
pub const MAX_DNS_UPSTREAM_REQUESTS: usize = 4_096;
/// The largest answer over UDP, for clients that take so much.
pub const MAX_DNS_UDP_BYTES: u16 = 4_096;
/// Questions over UDP of one sandbox that are read in one go, before others have their turn.
pub const MAX_DNS_BATCH: usize = 32;
/// Failures in a row to read questions over UDP after which the reader gives up, and its filter begins anew.
pub const MAX_DNS_READ_FAILURES: u32 = 16;
/// Answers that one sandbox's filter keeps ready to be sent.
pub const MAX_READY_DNS_ANSWERS: usize = 512;
/// The longest answer that is kept ready, in bytes without its header and question.
pub const MAX_READY_DNS_BYTES: usize = 1_232;
/// How long answers that only repeat an earlier one are counted before the count is told.
pub const DNS_REPEATS_WINDOW_MS: u64 = 1_000;
/// How long a TCP connection for questions may be idle.
pub const DNS_TCP_IDLE_MS: u64 = 10_000;
/// Answers that may wait on one TCP connection.
pub const MAX_DNS_TCP_ANSWERS: usize = 64;
/// The longest time to live that is passed on.
pub const MAX_DNS_TTL_SECONDS: u32 = 86_400;
/// How long an upstream resolver is waited for alone, before the next is asked beside it.
pub const DNS_UPSTREAM_PATIENCE_MS: u64 = 300;
/// How long a resolver that failed comes after the others.
pub const DNS_UPSTREAM_AVOID_MS: u64 = 30_000;
/// Upstream resolvers that can be configured.
pub const MAX_DNS_UPSTREAMS: usize = 8;
/// The shortest grace of a learned address that can be configured.
pub const MIN_LEARNED_GRACE_MS: u64 = 1_000;
/// How long installing the filter of one sandbox may take.
pub const FILTER_INSTALL_TIMEOUT_MS: u64 = 30_000;
/// How long removing it may take.
pub const FILTER_REMOVE_TIMEOUT_MS: u64 = 15_000;
/// How soon a filter that could not be installed, or a table that could not be restored, is tried again.
pub const FILTER_RETRY_MS: u64 = 2_000;
/// How often the sockets of a filter are tried again while a predecessor's are being closed.
pub const FILTER_SOCKET_TRIES: u32 = 50;
/// The pause between two such tries.
pub const FILTER_SOCKET_PAUSE_MS: u64 = 20;
/// Denied packets of one namespace that may wait to be told; more are not told.
pub const MAX_DENIED_PACKETS_WAITING: usize = 1_024;
/// Denied packets that one rule tells of in a second.
pub const DENIED_PACKETS_PER_SECOND: u32 = 20;
/// Denials that are remembered for each lease; the oldest go first.
pub const MAX_EGRESS_DENIALS_PER_LEASE: usize = 256;
/// Other events of its filter that are remembered for each lease.
pub const MAX_EGRESS_ALLOWED_PER_LEASE: usize = 64;
/// Leases whose events are remembered, ended ones included; the one that was silent longest goes first.
pub const MAX_EGRESS_EVENT_LEASES: usize = 1_024;
/// Lines that the filter of one sandbox may write into the journal in one window.
pub const MAX_EGRESS_LOG_LINES: u32 = 20;
/// The length of that window.
pub const EGRESS_LOG_WINDOW_MS: u64 = 10_000;
/// Notes about denials in one result of a command.
pub const MAX_EGRESS_NOTES: usize = 8;
/// Characters of one such note.
pub const MAX_EGRESS_NOTE_CHARACTERS: usize = 200;
/// Differences of the packet filter that are named in one event or audit row.
pub const MAX_NAMED_DIFFERENCES: usize = 16;

/// How long a profile that stops waits for its runtime to clear a probe away, in milliseconds.
pub const PROFILE_SETTLE_TIMEOUT_MS: u64 = 8_000;

/// Questions about connections that may wait for their thread.
pub const MAX_CONNTRACK_REQUESTS: usize = 256;
/// Denied packets that may wait to be told; more are counted.
pub const MAX_DENIED_PACKETS: usize = 1_024;
/// What may wait in the socket that a sandbox's questions come to.
pub const DNS_SOCKET_BUFFER_BYTES: usize = 256 * KIB as usize;
/// Connections for questions that may wait to be accepted.
pub const MAX_DNS_TCP_BACKLOG: i32 = 128;
/// Live sandboxes of one workspace at once, unless an operator says otherwise.
pub const DEFAULT_MAX_CONCURRENT: u64 = 2;
/// The longest single job of a workspace, in seconds, unless an operator says otherwise.
pub const DEFAULT_MAX_JOB_SECONDS: u64 = 3_600;
/// Bytes of collected files that one workspace may store per UTC day, unless an operator says otherwise.
pub const DEFAULT_MAX_ARTIFACT_BYTES_PER_DAY: u64 = 1024 * MIB;
/// New sandboxes of one workspace per rolling hour, unless an operator says otherwise.
pub const DEFAULT_MAX_JOBS_PER_HOUR: u64 = 60;
/// The most sandboxes at once, and new ones per hour, that a quota can allow: admissions of the last hour
/// are remembered one by one.
pub const MAX_QUOTA_SANDBOXES: u64 = 100_000;
/// The longest job that a quota can allow, in seconds: thirty days.
pub const MAX_QUOTA_JOB_SECONDS: u64 = 30 * 24 * 3_600;
/// The most bytes per day that a quota can allow: one pebibyte.
pub const MAX_QUOTA_BYTES: u64 = 1 << 50;
/// Admissions that left the hour and are forgotten with each new one.
pub const ADMISSIONS_FORGOTTEN_AT_ONCE: u64 = 8;

/// Denials that are remembered; the oldest make place.
pub const MAX_DENIALS: u64 = 10_000;
/// Denials that wait to be written down; past it the oldest of them are lost.
pub const MAX_PENDING_DENIALS: usize = 4_096;
/// How long a denial waits for others to be written down with it.
pub const DENIAL_FLUSH_MS: u64 = 500;

/// How long the audit trail goes back: 400 days, a year and a month to look at it.
pub const AUDIT_RETENTION_MS: u64 = 400 * 24 * 3_600_000;
/// Rows of the audit trail that are looked at for one page of a filtered listing.
pub const MAX_AUDIT_ROWS_SCANNED: usize = 100_000;
/// How often what is past its time is forgotten.
pub const FORGET_INTERVAL_MS: u64 = 600_000;

/// How long it is taken for granted that the store can be written, once it was.
pub const STORE_CHECK_MS: u64 = 1_000;
/// How long a supervisor may take to say how its children are, for whoever asks whether the daemon is ready.
pub const READY_PATIENCE_MS: u64 = 2_000;

/// The longest idempotency key, in characters.
pub const MAX_IDEMPOTENCY_KEY_CHARACTERS: usize = 255;
/// How long an idempotency key is remembered.
pub const IDEMPOTENCY_RETENTION_MS: u64 = 24 * 3_600_000;
/// Idempotency keys of one workspace that are remembered at once; past it new ones are refused as busy.
pub const MAX_IDEMPOTENCY_KEYS_PER_WORKSPACE: u64 = 10_000;
/// The longest answer that is remembered with an idempotency key, in bytes.
pub const MAX_IDEMPOTENT_ANSWER_BYTES: usize = 32 * KIB as usize;
/// Keys past their time that are forgotten with each new one.
pub const IDEMPOTENCY_KEYS_FORGOTTEN_AT_ONCE: usize = 4;

/// The longest message to the journal or the service manager, in bytes.
pub const MAX_DATAGRAM_BYTES: usize = 128 * KIB as usize;

/// Sandboxes that one profile may keep warm.
pub const MAX_WARM_POOL: usize = 64;
/// How long the claim of a warm sandbox may take before a cold one is made instead.
pub const WARM_CLAIM_TIMEOUT_MS: u64 = 5_000;
/// How often it is looked whether what is warm still runs.
pub const WARM_REVIEW_MS: u64 = 10_000;
/// How long a daemon that leaves takes to remove what is warm; the next one removes the rest.
pub const WARM_STOP_TIMEOUT_MS: u64 = 8_000;

/// How often the lock of the embedded runtime's directories is tried again before it counts as another's.
pub const MAX_LOCK_TRIES: u32 = 20;
/// The pause between two such tries.
pub const LOCK_RETRY_MS: u64 = 25;
