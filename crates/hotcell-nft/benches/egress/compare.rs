//! Allowed answers from the cache, ours beside dnsmasq and unbound.

use std::time::Duration;

use crate::{
    load::{self, SOCKETS, WINDOW},
    peers::{self, Files, Resolver},
    row::{Target, median, not_measured, quantile, row},
    upstream::{self, NAMES},
};

/// Every resolver has its turn in each.
const ROUNDS: usize = 7;
const TURN: Duration = Duration::from_millis(1_000);
/// Of what the slowest can answer.
const OFFERED_SHARE: f64 = 0.5;

/// A resolver and what it was found to do.
struct Subject {
    name: &'static str,
    resolver: Resolver,
    per_second: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    lost: usize,
}

impl Subject {
    fn new(name: &'static str, resolver: Resolver) -> Self {
        Self {
            name,
            resolver,
            per_second: Vec::new(),
            p50_us: Vec::new(),
            p99_us: Vec::new(),
            lost: 0,
        }
    }
}

pub(crate) fn rows() {
    upstream::start();
    let files = Files::new();
    let ours = peers::ours(&files).expect("our own resolver answers");
    let mut subjects = vec![Subject::new("hotcell", ours)];
    let mut missing = Vec::new();
    for (name, started) in [
        ("dnsmasq", peers::dnsmasq(&files)),
        ("unbound", peers::unbound(&files)),
    ] {
        match started {
            Ok(resolver) => subjects.push(Subject::new(name, resolver)),
            Err(why) => missing.push((name, why)),
        }
    }
    for _ in 0..ROUNDS {
        for subject in &mut subjects {
            let found = load::most(subject.resolver.address, TURN);
            subject.per_second.push(found);
        }
    }
    let slowest = subjects.iter().map(|subject| median(&subject.per_second));
    let offered = (slowest.fold(f64::INFINITY, f64::min) * OFFERED_SHARE).round();
    for _ in 0..ROUNDS {
        for subject in &mut subjects {
            let found = load::steady(subject.resolver.address, offered, TURN);
            subject.p50_us.push(quantile(&found.took_us, 0.5));
            subject.p99_us.push(quantile(&found.took_us, 0.99));
            subject.lost += found.lost;
        }
    }
    report(&subjects, &missing, offered);
}

fn report(subjects: &[Subject], missing: &[(&str, String)], offered: f64) {
    let most = format!(
        "median of {ROUNDS} turns; {NAMES} allowed names from a warm cache, {SOCKETS} sockets with {WINDOW} \
         questions under way on each; each resolver a process, one client"
    );
    let steady = format!("median of {ROUNDS} turns at {offered:.0} questions/s");
    for subject in subjects {
        let suffix = match subject.name {
            "hotcell" => String::new(),
            name => format!("_{name}"),
        };
        let plain = |name: &str, values: &[f64], unit, note: &str| {
            let name = format!("{name}{suffix}");
            row(&name, median(values), unit, Target::None, note);
        };
        plain("dns.qps", &subject.per_second, "1/s", &most);
        let steady = format!("{steady}, {} lost", subject.lost);
        plain("dns.p50_us", &subject.p50_us, "µs", &steady);
        plain("dns.p99_us", &subject.p99_us, "µs", &steady);
    }
    let ours = &subjects[0];
    let setup = "ours is the real filter with 100 rules over a real table: each answer keeps its address open";
    for (peer, how) in [
        ("dnsmasq", "fills a timed set by `nftset`"),
        (
            "unbound",
            "forwards, one thread as installed, no validation",
        ),
    ] {
        let name = format!("dns.qps_ratio_{peer}");
        let target = Target::AtLeast(1.0);
        let Some(found) = subjects.iter().find(|subject| subject.name == peer) else {
            let why = missing.iter().find(|(name, _)| *name == peer);
            let why = why.map_or("", |(_, why)| why);
            not_measured(&name, "ratio", target, why);
            if peer == "dnsmasq" {
                let target = Target::AtMost(1.0);
                not_measured("dns.p99_ratio_dnsmasq", "ratio", target, why);
            }
            continue;
        };
        let (own, other) = (median(&ours.per_second), median(&found.per_second));
        let note = format!("{own:.0} against {other:.0} answers/s; {setup}; {peer} {how}");
        row(&name, own / other, "ratio", target, &note);
        let (own, other) = (median(&ours.p99_us), median(&found.p99_us));
        let note = format!("{own:.0} µs against {other:.0} µs; {steady}");
        let target = if peer == "dnsmasq" {
            Target::AtMost(1.0)
        } else {
            Target::None
        };
        let name = format!("dns.p99_ratio_{peer}");
        if own.max(other) >= load::PATIENCE.as_micros() as f64 {
            let why = "the machine was too busy: a hundredth of the questions or more was lost";
            not_measured(&name, "ratio", target, why);
            continue;
        }
        row(&name, own / other, "ratio", target, &note);
    }
}
