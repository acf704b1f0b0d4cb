//! A daemon for one test: its own directories, its own clock, the in-memory engine.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use hotcell::{
    clock::{SystemClock, SystemIds},
    config::{Config, Overrides},
    serve::{Daemon, Deps, MakeRuntime},
};
use hotcell_runtime::{Runtime, fake::FakeRuntime};
use hotcell_types::{Clock, UnixMillis};
use serde_json::{Value, json};

use crate::client::{Answer, Client, send};

pub(crate) struct TestClock(AtomicU64);

impl TestClock {
    pub(crate) fn advance(&self, seconds: u64) {
        self.0.fetch_add(seconds * 1000, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> UnixMillis {
        UnixMillis(self.0.load(Ordering::Relaxed))
    }
}

pub(crate) const START_SECONDS: u64 = 1_800_000_000;

pub(crate) struct TestDaemon {
    pub(crate) daemon: Daemon,
    pub(crate) client: Client,
    pub(crate) clock: Arc<TestClock>,
    pub(crate) fake: FakeRuntime,
    pub(crate) token: String,
    pub(crate) dir: Arc<tempfile::TempDir>,
}

type Wrap = fn(FakeRuntime) -> Arc<dyn Runtime>;

/// What survives a restart.
pub(crate) struct Stopped {
    dir: Arc<tempfile::TempDir>,
    clock: Arc<TestClock>,
    client: Client,
}

impl TestDaemon {
    /// A daemon where everything is switched on: organization `acme`, workspace `w1`.
    pub(crate) async fn start() -> Self {
        Self::with(|fake| Arc::new(fake)).await
    }

    pub(crate) async fn with(wrap: Wrap) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let clock = Arc::new(TestClock(AtomicU64::new(START_SECONDS * 1000)));
        let mut daemon = Self::boot(dir, clock, wrap, None).await;
        daemon.set_up().await;
        // Requests of these tests are stamped within a minute of the time: all after the start.
        daemon.clock.advance(100);
        daemon
    }

    /// The same with the machine's time, for clients of their own.
    pub(crate) async fn on_the_clock() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let clock = Arc::new(TestClock(AtomicU64::new(SystemClock.now().0)));
        let mut daemon = Self::boot(dir, clock, |fake| Arc::new(fake), None).await;
        daemon.set_up().await;
        daemon
    }

    async fn boot(
        dir: Arc<tempfile::TempDir>,
        clock: Arc<TestClock>,
        wrap: Wrap,
        client: Option<Client>,
    ) -> Self {
        let over = Overrides {
            listen: Some("127.0.0.1:0".parse().unwrap()),
            state_dir: Some(dir.path().join("state")),
            run_dir: Some(dir.path().join("run")),
            ..Overrides::default()
        };
        // A test that ends without a shutdown would leave mounts behind.
        let text = "[runtime]\nimage = 'fake'\n[limits]\nvolume_bytes = 0\n";
        let config = Config::parse(text, &over).unwrap();
        let token_file = config.operator_token_file.clone();
        let made: Arc<OnceLock<FakeRuntime>> = Arc::default();
        let keep = made.clone();
        let runtime: MakeRuntime = Arc::new(move |installation| {
            let fake = keep.get_or_init(|| FakeRuntime::new(installation.clone()));
            wrap(fake.clone())
        });
        let deps = Deps {
            clock: clock.clone(),
            ids: Arc::new(SystemIds),
            runtime: Some(runtime),
            egress: None,
        };
        let daemon = Daemon::start(config, deps).await.unwrap();
        let token = std::fs::read_to_string(token_file)
            .unwrap()
            .trim()
            .to_owned();
        let addr = daemon.addr();
        let client = client.map_or_else(
            || Client {
                addr,
                key: String::new(),
                secret: String::new(),
                clock: clock.clone(),
            },
            |client| Client { addr, ..client },
        );
        Self {
            client,
            daemon,
            clock,
            fake: made.get().unwrap().clone(),
            token,
            dir,
        }
    }

    async fn set_up(&mut self) {
        self.admin("PUT", "deployment", &json!({"enabled": true}))
            .await
            .expect(200);
        self.admin("PUT", "organizations/acme", &json!({"enabled": true}))
            .await
            .expect(201);
        // Tests of other things are in no quota's way.
        let quotas = json!({"max_concurrent": 1_000, "max_jobs_per_hour": 100_000});
        let workspace = json!({"organization": "acme", "enabled": true, "quotas": quotas});
        self.admin("PUT", "workspaces/w1", &workspace)
            .await
            .expect(201);
        self.client = self.backend("acme").await;
    }

    /// Issues a credential.
    pub(crate) async fn backend(&self, organization: &str) -> Client {
        let path = format!("organizations/{organization}/credentials");
        let issued = self
            .admin("POST", &path, &Value::Null)
            .await
            .expect(201)
            .json();
        Client {
            addr: self.daemon.addr(),
            key: issued["key"].as_str().unwrap().to_owned(),
            secret: issued["secret"].as_str().unwrap().to_owned(),
            clock: self.clock.clone(),
        }
    }

    /// A request of the operator.
    pub(crate) async fn admin(&self, method: &str, path: &str, body: &Value) -> Answer {
        let mut headers = vec![("authorization".to_owned(), format!("Bearer {}", self.token))];
        let body = if body.is_null() {
            String::new()
        } else {
            headers.push(("content-type".to_owned(), "application/json".to_owned()));
            body.to_string()
        };
        send(
            self.daemon.addr(),
            false,
            method,
            &format!("/v1/admin/{path}"),
            &headers,
            body,
        )
        .await
    }

    /// Runs a command as an editor.
    pub(crate) async fn bash(&self, chat: &str, command: &str) -> Answer {
        self.client
            .post(
                &format!("/v1/workspaces/w1/chats/{chat}/bash"),
                &json!({"user": {"id": "u1", "role": "editor"}, "command": command}),
            )
            .await
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Files that are on their way: there should be none once a request is over.
    pub(crate) fn temporary_files(&self) -> usize {
        std::fs::read_dir(self.state().join("tmp")).unwrap().count()
    }

    /// What a crash at this moment would leave on disk, in a directory of its own.
    pub(crate) async fn crashed(&self) -> Stopped {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let state = dir.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let store = state.join("store.redb");
        self.daemon.store().backup(store).await.unwrap();
        for name in ["store.key", "operator.token", "nonces.log"] {
            std::fs::copy(self.state().join(name), state.join(name)).unwrap();
        }
        Stopped {
            dir,
            clock: self.clock.clone(),
            client: self.client.clone(),
        }
    }

    pub(crate) async fn stop(self) -> Stopped {
        self.daemon.shutdown().await;
        Stopped {
            dir: self.dir,
            clock: self.clock,
            client: self.client,
        }
    }
}

impl Stopped {
    pub(crate) fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    pub(crate) async fn start_again(self) -> TestDaemon {
        TestDaemon::boot(
            self.dir,
            self.clock,
            |fake| Arc::new(fake),
            Some(self.client),
        )
        .await
    }
}
