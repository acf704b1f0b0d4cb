//! The clients of `docs/clients` against a daemon, and against the test vectors.

use std::path::PathBuf;

use crate::daemon::TestDaemon;

fn python(script: &str) -> tokio::process::Command {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/clients/python");
    let mut command = tokio::process::Command::new("python3");
    command
        .arg("-B")
        .args(["-c", script])
        .env("PYTHONPATH", &dir)
        .current_dir(dir);
    command.kill_on_drop(true);
    command
}

async fn run(mut command: tokio::process::Command) {
    let output = command.output().await.unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn the_python_client_holds_the_test_vectors() {
    run(python(
        "import unittest, test_vectors; unittest.main(module=test_vectors)",
    ))
    .await;
}

#[tokio::test]
async fn the_python_client_plays_a_chat() {
    // Its clock is the machine's.
    let daemon = TestDaemon::on_the_clock().await;
    let mut command = python(
        r#"
import hotcell

client = hotcell.from_environment()
assert [tool["name"] for tool in client.tools()["anthropic"]] == ["bash", "present_files"]
chat = client.chat("chat 1".replace(" ", "-"), user="ada@example.org")
for name in ["a b.csv", "100%+ü.csv", "x.json"]:
    stored = chat.upload(name, b'{"a": 1}')
    assert stored["path"] == "/mnt/uploaded-files/" + name and not stored["replaced"], stored
    assert chat.download_upload(name) == b'{"a": 1}'
assert len(chat.uploads()["uploads"]) == 3
chat.remove_upload("x.json")

pieces = []
result = chat.bash("echo one\nsleep 200\necho two\nexit 3", on_output=lambda *piece: pieces.append(piece))
assert result["exit_code"] == 3 and result["stdout"] == "one\ntwo\n", result
assert "".join(text for stream, text in pieces if stream == "stdout") == "one\ntwo\n", pieces

assert chat.bash("write /workspace/r.json {}")["exit_code"] == 0
presented = chat.present_files(["r.json", "none.txt"])
assert [skipped["path"] for skipped in presented["skipped"]] == ["none.txt"], presented
content = chat.download(presented["outputs"][0])
assert isinstance(content, bytes) and content.startswith(b"{}"), content
assert len(chat.outputs()["outputs"]) == 1

key = hotcell.new_key()
first = chat.bash("append /workspace/once x", idempotency_key=key)
again = chat.bash("append /workspace/once x", idempotency_key=key)
assert first == again, (first, again)
assert chat.bash("cat /workspace/once")["stdout"] == first["stdout"] + "x\n", "it ran once"
key = hotcell.new_key()
assert chat.bash("echo once", on_output=lambda *piece: None, idempotency_key=key)["stdout"] == "once\n"
try:
    chat.bash("echo twice", idempotency_key=key)
except hotcell.Problem as problem:
    assert (problem.status, problem.code) == (409, "idempotency_key_reused"), problem
else:
    raise AssertionError("one key was taken for two commands")
key = hotcell.new_key()
first, again = (chat.present_files(["r.json"], idempotency_key=key) for _ in range(2))
assert first == again and len(chat.outputs()["outputs"]) == 2, (first, again)
try:
    chat.start_job("sleep 10", idempotency_key=hotcell.new_key())
except hotcell.Problem as problem:
    assert problem.code == "jobs_off", problem
else:
    raise AssertionError("jobs are off by default")

assert chat.lease()["user"] == "ada@example.org"
assert chat.end()["end"] == "requested"
try:
    client.chat("c2", user="u2", role="viewer").bash("true")
except hotcell.Problem as problem:
    assert (problem.status, problem.code, problem.denial) == (403, "denied", "role"), problem
else:
    raise AssertionError("a viewer ran code")
try:
    chat.upload("big", bytes(25 * 1024 * 1024 + 1))
except hotcell.Problem as problem:
    assert problem.code == "upload_too_large", problem
else:
    raise AssertionError("too large an upload was taken")
"#,
    );
    command
        .env("HOTCELL_URL", format!("http://{}", daemon.client.addr))
        .env("HOTCELL_KEY", &daemon.client.key)
        .env("HOTCELL_SECRET", &daemon.client.secret)
        .env("HOTCELL_WORKSPACE", "w1");
    run(command).await;
}
