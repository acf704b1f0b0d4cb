//! Jobs and the ends of their output: stored shapes, changes and reads.
//!
//! ```text
//!   jobs            job → its DTO
//!   job_tails       job → what is kept of its output, once it has ended
//!   jobs_of_chat    workspace/chat/time,job → nothing
//!   live_jobs       lease/job → nothing, for each job that has not ended
//! ```

use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hotcell_core::{
    job::{JobRecord, JobState, JobTail, JobTails},
    model::LeaseRecord,
};
use hotcell_types::{
    ChatId, JobId, LeaseId, OrganizationId, UnixMillis, UserId, WorkspaceId, limits,
};
use serde::{Deserialize, Serialize};

use crate::{
    dto::{Keyed, broken, encode, id_of_key},
    error::StoreError,
    rows::{Order, Snapshot},
    tables::{Span, Table, joined},
    tx::Tx,
};

/// A job, keyed by its id.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum JobDto {
    #[serde(rename = "1")]
    V1(JobV1),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JobV1 {
    organization: OrganizationId,
    workspace: WorkspaceId,
    chat: ChatId,
    user: UserId,
    lease: LeaseId,
    state: JobStateV1,
    max_ms: u64,
    created_at: UnixMillis,
    ended_at: Option<UnixMillis>,
    exit_code: Option<i32>,
    signal: Option<String>,
    reason: Option<String>,
    stdout_bytes: u64,
    stderr_bytes: u64,
    duration_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobStateV1 {
    Starting,
    Running,
    Exited,
    Stopped,
    TimedOut,
    Failed,
    Lost,
}

impl From<JobState> for JobStateV1 {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Starting => Self::Starting,
            JobState::Running => Self::Running,
            JobState::Exited => Self::Exited,
            JobState::Stopped => Self::Stopped,
            JobState::TimedOut => Self::TimedOut,
            JobState::Failed => Self::Failed,
            JobState::Lost => Self::Lost,
        }
    }
}

impl From<JobStateV1> for JobState {
    fn from(state: JobStateV1) -> Self {
        match state {
            JobStateV1::Starting => Self::Starting,
            JobStateV1::Running => Self::Running,
            JobStateV1::Exited => Self::Exited,
            JobStateV1::Stopped => Self::Stopped,
            JobStateV1::TimedOut => Self::TimedOut,
            JobStateV1::Failed => Self::Failed,
            JobStateV1::Lost => Self::Lost,
        }
    }
}

impl From<&JobRecord> for JobDto {
    fn from(job: &JobRecord) -> Self {
        Self::V1(JobV1 {
            organization: job.organization.clone(),
            workspace: job.workspace.clone(),
            chat: job.chat.clone(),
            user: job.user.clone(),
            lease: job.lease.clone(),
            state: job.state.into(),
            max_ms: job.max_ms,
            created_at: job.created_at,
            ended_at: job.ended_at,
            exit_code: job.exit_code,
            signal: job.signal.clone(),
            reason: job.reason.clone(),
            stdout_bytes: job.stdout_bytes,
            stderr_bytes: job.stderr_bytes,
            duration_ms: job.duration_ms,
        })
    }
}

impl From<Keyed<JobId, JobDto>> for JobRecord {
    fn from(Keyed(id, JobDto::V1(v1)): Keyed<JobId, JobDto>) -> Self {
        Self {
            id,
            organization: v1.organization,
            workspace: v1.workspace,
            chat: v1.chat,
            user: v1.user,
            lease: v1.lease,
            state: v1.state.into(),
            max_ms: v1.max_ms,
            created_at: v1.created_at,
            ended_at: v1.ended_at,
            exit_code: v1.exit_code,
            signal: v1.signal,
            reason: v1.reason,
            stdout_bytes: v1.stdout_bytes,
            stderr_bytes: v1.stderr_bytes,
            duration_ms: v1.duration_ms,
        }
    }
}

/// What is kept of a job's output, keyed by the job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum JobTailsDto {
    #[serde(rename = "1")]
    V1 { stdout: TailV1, stderr: TailV1 },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TailV1 {
    offset: u64,
    base64: String,
}

impl From<&JobTail> for TailV1 {
    fn from(tail: &JobTail) -> Self {
        Self {
            offset: tail.offset,
            base64: BASE64.encode(&tail.bytes),
        }
    }
}

