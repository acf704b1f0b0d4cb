//! The indexes against a reference that is too simple to be wrong: walk the rules, take the first.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hotcell_policy::{
    Action, AddressPlan, AddressRange, DomainName, FilterMode, Inside, Policy, Prefix,
    Surroundings, Target, Why, inside::hidden_ipv4,
};
use proptest::prelude::*;

const PRIVATE: [&str; 6] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "198.18.0.0/15",
    "fc00::/7",
];

fn naive_name(policy: &Policy, name: &str) -> (Action, Option<u32>) {
    for (place, rule) in policy.rules().iter().enumerate() {
        let hit = match &rule.target {
            Target::Name(target) => target.as_str() == name,
            Target::Below(target) => name.ends_with(&format!(".{target}")),
            Target::Range(_) => false,
        };
        if hit {
            return (rule.action, Some(place as u32));
        }
    }
    (policy.default_action(), None)
}

fn in_text(range: Prefix, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(a) => format!("{:032b}", u32::from(a)),
        IpAddr::V6(a) => format!("{:0128b}", u128::from(a)),
    };
    let (range_bits, address_bits) = (bits(range.address()), bits(address));
    let length = usize::from(range.length());
    range_bits.len() == address_bits.len() && range_bits[..length] == address_bits[..length]
}

/// The verdict for an address that is in no closed range.
fn naive_address(policy: &Policy, address: IpAddr) -> (Action, Option<u32>) {
    let nat64: Prefix = "64:ff9b::/96".parse().unwrap();
    let carried = match address {
        IpAddr::V6(v6) if in_text(nat64, address) => hidden_ipv4(v6).map(IpAddr::V4),
        _ => None,
    };
    let private: Vec<Prefix> = PRIVATE.iter().map(|p| p.parse().unwrap()).collect();
    let around = private.iter().find(|range| in_text(**range, address));
    for (place, rule) in policy.rules().iter().enumerate() {
        let Target::Range(range) = rule.target else {
            continue;
        };
        let hit = in_text(range, address) || carried.is_some_and(|c| in_text(range, c));
        let too_wide = around.is_some_and(|private| {
            rule.action == Action::Allow && range.length() < private.length()
        });
        if hit && !too_wide {
            return (rule.action, Some(place as u32));
        }
    }
    match around {
        Some(_) => (Action::Deny, None),
        None => (policy.default_action(), None),
    }
}

/// Few labels, so that names and rules meet often.
fn label() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "org", "net", "_x", "c-d", "xn--bcher-kva"])
}

fn dotted() -> impl Strategy<Value = String> {
    prop::collection::vec(label(), 1..5).prop_map(|labels| labels.join("."))
}

/// Few addresses, close together and at the ends of ranges.
fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = (
        prop::sample::select(vec![0_u8, 9, 10, 11, 100, 172, 192, 198, 203, 255]),
        prop::sample::select(vec![0_u8, 18, 19, 63, 64, 127, 128, 168, 255]),
        prop::sample::select(vec![0_u8, 1, 255]),
        0_u8..8,
    )
        .prop_map(|(a, b, c, d)| Ipv4Addr::new(a, b, c, d));
    let v6 = (
        prop::sample::select(vec![0x64_u16, 0x2001, 0xfc00, 0xfdff, 0xfe00]),
        prop::sample::select(vec![0_u16, 0xdb8, 0xff9b]),
        v4.clone(),
    )
        .prop_map(|(a, b, low)| {
            let low = u32::from(low);
            Ipv6Addr::new(a, b, 0, 0, 0, 0, (low >> 16) as u16, (low & 0xffff) as u16)
        });
    prop_oneof![v4.prop_map(IpAddr::V4), v6.prop_map(IpAddr::V6)]
}

fn range() -> impl Strategy<Value = String> {
    (address(), 0_u8..=128, any::<bool>()).prop_map(|(address, length, single)| {
        let most = if address.is_ipv4() { 32 } else { 128 };
        if single {
            address.to_string()
        } else {
            format!("{address}/{}", length % (most + 1))
        }
    })
}

