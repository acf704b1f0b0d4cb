//! Packets that filters did not let through, as the kernel logs them.
//!
//! A filter's chains tell of a denied packet to a netfilter log group, at a bounded rate. This reads
//! the group: the label says which lease, the copied headers say where to. Nothing waits for a reader:
//! what nobody takes in time is counted and dropped, here as in the kernel.

use std::{
    io,
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc as blocking,
    },
};

use hotcell_egress::layout::short_of_label;
use hotcell_types::limits::MAX_DENIED_PACKETS;
use nftnl::nftnl_sys::libc;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tokio::sync::mpsc;
use tracing::warn;

use crate::{
    expression::LOG_SNAPSHOT_BYTES,
    firewall::{OpenError, in_namespace},
    message::{Question, attribute, find},
    netlink::{Message, Netlink},
};

/// How long the kernel may collect packets before it passes them on, in hundredths of a second.
const COLLECT_HUNDREDTHS: u32 = 10;
const COPY_PACKET: u8 = 2;
/// `NFULA_CFG_TIMEOUT` of the kernel's nfnetlink_log.h.
const CONFIG_TIMEOUT: u16 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A packet that was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeniedPacket {
    /// The short id of its lease.
    pub lease: String,
    /// Its IP protocol number.
    pub protocol: u8,
    /// Where it was to go.
    pub destination: IpAddr,
    /// To which port; none for what is neither TCP nor UDP, and for later fragments.
    pub port: Option<u16>,
}

/// Listens until it is dropped.
#[derive(Debug)]
pub struct DeniedPackets {
    packets: mpsc::Receiver<DeniedPacket>,
    lost: Arc<AtomicU64>,
    stop: Arc<OwnedFd>,
}

impl DeniedPackets {
    /// Starts listening to a log group of `namespace`, or of the caller's. One listener a group.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or the group cannot be had.
    pub fn start(namespace: Option<OwnedFd>, group: u16) -> Result<Self, OpenError> {
        let (tell, packets) = mpsc::channel(MAX_DENIED_PACKETS);
        let (ready, opened) = blocking::sync_channel(1);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| OpenError::Socket(error.into()))?;
        let stop = Arc::new(stop);
        let lost = Arc::new(AtomicU64::new(0));
        let (stopped, counted) = (stop.clone(), lost.clone());
        in_namespace(
            "denied-packets",
            namespace,
            move || bind(group),
            move |netlink| run(netlink, &tell, &counted, &stopped),
            move |outcome| {
                let _ = ready.send(outcome.map(|_| ()));
            },
        )?;
        let gone = || OpenError::Thread(io::ErrorKind::BrokenPipe.into());
        opened.recv().map_err(|_| gone())??;
        Ok(Self {
            packets,
            lost,
            stop,
        })
    }

    /// The next packet; `None` when listening has ended.
    pub async fn next(&mut self) -> Option<DeniedPacket> {
        self.packets.recv().await
    }

    /// How many times packets were not told since nobody took them in time.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

