//! Answers in the form in which they are sent, so that a name that is asked for again costs little.
//!
//! ```text
//!  datagram ─► Asked::read ─► ReadyAnswers::find ─► all its addresses open, none due? ─► leave to ask? ─► sent
//!                  │                 │                          │                            │
//!                  └─────────────────┴────── anything else ─────┴────────────────────────────┴──► the long way
//! ```
//! They belong to one filter: what is in here was allowed and sifted for its sandbox, whose policy never
//! changes. One is used for as long as the records that it was made of live, and only while each address
//! is known to be open in the kernel and not due for renewal; else the question goes the long way, which
//! opens, renews, and makes the answer ready anew. Answers of which something was left out are never ready.
//!
//! Each answer out of here is counted, and told with the others of its name within a moment.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use hickory_proto::{
    rr::{Name, Record, RecordType},
    serialize::binary::{BinEncodable, BinEncoder},
};
use hotcell_policy::{DomainName, RuleIndex};
use hotcell_types::{
    UnixMillis,
    limits::{
        DNS_REPEATS_WINDOW_MS, MAX_DNS_TTL_SECONDS, MAX_READY_DNS_ANSWERS, MAX_READY_DNS_BYTES,
    },
};
use tokio::time::Instant;

use super::question::{Asked, HEADER_BYTES, KIND_AND_CLASS_BYTES, Key, OPT_BYTES};

const OPT_KIND: u8 = 41;
const IS_RESPONSE: u8 = 0x80;
const RECURSION_AVAILABLE: u8 = 0x80;
/// The two bits that make a pointer of a label's length.
const POINTER: u8 = 0xc0;

/// Who is answered, and why.
pub(super) struct About {
    pub(super) name: DomainName,
    pub(super) by: Option<RuleIndex>,
}

/// Answers of one name that were not told yet.
pub(super) struct Untold {
    pub(super) name: DomainName,
    pub(super) by: Option<RuleIndex>,
    pub(super) times: u32,
}

/// What must be open before an answer leaves.
#[derive(Default)]
pub(super) struct MustBeOpen {
    pub(super) addresses: Box<[IpAddr]>,
    /// For how long the answer says that they may be kept.
    pub(super) ttl_seconds: u32,
}

/// What follows the question. It points back into it by offsets that are the same whoever asks.
#[derive(Default)]
struct Body {
    bytes: Box<[u8]>,
    /// Where in it the times to live are.
    ttls: Box<[u16]>,
}

/// One answer.
pub(super) struct Ready {
    about: About,
    must_be_open: MustBeOpen,
    made_at: UnixMillis,
    /// The shortest time to live in it.
    lives_seconds: u32,
    body: Body,
    records: u16,
    untold: u32,
    /// Whether answers like this are told at all.
    is_told: bool,
}

impl Ready {
    /// The answer with these records, unless it is too long, or its records must not be kept.
    pub(super) fn of_records(
        about: About,
        must_be_open: MustBeOpen,
        made_at: UnixMillis,
        asked: &Name,
        records: &[Record],
        lives_seconds: u32,
    ) -> Option<Self> {
        if lives_seconds == 0 || records.is_empty() {
            return None;
        }
        let body = body(asked, records)?;
        Some(Self {
            about,
            must_be_open,
            made_at,
            lives_seconds,
            body,
            records: u16::try_from(records.len()).ok()?,
            untold: 0,
            is_told: true,
        })
    }

    /// The answer that there is nothing of this kind here, whatever the name has elsewhere.
    pub(super) fn empty(about: About, made_at: UnixMillis) -> Self {
        Self {
            about,
            must_be_open: MustBeOpen::default(),
            made_at,
            lives_seconds: MAX_DNS_TTL_SECONDS,
            body: Body::default(),
            records: 0,
            untold: 0,
            is_told: false,
        }
    }

    /// The rule that allowed it.
    pub(super) const fn by(&self) -> Option<RuleIndex> {
        self.about.by
    }

    /// What must be open, with the time that an answer at `now` grants it, in milliseconds.
    pub(super) fn must_be_open(&self, now: UnixMillis) -> (&[IpAddr], u64) {
        let left = self
            .must_be_open
            .ttl_seconds
            .saturating_sub(self.age_seconds(now));
        (&self.must_be_open.addresses, u64::from(left) * 1_000)
    }

    /// Whether the client takes an answer of this length.
    pub(super) fn fits(&self, asked: &Asked<'_>) -> bool {
        let extension = asked.extended_bytes().map_or(0, |_| OPT_BYTES);
        asked.question_end() + self.body.bytes.len() + extension <= asked.largest_answer().into()
    }

    fn age_seconds(&self, now: UnixMillis) -> u32 {
        u32::try_from(now.millis_since(self.made_at) / 1_000).unwrap_or(u32::MAX)
    }

    fn is_alive(&self, now: UnixMillis) -> bool {
        self.age_seconds(now) < self.lives_seconds
    }

