//! Where everything is. Every name follows from the installation and the lease, so that what a
//! crash left behind can be found.
//!
//! ```text
//! state_dir/sandboxes/<lease>/   sandbox.json  the record; a directory without one is damaged
//!                                started       it was started at least once
//!                                stopped       it was ended by us
//!                                warm          it was made ahead and nobody has claimed it whole
//!                                scratch.img   /workspace and /tmp
//!                                scratch/      where the private namespaces mount it
//! state_dir/sandboxes/.new-…     being made;   .gone-…  being removed
//! state_dir/templates/           empty scratch images, by size
//! run_dir/netns/gateway          the gateway's network namespace
//! run_dir/oci/<short>/           the engine's state, log, pid file and (briefly) the bundle
//! run_dir/lock                   held by the one runtime that uses all this
//! /hotcell/<installation>/<lease>    its control group
//! ```

use std::path::{Path, PathBuf};

use hotcell_types::{InstallationId, LeaseId};

/// The names of one installation.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    state: PathBuf,
    run: PathBuf,
    installation: String,
}

impl Layout {
    pub(crate) fn new(state: &Path, run: &Path, installation: &InstallationId) -> Self {
        let text = installation.as_str();
        Self {
            state: state.to_owned(),
            run: run.to_owned(),
            installation: text[text.len() - 10..].to_owned(),
        }
    }

    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.state.join("sandboxes")
    }

    pub(crate) fn templates(&self) -> PathBuf {
        self.state.join("templates")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.run.join("lock")
    }

    pub(crate) fn probe(&self) -> PathBuf {
        self.run.join("probe.json")
    }

    pub(crate) fn gateway(&self) -> PathBuf {
        self.run.join("netns/gateway")
    }

    pub(crate) fn engines(&self) -> PathBuf {
        self.run.join("oci")
    }

    pub(crate) fn lease(&self, lease: &LeaseId) -> LeaseDir {
        LeaseDir(self.sandboxes().join(lease.as_str()))
    }

    /// Where a lease's directory stands while it is made.
    pub(crate) fn unborn(&self, lease: &LeaseId) -> LeaseDir {
        LeaseDir(self.sandboxes().join(format!(".new-{lease}")))
    }

    /// Where it stands while it is removed.
    pub(crate) fn gone(&self, lease: &LeaseId) -> PathBuf {
        self.sandboxes().join(format!(".gone-{lease}"))
    }

    pub(crate) fn engine(&self, short: &str) -> EngineDir {
        EngineDir(self.engines().join(short))
    }

    /// The control group of the whole installation, relative to a hierarchy's root.
    pub(crate) fn cgroup_base(&self) -> String {
        format!("hotcell/{}", self.installation)
    }
}

/// The directory of one lease on disk.
#[derive(Debug, Clone)]
pub(crate) struct LeaseDir(PathBuf);

impl LeaseDir {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
    pub(crate) fn record(&self) -> PathBuf {
        self.0.join("sandbox.json")
    }
    pub(crate) fn started(&self) -> PathBuf {
        self.0.join("started")
    }
    pub(crate) fn stopped(&self) -> PathBuf {
        self.0.join("stopped")
    }
    pub(crate) fn warm(&self) -> PathBuf {
        self.0.join("warm")
    }
    pub(crate) fn scratch_image(&self) -> PathBuf {
        self.0.join("scratch.img")
    }
    pub(crate) fn scratch(&self) -> PathBuf {
        self.0.join("scratch")
    }
}

/// The directory of one engine call and what comes of it.
#[derive(Debug, Clone)]
pub(crate) struct EngineDir(PathBuf);

impl EngineDir {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
    /// The engine's own state.
    pub(crate) fn root(&self) -> PathBuf {
        self.0.join("s")
    }
    pub(crate) fn bundle(&self) -> PathBuf {
        self.0.join("bundle")
    }
    pub(crate) fn config(&self) -> PathBuf {
        self.0.join("bundle/config.json")
    }
    /// Where the private namespace mounts what the sandbox may only read.
    pub(crate) fn fixed(&self, name: &str) -> PathBuf {
        self.0.join("fixed").join(name)
    }
    /// The empty directories that volumes are attached on later.
    pub(crate) fn later(&self) -> PathBuf {
        self.0.join("later")
    }
    /// Where the thread that attaches volumes mounts them first.
    pub(crate) fn attached(&self) -> PathBuf {
        self.0.join("attached")
    }
    /// The sandbox's `/etc/resolv.conf`.
    pub(crate) fn resolver(&self) -> PathBuf {
        self.0.join("resolv.conf")
    }
    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("log")
    }
    pub(crate) fn pid(&self) -> PathBuf {
        self.0.join("pid")
    }
}

/// What the gateway's end of a lease's link is called: at most 15 bytes.
pub(crate) fn link_name(short: &str) -> String {
    format!("{LINK_PREFIX}{short}")
}

/// What the host calls its end of an installation's uplink: at most 15 bytes.
pub(crate) fn uplink_name(installation: &InstallationId) -> String {
    let text = installation.as_str();
    format!("{UPLINK_PREFIX}{}", &text[text.len() - 10..])
}

const UPLINK_PREFIX: &str = hotcell_types::net::WAY_OUT_INTERFACES;

/// What the names of our links start with.
pub(crate) const LINK_PREFIX: &str = "hc-";
