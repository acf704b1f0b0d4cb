//! The daemon on the host of a stub internet: what it is reached by, and what its sandboxes see.

use hotcell_testkit::internet::Internet;
use serde_json::json;

use super::{bash, end, on_both_engines, site};

on_both_engines!(a_daemon_serves_from_the_stubs_host);

async fn a_daemon_serves_from_the_stubs_host(engine: &str) {
    let internet = Internet::new();
    let site = site(engine).on_host_of(&internet);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    // The control: from the host itself the world answers.
    let connect = |address: &str, port: u16| {
        format!("timeout 5 bash -c 'exec 3<>/dev/tcp/{address}/{port} && echo open'; true")
    };
    let from_host = internet.run_on_host("bash", &["-c", &connect("203.0.113.5", 80)]);
    assert_eq!(from_host, "open\n");
    let control = internet.control().to_string();
    for (address, port) in [("203.0.113.5", 80), ("198.18.0.2", 22), (&control, 8080)] {
        let said = bash(&client, "c", &connect(address, port)).await;
        assert_eq!(said["stdout"], json!(""), "{address}: {said}");
    }
    assert_eq!(internet.host_hits(), 0);
    end(&client, "c").await;
    daemon.stop();
}
