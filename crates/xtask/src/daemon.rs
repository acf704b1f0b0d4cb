//! A daemon for demo and bench: its own directories, its own port, ended and removed at the end.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{agent, image, shell};

/// Programs and files that a daemon needs.
pub(crate) struct Parts {
    /// `hotcell`, built for release.
    pub(crate) hotcell: PathBuf,
    /// The static agent.
    pub(crate) agent: PathBuf,
    /// The base image's tar file.
    pub(crate) image: PathBuf,
}

impl Parts {
    /// Builds what is missing.
    pub(crate) fn build() -> Result<Self> {
        shell::step("building hotcell (release)");
        let mut command = shell::cargo(2_400);
        shell::run(command.args(["build", "--quiet", "--locked", "--release", "-p", "hotcell"]))?;
        Ok(Self {
            hotcell: shell::target().join("release/hotcell"),
            agent: agent::build()?,
            image: image::build(image::Name::Base, false)?,
        })
    }
}

/// A running daemon.
pub(crate) struct Daemon {
    child: Child,
    /// Its address, `http://127.0.0.1:PORT`.
    pub(crate) url: String,
    /// Everything it keeps.
    pub(crate) directory: PathBuf,
}

/// What differs between daemons.
pub(crate) struct Settings<'s> {
    /// Where it keeps everything; made anew.
    pub(crate) directory: &'s Path,
    /// `auto`, `runsc` or `runc`.
    pub(crate) oci_runtime: &'s str,
    /// More lines for the top of its configuration.
    pub(crate) more: &'s str,
}

impl Daemon {
    /// Makes a fresh installation in `directory`, imports the image and starts it.
    pub(crate) fn start(parts: &Parts, settings: &Settings<'_>) -> Result<Self> {
        let directory = settings.directory.to_owned();
        fs::create_dir_all(&directory)?;
        let directory = directory.canonicalize()?;
        let config = directory.join("hotcell.toml");
        fs::write(
            &config,
            format!(
                "listen = \"127.0.0.1:0\"\nstate_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\n\
                 agent_binary = \"{1}\"\n{3}\n[runtime]\nkind = \"embedded\"\noci_runtime = \"{2}\"\n\
                 image = \"base\"\n",
                directory.display(),
                parts.agent.display(),
                settings.oci_runtime,
                settings.more,
            ),
        )?;
        shell::step("importing the image");
        let mut import = shell::limited(600, &parts.hotcell);
        import
            .args(["image", "import", "--name", "base", "--config"])
            .arg(&config)
            .arg(&parts.image);
        shell::run(&mut import)?;
        Self::resume(&parts.hotcell, &directory)
    }

    /// Starts the installation that is in `directory`.
    pub(crate) fn resume(hotcell: &Path, directory: &Path) -> Result<Self> {
        let log = fs::File::create(directory.join("daemon.log"))?;
        let mut child = Command::new(hotcell)
            .arg("serve")
            .arg("--config")
            .arg(directory.join("hotcell.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("cannot start the daemon")?;
        let stdout = child.stdout.take().context("the daemon has no output")?;
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(address) = line.strip_prefix("listening on ") {
                    let _ = send.send(address.to_owned());
                }
            }
        });
        let Ok(url) = receive.recv_timeout(Duration::from_secs(60)) else {
            let _ = child.kill();
            let _ = child.wait();
            let log = fs::read_to_string(directory.join("daemon.log")).unwrap_or_default();
            bail!("the daemon did not start:\n{log}");
        };
        Ok(Self {
            child,
            url,
            directory: directory.to_owned(),
        })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The operator token that it made for itself.
    pub(crate) fn operator_token(&self) -> Result<String> {
        let path = self.directory.join("state/operator.token");
        Ok(fs::read_to_string(&path)
            .with_context(|| path.display().to_string())?
            .trim()
            .to_owned())
    }

    /// Leaves it running.
    pub(crate) fn leave(self) -> u32 {
        let pid = self.child.id();
        std::mem::forget(self);
        pid
    }

    /// Ends it and removes what it kept. Its sandboxes were ended through the API before: the
    /// daemon takes its network namespace and control groups along only when none is left.
    pub(crate) fn remove(mut self) -> Result<()> {
        self.terminate()?;
        for part in ["state", "run"] {
            let path = self.directory.join(part);
            fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn terminate(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        let mut command = shell::limited(10, "kill");
        shell::quiet(command.args(["-TERM", &self.child.id().to_string()]))?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.terminate();
    }
}
