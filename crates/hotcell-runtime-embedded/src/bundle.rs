//! What the OCI runtime is told about one sandbox.
//!
//! The same for every engine, but for two things that only one of them can keep: the system call
//! filter (the shared kernel needs it, gVisor has its own) and the limit on processes (see
//! [`Bundle::pids`]).

use std::path::{Path, PathBuf};

use hotcell_agent_proto::{
    AGENT_PATH, AGENT_PORT, KEY_VARIABLE, LEASE_VARIABLE, LISTEN_VARIABLE, RUN_PATH,
};
use hotcell_runtime::VolumeMount;
use hotcell_types::{
    AgentKey, LeaseId, Resources, limits,
    volume::{SANDBOX_GID, SANDBOX_UID, WORKSPACE_PATH},
};
use oci_spec::{
    OciSpecError,
    runtime::{
        Capabilities, LinuxBuilder, LinuxCapabilitiesBuilder, LinuxCpuBuilder,
        LinuxDeviceCgroupBuilder, LinuxMemoryBuilder, LinuxNamespaceBuilder, LinuxNamespaceType,
        LinuxPidsBuilder, LinuxResources, LinuxResourcesBuilder, LinuxSeccomp, Mount, MountBuilder,
        PosixRlimit, PosixRlimitBuilder, PosixRlimitType, ProcessBuilder, RootBuilder, Spec,
        SpecBuilder, UserBuilder,
    },
};

use crate::{config::OciKind, net::Slot, oci::Engine};

/// The system calls that user code may make when it shares the host's kernel: what container
/// engines commonly allow, without namespaces, modules, tracing of the kernel, key rings,
/// io_uring, AF_ALG and AF_VSOCK (which passes by every network namespace).
const SECCOMP: &str = include_str!("../data/seccomp.json");

/// Where programs look for their resolver.
const RESOLVER_PATH: &str = "/etc/resolv.conf";
/// Beneath which all volumes are.
pub(crate) const MOUNTS_PATH: &str = "/mnt";
/// The name of every sandbox.
pub(crate) const HOSTNAME: &str = "sandbox";
/// Where programs are searched.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const CPU_PERIOD_US: u64 = 100_000;
/// What gVisor needs beside the processes inside, on the host: threads of its kernel.
const GVISOR_HOST_PIDS: u32 = 512;

const HIDDEN: [&str; 11] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// One sandbox, as far as the engine is concerned.
#[derive(Debug, Clone)]
pub(crate) struct Bundle {
    pub(crate) lease: LeaseId,
    pub(crate) key: AgentKey,
    pub(crate) slot: Slot,
    /// The unpacked image.
    pub(crate) root: PathBuf,
    pub(crate) agent: PathBuf,
    /// The mounted scratch disk, with `workspace` and `tmp` in it.
    pub(crate) scratch: PathBuf,
    pub(crate) volumes: Vec<VolumeMount>,
    /// The empty directories that volumes are attached on later, when none is known yet.
    pub(crate) later: Option<PathBuf>,
    /// Its `/etc/resolv.conf`, when it is not the image's empty one.
    pub(crate) resolver: Option<PathBuf>,
    pub(crate) resources: Resources,
    /// Its control group, from the root of each hierarchy.
    pub(crate) cgroup: PathBuf,
}

