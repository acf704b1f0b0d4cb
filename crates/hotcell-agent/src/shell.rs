//! The chat's shell: what one `bash` call leaves to the next.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use hotcell_agent_proto::{AgentError, AgentErrorCode};
use hotcell_types::limits::MAX_COMMAND_BYTES;
use hotcell_types::limits::agent::MAX_SHELL_STATE_BYTES;

use crate::{
    environment::{self, Variables},
    pool::lock,
    prelude::{self, Start},
    run_dir::{self, RunDir},
};

/// Variables that would change how bash itself starts; a call gets them from its prelude.
const CHANGES_BASH: [&str; 5] = [
    "BASH_ENV",
    "ENV",
    "POSIXLY_CORRECT",
    "SHELLOPTS",
    "BASHOPTS",
];

/// What a call leaves.
#[derive(Debug)]
struct State {
    cwd: Vec<u8>,
    exports: Vec<u8>,
    /// Variables that the request set for that call alone.
    request: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Kept {
    state: Option<Arc<State>>,
    /// Counts restarts: a call that began before one saves nothing after it.
    epoch: u64,
}

/// The state between calls.
#[derive(Debug)]
pub(crate) struct Shell {
    kept: Mutex<Kept>,
    run: RunDir,
    base: Variables,
    bash: Mutex<Option<PathBuf>>,
}

/// A command that is ready to be started by bash. Its files go when it is dropped.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) env: Variables,
    /// Where the call before ended.
    pub(crate) cwd: Option<Vec<u8>>,
    file: PathBuf,
    has_trap: bool,
    request: Vec<Vec<u8>>,
    state: Option<Arc<State>>,
    epoch: u64,
}

impl Prepared {
    /// How often the state had been forgotten when it was prepared.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        remove_files(&self.file, self.has_trap);
    }
}

