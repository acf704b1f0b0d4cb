//! The socket to the kernel's nf_tables: transactions and questions, blocking, with a time limit.

use std::{
    ffi::c_char,
    io,
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

use hotcell_egress::firewall::FirewallError;
use hotcell_types::limits::{
    MAX_NFT_TRANSACTION_BYTES, NETLINK_ANSWER_TIMEOUT_MS, NETLINK_DUMP_TRIES,
    NETLINK_RECEIVE_BUFFER_BYTES,
};
use mnl::{Bus, Socket};
use nftnl::nftnl_sys::{self as sys, libc};

use crate::{
    batch::{Batch, FAMILY, Finished},
    message::Question,
};

/// Larger than any message that the kernel puts into one read.
const RECEIVE_WORDS: usize = 64 * 1024 / size_of::<u64>();
/// Room for a question: a header and a few names, or the keys of one message's elements.
const QUESTION_WORDS: usize = 72 * 1024 / size_of::<u64>();
/// Multicast group of nf_tables changes, as a bit.
const CHANGES_GROUP: u32 = 1 << (libc::NFNLGRP_NFTABLES - 1);
const HEADER_BYTES: usize = size_of::<libc::nlmsghdr>();

/// A socket in the network namespace of the thread that opened it.
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
    received: Vec<u64>,
}

/// One message as received: at least a header, aligned, and as long as its header says.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    /// For libnftnl's parsers.
    pub(crate) const fn as_ptr(&self) -> *const libc::nlmsghdr {
        self.0.as_ptr().cast()
    }

    fn header(&self) -> libc::nlmsghdr {
        // SAFETY: `mnl::NlMessages` checked alignment and length.
        unsafe { self.as_ptr().read() }
    }

    pub(crate) fn kind(&self) -> i32 {
        i32::from(self.header().nlmsg_type)
    }

    pub(crate) fn port(&self) -> u32 {
        self.header().nlmsg_pid
    }

    /// Of which addresses a netfilter message speaks.
    pub(crate) fn family(&self) -> u8 {
        self.0.get(HEADER_BYTES).copied().unwrap_or_default()
    }

    /// The attributes of a netfilter message: what follows its headers.
    pub(crate) fn attributes(&self) -> &'a [u8] {
        self.0.get(HEADER_BYTES + 4..).unwrap_or_default()
    }

    fn error(&self) -> Option<i32> {
        let bytes = self.0.get(HEADER_BYTES..HEADER_BYTES + 4)?;
        Some(i32::from_ne_bytes(bytes.try_into().ok()?))
    }
}

/// nf_tables messages carry their subsystem in the upper byte.
pub(crate) const fn nf_tables(kind: i32) -> i32 {
    (libc::NFNL_SUBSYS_NFTABLES << 8) | kind
}

impl Netlink {
    /// A socket for transactions and questions.
    pub(crate) fn open() -> io::Result<Self> {
        Self::bound(0)
    }

    /// A socket that hears of every change.
    pub(crate) fn listening() -> io::Result<Self> {
        Self::bound(CHANGES_GROUP)
    }

    fn bound(groups: u32) -> io::Result<Self> {
        let socket = Socket::open(Bus::Netfilter)?;
        socket.bind(groups, 0)?;
        let netlink = Self {
            socket,
            sequence: 1,
            received: vec![0; RECEIVE_WORDS],
        };
        let fd = netlink.fd();
        let wait = Some(Duration::from_millis(NETLINK_ANSWER_TIMEOUT_MS));
        rustix::net::sockopt::set_socket_timeout(fd, rustix::net::sockopt::Timeout::Recv, wait)?;
        // A transaction must fit into the send buffer whole; the kernel counts its own overhead too.
        let send = 2 * MAX_NFT_TRANSACTION_BYTES;
        rustix::net::sockopt::set_socket_send_buffer_size_force(fd, send)?;
        let receive = NETLINK_RECEIVE_BUFFER_BYTES;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(fd, receive)?;
        Ok(netlink)
    }

    /// The descriptor, to wait on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the socket, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }

    /// The address of this socket: changes that it makes are told with it.
    pub(crate) fn port(&self) -> u32 {
        self.socket.portid()
    }

    /// A transaction with free numbers.
    pub(crate) fn batch(&self) -> Batch {
        Batch::new(self.sequence)
    }

    /// Makes the changes, all or none.
    pub(crate) fn commit(
        &mut self,
        doing: &'static str,
        transaction: &Finished,
    ) -> Result<(), FirewallError> {
        let failed = |source| FirewallError::Io { doing, source };
        self.sequence = transaction.next_sequence;
        let bytes = transaction.bytes();
        let sent = self.socket.send(bytes).map_err(failed)?;
        if sent != bytes.len() {
            return Err(failed(io::ErrorKind::WriteZero.into()));
        }
        let (first, last) = (transaction.first_sequence, transaction.last_sequence);
        let mut refused = None;
        let mut done = false;
        while !done {
            self.receive(|message| {
                let sequence = message.header().nlmsg_seq;
                let ours = sequence.wrapping_sub(first) <= last.wrapping_sub(first);
                if message.kind() != libc::NLMSG_ERROR || !ours {
                    return;
                }
                match message.error() {
                    Some(0) => {}
                    // The first error is the cause; a failed commit is told under the first number.
                    Some(code) => {
                        refused.get_or_insert_with(|| io::Error::from_raw_os_error(-code));
                    }
                    None => {}
                }
                done |= sequence == last;
            })
            .map_err(failed)?;
        }
        match refused {
            None => Ok(()),
            Some(source) => Err(FirewallError::Refused { doing, source }),
        }
    }

