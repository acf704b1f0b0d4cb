//! The agent's HTTP side: connections, routes, queries.

use std::{
    borrow::Cow,
    collections::VecDeque,
    convert::Infallible,
    str::FromStr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hotcell_agent_proto::{
    AgentError, AgentErrorCode, ExecRequest, JobRequest, StdioRequest, Stream,
};
use hotcell_types::limits::agent as limits;
use hotcell_types::{
    JobId,
    limits::{HEADER_TIMEOUT_MS, MAX_JSON_BODY_BYTES},
};
use http::{HeaderName, HeaderValue, Method, Request, request::Parts};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    agent::Agent,
    auth::{self, SignedBody},
    call, files, health, job,
    pool::lock,
    reply::{self, Reply},
    stdio,
};

const OFFSET_HEADER: HeaderName = HeaderName::from_static("hotcell-offset");
const TOTAL_HEADER: HeaderName = HeaderName::from_static("hotcell-total");
const FILE_HEADER: HeaderName = HeaderName::from_static("hotcell-file");
const STDIO_HEADER: HeaderName = HeaderName::from_static("hotcell-stdio");
const STDIO_PROTOCOL: &str = "hotcell-stdio";

/// One connection, as the others need to know it.
#[derive(Debug, Default)]
struct Connection {
    /// It has carried a request of the daemon's.
    genuine: AtomicBool,
    evicted: Notify,
}

/// Serves for ever.
pub(crate) async fn serve(listener: TcpListener, agent: Arc<Agent>) {
    let open: Arc<Mutex<VecDeque<Arc<Connection>>>> = Arc::default();
    let closed = Arc::new(Notify::new());
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                // Out of descriptors: some come back when a connection closes, or a pipe.
                let pause = Duration::from_millis(limits::ACCEPT_PAUSE_MS);
                let _ = timeout(pause, closed.notified()).await;
                continue;
            }
        };
        let connection = Arc::new(Connection::default());
        {
            let mut open = lock(&open);
            if open.len() >= limits::MAX_CONNECTIONS {
                // User code can connect, too, but not authenticate.
                match open
                    .iter()
                    .position(|other| !other.genuine.load(Ordering::Relaxed))
                {
                    Some(stranger) => {
                        if let Some(stranger) = open.remove(stranger) {
                            stranger.evicted.notify_one();
                        }
                    }
                    None => continue,
                }
            }
            open.push_back(Arc::clone(&connection));
        }
        let (agent, open, closed) = (Arc::clone(&agent), Arc::clone(&open), Arc::clone(&closed));
        tokio::spawn(async move {
            serve_connection(stream, agent, &connection).await;
            lock(&open).retain(|other| !Arc::ptr_eq(other, &connection));
            closed.notify_one();
        });
    }
}

