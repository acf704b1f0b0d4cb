//! The in-memory engine: sandboxes that are data, for everything above the seam.
//!
//! ```text
//!   FakeRuntime ── script: delays, failures to come, images, preflight, hook
//!       │       ── record: what was called, how often
//!       └─ Unit (one per lease) ── files (survive stop) ── run (one per start) ── shell, jobs
//! ```
//!
//! It keeps every rule of the seam and is deterministic: time is `tokio::time`, so a paused
//! clock decides it; nothing is random. Commands are words of a tiny language ([`shell`]).
//! A sandbox costs a few kilobytes, so a load test may hold thousands.
//!
//! Tests shape it by its [`Script`] and a [`Hook`], which runs before and after every effect
//! and may fail it, hold it, or abort the task that asked for it.

mod files;
mod jobs;
mod record;
mod sandbox;
mod script;
pub mod shell;
mod site;
mod unit;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use hotcell_types::{AgentKey, InstallationId, LeaseId};

use crate::{
    Check, Facts, FilterSite, Gateway, ImageInfo, ImageRef, Isolation, Labels, Observed,
    ObservedState, Runtime, RuntimeError, Sandbox, SandboxEnd, SandboxSpec, Stats, WarmSpec,
};

pub use record::{Called, Effect};
pub use sandbox::FakeSandbox;
pub use script::{Hook, Moment, Script};

use record::Record;
use unit::Unit;

/// Locks; a test that panicked elsewhere must not hide its own message behind this one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The image that a new fake has.
#[must_use]
pub fn image() -> ImageRef {
    format!("sha256:{}", "0".repeat(64))
        .parse()
        .unwrap_or_else(|_| unreachable!("64 digits"))
}

struct Inner {
    installation: InstallationId,
    units: Mutex<BTreeMap<LeaseId, Arc<Unit>>>,
    script: Mutex<Script>,
    record: Mutex<Record>,
    /// The number of each sandbox's link; never given again.
    links: Mutex<BTreeMap<LeaseId, u16>>,
}

/// The in-memory engine. Clones share it, as a restarted daemon shares an engine with its
/// predecessor.
#[derive(Clone)]
pub struct FakeRuntime {
    inner: Arc<Inner>,
}

impl FakeRuntime {
    /// An engine without sandboxes that lets everything succeed at once.
    #[must_use]
    pub fn new(installation: InstallationId) -> Self {
        Self {
            inner: Arc::new(Inner {
                installation,
                units: Mutex::default(),
                script: Mutex::default(),
                record: Mutex::default(),
                links: Mutex::default(),
            }),
        }
    }

