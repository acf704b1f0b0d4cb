//! Any text: parsing gives a policy or an error with a path; a policy survives its own text, and
//! the verdict for each of its own names is that of the first rule for it.
#![no_main]

use hotcell_policy::{AddressPlan, FilterMode, Policy, Subject, Surroundings, Target, Why};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let around = Surroundings::default();
    let policy = match Policy::parse(text) {
        Ok(policy) => policy,
        Err(error) => {
            assert!(
                error
                    .problems()
                    .iter()
                    .all(|problem| problem.path.starts_with('$'))
            );
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let again = Policy::parse(&policy.to_json()).expect("its own text");
    assert_eq!(again.default_action(), policy.default_action());
    assert_eq!(again.rules().len(), policy.rules().len());
    for mode in [FilterMode::Dns, FilterMode::DnsNft] {
        for warning in policy.warnings(mode, &around) {
            assert!(!warning.to_string().is_empty());
        }
    }
    let plan = AddressPlan::new(&policy, FilterMode::DnsNft, &around);
    for (index, rule) in policy.indexed_rules() {
        match &rule.target {
            Target::Name(name) => {
                let Why::Rule(first) = policy.name_verdict(name).why else {
                    panic!("{name} is matched by a rule");
                };
                assert!(first <= index);
            }
            Target::Below(_) => {}
            Target::Range(range) => {
                let verdict = plan.verdict(range.address());
                if let Why::Rule(first) = verdict.why {
                    assert!(first <= index);
                }
                let subject = Subject::Address(range.address());
                assert!(
                    !policy
                        .explain(&subject, FilterMode::DnsNft, &around)
                        .words
                        .is_empty()
                );
            }
        }
    }
});
