//! A rule as the kernel takes it: its statements as expressions over one register.

use std::ffi::{CStr, c_char, c_void};

use hotcell_egress::ruleset::{Family, ObjectName, Rule, SourceRoute, Statement, States, Verdict};
use nftnl::nftnl_sys::{self as sys, libc};

use crate::{
    batch::FAMILY,
    encode::{interface_bytes, octets, verdict_code},
    object::{self, allocated, c_string},
};

const REGISTER: u32 = libc::NFT_REG_1 as u32;
/// `NFT_EXTHDR_OP_IPV4` and `NFT_EXTHDR_F_PRESENT` of the kernel's nf_tables.h.
const EXTHDR_IPV4: u32 = 2;
const EXTHDR_PRESENT: u32 = 1;
const IP_OPTION_LSRR: u8 = 131;
const IP_OPTION_SSRR: u8 = 137;
const ICMPV6: u8 = 58;
const NEIGHBOUR_FIRST: u8 = 133;
const NEIGHBOUR_LAST: u8 = 136;
/// What of a denied packet a listener gets: the headers.
pub(crate) const LOG_SNAPSHOT_BYTES: u32 = 96;
/// `NFTA_FIB_F_DADDR`, `NFT_FIB_RESULT_ADDRTYPE` of the kernel's nf_tables.h, and `RTN_LOCAL`.
const FIB_DESTINATION: u32 = 2;
const FIB_ADDRESS_TYPE: u32 = 3;
const ROUTE_LOCAL: u32 = 2;

/// A rule with all its expressions.
pub(crate) fn rule_object(table: &ObjectName, chain: &ObjectName, rule: &Rule) -> object::Rule {
    let built = object::Rule::new();
    let (table, chain) = (c_string(table.as_str()), c_string(chain.as_str()));
    // SAFETY: the object is alive, and libnftnl copies the strings.
    unsafe {
        sys::nftnl_rule_set_u32(built.as_ptr(), sys::NFTNL_RULE_FAMILY as u16, FAMILY.into());
        sys::nftnl_rule_set_str(built.as_ptr(), sys::NFTNL_RULE_TABLE as u16, table.as_ptr());
        sys::nftnl_rule_set_str(built.as_ptr(), sys::NFTNL_RULE_CHAIN as u16, chain.as_ptr());
    }
    let expressions = Expressions(&built);
    for statement in &rule.0 {
        expressions.statement(statement);
    }
    built
}

/// A value of an expression's attribute.
enum Value<'a> {
    U16(u16),
    U32(u32),
    U64(u64),
    Bytes(&'a [u8]),
    Text(&'a CStr),
}

struct Expressions<'a>(&'a object::Rule);

