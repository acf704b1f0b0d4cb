//! What a filter answers out of what is [`ready`](super::ready), and what it keeps there.

use std::sync::{MutexGuard, PoisonError};

use hickory_proto::rr::{Name, Record, RecordType};
use hotcell_policy::DomainName;
use hotcell_types::UnixMillis;
use tokio::time::Instant;

use super::{
    DnsFilter, FilterEvent, Shared,
    question::Asked,
    ready::{About, MustBeOpen, Ready, ReadyAnswers, key_of},
    upstream::UpstreamAnswer,
};
use crate::filter::{Permit, Sifted};

impl DnsFilter {
    /// Writes the answer to this datagram behind what is in `out`, if one is ready: nothing has to be
    /// looked up, opened or renewed for it, and the sandbox has leave to ask.
    pub(super) fn answer_at_once(&self, asked: &[u8], now: Instant, out: &mut Vec<u8>) -> bool {
        let Some(asked) = Asked::read(asked) else {
            return false;
        };
        let at = self.at(now);
        let mut answers = self.0.ready();
        let Some(ready) = answers.find(asked.key().as_ref(), at) else {
            return false;
        };
        let (addresses, ttl_ms) = ready.must_be_open(at);
        let goes = ready.fits(&asked)
            && (addresses.is_empty() || self.filter().holds(at, ready.by(), ttl_ms, addresses))
            && self.may_ask(now);
        if goes {
            ready.write(&asked, at, out);
            if ready.count() {
                answers.counted(now);
            }
        }
        goes
    }

    /// When what was answered at once is to be told, if anything was.
    pub(super) fn tells_at(&self) -> Option<Instant> {
        self.0.ready().tells_at()
    }

    /// Tells what was answered at once.
    pub(super) fn tell(&self) {
        self.0.tell();
    }

    /// Keeps what a question is answered with.
    #[allow(
        clippy::too_many_arguments,
        reason = "the two halves of one question and one answer"
    )]
    pub(super) fn keep(
        &self,
        name: &Name,
        kind: RecordType,
        permit: &Permit,
        then: UnixMillis,
        answer: &UpstreamAnswer,
        sifted: &Sifted,
        shown: &[Record],
    ) {
        // What was left out counts, too: the whole answer is asked for anew when any of it is old.
        let lives_seconds = answer.answers.iter().map(|record| record.ttl).min();
        let about = About {
            name: permit.name().clone(),
            by: permit.by(),
        };
        let must_be_open = MustBeOpen {
            addresses: sifted.learned.as_slice().into(),
            ttl_seconds: sifted.learned_ttl_seconds,
        };
        let lives_seconds = lives_seconds.unwrap_or_default();
        let ready = Ready::of_records(about, must_be_open, then, name, shown, lives_seconds);
        if let (Some(key), Some(ready)) = (key_of(name, kind), ready) {
            self.0.ready().keep(key, ready);
        }
    }

    /// Keeps that there is nothing of this kind for this name.
    pub(super) fn keep_empty(&self, name: &Name, kind: RecordType, named: DomainName) {
        let about = About {
            name: named,
            by: None,
        };
        if let Some(key) = key_of(name, kind) {
            self.0.ready().keep(key, Ready::empty(about, self.now()));
        }
    }
}

impl Shared {
    fn ready(&self) -> MutexGuard<'_, ReadyAnswers> {
        // Nothing in there panics halfway through a change.
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        let untold = self.ready().take_untold();
        for untold in untold {
            self.events.record(FilterEvent::NameAllowedAgain {
                name: untold.name,
                by: untold.by,
                times: untold.times,
            });
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.tell();
    }
}
