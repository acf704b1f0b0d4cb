//! What is answered.

use hickory_proto::{
    op::{Edns, Metadata, ResponseCode},
    rr::{
        RData, Record,
        rdata::{HTTPS, SVCB, opt::EdnsOption, svcb::SvcParamKey},
    },
};
use hotcell_types::limits::{MAX_DNS_TTL_SECONDS, MAX_DNS_UDP_BYTES};

/// The option of extended errors (RFC 8914).
const EXTENDED_ERROR: u16 = 15;
/// What a client takes that does not say how much it takes, and no client takes less.
pub(super) const LEAST_UDP_BYTES: u16 = 512;

/// An extended error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extended {
    /// Its number in RFC 8914.
    pub code: u16,
    /// In words.
    pub text: &'static str,
}

const BLOCKED: Extended = Extended {
    code: 15,
    text: "blocked by network policy",
};
const UNREACHABLE: Extended = Extended {
    code: 22,
    text: "no upstream resolver answered",
};

/// An answer, before it is put into a message.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The outcome.
    pub code: ResponseCode,
    /// The records.
    pub answers: Vec<Record>,
    /// The zone's, for an answer without records.
    pub soa: Option<Record>,
    /// More about a failure, for clients that understand it.
    pub extended: Option<Extended>,
}

impl Reply {
    /// Nothing but an outcome.
    #[must_use]
    pub const fn of(code: ResponseCode) -> Self {
        Self {
            code,
            answers: Vec::new(),
            soa: None,
            extended: None,
        }
    }

    /// A denied name: there is no such name here.
    #[must_use]
    pub fn blocked() -> Self {
        Self {
            extended: Some(BLOCKED),
            ..Self::of(ResponseCode::NXDomain)
        }
    }

    /// Nobody answered.
    #[must_use]
    pub fn unreachable() -> Self {
        Self {
            extended: Some(UNREACHABLE),
            ..Self::of(ResponseCode::ServFail)
        }
    }

    /// The header of the message.
    pub(crate) fn metadata(&self, asked: &Metadata) -> Metadata {
        let mut metadata = Metadata::response_from_request(asked);
        metadata.response_code = self.code;
        metadata.recursion_available = true;
        metadata.authoritative = false;
        metadata
    }

    /// The extension part of the message, for a client that sent one.
    pub(crate) fn edns(&self, asked: &Edns) -> Edns {
        let mut edns = Edns::new();
        let largest = asked
            .max_payload()
            .clamp(LEAST_UDP_BYTES, MAX_DNS_UDP_BYTES);
        edns.set_max_payload(largest);
        // The header has four bits of the outcome; the rest of it goes here.
        edns.set_rcode_high(self.code.high());
        if let Some(Extended { code, text }) = self.extended {
            let mut data = code.to_be_bytes().to_vec();
            data.extend_from_slice(text.as_bytes());
            edns.options_mut()
                .insert(EdnsOption::Unknown(EXTENDED_ERROR, data));
        }
        edns
    }
}

/// A record as it is passed on: its time to live in bounds, and address hints taken out of service
/// bindings. A client that is not given them asks for the addresses, and that the filter sees.
pub(crate) fn fit(record: &Record) -> Record {
    let mut record = record.clone();
    record.ttl = record.ttl.min(MAX_DNS_TTL_SECONDS);
    record.data = match record.data {
        RData::HTTPS(https) => RData::HTTPS(HTTPS(without_hints(https.0))),
        RData::SVCB(svcb) => RData::SVCB(without_hints(svcb)),
        other => other,
    };
    record
}

fn without_hints(svcb: SVCB) -> SVCB {
    let hint = |key: &SvcParamKey| matches!(key, SvcParamKey::Ipv4Hint | SvcParamKey::Ipv6Hint);
    let parameters = svcb
        .svc_params
        .into_iter()
        .filter(|(key, _)| !hint(key))
        .collect();
    SVCB::new(svcb.svc_priority, svcb.target_name, parameters)
}
