//! Network policies, events and notes, through HTTP: on the engine in memory, with a packet filter
//! and resolvers in memory.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests say what is wrong by failing"
)]

use std::{net::IpAddr, sync::Arc};

use hotcell::{config::NetworkConfig, egress::EgressParts, serve::Deps};
use hotcell_egress::{
    denied::DeniedPacket,
    fake::{FakeHost, FakeUpstream, ask},
};
use hotcell_testkit::{Answer, Client, Options, TestDaemon, wait_for};
use hotcell_types::LeaseId;
use http::Method;
use serde_json::{Value, json};

const POLICY: &str = "/v1/admin/organizations/o/network-policy";
const EVENTS: &str = "/v1/admin/egress-events";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const TYPED: &str = r#"{ "egress": [
  {"action": "allow", "target": "Files.Example.ORG."},
  {"action": "deny",  "target": "*.example.org"},
  {"action": "allow", "target": "203.0.113.0/24"}
] }"#;

struct Stage {
    daemon: TestDaemon,
    host: FakeHost,
    operator: Client,
    client: Client,
}

impl Stage {
    async fn new(network: &str) -> Self {
        let (host, upstream) = (FakeHost::default(), FakeUpstream::default());
        upstream.set("files.example.org", &[[198, 51, 100, 7].into()]);
        upstream.set("inside.example.net", &[[169, 254, 169, 254].into()]);
        let parts = EgressParts {
            network: NetworkConfig::default(),
            host: Arc::new(host.clone()),
            upstream: Ok(Arc::new(upstream)),
            appliance: Vec::new(),
        };
        let daemon = TestDaemon::start_with(Options {
            toml: format!("[runtime]\nimage = 'fake'\n{network}\n"),
            deps: Deps {
                egress: Some(parts),
                ..Deps::default()
            },
            ..Options::default()
        })
        .await;
        let client = daemon.client().await;
        Self {
            operator: daemon.operator(),
            daemon,
            host,
            client,
        }
    }

    async fn filtered() -> Self {
        Self::new("network = 'filtered'").await
    }

    async fn save(&self, text: &str) -> Answer {
        let body = text.as_bytes().to_vec();
        self.operator
            .request(Method::PUT, POLICY, &JSON, body)
            .await
    }

    async fn bash(&self, command: &str) -> Answer {
        self.client
            .post(
                "/v1/workspaces/w/chats/c/bash",
                &json!({"user": {"id": "u", "role": "editor"}, "command": command}),
            )
            .await
    }

    fn resolver(&self) -> std::net::SocketAddr {
        let gateway: IpAddr = self.host.gateways()[0];
        self.host.resolver(gateway).unwrap()
    }

    async fn events(&self, query: &str) -> Value {
        self.operator
            .get(&format!("{EVENTS}{query}"))
            .await
            .expect(200)
            .json()
    }

    async fn lease(&self) -> String {
        let result = self.bash("true").await.expect(200).json();
        result["lease"]["id"].as_str().unwrap().to_owned()
    }
}

