//! From what the kernel reports back to the ruleset as a value.
//!
//! Everything here was sent by the kernel, but about objects that anybody with rights on the
//! namespace may have made: what hotcell does not make is reported as such, never trusted.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CStr, c_char},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use hotcell_egress::{
    report::{ChainReport, SetReport, TableReport},
    ruleset::{AddressRange, Element, Key, Ruleset, SetKind, Verdict},
};
use nftnl::nftnl_sys::{self as sys, libc};

use crate::{
    encode::{VERDICT_DATA, base_of, key_type, set_flags},
    expression::rule_object,
    message::find,
    netlink::Message,
    object::{self, allocated},
};

/// The rendering of one expression is a line of at most some hundred bytes.
const EXPRESSION_TEXT_BYTES: usize = 2048;

/// A string that libnftnl owns; empty when it is not there or no UTF-8.
///
/// # Safety
/// `pointer` is null or a string that lives as long as `'a`.
unsafe fn text<'a>(pointer: *const c_char) -> &'a str {
    if pointer.is_null() {
        return "";
    }
    // SAFETY: not null; the rest is promised by the caller.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap_or("")
}

/// What must be there, in the same form as what is reported.
pub(crate) fn expected(ruleset: &Ruleset) -> TableReport {
    let chains = ruleset.chains.iter().map(|chain| {
        let rules = chain
            .rules
            .iter()
            .map(|rule| rendering(&rule_object(&ruleset.table, &chain.name, rule)))
            .collect();
        let report = ChainReport {
            base: chain.base,
            rules,
        };
        (chain.name.to_string(), report)
    });
    let sets = ruleset.sets.iter().map(|set| {
        let report = SetReport {
            key: Some(set.key),
            kind: Some(set.kind),
            elements: set.elements.iter().cloned().collect(),
            remaining_ms: BTreeMap::new(),
        };
        (set.name.to_string(), report)
    });
    TableReport {
        chains: chains.collect(),
        sets: sets.collect(),
    }
}

/// The expressions of a rule as libnftnl shows them; the same for rules built here and reported ones.
fn rendering(rule: &object::Rule) -> String {
    let mut all = String::new();
    // SAFETY: the iterator and the expressions that it gives live as long as the rule; the buffer's
    // length is passed on.
    unsafe {
        let iterator = allocated(sys::nftnl_expr_iter_create(rule.as_ptr())).as_ptr();
        loop {
            let expression = sys::nftnl_expr_iter_next(iterator);
            if expression.is_null() {
                break;
            }
            let mut buffer = [0_u8; EXPRESSION_TEXT_BYTES];
            let start = buffer.as_mut_ptr().cast::<c_char>();
            sys::nftnl_expr_snprintf(
                start,
                buffer.len(),
                expression,
                sys::NFTNL_OUTPUT_DEFAULT,
                0,
            );
            let name = text(sys::nftnl_expr_get_str(
                expression,
                sys::NFTNL_EXPR_NAME as u16,
            ));
            let shown = CStr::from_bytes_until_nul(&buffer).map(CStr::to_string_lossy);
            all.push_str(&format!(
                "[{name} {}]",
                shown.unwrap_or_default().trim_end()
            ));
        }
        sys::nftnl_expr_iter_destroy(iterator);
    }
    all
}

/// Table, name and what else is known of a chain.
/// The name of a table of our family.
pub(crate) fn table(message: Message<'_>) -> Option<String> {
    /// `NFTA_TABLE_NAME` of the kernel's nf_tables.h.
    const NAME: u16 = 1;
    let is_ours = i32::from(message.family()) == libc::NFPROTO_INET;
    let name = find(message.attributes(), NAME).filter(|_| is_ours)?;
    let name = std::str::from_utf8(name).ok()?;
    Some(name.trim_end_matches('\0').to_owned())
}

pub(crate) fn chain(message: Message<'_>) -> Option<(String, String, ChainReport)> {
    let chain = object::Chain::new();
    let pointer = chain.as_ptr();
    // SAFETY: the message is whole and aligned; strings live as long as the object and are copied.
    unsafe {
        if sys::nftnl_chain_nlmsg_parse(message.as_ptr(), pointer) < 0 {
            return None;
        }
        let table = text(sys::nftnl_chain_get_str(
            pointer,
            sys::NFTNL_CHAIN_TABLE as u16,
        ))
        .to_owned();
        let name = text(sys::nftnl_chain_get_str(
            pointer,
            sys::NFTNL_CHAIN_NAME as u16,
        ))
        .to_owned();
        let is_base = sys::nftnl_chain_is_set(pointer, sys::NFTNL_CHAIN_HOOKNUM as u16);
        let base = if is_base {
            let kind = text(sys::nftnl_chain_get_str(
                pointer,
                sys::NFTNL_CHAIN_TYPE as u16,
            ));
            base_of(
                sys::nftnl_chain_get_u32(pointer, sys::NFTNL_CHAIN_HOOKNUM as u16),
                kind == "nat",
                sys::nftnl_chain_get_s32(pointer, sys::NFTNL_CHAIN_PRIO as u16),
                sys::nftnl_chain_get_u32(pointer, sys::NFTNL_CHAIN_POLICY as u16),
            )
        } else {
            None
        };
        let mut rules = Vec::new();
        if is_base && base.is_none() {
            rules.push("a base chain of a kind that hotcell does not make".to_owned());
        }
        Some((table, name, ChainReport { base, rules }))
    }
}