impl From<&JobTails> for JobTailsDto {
    fn from(tails: &JobTails) -> Self {
        Self::V1 {
            stdout: (&tails.stdout).into(),
            stderr: (&tails.stderr).into(),
        }
    }
}

impl JobTailsDto {
    fn open(self, key: &[u8]) -> Result<JobTails, StoreError> {
        let Self::V1 { stdout, stderr } = self;
        let tail = |v1: TailV1| {
            let bytes = BASE64.decode(v1.base64.as_bytes());
            Ok(JobTail {
                offset: v1.offset,
                bytes: bytes.map_err(|error| broken(Table::JobTails, key, error.to_string()))?,
            })
        };
        Ok(JobTails {
            stdout: tail(stdout)?,
            stderr: tail(stderr)?,
        })
    }
}

/// Sixteen hexadecimal characters, so that the text order is the time order.
fn of_chat_key(job: &JobRecord) -> String {
    let JobRecord {
        workspace, chat, ..
    } = job;
    format!("{workspace}/{chat}/{:016x}{}", job.created_at.0, job.id)
}

fn counter(job: &JobRecord) -> String {
    format!("jobs/{}/{}", job.workspace, job.chat)
}

impl Snapshot<'_> {
    /// A job.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn job(&self, id: &JobId) -> Result<Option<JobRecord>, StoreError> {
        let dto: Option<JobDto> = self.dto(Table::Jobs, id.as_str())?;
        Ok(dto.map(|dto| Keyed(id.clone(), dto).into()))
    }

    /// What is kept of a job's output.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn job_tails(&self, id: &JobId) -> Result<Option<JobTails>, StoreError> {
        let dto: Option<JobTailsDto> = self.dto(Table::JobTails, id.as_str())?;
        dto.map(|dto| dto.open(id.as_str().as_bytes())).transpose()
    }

    /// The jobs of a chat, the newest first; there are at most [`limits::MAX_JOBS_PER_CHAT`].
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn jobs_of_chat(
        &self,
        workspace: &WorkspaceId,
        chat: &ChatId,
    ) -> Result<Vec<JobRecord>, StoreError> {
        self.jobs_below(
            &joined(workspace.as_str(), chat.as_str()),
            Order::Descending,
            usize::MAX,
        )
    }

    /// Some jobs of a workspace, or of one member in it, at most [`limits::MAX_PAGE_ROWS`]: to
    /// delete them all, a page at a time.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn jobs_of(
        &self,
        workspace: &WorkspaceId,
        user: Option<&UserId>,
    ) -> Result<Vec<JobRecord>, StoreError> {
        let most = user.map_or(limits::MAX_PAGE_ROWS, |_| usize::MAX);
        let mut jobs = self.jobs_below(workspace.as_str(), Order::Ascending, most)?;
        if let Some(user) = user {
            jobs.retain(|job| job.user == *user);
            jobs.truncate(limits::MAX_PAGE_ROWS);
        }
        Ok(jobs)
    }

    fn jobs_below(
        &self,
        prefix: &str,
        order: Order,
        limit: usize,
    ) -> Result<Vec<JobRecord>, StoreError> {
        let table = Table::JobsOfChat;
        self.scan(table, &Span::below(prefix), order, limit)?
            .iter()
            .map(|(key, _)| {
                let id = std::str::from_utf8(key)
                    .ok()
                    .and_then(|text| text.rsplit('/').next()?.get(16..)?.parse().ok())
                    .ok_or_else(|| broken(table, key, "its key is no job"))?;
                self.listed_job(table, &id)
            })
            .collect()
    }

    fn listed_job(&self, table: Table, id: &JobId) -> Result<JobRecord, StoreError> {
        let dangling = || {
            let key = id.as_str().as_bytes();
            broken(table, key, "an index names it, but it is missing")
        };
        self.job(id)?.ok_or_else(dangling)
    }

    /// The jobs of a lease that have not ended, by id.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn live_jobs(&self, lease: &LeaseId) -> Result<Vec<JobRecord>, StoreError> {
        let (table, prefix) = (Table::LiveJobs, lease.as_str());
        self.scan(table, &Span::below(prefix), Order::Ascending, usize::MAX)?
            .iter()
            .map(|(key, _)| self.listed_job(table, &id_of_key(table, &key[prefix.len() + 1..])?))
            .collect()
    }
}

