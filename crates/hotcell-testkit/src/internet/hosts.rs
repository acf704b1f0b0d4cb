//! Servers that answer on every address of their namespace, from the address that was asked.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{TcpListener, TcpStream, UdpSocket},
    task::JoinSet,
    time::timeout,
};

use super::{names::Names, namespace::Server};

/// The longest datagram.
const MAX_DATAGRAM_BYTES: usize = 65_535;
/// How long a connection may be silent.
const IDLE: Duration = Duration::from_secs(60);
/// Connections and delayed answers of one server at once.
const MAX_AT_ONCE: usize = 4_096;

/// A web host: HTTP or echo over TCP, echo over UDP. Counts what comes.
pub(super) fn web(port: u16, hits: &Arc<AtomicUsize>) -> Vec<Server> {
    let (tcp, udp) = (hits.clone(), hits.clone());
    let listener = listen(port);
    let socket = datagrams(port);
    vec![
        Box::pin(accept(listener, move |stream| {
            tcp.fetch_add(1, Ordering::SeqCst);
            host(stream)
        })),
        Box::pin(answer(socket, move |question| {
            udp.fetch_add(1, Ordering::SeqCst);
            Some((question.to_vec(), Duration::ZERO))
        })),
    ]
}

/// A name server over UDP and TCP.
pub(super) fn dns(port: u16, names: &Names) -> Vec<Server> {
    let (tcp, udp) = (names.clone(), names.clone());
    let listener = listen(port);
    let socket = datagrams(port);
    vec![
        Box::pin(accept(listener, move |stream| resolve(stream, tcp.clone()))),
        Box::pin(answer(socket, move |question| udp.reply(question, false))),
    ]
}

fn listen(port: u16) -> TcpListener {
    let listener = std::net::TcpListener::bind(("::", port))
        .unwrap_or_else(|error| panic!("TCP port {port}: {error}"));
    listener
        .set_nonblocking(true)
        .and_then(|()| TcpListener::from_std(listener))
        .unwrap_or_else(|error| panic!("TCP port {port}: {error}"))
}

fn datagrams(port: u16) -> UdpSocket {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))
        .unwrap_or_else(|error| panic!("UDP port {port}: {error}"));
    setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)
        .unwrap_or_else(|error| panic!("UDP port {port}: {error}"));
    socket
        .set_nonblocking(true)
        .and_then(|()| UdpSocket::from_std(socket))
        .unwrap_or_else(|error| panic!("UDP port {port}: {error}"))
}

async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut open = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let serving = serve(stream);
            open.spawn(async move {
                // A client that goes away is no fault.
                let _ = serving.await;
            });
        }
        while open.try_join_next().is_some() {}
        if open.len() >= MAX_AT_ONCE {
            open.join_next().await;
        }
    }
}

async fn host(mut stream: TcpStream) -> io::Result<()> {
    let here = stream.local_addr()?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = timeout(IDLE, stream.read(&mut buffer)).await??;
        let said = &buffer[..length];
        if said.is_empty() {
            return Ok(());
        }
        if said.starts_with(b"GET ") || said.starts_with(b"HEAD ") {
            let address = here.ip().to_canonical();
            let text = format!("this is {address} port {}\n", here.port());
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                text.len()
            );
            stream.write_all(answer.as_bytes()).await?;
            return stream.shutdown().await;
        }
        stream.write_all(said).await?;
    }
}

async fn resolve(mut stream: TcpStream, names: Names) -> io::Result<()> {
    loop {
        let length = timeout(IDLE, stream.read_u16()).await??;
        let mut question = vec![0; length.into()];
        timeout(IDLE, stream.read_exact(&mut question)).await??;
        let Some((reply, delay)) = names.reply(&question, true) else {
            return Ok(());
        };
        tokio::time::sleep(delay).await;
        let length = u16::try_from(reply.len()).map_err(io::Error::other)?;
        let mut framed = length.to_be_bytes().to_vec();
        framed.extend(reply);
        stream.write_all(&framed).await?;
    }
}

async fn answer(socket: UdpSocket, reply: impl Fn(&[u8]) -> Option<(Vec<u8>, Duration)>) {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
    let mut waiting = JoinSet::new();
    loop {
        let received = socket
            .async_io(Interest::READABLE, || receive(&socket, &mut buffer))
            .await;
        let Ok((length, from, here)) = received else {
            continue;
        };
        if let Some((bytes, delay)) = reply(&buffer[..length]) {
            if delay.is_zero() {
                let _ = send(&socket, &bytes, from, here);
            } else if waiting.len() < MAX_AT_ONCE {
                let socket = socket.clone();
                waiting.spawn(async move {
                    tokio::time::sleep(delay).await;
                    let _ = send(&socket, &bytes, from, here);
                });
            }
        }
        while waiting.try_join_next().is_some() {}
    }
}

/// A datagram: its length, who sent it, and which address it was for.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, SocketAddrV4, Ipv4Addr)> {
    let mut space = nix::cmsg_space!(nix::libc::in_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrIn>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::empty(),
    )?;
    let here = message.cmsgs()?.find_map(|part| match part {
        ControlMessageOwned::Ipv4PacketInfo(info) => Some(info.ipi_addr.s_addr),
        _ => None,
    });
    let (from, here) = message
        .address
        .zip(here)
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let here = Ipv4Addr::from(u32::from_be(here));
    Ok((
        message.bytes,
        SocketAddrV4::new(from.ip(), from.port()),
        here,
    ))
}

fn send(socket: &UdpSocket, bytes: &[u8], to: SocketAddrV4, from: Ipv4Addr) -> io::Result<()> {
    let info = nix::libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: nix::libc::in_addr {
            s_addr: u32::from(from).to_be(),
        },
        ipi_addr: nix::libc::in_addr { s_addr: 0 },
    };
    sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        &[ControlMessage::Ipv4PacketInfo(&info)],
        MsgFlags::empty(),
        Some(&SockaddrIn::from(to)),
    )?;
    Ok(())
}