/// Table, chain and rendering of a rule.
pub(crate) fn rule(message: Message<'_>) -> Option<(String, String, String)> {
    let rule = object::Rule::new();
    let pointer = rule.as_ptr();
    // SAFETY: as in `chain`.
    unsafe {
        if sys::nftnl_rule_nlmsg_parse(message.as_ptr(), pointer) < 0 {
            return None;
        }
        let table = text(sys::nftnl_rule_get_str(
            pointer,
            sys::NFTNL_RULE_TABLE as u16,
        ))
        .to_owned();
        let chain = text(sys::nftnl_rule_get_str(
            pointer,
            sys::NFTNL_RULE_CHAIN as u16,
        ))
        .to_owned();
        Some((table, chain, rendering(&rule)))
    }
}

/// Table, name and kind of a set, without its elements.
pub(crate) fn set(message: Message<'_>) -> Option<(String, String, SetReport)> {
    let set = object::Set::new();
    let pointer = set.as_ptr();
    // SAFETY: as in `chain`.
    unsafe {
        if sys::nftnl_set_nlmsg_parse(message.as_ptr(), pointer) < 0 {
            return None;
        }
        let table = text(sys::nftnl_set_get_str(pointer, sys::NFTNL_SET_TABLE as u16)).to_owned();
        let name = text(sys::nftnl_set_get_str(pointer, sys::NFTNL_SET_NAME as u16)).to_owned();
        let number = |attribute| sys::nftnl_set_get_u32(pointer, attribute as u16);
        let (kind, bytes) = (
            number(sys::NFTNL_SET_KEY_TYPE),
            number(sys::NFTNL_SET_KEY_LEN),
        );
        let keys = [
            Key::Ipv4,
            Key::Ipv6,
            Key::Interface,
            Key::Protocol,
            Key::Port,
        ];
        let key = keys.into_iter().find(|key| key_type(*key) == (kind, bytes));
        let flags = number(sys::NFTNL_SET_FLAGS);
        let kinds = [
            SetKind::Plain,
            SetKind::Timed,
            SetKind::Interval,
            SetKind::Verdicts,
        ];
        let kind = kinds.into_iter().find(|kind| set_flags(*kind) == flags);
        let maps = number(sys::NFTNL_SET_DATA_TYPE) == VERDICT_DATA;
        let kind = kind.filter(|kind| maps == (*kind == SetKind::Verdicts));
        let report = SetReport {
            key,
            kind,
            elements: BTreeSet::new(),
            remaining_ms: BTreeMap::new(),
        };
        Some((table, name, report))
    }
}

/// An element as the kernel reports it.
struct Reported {
    key: Vec<u8>,
    is_end: bool,
    remaining_ms: u64,
    verdict: Option<(u32, String)>,
}

/// Elements from the messages of one listing.
#[derive(Default)]
pub(crate) struct Elements(Vec<Reported>);

impl Elements {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn add(&mut self, message: Message<'_>) {
        let set = object::Set::new();
        // SAFETY: the message is whole and aligned; the iterator and the elements that it gives live as
        // long as the set; everything is copied before they end.
        unsafe {
            if sys::nftnl_set_elems_nlmsg_parse(message.as_ptr(), set.as_ptr()) < 0 {
                return;
            }
            let iterator = allocated(sys::nftnl_set_elems_iter_create(set.as_ptr())).as_ptr();
            loop {
                let element = sys::nftnl_set_elems_iter_cur(iterator);
                if element.is_null() {
                    break;
                }
                self.0.push(reported(element));
                if sys::nftnl_set_elems_iter_next(iterator).is_null() {
                    break;
                }
            }
            sys::nftnl_set_elems_iter_destroy(iterator);
        }
    }

    /// The addresses and how long each has left.
    pub(crate) fn remaining_ms(&self) -> BTreeMap<IpAddr, u64> {
        self.0
            .iter()
            .filter_map(|element| Some((address(&element.key)?, element.remaining_ms)))
            .collect()
    }

