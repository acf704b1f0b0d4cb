//! What is in the pool, as everybody sees it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use hotcell_runtime::ImageRef;
use hotcell_types::LeaseId;
use tokio::sync::Notify;

use crate::{
    actors::{live::Slot, lock},
    handles::WarmView,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is being made.
    Making,
    /// It waits to be taken.
    Ready,
    /// An admission has its id.
    Taken,
    /// It is to be removed.
    Condemned,
}

struct Entry {
    stage: Stage,
    slot: Option<Slot>,
    image: Option<ImageRef>,
}

/// The sandboxes that were made ahead.
pub(crate) struct Pool {
    wanted: usize,
    entries: Mutex<BTreeMap<LeaseId, Entry>>,
    problem: Mutex<Option<String>>,
    begun: AtomicBool,
    pub(super) changed: Notify,
}

impl Pool {
    pub(crate) fn new(wanted: usize) -> Arc<Self> {
        Arc::new(Self {
            wanted,
            entries: Mutex::default(),
            problem: Mutex::default(),
            begun: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    /// Lets it be filled: what an earlier daemon left has found its places.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    pub(crate) fn view(&self) -> WarmView {
        WarmView {
            wanted: self.wanted,
            ready: self.count(|stage| stage == Stage::Ready),
            problem: lock(&self.problem).clone(),
        }
    }

    fn count(&self, counts: impl Fn(Stage) -> bool) -> usize {
        let entries = lock(&self.entries);
        entries.values().filter(|entry| counts(entry.stage)).count()
    }

    /// Sandboxes that are still to be made.
    pub(super) fn missing(&self) -> usize {
        let there = self.count(|stage| matches!(stage, Stage::Making | Stage::Ready));
        self.wanted.saturating_sub(there)
    }

    pub(super) fn set_problem(&self, problem: Option<String>) {
        *lock(&self.problem) = problem;
    }

    /// One is about to be made.
    pub(super) fn making(&self, lease: LeaseId, slot: Slot) {
        let entry = Entry {
            stage: Stage::Making,
            slot: Some(slot),
            image: None,
        };
        lock(&self.entries).insert(lease, entry);
    }

    /// It runs and its agent answers.
    pub(super) fn made(&self, lease: &LeaseId, image: ImageRef) {
        if let Some(entry) = lock(&self.entries).get_mut(lease)
            && entry.stage == Stage::Making
        {
            entry.stage = Stage::Ready;
            entry.image = Some(image);
        }
    }

    /// One that is not anybody's is to be removed; its place is free already.
    pub(super) fn condemn(&self, lease: &LeaseId) {
        if let Some(entry) = lock(&self.entries).get_mut(lease)
            && entry.stage != Stage::Taken
        {
            entry.stage = Stage::Condemned;
            entry.slot = None;
        }
    }

    /// Those that a keeper was making that is gone.
    pub(super) fn condemn_unfinished(&self) {
        for entry in lock(&self.entries).values_mut() {
            if entry.stage == Stage::Making {
                entry.stage = Stage::Condemned;
                entry.slot = None;
            }
        }
    }

    fn with(&self, stage: Stage) -> Vec<LeaseId> {
        let entries = lock(&self.entries);
        let of_stage = entries.iter().filter(|(_, entry)| entry.stage == stage);
        of_stage.map(|(lease, _)| lease.clone()).collect()
    }

    pub(super) fn condemned(&self) -> Vec<LeaseId> {
        self.with(Stage::Condemned)
    }

    /// Those that can be claimed, with what they run.
    pub(super) fn ready(&self) -> Vec<(LeaseId, Option<ImageRef>)> {
        let entries = lock(&self.entries);
        let ready = entries
            .iter()
            .filter(|(_, entry)| entry.stage == Stage::Ready);
        ready
            .map(|(lease, entry)| (lease.clone(), entry.image.clone()))
            .collect()
    }

    /// All that nobody has taken.
    pub(super) fn condemn_all(&self) {
        for lease in [Stage::Making, Stage::Ready].map(|stage| self.with(stage)) {
            lease.iter().for_each(|lease| self.condemn(lease));
        }
    }

    /// Whether this lease's sandbox is of the pool, or is being claimed out of it.
    pub(crate) fn knows(&self, lease: &LeaseId) -> bool {
        lock(&self.entries).contains_key(lease)
    }

    /// Whether this lease was admitted with a sandbox of the pool that it has not claimed yet.
    pub(crate) fn is_taken(&self, lease: &LeaseId) -> bool {
        let entries = lock(&self.entries);
        entries
            .get(lease)
            .is_some_and(|entry| entry.stage == Stage::Taken)
    }

    /// Its lease has its sandbox, or needs none any more. Does nothing for other leases.
    pub(crate) fn forget(&self, lease: &LeaseId) {
        if lock(&self.entries).remove(lease).is_some() {
            self.changed.notify_one();
        }
    }

    /// Takes a ready one for an admission.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Ticket> {
        let mut entries = lock(&self.entries);
        let mut all = entries.iter_mut();
        let (lease, entry) = all.find(|(_, entry)| entry.stage == Stage::Ready)?;
        let slot = entry.slot.take()?;
        entry.stage = Stage::Taken;
        Some(Ticket {
            lease: lease.clone(),
            slot: Some(slot),
            pool: Arc::clone(self),
        })
    }

    /// Gives up a place to a call that finds none; one that is not ready rather than one that is.
    pub(crate) fn give_place_up(&self) -> Option<Slot> {
        let mut entries = lock(&self.entries);
        let found = [Stage::Making, Stage::Ready].into_iter().find_map(|stage| {
            let mut of_stage = entries.iter().filter(|(_, entry)| entry.stage == stage);
            of_stage.next().map(|(lease, _)| lease.clone())
        });
        let entry = entries.get_mut(&found?)?;
        entry.stage = Stage::Condemned;
        let slot = entry.slot.take();
        self.changed.notify_one();
        slot
    }
}

/// A ready sandbox in the hands of an admission. Dropped, it is removed: nobody knows whether its id
/// was written down.
pub(crate) struct Ticket {
    lease: LeaseId,
    slot: Option<Slot>,
    pool: Arc<Pool>,
}

impl Ticket {
    /// The lease that it may become.
    pub(crate) fn lease(&self) -> &LeaseId {
        &self.lease
    }