impl Bundle {
    /// The configuration for `engine`, in the network namespace at `namespace`.
    pub(crate) fn spec(&self, engine: &Engine, namespace: &Path) -> Result<Spec, OciSpecError> {
        let gvisor = engine.kind == OciKind::Runsc;
        let kinds = [
            LinuxNamespaceType::Pid,
            LinuxNamespaceType::Ipc,
            LinuxNamespaceType::Uts,
            LinuxNamespaceType::Mount,
            LinuxNamespaceType::Cgroup,
        ];
        let mut namespaces = kinds
            .into_iter()
            .map(|typ| LinuxNamespaceBuilder::default().typ(typ).build())
            .collect::<Result<Vec<_>, _>>()?;
        namespaces.push(
            LinuxNamespaceBuilder::default()
                .typ(LinuxNamespaceType::Network)
                .path(namespace)
                .build()?,
        );
        let linux = LinuxBuilder::default()
            .namespaces(namespaces)
            .resources(self.limits(gvisor)?)
            .cgroups_path(self.cgroup.clone())
            .masked_paths(HIDDEN.map(str::to_owned).to_vec())
            .readonly_paths(READ_ONLY.map(str::to_owned).to_vec());
        let linux = if gvisor {
            linux.build()?
        } else {
            linux.seccomp(seccomp()?).build()?
        };
        SpecBuilder::default()
            .version("1.0.2")
            .hostname(HOSTNAME)
            .root(
                RootBuilder::default()
                    .path(self.root.clone())
                    .readonly(true)
                    .build()?,
            )
            .process(self.process(gvisor)?)
            .mounts(self.mounts(gvisor)?)
            .linux(linux)
            .build()
    }

    fn process(&self, gvisor: bool) -> Result<oci_spec::runtime::Process, OciSpecError> {
        let none = Capabilities::new();
        let capabilities = LinuxCapabilitiesBuilder::default()
            .bounding(none.clone())
            .effective(none.clone())
            .inheritable(none.clone())
            .permitted(none.clone())
            .ambient(none)
            .build()?;
        // A daemon without CAP_SYS_RESOURCE cannot give more than it has.
        let open_files = rustix::process::getrlimit(rustix::process::Resource::Nofile)
            .maximum
            .unwrap_or(u64::MAX)
            .min(limits::MAX_OPEN_FILES_PER_PROCESS);
        let mut rlimits = vec![
            rlimit(PosixRlimitType::RlimitNofile, open_files)?,
            // One byte, not none: only at one does the kernel leave alone a core dump that would
            // go to a program of the host.
            rlimit(PosixRlimitType::RlimitCore, 1)?,
        ];
        if gvisor {
            // The host's process limit would end gVisor's kernel, so the sandbox's own is set
            // inside. Under a shared kernel this one would count the user across all sandboxes.
            rlimits.push(rlimit(
                PosixRlimitType::RlimitNproc,
                self.resources.pids.into(),
            )?);
        }
        let env = vec![
            PATH.to_owned(),
            format!("HOME={WORKSPACE_PATH}"),
            "USER=sandbox".to_owned(),
            "LOGNAME=sandbox".to_owned(),
            "SHELL=/bin/bash".to_owned(),
            "LANG=C.UTF-8".to_owned(),
            format!("{LEASE_VARIABLE}={}", self.lease),
            format!("{LISTEN_VARIABLE}={}:{AGENT_PORT}", self.slot.sandbox()),
            format!("{KEY_VARIABLE}={}", self.key.to_hex()),
        ];
        let user = UserBuilder::default()
            .uid(SANDBOX_UID)
            .gid(SANDBOX_GID)
            .build()?;
        ProcessBuilder::default()
            .terminal(false)
            .user(user)
            .args(vec![AGENT_PATH.to_owned()])
            .env(env)
            .cwd(WORKSPACE_PATH)
            .capabilities(capabilities)
            .rlimits(rlimits)
            .no_new_privileges(true)
            .build()
    }

    fn limits(&self, gvisor: bool) -> Result<LinuxResources, OciSpecError> {
        let memory = i64::try_from(self.resources.memory_bytes).unwrap_or(i64::MAX);
        let quota = u64::from(self.resources.cpu_millis) * CPU_PERIOD_US / 1_000;
        LinuxResourcesBuilder::default()
            .devices(vec![
                LinuxDeviceCgroupBuilder::default()
                    .allow(false)
                    .access("rwm")
                    .build()?,
            ])
            // Memory and swap together are the memory alone: no swap.
            .memory(
                LinuxMemoryBuilder::default()
                    .limit(memory)
                    .swap(memory)
                    .build()?,
            )
            .cpu(
                LinuxCpuBuilder::default()
                    .quota(i64::try_from(quota).unwrap_or(i64::MAX))
                    .period(CPU_PERIOD_US)
                    .build()?,
            )
            .pids(
                LinuxPidsBuilder::default()
                    .limit(i64::from(self.pids(gvisor)))
                    .build()?,
            )
            .build()
    }

