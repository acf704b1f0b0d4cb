//! Who may ask: a program on the socket, run by the kernel before anything of a packet is taken in.
//!
//! ```text
//!  packet ─► delivered to the socket ─► source among the sandbox's, or loopback? ─┬─ yes ─► as ever
//!                                                                                └─ no ──► dropped
//! ```
//! A datagram of anybody else is never read. A connection of anybody else is never begun: its first packet
//! gets no answer.

use std::{io, net::IpAddr, os::fd::AsFd};

use socket2::{SockFilter, SockRef};

/// Relative to this the kernel loads out of the network header.
const NETWORK_HEADER: u32 = (-0x0010_0000_i32).cast_unsigned();
/// Where the source is, in each version's header.
const V4_SOURCE: u32 = 12;
const V6_SOURCE: u32 = 8;
/// The first half of the first byte.
const VERSION: u32 = 0xf0;
const V6: u32 = 0x60;
const V4_LOOPBACK: u32 = 0x7f00_0000;
const V4_LOOPBACK_MASK: u32 = 0xff00_0000;
const V6_LOOPBACK: [u32; 4] = [0, 0, 0, 1];
/// All of a packet.
const TAKE: u32 = u32::MAX;
const DROP: u32 = 0;

// Classic BPF, as <linux/bpf_common.h> writes it.
const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE: u16 = 0x30;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

const fn step(code: u16, value: u32) -> Step {
    Step {
        code,
        if_true: 0,
        if_false: 0,
        value,
    }
}

/// Goes on with the next step when what is loaded is this, else so many steps further.
const fn unless_equal_skip(value: u32, if_false: u8) -> Step {
    Step {
        if_false,
        ..step(JUMP_IF_EQUAL, value)
    }
}

/// Has the kernel drop whatever comes to this socket from elsewhere than these addresses and loopback.
///
/// # Errors
/// When the kernel does not take the program.
pub(crate) fn only_from(socket: &impl AsFd, sources: &[IpAddr]) -> io::Result<()> {
    let program: Vec<SockFilter> = program(sources)
        .into_iter()
        .map(|step| SockFilter::new(step.code, step.if_true, step.if_false, step.value))
        .collect();
    SockRef::from(socket).attach_filter(&program)
}

fn program(sources: &[IpAddr]) -> Vec<Step> {
    let mut v4 = vec![step(LOAD_WORD, NETWORK_HEADER.wrapping_add(V4_SOURCE))];
    let mut v6 = Vec::new();
    for source in sources {
        match source {
            IpAddr::V4(address) => {
                v4.extend([unless_equal_skip(address.to_bits(), 1), step(RETURN, TAKE)]);
            }
            IpAddr::V6(address) => v6.extend(take_v6(words(address.to_bits()))),
        }
    }
    v4.extend([
        step(AND, V4_LOOPBACK_MASK),
        unless_equal_skip(V4_LOOPBACK, 1),
        step(RETURN, TAKE),
        step(RETURN, DROP),
    ]);
    v6.extend(take_v6(V6_LOOPBACK));
    v6.push(step(RETURN, DROP));

    let past_v6 = u32::try_from(v6.len()).unwrap_or(u32::MAX);
    let mut all = vec![
        step(LOAD_BYTE, NETWORK_HEADER),
        step(AND, VERSION),
        Step {
            if_true: 1,
            ..step(JUMP_IF_EQUAL, V6)
        },
        step(JUMP, past_v6),
    ];
    all.extend(v6);
    all.extend(v4);
    all
}

fn words(bits: u128) -> [u32; 4] {
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

/// Takes the packet when its source is this; else goes on behind these steps.
fn take_v6(words: [u32; 4]) -> Vec<Step> {
    let mut steps = Vec::with_capacity(9);
    for (at, word) in (0_u32..).zip(words) {
        let from = NETWORK_HEADER.wrapping_add(V6_SOURCE + 4 * at);
        let to_the_end = u8::try_from(7 - 2 * at).unwrap_or_default();
        steps.extend([step(LOAD_WORD, from), unless_equal_skip(word, to_the_end)]);
    }
    steps.push(step(RETURN, TAKE));
    steps
}
