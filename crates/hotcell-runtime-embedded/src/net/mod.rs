//! The network of sandboxes: one link each, and it leads to the gateway namespace only.
//!
//! The gateway namespace holds the far ends of all links, forwards nothing that no filter has seen
//! and listens nowhere, so a sandbox reaches neither the host nor another sandbox, whatever it sends.
//! For filtered sandboxes it has one guarded way out, the uplink. The daemon
//! reaches agents by sockets that were made in there: a socket stays in the namespace it was
//! born in, whoever uses it.
//!
//! The gateway namespace is kept alive by a bind mount of its file; it is the only thing of this
//! runtime that is mounted on the host. It must outlive the daemon, else the running sandboxes
//! would lose their links with it.

mod gateway;
mod link;
mod slot;

pub(crate) use gateway::{Gateway, close as close_gateway, remove_host_end};
pub(crate) use hotcell_uplink::{
    RANGE as UPLINK_RANGE, UPLINK, UplinkAddresses, close_sandbox, make_writable,
};
pub(crate) use link::{Reach, configure_inside, unlink_inside};
pub(crate) use slot::{RANGE as SLOT_RANGE, Slot};
