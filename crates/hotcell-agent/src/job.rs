//! Jobs: commands that go on without a connection, and whose output can be read again.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use hotcell_agent_proto::{
    AgentError, AgentErrorCode, JobList, JobRequest, JobState, JobStatus, Stream,
};
use hotcell_types::limits::agent::{
    ANSWER_AFTER_TIMEOUT_MS, KILL_LIMIT_MS, MAX_JOB_TIMEOUT_MS, MAX_JOBS_OUTPUT_BYTES,
};
use hotcell_types::{
    JobId,
    limits::{MAX_JOB_OUTPUT_BYTES, MAX_JOB_READ_BYTES, MAX_JOBS_PER_SANDBOX},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    agent::Agent,
    call::{self, Ready, end_in_background, time_limit},
    environment,
    exit::Exit,
    pool::lock,
    pump::Pipes,
    tree::{Tree, TreeKind},
};

/// All jobs, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    list: Mutex<VecDeque<Arc<Job>>>,
    /// One start at a time, so that one id never starts twice.
    starting: tokio::sync::Mutex<()>,
    /// How often all were stopped: one that is about to start then must not.
    epoch: AtomicU64,
    kept_bytes: Arc<AtomicU64>,
}

/// One job.
#[derive(Debug)]
struct Job {
    id: JobId,
    tree: Arc<Tree>,
    begin: Instant,
    inner: Mutex<Inner>,
    ended: watch::Receiver<bool>,
}

#[derive(Debug)]
struct Inner {
    state: JobState,
    exit: Option<Exit>,
    stopping: bool,
    took: Option<Duration>,
    stdout: Kept,
    stderr: Kept,
}

/// What is kept of one stream.
#[derive(Debug)]
struct Kept {
    bytes: VecDeque<u8>,
    forgotten: u64,
    /// What all streams of all jobs keep together.
    all: Arc<AtomicU64>,
}

impl Kept {
    const fn new(all: Arc<AtomicU64>) -> Self {
        Self {
            bytes: VecDeque::new(),
            forgotten: 0,
            all,
        }
    }

    fn total(&self) -> u64 {
        self.forgotten + self.bytes.len() as u64
    }

    fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.all.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.forget((self.bytes.len() as u64).saturating_sub(MAX_JOB_OUTPUT_BYTES));
    }

    fn forget(&mut self, over: u64) {
        let over = usize::try_from(over)
            .unwrap_or(usize::MAX)
            .min(self.bytes.len());
        self.bytes.drain(..over);
        self.forgotten += over as u64;
        self.all.fetch_sub(over as u64, Ordering::Relaxed);
    }

    /// A piece and its real offset.
    fn read(&self, offset: u64, limit: u64) -> (u64, Bytes) {
        let offset = offset.clamp(self.forgotten, self.total());
        let start = usize::try_from(offset - self.forgotten).unwrap_or(usize::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let end = start.saturating_add(limit).min(self.bytes.len());
        (offset, self.bytes.range(start..end).copied().collect())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all
            .fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

impl Inner {
    const fn stream(&mut self, stream: Stream) -> &mut Kept {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

/// A piece of a job's output.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) total: u64,
    pub(crate) bytes: Bytes,
}

impl Job {
    fn status(&self) -> JobStatus {
        let inner = lock(&self.inner);
        let took = inner.took.unwrap_or_else(|| self.begin.elapsed());
        JobStatus {
            job: self.id.clone(),
            state: inner.state,
            exit_code: inner
                .exit
                .filter(|_| inner.state != JobState::TimedOut)
                .map(Exit::code),
            signal: inner.exit.and_then(Exit::signal_name),
            stdout_bytes: inner.stdout.total(),
            stderr_bytes: inner.stderr.total(),
            stdout_forgotten_bytes: inner.stdout.forgotten,
            stderr_forgotten_bytes: inner.stderr.forgotten,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn runs(&self) -> bool {
        lock(&self.inner).state == JobState::Running
    }

    fn kept_bytes(&self) -> usize {
        let inner = lock(&self.inner);
        inner.stdout.bytes.len().max(inner.stderr.bytes.len())
    }

    fn forget(&self, over: u64) {
        let mut inner = lock(&self.inner);
        let longer = if inner.stdout.bytes.len() >= inner.stderr.bytes.len() {
            Stream::Stdout
        } else {
            Stream::Stderr
        };
        inner.stream(longer).forget(over);
    }
}

impl Jobs {
    fn find(&self, id: &JobId) -> Result<Arc<Job>, AgentError> {
        lock(&self.list)
            .iter()
            .find(|job| job.id == *id)
            .cloned()
            .ok_or_else(|| AgentError::new(AgentErrorCode::NotFound, format!("no job {id}")))
    }

    /// The job's status.
    ///
    /// # Errors
    /// [`AgentErrorCode::NotFound`].
    pub(crate) fn status(&self, id: &JobId) -> Result<JobStatus, AgentError> {
        Ok(self.find(id)?.status())
    }

    /// All that are known.
    pub(crate) fn list(&self) -> JobList {
        JobList {
            jobs: lock(&self.list).iter().map(|job| job.status()).collect(),
        }
    }

    /// Those that run.
    pub(crate) fn running(&self) -> Vec<JobId> {
        let list = lock(&self.list);
        list.iter()
            .filter(|job| job.runs())
            .map(|job| job.id.clone())
            .collect()
    }

    /// A piece of output from `offset` on, or from the first byte that is still kept.
    ///
    /// # Errors
    /// [`AgentErrorCode::NotFound`].
    pub(crate) fn output(
        &self,
        id: &JobId,
        stream: Stream,
        offset: u64,
        limit: Option<u64>,
    ) -> Result<Piece, AgentError> {
        let job = self.find(id)?;
        let mut inner = lock(&job.inner);
        let kept = inner.stream(stream);
        let limit = limit.unwrap_or(MAX_JOB_READ_BYTES).min(MAX_JOB_READ_BYTES);
        let (offset, bytes) = kept.read(offset, limit);
        Ok(Piece {
            offset,
            total: kept.total(),
            bytes,
        })
    }

    /// Ends a job's processes, also what it left in the background; its status afterwards.
    ///
    /// # Errors
    /// [`AgentErrorCode::NotFound`].
    pub(crate) async fn stop(&self, id: &JobId) -> Result<JobStatus, AgentError> {
        let job = self.find(id)?;
        lock(&job.inner).stopping = true;
        job.tree.end().await;
        let mut ended = job.ended.clone();
        // An error says that the task that follows the job is gone: then it has ended too.
        // Running out of time says that it cannot be killed; its status shows that it runs.
        let _ = timeout(
            Duration::from_millis(KILL_LIMIT_MS),
            ended.wait_for(|ended| *ended),
        )
        .await;
        Ok(job.status())
    }

    /// Says that whatever runs is being stopped by request; the caller ends the trees.
    pub(crate) fn stop_all(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        for job in lock(&self.list).iter() {
            lock(&job.inner).stopping = true;
        }
    }

    /// Makes room for one more.
    fn make_room(&self) -> Result<(), AgentError> {
        let mut list = lock(&self.list);
        if list.len() >= MAX_JOBS_PER_SANDBOX {
            let oldest = list.iter().position(|job| !job.runs()).ok_or_else(|| {
                AgentError::new(
                    AgentErrorCode::Busy,
                    format!("{MAX_JOBS_PER_SANDBOX} jobs run already"),
                )
            })?;
            list.remove(oldest);
        }
        Ok(())
    }

    /// Forgets output until all jobs together keep no more than they may.
    fn trim(&self) {
        loop {
            let over = self
                .kept_bytes
                .load(Ordering::Relaxed)
                .saturating_sub(MAX_JOBS_OUTPUT_BYTES);
            if over == 0 {
                return;
            }
            let longest = lock(&self.list)
                .iter()
                .max_by_key(|job| job.kept_bytes())
                .cloned();
            match longest {
                Some(job) if job.kept_bytes() > 0 => job.forget(over),
                _ => return,
            }
        }
    }
}

/// `POST /v1/jobs`.
///
/// # Errors
/// Whatever kept it from starting.
pub(crate) async fn start(
    agent: &Arc<Agent>,
    request: JobRequest,
) -> Result<JobStatus, AgentError> {
    let limit = time_limit(request.timeout_ms, MAX_JOB_TIMEOUT_MS)?;
    let env = environment::parse(&request.env)?;
    let _one_at_a_time = agent.jobs.starting.lock().await;
    if let Ok(existing) = agent.jobs.find(&request.job) {
        return Ok(existing.status());
    }
    agent.jobs.make_room()?;
    let epoch = agent.jobs.epoch.load(Ordering::Relaxed);
    let ready = call::ready(agent, &request.command, request.cwd.as_deref(), env, false)?;
    let begin = Instant::now();
    let (tree, pipes, _note) =
        call::start(agent, TreeKind::Job, &ready, Pipes::with_empty_stdin).await?;
    let was_stopped = agent.jobs.epoch.load(Ordering::Relaxed) != epoch;
    if was_stopped {
        end_in_background(&tree);
    }
    let all = &agent.jobs.kept_bytes;
    let (publish, ended) = watch::channel(false);
    let job = Arc::new(Job {
        id: request.job,
        tree,
        begin,
        inner: Mutex::new(Inner {
            state: JobState::Running,
            exit: None,
            stopping: was_stopped,
            took: None,
            stdout: Kept::new(Arc::clone(all)),
            stderr: Kept::new(Arc::clone(all)),
        }),
        ended,
    });
    lock(&agent.jobs.list).push_back(Arc::clone(&job));
    let status = job.status();
    tokio::spawn(follow(
        Arc::clone(agent),
        job,
        ready,
        pipes,
        begin + limit,
        publish,
    ));
    Ok(status)
}

/// The task of one job, until its first process has ended.
async fn follow(
    agent: Arc<Agent>,
    job: Arc<Job>,
    ready: Ready,
    mut pipes: Pipes,
    deadline: Instant,
    publish: watch::Sender<bool>,
) {
    let mut state = job.tree.state();
    let mut timed_out = false;
    let mut next = deadline;
    loop {
        let now = *state.borrow_and_update();
        let over = if timed_out {
            now.gone
        } else {
            now.exit.is_some()
        };
        if over || now.lost {
            break;
        }
        tokio::select! {
            biased;
            _ = state.changed() => {}
            () = sleep_until(next) => {
                if timed_out {
                    break;
                }
                timed_out = true;
                next = deadline + Duration::from_millis(ANSWER_AFTER_TIMEOUT_MS);
                end_in_background(&job.tree);
            }
            read = pipes.read() => {
                if let Some((stream, bytes)) = read {
                    lock(&job.inner).stream(stream).take(bytes);
                    agent.jobs.trim();
                }
            }
        }
    }
    pipes.drain(|stream, bytes| lock(&job.inner).stream(stream).take(bytes));
    pipes.discard();
    agent.jobs.trim();
    drop(ready);
    let exit = state.borrow().exit;
    {
        let mut inner = lock(&job.inner);
        inner.exit = exit;
        inner.took = Some(job.begin.elapsed());
        inner.state = if timed_out {
            JobState::TimedOut
        } else if inner.stopping || exit.is_none() {
            // Without an exit its shim was killed, and with it the job.
            JobState::Stopped
        } else {
            JobState::Exited
        };
    }
    publish.send_replace(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_forgotten_from_the_start_and_offsets_stay_true() {
        let all = Arc::new(AtomicU64::new(0));
        let mut kept = Kept::new(Arc::clone(&all));
        kept.take(b"0123456789");
        assert_eq!(kept.read(3, 4), (3, Bytes::from_static(b"3456")));
        kept.forget(5);
        assert_eq!(kept.read(0, 100), (5, Bytes::from_static(b"56789")));
        assert_eq!(kept.read(10, 1), (10, Bytes::new()));
        assert_eq!(kept.read(99, 1), (10, Bytes::new()));
        assert_eq!((kept.total(), all.load(Ordering::Relaxed)), (10, 5));
        drop(kept);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_stream_keeps_no_more_than_its_limit() {
        let mut kept = Kept::new(Arc::default());
        let piece = vec![1; 1 << 20];
        for _ in 0..18 {
            kept.take(&piece);
        }
        assert_eq!(kept.bytes.len() as u64, MAX_JOB_OUTPUT_BYTES);
        assert_eq!(kept.total(), 18 << 20);
    }
}
