//! From the ruleset as a value to messages.

use std::{
    ffi::{CString, c_void},
    net::IpAddr,
};

use hotcell_egress::ruleset::{
    Base, Chain, Element, Hook, InterfaceName, Key, ObjectName, Rule, Set, SetKind, Verdict,
};
use hotcell_types::limits::MAX_TIMED_SET_ELEMENTS;
use nftnl::nftnl_sys::{self as sys, libc};

use crate::{
    batch::{Batch, FAMILY},
    expression::rule_object,
    object::{self, allocated, c_string},
};

/// Elements of one message: each takes at most 100 bytes of the 64 KiB.
const ELEMENTS_PER_MESSAGE: usize = 400;
const INTERFACE_BYTES: usize = 16;
/// What libnftnl and `nft` call a verdict as the data of a map.
pub(crate) const VERDICT_DATA: u32 = 0xffff_ff00;
/// The type number that `nft` gives a key, and its bytes.
pub(crate) const fn key_type(key: Key) -> (u32, u32) {
    match key {
        Key::Ipv4 => (7, 4),
        Key::Ipv6 => (8, 16),
        Key::Protocol => (12, 1),
        Key::Port => (13, 2),
        Key::Interface => (41, INTERFACE_BYTES as u32),
    }
}

pub(crate) const fn set_flags(kind: SetKind) -> u32 {
    let flags = match kind {
        SetKind::Plain => 0,
        SetKind::Timed => libc::NFT_SET_TIMEOUT,
        SetKind::Interval => libc::NFT_SET_INTERVAL,
        SetKind::Verdicts => libc::NFT_SET_MAP,
    };
    flags as u32
}

pub(crate) const fn hook_number(hook: Hook) -> u32 {
    match hook {
        Hook::Input => libc::NF_INET_LOCAL_IN as u32,
        Hook::Forward => libc::NF_INET_FORWARD as u32,
        Hook::Prerouting => libc::NF_INET_PRE_ROUTING as u32,
        Hook::PostroutingNat => libc::NF_INET_POST_ROUTING as u32,
    }
}

pub(crate) fn verdict_code(verdict: &Verdict) -> u32 {
    match verdict {
        Verdict::Accept => libc::NF_ACCEPT as u32,
        Verdict::Drop => libc::NF_DROP as u32,
        Verdict::Jump(_) => libc::NFT_JUMP as u32,
    }
}

impl Batch {
    pub(crate) fn add_table(&mut self, table: &ObjectName) {
        self.table(libc::NFT_MSG_NEWTABLE, libc::NLM_F_CREATE, table);
    }

    pub(crate) fn delete_table(&mut self, table: &ObjectName) {
        self.table(libc::NFT_MSG_DELTABLE, 0, table);
    }

    fn table(&mut self, kind: i32, flags: i32, name: &ObjectName) {
        let table = object::Table::new();
        let name = c_string(name.as_str());
        // SAFETY: the object is alive, and libnftnl copies the string.
        unsafe {
            sys::nftnl_table_set_u32(
                table.as_ptr(),
                sys::NFTNL_TABLE_FAMILY as u16,
                FAMILY.into(),
            );
            sys::nftnl_table_set_str(table.as_ptr(), sys::NFTNL_TABLE_NAME as u16, name.as_ptr());
        }
        self.push(kind, flags, |header| {
            // SAFETY: both are alive, and the header has room for the attributes.
            unsafe { sys::nftnl_table_nlmsg_build_payload(header, table.as_ptr()) };
        });
    }

    /// The chain without its rules.
    pub(crate) fn add_chain(&mut self, table: &ObjectName, chain: &Chain) {
        let built = chain_object(table, &chain.name);
        let pointer = built.as_ptr();
        if let Some(base) = chain.base {
            let kind = match base.hook {
                Hook::PostroutingNat => c"nat",
                Hook::Input | Hook::Forward | Hook::Prerouting => c"filter",
            };
            let policy = if base.accepts {
                libc::NF_ACCEPT
            } else {
                libc::NF_DROP
            };
            // SAFETY: the object is alive, and libnftnl copies the string.
            unsafe {
                sys::nftnl_chain_set_u32(
                    pointer,
                    sys::NFTNL_CHAIN_HOOKNUM as u16,
                    hook_number(base.hook),
                );
                sys::nftnl_chain_set_s32(pointer, sys::NFTNL_CHAIN_PRIO as u16, base.priority);
                sys::nftnl_chain_set_u32(pointer, sys::NFTNL_CHAIN_POLICY as u16, policy as u32);
                sys::nftnl_chain_set_str(pointer, sys::NFTNL_CHAIN_TYPE as u16, kind.as_ptr());
            }
        }
        self.chain(libc::NFT_MSG_NEWCHAIN, libc::NLM_F_CREATE, &built);
    }

