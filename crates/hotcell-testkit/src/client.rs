//! A client that signs its requests as `docs/api/signing.md` says, and one for operators.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use hotcell_types::{Clock, IdSource};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::{ORGANIZATION, WORKSPACE};

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Answer {
    /// Its body as JSON.
    ///
    /// # Panics
    /// When it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            let text = String::from_utf8_lossy(&self.body);
            panic!("{}: no JSON ({error}): {text}", self.status)
        })
    }

    /// The same answer, once it is clear that it has this status.
    ///
    /// # Panics
    /// When it has another.
    #[must_use]
    pub fn expect(self, status: u16) -> Self {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status.as_u16(), status, "{text}");
        self
    }
}

/// How a client shows who it is.
#[derive(Clone)]
enum Identity {
    Nobody,
    Backend { key: String, secret: String },
    Operator { token: String },
}

/// Sends requests to a daemon, one connection each. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    addr: SocketAddr,
    identity: Identity,
    clock: Arc<dyn Clock>,
    ids: Arc<dyn IdSource>,
}

impl Client {
    /// A client that shows nothing of itself.
    #[must_use]
    pub fn new(addr: SocketAddr, clock: Arc<dyn Clock>, ids: Arc<dyn IdSource>) -> Self {
        Self {
            addr,
            identity: Identity::Nobody,
            clock,
            ids,
        }
    }

    /// The same client, signing with this credential.
    #[must_use]
    pub fn signing(&self, key: &str, secret: &str) -> Self {
        Self {
            identity: Identity::Backend {
                key: key.to_owned(),
                secret: secret.to_owned(),
            },
            ..self.clone()
        }
    }

    /// The same client, with an operator's token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            identity: Identity::Operator {
                token: token.to_owned(),
            },
            ..self.clone()
        }
    }

    /// As an operator: turns everything on for [`ORGANIZATION`] and [`WORKSPACE`], makes a
    /// credential, and returns a client that signs with it.
    ///
    /// # Panics
    /// When the daemon refuses.
    pub async fn switch_on(&self) -> Self {
        let on = json!({"enabled": true});
        let root = "/v1/admin";
        let made = self.put(&format!("{root}/deployment"), &on).await;
        assert!(made.status.is_success(), "{:?}", made.body);
        let organization = format!("{root}/organizations/{ORGANIZATION}");
        let made = self.put(&organization, &on).await;
        assert!(made.status.is_success(), "{:?}", made.body);
        // Tests of other things are in no quota's way.
        let quotas = json!({"max_concurrent": 1_000, "max_jobs_per_hour": 100_000});
        let workspace = json!({"enabled": true, "organization": ORGANIZATION, "quotas": quotas});
        let made = self
            .put(&format!("{root}/workspaces/{WORKSPACE}"), &workspace)
            .await;
        assert!(made.status.is_success(), "{:?}", made.body);
        let issued = self
            .post(&format!("{organization}/credentials"), &json!({}))
            .await;
        assert!(issued.status.is_success(), "{:?}", issued.body);
        let issued = issued.json();
        let text = |name: &str| {
            let text = issued[name].as_str();
            text.unwrap_or_else(|| panic!("no {name}: {issued}"))
                .to_owned()
        };
        self.signing(&text("key"), &text("secret"))
    }

    /// The credential's key and secret, when it signs.
    #[must_use]
    pub fn credential(&self) -> Option<(&str, &str)> {
        match &self.identity {
            Identity::Backend { key, secret } => Some((key, secret)),
            Identity::Nobody | Identity::Operator { .. } => None,
        }
    }

    /// The headers that show who it is.
    ///
    /// # Panics
    /// When the credential has characters that no header takes.
    #[must_use]
    pub fn identity_headers(&self, method: &Method, target: &str, body: &[u8]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match &self.identity {
            Identity::Nobody => {}
            Identity::Operator { token } => {
                let value = HeaderValue::from_str(&format!("Bearer {token}"));
                headers.insert(
                    header::AUTHORIZATION,
                    value.unwrap_or_else(|e| panic!("{e}")),
                );
            }
            Identity::Backend { key, secret } => {
                let nonce = format!("{:032x}", self.ids.bits());
                let signed = hotcell_wire::sign_headers(
                    key,
                    secret,
                    self.clock.now().seconds(),
                    &nonce,
                    method.as_str(),
                    target,
                    &hotcell_wire::body_sha256(body),
                );
                for (name, value) in signed {
                    let value = HeaderValue::from_str(&value);
                    let value = value.unwrap_or_else(|error| panic!("{name}: {error}"));
                    headers.insert(HeaderName::from_static(name), value);
                }
            }
        }
        headers
    }

    /// Sends a request and returns as soon as the head of its answer is there. Dropping the
    /// answer's body drops the connection.
    ///
    /// # Panics
    /// When the daemon cannot be reached or does not speak HTTP.
    pub async fn send(
        &self,
        method: Method,
        target: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        let body: Bytes = body.into();
        let mut request = Request::builder().method(method.clone()).uri(target);
        request = request.header(header::HOST, self.addr.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request
            .body(Full::new(body.clone()))
            .unwrap_or_else(|error| panic!("{target}: {error}"));
        let identity = self.identity_headers(&method, target, &body);
        request.headers_mut().extend(identity);
        let stream = TcpStream::connect(self.addr).await;
        let stream = stream.unwrap_or_else(|error| panic!("{}: {error}", self.addr));
        let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connected.unwrap_or_else(|error| panic!("{error}"));
        tokio::spawn(connection);
        let sent = sender.send_request(request).await;
        sent.unwrap_or_else(|error| panic!("{method} {target}: {error}"))
    }

    /// Sends a request and takes the whole answer.
    ///
    /// # Panics
    /// When the answer does not come whole.
    pub async fn request(
        &self,
        method: Method,
        target: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let (head, body) = self.send(method, target, headers, body).await.into_parts();
        let body = body.collect().await;
        Answer {
            status: head.status,
            headers: head.headers,
            body: body
                .unwrap_or_else(|error| panic!("{target}: the answer was cut: {error}"))
                .to_bytes(),
        }
    }

    /// Sends JSON.
    pub async fn send_json(&self, method: Method, target: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.request(method, target, &headers, body.to_string())
            .await
    }

    /// `GET`.
    pub async fn get(&self, target: &str) -> Answer {
        self.request(Method::GET, target, &[], Bytes::new()).await
    }

    /// `POST` with JSON.
    pub async fn post(&self, target: &str, body: &Value) -> Answer {
        self.send_json(Method::POST, target, body).await
    }

    /// `PUT` with JSON.
    pub async fn put(&self, target: &str, body: &Value) -> Answer {
        self.send_json(Method::PUT, target, body).await
    }

    /// `DELETE`.
    pub async fn delete(&self, target: &str) -> Answer {
        self.request(Method::DELETE, target, &[], Bytes::new())
            .await
    }
}
