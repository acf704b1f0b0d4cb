//! The leases that are not over, as everybody sees them: what a lease's actor shares with the
//! calls that use its sandbox.
//!
//! ```text
//!   call ──► Live::get(workspace, chat) ──► Door::enter ──► sandbox     no mailbox on this path
//!                                             │
//!   lease actor ── opens when the agent answers, closes when unused, shuts for good at the end
//! ```
//!
//! A [`LiveLease`] outlives a crash of its actor, so calls that run keep running.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hotcell_core::model::{EndReason, LeaseRecord};
use hotcell_runtime::Sandbox;
use hotcell_supervision::Address;
use hotcell_types::{ChatId, LeaseId, UserId, WorkspaceId, limits};
use tokio::{sync::watch, time::Instant};

use super::{
    lease::{LeaseMsg, Origin},
    warm::Pool,
};

/// Locks. What these locks guard is whole between any two statements, so a panic elsewhere while
/// one was held spoils nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Leaf {
    Closed,
    Open(Arc<dyn Sandbox>),
    /// For good.
    Shut,
}

struct DoorState {
    leaf: Leaf,
    holders: usize,
    /// Since when nobody holds it; meaningless while somebody does.
    unused_since: Instant,
}

/// The way into a lease's sandbox, with a count of who is inside.
pub(crate) struct Door(Mutex<DoorState>);

impl Door {
    fn new() -> Self {
        Self(Mutex::new(DoorState {
            leaf: Leaf::Closed,
            holders: 0,
            unused_since: Instant::now(),
        }))
    }

    fn enter(&self) -> Option<Arc<dyn Sandbox>> {
        let mut state = lock(&self.0);
        let Leaf::Open(sandbox) = &state.leaf else {
            return None;
        };
        let sandbox = Arc::clone(sandbox);
        state.holders += 1;
        Some(sandbox)
    }

    fn leave(&self) {
        let mut state = lock(&self.0);
        state.holders = state.holders.saturating_sub(1);
        state.unused_since = Instant::now();
    }

    /// Opens it. Does nothing once it is shut.
    pub(crate) fn open(&self, sandbox: Arc<dyn Sandbox>) {
        let mut state = lock(&self.0);
        if !matches!(state.leaf, Leaf::Shut) {
            state.leaf = Leaf::Open(sandbox);
        }
    }

    /// Closes it if nobody has been inside for that long. Whether it is closed now.
    pub(crate) fn close_if_unused_for(&self, idle: Duration) -> bool {
        let mut state = lock(&self.0);
        let is_unused = state.holders == 0 && state.unused_since.elapsed() >= idle;
        if is_unused && matches!(state.leaf, Leaf::Open(_)) {
            state.leaf = Leaf::Closed;
        }
        is_unused
    }

    /// Closes it for good; who is inside stays.
    pub(crate) fn shut(&self) {
        lock(&self.0).leaf = Leaf::Shut;
    }

    /// Counts as used now.
    pub(crate) fn touch(&self) {
        lock(&self.0).unused_since = Instant::now();
    }

    /// How long nobody was inside; `None` while somebody is.
    pub(crate) fn unused_for(&self) -> Option<Duration> {
        let state = lock(&self.0);
        (state.holders == 0).then(|| state.unused_since.elapsed())
    }

    /// The sandbox behind it, without entering.
    pub(crate) fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        match &lock(&self.0).leaf {
            Leaf::Open(sandbox) => Some(Arc::clone(sandbox)),
            Leaf::Closed | Leaf::Shut => None,
        }
    }

    pub(crate) fn holders(&self) -> usize {
        lock(&self.0).holders
    }
}

