//! Sockets in a network namespace: the two that the DNS side of a sandbox answers on.
//!
//! A socket stays in the namespace that it was made in, whoever uses it, so all that is needed is a
//! thread that goes there and hands them out.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::mpsc,
};

use hotcell_types::limits::{DNS_SOCKET_BUFFER_BYTES, MAX_DNS_TCP_BACKLOG};
use nftnl::nftnl_sys::libc;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::{
    askers::only_from,
    firewall::{OpenError, in_namespace},
};

const DNS_PORT: u16 = 53;

/// Where the filter of one sandbox answers; both do not block.
#[derive(Debug)]
pub struct DnsSockets {
    /// Questions in datagrams.
    pub udp: UdpSocket,
    /// Questions in connections.
    pub tcp: TcpListener,
}

/// Sockets on port 53 of a sandbox's gateway address, in `namespace` or where the caller is. The
/// address need not be there yet: it comes with the sandbox's link. Only what comes from the sandbox's own
/// addresses gets to them, or from the namespace's loopback, which nothing from outside can have: the packet filter
/// lets no others through, but where somebody flushed it, and until it is back, a sandbox would get as
/// far as its neighbour's resolver. Blocks for a moment.
///
/// # Errors
/// When the namespace cannot be entered, or somebody else has the port.
pub fn dns_sockets(
    namespace: Option<OwnedFd>,
    gateway: IpAddr,
    sandbox: Vec<IpAddr>,
) -> Result<DnsSockets, OpenError> {
    let (ready, made) = mpsc::sync_channel(1);
    let (give, given) = mpsc::sync_channel(1);
    in_namespace(
        "dns-sockets",
        namespace,
        move || make(SocketAddr::new(gateway, DNS_PORT), &sandbox),
        move |sockets| {
            let _ = give.send(sockets);
        },
        move |outcome| {
            let _ = ready.send(outcome.map(|_| ()));
        },
    )?;
    let gone = |_| OpenError::Thread(io::ErrorKind::BrokenPipe.into());
    made.recv().map_err(gone)??;
    given.recv().map_err(gone)
}

fn make(address: SocketAddr, sandbox: &[IpAddr]) -> io::Result<DnsSockets> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let udp = socket_with(family, SocketType::DGRAM, flags, None)?;
    may_be_absent(udp.as_fd(), address)?;
    // A sandbox may ask many questions at once.
    sockopt::set_socket_recv_buffer_size_force(&udp, DNS_SOCKET_BUFFER_BYTES)?;
    only_from(&udp, sandbox)?;
    bind(&udp, &address)?;
    let tcp = socket_with(family, SocketType::STREAM, flags, None)?;
    may_be_absent(tcp.as_fd(), address)?;
    // Connections of a daemon before us may still be ending.
    sockopt::set_socket_reuseaddr(&tcp, true)?;
    only_from(&tcp, sandbox)?;
    bind(&tcp, &address)?;
    listen(&tcp, MAX_DNS_TCP_BACKLOG)?;
    Ok(DnsSockets {
        udp: udp.into(),
        tcp: tcp.into(),
    })
}

/// Lets a socket be bound to an address that is not there yet, or not any more.
fn may_be_absent(socket: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let (level, option) = match address {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_FREEBIND),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
    };
    let on: libc::c_int = 1;
    let length = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the value is as long as it is said to be.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const on).cast(),
            length,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
