//! A daemon for demo and bench: its own directories, its own port, ended and removed at the end.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    agent,
    engines::{self, Started},
    image, shell,
};

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
    /// Kept running for as long as the daemon.
    engine: Option<Engine>,
}

/// What makes a daemon's sandboxes.
pub(crate) enum Engine {
    /// An OCI runtime that it drives itself: `auto`, `runsc` or `runc`.
    Embedded(String),
    /// The same, with a warm pool of one.
    EmbeddedWarm(String),
    /// A container engine.
    Containers {
        /// `docker` or `podman`.
        kind: &'static str,
        /// Which of its OCI runtimes; its default when absent.
        oci_runtime: Option<&'static str>,
        /// The running engine; ends with whoever holds it last.
        engine: Arc<Started>,
    },
}

impl Engine {
    /// The engine that `name` means; a container engine is installed and started.
    pub(crate) fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "auto" | "runsc" | "runc" => Self::Embedded(name.to_owned()),
            "docker" => Self::Containers {
                kind: "docker",
                oci_runtime: None,
                engine: Arc::new(engines::ensure_docker()?),
            },
            "podman" => Self::Containers {
                kind: "podman",
                oci_runtime: None,
                engine: Arc::new(engines::ensure_podman()?),
            },
            _ => bail!("unknown runtime {name:?}: auto, runsc, runc, docker or podman"),
        })
    }

    /// Makes the image known and returns the `[runtime]` table.
    fn prepare(&self, parts: &Parts, config: &Path) -> Result<String> {
        shell::step("importing the image");
        match self {
            Self::Embedded(oci_runtime) | Self::EmbeddedWarm(oci_runtime) => {
                let mut import = shell::limited(600, &parts.hotcell);
                import
                    .args(["image", "import", "--name", "base", "--config"])
                    .arg(config)
                    .arg(&parts.image);
                shell::run(&mut import)?;
                let pool = match self {
                    Self::EmbeddedWarm(_) => "[profile]\nwarm_pool = 1\n",
                    _ => "",
                };
                Ok(format!(
                    "kind = \"embedded\"\noci_runtime = \"{oci_runtime}\"\nimage = \"base\"\n{pool}"
                ))
            }
            Self::Containers {
                kind,
                oci_runtime,
                engine,
            } => {
                let url = format!("unix://{}", engine.socket.display());
                let flag = if *kind == "docker" { "--host" } else { "--url" };
                let mut import = shell::limited(600, kind);
                import
                    .args([flag, &url, "import"])
                    .arg(&parts.image)
                    .arg("hotcell-base");
                let id = shell::output(&mut import)?;
                let id = id
                    .lines()
                    .last()
                    .unwrap_or_default()
                    .trim()
                    .trim_start_matches("sha256:");
                let oci_runtime = oci_runtime
                    .as_ref()
                    .map(|name| format!("oci_runtime = \"{name}\"\n"))
                    .unwrap_or_default();
                Ok(format!(
                    "kind = \"{kind}\"\n{oci_runtime}socket = \"{}\"\nimage = \"sha256:{id}\"\n",
                    engine.socket.display()
                ))
            }
        }
    }
}

impl Daemon {
    /// Makes a fresh installation in `directory`, imports the image and starts it.
    pub(crate) fn start(parts: &Parts, directory: &Path, engine: Engine) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let directory = directory.canonicalize()?;
        let config = directory.join("hotcell.toml");
        let common = format!(
            "listen = \"127.0.0.1:0\"\nstate_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\n\
             agent_binary = \"{1}\"\n",
            directory.display(),
            parts.agent.display(),
        );
        fs::write(&config, &common)?;
        let runtime = engine.prepare(parts, &config)?;
        fs::write(&config, format!("{common}[runtime]\n{runtime}"))?;
        let mut daemon = Self::resume(&parts.hotcell, &directory)?;
        daemon.engine = Some(engine);
        Ok(daemon)
    }

    /// Starts the installation that is in `directory`.
    pub(crate) fn resume(hotcell: &Path, directory: &Path) -> Result<Self> {
        Self::resume_in(&[], hotcell, directory)
    }

    /// The same by way of a launcher, which becomes the program that follows its own words.
    pub(crate) fn resume_in(launcher: &[String], hotcell: &Path, directory: &Path) -> Result<Self> {
        let log = fs::File::create(directory.join("daemon.log"))?;
        let mut command = match launcher {
            [] => Command::new(hotcell),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(hotcell);
                command
            }
        };
        let mut child = command
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
            engine: None,
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
