//! The operators' API.

use hotcell_testkit::wait_for;
use serde_json::{Value, json};

use crate::{
    client::{nonce, send},
    daemon::TestDaemon,
};

#[tokio::test]
async fn only_the_token_opens_it() {
    let daemon = TestDaemon::start().await;
    let addr = daemon.client.addr;
    let mut told = std::collections::HashSet::new();
    for value in ["", "Bearer", "Bearer wrong", "Basic eDp5", &daemon.token] {
        let headers = [("authorization".to_owned(), value.to_owned())];
        let answer = send(addr, false, "GET", "/v1/admin/deployment", &headers, "").await;
        answer.expect_code(401, "operator_token_required");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        let mut problem = answer.json();
        problem["request_id"].take();
        told.insert(problem.to_string());
    }
    assert_eq!(told.len(), 1);
    // A backend's signature is no operator's token, and the other way round.
    daemon
        .client
        .get("/v1/admin/deployment")
        .await
        .expect_code(401, "operator_token_required");
    let bearer = [(
        "authorization".to_owned(),
        format!("Bearer {}", daemon.token),
    )];
    send(addr, false, "GET", "/v1/tools", &bearer, "")
        .await
        .expect_code(401, "unauthenticated");
    let lower = [(
        "authorization".to_owned(),
        format!("bearer {}", daemon.token),
    )];
    send(addr, false, "GET", "/v1/admin/deployment", &lower, "")
        .await
        .expect(200);
}

#[tokio::test]
async fn organizations_and_workspaces_are_made_changed_and_deleted() {
    let daemon = TestDaemon::start().await;
    let none = Value::Null;
    // Off until somebody says otherwise.
    let made = daemon
        .admin("PUT", "organizations/o2", &json!({"name": "Zwei & Co."}))
        .await
        .expect(201)
        .json();
    assert_eq!(
        (&made["enabled"], &made["name"], &made["profile"]),
        (&json!(false), &json!("Zwei & Co."), &none)
    );
    daemon
        .admin("PUT", "workspaces/w2", &json!({}))
        .await
        .expect_code(400, "bad_request");
    daemon
        .admin("PUT", "workspaces/w2", &json!({"organization": "none"}))
        .await
        .expect_code(404, "unknown_organization");
    let made = daemon
        .admin("PUT", "workspaces/w2", &json!({"organization": "o2"}))
        .await
        .expect(201)
        .json();
    assert_eq!(
        (&made["enabled"], &made["name"]),
        (&json!(false), &json!("w2"))
    );
    let moved = daemon
        .admin("PUT", "workspaces/w2", &json!({"organization": "acme"}))
        .await;
    moved.expect_code(409, "conflict");
    // What is absent stays; null clears.
    let set = daemon
        .admin("PUT", "organizations/o2", &json!({"profile": "default"}))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&set["profile"], &set["name"]),
        (&json!("default"), &json!("Zwei & Co."))
    );
    let cleared = daemon
        .admin("PUT", "organizations/o2", &json!({"profile": null}))
        .await
        .expect(200)
        .json();
    assert_eq!(cleared["profile"], none);
    let unknown = daemon
        .admin("PUT", "organizations/o2", &json!({"profile": "p9"}))
        .await;
    unknown.expect_code(404, "unknown_profile");
    for bad in [
        json!({"enabld": true}),
        json!({"name": ""}),
        json!({"name": "a\nb"}),
        json!({"enabled": "yes"}),
        json!([]),
    ] {
        daemon
            .admin("PUT", "organizations/o2", &bad)
            .await
            .expect_code(400, "bad_request");
    }
    daemon
        .admin("PUT", "organizations/..%2Fx", &json!({}))
        .await
        .expect_code(400, "bad_request");
    // Pages.
    let page = daemon
        .admin("GET", "organizations?limit=1", &none)
        .await
        .json();
    assert_eq!(
        (&page["organizations"][0]["id"], &page["next"]),
        (&json!("acme"), &json!("acme"))
    );
    let page = daemon
        .admin("GET", "organizations?limit=1&after=acme", &none)
        .await
        .json();
    assert_eq!(
        (&page["organizations"][0]["id"], &page["next"]),
        (&json!("o2"), &none)
    );
    daemon
        .admin("GET", "organizations?limit=1001", &none)
        .await
        .expect_code(400, "bad_request");
    let page = daemon
        .admin("GET", "workspaces?organization=o2", &none)
        .await
        .json();
    assert_eq!(page["workspaces"].as_array().unwrap().len(), 1);
    // Deleting.
    daemon
        .admin("DELETE", "organizations/o2", &none)
        .await
        .expect_code(409, "conflict");
    daemon
        .admin("DELETE", "workspaces/w2", &none)
        .await
        .expect(204);
    daemon
        .admin("DELETE", "workspaces/w2", &none)
        .await
        .expect_code(404, "unknown_workspace");
    daemon
        .admin("DELETE", "organizations/o2", &none)
        .await
        .expect(204);
    daemon
        .admin("GET", "organizations/o2", &none)
        .await
        .expect_code(404, "unknown_organization");
}

