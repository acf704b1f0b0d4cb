//! The way out of one lease's far end, for a sandbox with a filtered network.
//!
//! ```text
//!  sandbox ── holder's namespace ═ veth ═ far end: hc0, filter, uplink ═ veth ═ hcu-… on the host
//! ```
//! The far end is then the gateway of one sandbox, and the filter sits in it. Nothing of the engine's
//! is on the way: no network, no bridge, no name service, no rule. The routes of
//! [`hotcell_uplink`] forward nothing that no filter has seen.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

use hotcell_types::{LeaseId, net::WAY_OUT_INTERFACES};
use hotcell_uplink::{self as uplink, HostSide, UplinkAddresses};

use super::{
    link::block_on,
    namespace::{within, within_settings},
};

/// Two leases at once must not find the same addresses free.
static FINDING: Mutex<()> = Mutex::new(());

/// What the host calls its end: at most 15 bytes.
pub(crate) fn host_end(lease: &LeaseId) -> String {
    format!("{WAY_OUT_INTERFACES}{}", lease.short())
}

/// Makes sure of the uplink of a far end to the namespace that the caller is in. For threads that
/// may wait.
pub(crate) fn connect_out(
    far: impl AsFd + Send + Copy,
    lease: &LeaseId,
) -> io::Result<UplinkAddresses> {
    let _one_at_a_time = FINDING.lock().unwrap_or_else(PoisonError::into_inner);
    let name = host_end(lease);
    let seed = name.bytes().fold(0, |sum: u32, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    let host = OwnedFd::from(File::open("/proc/thread-self/ns/net")?);
    within_settings(far, uplink::close_gateway)?;
    let look = || {
        within(&host, || {
            block_on(async |handle| uplink::look(&handle, &name, seed).await)
        })
    };
    let mut side = look()?;
    if let HostSide::Present { index, .. } = side
        && !within(far, || {
            block_on(async |handle| uplink::is_peer(&handle, index).await)
        })?
    {
        // It leads to a far end that was lost.
        disconnect(lease)?;
        side = look()?;
    }
    let addresses = within(far, || {
        block_on(async |handle| uplink::make(&handle, &name, &host, &side).await)
    })?;
    within(&host, || {
        block_on(async |handle| uplink::finish_host(&handle, &name, addresses).await)
    })?;
    within_settings(far, || {
        block_on(async |handle| uplink::route(&handle, addresses).await)
    })?;
    Ok(addresses)
}

/// Removes the host's end, and with it the other; fine when there is none.
pub(crate) fn disconnect(lease: &LeaseId) -> io::Result<()> {
    let host = OwnedFd::from(File::open("/proc/thread-self/ns/net")?);
    let name = host_end(lease);
    within(&host, || {
        block_on(async |handle| uplink::detach(&handle, &name).await)
    })
}