impl Tx<'_> {
    /// Makes or changes a job. When a chat has too many, its oldest ended one is forgotten.
    ///
    /// # Errors
    /// A field that never changes would change; an ended job would change; its chat has too many
    /// that have not ended; its workspace does not exist; the store cannot be read.
    pub fn put_job(&mut self, job: &JobRecord) -> Result<(), StoreError> {
        let key = job.id.as_str();
        let live = joined(job.lease.as_str(), key);
        match self.job(&job.id)? {
            Some(old) => {
                let fields = [
                    ("lease", old.lease == job.lease),
                    ("workspace", old.workspace == job.workspace),
                    ("chat", old.chat == job.chat),
                    ("user", old.user == job.user),
                    ("time of creation", old.created_at == job.created_at),
                    ("end", !old.state.has_ended() || old == *job),
                ];
                if let Some((field, _)) = fields.into_iter().find(|(_, same)| !same) {
                    return Err(StoreError::Immutable {
                        what: "job",
                        id: job.id.to_string(),
                        field,
                    });
                }
            }
            None => {
                self.need_workspace(&job.workspace)?;
                if self.count(&counter(job))? >= limits::MAX_JOBS_PER_CHAT {
                    self.forget_oldest_job(job)?;
                }
                let limit = limits::MAX_JOBS_PER_CHAT;
                self.count_up(&counter(job), "jobs of the chat", limit)?;
                self.mark(Table::JobsOfChat, of_chat_key(job).as_bytes())?;
            }
        }
        if job.state.has_ended() {
            self.remove(Table::LiveJobs, live.as_bytes());
        } else {
            self.mark(Table::LiveJobs, live.as_bytes())?;
        }
        self.put(Table::Jobs, key, &JobDto::from(job))
    }

    fn forget_oldest_job(&mut self, of: &JobRecord) -> Result<(), StoreError> {
        let mut jobs = self.jobs_of_chat(&of.workspace, &of.chat)?;
        jobs.retain(|job| job.state.has_ended());
        if let Some(oldest) = jobs.pop() {
            self.delete_job(&oldest.id)?;
        }
        Ok(())
    }

    /// Keeps the end of a job's output.
    ///
    /// # Errors
    /// It is too long for a row.
    pub fn put_job_tails(&mut self, job: &JobId, tails: &JobTails) -> Result<(), StoreError> {
        let bytes = encode(&JobTailsDto::from(tails))?;
        self.put_bytes(Table::JobTails, job.as_str().as_bytes(), bytes)
    }

    /// Ends every job of a lease that has not ended, as lost, and keeps what was last seen of
    /// their output. Which they were.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn lose_jobs(
        &mut self,
        lease: &LeaseId,
        reason: &str,
        at: UnixMillis,
        seen: &HashMap<JobId, JobTails>,
    ) -> Result<Vec<JobId>, StoreError> {
        let mut lost = Vec::new();
        for mut job in self.live_jobs(lease)? {
            job.state = JobState::Lost;
            job.ended_at = Some(at);
            job.duration_ms = Some(at.millis_since(job.created_at));
            job.reason = Some(reason.to_owned());
            if let Some(tails) = seen.get(&job.id) {
                job.stdout_bytes = job.stdout_bytes.max(tails.stdout.end());
                job.stderr_bytes = job.stderr_bytes.max(tails.stderr.end());
                self.put_job_tails(&job.id, tails)?;
            }
            self.put_job(&job)?;
            lost.push(job.id);
        }
        Ok(lost)
    }

    /// Forgets a job with what is kept of its output. Whether there was one.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn delete_job(&mut self, id: &JobId) -> Result<bool, StoreError> {
        let Some(job) = self.job(id)? else {
            return Ok(false);
        };
        let live = joined(job.lease.as_str(), id.as_str());
        self.remove(Table::LiveJobs, live.as_bytes());
        self.remove(Table::JobsOfChat, of_chat_key(&job).as_bytes());
        self.remove(Table::JobTails, id.as_str().as_bytes());
        self.remove(Table::Jobs, id.as_str().as_bytes());
        self.count_down(&counter(&job))?;
        Ok(true)
    }

    /// Forgets the jobs of a lease that is being forgotten.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn forget_jobs_of(&mut self, lease: &LeaseRecord) -> Result<(), StoreError> {
        for job in self.jobs_of_chat(&lease.workspace, &lease.chat)? {
            if job.lease == lease.id {
                self.delete_job(&job.id)?;
            }
        }
        Ok(())
    }
}