#[tokio::test]
async fn a_credential_is_rotated_without_a_gap() {
    let daemon = TestDaemon::start().await;
    let old = daemon.backend("acme").await;
    let path = format!("organizations/acme/credentials/{}", old.key);
    let none = Value::Null;
    let rotated = daemon
        .admin("POST", &format!("{path}/rotate"), &none)
        .await
        .expect(200)
        .json();
    assert_eq!(rotated["key"], old.key);
    let mut new = old.clone();
    new.secret = rotated["secret"].as_str().unwrap().to_owned();
    assert_ne!(new.secret, old.secret);
    for client in [&old, &new] {
        client.get("/v1/tools").await.expect(200);
    }
    daemon
        .admin("POST", &format!("{path}/rotate"), &none)
        .await
        .expect_code(409, "rotation_in_progress");
    for _ in 0..2 {
        let done = daemon
            .admin("POST", &format!("{path}/finish-rotation"), &none)
            .await
            .expect(200)
            .json();
        assert_eq!(done["secrets_issued_at_ms"].as_array().unwrap().len(), 1);
    }
    new.get("/v1/tools").await.expect(200);
    old.get("/v1/tools")
        .await
        .expect_code(401, "signature_mismatch");
    // A nonce used with one secret is used with the other.
    let again = nonce();
    let now = new.clock.now().seconds();
    let headers = new.signed_at("GET", "/v1/tools", b"", now, &again);
    send(new.addr, false, "GET", "/v1/tools", &headers, "")
        .await
        .expect(200);
    send(new.addr, false, "GET", "/v1/tools", &headers, "")
        .await
        .expect_code(401, "replayed");

    daemon
        .admin("PUT", "organizations/o2", &json!({}))
        .await
        .expect(201);
    let foreign = format!("organizations/o2/credentials/{}", old.key);
    daemon
        .admin("DELETE", &foreign, &none)
        .await
        .expect_code(404, "unknown_credential");
    daemon.admin("DELETE", &path, &none).await.expect(204);
    let deleted = new.get("/v1/tools").await;
    deleted.expect_code(401, "signature_mismatch");
    // No secret shows anywhere again.
    let list = daemon
        .admin("GET", "organizations/acme/credentials", &none)
        .await
        .expect(200);
    let audit = daemon
        .admin("GET", "audit?limit=1000", &none)
        .await
        .expect(200);
    for text in [&list.body, &audit.body] {
        let text = std::str::from_utf8(text).unwrap();
        for secret in [
            &old.secret,
            &new.secret,
            &daemon.client.secret,
            &daemon.token,
        ] {
            assert!(!text.contains(secret.as_str()));
        }
    }
}

#[tokio::test]
async fn the_audit_trail_names_who_and_what() {
    let daemon = TestDaemon::start().await;
    let none = Value::Null;
    let put = daemon
        .admin("PUT", "workspaces/w1", &json!({"name": "Secret name"}))
        .await
        .expect(200);
    let page = daemon.admin("GET", "audit?limit=2", &none).await.json();
    let row = &page["rows"][0];
    assert_eq!(
        (
            &row["action"],
            &row["subject"],
            &row["actor"],
            &row["fields"]
        ),
        (
            &json!("workspace.updated"),
            &json!("workspace/w1"),
            &json!("operator"),
            &json!(["name"])
        )
    );
    assert_eq!(
        row["request_id"],
        put.headers["hotcell-request-id"].to_str().unwrap()
    );
    assert!(!page.to_string().contains("Secret name"));
    let mut rows = 0;
    let mut after = String::new();
    loop {
        let page = daemon
            .admin("GET", &format!("audit?limit=2{after}"), &none)
            .await
            .json();
        rows += page["rows"].as_array().unwrap().len();
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let all = daemon.admin("GET", "audit?limit=1000", &none).await.json();
    assert_eq!(all["rows"].as_array().unwrap().len(), rows);
    daemon
        .admin("GET", "audit?after=x", &none)
        .await
        .expect_code(400, "bad_request");

    let upload = "/v1/workspaces/w1/chats/c1/uploads/f?user=u1&role=editor";
    daemon
        .client
        .send("PUT", upload, &[], "x")
        .await
        .expect(201);
    let page = daemon.admin("GET", "audit?limit=1", &none).await.json();
    assert_eq!(
        page["rows"][0]["actor"],
        format!("backend:{}", daemon.client.key)
    );
}

#[tokio::test]
async fn operators_see_sandboxes_and_profiles() {
    let daemon = TestDaemon::start().await;
    let none = Value::Null;
    daemon.bash("c1", "true").await.expect(200);
    // A call may be answered a moment before the state of its lease is written down.
    let lease = wait_for("the lease runs", async || {
        let leases = daemon
            .admin("GET", "leases", &none)
            .await
            .expect(200)
            .json();
        let lease = leases["leases"][0].clone();
        (lease["state"] == "running").then_some(lease)
    })
    .await;
    assert_eq!(
        (&lease["chat"], &lease["user"]),
        (&json!("c1"), &json!("u1"))
    );
    assert_eq!(lease["engine"]["kind"], "fake");
    let profiles = daemon
        .admin("GET", "profiles", &none)
        .await
        .expect(200)
        .json();
    let profile = &profiles["profiles"][0];
    assert_eq!(
        (&profile["id"], &profile["state"]),
        (&json!("default"), &json!("active"))
    );
    assert_eq!(profile["checks"][0]["status"], "pass");
}
