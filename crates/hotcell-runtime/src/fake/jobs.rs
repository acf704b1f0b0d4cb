//! The jobs of one run.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bytes::{Bytes, BytesMut};
use hotcell_agent_proto::{
    AgentError, AgentErrorCode, JobState, JobStatus, Stream as OutputStream,
};
use hotcell_types::{JobId, limits};
use tokio::{task::AbortHandle, time::Instant};

use crate::{
    ExecEvent, JobOutput,
    fake::{lock, shell::Call},
};

#[derive(Default)]
struct Kept {
    total: u64,
    bytes: BytesMut,
}

impl Kept {
    fn forgotten(&self) -> u64 {
        self.total - self.bytes.len() as u64
    }

    fn push(&mut self, bytes: &Bytes) {
        self.total += bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        let limit = usize::try_from(limits::MAX_JOB_OUTPUT_BYTES).unwrap_or(usize::MAX);
        let over = self.bytes.len().saturating_sub(limit);
        drop(self.bytes.split_to(over));
    }
}

struct Progress {
    state: JobState,
    exit_code: Option<i32>,
    signal: Option<String>,
    duration_ms: Option<u64>,
    kept: [Kept; 2],
}

struct Job {
    order: usize,
    started: Instant,
    progress: Mutex<Progress>,
}

impl Job {
    fn millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn end(&self, state: JobState, exit_code: Option<i32>, signal: Option<String>) -> bool {
        let mut progress = lock(&self.progress);
        if progress.state != JobState::Running {
            return false;
        }
        progress.state = state;
        progress.exit_code = exit_code;
        progress.signal = signal;
        progress.duration_ms = Some(self.millis());
        true
    }

    fn status(&self, job: &JobId) -> JobStatus {
        let progress = lock(&self.progress);
        JobStatus {
            job: job.clone(),
            state: progress.state,
            exit_code: progress.exit_code,
            signal: progress.signal.clone(),
            stdout_bytes: progress.kept[0].total,
            stderr_bytes: progress.kept[1].total,
            stdout_forgotten_bytes: progress.kept[0].forgotten(),
            stderr_forgotten_bytes: progress.kept[1].forgotten(),
            duration_ms: progress.duration_ms.unwrap_or_else(|| self.millis()),
        }
    }
}

/// All jobs of one run.
#[derive(Default)]
pub(super) struct Jobs {
    jobs: Mutex<BTreeMap<JobId, (Arc<Job>, AbortHandle)>>,
}

impl Jobs {
    fn get(&self, id: &JobId) -> Result<Arc<Job>, AgentError> {
        lock(&self.jobs)
            .get(id)
            .map(|(job, _)| Arc::clone(job))
            .ok_or_else(|| AgentError::new(AgentErrorCode::NotFound, "no such job"))
    }

    /// Starts a job, or finds the one that has this id.
    pub(super) fn start(
        &self,
        id: &JobId,
        call: impl FnOnce() -> Call,
    ) -> Result<JobStatus, AgentError> {
        let mut jobs = lock(&self.jobs);
        if let Some((job, _)) = jobs.get(id) {
            return Ok(job.status(id));
        }
        if jobs.len() >= limits::MAX_JOBS_PER_SANDBOX {
            return Err(AgentError::new(AgentErrorCode::Busy, "too many jobs"));
        }
        let job = Arc::new(Job {
            order: jobs.len(),
            started: Instant::now(),
            progress: Mutex::new(Progress {
                state: JobState::Running,
                exit_code: None,
                signal: None,
                duration_ms: None,
                kept: Default::default(),
            }),
        });
        let driven = Arc::clone(&job);
        let mut call = call();
        let task = tokio::spawn(async move {
            while let Some(event) = call.next().await {
                match event {
                    Ok(ExecEvent::Output(stream, bytes)) => {
                        let at = usize::from(stream == OutputStream::Stderr);
                        lock(&driven.progress).kept[at].push(&bytes);
                    }
                    Ok(ExecEvent::Progress(_)) => {}
                    Ok(ExecEvent::Exit(exit)) => {
                        let state = if exit.timed_out {
                            JobState::TimedOut
                        } else {
                            JobState::Exited
                        };
                        driven.end(state, exit.exit_code, exit.signal);
                    }
                    Err(_) => {
                        driven.end(JobState::Exited, Some(137), Some("SIGKILL".into()));
                    }
                }
            }
        });
        jobs.insert(id.clone(), (Arc::clone(&job), task.abort_handle()));
        Ok(job.status(id))
    }

    pub(super) fn status(&self, id: &JobId) -> Result<JobStatus, AgentError> {
        Ok(self.get(id)?.status(id))
    }

    pub(super) fn all(&self) -> Vec<JobStatus> {
        let jobs = lock(&self.jobs);
        let mut all: Vec<_> = jobs.iter().collect();
        all.sort_by_key(|(_, (job, _))| job.order);
        all.into_iter()
            .map(|(id, (job, _))| job.status(id))
            .collect()
    }

    pub(super) fn running(&self) -> Vec<JobId> {
        self.all()
            .into_iter()
            .filter(|status| status.state == JobState::Running)
            .map(|status| status.job)
            .collect()
    }

    pub(super) fn output(
        &self,
        id: &JobId,
        stream: OutputStream,
        offset: u64,
        limit: u64,
    ) -> Result<JobOutput, AgentError> {
        let job = self.get(id)?;
        let progress = lock(&job.progress);
        let kept = &progress.kept[usize::from(stream == OutputStream::Stderr)];
        let offset = offset.clamp(kept.forgotten(), kept.total);
        let skip = usize::try_from(offset - kept.forgotten()).unwrap_or(usize::MAX);
        let rest = &kept.bytes[skip..];
        let limit = usize::try_from(limit.min(limits::MAX_JOB_READ_BYTES)).unwrap_or(usize::MAX);
        Ok(JobOutput {
            offset,
            total: kept.total,
            bytes: Bytes::copy_from_slice(&rest[..rest.len().min(limit)]),
        })
    }

    pub(super) fn stop(&self, id: &JobId) -> Result<JobStatus, AgentError> {
        let job = self.get(id)?;
        if job.end(JobState::Stopped, Some(143), Some("SIGTERM".into()))
            && let Some((_, task)) = lock(&self.jobs).get(id)
        {
            task.abort();
        }
        Ok(job.status(id))
    }

    /// Stops every job. Returns how many ran.
    pub(super) fn stop_all(&self) -> u32 {
        let running = self.running();
        for id in &running {
            // It was there a moment ago; gone is as good.
            let _ = self.stop(id);
        }
        u32::try_from(running.len()).unwrap_or(u32::MAX)
    }

    /// The run is over: nobody will ask again.
    pub(super) fn abandon(&self) {
        for (_, task) in lock(&self.jobs).values() {
            task.abort();
        }
    }
}
