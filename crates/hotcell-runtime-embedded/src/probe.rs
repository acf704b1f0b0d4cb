//! Which engine works here is found out by running one.
//!
//! A probe is a whole sandbox but for its image: an empty tree with the agent in it, linked to
//! the gateway. It counts as working when the agent answers through the link. The answer holds
//! until the host is restarted or one of the binaries is replaced.

use std::{path::PathBuf, sync::Arc};

use hotcell_agent_client::AgentSandbox;
use hotcell_runtime::{RuntimeError, Sandbox};
use hotcell_types::{AgentKey, LeaseId, ResourceClass, limits};
use serde::{Deserialize, Serialize};

use crate::{
    birth::Birth,
    bundle::Bundle,
    cgroup::Cgroups,
    config::EmbeddedConfig,
    dial::GatewayDial,
    fault, image,
    layout::{Layout, link_name},
    net::{Gateway, Reach, Slot},
    oci::{Engine, stamp},
    record::write_new,
    scratch::make_tree,
};

/// The name of what a probe makes; no lease has it.
const NAME: &str = "probe";

#[derive(Serialize, Deserialize)]
struct Remembered {
    stamp: String,
    engine: Engine,
}

/// The first candidate that works.
pub(crate) async fn choose(
    config: &EmbeddedConfig,
    layout: &Layout,
    cgroups: &Cgroups,
    gateway: &Gateway,
) -> Result<Engine, RuntimeError> {
    let candidates = Engine::candidates(&config.oci_runtime)?;
    let stamp = format!(
        "{:?} {} {:?}",
        config.oci_runtime,
        stamp(&config.agent_binary),
        candidates.iter().map(Engine::stamp).collect::<Vec<_>>()
    );
    if let Some(known) = remembered(layout)
        && known.stamp == stamp
        && candidates.contains(&known.engine)
    {
        return Ok(known.engine);
    }
    let mut failures = Vec::new();
    for engine in candidates {
        match probe(&engine, config, layout, cgroups, gateway).await {
            Ok(()) => {
                let known = Remembered { stamp, engine };
                if let Ok(text) = serde_json::to_vec(&known)
                    && let Err(error) = write_new(&layout.probe(), &text)
                {
                    tracing::warn!(%error, "the engine will be probed again");
                }
                return Ok(known.engine);
            }
            Err(error) => {
                tracing::info!(engine = engine.describe(), %error, "does not work here");
                failures.push(format!("{}: {error}", engine.describe()));
            }
        }
    }
    Err(RuntimeError::Unavailable(failures.join("; ")))
}

fn remembered(layout: &Layout) -> Option<Remembered> {
    serde_json::from_slice(&fault::read_small(&layout.probe()).ok()?).ok()
}

/// Runs one sandbox and takes it away again.
pub(crate) async fn probe(
    engine: &Engine,
    config: &EmbeddedConfig,
    layout: &Layout,
    cgroups: &Cgroups,
    gateway: &Gateway,
) -> Result<(), RuntimeError> {
    clear(layout, cgroups, gateway).await?;
    let outcome = attempt(engine, config, layout, cgroups, gateway).await;
    clear(layout, cgroups, gateway).await?;
    outcome
}

async fn attempt(
    engine: &Engine,
    config: &EmbeddedConfig,
    layout: &Layout,
    cgroups: &Cgroups,
    gateway: &Gateway,
) -> Result<(), RuntimeError> {
    let dir = layout.engine(NAME);
    let (root, scratch): (PathBuf, PathBuf) = (dir.path().join("root"), dir.path().join("scratch"));
    fault::make_private_dir(&root)?;
    image::make_mount_points(&root)
        .map_err(|error| fault::failed("make a probe", error.to_string()))?;
    make_tree(&scratch)?;
    let lease = LeaseId::from_bits(config.ids.bits());
    let mut key = [0; 32];
    key[..16].copy_from_slice(&config.ids.bits().to_be_bytes());
    key[16..].copy_from_slice(&config.ids.bits().to_be_bytes());
    let key = AgentKey::new(key);
    let birth = Birth {
        engine: Arc::new(engine.clone()),
        gateway: gateway.clone(),
        name: NAME.to_owned(),
        link: link_name(NAME),
        slot: Slot::PROBE,
        reach: Reach::Nothing,
        dir,
        scratch: None,
        volume_root: config.volume_root.clone(),
        bundle: Bundle {
            lease: lease.clone(),
            key: key.clone(),
            slot: Slot::PROBE,
            root,
            agent: config.agent_binary.clone(),
            scratch,
            volumes: Vec::new(),
            later: None,
            resolver: None,
            resources: ResourceClass::Small.resources(),
            cgroup: cgroups.path_of(NAME),
        },
    };
    birth.run().await?;
    let dial = Arc::new(GatewayDial::new(gateway.clone(), Slot::PROBE));
    let sandbox = AgentSandbox::new(
        lease,
        &key,
        dial,
        Arc::clone(&config.clock),
        Arc::clone(&config.ids),
    );
    sandbox
        .ready(limits::ENGINE_PROBE_TIMEOUT_MS)
        .await
        .map(drop)
        .map_err(|error| RuntimeError::StartFailed(format!("its agent does not answer: {error}")))
}

async fn clear(layout: &Layout, cgroups: &Cgroups, gateway: &Gateway) -> Result<(), RuntimeError> {
    cgroups.kill(NAME).await?;
    gateway
        .detach(link_name(NAME))
        .await
        .map_err(fault::of("remove a link"))?;
    let dir = layout.engine(NAME);
    fault::remove_tree(dir.path()).map_err(fault::at("remove a probe", dir.path()))?;
    cgroups.remove(NAME).await
}