/// One place of `max_sandboxes`, the sandboxes that run at once; given back when dropped.
pub(crate) struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A lease that is not over.
pub(crate) struct LiveLease {
    pub(crate) id: LeaseId,
    pub(crate) workspace: WorkspaceId,
    pub(crate) chat: ChatId,
    pub(crate) user: UserId,
    pub(crate) door: Door,
    record: Mutex<LeaseRecord>,
    /// Leads to its actor, through restarts of that.
    pub(crate) address: Address<LeaseMsg>,
    /// Why its actor was given up, if it was.
    fault: watch::Sender<Option<String>>,
    /// Why it ends, from the moment that is decided.
    end: watch::Sender<Option<EndReason>>,
    /// Whether it is over and forgotten.
    gone: watch::Sender<bool>,
    /// Whether it has stood once where it can stay.
    settled: watch::Sender<bool>,
    begun: AtomicBool,
    /// Whether its first sandbox was made ahead.
    claimed: AtomicBool,
    /// Given back while its sandbox is stopped, and when it is over, whoever still looks at it then.
    slot: Mutex<Option<Slot>>,
}

impl LiveLease {
    pub(crate) fn new(record: LeaseRecord, slot: Slot) -> Self {
        Self {
            id: record.id.clone(),
            workspace: record.workspace.clone(),
            chat: record.chat.clone(),
            user: record.user.clone(),
            door: Door::new(),
            record: Mutex::new(record),
            address: Address::new(),
            fault: watch::Sender::new(None),
            end: watch::Sender::new(None),
            gone: watch::Sender::new(false),
            settled: watch::Sender::new(false),
            begun: AtomicBool::new(false),
            claimed: AtomicBool::new(false),
            slot: Mutex::new(Some(slot)),
        }
    }

    /// What is written down of it.
    pub(crate) fn record(&self) -> LeaseRecord {
        lock(&self.record).clone()
    }

    pub(crate) fn set_record(&self, record: LeaseRecord) {
        *lock(&self.record) = record;
    }

    /// Whether it has a place among the sandboxes that run, or gets one now.
    pub(crate) fn take_place(&self, all: &Live) -> bool {
        let mut slot = lock(&self.slot);
        if slot.is_none() {
            *slot = all.take_slot();
        }
        slot.is_some()
    }

    /// Its first sandbox was one that was made ahead.
    pub(crate) fn set_claimed(&self) {
        self.claimed.store(true, Ordering::Release);
    }

