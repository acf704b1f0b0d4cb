//! The link between a holder and its far end, by netlink.

use std::{
    fs, io,
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd},
};

use hotcell_uplink::{forward_from, index_of, is_missing, nl};
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::link::{InfoData, InfoVeth, LinkAttribute},
};

use super::{
    Ends, FAR_NAME, NEAR_NAME, PREFIX_BITS,
    namespace::{within, within_settings},
};

/// No IPv6, so no link-local address either, on any link that comes later.
const NO_IPV6: [&str; 2] = [
    "/proc/sys/net/ipv6/conf/all/disable_ipv6",
    "/proc/sys/net/ipv6/conf/default/disable_ipv6",
];

/// The first link of every namespace.
const LOOPBACK: u32 = 1;

/// Makes the pair and gives both ends their addresses. Fine when it is there already. For threads
/// that may wait.
pub(crate) fn plug(
    far: impl AsFd + Send + Copy,
    near: impl AsFd + Send + Copy,
    ends: Ends,
    filtered: bool,
) -> io::Result<()> {
    within_settings(near, no_ipv6)?;
    within_settings(far, move || {
        no_ipv6()?;
        block_on(|handle| async move {
            match index_of(&handle, FAR_NAME).await {
                Ok(_) => return Ok(()),
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(error),
            }
            let peer = LinkMessageBuilder::<LinkUnspec>::new()
                .name(NEAR_NAME.to_owned())
                .append_extra_attribute(LinkAttribute::NetNsFd(near.as_fd().as_raw_fd()))
                .build();
            let pair = LinkMessageBuilder::<LinkVeth>::new(FAR_NAME, NEAR_NAME)
                .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
                .build();
            handle.link().add(pair).execute().await.map_err(nl)
        })
    })?;
    within(near, || {
        block_on(|handle| async move {
            // Not every OCI runtime does it for the holder, and gVisor takes what is up only.
            let loopback = LinkUnspec::new_with_index(LOOPBACK).up().build();
            handle.link().set(loopback).execute().await.map_err(nl)?;
            set_up(&handle, NEAR_NAME, ends.near).await?;
            if filtered {
                let out = RouteMessageBuilder::<Ipv4Addr>::new()
                    .gateway(ends.far)
                    .build();
                handle
                    .route()
                    .add(out)
                    .replace()
                    .execute()
                    .await
                    .map_err(nl)?;
            }
            Ok(())
        })
    })?;
    within_settings(far, || {
        block_on(|handle| async move { set_up(&handle, FAR_NAME, ends.far).await })?;
        if filtered {
            forward_from(FAR_NAME)?;
        }
        Ok(())
    })
}

/// Gives a link its address and takes it up. Also when it had one: a sandbox with its own network
/// stack takes the address away from the link that it uses, and the next one needs it again.
async fn set_up(handle: &Handle, name: &str, address: Ipv4Addr) -> io::Result<()> {
    let index = index_of(handle, name).await?;
    let added = handle
        .address()
        .add(index, address.into(), PREFIX_BITS)
        .execute()
        .await
        .map_err(nl);
    match added {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    let up = LinkUnspec::new_with_index(index).up().build();
    handle.link().set(up).execute().await.map_err(nl)
}

fn no_ipv6() -> io::Result<()> {
    NO_IPV6
        .iter()
        .try_for_each(|path| match fs::write(path, "1") {
            // A kernel without IPv6 has nothing to switch off.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
            Ok(()) => Ok(()),
        })
}

pub(super) fn block_on<T, F: Future<Output = io::Result<T>>>(
    work: impl FnOnce(Handle) -> F,
) -> io::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?
        .block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection()?;
            let driver = tokio::spawn(connection);
            let result = work(handle).await;
            driver.abort();
            result
        })
}
