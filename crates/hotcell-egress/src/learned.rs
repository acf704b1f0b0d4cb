//! The addresses that one sandbox may reach because it looked up a name that it may look up.
//!
//! An entry lives at least for the longest of what its answers said, and never less than the grace,
//! counted from the last answer that held it. It is granted a quarter more than that, so that most
//! answers need no change of the packet filter: only one that finds less than the due time left does.
//! Whether the packet filter has done its part is remembered for each entry, so that two answers at
//! once cannot take each other's intention for the deed. At the ceiling the entry goes that was in an answer
//! longest ago, of those without an open connection: whoever was just told of an address finds it open. A new
//! answer is never refused. The table belongs to one sandbox: nothing in here can open anything for another.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use hotcell_policy::RuleIndex;
use hotcell_types::{
    UnixMillis,
    limits::{DEFAULT_LEARNED_GRACE_MS, MAX_LEARNED_ADDRESSES, MAX_LEARNED_MS},
};

/// What is granted beyond the due time: this part of it.
const SLACK_PART: u64 = 4;
/// Answers within this time count as one for the question which entry is the oldest.
const SHOWN_GRAIN_MS: u64 = 1_000;

/// How long addresses stay, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedLimits {
    /// The least time that an address stays after the last answer that held it.
    pub grace_ms: u64,
    /// How many there are at most.
    pub ceiling: usize,
}

impl Default for LearnedLimits {
    fn default() -> Self {
        Self {
            grace_ms: DEFAULT_LEARNED_GRACE_MS,
            ceiling: MAX_LEARNED_ADDRESSES,
        }
    }
}

impl LearnedLimits {
    /// How long an answer keeps its addresses open at least.
    fn due_ms(self, ttl_ms: u64) -> u64 {
        ttl_ms.max(self.grace_ms).min(MAX_LEARNED_MS)
    }
}

/// Why an address is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// The rule that allowed the name; none when the default did.
    pub by: Option<RuleIndex>,
    /// Until when it is meant to be open.
    pub until: UnixMillis,
    /// Until when the packet filter is known to have it open.
    pub confirmed_until: UnixMillis,
    /// When it was last in an answer.
    pub shown_at: UnixMillis,
}

impl Learned {
    /// Whether it is meant to be open until then, and the packet filter has done its part.
    fn is_kept_until(&self, due: UnixMillis) -> bool {
        self.until >= due && self.confirmed_until >= due
    }
}

/// What the packet filter must be told after an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Addresses to open or renew, with the time that each then has.
    pub open: Vec<(IpAddr, u64)>,
    /// Addresses to close, to make room.
    pub close: Vec<IpAddr>,
    /// How many had to go although they had an open connection, since all others had, too. Their
    /// connections go on; a new one needs a new lookup.
    pub evicted_in_use: usize,
}

/// The table of one sandbox.
#[derive(Debug, Clone, Default)]
pub struct LearnedTable {
    limits: LearnedLimits,
    entries: HashMap<IpAddr, Learned>,
    /// The same by when their time is up.
    by_end: BTreeSet<(UnixMillis, IpAddr)>,
    /// The same by when they were last in an answer.
    by_shown: BTreeSet<(UnixMillis, IpAddr)>,
}

