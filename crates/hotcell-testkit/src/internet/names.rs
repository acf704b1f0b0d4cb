//! What names stand for, by script, and who asked for them.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hickory_proto::{
    op::{Edns, Message, MessageType, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME},
    },
};

/// The longest answer in a datagram for who says nothing.
const PLAIN_UDP_BYTES: u16 = 512;
/// Aliases that the resolver follows.
const MAX_ALIASES: usize = 32;

/// What is answered for one name.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The records by kind; of each question the next list, and the last one from then on.
    records: BTreeMap<RecordType, Vec<Vec<RData>>>,
    /// How long they may be kept.
    ttl_seconds: u32,
    /// Whether asking for it fails.
    fails: bool,
    /// How long the resolver takes.
    delay: Duration,
    /// Whether an alias is answered without what it leads to.
    split: bool,
    /// Records of other names in the same answer, asked for or not.
    beside: Vec<(Name, RData)>,
    /// The same in the section of additional records.
    additional: Vec<(Name, RData)>,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            records: BTreeMap::new(),
            ttl_seconds: 60,
            fails: false,
            delay: Duration::ZERO,
            split: false,
            beside: Vec::new(),
            additional: Vec::new(),
        }
    }
}

impl Answer {
    /// These addresses, of either family.
    #[must_use]
    pub fn addresses(addresses: &[IpAddr]) -> Self {
        Self::default().then(addresses)
    }

    /// Another name.
    #[must_use]
    pub fn alias(target: &str) -> Self {
        let mut answer = Self::default();
        answer.records.insert(
            RecordType::CNAME,
            vec![vec![RData::CNAME(CNAME(fqdn(target)))]],
        );
        answer
    }

    /// Asking for it fails.
    #[must_use]
    pub fn failure() -> Self {
        Self {
            fails: true,
            ..Self::default()
        }
    }

    /// Records of another kind.
    #[must_use]
    pub fn with(mut self, kind: RecordType, records: Vec<RData>) -> Self {
        self.records.insert(kind, vec![records]);
        self
    }

    /// The next question is answered with these instead, and so on. Meaningful with a time to live of 0.
    #[must_use]
    pub fn then(mut self, addresses: &[IpAddr]) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for address in addresses {
            match address {
                IpAddr::V4(address) => v4.push(RData::A(A(*address))),
                IpAddr::V6(address) => v6.push(RData::AAAA(AAAA(*address))),
            }
        }
        for (kind, records) in [(RecordType::A, v4), (RecordType::AAAA, v6)] {
            if !records.is_empty() {
                self.records.entry(kind).or_default().push(records);
            }
        }
        self
    }

    /// How long the answer may be kept.
    #[must_use]
    pub const fn ttl_seconds(mut self, seconds: u32) -> Self {
        self.ttl_seconds = seconds;
        self
    }

    /// The resolver takes this long.
    #[must_use]
    pub const fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// An alias is answered alone: whoever asks has to ask for what it leads to.
    #[must_use]
    pub const fn split(mut self) -> Self {
        self.split = true;
        self
    }

    /// A record of another name comes along in the answer, as from a server that lies.
    #[must_use]
    pub fn beside(mut self, owner: &str, data: RData) -> Self {
        self.beside.push((fqdn(owner), data));
        self
    }

    /// The same among the additional records.
    #[must_use]
    pub fn additionally(mut self, owner: &str, data: RData) -> Self {
        self.additional.push((fqdn(owner), data));
        self
    }
}

/// The names of the world. Cheap to clone; all clones are one.
#[derive(Debug, Clone, Default)]
pub struct Names(Arc<Mutex<Script>>);

#[derive(Debug, Default)]
struct Script {
    answers: BTreeMap<String, Answer>,
    asked: Vec<(String, RecordType)>,
}

impl Names {
    /// From now on the name stands for this.
    pub fn set(&self, name: &str, answer: Answer) {
        self.script().answers.insert(plain(name), answer);
    }

    /// From now on the name stands for these addresses.
    ///
    /// # Panics
    /// When one is none.
    pub fn address(&self, name: &str, addresses: &[&str]) {
        let parse = |text: &&str| {
            text.parse()
                .unwrap_or_else(|error| panic!("{text}: {error}"))
        };
        let addresses: Vec<IpAddr> = addresses.iter().map(parse).collect();
        self.set(name, Answer::addresses(&addresses));
    }

