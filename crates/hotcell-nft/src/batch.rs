//! One transaction as one buffer: begin, messages, end. The kernel takes it in a single send, or not at all.

use std::ffi::c_char;

use hotcell_egress::firewall::FirewallError;
use hotcell_types::limits::MAX_NFT_TRANSACTION_BYTES;
use nftnl::nftnl_sys::{self as sys, libc};

/// The `inet` family.
pub(crate) const FAMILY: u16 = libc::NFPROTO_INET as u16;
/// Room for the longest message: an attribute has at most 64 KiB, and the header a few bytes.
const MESSAGE_ROOM_BYTES: usize = 64 * 1024 + 4 * 1024;
const WORD: usize = size_of::<u32>();

/// A transaction in the making.
pub(crate) struct Batch {
    /// Words, since netlink headers must be aligned to four bytes.
    words: Vec<u32>,
    used_bytes: usize,
    last_message: Option<usize>,
    first_sequence: u32,
    sequence: u32,
}

impl Batch {
    /// `first_sequence` and the numbers after it must not be in use on the socket.
    pub(crate) fn new(first_sequence: u32) -> Self {
        let mut batch = Self {
            words: Vec::new(),
            used_bytes: 0,
            last_message: None,
            first_sequence,
            sequence: first_sequence,
        };
        batch.write(|buffer, sequence| {
            // SAFETY: `buffer` has room for a header.
            unsafe { sys::nftnl_batch_begin(buffer, sequence) }
        });
        batch
    }

    /// Adds a message. `payload` may add attributes to the header that it is given, 64 KiB at most.
    pub(crate) fn push(
        &mut self,
        kind: i32,
        flags: i32,
        payload: impl FnOnce(*mut libc::nlmsghdr),
    ) {
        self.last_message = Some(self.used_bytes);
        self.write(|buffer, sequence| {
            // SAFETY: `buffer` has room for the longest message.
            let header = unsafe {
                sys::nftnl_nlmsg_build_hdr(buffer, kind as u16, FAMILY, flags as u16, sequence)
            };
            payload(header);
            header
        });
    }

    fn write(&mut self, build: impl FnOnce(*mut c_char, u32) -> *mut libc::nlmsghdr) {
        let room = (self.used_bytes + MESSAGE_ROOM_BYTES) / WORD;
        if self.words.len() < room {
            self.words.resize(room, 0);
        }
        let start = &mut self.words[self.used_bytes / WORD..];
        let header = build(start.as_mut_ptr().cast(), self.sequence);
        // SAFETY: `build` returned the header that it wrote at the start of the slice.
        let length = unsafe { (*header).nlmsg_len } as usize;
        self.used_bytes += length.next_multiple_of(WORD);
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// The finished transaction.
    pub(crate) fn finish(mut self) -> Result<Finished, FirewallError> {
        let Some(last) = self.last_message else {
            return Err(FirewallError::Limit("a transaction without a change"));
        };
        let last_sequence = self.sequence.wrapping_sub(1);
        // Only the last change is acknowledged: success is one message, and errors are told anyway.
        // A header is length, then kind and flags as two halves of the second word.
        let flags = &mut self.words[last / WORD + 1];
        *flags |= u32::from_ne_bytes({
            let mut bytes = [0; WORD];
            bytes[2..].copy_from_slice(&(libc::NLM_F_ACK as u16).to_ne_bytes());
            bytes
        });
        self.write(|buffer, sequence| {
            // SAFETY: `buffer` has room for a header.
            unsafe { sys::nftnl_batch_end(buffer, sequence) }
        });
        if self.used_bytes > MAX_NFT_TRANSACTION_BYTES {
            return Err(FirewallError::Limit("too much for one transaction"));
        }
        self.words.truncate(self.used_bytes / WORD);
        Ok(Finished {
            words: self.words,
            first_sequence: self.first_sequence,
            last_sequence,
            next_sequence: self.sequence,
        })
    }
}

/// A transaction that can be sent.
pub(crate) struct Finished {
    words: Vec<u32>,
    /// The number of the begin message.
    pub(crate) first_sequence: u32,
    /// The message that is acknowledged.
    pub(crate) last_sequence: u32,
    /// The first number that is free again.
    pub(crate) next_sequence: u32,
}

impl Finished {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: words are plain bytes, and the slice covers exactly them.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len() * WORD) }
    }
}
