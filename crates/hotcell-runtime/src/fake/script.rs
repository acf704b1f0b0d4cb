//! What a test wants the fake to do.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use hotcell_types::LeaseId;

use crate::{Check, ImageInfo, RuntimeError, fake::Effect};

/// On which side of an effect a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// Nothing has happened yet; an error prevents it.
    Before,
    /// It has happened; an error is a lost reply.
    After,
}

/// Runs around every effect. It may return an error for the caller, never return, or abort the
/// task that called: that is a crash at this point.
pub type Hook = Arc<
    dyn Fn(Moment, Effect, Option<LeaseId>) -> BoxFuture<'static, Result<(), RuntimeError>>
        + Send
        + Sync,
>;

/// The knobs of a fake. The default lets everything succeed at once.
#[derive(Clone)]
pub struct Script {
    /// How long `create` takes.
    pub create_delay: Duration,
    /// How long `start` takes.
    pub start_delay: Duration,
    /// How long `warm` takes.
    pub warm_delay: Duration,
    /// How long the agent needs after a start until it answers.
    pub ready_delay: Duration,
    /// How long `stop` takes.
    pub stop_delay: Duration,
    /// How long `remove` takes.
    pub remove_delay: Duration,
    /// What the next creates fail with.
    pub create_failures: VecDeque<RuntimeError>,
    /// What the next starts fail with.
    pub start_failures: VecDeque<RuntimeError>,
    /// What the next warms fail with.
    pub warm_failures: VecDeque<RuntimeError>,
    /// What the next claims fail with, after the labels were written.
    pub claim_failures: VecDeque<RuntimeError>,
    /// What the next removes fail with.
    pub remove_failures: VecDeque<RuntimeError>,
    /// The engine is down: every effect fails with this until it is `None` again.
    pub unavailable: Option<String>,
    /// The images that are there.
    pub images: Vec<ImageInfo>,
    /// What preflight finds.
    pub preflight: Vec<Check>,
    /// Whether filtered sandboxes have a way out through the host, each its own.
    pub ways_out: bool,
    /// Runs around every effect.
    pub hook: Option<Hook>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            create_delay: Duration::ZERO,
            start_delay: Duration::ZERO,
            warm_delay: Duration::ZERO,
            ready_delay: Duration::ZERO,
            stop_delay: Duration::ZERO,
            remove_delay: Duration::ZERO,
            create_failures: VecDeque::new(),
            start_failures: VecDeque::new(),
            warm_failures: VecDeque::new(),
            claim_failures: VecDeque::new(),
            remove_failures: VecDeque::new(),
            unavailable: None,
            images: vec![ImageInfo {
                image: super::image(),
                name: "fake".into(),
                bytes: 0,
            }],
            preflight: vec![Check::pass("runtime.fake", "in memory")],
            ways_out: false,
            hook: None,
        }
    }
}