    /// It is sent once more. Returns whether that is to be told.
    pub(super) const fn count(&mut self) -> bool {
        if self.is_told {
            self.untold = self.untold.saturating_add(1);
        }
        self.is_told
    }

    /// Writes the whole message behind what is in `out`.
    pub(super) fn write(&self, asked: &Asked<'_>, now: UnixMillis, out: &mut Vec<u8>) {
        let [id_high, id_low, first, second] = asked.head();
        let [high, low] = self.records.to_be_bytes();
        let extended = asked.extended_bytes();
        out.extend([id_high, id_low]);
        out.extend([IS_RESPONSE | first, RECURSION_AVAILABLE | second]);
        out.extend([0, 1, high, low, 0, 0, 0, u8::from(extended.is_some())]);
        out.extend(asked.question());
        let start = out.len();
        out.extend(&self.body.bytes);
        let age = self.age_seconds(now);
        if age > 0 {
            for at in &self.body.ttls {
                let at = start + usize::from(*at);
                if let Some(ttl) = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<4>) {
                    *ttl = u32::from_be_bytes(*ttl).saturating_sub(age).to_be_bytes();
                }
            }
        }
        if let Some(largest) = extended {
            let [high, low] = largest.to_be_bytes();
            out.extend([0, 0, OPT_KIND, high, low, 0, 0, 0, 0, 0, 0]);
        }
    }
}

/// The records as they follow a question for this name, and where their times to live are.
fn body(asked: &Name, records: &[Record]) -> Option<Body> {
    let mut bytes = Vec::with_capacity(MAX_READY_DNS_BYTES);
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.emit_vec(&[0; HEADER_BYTES]).ok()?;
    asked.emit(&mut encoder).ok()?;
    encoder.emit_vec(&[0; KIND_AND_CLASS_BYTES]).ok()?;
    let start = encoder.offset();
    let mut starts = Vec::with_capacity(records.len());
    for record in records {
        starts.push(encoder.offset());
        record.emit(&mut encoder).ok()?;
        if encoder.offset() - start > MAX_READY_DNS_BYTES {
            return None;
        }
    }
    let ttls: Option<Box<[u16]>> = starts
        .into_iter()
        .map(|at| u16::try_from(after_name(&bytes, at)? + KIND_AND_CLASS_BYTES - start).ok())
        .collect();
    Some(Body {
        bytes: bytes.get(start..)?.into(),
        ttls: ttls?,
    })
}

/// Where a name that begins here ends.
fn after_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            length if length & POINTER == POINTER => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

/// The answers of one filter, in two halves: one is filled; when it is full, it takes the place of the other,
/// whose answers are let go. One that is used moves to the half that is being filled.
#[derive(Default)]
pub(super) struct ReadyAnswers {
    filling: HashMap<Box<[u8]>, Ready>,
    older: HashMap<Box<[u8]>, Ready>,
    /// Of answers that were let go.
    owed: Vec<Untold>,
    tells_at: Option<Instant>,
}

impl ReadyAnswers {
    /// The answer to a question, if there is one that is still alive.
    pub(super) fn find(&mut self, key: &[u8], now: UnixMillis) -> Option<&mut Ready> {
        if !self.filling.contains_key(key) {
            let (key, ready) = self.older.remove_entry(key)?;
            self.put(key, ready);
        }
        let ready = self.filling.get_mut(key)?;
        ready.is_alive(now).then_some(ready)
    }

    /// An answer for this question is ready.
    pub(super) fn keep(&mut self, key: Key, ready: Ready) {
        if let Some(old) = self.older.remove(key.as_ref()) {
            self.let_go(old);
        }
        self.put(key.into(), ready);
    }

    fn put(&mut self, key: Box<[u8]>, ready: Ready) {
        if self.filling.len() >= MAX_READY_DNS_ANSWERS / 2 {
            let full = std::mem::take(&mut self.filling);
            let gone = std::mem::replace(&mut self.older, full);
            for old in gone.into_values() {
                self.let_go(old);
            }
        }
        if let Some(old) = self.filling.insert(key, ready) {
            self.let_go(old);
        }
    }

    fn let_go(&mut self, old: Ready) {
        if old.untold > 0 {
            self.owed.push(Untold {
                name: old.about.name,
                by: old.about.by,
                times: old.untold,
            });
        }
    }

    /// When what was counted is to be told, if anything was.
    pub(super) const fn tells_at(&self) -> Option<Instant> {
        self.tells_at
    }

    /// Something was counted.
    pub(super) fn counted(&mut self, now: Instant) {
        if self.tells_at.is_none() {
            self.tells_at = Some(now + Duration::from_millis(DNS_REPEATS_WINDOW_MS));
        }
    }

    /// What is to be told; afterwards nothing is.
    pub(super) fn take_untold(&mut self) -> Vec<Untold> {
        self.tells_at = None;
        let mut untold = std::mem::take(&mut self.owed);
        for ready in self.filling.values_mut().chain(self.older.values_mut()) {
            if ready.untold > 0 {
                untold.push(Untold {
                    name: ready.about.name.clone(),
                    by: ready.about.by,
                    times: std::mem::take(&mut ready.untold),
                });
            }
        }
        untold
    }
}

