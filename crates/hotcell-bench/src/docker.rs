//! `docker exec` beside our call.

use std::{process::Command, time::Instant};

use anyhow::{Result, bail};

use crate::{
    client::Backend,
    exec,
    row::{Row, median},
};

const NAME: &str = "exec.docker_exec_ratio";
const ROUNDS: usize = 20;

/// How many times longer `docker exec` takes than a `bash` call, same image and command.
pub(crate) async fn exec_ratio(
    backend: &mut Backend,
    socket: Option<&str>,
    runtime: &str,
) -> Result<Row> {
    let name = format!("{NAME}{}", if runtime == "runsc" { "" } else { "_runc" });
    let Some(socket) = socket else {
        return Ok(Row::not_measured(
            name,
            "ratio",
            "≥ 10",
            "no Docker engine was given",
        ));
    };
    let container = Container::start(socket, runtime)?;
    let chat = "bench-docker";
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
            "docker exec {:.1} ms, bash call {:.2} ms; medians of {ROUNDS} pairs",
            median(&mut theirs),
            median(&mut ours)
        ),
    ))
}

struct Container {
    socket: String,
    id: String,
}

impl Container {
    fn start(socket: &str, runtime: &str) -> Result<Self> {
        let id = docker(
            socket,
            &[
                "run",
                "-d",
                "--network=none",
                "--runtime",
                runtime,
                "hotcell-bench",
                "sleep",
                "600",
            ],
        )?;
        Ok(Self {
            socket: socket.to_owned(),
            id,
        })
    }

    fn exec(&self) -> Result<f64> {
        let begin = Instant::now();
        docker(&self.socket, &["exec", &self.id, "/bin/bash", "-c", "true"])?;
        Ok(begin.elapsed().as_secs_f64() * 1000.0)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = docker(&self.socket, &["rm", "-f", &self.id]);
    }
}

fn docker(socket: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new("timeout")
        .args([
            "-k",
            "5",
            "120",
            "docker",
            "--host",
            &format!("unix://{socket}"),
        ])
        .args(arguments)
        .output()?;
    if !output.status.success() {
        bail!(
            "docker {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
