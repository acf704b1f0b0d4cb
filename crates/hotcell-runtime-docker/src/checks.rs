//! Preflight: what an operator sees when a profile of this kind is tested.

use std::time::Duration;

use hotcell_runtime::{Check, RuntimeError};
use hotcell_types::{LeaseId, Resources, UnixMillis, limits};

use crate::{
    config::{DockerConfig, EngineKind},
    container::{Inspected, Network, Plan, Role},
    engine::{Engine, read_info, release},
    labels::{LEASE, Marks},
    net, raw,
    runtime::{Core, DockerRuntime, blocking},
    volumes::may_pass,
    warm,
};

/// Every check with what it is about. `docs/operating/preflight.md` holds the same list.
pub const CHECKS: &[(&str, &str)] = &[
    ("engine.reachable", "the engine answers on its socket"),
    ("engine.version", "its release is one that works"),
    (
        "engine.rootless",
        "whose rights it has, and what follows from it",
    ),
    ("engine.seccomp", "it filters system calls by default"),
    (
        "cgroup.version",
        "limits on memory, processes and processor time hold",
    ),
    (
        "runtime.present",
        "it has the OCI runtime that the profile names",
    ),
    (
        "runtime.gvisor",
        "that runtime is gVisor: a container is run under it",
    ),
    ("image.allowed", "the profile allows at least one image"),
    ("image.present", "the engine has every allowed image"),
    ("disk.bound", "scratch disks end at their size"),
    (
        "volumes.access",
        "the engine's user can pass through the volume root",
    ),
    (
        "network.driver",
        "sandboxes can be reached without any network of the engine's",
    ),
    (
        "network.forwarding",
        "the host forwards what the filters of sandboxes let through",
    ),
    ("clock.skew", "the engine's clock and ours agree"),
    ("leftovers", "nothing half-made is left of a former run"),
];

/// Checks an engine that may not be usable at all.
pub async fn diagnose(config: DockerConfig) -> Vec<Check> {
    match DockerRuntime::open(config.clone()).await {
        Ok(runtime) => all(&runtime.core).await,
        Err(refused) => match Engine::open(&config).await {
            Err(error) => vec![unreachable(&config, &error)],
            Ok(engine) => {
                let mut checks = vec![
                    Check::pass("engine.reachable", engine.words()),
                    version(&engine),
                    rootless(&engine, config.warm_pool),
                    runtime_present(&engine),
                ];
                if checks.iter().all(|check| check.fix.is_empty()) {
                    checks.push(Check::fail(
                        "engine.reachable",
                        refused.to_string(),
                        "see the message; the daemon must be root on the engine's host",
                    ));
                }
                checks
            }
        },
    }
}

pub(crate) async fn all(core: &Core) -> Vec<Check> {
    // What the engine was when this runtime was opened may have changed since.
    if let Err(error) = read_info(&core.engine.socket).await {
        return vec![unreachable(&core.config, &error)];
    }
    let engine = &core.engine;
    let mut checks = vec![
        Check::pass("engine.reachable", engine.words()),
        version(engine),
        rootless(engine, core.config.warm_pool),
        seccomp(engine),
        cgroup(engine),
        runtime_present(engine),
        gvisor(core).await,
    ];
    checks.extend(images(core).await);
    checks.push(disk(core));
    checks.push(volumes(core));
    checks.push(network(core).await);
    checks.push(Check::forwarding(hotcell_uplink::forwards()));
    checks.push(clock(core).await);
    checks.push(leftovers(core).await);
    checks
}

fn unreachable(config: &DockerConfig, error: &RuntimeError) -> Check {
    let start = match config.engine {
        EngineKind::Docker => "systemctl enable --now docker",
        EngineKind::Podman => "systemctl enable --now podman.socket (rootless: with --user)",
    };
    Check::fail(
        "engine.reachable",
        error.to_string(),
        format!(
            "start the engine ({start}) and check that {} is its socket",
            config.socket
        ),
    )
}