    /// Asks for everything of a kind. `each` sees every message of the answer; when the kernel's
    /// state changed in between, `restart` is called and everything is asked again.
    pub(crate) fn dump<T>(
        &mut self,
        doing: &'static str,
        kind: i32,
        payload: impl Fn(*mut libc::nlmsghdr),
        state: &mut T,
        restart: impl Fn(&mut T),
        mut each: impl FnMut(&mut T, Message<'_>),
    ) -> Result<(), FirewallError> {
        for _ in 0..NETLINK_DUMP_TRIES {
            restart(state);
            let flags = libc::NLM_F_DUMP;
            let asked = self.ask(doing, kind, flags, &payload, |message| each(state, message));
            match asked {
                Err(FirewallError::Refused { source, .. })
                    if source.raw_os_error() == Some(libc::EINTR) => {}
                other => return other,
            }
        }
        Err(FirewallError::Limit(
            "the packet filter changes faster than it can be read",
        ))
    }

    /// Asks one question; `each` sees every message of the answer up to its end.
    pub(crate) fn ask(
        &mut self,
        doing: &'static str,
        kind: i32,
        flags: i32,
        payload: impl FnOnce(*mut libc::nlmsghdr),
        each: impl FnMut(Message<'_>),
    ) -> Result<(), FirewallError> {
        let failed = |source| FirewallError::Io { doing, source };
        let sequence = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        let flags = flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        let mut question = vec![0_u64; QUESTION_WORDS];
        let buffer = question.as_mut_ptr().cast::<c_char>();
        // SAFETY: the buffer has room for the longest message.
        let header = unsafe {
            sys::nftnl_nlmsg_build_hdr(buffer, kind as u16, FAMILY, flags as u16, sequence)
        };
        payload(header);
        // SAFETY: the header was just written at the start of the buffer, and says how much is in use.
        let bytes = unsafe {
            std::slice::from_raw_parts(buffer.cast::<u8>(), (*header).nlmsg_len as usize)
        };
        let sent = self.socket.send(bytes).map_err(failed)?;
        if sent != bytes.len() {
            return Err(failed(io::ErrorKind::WriteZero.into()));
        }
        self.hear(doing, sequence, each)
    }

    /// Asks a question of another part of netfilter, whose message is built here.
    pub(crate) fn ask_other(
        &mut self,
        doing: &'static str,
        question: &Question<'_>,
        each: impl FnMut(Message<'_>),
    ) -> Result<(), FirewallError> {
        let failed = |source| FirewallError::Io { doing, source };
        let sequence = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = question.bytes(sequence);
        let sent = self.socket.send(&bytes).map_err(failed)?;
        if sent != bytes.len() {
            return Err(failed(io::ErrorKind::WriteZero.into()));
        }
        self.hear(doing, sequence, each)
    }

    /// Hears the answer to the end.
    fn hear(
        &mut self,
        doing: &'static str,
        sequence: u32,
        mut each: impl FnMut(Message<'_>),
    ) -> Result<(), FirewallError> {
        let failed = |source| FirewallError::Io { doing, source };
        let mut interrupted = false;
        let mut end = None;
        while end.is_none() {
            self.receive(|message| {
                let header = message.header();
                if header.nlmsg_seq != sequence || end.is_some() {
                    return;
                }
                interrupted |= i32::from(header.nlmsg_flags) & libc::NLM_F_DUMP_INTR != 0;
                match message.kind() {
                    libc::NLMSG_DONE => end = Some(0),
                    libc::NLMSG_ERROR => end = Some(message.error().unwrap_or(-libc::EPROTO)),
                    _ => each(message),
                }
            })
            .map_err(failed)?;
        }
        let code = if interrupted {
            -libc::EINTR
        } else {
            end.unwrap_or(0)
        };
        if code == 0 {
            Ok(())
        } else {
            let source = io::Error::from_raw_os_error(-code);
            Err(FirewallError::Refused { doing, source })
        }
    }

    /// One read, message by message.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(Message<'_>)) -> io::Result<()> {
        let buffer = self.received.as_mut_slice();
        // SAFETY: plain words seen as the bytes that they are.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                buffer.as_mut_ptr().cast::<u8>(),
                std::mem::size_of_val(buffer),
            )
        };
        for message in self.socket.recv(bytes)? {
            each(Message(message?));
        }
        Ok(())
    }
}
