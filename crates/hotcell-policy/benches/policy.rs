//! Verdict and load times of policies of 10, 100 and 4,096 rules. One line of JSON a row; `cargo xtask
//! bench egress` runs it. Targets: a verdict under 1,000 ns and a load under 50 ms at 4,096 rules.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark reads the real clock and prints"
)]

use std::{hint::black_box, net::IpAddr, time::Instant};

use hotcell_policy::{AddressPlan, DomainName, FilterMode, Policy, Surroundings};

const MOST_RULES: usize = 4_096;
const VERDICT_TARGET_NS: f64 = 1_000.0;
const LOAD_TARGET_MS: f64 = 50.0;

/// Names of all shapes, and ranges that overlap one another: a third of each kind.
fn document(rules: usize) -> String {
    let rules: Vec<_> = (0..rules)
        .map(|i| {
            let target = match i % 3 {
                0 => format!("host{i}.zone{}.example.org", i % 97),
                1 => format!("*.team{i}.example.net"),
                _ => format!("{}.{}.0.0/{}", 11 + i % 80, i % 251, 9 + i % 16),
            };
            let action = if i % 5 == 0 { "deny" } else { "allow" };
            serde_json::json!({ "action": action, "target": target })
        })
        .collect();
    serde_json::json!({ "egress": rules }).to_string()
}

/// The median of many runs of many calls each, in nanoseconds a call.
fn nanoseconds(calls: usize, mut call: impl FnMut(usize)) -> f64 {
    const RUNS: usize = 31;
    let mut runs: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            for i in 0..calls {
                call(i);
            }
            start.elapsed().as_nanos() as f64 / calls as f64
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    runs[RUNS / 2]
}

/// Has a target only with the most rules.
fn row(name: &str, rules: usize, value: f64, unit: &str, limit: f64, note: &str) {
    let (target, met) = if rules == MOST_RULES {
        (format!("< {limit}"), Some(value < limit))
    } else {
        ("–".to_owned(), None)
    };
    let row = serde_json::json!({
        "name": format!("policy.{name}_{rules}"), "value": value, "unit": unit, "target": target,
        "met": met, "note": note,
    });
    println!("{row}");
}

fn main() {
    for rules in [10, 100, MOST_RULES] {
        let text = document(rules);
        let around = Surroundings::default();
        let load = |_| {
            let policy = Policy::parse(black_box(&text)).expect("the document above is valid");
            black_box(AddressPlan::new(&policy, FilterMode::DnsNft, &around));
        };
        let load_ms = nanoseconds(3, load) / 1e6;

        let policy = Policy::parse(&text).expect("the document above is valid");
        let plan = AddressPlan::new(&policy, FilterMode::DnsNft, &around);
        let name = |text: String| DomainName::from_question(&text).expect("a valid name");
        let names: Vec<DomainName> = (0..1024)
            .map(|i| match i % 4 {
                0 => name(format!("host{}.zone{}.example.org", i * 3, (i * 3) % 97)),
                1 => name(format!("a.b.team{}.example.net", i * 3 + 1)),
                2 => name(format!("unlisted{i}.example.org")),
                _ => name(format!("www.somewhere{i}.else")),
            })
            .collect();
        let name_ns = nanoseconds(100_000, |i| {
            black_box(policy.name_verdict(black_box(&names[i % names.len()])));
        });
        let deepest = name(format!("{}team1.example.net", "a.".repeat(117)));
        let deepest_ns = nanoseconds(100_000, |_| {
            black_box(policy.name_verdict(black_box(&deepest)));
        });
        let addresses: Vec<IpAddr> = (0..1024_u32)
            .map(|i| IpAddr::from(((i * 7_919) << 12).to_be_bytes()))
            .collect();
        let address_ns = nanoseconds(100_000, |i| {
            black_box(plan.verdict(black_box(addresses[i % addresses.len()])));
        });
        let slowest_ns = name_ns.max(deepest_ns).max(address_ns);
        let note = format!(
            "the slowest of: names {name_ns:.0} ns, the deepest name {deepest_ns:.0} ns, addresses {address_ns:.0} ns"
        );
        row(
            "verdict_ns",
            rules,
            slowest_ns,
            "ns",
            VERDICT_TARGET_NS,
            &note,
        );
        let note = "document to policy and address plan; names, wildcards and overlapping ranges by thirds";
        row("load_ms", rules, load_ms, "ms", LOAD_TARGET_MS, note);
    }
}
