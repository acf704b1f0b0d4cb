//! The acceptance cases of the policy document.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod addresses;
mod documents;
mod explain;
mod names;

use std::net::IpAddr;

use hotcell_policy::{
    Action, AddressPlan, DomainName, FilterMode, Inside, NameError, Opening, Policy, Reason,
    RuleIndex, Subject, Surroundings, TargetError, Why,
};

fn policy(default: &str, rules: &[&str]) -> Policy {
    let rules: Vec<_> = rules
        .iter()
        .map(|rule| {
            let (action, target) = rule.split_once(' ').unwrap();
            serde_json::json!({ "action": action, "target": target })
        })
        .collect();
    let document = serde_json::json!({ "defaultAction": default, "egress": rules });
    Policy::parse(&document.to_string()).unwrap()
}

fn plan(policy: &Policy) -> AddressPlan {
    AddressPlan::new(policy, FilterMode::DnsNft, &around())
}

fn around() -> Surroundings {
    let prefixes = |list: &[&str]| list.iter().map(|p| p.parse().unwrap()).collect();
    Surroundings {
        host: prefixes(&["10.200.0.1", "198.51.100.200"]),
        appliance: prefixes(&["10.200.0.2"]),
        sandboxes: prefixes(&["10.201.0.0/16"]),
        metadata: Vec::new(),
    }
}

fn name(text: &str) -> DomainName {
    DomainName::from_question(text).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn names(policy: &Policy, names: &[&str]) -> Vec<Action> {
    names
        .iter()
        .map(|n| policy.name_verdict(&name(n)).action)
        .collect()
}

fn addresses(policy: &Policy, list: &[&str]) -> Vec<Action> {
    let plan = plan(policy);
    list.iter().map(|a| plan.verdict(ip(a)).action).collect()
}

use Action::{Allow, Deny};