fn version(engine: &Engine) -> Check {
    let (found, minimum) = (&engine.info.server_version, &engine.quirks.minimum);
    let api = engine.client.client_version();
    match release(found) {
        Some(release) if release >= *minimum => Check::pass(
            "engine.version",
            format!(
                "{found}, spoken to in version {}.{}",
                api.major_version, api.minor_version
            ),
        ),
        _ => Check::fail(
            "engine.version",
            format!("{found} is older than {minimum}"),
            format!("install {minimum} or later"),
        ),
    }
}

fn rootless(engine: &Engine, warm_pool: bool) -> Check {
    const ID: &str = "engine.rootless";
    if let Some(reason) = engine.quirks.refusal {
        return Check::fail(
            ID,
            reason,
            "use the rootful engine, a rootless Podman or the embedded runtime",
        );
    }
    if engine.info.is_rootless() {
        if warm_pool {
            return Check::fail(
                ID,
                format!("no warm pool on a rootless engine: {}", warm::ROOTLESS),
                "set profile.warm_pool to 0, or use the rootful engine or the embedded runtime",
            );
        }
        let (uid, gid) = engine.quirks.owner;
        Check::pass(
            ID,
            format!(
                "rootless: files of sandboxes belong to its user, {uid}:{gid}; no gVisor, no network, \
                 no warm pool"
            ),
        )
    } else {
        Check::pass(ID, "rootful")
    }
}

fn seccomp(engine: &Engine) -> Check {
    if engine.info.has_seccomp() {
        Check::pass("engine.seccomp", "the engine's default profile is kept")
    } else {
        Check::fail(
            "engine.seccomp",
            "the engine filters no system calls",
            "start the engine with its default seccomp profile, on a kernel with seccomp",
        )
    }
}

fn cgroup(engine: &Engine) -> Check {
    const ID: &str = "cgroup.version";
    let version = &engine.info.cgroup_version;
    if engine.quirks.own_limits {
        Check::pass(
            ID,
            format!(
                "version {version}: a rootless engine cannot set limits there, so hotcell does"
            ),
        )
    } else {
        Check::pass(
            ID,
            format!("version {version}; every start checks the limits in the kernel"),
        )
    }
}

fn runtime_present(engine: &Engine) -> Check {
    const ID: &str = "runtime.present";
    match engine.refusal() {
        Some(RuntimeError::Unsupported {
            what: "the OCI runtime",
            reason,
        }) => Check::fail(
            ID,
            reason,
            "add it to the engine's configuration and restart the engine, or name another",
        ),
        Some(RuntimeError::Unsupported { what, reason }) if what.contains("gVisor") => {
            Check::fail(ID, reason, "use a rootful engine or the embedded runtime")
        }
        _ => Check::pass(ID, engine.oci_runtime.clone()),
    }
}

async fn gvisor(core: &Core) -> Check {
    const ID: &str = "runtime.gvisor";
    const FIX: &str = "run `runsc install`, or see the engine's log";
    if !core.engine.is_gvisor() {
        return Check::warn(
            ID,
            format!(
                "{} shares the host's kernel with user code",
                core.engine.oci_runtime
            ),
            "name runsc as the OCI runtime of the profile",
        );
    }
    match core.run_probe("/usr/bin/cat", &["/proc/version"]).await {
        Ok(None) => Check::warn(ID, "not tested: no allowed image is there", "load an image"),
        Ok(Some(words)) if words.contains("Linux version") => {
            if words.contains(&core.engine.info.kernel_version) {
                Check::fail(
                    ID,
                    format!(
                        "{} runs user code on the host's kernel",
                        core.engine.oci_runtime
                    ),
                    FIX,
                )
            } else {
                Check::pass(ID, words)
            }
        }
        Ok(Some(words)) => Check::fail(ID, format!("it did not run: {words}"), FIX),
        Err(error) => Check::fail(ID, error.to_string(), FIX),
    }
}

