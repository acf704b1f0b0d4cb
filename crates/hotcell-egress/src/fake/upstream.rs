//! Resolvers that know what a test told them.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use hickory_proto::{
    op::ResponseCode,
    rr::{Name, RData, Record, RecordType},
};

use super::lock;
use crate::dns::upstream::{Upstream, UpstreamAnswer, UpstreamError};

/// How long its answers may be kept, in seconds.
const TTL_SECONDS: u32 = 60;

#[derive(Default)]
struct State {
    names: BTreeMap<String, Vec<IpAddr>>,
    asked: Vec<String>,
    /// Names at which it panics, and whether it lets others run first.
    falls: BTreeMap<String, bool>,
}

/// The resolvers. Clones share what they know.
#[derive(Clone, Default)]
pub struct FakeUpstream(Arc<Mutex<State>>);

impl FakeUpstream {
    /// This name has these addresses from now on.
    pub fn set(&self, name: &str, addresses: &[IpAddr]) {
        lock(&self.0)
            .names
            .insert(name.to_owned(), addresses.to_vec());
    }

    /// Whoever asks for this name from now on panics: in the middle of its work, or after it `waits`.
    pub fn fall_over(&self, name: &str, waits: bool) {
        lock(&self.0).falls.insert(name.to_owned(), waits);
    }

    /// Every name that was asked for, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        lock(&self.0).asked.clone()
    }
}

#[async_trait]
impl Upstream for FakeUpstream {
    async fn lookup(&self, name: Name, kind: RecordType) -> Result<UpstreamAnswer, UpstreamError> {
        let text = name.to_lowercase().to_ascii();
        let text = text.trim_end_matches('.').to_owned();
        let falls = lock(&self.0).falls.get(&text).copied();
        if let Some(waits) = falls {
            if waits {
                tokio::task::yield_now().await;
            }
            panic!("told to");
        }
        let mut state = lock(&self.0);
        state.asked.push(text.clone());
        let Some(addresses) = state.names.get(&text) else {
            return Ok(UpstreamAnswer {
                code: ResponseCode::NXDomain,
                answers: Vec::new(),
                soa: None,
            });
        };
        let answers = addresses.iter().filter_map(|address| {
            let data = match (address, kind) {
                (IpAddr::V4(address), RecordType::A) => RData::A((*address).into()),
                (IpAddr::V6(address), RecordType::AAAA) => RData::AAAA((*address).into()),
                _ => return None,
            };
            Some(Record::from_rdata(name.clone(), TTL_SECONDS, data))
        });
        Ok(UpstreamAnswer {
            code: ResponseCode::NoError,
            answers: answers.collect(),
            soa: None,
        })
    }
}
