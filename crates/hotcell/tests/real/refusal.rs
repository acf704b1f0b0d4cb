//! An engine that is not there, and switches that are off.

use hotcell_testkit::wait_for;
use serde_json::json;

use super::{chat_path, site, site_with, user};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_engine_is_named() {
    let runtime = "kind = \"embedded\"\noci_runtime = \"/nonexistent/runsc\"\nimage = \"base\"";
    let site = site_with(runtime);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    wait_for("the reason", async || {
        let answer = daemon.operator.get("/v1/admin/profiles").await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        text.contains("/nonexistent/runsc").then_some(())
    })
    .await;
    assert_eq!(daemon.operator.get("/readyz").await.status, 503);
    let body = json!({"user": user("u"), "command": "true"});
    let problem = client
        .post(&chat_path("c", "bash"), &body)
        .await
        .expect(503)
        .json();
    assert_eq!(problem["code"], "runtime_unavailable", "{problem}");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_off_is_named_and_makes_no_sandbox() {
    let site = site("runc");
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let call = async |role: &str| {
        let body = json!({"user": {"id": "u", "role": role}, "command": "true"});
        client
            .post(&chat_path("c", "bash"), &body)
            .await
            .expect(403)
            .json()
    };
    assert_eq!(call("viewer").await["denial"], "role");
    for (path, denial) in [
        (
            format!("/v1/admin/workspaces/{}", hotcell_testkit::WORKSPACE),
            "workspace",
        ),
        (
            format!("/v1/admin/organizations/{}", hotcell_testkit::ORGANIZATION),
            "organization",
        ),
        ("/v1/admin/deployment".into(), "deployment"),
    ] {
        let off = daemon.operator.put(&path, &json!({"enabled": false})).await;
        assert!(off.status.is_success(), "{:?}", off.body);
        let problem = call("editor").await;
        assert_eq!(problem["denial"], denial, "{problem}");
        assert_eq!(problem["code"], "denied", "{problem}");
    }
    assert!(site.footprint().leases.is_empty());
    daemon.stop();
}
