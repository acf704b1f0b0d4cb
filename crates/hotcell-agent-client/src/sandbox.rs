//! The [`Sandbox`] that is reached through its agent.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hotcell_agent_proto::{
    DiskUsage, ExecRequest, FileInfo, Health, JobList, JobRequest, JobStatus, Listing,
    PROTOCOL_VERSION, Restarted, StdioRequest,
};
use hotcell_runtime::{
    ByteStream, ExecStream, JobOutput, OutputStream, Sandbox, SandboxError, Stdio,
};
use hotcell_types::{AgentKey, Clock, IdSource, JobId, LeaseId, SandboxPath, limits};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;

use crate::{
    Dial, Patience,
    client::{Answer, Call, Client, Content},
    content::{self, Moved},
    frames::{self, Bounds, Source},
    patience::millis,
    pool::Pool,
    stdio,
    target::Target,
};

/// Output of one stream of a call that the agent may send: the head and the tail.
const OUTPUT_BYTES: usize = limits::OUTPUT_HEAD_BYTES + limits::OUTPUT_TAIL_BYTES;

/// One sandbox, through its agent. Make one per lease and share it: it holds the idle
/// connections that make a call cheap.
pub struct AgentSandbox {
    client: Client,
}

impl AgentSandbox {
    /// The way to the agent of `lease`. Connects when the first call is made.
    #[must_use]
    pub fn new(
        lease: LeaseId,
        key: &AgentKey,
        dial: Arc<dyn Dial>,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn IdSource>,
    ) -> Self {
        let pool = Pool::new(dial, Patience::default().idle_connection);
        Self {
            client: Client::new(lease, key.clone(), pool, clock, ids),
        }
    }

    /// The same with another patience.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.client.pool.set_keep(patience.idle_connection);
        self.client.patience = patience;
        self
    }

    async fn health(&self, connect: Duration, answer: Duration) -> Result<Health, SandboxError> {
        let call = Call::new(Method::GET, "/v1/health");
        let got = self.client.send_alone(call, connect, answer).await?;
        if got.response.status() != StatusCode::OK {
            return Err(self.client.unexpected(got).await);
        }
        let health: Health = self
            .client
            .parse(got, limits::MAX_AGENT_ANSWER_BYTES)
            .await?;
        if health.protocol == PROTOCOL_VERSION {
            Ok(health)
        } else {
            Err(SandboxError::Protocol(format!(
                "the agent speaks protocol version {}, not {PROTOCOL_VERSION}",
                health.protocol
            )))
        }
    }

    /// Waits for the answer to an upload for as long as the upload moves.
    async fn send_moving(&self, call: Call, moved: &Moved) -> Result<Answer, SandboxError> {
        let whole = Duration::from_millis(limits::AGENT_UPLOAD_TIMEOUT_MS);
        let send = self.client.send(call, whole);
        tokio::pin!(send);
        let mut before = None;
        loop {
            tokio::select! {
                answer = &mut send => return answer,
                () = tokio::time::sleep(self.client.patience.content) => {
                    let now = moved.load(std::sync::atomic::Ordering::Relaxed);
                    if before == Some(now) {
                        return Err(SandboxError::Timeout(millis(self.client.patience.content)));
                    }
                    before = Some(now);
                }
            }
        }
    }
}

fn number(headers: &HeaderMap, name: &str) -> Result<u64, SandboxError> {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| SandboxError::Protocol(format!("the header {name} is no number")))
}

fn name_of(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    }
}