async fn images(core: &Core) -> [Check; 2] {
    let allowed = if core.config.images.is_empty() {
        Check::fail(
            "image.allowed",
            "the profile allows no image",
            "add an image's digest to the profile",
        )
    } else {
        Check::pass(
            "image.allowed",
            format!("{} by digest", core.config.images.len()),
        )
    };
    let present = match core.engine.stored_images().await {
        Err(error) => Check::fail("image.present", error.to_string(), "see engine.reachable"),
        Ok(stored) => {
            let missing: Vec<&str> = core
                .config
                .images
                .iter()
                .map(|image| image.as_str())
                .filter(|digest| !stored.iter().any(|stored| stored.is(digest)))
                .collect();
            if missing.is_empty() {
                Check::pass("image.present", "all of them")
            } else {
                Check::fail(
                    "image.present",
                    format!("not there: {}", missing.join(", ")),
                    "import or pull the image into this engine",
                )
            }
        }
    };
    [allowed, present]
}

fn disk(core: &Core) -> Check {
    match &core.unbounded {
        None => Check::pass("disk.bound", "an ext4 image of its own for each sandbox"),
        Some(error) => Check::warn(
            "disk.bound",
            format!("no disk limit: {error}"),
            "run the daemon as root on the engine's host, with loop devices and mkfs.ext4",
        ),
    }
}

fn volumes(core: &Core) -> Check {
    const ID: &str = "volumes.access";
    if !core.engine.info.is_rootless() {
        return Check::pass(ID, "the engine is root");
    }
    let owner = core.engine.quirks.owner;
    let closed = [&core.config.volume_root, &core.config.run_dir]
        .into_iter()
        .flat_map(|path| path.ancestors())
        .find(|path| std::fs::metadata(path).is_ok_and(|found| !may_pass(&found, owner)));
    match closed {
        None => Check::pass(ID, "the engine's user can pass through"),
        Some(path) => Check::fail(
            ID,
            format!("user {} cannot pass through {}", owner.0, path.display()),
            format!("chmod o+x {}", path.display()),
        ),
    }
}

async fn network(core: &Core) -> Check {
    const ID: &str = "network.driver";
    let gvisor = core.engine.is_gvisor();
    let tried = blocking(move || {
        net::probe(gvisor).map_err(|error| RuntimeError::EgressUnenforceable(error.to_string()))
    });
    match tried.await {
        Ok(()) if gvisor => Check::pass(ID, "a link into a namespace that leads nowhere"),
        Ok(()) => Check::pass(ID, "loopback only, reached from inside"),
        Err(error) => Check::fail(
            ID,
            error.to_string(),
            "run the daemon as root (CAP_SYS_ADMIN and CAP_NET_ADMIN) on the engine's host",
        ),
    }
}

async fn clock(core: &Core) -> Check {
    const ID: &str = "clock.skew";
    let answer = raw::get(&core.engine.socket, "ask for the time", "/_ping", 1_024).await;
    let now = core.config.clock.now();
    let theirs = answer
        .ok()
        .and_then(|answer| answer.date)
        .and_then(|date| unix_seconds(&date));
    let Some(theirs) = theirs else {
        return Check::warn(ID, "the engine does not tell its time", "");
    };
    judge_clock(now, theirs)
}

fn judge_clock(now: UnixMillis, theirs: u64) -> Check {
    const ID: &str = "clock.skew";
    const FIX: &str = "let both clocks follow a time service";
    // The engine tells whole seconds.
    let apart = now.seconds().abs_diff(theirs);
    let words = format!("{apart} s apart");
    match apart {
        0..=2 => Check::pass(ID, words),
        _ if apart <= limits::MAX_CLOCK_SKEW_SECONDS => Check::warn(ID, words, FIX),
        _ => Check::fail(ID, words, FIX),
    }
}

fn unix_seconds(date: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(date).ok()?;
    Some(time.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs())
}