/// What a question for this name and kind is found by.
pub(super) fn key_of(name: &Name, kind: RecordType) -> Option<Key> {
    Key::new(name.iter(), kind.into())
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::{Message, Query},
        rr::{RData, rdata::A},
    };

    use super::*;

    const THEN: UnixMillis = UnixMillis(5_000);

    fn fqdn(text: &str) -> Name {
        let mut name = Name::from_ascii(text).unwrap();
        name.set_fqdn(true);
        name
    }

    fn ready(name: &str, ttls: &[u32]) -> Option<Ready> {
        let records: Vec<Record> = (1..)
            .zip(ttls)
            .map(|(n, ttl)| Record::from_rdata(fqdn(name), *ttl, RData::A(A::new(203, 0, 113, n))))
            .collect();
        let about = About {
            name: DomainName::from_question(name).unwrap(),
            by: Some(RuleIndex(3)),
        };
        let must_be_open = MustBeOpen {
            addresses: Box::new([[203, 0, 113, 1].into()]),
            ttl_seconds: ttls.iter().copied().max().unwrap_or_default(),
        };
        let lives = ttls.iter().copied().min().unwrap_or_default();
        Ready::of_records(about, must_be_open, THEN, &fqdn(name), &records, lives)
    }

    fn keep(answers: &mut ReadyAnswers, name: &str) {
        let key = key_of(&fqdn(name), RecordType::A).unwrap();
        answers.keep(key, ready(name, &[60]).unwrap());
    }

    fn find<'a>(answers: &'a mut ReadyAnswers, name: &str) -> Option<&'a mut Ready> {
        let key = key_of(&fqdn(name), RecordType::A).unwrap();
        answers.find(key.as_ref(), THEN)
    }

    #[test]
    fn times_to_live_run_down_and_then_it_is_no_answer_any_more() {
        let key = key_of(&fqdn("a.example.org"), RecordType::A).unwrap();
        let mut answers = ReadyAnswers::default();
        answers.keep(key, ready("a.example.org", &[3_600, 90]).unwrap());
        let mut message = Message::query();
        message.add_query(Query::query(fqdn("A.example.org"), RecordType::A));
        let bytes = message.to_vec().unwrap();
        let asked = Asked::read(&bytes).unwrap();
        for (seconds, expected) in [(0, [3_600, 90]), (1, [3_599, 89]), (89, [3_511, 1])] {
            let now = THEN.plus_millis(seconds * 1_000 + 999);
            let found = answers.find(asked.key().as_ref(), now).unwrap();
            let left_ms = u64::from(expected[0]) * 1_000;
            assert_eq!(found.must_be_open(now).1, left_ms);
            let mut out = Vec::new();
            found.write(&asked, now, &mut out);
            let answer = Message::from_vec(&out).unwrap();
            let ttls: Vec<u32> = answer.answers.iter().map(|record| record.ttl).collect();
            assert_eq!(ttls, expected);
            assert!(
                out.len() <= 12 + asked.question().len() + 2 * 16,
                "by a pointer"
            );
            assert_eq!(answer.answers[0].name.to_string(), "A.example.org.");
        }
        let over = THEN.plus_millis(90_000);
        assert!(answers.find(asked.key().as_ref(), over).is_none());
    }

    #[test]
    fn what_must_not_be_kept_or_is_too_long_is_not() {
        assert!(ready("a.example.org", &[60, 0]).is_none());
        assert!(ready("a.example.org", &[]).is_none());
        let most = MAX_READY_DNS_BYTES / 16;
        assert!(ready("a.example.org", &vec![60; most]).is_some());
        assert!(ready("a.example.org", &vec![60; most + 1]).is_none());
    }

    #[test]
    fn there_is_room_for_so_many_and_nothing_counted_is_lost() {
        let mut answers = ReadyAnswers::default();
        let now = Instant::now();
        let mut sent = 0;
        for number in 0..3 * MAX_READY_DNS_ANSWERS {
            keep(&mut answers, &format!("n{number}.example.org"));
            // The first is used all the time, and stays.
            for name in ["n0.example.org", &format!("n{number}.example.org")] {
                assert!(find(&mut answers, name).unwrap().count());
                answers.counted(now);
                sent += 1;
            }
            assert!(answers.filling.len() + answers.older.len() <= MAX_READY_DNS_ANSWERS);
        }
        assert!(find(&mut answers, "n1.example.org").is_none());
        assert!(answers.tells_at() > Some(now));
        let told: u32 = answers.take_untold().iter().map(|it| it.times).sum();
        assert_eq!(told, sent);
        assert!(answers.take_untold().is_empty() && answers.tells_at().is_none());
        // One that takes another's place tells of it, too.
        keep(&mut answers, "n0.example.org");
        assert!(find(&mut answers, "n0.example.org").unwrap().count());
        keep(&mut answers, "n0.example.org");
        assert_eq!(answers.take_untold().len(), 1);
    }
}