    /// Everything that was asked for, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<(String, RecordType)> {
        self.script().asked.clone()
    }

    /// How many questions for this name came.
    #[must_use]
    pub fn asked_for(&self, name: &str) -> usize {
        let name = plain(name);
        self.script()
            .asked
            .iter()
            .filter(|(of, _)| *of == name)
            .count()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a message, and when to send it; nothing to what is no question.
    pub(super) fn reply(&self, question: &[u8], stream: bool) -> Option<(Vec<u8>, Duration)> {
        let question = Message::from_vec(question).ok()?;
        if question.metadata.message_type != MessageType::Query {
            return None;
        }
        let query = question.queries.first()?.clone();
        let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
        reply.metadata.recursion_desired = question.metadata.recursion_desired;
        reply.metadata.recursion_available = true;
        let (code, records, delay) = self.look_up(query.name(), query.query_type());
        reply.metadata.response_code = code;
        reply.add_query(query);
        let mut longest = PLAIN_UDP_BYTES;
        if let Some(asked) = &question.edns {
            longest = asked.max_payload().max(PLAIN_UDP_BYTES);
            let mut edns = Edns::new();
            edns.set_max_payload(longest);
            reply.set_edns(edns);
        }
        let empty = reply.clone();
        let (beside, additional) = self.extras(reply.queries[0].name());
        reply.insert_answers(records.into_iter().chain(beside).collect());
        reply.insert_additionals(additional);
        let bytes = reply.to_vec().ok()?;
        if stream || bytes.len() <= usize::from(longest) {
            return Some((bytes, delay));
        }
        let mut cut = empty;
        cut.metadata.truncation = true;
        Some((cut.to_vec().ok()?, delay))
    }

    /// What comes along with a name's answer.
    fn extras(&self, name: &Name) -> (Vec<Record>, Vec<Record>) {
        let script = self.script();
        let Some(answer) = script.answers.get(&plain(&name.to_ascii())) else {
            return (Vec::new(), Vec::new());
        };
        let records = |pairs: &[(Name, RData)]| {
            let record = |(owner, data): &(Name, RData)| {
                Record::from_rdata(owner.clone(), answer.ttl_seconds, data.clone())
            };
            pairs.iter().map(record).collect()
        };
        (records(&answer.beside), records(&answer.additional))
    }

    fn look_up(&self, name: &Name, kind: RecordType) -> (ResponseCode, Vec<Record>, Duration) {
        let mut script = self.script();
        let asked = plain(&name.to_ascii());
        script.asked.push((asked.clone(), kind));
        let (mut at, mut records, mut delay) = (asked, Vec::new(), Duration::ZERO);
        for _ in 0..MAX_ALIASES {
            let Some(answer) = script.answers.get_mut(&at) else {
                let code = if records.is_empty() {
                    ResponseCode::NXDomain
                } else {
                    ResponseCode::NoError
                };
                return (code, records, delay);
            };
            delay = delay.max(answer.delay);
            if answer.fails {
                return (ResponseCode::ServFail, Vec::new(), delay);
            }
            let ttl = answer.ttl_seconds;
            let owner = fqdn(&at);
            let mut found = next(answer, kind);
            let alias = if found.is_empty() {
                next(answer, RecordType::CNAME)
            } else {
                Vec::new()
            };
            let onward = match alias.first() {
                Some(RData::CNAME(target)) if !answer.split => Some(plain(&target.0.to_ascii())),
                _ => None,
            };
            found.extend(alias);
            let to_record = |data| Record::from_rdata(owner.clone(), ttl, data);
            records.extend(found.into_iter().map(to_record));
            match onward {
                Some(target) => at = target,
                None => break,
            }
        }
        (ResponseCode::NoError, records, delay)
    }
}

fn next(answer: &mut Answer, kind: RecordType) -> Vec<RData> {
    match answer.records.get_mut(&kind) {
        None => Vec::new(),
        Some(lists) if lists.len() > 1 => lists.remove(0),
        Some(lists) => lists.first().cloned().unwrap_or_default(),
    }
}

fn plain(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn fqdn(name: &str) -> Name {
    let mut name = Name::from_ascii(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    name.set_fqdn(true);
    name
}