async fn leftovers(core: &Core) -> Check {
    const ID: &str = "leftovers";
    match core.half_made().await {
        Err(error) => Check::fail(ID, error.to_string(), "see engine.reachable"),
        Ok(found) if found.is_empty() => Check::pass(ID, "none"),
        Ok(found) => Check::warn(
            ID,
            format!("{} half-made: {}", found.len(), found.join(", ")),
            "restart the daemon, which removes what no lease needs",
        ),
    }
}

impl Core {
    /// Runs a program of an allowed image under the profile's OCI runtime and returns what it
    /// wrote. `None` when there is no image to run.
    async fn run_probe(
        &self,
        program: &str,
        arguments: &[&str],
    ) -> Result<Option<String>, RuntimeError> {
        let stored = self.engine.stored_images().await?;
        let image = self
            .config
            .images
            .iter()
            .find_map(|image| stored.iter().find(|stored| stored.is(image.as_str())));
        let Some(image) = image else {
            return Ok(None);
        };
        let plan = Plan {
            role: Role::Probe,
            labels: Marks::of_no_lease(
                &self.config.installation,
                LeaseId::from_bits(self.config.ids.bits()),
            ),
            image: image.id.clone(),
            resources: Resources {
                memory_bytes: 256 << 20,
                cpu_millis: 1_000,
                pids: 64,
            },
            command: std::iter::once(program)
                .chain(arguments.iter().copied())
                .map(str::to_owned)
                .collect(),
            environment: Vec::new(),
            binds: Vec::new(),
            network: Network::None,
            oci_runtime: self.config.oci_runtime.clone(),
        };
        let name = plan.name();
        let outcome = async {
            self.engine.ensure(&plan).await?;
            self.engine.start(&name).await?;
            let ended = |found: Option<&Inspected>| !found.is_some_and(|found| found.state.running);
            let patience = Duration::from_millis(limits::ENGINE_PROBE_TIMEOUT_MS);
            // A program that hangs is ended below, and its words tell.
            let _ = tokio::time::timeout(patience, self.engine.until("run a probe", &name, ended))
                .await;
            Ok(Some(self.engine.last_words(&name).await))
        }
        .await;
        self.engine.remove(&name).await?;
        outcome
    }

    /// Names of what no lease can use: directories without a container, and probes.
    async fn half_made(&self) -> Result<Vec<String>, RuntimeError> {
        let rows = self.engine.list(&self.config.installation).await?;
        let scratch = self.scratch.clone();
        let directories = blocking(move || scratch.list()).await?;
        let lease_of = |row: &crate::container::Listed| {
            let labels = row.labels.as_ref()?;
            labels.get(LEASE).cloned()
        };
        let whole: Vec<String> = rows
            .iter()
            .filter(|row| row.is(Role::Sandbox))
            .filter_map(lease_of)
            .collect();
        let mut found: Vec<String> = directories
            .into_iter()
            .map(|kept| kept.lease.to_string())
            .chain(
                rows.iter()
                    .filter(|row| !row.is(Role::Sandbox))
                    .filter_map(lease_of),
            )
            .filter(|lease| !whole.contains(lease))
            .collect();
        found.sort();
        found.dedup();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use hotcell_runtime::CheckStatus;

    use super::*;

    #[test]
    fn the_operators_page_lists_every_check() {
        hotcell_runtime::assert_listed("docker-checks", CHECKS);
    }

    #[test]
    fn clocks_may_differ_by_little() {
        let now = UnixMillis(1_000_000_400);
        let status = |theirs| judge_clock(now, theirs).status;
        assert_eq!(status(1_000_000), CheckStatus::Pass);
        assert_eq!(status(1_000_010), CheckStatus::Warn);
        assert_eq!(status(999_000), CheckStatus::Fail);
        assert_eq!(unix_seconds("Thu, 01 Jan 1970 00:16:40 GMT"), Some(1_000));
        assert_eq!(unix_seconds("yesterday"), None);
    }
}