fn warnings(policy: &Value) -> String {
    policy["warnings"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_kept_as_it_was_typed_and_shown_as_it_is_meant() {
    let stage = Stage::filtered().await;
    let none = stage.operator.get(POLICY).await.expect(200).json();
    assert_eq!(
        (&none["text"], &none["default_action"], &none["enforced"]),
        (&Value::Null, &json!("allow"), &json!("dns+nft"))
    );
    assert!(warnings(&none).contains("there is no policy"));

    let saved = stage.save(TYPED).await.expect(200).json();
    assert_eq!(saved["text"], TYPED);
    assert_eq!(saved["rules"], 3);
    assert_eq!(saved["default_action"], "deny");
    let canonical: Value = serde_json::from_str(saved["canonical"].as_str().unwrap()).unwrap();
    assert_eq!(canonical["egress"][0]["target"], "files.example.org");
    // The limit that no filter by address can lift is said each time.
    assert!(warnings(&saved).contains("CDN"), "{saved}");
    assert_eq!(stage.operator.get(POLICY).await.expect(200).json(), saved);

    let audit = stage.operator.get("/v1/admin/audit?limit=1").await;
    let row = &audit.expect(200).json()["rows"][0];
    assert_eq!(row["action"], "network_policy.saved");
    assert_eq!(row["subject"], "organization/o");

    // Taken away in both ways.
    let empty = stage.save("").await.expect(200).json();
    assert_eq!(empty["text"], Value::Null);
    let _ = stage.save(TYPED).await.expect(200);
    let _ = stage.operator.delete(POLICY).await.expect(204);
    let _ = stage.operator.delete(POLICY).await.expect(204);
    let none = stage.operator.get(POLICY).await.expect(200).json();
    assert_eq!(none["text"], Value::Null);

    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let target = "/v1/admin/organizations/nobody/network-policy";
        let answer = stage
            .operator
            .request(method, target, &JSON, Vec::new())
            .await;
        assert_eq!(answer.expect(404).json()["code"], "unknown_organization");
    }
    // Members' backends have no say.
    let _ = stage.client.get(POLICY).await.expect(401);
    stage.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_named_with_their_place_and_nothing_is_saved() {
    let stage = Stage::filtered().await;
    let _ = stage.save(TYPED).await.expect(200);
    for (text, path, reason) in [
        ("{", "$", "not JSON"),
        (r#"{"egres": []}"#, "$", "egres"),
        (
            r#"{"egress": [{"action": "alow", "target": "a.example"}]}"#,
            "$.egress[0].action",
            "alow",
        ),
        (
            r#"{"egress": [{"action":"deny","target":"a.example"},{"action":"allow","target":"https://b.example/"}]}"#,
            "$.egress[1].target",
            "b.example",
        ),
        (
            r#"{"egress": [{"action":"allow","target":"10.0.0.0/33"}]}"#,
            "$.egress[0].target",
            "10.0.0.0/33",
        ),
        (r#"{"defaultAction": "drop"}"#, "$.defaultAction", "drop"),
        (
            r#"{"defaultAction": "deny", "defaultAction": "allow"}"#,
            "$",
            "defaultAction",
        ),
        (" ", "$", "not JSON"),
        ("[]", "$", "expected"),
    ] {
        let refused = stage.save(text).await.expect(422).json();
        assert_eq!(refused["code"], "policy_refused", "{text}");
        let problem = &refused["problems"][0];
        let (at, why) = (
            problem["path"].as_str().unwrap(),
            problem["reason"].as_str().unwrap(),
        );
        assert!(at.starts_with(path), "{text}: {problem}");
        assert!(why.contains(reason), "{text}: {problem}");
        assert!(
            refused["detail"].as_str().unwrap().contains(at),
            "{refused}"
        );
    }
    let refused = stage
        .operator
        .request(Method::PUT, POLICY, &JSON, b"\xff".to_vec())
        .await;
    let _ = refused.expect(422);
    let _ = stage.save(&" ".repeat(1_048_577)).await.expect(413);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let _ = stage
        .operator
        .request(Method::PUT, POLICY, &form, "{}")
        .await
        .expect(415);
    let kept = stage.operator.get(POLICY).await.expect(200).json();
    assert_eq!(kept["text"], TYPED);
    stage.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_enforced_is_said_when_it_is_saved() {
    let stage = Stage::new("network = 'filtered'\nfilter_mode = 'dns'").await;
    let saved = stage.save(TYPED).await.expect(200).json();
    assert_eq!(saved["enforced"], "dns");
    assert!(warnings(&saved).contains("NOT enforced"), "{saved}");
    let denies = r#"{"defaultAction":"allow","egress":[{"action":"deny","target":"a.example"}]}"#;
    let saved = stage.save(denies).await.expect(200).json();
    assert!(warnings(&saved).contains("bind names"), "{saved}");
    stage.daemon.shutdown().await;

    let stage = Stage::new("").await;
    let saved = stage.save(TYPED).await.expect(200).json();
    assert_eq!(saved["enforced"], "none");
    assert!(warnings(&saved).contains("no network"), "{saved}");
    stage.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_events_and_the_members_command_says_what_it_ran_into() {
    let stage = Stage::filtered().await;
    let _ = stage.save(TYPED).await.expect(200);
    let lease = stage.lease().await;
    let resolver = stage.resolver();
    // While a command runs, its lookups are decided.
    let running = {
        let client = stage.client.clone();
        tokio::spawn(async move {
            client
                .post(
                    "/v1/workspaces/w/chats/c/bash",
                    &json!({"user": {"id": "u", "role": "editor"}, "command": "sleep 1000"}),
                )
                .await
        })
    };
    wait_for("the command", async || {
        let lease = stage.operator.get("/v1/admin/leases").await.json();
        (lease["leases"][0]["active_calls"] == 1).then_some(())
    })
    .await;
    for _ in 0..3 {
        ask(resolver, "files.example.org").await.unwrap();
        ask(resolver, "secret.example.org").await.unwrap_err();
        ask(resolver, "registry.npmjs.org").await.unwrap_err();
    }
    let short = lease.parse::<LeaseId>().unwrap().short().to_owned();
    stage.host.tell_denied(DeniedPacket {
        short,
        protocol: 6,
        destination: [192, 0, 2, 66].into(),
        port: Some(443),
    });
    let result = running.await.unwrap().expect(200).json();
    let notes: Vec<&str> = result["notes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| note.as_str().unwrap())
        .filter(|note| note.starts_with("blocked"))
        .collect();
    assert_eq!(
        notes,
        [
            "blocked by network policy: secret.example.org",
            "blocked by network policy: registry.npmjs.org",
            "blocked by network policy: 192.0.2.66:443 (tcp)",
        ]
    );
    // The next command did not run into anything.
    let next = stage.bash("true").await.expect(200).json();
    assert!(!next["notes"].to_string().contains("blocked"), "{next}");

    let page = stage.events("").await;
    let of_kind = |kind: &str| -> Vec<Value> {
        let events = page["events"].as_array().unwrap().iter();
        events.filter(|it| it["kind"] == kind).cloned().collect()
    };
    let denied = of_kind("name_denied");
    assert_eq!(denied.len(), 6);
    assert_eq!(
        (&denied[0]["name"], &denied[0]["rule"], &denied[0]["layer"]),
        (&json!("secret.example.org"), &json!(1), &json!("name"))
    );
    // The default has no index.
    assert_eq!(denied[1]["rule"], Value::Null);
    assert_eq!(of_kind("name_allowed")[0]["rule"], 0);
    let packet = &of_kind("packet_denied")[0];
    assert_eq!(
        (&packet["address"], &packet["port"], &packet["layer"]),
        (&json!("192.0.2.66"), &json!(443), &json!("packet"))
    );
    assert_eq!(packet["workspace"], "w");
    assert_eq!(packet["organization"], "o");
    assert_eq!(packet["lease"], lease);

    // Paged without gap or overlap; filtered; refused when malformed.
    let mut seen = Vec::new();
    let mut query = "?limit=4".to_owned();
    loop {
        let page = stage.events(&query).await;
        seen.extend(page["events"].as_array().unwrap().iter().cloned());
        query = format!("?limit=4&after={}", page["next"].as_str().unwrap());
        if page["more"] == false {
            break;
        }
    }
    assert_eq!(Value::from(seen), page["events"]);
    let none = stage.events("?workspace=other").await;
    assert_eq!(none["events"], json!([]));
    let own = stage.events(&format!("?lease={lease}&workspace=w")).await;
    assert_eq!(own["events"], page["events"]);
    for bad in ["?after=x", "?limit=0", "?lease=x", "?colour=red"] {
        let _ = stage
            .operator
            .get(&format!("{EVENTS}{bad}"))
            .await
            .expect(400);
    }
    stage.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_event_stream_of_a_command_ends_with_the_notes_too() {
    let stage = Stage::filtered().await;
    let _ = stage.save(r#"{"egress":[]}"#).await.expect(200);
    stage.lease().await;
    let resolver = stage.resolver();
    let asking = tokio::spawn(async move {
        // Again and again: one of them falls into the command.
        loop {
            let _ = ask(resolver, "registry.npmjs.org").await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    let body = json!({"user": {"id": "u", "role": "editor"}, "command": "sleep 1000"});
    let headers = [JSON[0], ("accept", "text/event-stream")];
    let target = "/v1/workspaces/w/chats/c/bash";
    let answer = stage
        .client
        .request(Method::POST, target, &headers, body.to_string())
        .await
        .expect(200);
    asking.abort();
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let result = text.split("event: result").nth(1).unwrap();
    assert!(
        result.contains("blocked by network policy: registry.npmjs.org"),
        "{text}"
    );
    stage.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_cannot_be_installed_is_a_typed_refusal_and_is_seen() {
    let stage = Stage::filtered().await;
    stage.host.set_broken(Some("no kernel today"));
    let refused = stage.bash("true").await.expect(503).json();
    assert_eq!(refused["code"], "egress_unenforceable");
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("no kernel today"),
        "{refused}"
    );
    let events = stage.events("").await;
    assert_eq!(events["events"][0]["kind"], "filter_not_installed");
    stage.host.set_broken(None);
    let _ = stage.bash("true").await.expect(200);
    let ready = stage
        .daemon
        .anonymous()
        .get("/readyz")
        .await
        .expect(200)
        .json();
    let egress = ready["components"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["name"] == "egress")
        .unwrap();
    assert_eq!(egress["ok"], true);
    stage.daemon.shutdown().await;
}
