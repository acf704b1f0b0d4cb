//! Firewalls of others that drop what is forwarded.
//!
//! A packet passes only when no chain at the hook drops it: ours decides first, but what it lets
//! through another may still drop, such as the `FORWARD` chain of a host with Docker on it. That is
//! not ours to change; it is ours to say.

use std::{fmt, io, os::fd::OwnedFd, sync::mpsc};

use nftnl::nftnl_sys::libc;

use crate::{
    firewall::{OpenError, in_namespace},
    message::{Question, find},
    netlink::{Message, Netlink, nf_tables},
};

// The kernel's nf_tables.h.
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
const RULE_TABLE: u16 = 1;

/// A chain that drops forwarded packets unless a rule of its own lets them pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardDrop {
    /// `ip`, `ip6`, `inet`.
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
}

impl fmt::Display for ForwardDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.family, self.table, self.chain)
    }
}

/// The chains of `namespace`, or of where the caller is, that drop what is forwarded and nobody let
/// pass, and whose tables have no rule about interfaces with names that begin with `interfaces`.
/// Rules of the old iptables are not seen. Blocks for a moment.
///
/// # Errors
/// When the namespace cannot be entered or the kernel does not answer.
pub fn forward_drops(
    namespace: Option<OwnedFd>,
    interfaces: &str,
) -> Result<Vec<ForwardDrop>, OpenError> {
    let interfaces = interfaces.as_bytes().to_vec();
    let (ready, looked) = mpsc::sync_channel(1);
    let (give, given) = mpsc::sync_channel(1);
    in_namespace(
        "forward-drops",
        namespace,
        move || look(&interfaces).map_err(io::Error::other),
        move |found| {
            let _ = give.send(found);
        },
        move |outcome| {
            let _ = ready.send(outcome.map(|_| ()));
        },
    )?;
    let gone = |_| OpenError::Thread(io::ErrorKind::BrokenPipe.into());
    looked.recv().map_err(gone)??;
    given.recv().map_err(gone)
}

fn look(interfaces: &[u8]) -> Result<Vec<ForwardDrop>, hotcell_egress::firewall::FirewallError> {
    let mut netlink = Netlink::open().map_err(|source| {
        let doing = "open a socket";
        hotcell_egress::firewall::FirewallError::Io { doing, source }
    })?;
    let question = |kind| Question {
        subsystem: libc::NFNL_SUBSYS_NFTABLES,
        kind,
        flags: libc::NLM_F_DUMP,
        family: libc::NFPROTO_UNSPEC,
        resource: 0,
        attributes: &[],
    };
    let mut found = Vec::new();
    netlink.ask_other(
        "list chains",
        &question(libc::NFT_MSG_GETCHAIN),
        |message| {
            found.extend(dropping(message));
        },
    )?;
    if !found.is_empty() && !interfaces.is_empty() {
        // In whatever words a rule names them, the name itself is in it.
        let mut naming = Vec::new();
        netlink.ask_other("list rules", &question(libc::NFT_MSG_GETRULE), |message| {
            let all = message.attributes();
            let names = all.windows(interfaces.len()).any(|part| part == interfaces);
            if names && let Some(table) = find(all, RULE_TABLE) {
                naming.push((family(message), text(table)));
            }
        })?;
        let named = |it: &ForwardDrop| (Some(it.family), it.table.clone());
        found.retain(|it| !naming.contains(&named(it)));
    }
    Ok(found)
}

fn family(message: Message<'_>) -> Option<&'static str> {
    match i32::from(message.family()) {
        libc::NFPROTO_IPV4 => Some("ip"),
        libc::NFPROTO_IPV6 => Some("ip6"),
        libc::NFPROTO_INET => Some("inet"),
        _ => None,
    }
}

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data)
        .trim_end_matches('\0')
        .to_owned()
}

fn dropping(message: Message<'_>) -> Option<ForwardDrop> {
    if message.kind() != nf_tables(libc::NFT_MSG_NEWCHAIN) {
        return None;
    }
    let family = family(message)?;
    let all = message.attributes();
    let number = |data: &[u8]| <[u8; 4]>::try_from(data).map(u32::from_be_bytes).ok();
    let hook = number(find(find(all, CHAIN_HOOK)?, HOOK_NUMBER)?)?;
    let policy = number(find(all, CHAIN_POLICY)?)?;
    let drops = hook == libc::NF_INET_FORWARD as u32 && policy == libc::NF_DROP as u32;
    drops.then_some(ForwardDrop {
        family,
        table: text(find(all, CHAIN_TABLE)?),
        chain: text(find(all, CHAIN_NAME)?),
    })
}