fn remove_files(file: &Path, has_trap: bool) {
    let more = prelude::TRAP_SUFFIXES.iter().filter(|_| has_trap);
    for suffix in prelude::SUFFIXES.iter().chain(more) {
        let _ = std::fs::remove_file(with_suffix(file, suffix));
    }
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

impl Shell {
    pub(crate) fn new(base: Variables, run: RunDir) -> Self {
        let bash = Mutex::new(environment::find_bash(&base));
        Self {
            kept: Mutex::default(),
            run,
            base,
            bash,
        }
    }

    /// The `bash` of the image. One that was not there before may have been installed since.
    pub(crate) fn bash(&self) -> Option<PathBuf> {
        let mut bash = lock(&self.bash);
        if bash.is_none() {
            *bash = environment::find_bash(&self.base);
        }
        bash.clone()
    }

    /// Where the last call ended.
    pub(crate) fn cwd(&self) -> Option<Vec<u8>> {
        lock(&self.kept)
            .state
            .as_ref()
            .map(|state| state.cwd.clone())
    }

    /// Forgets working directory and exports.
    pub(crate) fn forget(&self) {
        let mut kept = lock(&self.kept);
        kept.state = None;
        kept.epoch += 1;
    }

    /// How often the state was forgotten.
    pub(crate) fn epoch(&self) -> u64 {
        lock(&self.kept).epoch
    }

    /// Writes what bash needs to run this text. With `save` its state can be kept afterwards.
    ///
    /// # Errors
    /// [`AgentErrorCode::NoBash`], [`AgentErrorCode::BadRequest`] for a text that no file of
    /// a shell may hold, or what the file system says.
    pub(crate) fn prepare(
        &self,
        text: &str,
        request: Variables,
        save: bool,
    ) -> Result<Prepared, AgentError> {
        check_text(text)?;
        self.write_down(Some(text), request, save)
    }

    /// Writes what bash needs to wait for a text that is not known yet; `None` when it could not
    /// wait in the sandbox's environment.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub(crate) fn prepare_ahead(&self) -> Result<Option<Prepared>, AgentError> {
        // With this variable bash waits for a limited time only.
        if self.base.contains_key(b"TMOUT".as_slice()) {
            return Ok(None);
        }
        self.write_down(None, Variables::new(), true).map(Some)
    }

    /// Writes the text for a shell that waits for it; `false` when it is not one for that shell.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub(crate) fn hand_over(&self, ahead: &Prepared, text: &str) -> Result<bool, AgentError> {
        check_text(text)?;
        if !self.is_current(ahead) || watches_traps(text) {
            return Ok(false);
        }
        run_dir::write(&ahead.file, &[text.as_bytes()])
            .map_err(|error| AgentError::from_io("cannot write the command", &error))?;
        Ok(true)
    }

    /// Whether what was prepared is still what the next call starts with.
    pub(crate) fn is_current(&self, prepared: &Prepared) -> bool {
        let kept = lock(&self.kept);
        let same = match (&kept.state, &prepared.state) {
            (Some(now), Some(then)) => Arc::ptr_eq(now, then),
            (None, None) => true,
            _ => false,
        };
        same && kept.epoch == prepared.epoch
    }

    fn write_down(
        &self,
        text: Option<&str>,
        request: Variables,
        save: bool,
    ) -> Result<Prepared, AgentError> {
        let bash = self.bash().ok_or_else(|| {
            AgentError::new(
                AgentErrorCode::NoBash,
                "there is no bash in the sandbox's PATH",
            )
        })?;
        let (state, epoch) = {
            let kept = lock(&self.kept);
            (kept.state.clone(), kept.epoch)
        };
        let has_trap = save && text.is_some_and(watches_traps);
        let start = Start {
            exports: state.as_ref().map(|state| state.exports.as_slice()),
            restore: state
                .iter()
                .flat_map(|state| &state.request)
                .map(|name| (name.as_slice(), self.base.get(name).map(Vec::as_slice)))
                .collect(),
            set: Some(&request),
            waits: text.is_none(),
        };
        let write_all = |file: &Path| -> std::io::Result<()> {
            let content = prelude::prelude(&start, file, save, has_trap);
            if let Some(text) = text {
                run_dir::write(file, &[text.as_bytes()])?;
            }
            run_dir::write(&with_suffix(file, ".rc"), &[&content])?;
            // The hook would wait for a reader if somebody had put a FIFO there.
            run_dir::clear(&with_suffix(file, ".state"))?;
            if has_trap {
                run_dir::clear(&with_suffix(file, ".trap"))?;
                for (suffix, content) in prelude::trap_files(file) {
                    run_dir::write(&with_suffix(file, suffix), &[&content])?;
                }
            }
            Ok(())
        };
        let file = self
            .run
            .write(|file| write_all(file).inspect_err(|_| remove_files(file, has_trap)))
            .map_err(|error| AgentError::from_io("cannot write the command", &error))?;
        // With a state, its exports are all that there is: what was unset stays unset.
        let mut env = if state.is_some() {
            self.base
                .iter()
                .filter(|(name, _)| !prelude::is_identifier(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        } else {
            self.base.clone()
        };
        let forgotten: Vec<Vec<u8>> = request.keys().cloned().collect();
        env.extend(request);
        for name in CHANGES_BASH {
            env.remove(name.as_bytes());
        }
        let prelude_path = with_suffix(&file, ".rc");
        env.insert(
            b"BASH_ENV".to_vec(),
            prelude_path.as_os_str().as_bytes().to_vec(),
        );
        Ok(Prepared {
            argv: vec![
                bash.into_os_string().into_vec(),
                b"--noprofile".to_vec(),
                b"--norc".to_vec(),
                file.as_os_str().as_bytes().to_vec(),
            ],
            env,
            cwd: state.as_ref().map(|state| state.cwd.clone()),
            state,
            file,
            has_trap,
            request: forgotten,
            epoch,
        })
    }

    /// Keeps the state that a call has saved; a note when it has not.
    pub(crate) fn keep(&self, prepared: &Prepared) -> Option<String> {
        let path = with_suffix(&prepared.file, ".state");
        let state = run_dir::read(&path, MAX_SHELL_STATE_BYTES)
            .and_then(|content| prelude::parse_state(&content));
        let Some((cwd, exports)) = state else {
            return Some(
                "the working directory and exports of this call were not kept: its shell was \
                 replaced or killed, set an EXIT trap of its own, or exports over 1 MiB"
                    .to_owned(),
            );
        };
        let mut kept = lock(&self.kept);
        if kept.epoch == prepared.epoch {
            let request = prepared.request.clone();
            kept.state = Some(Arc::new(State {
                cwd,
                exports,
                request,
            }));
        }
        None
    }
}

/// Whether a command may set an EXIT trap of its own.
fn watches_traps(text: &str) -> bool {
    text.contains("trap")
}

fn check_text(text: &str) -> Result<(), AgentError> {
    if text.len() > MAX_COMMAND_BYTES {
        return Err(AgentError::new(
            AgentErrorCode::BadRequest,
            format!("the command is longer than {MAX_COMMAND_BYTES} bytes"),
        ));
    }
    if text.contains('\0') {
        return Err(AgentError::new(
            AgentErrorCode::BadRequest,
            "the command holds a NUL byte, which no shell reads",
        ));
    }
    Ok(())
}

/// A path as bytes.
pub(crate) fn path_bytes(path: &Path) -> Vec<u8> {
    OsString::from(path).into_vec()
}
