//! The containers that we ask for, and what the engine says about them.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};
use hotcell_agent_proto::{AGENT_PATH, KEY_VARIABLE, LEASE_VARIABLE, RUN_PATH};
use hotcell_types::{
    AgentKey, LeaseId, Resources, limits,
    volume::{SANDBOX_GID, SANDBOX_UID, WORKSPACE_PATH},
};
use serde::Deserialize;

use crate::{
    engine::Quirks,
    labels::{Marks, ROLE},
    scratch::Record,
};

/// Where a sandbox that was made ahead sees its volumes, all beneath one mount.
const VOLUMES_PATH: &str = "/mnt";
/// How an engine calls a mount that what is mounted on the host comes through to.
const SLAVE: &str = "rslave";

/// What a container is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// User code runs in it.
    Sandbox,
    /// It keeps a network namespace for a sandbox.
    Holder,
    /// A preflight check made it.
    Probe,
}

impl Role {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Holder => "holder",
            Self::Probe => "probe",
        }
    }
}

/// The container's name. It follows from the lease, so that what a crash left can be found.
pub(crate) fn name_of(lease: &LeaseId, role: Role) -> String {
    match role {
        Role::Sandbox => format!("hotcell-{lease}"),
        Role::Holder => format!("hotcell-{lease}-net"),
        Role::Probe => format!("hotcell-{lease}-probe"),
    }
}

/// A directory or file of this host that a container sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) source: PathBuf,
    pub(crate) target: String,
    pub(crate) read_only: bool,
    /// What is mounted beneath it later on the host is seen too.
    pub(crate) follows: bool,
}

impl Bind {
    pub(crate) fn new(source: impl Into<PathBuf>, target: &str, read_only: bool) -> Self {
        Self {
            source: source.into(),
            target: target.to_owned(),
            read_only,
            follows: false,
        }
    }

    /// The one mount of a sandbox that was made ahead. It is read-only on the host; to the engine it
    /// is not, since under gVisor everything beneath it would be, too.
    pub(crate) fn beneath(source: impl Into<PathBuf>) -> Self {
        Self {
            follows: true,
            ..Self::new(source, VOLUMES_PATH, false)
        }
    }
}

/// Which network a container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Network {
    /// A namespace of its own with nothing but loopback.
    None,
    /// The namespace of another container, by name.
    Of(String),
}

impl Network {
    fn mode(&self) -> String {
        match self {
            Self::None => "none".into(),
            Self::Of(name) => format!("container:{name}"),
        }
    }
}

/// All that a container is to be. Whatever is not named here it does not have.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) role: Role,
    pub(crate) labels: Marks,
    /// What the engine calls the image.
    pub(crate) image: String,
    pub(crate) resources: Resources,
    pub(crate) command: Vec<String>,
    pub(crate) environment: Vec<String>,
    pub(crate) binds: Vec<Bind>,
    pub(crate) network: Network,
    /// `None`: the engine's default.
    pub(crate) oci_runtime: Option<String>,
}

impl Plan {
    /// The sandbox itself.
    pub(crate) fn sandbox(
        record: &Record,
        key: &AgentKey,
        binds: Vec<Bind>,
        network: Network,
        oci_runtime: Option<String>,
    ) -> Self {
        Self {
            role: Role::Sandbox,
            labels: record.labels.clone(),
            image: record.image.clone(),
            resources: record.resources,
            command: vec![AGENT_PATH.into()],
            environment: vec![
                format!("{KEY_VARIABLE}={}", key.to_hex()),
                format!("{LEASE_VARIABLE}={}", record.labels.lease),
                format!("HOME={WORKSPACE_PATH}"),
                "LANG=C.UTF-8".into(),
            ],
            binds,
            network,
            oci_runtime,
        }
    }

    /// A container that keeps a network namespace and does nothing else, under the engine's
    /// default OCI runtime.
    pub(crate) fn holder(record: &Record) -> Self {
        Self {
            role: Role::Holder,
            labels: record.labels.clone(),
            image: record.image.clone(),
            resources: Resources {
                memory_bytes: limits::HOLDER_MEMORY_BYTES,
                cpu_millis: 100,
                pids: limits::HOLDER_PIDS,
            },
            // Wherever the image has it: some have it in /bin alone.
            command: vec!["sleep".into(), "infinity".into()],
            environment: vec!["PATH=/usr/bin:/bin".into()],
            binds: Vec::new(),
            network: Network::None,
            oci_runtime: None,
        }
    }

    pub(crate) fn name(&self) -> String {
        name_of(&self.labels.lease, self.role)
    }

