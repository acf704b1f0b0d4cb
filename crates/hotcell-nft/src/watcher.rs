//! Notices when somebody else changes the packet filter.
//!
//! The kernel tells every committed change with the netlink address of who made it. Changes of our
//! own socket are skipped; anything else is passed on, and whoever listens compares the table with
//! what it shall be. Should a notice get lost, the kernel's generation number, asked for now and
//! then, still differs.

use std::{io, os::fd::OwnedFd, sync::Arc};

use hotcell_types::limits::{FIREWALL_POLL_INTERVAL_MS, MAX_FOREIGN_CHANGES};
use nftnl::nftnl_sys::libc;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::mpsc;
use tracing::warn;

use crate::{
    firewall::{OpenError, in_namespace},
    message::attributes,
    netlink::{Message, Netlink, nf_tables},
};

/// `NFTA_GEN_ID` and `NFTA_GEN_PROC_NAME` of the kernel's nf_tables.h.
const GENERATION_ID: u16 = 1;
const GENERATION_PROCESS_NAME: u16 = 3;

/// A change that we did not make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignChange {
    /// The kernel's generation after it.
    pub generation: u32,
    /// The name of the process that made it, when the kernel told.
    pub process: Option<String>,
}

/// Listens until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    changes: mpsc::Receiver<ForeignChange>,
    stop: Arc<OwnedFd>,
}

impl Watcher {
    /// Starts listening in `namespace`, or in the caller's. Changes made under `own_port`
    /// ([`NftFirewall::port`](crate::NftFirewall::port)) are ours.
    ///
    /// # Errors
    /// When the namespace cannot be entered or no socket can be opened there.
    pub fn start(namespace: Option<OwnedFd>, own_port: u32) -> Result<Self, OpenError> {
        let (tell, changes) = mpsc::channel(MAX_FOREIGN_CHANGES);
        let (ready, opened) = std::sync::mpsc::sync_channel(1);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| OpenError::Socket(error.into()))?;
        let stop = Arc::new(stop);
        let stopped = stop.clone();
        in_namespace(
            "filter-watcher",
            namespace,
            || Ok((Netlink::listening()?, Netlink::open()?)),
            move |(listening, asking)| {
                let mut watch = Watch {
                    own_port,
                    generation: 0,
                    tell,
                };
                watch.run(listening, asking, &stopped);
            },
            move |outcome| {
                let _ = ready.send(outcome.map(|_| ()));
            },
        )?;
        let gone = || OpenError::Thread(io::ErrorKind::BrokenPipe.into());
        opened.recv().map_err(|_| gone())??;
        Ok(Self { changes, stop })
    }

    /// The next change by somebody else; `None` when the watcher has ended. Several that nobody
    /// waited for may be told as fewer.
    pub async fn changed(&mut self) -> Option<ForeignChange> {
        self.changes.recv().await
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The counter is 0 before, so adding 1 cannot block; a thread that is gone does not mind.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

struct Watch {
    own_port: u32,
    generation: u32,
    tell: mpsc::Sender<ForeignChange>,
}

impl Watch {
    fn run(&mut self, mut listening: Netlink, mut asking: Netlink, stop: &OwnedFd) {
        self.generation = generation(&mut asking).unwrap_or_default();
        let wait_ms = FIREWALL_POLL_INTERVAL_MS;
        let wait = Timespec {
            tv_sec: i64::try_from(wait_ms / 1_000).unwrap_or(i64::MAX),
            tv_nsec: 0,
        };
        loop {
            let listening_fd = listening.fd();
            let mut fds = [
                PollFd::new(&listening_fd, PollFlags::IN),
                PollFd::new(stop, PollFlags::IN),
            ];
            let woken = poll(&mut fds, Some(&wait));
            let stopped = !fds[1].revents().is_empty();
            let told = !fds[0].revents().is_empty();
            if stopped || self.tell.is_closed() {
                return;
            }
            match woken {
                Ok(0) => self.compare(&mut asking),
                Ok(_) if told => {
                    if let Err(error) = listening.receive(|message| self.heard(message)) {
                        // The notices were more than the socket holds: something has changed.
                        warn!(%error, "notices of packet filter changes were lost");
                        self.pass_on(self.generation, None);
                    }
                }
                Ok(_) => {}
                Err(error) if error == rustix::io::Errno::INTR => {}
                Err(error) => {
                    warn!(%error, "the packet filter is no longer watched");
                    return;
                }
            }
        }
    }

    fn heard(&mut self, message: Message<'_>) {
        if message.kind() != nf_tables(libc::NFT_MSG_NEWGEN) {
            return;
        }
        let (generation, process) = parse_generation(message);
        self.generation = generation;
        if message.port() != self.own_port {
            self.pass_on(generation, process);
        }
    }

    /// Every change is also told; one that is not in time is found here.
    fn compare(&mut self, asking: &mut Netlink) {
        match generation(asking) {
            Ok(now) if now != self.generation => {
                self.generation = now;
                self.pass_on(now, None);
            }
            Ok(_) => {}
            Err(error) => {
                warn!(%error, "cannot ask for the packet filter's generation");
                self.pass_on(self.generation, None);
            }
        }
    }

    fn pass_on(&self, generation: u32, process: Option<String>) {
        // When the queue is full a change waits there already, and one comparison finds both.
        let _ = self.tell.try_send(ForeignChange {
            generation,
            process,
        });
    }
}

fn generation(asking: &mut Netlink) -> Result<u32, hotcell_egress::firewall::FirewallError> {
    let mut found = 0;
    asking.ask(
        "ask for the generation",
        libc::NFT_MSG_GETGEN,
        0,
        |_| {},
        |message| {
            if message.kind() == nf_tables(libc::NFT_MSG_NEWGEN) {
                found = parse_generation(message).0;
            }
        },
    )?;
    Ok(found)
}

/// Generation and process name out of the attributes.
fn parse_generation(message: Message<'_>) -> (u32, Option<String>) {
    let (mut generation, mut process) = (0, None);
    for (kind, data) in attributes(message.attributes()) {
        match kind {
            GENERATION_ID => {
                generation = <[u8; 4]>::try_from(data).map_or(0, u32::from_be_bytes);
            }
            GENERATION_PROCESS_NAME => {
                let name = String::from_utf8_lossy(data);
                process = Some(name.trim_end_matches('\0').to_owned());
            }
            _ => {}
        }
    }
    (generation, process)
}