    pub(crate) fn delete_chain(&mut self, table: &ObjectName, name: &ObjectName) {
        self.chain(libc::NFT_MSG_DELCHAIN, 0, &chain_object(table, name));
    }

    fn chain(&mut self, kind: i32, flags: i32, chain: &object::Chain) {
        self.push(kind, flags, |header| {
            // SAFETY: both are alive, and the header has room for the attributes.
            unsafe { sys::nftnl_chain_nlmsg_build_payload(header, chain.as_ptr()) };
        });
    }

    pub(crate) fn add_rules(&mut self, table: &ObjectName, chain: &Chain) {
        for rule in &chain.rules {
            let built = rule_object(table, &chain.name, rule);
            let flags = libc::NLM_F_CREATE | libc::NLM_F_APPEND;
            self.rule(libc::NFT_MSG_NEWRULE, flags, &built);
        }
    }

    /// All rules of the chain.
    pub(crate) fn delete_rules(&mut self, table: &ObjectName, chain: &ObjectName) {
        let none = Rule(Vec::new());
        self.rule(libc::NFT_MSG_DELRULE, 0, &rule_object(table, chain, &none));
    }

    fn rule(&mut self, kind: i32, flags: i32, rule: &object::Rule) {
        self.push(kind, flags, |header| {
            // SAFETY: both are alive, and the header has room for the attributes.
            unsafe { sys::nftnl_rule_nlmsg_build_payload(header, rule.as_ptr()) };
        });
    }

    /// The set without its elements.
    pub(crate) fn add_set(&mut self, table: &ObjectName, set: &Set, id: u32) {
        let built = set_object(table, &set.name);
        let (key, key_bytes) = key_type(set.key);
        let mut attributes = vec![
            (sys::NFTNL_SET_FLAGS, set_flags(set.kind)),
            (sys::NFTNL_SET_KEY_TYPE, key),
            (sys::NFTNL_SET_KEY_LEN, key_bytes),
            (sys::NFTNL_SET_ID, id),
        ];
        match set.kind {
            SetKind::Verdicts => attributes.push((sys::NFTNL_SET_DATA_TYPE, VERDICT_DATA)),
            SetKind::Timed => attributes.push((sys::NFTNL_SET_DESC_SIZE, MAX_TIMED_SET_ELEMENTS)),
            SetKind::Plain | SetKind::Interval => {}
        }
        for (attribute, value) in attributes {
            // SAFETY: the object is alive.
            unsafe { sys::nftnl_set_set_u32(built.as_ptr(), attribute as u16, value) };
        }
        if set.key == Key::Interface {
            let order = host_order_note();
            let (data, attribute) = (order.as_ptr().cast(), sys::NFTNL_SET_USERDATA as u16);
            // SAFETY: the object is alive, and libnftnl copies the data.
            unsafe { sys::nftnl_set_set_data(built.as_ptr(), attribute, data, order.len() as u32) };
        }
        self.set(libc::NFT_MSG_NEWSET, libc::NLM_F_CREATE, &built);
    }

    pub(crate) fn delete_set(&mut self, table: &ObjectName, name: &ObjectName) {
        self.set(libc::NFT_MSG_DELSET, 0, &set_object(table, name));
    }

    fn set(&mut self, kind: i32, flags: i32, set: &object::Set) {
        self.push(kind, flags, |header| {
            // SAFETY: both are alive, and the header has room for the attributes.
            unsafe { sys::nftnl_set_nlmsg_build_payload(header, set.as_ptr()) };
        });
    }

    pub(crate) fn add_elements(&mut self, table: &ObjectName, set: &Set) {
        let of = |element| Item::of(element, set.kind);
        let items: Vec<Item> = set.elements.iter().flat_map(of).collect();
        let flags = libc::NLM_F_CREATE;
        self.elements(libc::NFT_MSG_NEWSETELEM, flags, table, &set.name, &items);
    }

    /// Adds one interface to a verdict map.
    pub(crate) fn add_verdict(&mut self, table: &ObjectName, map: &ObjectName, element: &Element) {
        let items = Item::of(element, SetKind::Verdicts);
        let flags = libc::NLM_F_CREATE;
        self.elements(libc::NFT_MSG_NEWSETELEM, flags, table, map, &items);
    }