impl Drop for DeniedPackets {
    fn drop(&mut self) {
        // The counter is 0 before, so adding 1 cannot block; a thread that is gone does not mind.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

fn bind(group: u16) -> io::Result<Netlink> {
    let mut netlink = Netlink::open()?;
    let mut mode = LOG_SNAPSHOT_BYTES.to_be_bytes().to_vec();
    mode.extend([COPY_PACKET, 0]);
    let steps = [
        attribute(
            libc::NFULA_CFG_CMD as u16,
            &[libc::NFULNL_CFG_CMD_BIND as u8],
        ),
        attribute(libc::NFULA_CFG_MODE as u16, &mode),
        attribute(CONFIG_TIMEOUT, &COLLECT_HUNDREDTHS.to_be_bytes()),
    ];
    for attributes in &steps {
        let question = Question {
            subsystem: libc::NFNL_SUBSYS_ULOG,
            kind: libc::NFULNL_MSG_CONFIG,
            flags: 0,
            family: libc::AF_UNSPEC,
            resource: group,
            attributes,
        };
        netlink
            .ask_other("listen to a log group", &question, |_| {})
            .map_err(io::Error::other)?;
    }
    Ok(netlink)
}

fn run(mut netlink: Netlink, tell: &mpsc::Sender<DeniedPacket>, lost: &AtomicU64, stop: &OwnedFd) {
    loop {
        let socket = netlink.fd();
        let mut fds = [
            PollFd::new(&socket, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        let woken = poll(&mut fds, None);
        let stopped = !fds[1].revents().is_empty();
        if stopped || tell.is_closed() {
            return;
        }
        match woken {
            Ok(_) => {
                let heard = netlink.receive(|message| {
                    if let Some(packet) = read(message)
                        && tell.try_send(packet).is_err()
                    {
                        lost.fetch_add(1, Relaxed);
                    }
                });
                match heard {
                    Ok(()) => {}
                    // More than the socket holds.
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                        lost.fetch_add(1, Relaxed);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => {
                        warn!(%error, "denied packets are no longer told");
                        return;
                    }
                }
            }
            Err(error) if error == rustix::io::Errno::INTR => {}
            Err(error) => {
                warn!(%error, "denied packets are no longer told");
                return;
            }
        }
    }
}

fn read(message: Message<'_>) -> Option<DeniedPacket> {
    const PACKET: i32 = (libc::NFNL_SUBSYS_ULOG << 8) | libc::NFULNL_MSG_PACKET;
    if message.kind() != PACKET {
        return None;
    }
    let all = message.attributes();
    let label = find(all, libc::NFULA_PREFIX as u16)?;
    let label = std::str::from_utf8(label).ok()?.trim_end_matches('\0');
    let lease = short_of_label(label)?.to_owned();
    let (protocol, destination, port) = headers(find(all, libc::NFULA_PAYLOAD as u16)?)?;
    Some(DeniedPacket {
        lease,
        protocol,
        destination,
        port,
    })
}

/// Protocol, destination and port out of the first bytes of a packet, which the sandbox wrote.
fn headers(packet: &[u8]) -> Option<(u8, IpAddr, Option<u16>)> {
    let (protocol, destination, transport) = match packet.first()? >> 4 {
        4 => {
            let destination = <[u8; 4]>::try_from(packet.get(16..20)?).ok()?;
            let length = usize::from(packet.first()? & 15) * 4;
            let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x1fff;
            let rest = packet.get(length..).filter(|_| fragment == 0);
            (*packet.get(9)?, IpAddr::from(destination), rest)
        }
        6 => {
            let destination = <[u8; 16]>::try_from(packet.get(24..40)?).ok()?;
            // Behind extension headers it counts as what comes first.
            (*packet.get(6)?, IpAddr::from(destination), packet.get(40..))
        }
        _ => return None,
    };
    let port = transport
        .filter(|_| protocol == TCP || protocol == UDP)
        .and_then(|bytes| Some(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?])));
    Some((protocol, destination, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(protocol: u8, fragment: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 0, 1];
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, protocol, 0, 0, 100, 64, 0, 6, 203, 0, 113, 9]);
        packet.extend([0x90, 0, 0x01, 0xbb]);
        packet
    }

    #[test]
    fn headers_are_read() {
        let to: IpAddr = "203.0.113.9".parse().unwrap();
        assert_eq!(headers(&v4(6, 0)), Some((6, to, Some(443))));
        assert_eq!(headers(&v4(17, 0x2000)), Some((17, to, Some(443))));
        assert_eq!(headers(&v4(17, 100)), Some((17, to, None)));
        assert_eq!(headers(&v4(1, 0)), Some((1, to, None)));
        let mut options = v4(6, 0);
        options[0] = 0x46;
        options.splice(20..20, [131, 3, 4, 0]);
        assert_eq!(headers(&options), Some((6, to, Some(443))));
        let mut v6 = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
        v6.extend([0; 16]);
        v6.extend(
            "2001:db8::5"
                .parse::<std::net::Ipv6Addr>()
                .unwrap()
                .octets(),
        );
        v6.extend([0, 1, 0, 53]);
        assert_eq!(
            headers(&v6),
            Some((17, "2001:db8::5".parse().unwrap(), Some(53)))
        );
    }

    #[test]
    fn cut_packets_are_no_panic() {
        for packet in [v4(6, 0), v4(17, 0), vec![0x60; 48], vec![0xff; 9]] {
            for length in 0..packet.len() {
                let _ = headers(&packet[..length]);
            }
        }
        assert_eq!(headers(&[]), None);
        // A header length that lies.
        let mut lying = v4(6, 0);
        lying[0] = 0x4f;
        assert_eq!(headers(&lying).map(|found| found.2), Some(None));
    }
}
