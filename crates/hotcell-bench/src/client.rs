//! A signed client with one kept-alive connection, as thin as a backend's could be.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

const ORGANIZATION: &str = "bench";
const WORKSPACE: &str = "bench";
/// How long the pool may take to fill.
const WARM_PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at the pool, and before a measurement begins.
const QUIET: Duration = Duration::from_millis(100);

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    async fn open(url: &str) -> Result<Self> {
        let host = url
            .strip_prefix("http://")
            .context("the address must be http://")?
            .to_owned();
        let stream = TcpStream::connect(&host).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, host })
    }

    async fn call(&mut self, mut request: Request<Full<Bytes>>) -> Result<Value> {
        request
            .headers_mut()
            .insert(http::header::HOST, self.host.parse()?);
        request
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, "application/json".parse()?);
        let target = request.uri().to_string();
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{target}: {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&body)?
        })
    }
}

/// The operator's side.
pub(crate) struct Operator {
    connection: Connection,
    token: String,
}

/// What a backend signs with.
#[derive(Clone)]
pub(crate) struct Credential {
    key: String,
    secret: String,
}

impl Operator {
    pub(crate) async fn connect(url: &str, token: &str) -> Result<Self> {
        Ok(Self {
            connection: Connection::open(url).await?,
            token: token.to_owned(),
        })
    }

    /// Makes an organization, a workspace and a credential, and switches everything on.
    pub(crate) async fn switch_on(&mut self) -> Result<Credential> {
        self.call(
            Method::PUT,
            "/v1/admin/deployment",
            &json!({"enabled": true}),
        )
        .await?;
        let path = format!("/v1/admin/organizations/{ORGANIZATION}");
        self.call(
            Method::PUT,
            &path,
            &json!({"name": "Bench", "enabled": true}),
        )
        .await?;
        // What is measured is in no quota's way.
        let workspace = json!({
            "organization": ORGANIZATION,
            "name": "Bench",
            "enabled": true,
            "quotas": {"max_concurrent": 10_000, "max_jobs_per_hour": 100_000},
        });
        self.call(
            Method::PUT,
            &format!("/v1/admin/workspaces/{WORKSPACE}"),
            &workspace,
        )
        .await?;
        let made = self
            .call(Method::POST, &format!("{path}/credentials"), &json!({}))
            .await?;
        let text = |name: &str| {
            made[name]
                .as_str()
                .map(str::to_owned)
                .context("no credential came")
        };
        Ok(Credential {
            key: text("key")?,
            secret: text("secret")?,
        })
    }

    /// Waits until every warm sandbox that should be there is ready, and until nothing else is
    /// going on.
    pub(crate) async fn await_warm(&mut self) -> Result<()> {
        let deadline = tokio::time::Instant::now() + WARM_PATIENCE;
        loop {
            let listed = self
                .call(Method::GET, "/v1/admin/profiles", &Value::Null)
                .await?;
            let warm = &listed["profiles"][0]["warm"];
            if warm["wanted"].as_u64() > Some(0) && warm["ready"] == warm["wanted"] {
                // What made the last one has just begun to rest.
                tokio::time::sleep(QUIET).await;
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                bail!("no warm sandbox is there: {warm}");
            }
            tokio::time::sleep(QUIET).await;
        }
    }

    async fn call(&mut self, method: Method, target: &str, body: &Value) -> Result<Value> {
        let request = Request::builder()
            .method(method)
            .uri(target)
            .header("Authorization", format!("Bearer {}", self.token))
            .body(match body {
                Value::Null => Full::default(),
                body => Full::from(body.to_string()),
            })?;
        self.connection.call(request).await
    }
}

/// The backend's side.
pub(crate) struct Backend {
    connection: Connection,
    credential: Credential,
}

impl Backend {
    pub(crate) async fn connect(url: &str, credential: Credential) -> Result<Self> {
        Ok(Self {
            connection: Connection::open(url).await?,
            credential,
        })
    }

    /// Runs a command in a chat; an exit code other than 0 is an error.
    pub(crate) async fn bash(&mut self, chat: &str, command: &str) -> Result<Value> {
        let target = format!("/v1/workspaces/{WORKSPACE}/chats/{chat}/bash");
        let body = json!({"user": {"id": "u1", "role": "editor"}, "command": command}).to_string();
        let result = self.signed(Method::POST, &target, body).await?;
        if result["exit_code"] != 0 {
            bail!("{command:?} ended with {result}");
        }
        Ok(result)
    }

    /// Ends a chat's sandbox.
    pub(crate) async fn end(&mut self, chat: &str) -> Result<()> {
        let target = format!("/v1/workspaces/{WORKSPACE}/chats/{chat}/lease?user=u1&role=editor");
        self.signed(Method::DELETE, &target, String::new())
            .await
            .map(|_| ())
    }

    async fn signed(&mut self, method: Method, target: &str, body: String) -> Result<Value> {
        let timestamp = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)?
            .as_secs();
        let nonce = format!("{:032x}", rand::random::<u128>());
        let hash = hotcell_wire::body_sha256(body.as_bytes());
        let headers = hotcell_wire::sign_headers(
            &self.credential.key,
            &self.credential.secret,
            timestamp,
            &nonce,
            method.as_str(),
            target,
            &hash,
        );
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        self.connection.call(request.body(Full::from(body))?).await
    }
}