    /// Writes the elements into the report of their set.
    pub(crate) fn fill(self, report: &mut SetReport) {
        match (report.key, report.kind) {
            (_, Some(SetKind::Timed)) => report.remaining_ms = self.remaining_ms(),
            (Some(Key::Ipv4 | Key::Ipv6), Some(SetKind::Interval)) => {
                report.elements = self.intervals();
            }
            (Some(key), Some(_)) => {
                report.elements = self.0.iter().filter_map(|e| single(key, e)).collect();
            }
            _ => {}
        }
    }

    /// Starts and ends in the order of their addresses. An end is the first address that is out.
    fn intervals(self) -> BTreeSet<Element> {
        let mut points: Vec<(Vec<u8>, bool)> =
            self.0.into_iter().map(|e| (e.key, e.is_end)).collect();
        // An end comes before a start of the same address.
        points.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        let mut found = BTreeSet::new();
        let mut open: Option<Vec<u8>> = None;
        for (key, is_end) in points {
            match (open.take(), is_end) {
                (Some(first), true) => found.extend(interval(&first, Some(&key))),
                (Some(first), false) => {
                    found.extend(interval(&first, Some(&key)));
                    open = Some(key);
                }
                (None, false) => open = Some(key),
                (None, true) => {}
            }
        }
        if let Some(first) = open {
            found.extend(interval(&first, None));
        }
        found
    }
}

/// # Safety
/// `element` is alive.
unsafe fn reported(element: *mut sys::nftnl_set_elem) -> Reported {
    // SAFETY: data and strings live as long as the element and are copied here.
    unsafe {
        let mut length = 0_u32;
        let key = sys::nftnl_set_elem_get(element, sys::NFTNL_SET_ELEM_KEY as u16, &raw mut length);
        let key = if key.is_null() {
            Vec::new()
        } else {
            std::slice::from_raw_parts(key.cast::<u8>(), length as usize).to_vec()
        };
        let flags = if sys::nftnl_set_elem_is_set(element, sys::NFTNL_SET_ELEM_FLAGS as u16) {
            sys::nftnl_set_elem_get_u32(element, sys::NFTNL_SET_ELEM_FLAGS as u16)
        } else {
            0
        };
        let verdict =
            sys::nftnl_set_elem_is_set(element, sys::NFTNL_SET_ELEM_VERDICT as u16).then(|| {
                let chain = sys::nftnl_set_elem_get_str(element, sys::NFTNL_SET_ELEM_CHAIN as u16);
                let code = sys::nftnl_set_elem_get_u32(element, sys::NFTNL_SET_ELEM_VERDICT as u16);
                (code, text(chain).to_owned())
            });
        let expires = sys::nftnl_set_elem_is_set(element, sys::NFTNL_SET_ELEM_EXPIRATION as u16);
        let remaining_ms = if expires {
            sys::nftnl_set_elem_get_u64(element, sys::NFTNL_SET_ELEM_EXPIRATION as u16)
        } else {
            // Somebody put it there for good.
            u64::MAX
        };
        Reported {
            key,
            is_end: flags & libc::NFT_SET_ELEM_INTERVAL_END as u32 != 0,
            remaining_ms,
            verdict,
        }
    }
}

fn address(key: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(key) {
        return Some(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(key).ok().map(IpAddr::from)
}

fn interval(first: &[u8], end: Option<&[u8]>) -> Option<Element> {
    match (address(first)?, end.map(address)) {
        (IpAddr::V4(first), end) => {
            let last = match end {
                Some(Some(IpAddr::V4(end))) => Ipv4Addr::from(u32::from(end).checked_sub(1)?),
                None => Ipv4Addr::BROADCAST,
                _ => return None,
            };
            Some(Element::Ipv4(AddressRange { first, last }))
        }
        (IpAddr::V6(first), end) => {
            let last = match end {
                Some(Some(IpAddr::V6(end))) => Ipv6Addr::from(u128::from(end).checked_sub(1)?),
                None => Ipv6Addr::from(u128::MAX),
                _ => return None,
            };
            Some(Element::Ipv6(AddressRange { first, last }))
        }
    }
}

fn single(key: Key, element: &Reported) -> Option<Element> {
    match key {
        Key::Ipv4 | Key::Ipv6 => address(&element.key).map(Element::address),
        Key::Protocol => element.key.first().copied().map(Element::Protocol),
        Key::Port => {
            let bytes = <[u8; 2]>::try_from(element.key.as_slice()).ok()?;
            Some(Element::Port(u16::from_be_bytes(bytes)))
        }
        Key::Interface => {
            let name = CStr::from_bytes_until_nul(&element.key)
                .ok()?
                .to_str()
                .ok()?;
            let (code, chain) = element.verdict.as_ref()?;
            let code = *code as i32;
            let verdict = match code {
                libc::NF_ACCEPT => Verdict::Accept,
                libc::NF_DROP => Verdict::Drop,
                libc::NFT_JUMP => Verdict::Jump(chain.parse().ok()?),
                _ => return None,
            };
            Some(Element::Interface(name.parse().ok()?, verdict))
        }
    }
}