    /// Changes what will happen from now on.
    pub fn script<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        change(&mut lock(&self.inner.script))
    }

    /// The next `create` fails with this. Several calls queue up.
    pub fn fail_next_create(&self, error: RuntimeError) {
        self.script(|script| script.create_failures.push_back(error));
    }

    /// The next `start` fails with this. Several calls queue up.
    pub fn fail_next_start(&self, error: RuntimeError) {
        self.script(|script| script.start_failures.push_back(error));
    }

    /// Installs the hook that runs around every effect; `None` removes it.
    pub fn set_hook(&self, hook: Option<Hook>) {
        self.script(|script| script.hook = hook);
    }

    /// Ends a running sandbox from outside; `wait` resolves with `end`. Returns whether it ran.
    pub fn kill(&self, lease: &LeaseId, end: SandboxEnd) -> bool {
        self.unit(lease).is_ok_and(|unit| unit.end(end))
    }

    /// The engine restarts: everything that ran is lost and stands there stopped. Returns how
    /// many ran.
    pub fn lose_all(&self) -> usize {
        let units: Vec<_> = lock(&self.inner.units).values().cloned().collect();
        units
            .iter()
            .filter(|unit| unit.end(SandboxEnd::Lost))
            .count()
    }

    /// Every sandbox vanishes without a trace, as when an operator prunes the engine. Those that
    /// ran are lost.
    pub fn forget_all(&self) {
        self.lose_all();
        lock(&self.inner.units).clear();
    }

    /// Puts a leftover there that nobody asked this engine for: half-made, running or stopped.
    /// Without labels its record is damaged.
    pub fn plant(&self, lease: LeaseId, labels: Option<Labels>, state: ObservedState) {
        let unit = Unit::planted(labels);
        match state {
            ObservedState::Created => {}
            ObservedState::Running => unit.start(&AgentKey::new([0; 32])),
            ObservedState::Stopped => {
                unit.start(&AgentKey::new([0; 32]));
                unit.end(SandboxEnd::Stopped);
            }
        }
        lock(&self.inner.units).insert(lease, Arc::new(unit));
    }

    /// How often an effect was asked for and got past the hook.
    #[must_use]
    pub fn count(&self, effect: Effect) -> u64 {
        lock(&self.inner.record).count(effect)
    }

    /// The last ten thousand calls in order.
    #[must_use]
    pub fn calls(&self) -> Vec<Called> {
        lock(&self.inner.record).calls()
    }

    /// Where a sandbox stands; `None` when there is none.
    #[must_use]
    pub fn state(&self, lease: &LeaseId) -> Option<ObservedState> {
        self.unit(lease).ok().map(|unit| unit.state())
    }

    /// How many sandboxes run now.
    #[must_use]
    pub fn running(&self) -> usize {
        lock(&self.inner.units)
            .values()
            .filter(|unit| unit.state() == ObservedState::Running)
            .count()
    }

    fn link(&self, lease: &LeaseId) -> u16 {
        let mut links = lock(&self.inner.links);
        let next = u16::try_from(links.len()).unwrap_or(u16::MAX);
        *links.entry(lease.clone()).or_insert(next)
    }

    fn unit(&self, lease: &LeaseId) -> Result<Arc<Unit>, RuntimeError> {
        lock(&self.inner.units)
            .get(lease)
            .cloned()
            .ok_or(RuntimeError::NoSuchSandbox)
    }

    /// Runs one effect between its two hooks. An error of the second one means that the effect
    /// happened and its reply was lost.
    pub(crate) async fn around<T>(
        &self,
        effect: Effect,
        lease: Option<&LeaseId>,
        run: impl AsyncFnOnce() -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        let (hook, unavailable) = self.script(|s| (s.hook.clone(), s.unavailable.clone()));
        if let Some(hook) = &hook {
            hook(Moment::Before, effect, lease.cloned()).await?;
        }
        if let Some(reason) = unavailable {
            return Err(RuntimeError::Unavailable(reason));
        }
        lock(&self.inner.record).add(effect, lease);
        let result = run().await;
        if let Some(hook) = &hook {
            hook(Moment::After, effect, lease.cloned()).await?;
        }
        result
    }

    async fn pause(&self, delay: impl FnOnce(&Script) -> Duration) {
        let delay = self.script(|script| delay(script));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

#[async_trait]
impl Runtime for FakeRuntime {
    fn facts(&self) -> Facts {
        Facts {
            kind: "fake".into(),
            engine: "in memory".into(),
            isolation: Isolation::None,
            scratch_is_bounded: true,
        }
    }

    async fn preflight(&self) -> Vec<Check> {
        lock(&self.inner.record).add(Effect::Preflight, None);
        self.script(|script| script.preflight.clone())
    }

    async fn images(&self) -> Result<Vec<ImageInfo>, RuntimeError> {
        self.around(Effect::Images, None, async || {
            Ok(self.script(|script| script.images.clone()))
        })
        .await
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let lease = &spec.labels.lease;
        self.around(Effect::Create, Some(lease), async || {
            self.pause(|script| script.create_delay).await;
            let refused = self.script(|script| {
                script.create_failures.pop_front().or_else(|| {
                    let there = script.images.iter().any(|info| info.image == spec.image);
                    (!there).then(|| RuntimeError::NoSuchImage(spec.image.to_string()))
                })
            });
            if let Some(error) = refused {
                return Err(error);
            }
            if spec.labels.installation != self.inner.installation {
                return Err(RuntimeError::Failed {
                    action: "label the sandbox",
                    reason: "it is of another installation".into(),
                });
            }
            let mut units = lock(&self.inner.units);
            if let Some(unclaimed) = units.get(lease).filter(|unit| unit.is_unclaimed()) {
                unclaimed.end(SandboxEnd::Stopped);
                units.remove(lease);
            }
            units
                .entry(lease.clone())
                .or_insert_with(|| Arc::new(Unit::new(spec)));
            Ok(())
        })
        .await
    }

    async fn start(&self, lease: &LeaseId, key: &AgentKey) -> Result<(), RuntimeError> {
        self.around(Effect::Start, Some(lease), async || {
            self.pause(|script| script.start_delay).await;
            if let Some(error) = self.script(|script| script.start_failures.pop_front()) {
                return Err(error);
            }
            let unit = self.unit(lease)?;
            if unit.is_unclaimed() {
                return Err(RuntimeError::Failed {
                    action: "start the sandbox",
                    reason: "nobody has claimed it".into(),
                });
            }
            unit.start(key);
            Ok(())
        })
        .await
    }

    async fn warm(&self, spec: &WarmSpec) -> Result<(), RuntimeError> {
        let lease = &spec.lease;
        self.around(Effect::Warm, Some(lease), async || {
            self.pause(|script| script.warm_delay).await;
            if let Some(error) = self.script(|script| script.warm_failures.pop_front()) {
                return Err(error);
            }
            let unit = Arc::new(Unit::ahead(spec));
            let mut units = lock(&self.inner.units);
            if units.contains_key(lease) {
                return Err(RuntimeError::Failed {
                    action: "make a sandbox ahead",
                    reason: "it is there already".into(),
                });
            }
            unit.start(&spec.agent_key);
            units.insert(lease.clone(), unit);
            Ok(())
        })
        .await
    }

    async fn claim(&self, spec: &SandboxSpec) -> Result<(), RuntimeError> {
        let lease = &spec.labels.lease;
        self.around(Effect::Claim, Some(lease), async || {
            let unit = self.unit(lease)?;
            unit.label(spec)?;
            if let Some(error) = self.script(|script| script.claim_failures.pop_front()) {
                return Err(error);
            }
            self.around(Effect::Attach, Some(lease), async || {
                unit.attach(spec);
                Ok(())
            })
            .await
        })
        .await
    }

    async fn remove_unclaimed(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        self.around(Effect::RemoveUnclaimed, Some(lease), async || {
            let mut units = lock(&self.inner.units);
            if let Some(unclaimed) = units.get(lease).filter(|unit| unit.is_unclaimed()) {
                unclaimed.end(SandboxEnd::Stopped);
                units.remove(lease);
            }
            Ok(())
        })
        .await
    }

    async fn stop(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        self.around(Effect::Stop, Some(lease), async || {
            self.pause(|script| script.stop_delay).await;
            if let Ok(unit) = self.unit(lease) {
                unit.end(SandboxEnd::Stopped);
            }
            Ok(())
        })
        .await
    }

    async fn remove(&self, lease: &LeaseId) -> Result<(), RuntimeError> {
        self.around(Effect::Remove, Some(lease), async || {
            self.pause(|script| script.remove_delay).await;
            if let Some(error) = self.script(|script| script.remove_failures.pop_front()) {
                return Err(error);
            }
            let unit = lock(&self.inner.units).remove(lease);
            if let Some(unit) = unit {
                unit.end(SandboxEnd::Stopped);
            }
            Ok(())
        })
        .await
    }

    async fn list(&self) -> Result<Vec<Observed>, RuntimeError> {
        self.around(Effect::List, None, async || {
            Ok(lock(&self.inner.units)
                .iter()
                .map(|(lease, unit)| Observed {
                    labels: unit.labels(),
                    lease: lease.clone(),
                    state: unit.state(),
                    unclaimed: unit.is_unclaimed(),
                })
                .collect())
        })
        .await
    }

    async fn wait(&self, lease: &LeaseId) -> Result<SandboxEnd, RuntimeError> {
        // Not an effect: it changes nothing, and a crash in it is a crash between effects.
        lock(&self.inner.record).add(Effect::Wait, Some(lease));
        let unit = self.unit(lease)?;
        Ok(unit.ended().await)
    }

    async fn filter_site(&self, lease: &LeaseId) -> Result<FilterSite, RuntimeError> {
        self.around(Effect::FilterSite, Some(lease), async || {
            self.unit(lease)?;
            let mut site = site::of_link(self.link(lease));
            if !self.script(|script| script.ways_out) {
                site.way_out = None;
            }
            Ok(site)
        })
        .await
    }

    async fn gateways(&self) -> Result<Vec<Gateway>, RuntimeError> {
        Ok(vec![site::gateway()])
    }

    async fn stats(&self, lease: &LeaseId) -> Result<Stats, RuntimeError> {
        lock(&self.inner.record).add(Effect::Stats, Some(lease));
        Ok(self.unit(lease)?.stats())
    }

    fn sandbox(&self, lease: &LeaseId, key: &AgentKey) -> Result<Arc<dyn Sandbox>, RuntimeError> {
        let unit = self.unit(lease)?;
        Ok(Arc::new(FakeSandbox::new(
            self.clone(),
            lease.clone(),
            unit,
            key.clone(),
        )))
    }
}