    /// In the engine's words.
    pub(crate) fn body(&self, quirks: &Quirks) -> ContainerCreateBody {
        let mut tmpfs = HashMap::new();
        let size = |bytes: u64, mode: &str| format!("rw,nosuid,nodev,size={bytes},mode={mode}");
        tmpfs.insert("/run".to_owned(), size(limits::RUN_TMPFS_BYTES, "0755"));
        match self.role {
            Role::Sandbox => {
                tmpfs.insert(RUN_PATH.to_owned(), size(limits::AGENT_TMPFS_BYTES, "1777"));
            }
            // Podman puts a tmpfs without a size there when nobody else puts one.
            Role::Holder | Role::Probe => {
                for path in ["/tmp", "/var/tmp"] {
                    tmpfs.insert(path.to_owned(), size(limits::RUN_TMPFS_BYTES, "0755"));
                }
            }
        }
        let (log, log_options) = quirks.log;
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let cpu_millis = quirks
            .most_cpu_millis
            .map_or(self.resources.cpu_millis, |most| {
                most.min(self.resources.cpu_millis)
            });
        let memory = (!quirks.own_limits).then(|| signed(self.resources.memory_bytes));
        let as_mount = |bind: &&Bind| !bind.follows || quirks.mounts_recursively;
        let (mounts, binds): (Vec<_>, Vec<_>) = self.binds.iter().partition(as_mount);
        let mut words = self.command.iter().cloned();
        ContainerCreateBody {
            hostname: (self.network == Network::None).then(|| "sandbox".into()),
            user: Some(format!("{SANDBOX_UID}:{SANDBOX_GID}")),
            entrypoint: Some(words.by_ref().take(1).collect()),
            cmd: Some(words.collect()),
            env: Some(self.environment.clone()),
            image: Some(self.image.clone()),
            working_dir: Some("/".into()),
            labels: Some(self.labels.on(self.role)),
            tty: Some(false),
            open_stdin: Some(false),
            stop_signal: Some("SIGKILL".into()),
            host_config: Some(HostConfig {
                network_mode: Some(self.network.mode()),
                userns_mode: quirks.user_namespace.clone(),
                runtime: self
                    .oci_runtime
                    .clone()
                    .filter(|_| quirks.chooses_oci_runtime),
                readonly_rootfs: Some(true),
                privileged: Some(false),
                cap_drop: Some(vec!["ALL".into()]),
                security_opt: Some(vec!["no-new-privileges".into()]),
                init: Some(false),
                ipc_mode: Some("private".into()),
                auto_remove: Some(false),
                memory,
                memory_swap: memory,
                nano_cpus: (!quirks.own_limits).then(|| signed(u64::from(cpu_millis) * 1_000_000)),
                pids_limit: (!quirks.own_limits).then(|| i64::from(self.resources.pids)),
                ulimits: Some(quirks.ulimits.iter().map(ulimit).collect()),
                shm_size: Some(signed(limits::SHM_BYTES)),
                tmpfs: Some(tmpfs),
                mounts: Some(mounts.into_iter().map(mount).collect()),
                binds: (!binds.is_empty()).then(|| binds.into_iter().map(words_of).collect()),
                log_config: Some(HostConfigLogConfig {
                    typ: Some(log.into()),
                    config: Some(
                        log_options
                            .iter()
                            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                            .collect(),
                    ),
                }),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }
}

fn ulimit(&(name, value): &(&str, u64)) -> ResourcesUlimits {
    // -1 is no limit.
    let value = Some(i64::try_from(value).unwrap_or(-1));
    ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: value,
        hard: value,
    }
}

fn mount(bind: &Bind) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(bind.source.to_string_lossy().into_owned()),
        target: Some(bind.target.clone()),
        read_only: Some(bind.read_only),
        bind_options: Some(MountBindOptions {
            propagation: Some(if bind.follows {
                MountBindOptionsPropagationEnum::RSLAVE
            } else {
                MountBindOptionsPropagationEnum::RPRIVATE
            }),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

/// A bind in one word, for one that is followed.
fn words_of(bind: &Bind) -> String {
    format!("{}:{}:rbind,{SLAVE}", bind.source.display(), bind.target)
}

/// The part of an inspection that is used.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Inspected {
    pub(crate) state: InspectedState,
    pub(crate) config: InspectedConfig,
    pub(crate) host_config: InspectedHost,
    pub(crate) mounts: Option<Vec<InspectedMount>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct InspectedState {
    pub(crate) status: String,
    pub(crate) running: bool,
    #[serde(rename = "OOMKilled")]
    pub(crate) oom_killed: bool,
    pub(crate) pid: u32,
    pub(crate) exit_code: i64,
    pub(crate) error: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct InspectedConfig {
    pub(crate) user: String,
    env: Option<Vec<String>>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct InspectedHost {
    pub(crate) network_mode: String,
    pub(crate) readonly_rootfs: bool,
    pub(crate) privileged: bool,
    pub(crate) cap_add: Option<Vec<String>>,
    pub(crate) security_opt: Option<Vec<String>>,
    pub(crate) devices: Option<Vec<serde_json::Value>>,
    pub(crate) pid_mode: String,
    pub(crate) ipc_mode: String,
    pub(crate) memory: i64,
    pub(crate) pids_limit: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct InspectedMount {
    pub(crate) source: PathBuf,
    pub(crate) destination: String,
    #[serde(rename = "RW")]
    pub(crate) writable: bool,
    #[serde(rename = "Type")]
    pub(crate) kind: String,
    pub(crate) propagation: String,
}

impl Inspected {
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        self.config.labels.clone().unwrap_or_default()
    }

    /// The first way in which the engine made something else than was asked for, if any.
    pub(crate) fn differs_from(&self, plan: &Plan, quirks: &Quirks) -> Option<String> {
        let host = &self.host_config;
        let none = |list: &Option<Vec<String>>| list.iter().flatten().next().is_none();
        let facts = [
            (
                self.config.user == format!("{SANDBOX_UID}:{SANDBOX_GID}"),
                "its user",
            ),
            (host.readonly_rootfs, "its read-only root"),
            (
                !host.privileged && none(&host.cap_add),
                "its lack of privileges",
            ),
            (
                host.security_opt
                    .iter()
                    .flatten()
                    .any(|option| option.starts_with("no-new-privileges")),
                "no-new-privileges",
            ),
            (
                host.security_opt
                    .iter()
                    .flatten()
                    .all(|option| !option.contains("unconfined")),
                "its seccomp profile",
            ),
            (
                host.devices.iter().flatten().next().is_none(),
                "its lack of devices",
            ),
            (
                host.pid_mode != "host" && host.ipc_mode != "host",
                "its own namespaces",
            ),
            (
                match &plan.network {
                    Network::None => host.network_mode == "none",
                    Network::Of(_) => host.network_mode.starts_with("container:"),
                },
                "its network",
            ),
            (
                quirks.own_limits
                    || u64::try_from(host.memory).ok() == Some(plan.resources.memory_bytes),
                "its memory limit",
            ),
            (
                quirks.own_limits || host.pids_limit == Some(i64::from(plan.resources.pids)),
                "its limit on processes",
            ),
        ];
        let environment = self.config.env.clone().unwrap_or_default();
        if !plan
            .environment
            .iter()
            .all(|wanted| environment.contains(wanted))
        {
            return Some("the engine did not keep its environment".into());
        }
        if let Some((_, what)) = facts.iter().find(|(holds, _)| !holds) {
            return Some(format!("the engine did not keep {what}"));
        }
        self.mounts_differ(&plan.binds)
    }

    fn mounts_differ(&self, binds: &[Bind]) -> Option<String> {
        let found: Vec<&InspectedMount> = self
            .mounts
            .iter()
            .flatten()
            .filter(|mount| mount.kind != "tmpfs")
            .collect();
        for bind in binds {
            let kept = found.iter().any(|mount| {
                mount.destination == bind.target
                    && mount.source == bind.source
                    && mount.writable != bind.read_only
                    && (!bind.follows || mount.propagation == SLAVE)
            });
            if !kept {
                return Some(format!(
                    "the engine did not keep the mount of {}",
                    bind.target
                ));
            }
        }
        found
            .iter()
            .find(|mount| !binds.iter().any(|bind| bind.target == mount.destination))
            .map(|mount| format!("the engine added a mount at {}", mount.destination))
    }
}

/// One row of a listing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Listed {
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) labels: Option<BTreeMap<String, String>>,
}

impl Listed {
    pub(crate) fn is(&self, role: Role) -> bool {
        let labels = self.labels.as_ref();
        labels
            .and_then(|labels| labels.get(ROLE))
            .map(String::as_str)
            == Some(role.name())
    }
}

/// The mounts of every sandbox beside its volumes.
pub(crate) fn fixed_binds(
    agent: &Path,
    resolv_conf: &Path,
    workspace: &Path,
    tmp: &Path,
) -> Vec<Bind> {
    vec![
        Bind::new(agent, AGENT_PATH, true),
        Bind::new(resolv_conf, "/etc/resolv.conf", true),
        Bind::new(workspace, WORKSPACE_PATH, false),
        Bind::new(tmp, "/tmp", false),
        Bind::new(tmp, "/var/tmp", false),
    ]
}
