//! What the egress filter costs, beside its peers. One line of JSON a row; `cargo xtask bench egress`
//! installs the peers and runs it, as root.
//!
//! ```text
//!  one network namespace of its own, gone with this process
//!  ┌──────────────────────────────────────────────────────────────────────┐
//!  │ upstream (a few lines of UDP)  ◄── ours │ dnsmasq │ unbound          │
//!  │                                      ▲       ▲         ▲   in turn   │
//!  │                                      └─ one load generator           │
//!  └──────────────────────────────────────────────────────────────────────┘
//! ```
//! With the names of parts (`compare`, `learn`, `connect`, `memory`) as arguments only those are measured.
//!
//! Each resolver is a process of its own that ends with this one. Ours is this program again: the real
//! DNS side over the real packet filter.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a measurement that fails says where; rows go to stdout"
)]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and times of a measurement are small"
)]

mod compare;
mod connect;
mod learn;
mod load;
mod memory;
mod ours;
mod peers;
mod row;
mod space;
mod upstream;

use std::env;

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("resolver") => return ours::resolve(),
        Some("memory") => return memory::measure(),
        _ => {}
    }
    // Before there is a second thread: all that is started from here on is in it.
    space::enter_new();
    let parts: [(&str, fn()); 4] = [
        ("compare", compare::rows),
        ("learn", learn::learning),
        ("connect", connect::setting_up),
        ("memory", memory::of_filters),
    ];
    let named = |part: &str| words.iter().any(|word| word == part);
    let all = !parts.iter().any(|(part, _)| named(part));
    for (part, measure) in parts {
        if all || named(part) {
            measure();
        }
    }
}
