//! A chat from its first upload to its last download.

use hotcell_testkit::wait_for;
use http::Method;
use serde_json::json;

use super::{bash, chat_path, end, on_every_runtime, site, user};

on_every_runtime!(
    a_chat_gets_files_back,
    volumes_have_their_scope,
    a_deleted_members_files_are_gone,
    a_loss_is_told_and_the_next_call_works
);

async fn a_chat_gets_files_back(runtime: &str) {
    let site = site(runtime);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let who = "?user=u&role=editor";

    let table = "name,value\na,1\nb,41\n";
    let target = format!("{}{who}", chat_path("c", "uploads/t%20%C3%BC.csv"));
    let uploaded = client.request(Method::PUT, &target, &[], table).await;
    assert!(uploaded.status.is_success(), "{:?}", uploaded.body);
    assert_eq!(uploaded.json()["path"], "/mnt/uploaded-files/t ü.csv");

    let script = "import pandas as pd\n\
        t = pd.read_csv('/mnt/uploaded-files/t ü.csv')\n\
        t.loc[len(t)] = ['sum', t.value.sum()]\n\
        t.to_excel('/workspace/out.xlsx', index=False)\n\
        print(t.value.sum() - t.value.iloc[-1])";
    let result = bash(
        &client,
        "c",
        &format!("python3 - <<'PY'\n{script}\nPY\necho kept > kept.txt; cd /tmp; export A=1"),
    )
    .await;
    assert_eq!(
        (&result["exit_code"], &result["stdout"]),
        (&json!(0), &json!("42\n")),
        "{result}"
    );
    // EX-18, also when whoever started the daemon left it signals to ignore. gVisor shows no masks,
    // and what an engine ignores is the engine's.
    if runtime == "runc" {
        let masks = bash(&client, "c", "grep -E '^Sig(Ign|Blk)' /proc/self/status").await;
        let clear = format!("SigBlk:\t{0:016}\nSigIgn:\t{0:016}\n", 0);
        assert_eq!(masks["stdout"], clear, "{masks}");
    }
    let result = bash(
        &client,
        "c",
        "pwd; echo $A; echo no > /mnt/uploaded-files/x; exit 3",
    )
    .await;
    assert_eq!(
        (&result["exit_code"], &result["stdout"]),
        (&json!(3), &json!("/tmp\n1\n")),
        "{result}"
    );

    let paths = json!({"user": user("u"), "paths": ["/workspace/out.xlsx", "/workspace/kept.txt", "/etc/passwd", "/workspace/none.txt"]});
    let presented = client
        .post(&chat_path("c", "present_files"), &paths)
        .await
        .expect(200)
        .json();
    assert_eq!(
        presented["outputs"].as_array().unwrap().len(),
        2,
        "{presented}"
    );
    assert_eq!(
        presented["skipped"].as_array().unwrap().len(),
        2,
        "{presented}"
    );
    end(&client, "c").await;

    // The files outlive the sandbox.
    let id = presented["outputs"][0]["id"].as_str().unwrap();
    let target = format!("{}{who}", chat_path("c", &format!("outputs/{id}/content")));
    let whole = client.get(&target).await.expect(200);
    assert_eq!(whole.body.len() as u64, presented["outputs"][0]["bytes"]);
    assert!(whole.body.starts_with(b"PK"), "a workbook is a zip file");
    let part = client
        .request(Method::GET, &target, &[("range", "bytes=0-3")], "")
        .await
        .expect(206);
    assert_eq!(part.body[..], whole.body[..4]);
    daemon.stop();
    assert_eq!(site.footprint(), hotcell_testkit::Footprint::default());
}

async fn volumes_have_their_scope(runtime: &str) {
    let site = site(runtime);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let first = bash(
        &client,
        "c1",
        "echo mine > /mnt/user-data/f; echo ours > /mnt/workspace-data/f; echo here > /workspace/f",
    )
    .await;
    assert_eq!(first["exit_code"], 0, "{first}");
    let same_user = bash(
        &client,
        "c2",
        "cat /mnt/user-data/f /mnt/workspace-data/f; ls /workspace",
    )
    .await;
    assert_eq!(same_user["stdout"], "mine\nours\n", "{same_user}");
    let body = json!({"user": user("v"), "command": "cat /mnt/workspace-data/f; ls -A /mnt/user-data; touch /mnt/skills/x"});
    let other = client
        .post(&chat_path("c3", "bash"), &body)
        .await
        .expect(200)
        .json();
    assert_eq!(other["stdout"], "ours\n", "{other}");
    assert_eq!(other["exit_code"], 1, "skills are read-only: {other}");
    // A sandbox mounts one member's files, so nobody else may use it.
    let body = json!({"user": user("v"), "command": "true"});
    let refused = client
        .post(&chat_path("c1", "bash"), &body)
        .await
        .expect(409)
        .json();
    assert_eq!(refused["code"], "lease_of_another_user", "{refused}");
    for chat in ["c1", "c2"] {
        end(&client, chat).await;
    }
    let target = format!("{}?user=v&role=editor", chat_path("c3", "lease"));
    let _ = client.delete(&target).await.expect(200);
    daemon.stop();
}