    /// Its lease is admitted: the place is that lease's from now on.
    pub(crate) fn admitted(mut self) -> Option<Slot> {
        self.pool.changed.notify_one();
        self.slot.take()
    }

    /// The admission was refused and its id written down nowhere.
    pub(crate) fn put_back(mut self) {
        if let Some(entry) = lock(&self.pool.entries).get_mut(&self.lease) {
            entry.stage = Stage::Ready;
            entry.slot = self.slot.take();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.slot.take().is_none() {
            return;
        }
        if let Some(entry) = lock(&self.pool.entries).get_mut(&self.lease) {
            entry.stage = Stage::Condemned;
        }
        self.pool.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::live::Live;

    fn lease(number: u128) -> LeaseId {
        LeaseId::from_bits(number)
    }

    fn ready(live: &Live, number: u128) {
        let slot = live.spare_slot().unwrap();
        live.pool.making(lease(number), slot);
        live.pool
            .made(&lease(number), hotcell_runtime::fake::image());
    }

    #[test]
    fn a_taken_one_takes_its_place_along() {
        let live = Live::new(1, 1);
        ready(&live, 1);
        assert!(live.spare_slot().is_none());
        let ticket = live.pool.take().unwrap();
        assert_eq!(ticket.lease(), &lease(1));
        assert!(live.pool.take().is_none());
        assert_eq!(live.pool.missing(), 1);
        let slot = ticket.admitted().unwrap();
        assert!(live.pool.is_taken(&lease(1)));
        // It is somebody's: nobody else can take its place or have it removed.
        assert!(live.take_slot().is_none());
        live.pool.condemn(&lease(1));
        assert!(live.pool.is_taken(&lease(1)));
        live.pool.forget(&lease(1));
        assert!(!live.pool.knows(&lease(1)));
        drop(slot);
        assert!(live.spare_slot().is_some());
    }

    #[test]
    fn a_refused_admission_puts_it_back_and_a_lost_one_does_not() {
        let live = Live::new(2, 2);
        ready(&live, 1);
        live.pool.take().unwrap().put_back();
        assert_eq!(live.pool.view().ready, 1);
        drop(live.pool.take().unwrap());
        assert_eq!(live.pool.condemned(), [lease(1)]);
        assert!(!live.pool.is_taken(&lease(1)));
        assert_eq!(live.pool.missing(), 2);
    }

    #[test]
    fn a_call_that_finds_no_place_gets_one_of_the_pool() {
        let live = Live::new(2, 2);
        ready(&live, 1);
        live.pool.making(lease(2), live.spare_slot().unwrap());
        let first = live.take_slot().unwrap();
        assert_eq!(live.pool.condemned(), [lease(2)]);
        // What was being made is not ready when it is done.
        live.pool.made(&lease(2), hotcell_runtime::fake::image());
        assert_eq!(live.pool.view().ready, 1);
        let second = live.take_slot().unwrap();
        assert_eq!(live.pool.condemned(), [lease(1), lease(2)]);
        assert!(live.take_slot().is_none());
        drop((first, second));
        assert!(live.spare_slot().is_some());
    }

    #[test]
    fn what_a_keeper_left_unfinished_is_removed() {
        let live = Live::new(3, 3);
        ready(&live, 1);
        live.pool.making(lease(2), live.spare_slot().unwrap());
        live.pool.condemn_unfinished();
        assert_eq!(live.pool.condemned(), [lease(2)]);
        assert_eq!(live.pool.ready().len(), 1);
        live.pool.condemn_all();
        assert_eq!(live.pool.condemned().len(), 2);
        assert_eq!(live.pool.view().ready, 0);
    }
}