#[async_trait]
impl Sandbox for AgentSandbox {
    async fn ready(&self, timeout_ms: u64) -> Result<Health, SandboxError> {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        let mut pause = Duration::from_millis(limits::AGENT_READY_POLL_MIN_MS);
        let mut connect = Duration::from_millis(limits::AGENT_READY_CONNECT_MS);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let error = match self
                .health(connect.min(left), self.client.patience.answer.min(left))
                .await
            {
                Ok(health) => return Ok(health),
                // Not there yet, or there and busy with its own start.
                Err(error @ (SandboxError::Lost(_) | SandboxError::Timeout(_))) => error,
                Err(error) => return Err(error),
            };
            if Instant::now() + pause >= deadline {
                tracing::debug!(%error, "the agent did not come up");
                return Err(SandboxError::Timeout(timeout_ms));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(limits::AGENT_READY_POLL_MAX_MS));
            connect = (connect * 2).min(self.client.patience.connect);
        }
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecStream, SandboxError> {
        let time = Duration::from_millis(request.timeout_ms.saturating_add(limits::KILL_GRACE_MS));
        let deadline = Instant::now().checked_add(time + self.client.patience.exec_backstop);
        // With `restart` the answer begins after everything before it has ended.
        let patience = if request.restart {
            self.client.patience.slow_answer
        } else {
            self.client.patience.answer
        };
        let call = Call::new(Method::POST, "/v1/exec").content(Content::json(&request)?);
        // The command's text can be large; it is not needed any more.
        drop(request);
        let answer = self.client.expect(call, StatusCode::OK, patience).await?;
        let bounds = Bounds {
            silence: self.client.patience.silence,
            deadline,
            output_bytes: Some(OUTPUT_BYTES),
        };
        let source = Source::answer(answer, self.client.pool.clone());
        Ok(frames::events(source, bounds))
    }

    async fn restart(&self) -> Result<u32, SandboxError> {
        let call = Call::new(Method::POST, "/v1/restart");
        let patience = self.client.patience.slow_answer;
        let restarted: Restarted = self.client.json(call, patience).await?;
        Ok(restarted.ended)
    }

    async fn start_job(&self, request: JobRequest) -> Result<JobStatus, SandboxError> {
        let call = Call::new(Method::POST, "/v1/jobs").content(Content::json(&request)?);
        let status = self.client.json(call, self.client.patience.answer).await?;
        same_job(status, &request.job)
    }

    async fn jobs(&self) -> Result<Vec<JobStatus>, SandboxError> {
        let call = Call::new(Method::GET, "/v1/jobs");
        let list: JobList = self.client.json(call, self.client.patience.answer).await?;
        Ok(list.jobs)
    }

    async fn job(&self, job: &JobId) -> Result<JobStatus, SandboxError> {
        let call = Call::new(Method::GET, format!("/v1/jobs/{job}"));
        let status = self.client.json(call, self.client.patience.answer).await?;
        same_job(status, job)
    }

    async fn job_output(
        &self,
        job: &JobId,
        stream: OutputStream,
        offset: u64,
        limit: u64,
    ) -> Result<JobOutput, SandboxError> {
        let limit = limit.min(limits::MAX_JOB_READ_BYTES);
        let target = Target::new(&format!("/v1/jobs/{job}/output"))
            .with("stream", name_of(stream))
            .with("offset", offset)
            .with("limit", limit);
        let call = Call::new(Method::GET, target.into_string());
        let answer = self
            .client
            .expect(call, StatusCode::OK, self.client.patience.answer)
            .await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (headers, bytes) = self.client.finish(answer, limit).await?;
        let output = JobOutput {
            offset: number(&headers, "hotcell-offset")?,
            total: number(&headers, "hotcell-total")?,
            bytes,
        };
        // Whoever reads on goes to the end of this piece, which must not lie before its start.
        let end = output.offset.checked_add(output.bytes.len() as u64);
        if end.is_none_or(|end| !output.bytes.is_empty() && end > output.total)
            || (!output.bytes.is_empty() && output.offset < offset)
        {
            return Err(SandboxError::Protocol(
                "the job's output is not where it was asked for".into(),
            ));
        }
        Ok(output)
    }

