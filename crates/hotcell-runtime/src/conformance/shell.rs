//! What the chat's shell keeps from call to call, and what forgets it.

use hotcell_agent_proto::Command;

use super::{Fault, bench::Bench, checks, ensure};

checks! {
    "shell" "directory and exported variables stay until restart" Anything state_stays;
    "shell" "odd values and a call that ends badly keep the state whole" Processes state_is_whole;
    "shell" "programs and jobs do not change it" Processes state_is_the_shells;
    "shell" "a directory that vanishes does not lock the chat out" Processes vanished_directory;
}

async fn state_stays(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    ensure!(
        cell.sh("pwd").await?.ok()? == "/workspace\n",
        "the first directory is not /workspace"
    );
    cell.sh("cd /tmp\nexport CHOSEN=yes").await?.ok()?;
    let done = cell.sh("pwd; printenv CHOSEN").await?;
    ensure!(done.out() == "/tmp\nyes\n", "{:?}", done.out());
    // Ending early keeps it too.
    cell.sh("cd /workspace; exit 3").await?;
    ensure!(
        cell.sh("pwd").await?.ok()? == "/workspace\n",
        "the directory of a call that called exit is lost"
    );
    cell.sh("cd /tmp").await?.ok()?;
    let mut request = cell.shell("pwd; printenv CHOSEN");
    request.restart = true;
    let done = cell.run(request).await?;
    ensure!(
        done.out() == "/workspace\n" && done.exit.exit_code == Some(1),
        "after a restart: {:?} {:?}",
        done.out(),
        done.exit.exit_code
    );
    cell.sh("export CHOSEN=again").await?.ok()?;
    cell.sandbox.restart().await?;
    let done = cell.sh("printenv CHOSEN").await?;
    ensure!(
        done.exit.exit_code == Some(1),
        "a restart kept {:?}",
        done.out()
    );
    Ok(())
}

async fn state_is_whole(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    cell.sh(
        "export ODD=$'a\\nb\\'\"$x`\\\\ =;é'; mkdir -p '/workspace/a b\n'; cd '/workspace/a b\n'",
    )
    .await?
    .ok()?;
    let done = cell.sh("printf '%s|' \"$ODD\" \"$PWD\"").await?;
    let want = "a\nb'\"$x`\\ =;é|/workspace/a b\n|";
    ensure!(done.ok()? == want, "{:?}", done.out());
    // A call that cannot say what its state is leaves the one of before.
    cell.sh("export ODD=changed; kill -KILL $$").await?;
    cell.sh("export ODD=changed; echo 'lone").await?;
    let done = cell.sh("printf '%s' \"$ODD\"; cd /workspace").await?;
    ensure!(
        done.out() == "a\nb'\"$x`\\ =;é",
        "a killed call left {:?}",
        done.out()
    );
    // One that runs out of time leaves either, but whole.
    let mut request = cell.shell("export ODD=changed; cd /tmp; sleep 60");
    request.timeout_ms = 500;
    cell.run(request).await?;
    let done = cell
        .sh("printf '%s|' \"$ODD\" \"$PWD\"; cd /workspace")
        .await?;
    ensure!(
        done.out() == "changed|/tmp|" || done.out() == "a\nb'\"$x`\\ =;é|/workspace|",
        "a call that ran out of time left {:?}",
        done.out()
    );
    // What is not exported, and what bash itself keeps, is not carried along.
    cell.sh("unset ODD; local_only=1; set -f; trap 'echo trap' EXIT; readonly R=1; export R")
        .await?;
    let done = cell.sh("echo \"[$local_only$ODD]\" /workspace/*").await?;
    ensure!(
        done.ok()?.starts_with("[] /workspace/a b"),
        "{:?} {:?}",
        done.out(),
        done.err()
    );
    Ok(())
}

async fn state_is_the_shells(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    cell.sh("cd /tmp; export CHOSEN=yes").await?.ok()?;
    let words = [
        "bash",
        "-c",
        "echo \"[$CHOSEN]\"; pwd; cd /; export CHOSEN=no",
    ];
    let program = Command::Program(words.map(str::to_owned).to_vec());
    let done = cell.run(cell.request(program)).await?;
    ensure!(
        done.out().starts_with("[]\n"),
        "a program got the shell's variables: {:?}",
        done.out()
    );
    let mut request = cell.shell("echo $CHOSEN $EXTRA");
    request.env.insert("EXTRA".into(), "once".into());
    ensure!(
        cell.run(request).await?.ok()? == "yes once\n",
        "a call's own variable is missing"
    );
    let done = cell.sh("echo $CHOSEN; pwd").await?;
    ensure!(done.ok()? == "yes\n/tmp\n", "{:?}", done.out());
    Ok(())
}

async fn vanished_directory(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    cell.sh("mkdir -p /workspace/soon-gone; cd /workspace/soon-gone; rm -r /workspace/soon-gone")
        .await?;
    let done = cell.sh("cd /workspace && pwd").await?;
    ensure!(
        done.ok()? == "/workspace\n",
        "{:?} {:?}",
        done.out(),
        done.err()
    );
    Ok(())
}
