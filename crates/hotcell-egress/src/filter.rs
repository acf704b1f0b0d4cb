//! The filter of one sandbox, without sockets: what to do with a question, and with its answer.

use std::{collections::HashSet, net::IpAddr};

use hotcell_policy::{
    Action, AddressPlan, DomainName, FilterMode, NameError, Opening, Policy, RuleIndex,
    Surroundings, Why,
};
use hotcell_types::{
    UnixMillis,
    limits::{MAX_ALIAS_CHAIN, MAX_ANSWER_RECORDS},
};

use crate::{
    blocklist::BlockList,
    learned::{Changes, LearnedLimits, LearnedTable},
};

/// What a question asks for, as far as the filter cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuestionKind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// A service binding (HTTPS, SVCB): may carry addresses as hints.
    Service,
    /// Everything at once, a zone transfer, or something else that is never answered.
    Refused,
    /// Anything else.
    Other,
}

/// Why a name is not looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Denial {
    /// The policy says so.
    Policy(Why),
    /// It is a well-known encrypted resolver.
    EncryptedResolver,
    /// It is no name that exists in public.
    NoName,
}

/// What happens to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ruling {
    /// NXDOMAIN with "blocked", at once; nobody else hears of it.
    Deny(Denial),
    /// No error and no answer: the name may exist, and has nothing of this kind here.
    Empty,
    /// Refused: no such question is answered for anybody.
    Refuse,
    /// It may be answered from the cache or asked upstream; the rule that allowed it goes with it.
    Ask(Permit),
}

/// The leave to answer one question. Made by [`SandboxFilter::rule_on`] only: an answer cannot be taken in without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    name: DomainName,
    by: Option<RuleIndex>,
}

impl Permit {
    /// The name that may be asked for.
    #[must_use]
    pub const fn name(&self) -> &DomainName {
        &self.name
    }

    /// The rule that allowed it; none when the default did.
    #[must_use]
    pub const fn by(&self) -> Option<RuleIndex> {
        self.by
    }
}

/// A record of an answer, as far as the filter cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerData {
    /// An address.
    Address(IpAddr),
    /// The owner is another name for this one.
    Alias(DomainName),
    /// Anything else.
    Other,
}

/// One record of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerRecord {
    /// Whose record it is; `None` when that is no name in canonical form.
    pub owner: Option<DomainName>,
    /// What it says.
    pub data: AnswerData,
    /// How long it may be kept, in seconds.
    pub ttl_seconds: u32,
}

/// Why an address is taken out of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hidden {
    /// It is inside, or an earlier address rule denies it.
    Policy(Why),
    /// It is a well-known encrypted resolver's.
    EncryptedResolver,
}

/// What happens to an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sifted {
    /// Which records may be shown, by their place; everything else is left out.
    pub keep: Vec<usize>,
    /// Addresses that were taken out, with the reason.
    pub stripped: Vec<(IpAddr, Hidden)>,
    /// Addresses among those shown that must be open because of this answer.
    pub learned: Vec<IpAddr>,
    /// The longest that a record of one of them may be kept, in seconds.
    pub learned_ttl_seconds: u32,
    /// What the packet filter must have done before the answer leaves.
    pub changes: Changes,
}

/// The settings of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterSettings {
    /// How much is enforced.
    pub mode: FilterMode,
    /// Whether the sandbox has IPv6 at all.
    pub ipv6: bool,
    /// Whether well-known encrypted resolvers are blocked where that is needed.
    pub block_encrypted_dns: bool,
    /// How long learned addresses stay, and how many.
    pub learned: LearnedLimits,
}

impl Default for FilterSettings {
    fn default() -> Self {
        Self {
            mode: FilterMode::DnsNft,
            ipv6: false,
            block_encrypted_dns: true,
            learned: LearnedLimits::default(),
        }
    }
}

/// The filter of one sandbox. What it learns is its own.
#[derive(Debug, Clone)]
pub struct SandboxFilter {
    policy: Policy,
    plan: AddressPlan,
    blocked: BlockList,
    settings: FilterSettings,
    learned: LearnedTable,
}

impl SandboxFilter {
    /// The filter for a policy; no policy means no restriction but what is never reachable.
    #[must_use]
    pub fn new(policy: Option<Policy>, around: &Surroundings, settings: FilterSettings) -> Self {
        let policy = policy.unwrap_or_else(Policy::unrestricted);
        let plan = AddressPlan::new(&policy, settings.mode, around);
        let blocked = BlockList::for_policy(&policy, settings.block_encrypted_dns);
        Self {
            policy,
            plan,
            blocked,
            settings,
            learned: LearnedTable::new(settings.learned),
        }
    }

