//! The engine's questions and effects that the rest of this crate is made of.

use std::time::Duration;

use bollard::query_parameters::{
    CreateContainerOptionsBuilder, KillContainerOptionsBuilder, RemoveContainerOptionsBuilder,
};
use hotcell_runtime::RuntimeError;
use hotcell_types::{InstallationId, limits};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{Instant, sleep};

use crate::{
    container::{Inspected, Listed, Plan},
    engine::Engine,
    fault::{self, Refusal, sort},
    frames::{Frames, Mode},
    labels::{INSTALLATION, is_ours},
    raw,
};

/// The first pause before an engine's state is looked at again; it doubles.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(100);

/// What a rootless Podman says when it finds no subordinate ids.
const NO_IDS: &str = "keep-id requires additional UIDs or GIDs";
/// How often it is asked before it is believed.
const MAX_ID_LOOKUPS: u32 = 4;

impl Engine {
    /// What the engine knows of a container, by name or id.
    pub(crate) async fn inspect(&self, name: &str) -> Result<Option<Inspected>, RuntimeError> {
        let target = format!("/containers/{name}/json");
        raw::json(&self.socket, "look at a container", &target).await
    }

    /// All containers of an installation, also those that do not run.
    pub(crate) async fn list(
        &self,
        installation: &InstallationId,
    ) -> Result<Vec<Listed>, RuntimeError> {
        let filters = format!(r#"{{"label":["{INSTALLATION}={installation}"]}}"#);
        let filters = utf8_percent_encode(&filters, NON_ALPHANUMERIC);
        let target = format!("/containers/json?all=1&filters={filters}");
        let rows: Option<Vec<Listed>> =
            raw::json(&self.socket, "list the containers", &target).await?;
        Ok(rows.unwrap_or_default())
    }

    /// Makes a container, or finds the one that is there to be what it should.
    pub(crate) async fn ensure(&self, plan: &Plan) -> Result<(), RuntimeError> {
        const ACTION: &str = "create a container";
        let (name, labels) = (plan.name(), &plan.labels);
        if let Some(found) = self.inspect(&name).await? {
            if !is_ours(&found.labels(), &labels.installation, &labels.lease) {
                return Err(fault::failed(
                    ACTION,
                    format!("the name {name} is taken by a container that is not ours"),
                ));
            }
            if found.differs_from(plan, &self.quirks).is_none() {
                return Ok(());
            }
            // Half-made by an engine that was interrupted.
            self.remove(&name).await?;
        }
        let refusal = match self.create(plan).await {
            Ok(()) => return self.approve(plan).await,
            Err(refusal) => refusal,
        };
        match refusal {
            Refusal::Conflict(reason) => {
                // A name that an interrupted engine kept without a container to it.
                tracing::warn!(name, reason, "a container's name was left over");
                self.remove(&name).await?;
                self.create(plan)
                    .await
                    .map_err(|refusal| refusal.into_error(ACTION))?;
                self.approve(plan).await
            }
            Refusal::Missing => Err(RuntimeError::NoSuchImage(plan.image.clone())),
            refusal => Err(refusal.into_error(ACTION)),
        }
    }

    /// A rootless Podman that makes several containers at once now and then finds no subordinate
    /// ids for its user: what it reads them with is not safe among its threads. It is asked again.
    async fn create(&self, plan: &Plan) -> Result<(), Refusal> {
        let mut tries = MAX_ID_LOOKUPS;
        loop {
            match self.try_create(plan).await {
                Err(Refusal::Failed(RuntimeError::Failed { reason, .. }))
                    if tries > 1 && reason.contains(NO_IDS) =>
                {
                    tries -= 1;
                    tracing::debug!(reason, "the engine is asked again");
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_create(&self, plan: &Plan) -> Result<(), Refusal> {
        let options = CreateContainerOptionsBuilder::default()
            .name(&plan.name())
            .build();
        self.client
            .create_container(Some(options), plan.body(&self.quirks))
            .await
            .map(|_| ())
            .map_err(|error| sort("create a container", error))
    }

    /// What was made must be what was asked for; else it is not kept.
    async fn approve(&self, plan: &Plan) -> Result<(), RuntimeError> {
        let name = plan.name();
        let differs = match self.inspect(&name).await? {
            Some(found) => found.differs_from(plan, &self.quirks),
            None => Some("the engine forgot the container".into()),
        };
        match differs {
            None => Ok(()),
            Some(reason) => {
                self.remove(&name).await?;
                Err(RuntimeError::Unsupported {
                    what: "a sandbox as it must be",
                    reason,
                })
            }
        }
    }

    /// Runs a container. Fine when it runs.
    pub(crate) async fn start(&self, name: &str) -> Result<(), RuntimeError> {
        match self.client.start_container(name, None).await {
            Ok(()) => Ok(()),
            Err(error) => match sort("start a container", error) {
                Refusal::Already => Ok(()),
                // What an engine says to a start is what the OCI runtime said.
                Refusal::Failed(RuntimeError::Failed { reason, .. }) => {
                    Err(RuntimeError::StartFailed(reason))
                }
                refusal => Err(refusal.into_error("start a container")),
            },
        }
    }

    /// Ends a container's processes and waits until the engine knows. Fine when there are none.
    pub(crate) async fn kill(&self, name: &str) -> Result<(), RuntimeError> {
        let options = KillContainerOptionsBuilder::default()
            .signal("SIGKILL")
            .build();
        match self.client.kill_container(name, Some(options)).await {
            Ok(()) => {}
            Err(error) => match sort("end a container", error) {
                // It does not run.
                Refusal::Missing | Refusal::Already | Refusal::Conflict(_) => {}
                // Podman says so with another status.
                Refusal::Failed(error) => match self.inspect(name).await? {
                    Some(found) if found.state.running => return Err(error),
                    _ => return Ok(()),
                },
            },
        }
        self.until("end a container", name, |found| {
            !found.is_some_and(|found| found.state.running)
        })
        .await
        .map(|_| ())
    }

    /// Ends and removes a container. Fine when there is none.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), RuntimeError> {
        const ACTION: &str = "remove a container";
        if self
            .inspect(name)
            .await?
            .is_some_and(|found| found.state.running)
        {
            self.kill(name).await?;
        }
        let options = || {
            RemoveContainerOptionsBuilder::default()
                .force(true)
                .v(true)
                .build()
        };
        match self.client.remove_container(name, Some(options())).await {
            Ok(()) => {}
            Err(error) => match sort(ACTION, error) {
                Refusal::Missing | Refusal::Already => return Ok(()),
                // Somebody else removes it already.
                Refusal::Conflict(_) => {}
                Refusal::Failed(error) => {
                    if self.inspect(name).await?.is_some() {
                        return Err(error);
                    }
                }
            },
        }
        self.until(ACTION, name, |found| found.is_none())
            .await
            .map(|_| ())
    }

    /// Looks at a container until it is as wanted.
    pub(crate) async fn until(
        &self,
        action: &'static str,
        name: &str,
        wanted: impl Fn(Option<&Inspected>) -> bool,
    ) -> Result<Option<Inspected>, RuntimeError> {
        let deadline = Instant::now() + Duration::from_millis(limits::ENGINE_KILL_TIMEOUT_MS);
        let mut pause = LOOK_MIN;
        loop {
            let found = self.inspect(name).await?;
            if wanted(found.as_ref()) {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                let state = found.map_or_else(|| "gone".to_owned(), |found| found.state.status);
                return Err(fault::failed(
                    action,
                    format!("the container stays {state}"),
                ));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LOOK_MAX);
        }
    }

    /// The last lines that a container wrote, for a message. Never fails: what cannot be read is
    /// said in words.
    pub(crate) async fn last_words(&self, name: &str) -> String {
        let target = format!("/containers/{name}/logs?stdout=1&stderr=1&tail=20");
        let limit = limits::MAX_ENGINE_LOG_BYTES;
        let answer = match raw::get(&self.socket, "read a log", &target, limit).await {
            Ok(answer) if answer.status.is_success() => answer,
            Ok(answer) => return format!("its log cannot be read ({})", answer.status),
            Err(error) => return format!("its log cannot be read: {error}"),
        };
        // None of our containers has a terminal, so every log is framed.
        let mut frames = Frames::new(Mode::Framed);
        let mut text = Vec::new();
        let read = frames.feed(answer.body, |piece| text.extend_from_slice(&piece.bytes));
        let mut words = String::from_utf8_lossy(&text).into_owned();
        match read {
            Err(error) => words.push_str(&format!(" ({error})")),
            Ok(()) if frames.is_truncated() => words.push_str(" (cut short)"),
            Ok(()) => {}
        }
        fault::clip(&words)
    }

    /// The images that the engine has.
    pub(crate) async fn stored_images(&self) -> Result<Vec<StoredImage>, RuntimeError> {
        let rows = raw::json(&self.socket, "list the images", "/images/json").await?;
        Ok(rows.unwrap_or_default())
    }
}

/// An image as the engine lists it.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct StoredImage {
    pub(crate) id: String,
    repo_tags: Option<Vec<String>>,
    repo_digests: Option<Vec<String>>,
    size: i64,
}

impl StoredImage {
    /// Whether a digest names it: that of its configuration or of a manifest.
    pub(crate) fn is(&self, digest: &str) -> bool {
        let digests = self.repo_digests.iter().flatten();
        self.id.trim_start_matches("sha256:") == digest.trim_start_matches("sha256:")
            || digests
                .filter_map(|named| named.rsplit_once('@'))
                .any(|(_, found)| found == digest)
    }

    /// What people call it.
    pub(crate) fn name(&self) -> String {
        let mut tags = self.repo_tags.iter().flatten();
        tags.find(|tag| !tag.contains("<none>"))
            .unwrap_or(&self.id)
            .clone()
    }

    pub(crate) fn bytes(&self) -> u64 {
        u64::try_from(self.size).unwrap_or(0)
    }
}
