//! One actor per runtime profile: it opens the engine, keeps its preflight, sweeps.
//!
//! ```text
//!   Starting ──opened──► Active ◄──► preflight every ten minutes and on demand
//!      │  ▲                 └──────► sweep every minute: what the engine has × what we know
//!      │  └── after a pause that doubles
//!      └──failed──► Faulted, with the reason
//! ```
//!
//! Everybody else sees the profile through [`Profile`], without a mailbox in between.

mod actor;
mod checks;
mod msg;
mod sweep;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex as StdMutex},
    time::Duration,
};

use futures_util::future::BoxFuture;
use hotcell_core::lease::Seen;
use hotcell_runtime::{Check, ImageRef, ObservedState, Runtime, RuntimeError};
use hotcell_supervision::Address;
use hotcell_types::{LeaseId, ProfileId, UnixMillis, limits};
use tokio::{
    sync::{Mutex, watch},
    time::Instant,
};

pub(crate) use actor::{ProfileActor, ProfileArguments};
pub(crate) use msg::ProfileMsg;

use super::live::lock;
use crate::{
    config::ImageChoice,
    handles::{ProfileState, ProfileView, WarmView},
};

/// Opens the engine of a profile; tried again when it fails.
pub type OpenRuntime =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Runtime>, RuntimeError>> + Send + Sync>;

/// How long the image that a name means is taken as known.
const IMAGE_NAME_KNOWN: Duration = Duration::from_secs(5);

/// What is known of a profile.
#[derive(Clone)]
struct Status {
    state: ProfileState,
    runtime: Option<Arc<dyn Runtime>>,
    checks: Vec<Check>,
    checked_at: Option<UnixMillis>,
    warnings: Vec<String>,
    unknown: Vec<LeaseId>,
}

/// What the engine showed, and when it was asked.
struct Listing {
    asked: Instant,
    sandboxes: HashMap<LeaseId, ObservedState>,
}

/// A profile, as everybody sees it.
pub(crate) struct Profile {
    pub(crate) id: ProfileId,
    choice: ImageChoice,
    status: watch::Sender<Status>,
    image: StdMutex<Option<(Instant, ImageRef)>>,
    listing: Mutex<Option<Listing>>,
    pub(crate) actor: Address<ProfileMsg>,
}

impl Profile {
    pub(crate) fn new(id: ProfileId, choice: ImageChoice) -> Self {
        Self {
            id,
            choice,
            status: watch::Sender::new(Status {
                state: ProfileState::Starting,
                runtime: None,
                checks: Vec::new(),
                checked_at: None,
                warnings: Vec::new(),
                unknown: Vec::new(),
            }),
            image: StdMutex::new(None),
            listing: Mutex::new(None),
            actor: Address::new(),
        }
    }

    /// Its engine.
    ///
    /// # Errors
    /// `Unavailable`, with the reason, while that is not open.
    pub(crate) fn runtime(&self) -> Result<Arc<dyn Runtime>, RuntimeError> {
        let status = self.status.borrow();
        match (&status.runtime, &status.state) {
            (Some(runtime), _) => Ok(Arc::clone(runtime)),
            (None, ProfileState::Faulted { reason }) => {
                Err(RuntimeError::Unavailable(reason.clone()))
            }
            (None, _) => Err(RuntimeError::Unavailable("it is being opened".into())),
        }
    }

    /// Returns once it was opened, or could not be for the first time.
    pub(crate) async fn tried(&self) {
        let mut status = self.status.subscribe();
        // The sender lives as long as `self`.
        let _ = status
            .wait_for(|status| status.state != ProfileState::Starting)
            .await;
    }

    /// What is shown of it.
    pub(crate) fn view(&self) -> ProfileView {
        let status = self.status.borrow().clone();
        ProfileView {
            name: self.id.clone(),
            state: status.state,
            facts: status.runtime.map(|runtime| runtime.facts()),
            checks: status.checks,
            checked_at: status.checked_at,
            unknown: status.unknown,
            warm: WarmView::default(),
        }
    }

    /// What an operator should know although it works.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.status.borrow().warnings.clone()
    }

    fn update(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_modify(change);
    }

    /// The image that sandboxes run now.
    ///
    /// # Errors
    /// The engine cannot say, or has none of that name.
    pub(crate) async fn image(&self) -> Result<ImageRef, RuntimeError> {
        let name = match &self.choice {
            ImageChoice::Exactly(image) => return Ok(image.clone()),
            ImageChoice::Named(name) => name,
        };
        if let Some((since, image)) = &*lock(&self.image)
            && since.elapsed() < IMAGE_NAME_KNOWN
        {
            return Ok(image.clone());
        }
        let asked = Instant::now();
        let images = self.runtime()?.images().await?;
        let found = images.into_iter().find(|info| info.name == *name);
        let image = found.ok_or_else(|| RuntimeError::NoSuchImage(name.clone()))?;
        *lock(&self.image) = Some((asked, image.image.clone()));
        Ok(image.image)
    }

    /// Looks again what the name means.
    pub(crate) fn forget_image(&self) {
        *lock(&self.image) = None;
    }

    /// Where the engine says that a lease's sandbox stands: no older than this call. Many
    /// leases that ask at once share one listing.
    ///
    /// # Errors
    /// The engine cannot say, or does not within its time.
    pub(crate) async fn observe(&self, lease: &LeaseId) -> Result<Seen, RuntimeError> {
        let wanted = Instant::now();
        let mut listing = self.listing.lock().await;
        if listing.as_ref().is_none_or(|it| it.asked < wanted) {
            *listing = None;
            *listing = Some(self.list().await?);
        }
        let state = listing
            .as_ref()
            .and_then(|it| it.sandboxes.get(lease).copied());
        Ok(super::lease::seen(state))
    }

    async fn list(&self) -> Result<Listing, RuntimeError> {
        let asked = Instant::now();
        let limit = Duration::from_millis(limits::ENGINE_LIST_TIMEOUT_MS);
        let runtime = self.runtime()?;
        let observed = tokio::time::timeout(limit, runtime.list()).await;
        let observed = observed.map_err(|_| RuntimeError::Failed {
            action: "list its sandboxes",
            reason: format!("nothing came back within {} ms", limit.as_millis()),
        })??;
        Ok(Listing {
            asked,
            sandboxes: observed
                .into_iter()
                .map(|sandbox| {
                    // What nobody has claimed whole is as good as not made.
                    let state = match sandbox.unclaimed {
                        true => ObservedState::Created,
                        false => sandbox.state,
                    };
                    (sandbox.lease, state)
                })
                .collect(),
        })
    }
}