    /// Removes an interface from a verdict map, whatever its verdict is.
    pub(crate) fn delete_verdict(
        &mut self,
        table: &ObjectName,
        map: &ObjectName,
        interface: &InterfaceName,
    ) {
        let items = [Item::plain(interface_bytes(interface.as_str()).to_vec())];
        self.elements(libc::NFT_MSG_DELSETELEM, 0, table, map, &items);
    }

    /// Gives each address its full time. Adding a timed element that is there changes nothing, so
    /// it is deleted in between; the first add makes that no error when it is not there.
    pub(crate) fn renew(
        &mut self,
        table: &ObjectName,
        set: &ObjectName,
        addresses: &[(IpAddr, u64)],
    ) {
        let items: Vec<Item> = addresses
            .iter()
            .map(|(a, ms)| Item::timed(*a, *ms))
            .collect();
        let (add, create) = (libc::NFT_MSG_NEWSETELEM, libc::NLM_F_CREATE);
        self.elements(add, create, table, set, &items);
        self.elements(libc::NFT_MSG_DELSETELEM, 0, table, set, &items);
        self.elements(add, create, table, set, &items);
    }

    /// Removes addresses; the add before makes one that is not there no error.
    pub(crate) fn expire(&mut self, table: &ObjectName, set: &ObjectName, addresses: &[IpAddr]) {
        const SOON_MS: u64 = 1_000;
        let items: Vec<Item> = addresses.iter().map(|a| Item::timed(*a, SOON_MS)).collect();
        let (add, create) = (libc::NFT_MSG_NEWSETELEM, libc::NLM_F_CREATE);
        self.elements(add, create, table, set, &items);
        self.elements(libc::NFT_MSG_DELSETELEM, 0, table, set, &items);
    }

    fn elements(
        &mut self,
        kind: i32,
        flags: i32,
        table: &ObjectName,
        set: &ObjectName,
        items: &[Item],
    ) {
        for some in items.chunks(ELEMENTS_PER_MESSAGE) {
            let built = set_object(table, set);
            for item in some {
                item.add_to(&built);
            }
            self.push(kind, flags, |header| {
                // SAFETY: both are alive; a message's elements fit into its room.
                unsafe { sys::nftnl_set_elems_nlmsg_build_payload(header, built.as_ptr()) };
            });
        }
    }
}

/// A note for `nft`, without which it shows names of interfaces as empty: kind 0 ("byte order of the
/// key"), four bytes, 1 for the host's.
fn host_order_note() -> [u8; 6] {
    let [a, b, c, d] = 1_u32.to_ne_bytes();
    [0, 4, a, b, c, d]
}

pub(crate) fn chain_object(table: &ObjectName, name: &ObjectName) -> object::Chain {
    let chain = object::Chain::new();
    let (table, name) = (c_string(table.as_str()), c_string(name.as_str()));
    // SAFETY: the object is alive, and libnftnl copies the strings.
    unsafe {
        sys::nftnl_chain_set_u32(
            chain.as_ptr(),
            sys::NFTNL_CHAIN_FAMILY as u16,
            FAMILY.into(),
        );
        sys::nftnl_chain_set_str(
            chain.as_ptr(),
            sys::NFTNL_CHAIN_TABLE as u16,
            table.as_ptr(),
        );
        sys::nftnl_chain_set_str(chain.as_ptr(), sys::NFTNL_CHAIN_NAME as u16, name.as_ptr());
    }
    chain
}

/// A set of this name, to be filled with attributes or elements.
pub(crate) fn set_object(table: &ObjectName, name: &ObjectName) -> object::Set {
    let set = object::Set::new();
    let (table, name) = (c_string(table.as_str()), c_string(name.as_str()));
    // SAFETY: the object is alive, and libnftnl copies the strings.
    unsafe {
        sys::nftnl_set_set_u32(set.as_ptr(), sys::NFTNL_SET_FAMILY as u16, FAMILY.into());
        sys::nftnl_set_set_str(set.as_ptr(), sys::NFTNL_SET_TABLE as u16, table.as_ptr());
        sys::nftnl_set_set_str(set.as_ptr(), sys::NFTNL_SET_NAME as u16, name.as_ptr());
    }
    set
}

