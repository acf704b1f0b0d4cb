//! The acceptance cases of the filter's model.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod answers;
mod learned;
mod names;
mod properties;

use std::{collections::HashSet, net::IpAddr};

use hotcell_egress::{
    filter::{
        AnswerData, AnswerRecord, Denial, FilterSettings, Hidden, Permit, QuestionKind, Ruling,
        SandboxFilter, Sifted,
    },
    learned::{LearnedLimits, LearnedTable},
};
use hotcell_policy::{DomainName, Inside, Policy, RuleIndex, Surroundings, Why};
use hotcell_types::UnixMillis;
use proptest::prelude::*;

const NOW: UnixMillis = UnixMillis(1_000_000);

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

fn filter(default: &str, rules: &[&str], ipv6: bool) -> SandboxFilter {
    let around = Surroundings {
        host: vec!["10.200.0.1".parse().unwrap()],
        appliance: vec!["203.0.113.200".parse().unwrap()],
        ..Surroundings::default()
    };
    let settings = FilterSettings {
        ipv6,
        ..FilterSettings::default()
    };
    SandboxFilter::new(Some(policy(default, rules)), &around, settings)
}

fn name(text: &str) -> DomainName {
    DomainName::from_question(text).unwrap()
}

fn ruling(filter: &SandboxFilter, text: &str) -> Ruling {
    filter.rule_on(DomainName::from_question(text), QuestionKind::A)
}

fn permit(filter: &SandboxFilter, text: &str) -> Permit {
    match ruling(filter, text) {
        Ruling::Ask(permit) => permit,
        other => panic!("{text}: {other:?}"),
    }
}

fn is_denied(filter: &SandboxFilter, text: &str) -> bool {
    matches!(ruling(filter, text), Ruling::Deny(_))
}

fn address(owner: &str, address: &str) -> AnswerRecord {
    AnswerRecord {
        owner: Some(name(owner)),
        data: AnswerData::Address(address.parse().unwrap()),
        ttl_seconds: 60,
    }
}

fn alias(owner: &str, target: &str) -> AnswerRecord {
    AnswerRecord {
        owner: Some(name(owner)),
        data: AnswerData::Alias(name(target)),
        ttl_seconds: 60,
    }
}

fn take_in(filter: &mut SandboxFilter, asked: &str, records: &[AnswerRecord]) -> Sifted {
    let permit = permit(filter, asked);
    filter.take_in(NOW, &permit, records, HashSet::new)
}

fn opened(sifted: &Sifted) -> Vec<String> {
    sifted
        .changes
        .open
        .iter()
        .map(|(a, _)| a.to_string())
        .collect()
}