impl LearnedTable {
    /// An empty table.
    #[must_use]
    pub fn new(limits: LearnedLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// A table of what the kernel still has, after a restart: with how long each address has left.
    #[must_use]
    pub fn adopted(
        limits: LearnedLimits,
        now: UnixMillis,
        remaining_ms: impl IntoIterator<Item = (IpAddr, u64)>,
    ) -> Self {
        let mut table = Self::new(limits);
        for (address, left_ms) in remaining_ms {
            let until = now.plus_millis(left_ms.min(MAX_LEARNED_MS));
            table.put(
                address,
                Learned {
                    by: None,
                    until,
                    confirmed_until: until,
                    shown_at: now,
                },
            );
        }
        table
    }

    /// How many addresses are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether so many more addresses need nobody to make room.
    #[must_use]
    pub fn has_room_for(&self, more: usize) -> bool {
        self.entries.len() + more <= self.limits.ceiling
    }

    /// Why an address is open, if it is.
    #[must_use]
    pub fn get(&self, address: IpAddr, now: UnixMillis) -> Option<Learned> {
        self.entries
            .get(&address)
            .copied()
            .filter(|learned| learned.until > now)
    }

    /// The addresses with the time that each has left: what a restored ruleset needs.
    pub fn remaining(&self, now: UnixMillis) -> impl Iterator<Item = (IpAddr, u64)> {
        self.entries
            .iter()
            .map(move |(address, learned)| (*address, learned.until.millis_since(now)))
            .filter(|(_, left_ms)| *left_ms > 0)
    }

    /// Takes in the addresses of one answer. Nothing here waits for the packet filter: the answer
    /// may leave only when what is returned has been done. `connected` says which addresses have an open
    /// connection; it is asked for only at the ceiling.
    pub fn learn(
        &mut self,
        now: UnixMillis,
        by: Option<RuleIndex>,
        ttl_ms: u64,
        addresses: &[IpAddr],
        connected: impl FnOnce() -> HashSet<IpAddr>,
    ) -> Changes {
        self.forget_expired(now);
        let for_ms = self.limits.due_ms(ttl_ms);
        let fresh: HashSet<IpAddr> = addresses
            .iter()
            .copied()
            .take(self.limits.ceiling)
            .collect();
        let added = fresh
            .iter()
            .filter(|address| !self.entries.contains_key(*address))
            .count();
        let too_many = (self.entries.len() + added).saturating_sub(self.limits.ceiling);
        let mut changes = Changes::default();
        if too_many > 0 {
            self.evict(too_many, &fresh, &connected(), &mut changes);
        }
        let due = now.plus_millis(for_ms);
        for address in fresh {
            let old = self.entries.get(&address).copied();
            if let Some(old) = old
                && old.is_kept_until(due)
            {
                let shown_at = now;
                self.put(
                    address,
                    Learned {
                        by,
                        shown_at,
                        ..old
                    },
                );
                continue;
            }
            // A longer promise of an earlier answer holds.
            let until = old
                .map_or(UnixMillis(0), |old| old.until)
                .max(due.plus_millis(for_ms / SLACK_PART));
            let confirmed_until = old.map_or(UnixMillis(0), |old| old.confirmed_until);
            self.put(
                address,
                Learned {
                    by,
                    until,
                    confirmed_until,
                    shown_at: now,
                },
            );
            changes.open.push((address, until.millis_since(now)));
        }
        changes.open.sort_unstable();
        changes
    }

    /// Whether another answer with these addresses needs nothing of the packet filter: what [`learn`](Self::learn)
    /// would find no change for. Like there, the last answer's rule is remembered.
    pub fn holds(
        &mut self,
        now: UnixMillis,
        by: Option<RuleIndex>,
        ttl_ms: u64,
        addresses: &[IpAddr],
    ) -> bool {
        let due = now.plus_millis(self.limits.due_ms(ttl_ms));
        addresses.iter().all(|address| {
            let Some(learned) = self.entries.get_mut(address) else {
                return false;
            };
            if !learned.is_kept_until(due) {
                return false;
            }
            learned.by = by;
            if now.millis_since(learned.shown_at) >= SHOWN_GRAIN_MS {
                self.by_shown.remove(&(learned.shown_at, *address));
                self.by_shown.insert((now, *address));
                learned.shown_at = now;
            }
            true
        })
    }

    /// The packet filter has done what `changes`, made at `then`, asked for.
    pub fn confirm(&mut self, then: UnixMillis, changes: &Changes) {
        for (address, for_ms) in &changes.open {
            if let Some(learned) = self.entries.get_mut(address) {
                let until = then.plus_millis(*for_ms);
                learned.confirmed_until = learned.confirmed_until.max(until);
            }
        }
    }

    /// The packet filter may have lost everything: the next answer opens its addresses again.
    pub fn doubt(&mut self) {
        for learned in self.entries.values_mut() {
            learned.confirmed_until = UnixMillis(0);
        }
    }

    fn put(&mut self, address: IpAddr, learned: Learned) {
        if let Some(old) = self.entries.insert(address, learned) {
            self.unlist(address, old);
        }
        self.by_end.insert((learned.until, address));
        self.by_shown.insert((learned.shown_at, address));
    }

    fn forget(&mut self, address: IpAddr) {
        if let Some(old) = self.entries.remove(&address) {
            self.unlist(address, old);
        }
    }

    fn unlist(&mut self, address: IpAddr, old: Learned) {
        self.by_end.remove(&(old.until, address));
        self.by_shown.remove(&(old.shown_at, address));
    }

    /// The kernel has let these go by itself.
    fn forget_expired(&mut self, now: UnixMillis) {
        while let Some((until, address)) = self.by_end.first().copied() {
            if until > now {
                break;
            }
            self.forget(address);
        }
    }

    fn evict(
        &mut self,
        count: usize,
        keep: &HashSet<IpAddr>,
        connected: &HashSet<IpAddr>,
        changes: &mut Changes,
    ) {
        let oldest = |in_use: bool| {
            self.by_shown
                .iter()
                .map(|(_, address)| *address)
                .filter(move |address| {
                    !keep.contains(address) && connected.contains(address) == in_use
                })
        };
        let mut going: Vec<IpAddr> = oldest(false).take(count).collect();
        changes.evicted_in_use = count - going.len();
        going.extend(oldest(true).take(changes.evicted_in_use));
        for address in going {
            self.forget(address);
            changes.close.push(address);
        }
    }
}
