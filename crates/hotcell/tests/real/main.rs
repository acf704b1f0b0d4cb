//! The front door on real engines: the daemon as a process, sandboxes as they ship.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "tests say what is wrong by failing"
)]

mod chat;
mod crash;
mod deaths;
mod denied_all;
mod egress;
mod engines;
mod filtered;
mod jobs;
mod kills;
mod pairs;
mod pressure;
mod refusal;
mod restart;
mod stub;
mod swept;
mod volumes;
mod warm;
mod warm_filtered;
mod warm_kills;

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use hotcell_testkit::{Client, Site, given};
use serde_json::{Value, json};

use engines::ContainerEngine;

const HOTCELL: &str = env!("CARGO_BIN_EXE_hotcell");

/// Makes one test of each function for each kind of runtime.
macro_rules! on_every_runtime {
    ($($name:ident),+ $(,)?) => {
        $crate::on_runtimes!(runsc runc docker podman podman_rootless: ($($name),+));
    };
}
pub(crate) use on_every_runtime;

/// The same for the embedded runtime alone, with and without gVisor.
macro_rules! on_both_engines {
    ($($name:ident),+ $(,)?) => {
        $crate::on_runtimes!(runsc runc: ($($name),+));
    };
}
pub(crate) use on_both_engines;

/// The same for those that are named.
macro_rules! on_runtimes {
    ($($runtime:ident)+ : $names:tt) => {
        $($crate::on_runtime!($runtime $names);)+
    };
}
pub(crate) use on_runtimes;

/// See the file.
macro_rules! on_runtime {
    ($runtime:ident ($($name:ident),+)) => {
        mod $runtime {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { Box::pin(super::$name(stringify!($runtime))).await; })+
        }
    };
}
pub(crate) use on_runtime;

/// The base image, imported once for all tests of this binary.
fn images() -> &'static Path {
    static IMAGES: OnceLock<PathBuf> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-images");
        let status = Command::new(HOTCELL)
            .args(["image", "import", "--name", "base", "--state-dir"])
            .arg(&state)
            .arg(given("HOTCELL_TEST_IMAGE_TAR"))
            .status()
            .unwrap();
        assert!(status.success(), "the image cannot be imported");
        state.join("images")
    })
}

fn site(runtime: &str) -> Site {
    site_with(&runtime_table(runtime))
}

/// The `[runtime]` table for a test's name of a runtime.
fn runtime_table(runtime: &str) -> String {
    match ContainerEngine::named(runtime) {
        Some(engine) => engine.table(),
        None => {
            format!("kind = \"embedded\"\noci_runtime = \"{runtime}\"\nimage = \"base\"")
        }
    }
}

/// A site with this `[runtime]` table.
fn site_with(runtime: &str) -> Site {
    Site::new(
        Path::new(HOTCELL),
        &given("HOTCELL_TEST_AGENT"),
        images(),
        runtime,
    )
}

fn chat_path(chat: &str, rest: &str) -> String {
    format!(
        "/v1/workspaces/{}/chats/{chat}/{rest}",
        hotcell_testkit::WORKSPACE
    )
}

fn user(id: &str) -> Value {
    json!({"id": id, "role": "editor"})
}

async fn bash(client: &Client, chat: &str, command: &str) -> Value {
    let body = json!({"user": user("u"), "command": command});
    client
        .post(&chat_path(chat, "bash"), &body)
        .await
        .expect(200)
        .json()
}

async fn end(client: &Client, chat: &str) {
    let target = format!("{}?user=u&role=editor", chat_path(chat, "lease"));
    let _ = client.delete(&target).await.expect(200);
}