    async fn stop_job(&self, job: &JobId) -> Result<JobStatus, SandboxError> {
        let call = Call::new(Method::DELETE, format!("/v1/jobs/{job}"));
        let patience = self.client.patience.slow_answer;
        let status = self.client.json(call, patience).await?;
        same_job(status, job)
    }

    async fn read_file(&self, path: &SandboxPath) -> Result<(FileInfo, ByteStream), SandboxError> {
        let mut target = Target::new("/v1/files").with("path", path);
        if let Some(directory) = path.directory() {
            target = target.with("beneath", directory);
        }
        let call = Call::new(Method::GET, target.into_string());
        let answer = self
            .client
            .expect(call, StatusCode::OK, self.client.patience.answer)
            .await?;
        let info = answer
            .response
            .headers()
            .get("hotcell-file")
            .ok_or_else(|| SandboxError::Protocol("a file without its description".into()))?;
        let info: FileInfo = serde_json::from_slice(info.as_bytes())
            .map_err(|error| SandboxError::Protocol(error.to_string()))?;
        let patience = self.client.patience.content;
        let pool = self.client.pool.clone();
        let content = content::download(answer, pool, info.bytes, patience);
        Ok((info, content))
    }

    async fn write_file(
        &self,
        path: &SandboxPath,
        mode: u32,
        bytes: u64,
        sha256_hex: &str,
        content: ByteStream,
    ) -> Result<FileInfo, SandboxError> {
        let target = Target::new("/v1/files")
            .with("path", path)
            .with("mode", mode);
        let (body, moved) = content::upload(bytes, content);
        let call = Call::new(Method::PUT, target.into_string()).content(Content::Streamed {
            bytes,
            sha256_hex: sha256_hex.to_owned(),
            body,
        });
        let answer = self.send_moving(call, &moved).await?;
        if answer.response.status() != StatusCode::OK {
            return Err(self.client.unexpected(answer).await);
        }
        self.client
            .parse(answer, limits::MAX_AGENT_ANSWER_BYTES)
            .await
    }

    async fn remove_file(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        let target = Target::new("/v1/files").with("path", path);
        let call = Call::new(Method::DELETE, target.into_string());
        let patience = self.client.patience.slow_answer;
        let answer = self
            .client
            .expect(call, StatusCode::NO_CONTENT, patience)
            .await?;
        self.client.finish(answer, 0).await?;
        Ok(())
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        let target = Target::new("/v1/stat").with("path", path);
        let call = Call::new(Method::GET, target.into_string());
        self.client.json(call, self.client.patience.answer).await
    }

    async fn list(
        &self,
        path: &SandboxPath,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Listing, SandboxError> {
        let limit = limit.clamp(1, limits::MAX_PAGE_ROWS);
        let mut target = Target::new("/v1/list")
            .with("path", path)
            .with("limit", limit);
        if let Some(after) = after {
            target = target.with("after", after);
        }
        let call = Call::new(Method::GET, target.into_string());
        let patience = self.client.patience.answer;
        let listing: Listing = self
            .client
            .json_up_to(call, patience, limits::MAX_AGENT_LISTING_BYTES)
            .await?;
        // More pages after an empty one would keep a reader busy for ever.
        if listing.entries.len() > limit || (listing.more && listing.entries.is_empty()) {
            return Err(SandboxError::Protocol(
                "a page of a directory with the wrong number of rows".into(),
            ));
        }
        Ok(listing)
    }

    async fn disk(&self) -> Result<DiskUsage, SandboxError> {
        let call = Call::new(Method::GET, "/v1/disk");
        self.client.json(call, self.client.patience.answer).await
    }

    async fn stdio(&self, request: StdioRequest) -> Result<Stdio, SandboxError> {
        stdio::open(&self.client, &request).await
    }
}

fn same_job(status: JobStatus, job: &JobId) -> Result<JobStatus, SandboxError> {
    if status.job == *job {
        Ok(status)
    } else {
        Err(SandboxError::Protocol(
            "the answer is about another job".into(),
        ))
    }
}