async fn serve_connection(stream: TcpStream, agent: Arc<Agent>, connection: &Arc<Connection>) {
    // Only costs latency.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let (agent, connection) = (Arc::clone(&agent), Arc::clone(connection));
        async move { Ok::<_, Infallible>(answer(&agent, request, &connection).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        // A connection of the daemon's may stay idle; strangers get a limit below.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let strangers_leave = Instant::now() + Duration::from_millis(HEADER_TIMEOUT_MS);
    tokio::select! {
        // An error is the end of this connection and of nothing else.
        _ = serving.as_mut() => return,
        () = connection.evicted.notified() => return,
        () = sleep_until(strangers_leave) => {}
    }
    if connection.genuine.load(Ordering::Relaxed) {
        let _ = serving.await;
    }
}

async fn answer(agent: &Arc<Agent>, request: Request<Incoming>, from: &Connection) -> Reply {
    let (head, body) = request.into_parts();
    let answer = match auth::check(agent, &head) {
        Ok(hash) => {
            from.genuine.store(true, Ordering::Relaxed);
            // On the heap, since an upload or a call is a large future and most are neither.
            Box::pin(route(agent, head, SignedBody::new(body, hash))).await
        }
        Err(error) => Err(error),
    };
    answer.unwrap_or_else(|error| reply::failure(&error))
}

fn bad_request(message: impl Into<String>) -> AgentError {
    AgentError::new(AgentErrorCode::BadRequest, message)
}

async fn route(agent: &Arc<Agent>, mut head: Parts, body: SignedBody) -> Result<Reply, AgentError> {
    let path = head.uri.path().to_owned();
    let query = Query(head.uri.query().unwrap_or_default().to_owned());
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let method = head.method.clone();
    match (&method, segments.as_slice()) {
        (&Method::POST, ["v1", "exec"]) => {
            let request: ExecRequest = json(body).await?;
            Ok(reply::frames(call::exec(agent, request).await?))
        }
        (&Method::POST, ["v1", "jobs"]) => {
            let request: JobRequest = json(body).await?;
            Ok(reply::json(&job::start(agent, request).await?))
        }
        (&Method::PUT, ["v1", "files"]) => upload(agent, &query, body).await,
        _ => {
            body.whole(limits::MAX_IGNORED_BODY_BYTES).await?;
            match (&method, segments.as_slice()) {
                (&Method::POST, ["v1", "stdio"]) => open_stdio(agent, &mut head).await,
                (method, ["v1", rest @ ..]) => without_body(agent, method, rest, &query).await,
                _ => Err(no_route(&path)),
            }
        }
    }
}

fn no_route(path: &str) -> AgentError {
    AgentError::new(AgentErrorCode::NotFound, format!("there is no {path}"))
}

async fn without_body(
    agent: &Arc<Agent>,
    method: &Method,
    segments: &[&str],
    query: &Query,
) -> Result<Reply, AgentError> {
    let path = || {
        files::path(
            &agent.config.workspace,
            &query.bytes("path")?.unwrap_or_default(),
        )
    };
    Ok(match (method, segments) {
        (&Method::GET, ["health"]) => reply::json(&health::health(agent)),
        (&Method::GET, ["disk"]) => reply::json(&health::disk(agent)),
        (&Method::POST, ["restart"]) => reply::json(&agent.restart().await),
        (&Method::GET, ["jobs"]) => reply::json(&agent.jobs.list()),
        (&Method::GET, ["jobs", id]) => reply::json(&agent.jobs.status(&job_id(id)?)?),
        (&Method::DELETE, ["jobs", id]) => reply::json(&agent.jobs.stop(&job_id(id)?).await?),
        (&Method::GET, ["jobs", id, "output"]) => job_output(agent, &job_id(id)?, query)?,
        (&Method::GET, ["files"]) => {
            let beneath = query.bytes("beneath")?;
            let beneath = beneath
                .map(|bytes| files::path(&agent.config.workspace, &bytes))
                .transpose()?;
            let (info, body) = files::read(path()?, beneath).await?;
            reply::with(reply::file(body), FILE_HEADER, reply::header_json(&info))
        }
        (&Method::DELETE, ["files"]) => {
            files::remove(path()?).await?;
            reply::nothing()
        }
        (&Method::GET, ["stat"]) => reply::json(&files::stat(path()?).await?),
        (&Method::GET, ["list"]) => {
            let after = query.bytes("after")?.unwrap_or_default();
            reply::json(&files::list(path()?, after, query.number("limit")?).await?)
        }
        _ => return Err(no_route(&segments.join("/"))),
    })
}

fn job_id(text: &str) -> Result<JobId, AgentError> {
    text.parse()
        .map_err(|_| AgentError::new(AgentErrorCode::NotFound, format!("no job {text}")))
}

fn job_output(agent: &Agent, id: &JobId, query: &Query) -> Result<Reply, AgentError> {
    let stream = match query.bytes("stream")?.as_deref() {
        Some(b"stdout") | None => Stream::Stdout,
        Some(b"stderr") => Stream::Stderr,
        Some(_) => return Err(bad_request("stream is stdout or stderr")),
    };
    let offset = query.number("offset")?.unwrap_or(0);
    let piece = agent
        .jobs
        .output(id, stream, offset, query.number("limit")?)?;
    let reply = reply::with(
        reply::bytes(piece.bytes),
        OFFSET_HEADER,
        piece.offset.into(),
    );
    Ok(reply::with(reply, TOTAL_HEADER, piece.total.into()))
}

async fn upload(agent: &Agent, query: &Query, mut body: SignedBody) -> Result<Reply, AgentError> {
    let stored = store(agent, query, &mut body).await;
    match stored {
        Ok(upload) => {
            body.finish()?;
            Ok(reply::json(&upload.commit().await?))
        }
        Err(refused) => {
            body.drain().await;
            Err(refused)
        }
    }
}

/// Takes an upload's body up to its end.
async fn store(
    agent: &Agent,
    query: &Query,
    body: &mut SignedBody,
) -> Result<files::Upload, AgentError> {
    let path = query.bytes("path")?.unwrap_or_default();
    let path = files::path(&agent.config.workspace, &path)?;
    let options = files::Options {
        mode: query.mode()?.unwrap_or(0o644),
        mtime_ms: query.number("mtime_ms")?,
    };
    let upload = files::Upload::begin(path, options);
    while let Some(piece) = body.piece().await? {
        if !upload.piece(piece).await {
            let unwanted = upload.end().await;
            return Err(unwanted
                .err()
                .unwrap_or_else(|| bad_request("it was given up")));
        }
    }
    Ok(upload)
}

async fn open_stdio(agent: &Arc<Agent>, head: &mut Parts) -> Result<Reply, AgentError> {
    let asked = head
        .headers
        .get(http::header::UPGRADE)
        .map(HeaderValue::as_bytes);
    if asked != Some(STDIO_PROTOCOL.as_bytes()) {
        return Err(bad_request(format!("this needs Upgrade: {STDIO_PROTOCOL}")));
    }
    let request = head
        .headers
        .get(STDIO_HEADER)
        .ok_or_else(|| bad_request("the header Hotcell-Stdio is missing"))?;
    let request: StdioRequest =
        serde_json::from_slice(request.as_bytes()).map_err(|e| bad_request(e.to_string()))?;
    let upgrade = head
        .extensions
        .remove::<hyper::upgrade::OnUpgrade>()
        .ok_or_else(|| bad_request("this connection cannot be upgraded"))?;
    let stdio = stdio::start(agent, request).await?;
    tokio::spawn(stdio::carry(stdio, upgrade));
    Ok(reply::upgraded(STDIO_PROTOCOL))
}

async fn json<T: DeserializeOwned>(body: SignedBody) -> Result<T, AgentError> {
    let body = body.whole(MAX_JSON_BODY_BYTES).await?;
    serde_json::from_slice(&body).map_err(|error| bad_request(error.to_string()))
}

/// A query string. Values are percent-encoded bytes: a path may be no UTF-8; `+` is itself.
struct Query(String);

impl Query {
    fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, AgentError> {
        let mut found = self.0.split('&').filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name).then_some(value)
        });
        let value = found.next();
        if found.next().is_some() {
            return Err(bad_request(format!("{name} is there more than once")));
        }
        Ok(value.map(|value| Cow::from(percent_decode_str(value)).into_owned()))
    }

    fn text(&self, name: &str) -> Result<Option<String>, AgentError> {
        self.bytes(name)?
            .filter(|value| !value.is_empty())
            .map(|value| {
                String::from_utf8(value).map_err(|_| bad_request(format!("{name} is no text")))
            })
            .transpose()
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, AgentError> {
        self.text(name)?
            .map(|text| {
                text.parse()
                    .map_err(|_| bad_request(format!("{name} is no number")))
            })
            .transpose()
    }

    /// Permission bits: decimal, as in `FileInfo`.
    fn mode(&self) -> Result<Option<u32>, AgentError> {
        match self.number("mode")? {
            Some(mode) if mode > 0o7777 => Err(bad_request("mode is over 4095")),
            mode => Ok(mode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_carry_any_bytes() {
        let query = Query("path=%2Fa+b%ff&limit=5&empty=&mode=420".into());
        assert_eq!(query.bytes("path").unwrap().unwrap(), b"/a+b\xff");
        assert_eq!(query.number("limit").unwrap(), Some(5));
        assert_eq!(query.number::<u64>("empty").unwrap(), None);
        assert_eq!(query.mode().unwrap(), Some(0o644));
        assert!(query.number::<u64>("path").is_err());
        assert!(Query("a=1&a=2".into()).bytes("a").is_err());
        assert!(Query("mode=9999".into()).mode().is_err());
    }
}