    /// After a restart: takes over what the kernel still has open.
    pub fn adopt(
        &mut self,
        now: UnixMillis,
        remaining_ms: impl IntoIterator<Item = (IpAddr, u64)>,
    ) {
        self.learned = LearnedTable::adopted(self.settings.learned, now, remaining_ms);
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What the policy says about addresses.
    #[must_use]
    pub const fn plan(&self) -> &AddressPlan {
        &self.plan
    }

    /// Addresses of encrypted resolvers to block.
    #[must_use]
    pub fn blocked_addresses(&self) -> &[IpAddr] {
        self.blocked.addresses()
    }

    /// What was learned.
    #[must_use]
    pub const fn learned(&self) -> &LearnedTable {
        &self.learned
    }

    /// The packet filter has done what an answer taken in at `then` asked for.
    pub fn confirm(&mut self, then: UnixMillis, changes: &Changes) {
        self.learned.confirm(then, changes);
    }

    /// The packet filter may have lost what it had.
    pub fn doubt(&mut self) {
        self.learned.doubt();
    }

    /// Whether another answer with these addresses, that a rule allowed before, needs nothing of the packet filter.
    pub fn holds(
        &mut self,
        now: UnixMillis,
        by: Option<RuleIndex>,
        ttl_ms: u64,
        addresses: &[IpAddr],
    ) -> bool {
        self.learned.holds(now, by, ttl_ms, addresses)
    }

    /// Rules on a question. `name` is what [`DomainName::from_labels`] made of it.
    #[must_use]
    pub fn rule_on(&self, name: Result<DomainName, NameError>, kind: QuestionKind) -> Ruling {
        let Ok(name) = name else {
            return Ruling::Deny(Denial::NoName);
        };
        let verdict = self.policy.name_verdict(&name);
        if verdict.action == Action::Deny {
            return Ruling::Deny(Denial::Policy(verdict.why));
        }
        let by = match verdict.why {
            Why::Rule(index) => Some(index),
            _ => None,
        };
        if self.blocked.blocks(&name) {
            return Ruling::Deny(Denial::EncryptedResolver);
        }
        match kind {
            QuestionKind::Refused => Ruling::Refuse,
            QuestionKind::Aaaa if !self.settings.ipv6 => Ruling::Empty,
            _ => Ruling::Ask(Permit { name, by }),
        }
    }

    /// Whether an address may be shown in an answer to this question, or as a hint in one.
    ///
    /// # Errors
    /// With the reason when it may not.
    pub fn may_show(&self, permit: &Permit, address: IpAddr) -> Result<Opening, Hidden> {
        match self.plan.opening(address, permit.by) {
            Opening::Closed(why) => Err(Hidden::Policy(why)),
            _ if self.blocked.addresses().contains(&address) => Err(Hidden::EncryptedResolver),
            open => Ok(open),
        }
    }

    /// Takes in an answer: what of it may be shown, and what must be opened first. Only records on the
    /// chain of aliases from the question's name count; whatever else the answer holds is left out.
    pub fn take_in(
        &mut self,
        now: UnixMillis,
        permit: &Permit,
        records: &[AnswerRecord],
        connected: impl FnOnce() -> HashSet<IpAddr>,
    ) -> Sifted {
        let records = &records[..records.len().min(MAX_ANSWER_RECORDS)];
        let chain = chain_from(&permit.name, records);
        let mut sifted = Sifted::default();
        for (place, record) in records.iter().enumerate() {
            if !record
                .owner
                .as_ref()
                .is_some_and(|owner| chain.contains(&owner))
            {
                continue;
            }
            let AnswerData::Address(address) = record.data else {
                sifted.keep.push(place);
                continue;
            };
            if address.is_ipv6() && !self.settings.ipv6 {
                continue;
            }
            match self.may_show(permit, address) {
                Err(why) => sifted.stripped.push((address, why)),
                Ok(opening) => {
                    sifted.keep.push(place);
                    if opening == Opening::Learn {
                        sifted.learned.push(address);
                        sifted.learned_ttl_seconds =
                            sifted.learned_ttl_seconds.max(record.ttl_seconds);
                    }
                }
            }
        }
        if !sifted.learned.is_empty() {
            let ttl_ms = u64::from(sifted.learned_ttl_seconds) * 1_000;
            let addresses = &sifted.learned;
            sifted.changes = self
                .learned
                .learn(now, permit.by, ttl_ms, addresses, connected);
        }
        sifted
    }
}

/// The question's name and every name that it is an alias of, following the first alias of each name. Few:
/// looking through them costs less than hashing them would.
fn chain_from<'a>(name: &'a DomainName, records: &'a [AnswerRecord]) -> Vec<&'a DomainName> {
    let mut chain = vec![name];
    let mut at = name;
    for _ in 0..MAX_ALIAS_CHAIN {
        let next = records.iter().find_map(|record| match &record.data {
            AnswerData::Alias(target) if record.owner.as_ref() == Some(at) => Some(target),
            _ => None,
        });
        match next {
            Some(next) if !chain.contains(&next) => {
                chain.push(next);
                at = next;
            }
            _ => break,
        }
    }
    chain
}