/// FA-16: whatever ids an engine gives to what a sandbox writes, the daemon can remove it.
async fn a_deleted_members_files_are_gone(runtime: &str) {
    let site = site(runtime);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let first = bash(
        &client,
        "c1",
        "cd /mnt/user-data && mkdir -p a/b && echo mine > a/b/f && ln -s /etc/passwd l && mkfifo p \
         && chmod 0 a/b/f && chmod 500 a/b && chmod 0 a && echo ours > /mnt/workspace-data/f",
    )
    .await;
    assert_eq!(first["exit_code"], 0, "{first}");
    let body = json!({"user": user("v"), "command": "echo theirs > /mnt/user-data/f"});
    let _ = client
        .post(&chat_path("c2", "bash"), &body)
        .await
        .expect(200);
    let users = site
        .dir()
        .join("state/volumes")
        .join(hotcell_testkit::WORKSPACE)
        .join("users");
    assert!(users.join("u/l").symlink_metadata().unwrap().is_symlink());

    let target = format!(
        "/v1/admin/workspaces/{}/users/u",
        hotcell_testkit::WORKSPACE
    );
    let deleted = daemon.operator.delete(&target).await;
    assert!(deleted.status.is_success(), "{:?}", deleted.body);
    wait_for("the deletion", async || {
        let pending = daemon
            .operator
            .get("/v1/admin/deletions")
            .await
            .expect(200)
            .json();
        pending["deletions"]
            .as_array()
            .unwrap()
            .is_empty()
            .then_some(())
    })
    .await;
    let left: Vec<_> = users
        .read_dir()
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    assert_eq!(left, ["v"]);
    let tmp = site.dir().join("state/tmp");
    assert_eq!(
        tmp.read_dir().unwrap().count(),
        0,
        "nothing is left half removed"
    );

    let again = bash(
        &client,
        "c1",
        "ls -A /mnt/user-data; cat /mnt/workspace-data/f",
    )
    .await;
    assert_eq!(again["stdout"], "ours\n", "{again}");
    end(&client, "c1").await;
    let body = json!({"user": user("v"), "command": "cat /mnt/user-data/f"});
    let other = client
        .post(&chat_path("c2", "bash"), &body)
        .await
        .expect(200)
        .json();
    assert_eq!(other["stdout"], "theirs\n", "{other}");
    let target = format!("{}?user=v&role=editor", chat_path("c2", "lease"));
    let _ = client.delete(&target).await.expect(200);
    daemon.stop();
    assert_eq!(site.footprint(), hotcell_testkit::Footprint::default());
}

async fn a_loss_is_told_and_the_next_call_works(runtime: &str) {
    let site = site(runtime);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    let _ = bash(&client, "c", "echo kept > /mnt/user-data/kept").await;
    let body = json!({"user": user("u"), "command": "python3 -c \"a = 'x' * (8 << 30)\""});
    let hungry = client.post(&chat_path("c", "bash"), &body).await;
    if hungry.status == 200 {
        // The kernel ended the process and not the sandbox, or Python was refused the memory.
        let result = hungry.json();
        assert!(
            ["SIGKILL", ""].contains(&result["signal"].as_str().unwrap_or_default()),
            "{result}"
        );
        assert!(
            result["exit_code"] == 137 || result["exit_code"] == 1,
            "{result}"
        );
    } else {
        let problem = hungry.expect(502).json();
        assert!(
            ["out_of_memory", "sandbox_lost"].contains(&problem["code"].as_str().unwrap()),
            "{problem}"
        );
    }
    let next = bash(&client, "c", "cat /mnt/user-data/kept").await;
    assert_eq!(next["stdout"], "kept\n", "{next}");
    end(&client, "c").await;
    daemon.stop();
}
