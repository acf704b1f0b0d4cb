//! A container engine's own commands beside ours.

use std::{process::Command, time::Instant};

use anyhow::{Context, Result, bail};

use crate::{
    client::Backend,
    exec,
    row::{Row, median},
};

const ROUNDS: usize = 20;

/// An engine that has the image `hotcell-bench`.
#[derive(Clone)]
pub(crate) struct Engine {
    /// `docker` or `podman`: the program that speaks with it.
    program: String,
    socket: String,
    /// Which of its OCI runtimes runs the containers.
    oci_runtime: String,
}

impl Engine {
    /// `given` is the program and the socket, as `docker=/run/x.sock`.
    pub(crate) fn parse(given: &str, oci_runtime: &str) -> Result<Self> {
        let (program, socket) = given
            .split_once('=')
            .filter(|(program, _)| ["docker", "podman"].contains(program))
            .with_context(|| format!("{given:?} is not docker=SOCKET or podman=SOCKET"))?;
        Ok(Self {
            program: program.to_owned(),
            socket: socket.to_owned(),
            oci_runtime: oci_runtime.to_owned(),
        })
    }

    /// What to call it.
    pub(crate) fn name(&self) -> &str {
        &self.program
    }

    /// How long its `run` of `true` takes, in milliseconds; the container is gone afterwards.
    pub(crate) fn run(&self) -> Result<f64> {
        let begin = Instant::now();
        let mut words = vec!["run", "--rm", "--network=none"];
        words.extend(self.runtime_words());
        words.extend(["hotcell-bench", "/bin/bash", "-c", "true"]);
        self.command(&words)?;
        Ok(begin.elapsed().as_secs_f64() * 1000.0)
    }

    /// Podman's service knows one OCI runtime, Docker takes the container's. Podman asks for
    /// limits that it may not have the right to, unless it is told which.
    fn runtime_words(&self) -> Vec<&str> {
        if self.program == "docker" {
            vec!["--runtime", &self.oci_runtime]
        } else {
            vec!["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
        }
    }

    fn command(&self, words: &[&str]) -> Result<String> {
        let socket = format!("unix://{}", self.socket);
        let (flag, more): (_, &[&str]) = match self.program.as_str() {
            "podman" => ("--url", &["--remote"]),
            _ => ("--host", &[]),
        };
        let output = Command::new("timeout")
            .args(["-k", "5", "120", &self.program])
            .args(more)
            .args([flag, &socket])
            .args(words)
            .output()?;
        if !output.status.success() {
            bail!(
                "{} {}: {}",
                self.program,
                words.join(" "),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

/// How many times longer the engine's `exec` takes than a `bash` call, same image and command.
pub(crate) async fn exec_ratio(
    backend: &mut Backend,
    engine: Option<&Engine>,
    suffix: &str,
) -> Result<Row> {
    let program = engine.map_or("docker", Engine::name);
    let name = format!("exec.{program}_exec_ratio{suffix}");
    let Some(engine) = engine else {
        let why = "no container engine was given";
        return Ok(Row::not_measured(name, "ratio", "≥ 10", why));
    };
    let container = Container::start(engine)?;
    let chat = "bench-engine";
    backend.bash(chat, "true").await?;
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let call = exec::timed(backend, chat).await?;
        let exec = container.exec()?;
        ours.push(call);
        theirs.push(exec);
        ratios.push(exec / call);
    }
    backend.end(chat).await?;
    Ok(Row::at_least(
        name,
        median(&mut ratios),
        "ratio",
        10.0,
        "≥ 10",
        format!(
            "{program} exec {:.1} ms, bash call {:.2} ms; medians of {ROUNDS} pairs",
            median(&mut theirs),
            median(&mut ours)
        ),
    ))
}

struct Container<'a> {
    engine: &'a Engine,
    id: String,
}

impl<'a> Container<'a> {
    fn start(engine: &'a Engine) -> Result<Self> {
        let mut words = vec!["run", "-d", "--network=none"];
        words.extend(engine.runtime_words());
        words.extend(["hotcell-bench", "sleep", "600"]);
        let id = engine.command(&words)?;
        Ok(Self { engine, id })
    }

    fn exec(&self) -> Result<f64> {
        let begin = Instant::now();
        self.engine
            .command(&["exec", &self.id, "/bin/bash", "-c", "true"])?;
        Ok(begin.elapsed().as_secs_f64() * 1000.0)
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = self.engine.command(&["rm", "-f", &self.id]);
    }
}
