//! What runtimes and filters agree on about packets.

/// The mark of packets that a sandbox's filter has seen. A runtime that gives sandboxes a way out in
/// a network namespace of their own routes packets with this mark only, and the filter's table gives
/// it to every packet that comes in: where the table is missing, nothing is forwarded.
pub const WAY_OUT_MARK: u32 = 0x6863_0001;

/// How the names of interfaces begin by which filtered packets enter the host's own network namespace.
pub const WAY_OUT_INTERFACES: &str = "hcu-";