impl Expressions<'_> {
    fn add(&self, kind: &CStr, attributes: &[(u32, Value<'_>)]) {
        // SAFETY: the expression is handed to the rule, which frees it; libnftnl copies data and strings.
        unsafe {
            let expression = allocated(sys::nftnl_expr_alloc(kind.as_ptr())).as_ptr();
            for (attribute, value) in attributes {
                let attribute = *attribute as u16;
                match value {
                    Value::U16(value) => sys::nftnl_expr_set_u16(expression, attribute, *value),
                    Value::U32(value) => sys::nftnl_expr_set_u32(expression, attribute, *value),
                    Value::U64(value) => sys::nftnl_expr_set_u64(expression, attribute, *value),
                    Value::Bytes(bytes) => {
                        let data = bytes.as_ptr().cast::<c_void>();
                        sys::nftnl_expr_set(expression, attribute, data, bytes.len() as u32);
                    }
                    Value::Text(text) => {
                        let text: *const c_char = text.as_ptr();
                        sys::nftnl_expr_set_str(expression, attribute, text);
                    }
                }
            }
            sys::nftnl_rule_add_expr(self.0.as_ptr(), expression);
        }
    }

    fn meta(&self, key: i32) {
        self.add(
            c"meta",
            &[
                (sys::NFTNL_EXPR_META_KEY, Value::U32(key as u32)),
                (sys::NFTNL_EXPR_META_DREG, Value::U32(REGISTER)),
            ],
        );
    }

    fn compare(&self, operator: i32, data: &[u8]) {
        self.add(
            c"cmp",
            &[
                (sys::NFTNL_EXPR_CMP_SREG, Value::U32(REGISTER)),
                (sys::NFTNL_EXPR_CMP_OP, Value::U32(operator as u32)),
                (sys::NFTNL_EXPR_CMP_DATA, Value::Bytes(data)),
            ],
        );
    }

    fn equals(&self, data: &[u8]) {
        self.compare(libc::NFT_CMP_EQ, data);
    }

    fn payload(&self, base: i32, offset: u32, length: u32) {
        self.add(
            c"payload",
            &[
                (sys::NFTNL_EXPR_PAYLOAD_BASE, Value::U32(base as u32)),
                (sys::NFTNL_EXPR_PAYLOAD_OFFSET, Value::U32(offset)),
                (sys::NFTNL_EXPR_PAYLOAD_LEN, Value::U32(length)),
                (sys::NFTNL_EXPR_PAYLOAD_DREG, Value::U32(REGISTER)),
            ],
        );
    }

    fn lookup(&self, set: &ObjectName, flags: i32, verdict: bool) {
        let name = c_string(set.as_str());
        // The kernel reports the flags even when there are none.
        let mut attributes = vec![
            (sys::NFTNL_EXPR_LOOKUP_SREG, Value::U32(REGISTER)),
            (sys::NFTNL_EXPR_LOOKUP_SET, Value::Text(&name)),
            (sys::NFTNL_EXPR_LOOKUP_FLAGS, Value::U32(flags as u32)),
        ];
        if verdict {
            let register = libc::NFT_REG_VERDICT as u32;
            attributes.push((sys::NFTNL_EXPR_LOOKUP_DREG, Value::U32(register)));
        }
        self.add(c"lookup", &attributes);
    }

    fn family(&self, family: Family) {
        let number = match family {
            Family::V4 => libc::NFPROTO_IPV4,
            Family::V6 => libc::NFPROTO_IPV6,
        };
        self.meta(libc::NFT_META_NFPROTO);
        self.equals(&[number as u8]);
    }

    fn protocol(&self) {
        self.meta(libc::NFT_META_L4PROTO);
    }

    /// Loads an address of the network header.
    fn header_address(&self, family: Family, destination: bool) {
        let (source_offset, length) = match family {
            Family::V4 => (12, 4),
            Family::V6 => (8, 16),
        };
        let offset = if destination {
            source_offset + length
        } else {
            source_offset
        };
        self.payload(libc::NFT_PAYLOAD_NETWORK_HEADER, offset, length);
    }

    fn port(&self) {
        self.payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2);
    }

    fn state(&self, states: States) {
        let bit = |set, bit| if set { bit } else { 0_u32 };
        let mask = bit(states.invalid, 1) | bit(states.established, 2) | bit(states.related, 4);
        self.add(
            c"ct",
            &[
                (
                    sys::NFTNL_EXPR_CT_KEY,
                    Value::U32(libc::NFT_CT_STATE as u32),
                ),
                (sys::NFTNL_EXPR_CT_DREG, Value::U32(REGISTER)),
            ],
        );
        let none = 0_u32.to_ne_bytes();
        self.add(
            c"bitwise",
            &[
                (sys::NFTNL_EXPR_BITWISE_SREG, Value::U32(REGISTER)),
                (sys::NFTNL_EXPR_BITWISE_DREG, Value::U32(REGISTER)),
                (sys::NFTNL_EXPR_BITWISE_LEN, Value::U32(4)),
                (
                    sys::NFTNL_EXPR_BITWISE_MASK,
                    Value::Bytes(&mask.to_ne_bytes()),
                ),
                (sys::NFTNL_EXPR_BITWISE_XOR, Value::Bytes(&none)),
            ],
        );
        self.compare(libc::NFT_CMP_NEQ, &none);
    }

    fn verdict(&self, verdict: &Verdict) {
        let chain = match verdict {
            Verdict::Jump(chain) => Some(c_string(chain.as_str())),
            Verdict::Accept | Verdict::Drop => None,
        };
        let mut attributes = vec![
            (
                sys::NFTNL_EXPR_IMM_DREG,
                Value::U32(libc::NFT_REG_VERDICT as u32),
            ),
            (
                sys::NFTNL_EXPR_IMM_VERDICT,
                Value::U32(verdict_code(verdict)),
            ),
        ];
        if let Some(chain) = &chain {
            attributes.push((sys::NFTNL_EXPR_IMM_CHAIN, Value::Text(chain)));
        }
        self.add(c"immediate", &attributes);
    }

    fn statement(&self, statement: &Statement) {
        match statement {
            Statement::InInterface(name) => {
                self.meta(libc::NFT_META_IIFNAME);
                self.equals(&interface_bytes(name.as_str()));
            }
            Statement::OutInterface(name) => {
                self.meta(libc::NFT_META_OIFNAME);
                self.equals(&interface_bytes(name.as_str()));
            }
            Statement::InInterfaceVerdict(map) => {
                self.meta(libc::NFT_META_IIFNAME);
                self.lookup(map, 0, true);
            }
            Statement::OutInterfaceVerdict(map) => {
                self.meta(libc::NFT_META_OIFNAME);
                self.lookup(map, 0, true);
            }
            Statement::Family(family) => self.family(*family),
            Statement::SourceIsNot(address) => {
                let (family, _) = Family::of(*address);
                self.family(family);
                self.header_address(family, false);
                self.compare(libc::NFT_CMP_NEQ, &octets(*address));
            }
            Statement::Source(address) => {
                let (family, _) = Family::of(*address);
                self.family(family);
                self.header_address(family, false);
                self.equals(&octets(*address));
            }
            Statement::DestinationIsLocal => {
                self.add(
                    c"fib",
                    &[
                        (sys::NFTNL_EXPR_FIB_DREG, Value::U32(REGISTER)),
                        (sys::NFTNL_EXPR_FIB_RESULT, Value::U32(FIB_ADDRESS_TYPE)),
                        (sys::NFTNL_EXPR_FIB_FLAGS, Value::U32(FIB_DESTINATION)),
                    ],
                );
                self.equals(&ROUTE_LOCAL.to_ne_bytes());
            }
            Statement::SetMark(mark) => {
                self.add(
                    c"immediate",
                    &[
                        (sys::NFTNL_EXPR_IMM_DREG, Value::U32(REGISTER)),
                        (sys::NFTNL_EXPR_IMM_DATA, Value::Bytes(&mark.to_ne_bytes())),
                    ],
                );
                self.add(
                    c"meta",
                    &[
                        (
                            sys::NFTNL_EXPR_META_KEY,
                            Value::U32(libc::NFT_META_MARK as u32),
                        ),
                        (sys::NFTNL_EXPR_META_SREG, Value::U32(REGISTER)),
                    ],
                );
            }
            Statement::Destination(address) => {
                let (family, _) = Family::of(*address);
                self.family(family);
                self.header_address(family, true);
                self.equals(&octets(*address));
            }
            Statement::DestinationIn(family, set) => {
                self.family(*family);
                self.header_address(*family, true);
                self.lookup(set, 0, false);
            }
            Statement::State(states) => self.state(*states),
            Statement::ProtocolIn(set) => {
                self.protocol();
                self.lookup(set, 0, false);
            }
            Statement::ProtocolNotIn(set) => {
                self.protocol();
                self.lookup(set, libc::NFT_LOOKUP_F_INV, false);
            }
            Statement::Port(port) => {
                self.port();
                self.equals(&port.to_be_bytes());
            }
            Statement::PortIn(set) => {
                self.port();
                self.lookup(set, 0, false);
            }
            Statement::NeighbourDiscovery => {
                self.protocol();
                self.equals(&[ICMPV6]);
                self.payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1);
                self.compare(libc::NFT_CMP_GTE, &[NEIGHBOUR_FIRST]);
                self.compare(libc::NFT_CMP_LTE, &[NEIGHBOUR_LAST]);
            }
            Statement::SourceRouted(route) => self.ip_option(match route {
                SourceRoute::Loose => IP_OPTION_LSRR,
                SourceRoute::Strict => IP_OPTION_SSRR,
            }),
            Statement::Log(log, label) => {
                let prefix = c_string(label.as_str());
                self.add(
                    c"limit",
                    &[
                        (
                            sys::NFTNL_EXPR_LIMIT_RATE,
                            Value::U64(log.per_second.into()),
                        ),
                        (sys::NFTNL_EXPR_LIMIT_UNIT, Value::U64(1)),
                        (sys::NFTNL_EXPR_LIMIT_BURST, Value::U32(log.per_second)),
                        (
                            sys::NFTNL_EXPR_LIMIT_TYPE,
                            Value::U32(libc::NFT_LIMIT_PKTS as u32),
                        ),
                        (sys::NFTNL_EXPR_LIMIT_FLAGS, Value::U32(0)),
                    ],
                );
                self.add(
                    c"log",
                    &[
                        (sys::NFTNL_EXPR_LOG_PREFIX, Value::Text(&prefix)),
                        (sys::NFTNL_EXPR_LOG_GROUP, Value::U16(log.group)),
                        (sys::NFTNL_EXPR_LOG_SNAPLEN, Value::U32(LOG_SNAPSHOT_BYTES)),
                    ],
                );
            }
            Statement::Masquerade => self.add(c"masq", &[]),
            Statement::Verdict(verdict) => self.verdict(verdict),
        }
    }

    /// Whether the option is there.
    fn ip_option(&self, option: u8) {
        let exthdr = c"exthdr";
        // SAFETY: the expression is handed to the rule, which frees it.
        unsafe {
            let expression = allocated(sys::nftnl_expr_alloc(exthdr.as_ptr())).as_ptr();
            sys::nftnl_expr_set_u8(expression, sys::NFTNL_EXPR_EXTHDR_TYPE as u16, option);
            for (attribute, value) in [
                (sys::NFTNL_EXPR_EXTHDR_DREG, REGISTER),
                (sys::NFTNL_EXPR_EXTHDR_OFFSET, 0),
                (sys::NFTNL_EXPR_EXTHDR_LEN, 1),
                (sys::NFTNL_EXPR_EXTHDR_OP, EXTHDR_IPV4),
                (sys::NFTNL_EXPR_EXTHDR_FLAGS, EXTHDR_PRESENT),
            ] {
                sys::nftnl_expr_set_u32(expression, attribute as u16, value);
            }
            sys::nftnl_rule_add_expr(self.0.as_ptr(), expression);
        }
        self.equals(&[1]);
    }
}
