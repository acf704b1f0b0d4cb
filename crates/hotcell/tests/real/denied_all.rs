//! EG-48: a policy that denies everything cuts off the sandbox, not what hotcell itself does with it.

use hotcell_testkit::wait_for;
use http::Method;
use serde_json::json;

use super::{
    bash, chat_path, end,
    filtered::{self, ALLOWED, ask, connect, save, says},
    on_runtimes, site_with, user,
};

on_runtimes!(
    runsc runc docker docker_runsc podman podman_runsc: (everything_of_ours_works_when_all_is_denied)
);

const MEMBER: &str = "user=u&role=editor";

async fn everything_of_ours_works_when_all_is_denied(runtime: &str) {
    let internet = filtered::internet();
    let table = format!("{}\n[profile]\njobs = true", filtered::table(runtime));
    let site = site_with(&table).on_host_of(&internet);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    save(&daemon.operator, r#"{"egress": []}"#).await;
    // Files in, a command, files out.
    let target = chat_path("c", &format!("uploads/in.txt?{MEMBER}"));
    let uploaded = client
        .request(Method::PUT, &target, &[], "from outside")
        .await;
    assert!(uploaded.status.is_success(), "{:?}", uploaded.body);
    let command = "cat /mnt/uploaded-files/in.txt; echo from inside > /workspace/out.txt";
    let ran = bash(&client, "c", command).await;
    assert_eq!(ran["stdout"], "from outside", "{ran}");
    let paths = json!({"user": user("u"), "paths": ["/workspace/out.txt"]});
    let shown = client.post(&chat_path("c", "present_files"), &paths).await;
    let shown = shown.expect(200).json();
    let url = shown["outputs"][0]["content_url"].as_str().unwrap();
    let content = client.get(&format!("{url}?{MEMBER}")).await.expect(200);
    assert_eq!(content.body.as_ref(), b"from inside\n");
    // A job, its output and its end.
    let body = json!({"user": user("u"), "command": "echo working; sleep 1; exit 7"});
    let job = client.post(&chat_path("c", "jobs"), &body).await;
    let job = job.expect(201).json()["id"].as_str().unwrap().to_owned();
    let of_job = |rest: &str| chat_path("c", &format!("jobs/{job}{rest}?{MEMBER}"));
    let ended = wait_for("the job to end", async || {
        let shown = client.get(&of_job("")).await.expect(200).json();
        (shown["exit_code"] == 7).then_some(shown)
    })
    .await;
    let output = client.get(&of_job("/output")).await.expect(200).json();
    assert_eq!(output["text"], "working\n", "{ended} {output}");
    // The sandbox for its part gets nowhere, and not by the way that hotcell comes.
    let gateway = "$(awk '/nameserver/ {print $2}' /etc/resolv.conf)";
    for port in [22, 80, 8080, 8888] {
        let closed = bash(&client, "c", &connect(gateway, port)).await;
        assert_eq!(closed["stdout"], "", "{port}: {closed}");
    }
    let closed = bash(&client, "c", &connect(ALLOWED, 443)).await;
    assert_eq!(closed["stdout"], "", "{closed}");
    assert!(says(&closed, "blocked by network policy"), "{closed}");
    // The controls: its resolver is there, and says no.
    let denied = bash(&client, "c", &ask("ok.example.org")).await;
    assert_eq!(denied["stdout"], "3\n", "{denied}");
    assert_eq!(internet.names().asked(), []);
    assert_eq!(internet.host_hits(), 0);
    end(&client, "c").await;
    daemon.stop();
}