fn target() -> impl Strategy<Value = String> {
    prop_oneof![
        dotted(),
        dotted().prop_map(|name| format!("*.{name}")),
        range()
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let action = prop::sample::select(vec!["allow", "deny"]);
    let rule = (action.clone(), target())
        .prop_map(|(action, target)| serde_json::json!({ "action": action, "target": target }));
    (action, prop::collection::vec(rule, 0..40)).prop_map(|(default, rules)| {
        let document = serde_json::json!({ "defaultAction": default, "egress": rules });
        Policy::parse(&document.to_string()).unwrap()
    })
}

fn index(why: Why) -> Option<u32> {
    match why {
        Why::Rule(rule) => Some(rule.0),
        _ => None,
    }
}

fn holds<A: PartialOrd>(ranges: &[AddressRange<A>], address: A) -> bool {
    ranges
        .iter()
        .any(|r| r.first <= address && address <= r.last)
}

/// In the kernel's order: closed, then exceptions, then the default.
fn kernel(plan: &AddressPlan, address: IpAddr) -> Action {
    let (closed, exception) = match address {
        IpAddr::V4(a) => {
            let ranges = plan.kernel_v4();
            (holds(&ranges.closed, a), holds(&ranges.exceptions, a))
        }
        IpAddr::V6(a) => {
            let ranges = plan.kernel_v6();
            (holds(&ranges.closed, a), holds(&ranges.exceptions, a))
        }
    };
    match (closed, exception, plan.default_action()) {
        (true, _, _) => Action::Deny,
        (false, false, default) => default,
        (false, true, Action::Allow) => Action::Deny,
        (false, true, Action::Deny) => Action::Allow,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn names_match_first_rule(policy in policy(), names in prop::collection::vec(dotted(), 1..20)) {
        for text in names {
            let name = DomainName::from_question(&text).unwrap();
            let verdict = policy.name_verdict(&name);
            prop_assert_eq!((verdict.action, index(verdict.why)), naive_name(&policy, &text), "{}", text);
        }
    }

    #[test]
    fn addresses_match_first_rule(policy in policy(), addresses in prop::collection::vec(address(), 1..40)) {
        let plan = AddressPlan::new(&policy, FilterMode::DnsNft, &Surroundings::default());
        for address in addresses {
            let verdict = plan.verdict(address);
            match verdict.why {
                Why::Inside(inside) if inside != Inside::Private => {
                    prop_assert_eq!(verdict.action, Action::Deny);
                }
                why => {
                    let expected = naive_address(&policy, address);
                    prop_assert_eq!((verdict.action, index(why)), expected, "{}", address);
                }
            }
            prop_assert_eq!(kernel(&plan, address), verdict.action, "{}", address);
        }
    }

    #[test]
    fn kernel_ranges_are_disjoint_ascending_and_joined(policy in policy()) {
        let plan = AddressPlan::new(&policy, FilterMode::DnsNft, &Surroundings::default());
        let (v4, v6) = (plan.kernel_v4(), plan.kernel_v6());
        for ranges in [&v4.closed, &v4.exceptions] {
            for pair in ranges.windows(2) {
                prop_assert!(u32::from(pair[0].last) + 1 < u32::from(pair[1].first));
            }
            prop_assert!(ranges.iter().all(|r| r.first <= r.last));
        }
        for ranges in [&v6.closed, &v6.exceptions] {
            for pair in ranges.windows(2) {
                prop_assert!(u128::from(pair[0].last) + 1 < u128::from(pair[1].first));
            }
        }
        prop_assert!(!v4.closed.iter().any(|c| holds(&v4.exceptions, c.first)));
        prop_assert!(!v6.closed.iter().any(|c| holds(&v6.exceptions, c.first)));
    }

    #[test]
    fn a_policy_survives_its_own_text(policy in policy()) {
        let again = Policy::parse(&policy.to_json()).unwrap();
        prop_assert_eq!(again.default_action(), policy.default_action());
        let targets = |p: &Policy| p.rules().iter().map(|r| (r.action, r.target.clone())).collect::<Vec<_>>();
        prop_assert_eq!(targets(&again), targets(&policy));
    }

    /// What the fuzz target checks, on texts that are near documents.
    #[test]
    fn any_text_is_a_policy_or_an_error(parts in prop::collection::vec(prop_oneof![
        prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"egress\"", "\"defaultAction\"", "\"action\"", "\"target\"",
            "\"allow\"", "\"deny\"", "null", "1e999", "\"*.x\"", "\"\\ud800\"", "\"0x7f.1\"", " ",
        ]).prop_map(str::to_owned),
        any::<String>(),
    ], 0..30)) {
        let text = parts.concat();
        if let Err(error) = Policy::parse(&text) {
            prop_assert!(!error.problems().is_empty());
            prop_assert!(error.problems().iter().all(|p| p.path.starts_with('$')));
        }
    }

    #[test]
    fn any_target_is_canonical_or_refused(text in any::<String>()) {
        let document = serde_json::json!({ "egress": [{ "action": "allow", "target": text }] });
        if let Ok(policy) = Policy::parse(&document.to_string()) {
            let shown = policy.rules()[0].target.to_string();
            prop_assert!(shown.is_ascii() && shown == shown.to_ascii_lowercase() && !shown.ends_with('.'));
            let again = serde_json::json!({ "egress": [{ "action": "allow", "target": shown }] });
            let again = Policy::parse(&again.to_string()).unwrap();
            prop_assert_eq!(&again.rules()[0].target, &policy.rules()[0].target);
        }
    }
}
