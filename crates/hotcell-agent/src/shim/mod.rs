//! Shims: the processes that own the tree of one call each.
//!
//! ```text
//! agent                                   shim
//!   │ Spec, and stdin, stdout, stderr ──>   │ spawns the child
//!   │ <── Started, or why not               │
//!   │ <── Exited(how, does anything remain) │ reaps
//!   │ <── Gone                              │ nothing is left below: it is free again
//! ```
//!
//! A shim never reads while it has a child, so the agent sends nothing then: signals go to
//! the processes below it directly.

pub(crate) mod process;
pub(crate) mod wire;
