//! Links and addresses, by netlink.

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd},
};

use futures_util::TryStreamExt;
use hotcell_runtime::NetworkMode;
use hotcell_uplink::{detach, forward_from, nl};
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::link::{InfoData, InfoVeth, LinkAttribute},
};

use super::slot::{PREFIX_BITS, Slot};

/// What a sandbox calls its link.
const INSIDE: &str = "eth0";
/// The first link of every namespace.
const LOOPBACK: u32 = 1;
/// The number of a sandbox's link in its namespace: beyond those that some kernels put there.
/// Numbers that are known ahead need not be asked for, and a start waits for every question.
const INSIDE_INDEX: u32 = 64;
/// The number of the first link in the gateway.
const GATEWAY_INDEX: u32 = 1_024;

/// What a sandbox's link leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The gateway, and nothing beyond it.
    Nothing,
    /// What its filter lets through.
    Filtered,
}

impl From<NetworkMode> for Reach {
    fn from(mode: NetworkMode) -> Self {
        match mode {
            NetworkMode::None => Self::Nothing,
            NetworkMode::Filtered => Self::Filtered,
        }
    }
}

/// Makes the pair: `name` here, up and with the gateway's address; `eth0` in `sandbox`.
pub(super) async fn attach(
    handle: &Handle,
    name: &str,
    slot: Slot,
    sandbox: impl AsFd,
    reach: Reach,
) -> io::Result<()> {
    let index = GATEWAY_INDEX + u32::from(u16::from(slot));
    let peer = LinkUnspec::new_with_index(INSIDE_INDEX)
        .name(INSIDE.to_owned())
        .append_extra_attribute(LinkAttribute::NetNsFd(sandbox.as_fd().as_raw_fd()))
        .build();
    let pair = LinkMessageBuilder::<LinkVeth>::new(name, INSIDE)
        .index(index)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .up()
        .build();
    handle.link().add(pair).execute().await.map_err(nl)?;
    handle
        .address()
        .add(index, slot.gateway().into(), PREFIX_BITS)
        .execute()
        .await
        .map_err(nl)?;
    match reach {
        Reach::Nothing => Ok(()),
        Reach::Filtered => forward_from(name),
    }
}

/// The names of all links here.
pub(super) async fn names(handle: &Handle) -> io::Result<Vec<String>> {
    let links: Vec<_> = handle
        .link()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(nl)?;
    Ok(links
        .into_iter()
        .flat_map(|link| link.attributes)
        .filter_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        })
        .collect())
}

/// Brings up loopback and the link, and gives it its address, in the sandbox whose namespace the
/// calling thread is in. Without a network it gets no route but to its own /30, so there is nothing
/// beyond the gateway to send to.
pub(crate) fn configure_inside(slot: Slot, reach: Reach) -> io::Result<()> {
    inside(async |handle| {
        for index in [LOOPBACK, INSIDE_INDEX] {
            let up = LinkUnspec::new_with_index(index).up().build();
            handle.link().set(up).execute().await.map_err(nl)?;
        }
        handle
            .address()
            .add(INSIDE_INDEX, slot.sandbox().into(), PREFIX_BITS)
            .execute()
            .await
            .map_err(nl)?;
        if reach == Reach::Nothing {
            return Ok(());
        }
        let out = RouteMessageBuilder::<Ipv4Addr>::new()
            .gateway(slot.gateway())
            .build();
        handle.route().add(out).execute().await.map_err(nl)
    })
}

/// Removes the link of the sandbox whose namespace the calling thread is in, if there is one.
pub(crate) fn unlink_inside() -> io::Result<()> {
    inside(async |handle| detach(handle, INSIDE).await)
}

fn inside<T>(work: impl AsyncFnOnce(&Handle) -> io::Result<T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        work(&handle).await
    })
}