    /// Processes that the host's kernel allows: those inside, and for gVisor the threads that its
    /// kernel needs to run each of them.
    fn pids(&self, gvisor: bool) -> u32 {
        if gvisor {
            self.resources
                .pids
                .saturating_mul(4)
                .saturating_add(GVISOR_HOST_PIDS)
        } else {
            self.resources.pids
        }
    }

    fn mounts(&self, gvisor: bool) -> Result<Vec<Mount>, OciSpecError> {
        let shm = format!("size={}", limits::SHM_BYTES);
        let run = [
            format!("size={}", limits::AGENT_TMPFS_BYTES),
            format!("uid={SANDBOX_UID}"),
            format!("gid={SANDBOX_GID}"),
        ];
        let mut mounts = vec![
            mount("proc", "proc", "/proc", &["nosuid", "noexec", "nodev"])?,
            mount(
                "tmpfs",
                "tmpfs",
                "/dev",
                &["nosuid", "strictatime", "mode=755", "size=65536k"],
            )?,
            mount(
                "devpts",
                "devpts",
                "/dev/pts",
                &[
                    "nosuid",
                    "noexec",
                    "newinstance",
                    "ptmxmode=0666",
                    "mode=0620",
                ],
            )?,
            mount(
                "tmpfs",
                "shm",
                "/dev/shm",
                &["nosuid", "noexec", "nodev", "mode=1777", &shm],
            )?,
            mount(
                "sysfs",
                "sysfs",
                "/sys",
                &["nosuid", "noexec", "nodev", "ro"],
            )?,
            mount(
                "tmpfs",
                "tmpfs",
                RUN_PATH,
                &["nosuid", "nodev", "mode=0700", &run[0], &run[1], &run[2]],
            )?,
            bind(&self.agent, AGENT_PATH, true)?,
            bind(&self.scratch.join("workspace"), WORKSPACE_PATH, false)?,
            bind(&self.scratch.join("tmp"), "/tmp", false)?,
        ];
        if let Some(resolver) = &self.resolver {
            mounts.push(bind(resolver, RESOLVER_PATH, true)?);
        }
        if let Some(later) = &self.later {
            // To gVisor all that is beneath is one mount with it: there the host alone says what is
            // read-only. The directories themselves are root's.
            mounts.push(bind(later, MOUNTS_PATH, !gvisor)?);
        }
        for volume in &self.volumes {
            mounts.push(bind(
                &volume.host_path,
                volume.kind.mount_path(),
                volume.kind.read_only(),
            )?);
        }
        Ok(mounts)
    }
}

fn mount(
    typ: &str,
    source: &str,
    destination: &str,
    options: &[&str],
) -> Result<Mount, OciSpecError> {
    MountBuilder::default()
        .typ(typ)
        .source(source)
        .destination(destination)
        .options(
            options
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>(),
        )
        .build()
}

fn bind(source: &Path, destination: &str, read_only: bool) -> Result<Mount, OciSpecError> {
    let access = if read_only { "ro" } else { "rw" };
    MountBuilder::default()
        .typ("bind")
        .source(source)
        .destination(destination)
        .options(
            ["bind", "nosuid", "nodev", "rprivate", access]
                .map(str::to_owned)
                .to_vec(),
        )
        .build()
}

fn rlimit(typ: PosixRlimitType, value: u64) -> Result<PosixRlimit, OciSpecError> {
    PosixRlimitBuilder::default()
        .typ(typ)
        .soft(value)
        .hard(value)
        .build()
}

