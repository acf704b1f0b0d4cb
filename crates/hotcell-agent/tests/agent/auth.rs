//! Who may ask, and what nobody may see.

use hotcell_agent_proto::{AgentErrorCode, Health, PROTOCOL_VERSION};
use hotcell_wire::{EMPTY_BODY_SHA256, sign_headers};

use crate::{
    client::{KEY, LEASE, Request, nonce, now_seconds},
    host::{Host, exec_request},
};

#[test]
fn only_the_key_of_the_lease_opens() {
    let host = Host::start();
    let health: Health = host.get("/v1/health").ok();
    assert_eq!(health.protocol, PROTOCOL_VERSION);
    assert!(health.bash && health.writable_read_only_mounts.is_empty());

    let signed = |lease: &str, key: &str, timestamp: u64, method: &str, target: &str| {
        let mut request = Request::new("GET", "/v1/health", "");
        let hash = EMPTY_BODY_SHA256;
        let headers = sign_headers(lease, key, timestamp, &nonce(), method, target, hash);
        request.headers = headers
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec();
        request
    };
    let good = ("GET", "/v1/health");
    let now = now_seconds();
    let other_key = KEY.replace('0', "1");
    let other_lease = LEASE.replace('a', "b");
    assert_eq!(
        signed(LEASE, KEY, now, good.0, good.1)
            .send(host.address)
            .status,
        200
    );
    assert_eq!(
        signed(LEASE, KEY, now - 55, good.0, good.1)
            .send(host.address)
            .status,
        200
    );
    let refusals: Vec<_> = [
        signed(LEASE, &other_key, now, good.0, good.1),
        signed(&other_lease, KEY, now, good.0, good.1),
        signed(LEASE, KEY, now, "POST", good.1),
        signed(LEASE, KEY, now, good.0, "/v1/health?"),
        signed(LEASE, KEY, now, good.0, good.1).header("hotcell-signature", "v1=00"),
        signed(LEASE, KEY, now, good.0, good.1).header("hotcell-timestamp", "1e9"),
    ]
    .iter()
    .map(|request| request.send(host.address))
    .collect();
    for response in &refusals {
        assert_eq!(response.status, 401);
        assert_eq!(
            response.body, refusals[0].body,
            "a refusal says which part was wrong"
        );
    }
    for skew in [now - 70, now + 70, now * 1000] {
        let response = signed(LEASE, KEY, skew, good.0, good.1).send(host.address);
        assert_eq!(response.error().code, AgentErrorCode::Unauthorized);
    }
    let mut bare = Request::new("GET", "/v1/health", "");
    bare.headers.clear();
    assert_eq!(bare.send(host.address).body, refusals[0].body);
}

#[test]
fn a_request_is_good_once_and_as_it_was_signed() {
    let host = Host::start();
    let body = serde_json::to_vec(&exec_request("echo >>ran", 5_000)).unwrap();
    let request = Request::new("POST", "/v1/exec", body.clone());
    assert_eq!(request.send(host.address).status, 200);
    assert_eq!(
        request.send(host.address).error().code,
        AgentErrorCode::Unauthorized
    );

    let altered = String::from_utf8(body).unwrap().replace("ran", "bad");
    let mut request = Request::new("POST", "/v1/exec", altered.clone());
    request.body = altered.replace("bad", "mad").into_bytes();
    assert_eq!(
        request.send(host.address).error().code,
        AgentErrorCode::Unauthorized
    );
    request = Request::new("GET", "/v1/health", "");
    request.body = b"x".to_vec();
    assert_eq!(
        request.send(host.address).error().code,
        AgentErrorCode::Unauthorized
    );
    let names = host.bash("cat ran | wc -l; ls").out();
    assert_eq!(names, "1\nran\n");

    for target in ["/", "/v1", "/v2/health", "/v1/health/", "/v1/nothing"] {
        assert_eq!(
            host.get(target).error().code,
            AgentErrorCode::NotFound,
            "{target}"
        );
    }
    for body in ["", "{}", "[]", "{\"call\":1}", "\u{0}"] {
        let response = host.send("POST", "/v1/exec", body);
        assert_eq!(response.error().code, AgentErrorCode::BadRequest, "{body}");
    }
}

#[test]
fn the_key_is_in_no_environment_and_no_argument() {
    let host = Host::start();
    let (_, status) = host.job(1, "sleep 100", 60_000);
    assert_eq!(status.exit_code, None);
    // From outside, over everything that belongs to the agent.
    let pids = host.processes().into_iter().map(|process| process.pid);
    for pid in pids.chain([host.agent_pid()]) {
        for file in ["environ", "cmdline"] {
            let Ok(content) = std::fs::read(format!("/proc/{pid}/{file}")) else {
                continue;
            };
            let text = String::from_utf8_lossy(&content);
            assert!(!text.contains(KEY), "{pid}/{file}");
            if pid == host.agent_pid() && file == "environ" {
                assert!(text.contains("HOTCELL_LEASE="), "{text}");
            }
        }
    }
    // And from inside, as user code.
    let agent = host.agent_pid();
    let outcome = host.bash(&format!(
        "env | grep -c HOTCELL_; cat /proc/[0-9]*/environ 2>/dev/null | grep -ac {KEY}; \
         head -c1 /proc/{agent}/mem; ls -l /proc/$PPID/fd/0; cat /proc/{agent}/environ | wc -c"
    ));
    assert_eq!(outcome.out(), "0\n0\n0\n");
    assert_eq!(
        outcome.err().matches("Permission denied").count(),
        3,
        "{}",
        outcome.err()
    );
    // No descriptor of the agent's gets into a command: the same as without an agent.
    let fds = "ls /proc/$$/fd";
    let file = host.workspace.join("fds");
    std::fs::write(&file, fds).unwrap();
    let plain = std::process::Command::new("bash")
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(host.bash(fds).stdout, plain.stdout);
}
