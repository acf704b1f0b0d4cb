//! What hotcell decides, without doing anything: the domain model, the gate, the lease machine.
//!
//! Nothing in here waits, reads a clock or touches the world; every function is tested with
//! tables and property tests. Actors in the binary feed events in and run the effects that
//! come out.

pub mod declared;
pub mod deletion;
pub mod gate;
pub mod job;
pub mod lease;
pub mod model;
pub mod network;
pub mod profile;