fn seccomp() -> Result<LinuxSeccomp, OciSpecError> {
    use oci_spec::runtime::Arch;
    let mut filter: LinuxSeccomp = serde_json::from_str(SECCOMP)?;
    filter.set_architectures(Some(if cfg!(target_arch = "aarch64") {
        vec![Arch::ScmpArchAarch64, Arch::ScmpArchArm]
    } else {
        vec![Arch::ScmpArchX86_64, Arch::ScmpArchX86]
    }));
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use hotcell_types::{ResourceClass, VolumeKind};

    use super::*;

    fn bundle() -> Bundle {
        Bundle {
            lease: LeaseId::from_bits(7),
            key: AgentKey::new([9; 32]),
            slot: Slot::PROBE,
            root: "/images/x/rootfs".into(),
            agent: "/bin/agent".into(),
            scratch: "/state/x/scratch".into(),
            resolver: None,
            later: None,
            volumes: VolumeKind::ALL
                .map(|kind| VolumeMount {
                    kind,
                    host_path: "/volumes/v".into(),
                })
                .to_vec(),
            resources: ResourceClass::Small.resources(),
            cgroup: "/hotcell/i/l".into(),
        }
    }

    fn engine(kind: OciKind) -> Engine {
        Engine {
            kind,
            binary: kind.binary().into(),
            version: String::new(),
            own_stack: kind == OciKind::Runsc,
            hide_net_sysctls: false,
        }
    }

    #[test]
    fn nothing_that_must_not_be_is_in_it() {
        for kind in [OciKind::Runsc, OciKind::Runc] {
            let spec = bundle()
                .spec(&engine(kind), Path::new("/proc/1/fd/3"))
                .unwrap();
            let json = serde_json::to_value(&spec).unwrap();
            let process = &json["process"];
            for set in [
                "bounding",
                "effective",
                "inheritable",
                "permitted",
                "ambient",
            ] {
                assert_eq!(process["capabilities"][set], serde_json::json!([]), "{set}");
            }
            assert_eq!(process["noNewPrivileges"], true);
            assert_eq!(process["user"]["uid"], 1000);
            assert_eq!(json["root"]["readonly"], true);
            assert_eq!(json["linux"]["devices"], serde_json::Value::Null);
            assert_eq!(json["linux"]["resources"]["devices"][0]["allow"], false);
            let kinds: Vec<_> = json["linux"]["namespaces"]
                .as_array()
                .unwrap()
                .iter()
                .map(|namespace| namespace["type"].as_str().unwrap())
                .collect();
            for needed in ["pid", "ipc", "uts", "mount", "network"] {
                assert!(kinds.contains(&needed), "{needed}");
            }
        }
    }

    #[test]
    fn read_only_volumes_are_read_only_and_no_volume_has_devices() {
        let spec = bundle()
            .spec(&engine(OciKind::Runc), Path::new("/n"))
            .unwrap();
        for mount in spec.mounts().as_ref().unwrap() {
            let path = mount.destination().to_str().unwrap();
            let options = mount.options().as_ref().unwrap();
            let has = |option: &str| options.iter().any(|one| one == option);
            if path.starts_with("/mnt/") || path == AGENT_PATH || path == WORKSPACE_PATH {
                assert!(has("nosuid") && has("nodev"), "{path}: {options:?}");
            }
            if ["/mnt/skills", "/mnt/uploaded-files", AGENT_PATH].contains(&path) {
                assert!(has("ro"), "{path}: {options:?}");
            }
        }
    }

    #[test]
    fn the_filter_is_for_the_shared_kernel_and_the_process_limit_is_where_it_works() {
        let small = ResourceClass::Small.resources().pids;
        let spec = |kind| {
            serde_json::to_value(bundle().spec(&engine(kind), Path::new("/n")).unwrap()).unwrap()
        };
        let runc = spec(OciKind::Runc);
        assert_eq!(runc["linux"]["seccomp"]["defaultAction"], "SCMP_ACT_ERRNO");
        assert_eq!(runc["linux"]["resources"]["pids"]["limit"], small);
        let runsc = spec(OciKind::Runsc);
        assert!(runsc["linux"]["seccomp"].is_null());
        assert!(runsc["linux"]["resources"]["pids"]["limit"].as_u64() > Some(small.into()));
        assert!(
            runsc["process"]["rlimits"]
                .to_string()
                .contains("RLIMIT_NPROC")
        );
    }
}
