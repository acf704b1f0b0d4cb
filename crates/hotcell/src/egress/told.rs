//! What parts of a filter report, as events.

use hotcell_egress::{
    denied::{DeniedPacket, PacketDenial},
    dns::FilterEvent,
    filter::{Denial, Hidden},
    report::Difference,
};
use hotcell_policy::{RuleIndex, Why};
use hotcell_types::limits::{MAX_EGRESS_NOTE_CHARACTERS, MAX_NAMED_DIFFERENCES};

use super::event::{ENCRYPTED, Happened};

/// Addresses that were taken out of one answer and get an event of their own; of more only the
/// number is told.
const MAX_HIDDEN_EVENTS: usize = 4;

const fn rule_of(why: Why) -> Option<RuleIndex> {
    match why {
        Why::Rule(index) => Some(index),
        _ => None,
    }
}

/// What the DNS side of a filter said, as events.
pub(crate) fn of_lookup(event: FilterEvent) -> Vec<Happened> {
    match event {
        FilterEvent::NameDenied { name, denial } => vec![Happened::NameDenied {
            name: name.map(|name| name.to_string()),
            rule: match denial {
                Denial::Policy(why) => rule_of(why),
                Denial::EncryptedResolver | Denial::NoName => None,
            },
            why: match denial {
                Denial::Policy(why) => why.to_string(),
                Denial::EncryptedResolver => ENCRYPTED.to_owned(),
                Denial::NoName => "it is no name of a host".to_owned(),
            },
        }],
        FilterEvent::NameAllowed {
            name,
            by,
            opened,
            hidden,
            closed,
        } => {
            let name = name.to_string();
            let mut events = vec![Happened::NameAllowed {
                name: name.clone(),
                rule: by,
                opened: opened.len(),
            }];
            let told = hidden.iter().take(MAX_HIDDEN_EVENTS);
            events.extend(told.map(|(address, hidden)| Happened::AddressHidden {
                name: name.clone(),
                address: *address,
                rule: match hidden {
                    Hidden::Policy(why) => rule_of(*why),
                    Hidden::EncryptedResolver => None,
                },
                why: match hidden {
                    Hidden::Policy(why) => why.to_string(),
                    Hidden::EncryptedResolver => ENCRYPTED.to_owned(),
                },
            }));
            let more = hidden.len().saturating_sub(MAX_HIDDEN_EVENTS);
            if more > 0 {
                events.push(Happened::MoreAddressesHidden {
                    name: name.clone(),
                    count: more,
                });
            }
            if !closed.is_empty() {
                events.push(Happened::CeilingReached {
                    name,
                    closed: closed.len(),
                });
            }
            events
        }
        FilterEvent::NameAllowedAgain { name, by, times } => vec![Happened::NameAllowedAgain {
            name: name.to_string(),
            rule: by,
            times,
        }],
        FilterEvent::UpstreamFailed { name, reason } => vec![Happened::UpstreamFailed {
            name: name.to_string(),
            why: shortened(reason),
        }],
        FilterEvent::PacketFilterFailed { name, reason } => vec![Happened::PacketFilterFailed {
            name: Some(name.to_string()),
            why: shortened(reason),
        }],
        FilterEvent::RateExceeded => vec![Happened::RateExceeded],
    }
}

/// A dropped packet, as an event.
pub(crate) fn of_packet(packet: &DeniedPacket, denial: PacketDenial) -> Happened {
    Happened::PacketDenied {
        protocol: packet.protocol,
        destination: packet.destination,
        port: packet.port,
        rule: denial.rule(),
        why: denial.to_string(),
    }
}

/// The first few differences, in words.
pub(crate) fn of_differences(differences: &[Difference]) -> Vec<String> {
    let named = differences.iter().take(MAX_NAMED_DIFFERENCES);
    let mut words: Vec<String> = named.map(|it| shortened(it.to_string())).collect();
    let more = differences.len().saturating_sub(MAX_NAMED_DIFFERENCES);
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    words
}

fn shortened(text: String) -> String {
    if text.len() <= MAX_EGRESS_NOTE_CHARACTERS {
        text
    } else {
        text.chars().take(MAX_EGRESS_NOTE_CHARACTERS).collect()
    }
}