    /// Whether its first sandbox was made ahead. Not known any more after a restart of the daemon.
    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire)
    }

    /// Gives its place back: its sandbox is stopped.
    pub(crate) fn give_place_back(&self) {
        lock(&self.slot).take();
    }

    /// Why its actor was given up, if it was.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.borrow().clone()
    }

    pub(crate) fn set_fault(&self, reason: Option<String>) {
        self.fault.send_replace(reason);
    }

    /// Enters its sandbox, if the door is open.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<(Arc<dyn Sandbox>, Hold)> {
        let sandbox = self.door.enter()?;
        Some((sandbox, Hold(Arc::clone(self))))
    }

    /// Says that it ends, and why.
    pub(crate) fn shut(&self, reason: EndReason) {
        self.door.shut();
        self.end.send_replace(Some(reason));
    }

    /// Why it ends, once that is decided.
    pub(crate) fn end(&self) -> watch::Receiver<Option<EndReason>> {
        self.end.subscribe()
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Returns when it is over.
    pub(crate) async fn gone(&self) {
        // The sender lives as long as `self`.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    pub(crate) fn set_gone(&self) {
        lock(&self.slot).take();
        self.gone.send_replace(true);
        self.settled.send_replace(true);
    }

    /// Returns when it has stood once where it can stay: running, idle or over.
    pub(crate) async fn settled(&self) {
        // The sender lives as long as `self`.
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    pub(crate) fn set_settled(&self) {
        self.settled
            .send_if_modified(|settled| !std::mem::replace(settled, true));
    }

    /// Whether it ever had an actor.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// How an actor that starts now comes to this lease: as `origin` says the first time, and
    /// as a crashed one's successor after that.
    pub(crate) fn first_origin(&self, origin: Origin) -> Origin {
        if self.begun.swap(true, Ordering::AcqRel) {
            Origin::FoundLater
        } else {
            origin
        }
    }
}

/// Somebody inside a lease's sandbox.
pub(crate) struct Hold(Arc<LiveLease>);

impl Hold {
    pub(crate) fn lease(&self) -> &Arc<LiveLease> {
        &self.0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.door.leave();
    }
}

/// Every lease that is not over, by workspace and chat.
pub(crate) struct Live {
    by_workspace: RwLock<HashMap<WorkspaceId, HashMap<ChatId, Arc<LiveLease>>>>,
    taken: Arc<AtomicUsize>,
    limit: usize,
    /// The sandboxes that were made ahead; each has a place too.
    pub(crate) pool: Arc<Pool>,
}

impl Live {
    pub(crate) fn new(limit: usize, warm_pool: usize) -> Self {
        Self {
            by_workspace: RwLock::default(),
            taken: Arc::default(),
            limit,
            pool: Pool::new(warm_pool),
        }
    }

    /// `max_sandboxes`.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Takes a place for a lease that does not exist yet, if there is one and there are not too many
    /// leases that are stopped.
    pub(crate) fn admit(&self) -> Option<Slot> {
        self.has_room().then(|| self.take_slot()).flatten()
    }

    /// Whether there may be another lease, running or not.
    pub(crate) fn has_room(&self) -> bool {
        let leases: usize = self.read().values().map(HashMap::len).sum();
        leases < self.limit.saturating_mul(limits::LEASES_PER_SANDBOX)
    }

    /// Takes a place for a sandbox that is about to run, if there is one or the pool has one.
    pub(crate) fn take_slot(&self) -> Option<Slot> {
        self.spare_slot().or_else(|| self.pool.give_place_up())
    }

    /// Takes a place that nobody has, if there is one.
    pub(crate) fn spare_slot(&self) -> Option<Slot> {
        let taken = self
            .taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                (taken < self.limit).then_some(taken + 1)
            });
        taken.is_ok().then(|| Slot(Arc::clone(&self.taken)))
    }

    /// Takes a place for a lease that exists already, even when there is none: the limit may
    /// have been lowered.
    pub(crate) fn force_slot(&self) -> Slot {
        self.taken.fetch_add(1, Ordering::AcqRel);
        Slot(Arc::clone(&self.taken))
    }

    fn read(
        &self,
    ) -> std::sync::RwLockReadGuard<'_, HashMap<WorkspaceId, HashMap<ChatId, Arc<LiveLease>>>> {
        self.by_workspace
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease of a chat.
    pub(crate) fn get(&self, workspace: &WorkspaceId, chat: &ChatId) -> Option<Arc<LiveLease>> {
        self.read().get(workspace)?.get(chat).cloned()
    }

    /// Whether a workspace has any.
    pub(crate) fn has_any(&self, workspace: &WorkspaceId) -> bool {
        self.read().contains_key(workspace)
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<LiveLease>> {
        self.read()
            .values()
            .flat_map(HashMap::values)
            .cloned()
            .collect()
    }

    /// Adds one. Its workspace's actor is the only one that adds leases of a workspace.
    pub(crate) fn insert(&self, lease: Arc<LiveLease>) {
        self.by_workspace
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(lease.workspace.clone())
            .or_default()
            .insert(lease.chat.clone(), lease);
    }

    /// Forgets one.
    pub(crate) fn remove(&self, lease: &LiveLease) {
        let mut all = self
            .by_workspace
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(chats) = all.get_mut(&lease.workspace) else {
            return;
        };
        if chats.get(&lease.chat).is_some_and(|it| it.id == lease.id) {
            chats.remove(&lease.chat);
        }
        if chats.is_empty() {
            all.remove(&lease.workspace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_limited_and_come_back() {
        let live = Live::new(2, 0);
        let first = live.take_slot();
        let forced = live.force_slot();
        assert!(first.is_some());
        assert!(live.take_slot().is_none());
        drop(first);
        assert!(live.take_slot().is_some());
        drop(forced);
    }
}