/// One element as the kernel takes it: an interval is two.
pub(crate) struct Item {
    key: Vec<u8>,
    flags: u32,
    timeout_ms: Option<u64>,
    verdict: Option<(u32, Option<CString>)>,
}

impl Item {
    fn plain(key: Vec<u8>) -> Self {
        Self {
            key,
            flags: 0,
            timeout_ms: None,
            verdict: None,
        }
    }

    pub(crate) fn address(address: IpAddr) -> Self {
        Self::plain(octets(address))
    }

    fn timed(address: IpAddr, timeout_ms: u64) -> Self {
        Self {
            timeout_ms: Some(timeout_ms),
            ..Self::address(address)
        }
    }

    fn end(key: Vec<u8>) -> Self {
        Self {
            flags: libc::NFT_SET_ELEM_INTERVAL_END as u32,
            ..Self::plain(key)
        }
    }

    /// An interval is its start and the address after its end, if there is one.
    fn of(element: &Element, kind: SetKind) -> Vec<Self> {
        let interval = kind == SetKind::Interval;
        match element {
            Element::Ipv4(range) => {
                let next = u32::from(range.last).checked_add(1).filter(|_| interval);
                let end = next.map(|n| Self::end(n.to_be_bytes().to_vec()));
                let first = Self::plain(range.first.octets().to_vec());
                std::iter::once(first).chain(end).collect()
            }
            Element::Ipv6(range) => {
                let next = u128::from(range.last).checked_add(1).filter(|_| interval);
                let end = next.map(|n| Self::end(n.to_be_bytes().to_vec()));
                let first = Self::plain(range.first.octets().to_vec());
                std::iter::once(first).chain(end).collect()
            }
            Element::Protocol(number) => vec![Self::plain(vec![*number])],
            Element::Port(port) => vec![Self::plain(port.to_be_bytes().to_vec())],
            Element::Interface(name, verdict) => {
                let chain = match verdict {
                    Verdict::Jump(chain) => Some(c_string(chain.as_str())),
                    Verdict::Accept | Verdict::Drop => None,
                };
                let verdict = Some((verdict_code(verdict), chain));
                let key = interface_bytes(name.as_str()).to_vec();
                vec![Self {
                    verdict,
                    ..Self::plain(key)
                }]
            }
        }
    }

    pub(crate) fn add_to(&self, set: &object::Set) {
        // SAFETY: the element is handed to the set, which frees it; libnftnl copies data and strings.
        unsafe {
            let element = allocated(sys::nftnl_set_elem_alloc()).as_ptr();
            let key = self.key.as_ptr().cast::<c_void>();
            sys::nftnl_set_elem_set(
                element,
                sys::NFTNL_SET_ELEM_KEY as u16,
                key,
                self.key.len() as u32,
            );
            if self.flags != 0 {
                sys::nftnl_set_elem_set_u32(element, sys::NFTNL_SET_ELEM_FLAGS as u16, self.flags);
            }
            if let Some(timeout_ms) = self.timeout_ms {
                sys::nftnl_set_elem_set_u64(
                    element,
                    sys::NFTNL_SET_ELEM_TIMEOUT as u16,
                    timeout_ms,
                );
            }
            if let Some((code, chain)) = &self.verdict {
                sys::nftnl_set_elem_set_u32(element, sys::NFTNL_SET_ELEM_VERDICT as u16, *code);
                if let Some(chain) = chain {
                    sys::nftnl_set_elem_set_str(
                        element,
                        sys::NFTNL_SET_ELEM_CHAIN as u16,
                        chain.as_ptr(),
                    );
                }
            }
            sys::nftnl_set_elem_add(set.as_ptr(), element);
        }
    }
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

pub(crate) fn interface_bytes(name: &str) -> [u8; INTERFACE_BYTES] {
    let mut bytes = [0; INTERFACE_BYTES];
    // InterfaceName has at most 15.
    let length = name.len().min(INTERFACE_BYTES - 1);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    bytes
}

/// The base of a chain from the kernel's numbers, when it is one that hotcell makes.
pub(crate) fn base_of(hook: u32, nat: bool, priority: i32, policy: u32) -> Option<Base> {
    let hook = [
        Hook::Input,
        Hook::Forward,
        Hook::Prerouting,
        Hook::PostroutingNat,
    ]
    .into_iter()
    .find(|known| hook_number(*known) == hook && nat == (*known == Hook::PostroutingNat))?;
    Some(Base {
        hook,
        priority,
        accepts: policy == libc::NF_ACCEPT as u32,
    })
}
