//! The life of a shim process.

use std::{
    ffi::OsStr,
    fs::File,
    io::{IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, net::UnixStream, process::CommandExt as _},
    },
    process::{Command, ExitCode},
};

use rustix::{
    io::Errno,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
    process::{
        DumpableBehavior, Pid, Signal, WaitOptions, chdir, getpid, set_child_subreaper,
        set_dumpable_behavior, set_parent_process_death_signal, setsid, wait,
    },
};

use crate::{
    exit::Exit,
    shim::wire::{Event, SPEC_HEADER_BYTES, Spec},
};

/// What the kernel's OOM killer adds for everything but the agent, of 1000.
const OOM_SCORE: &str = "300";

/// Serves calls from the socket that is stdin, until the agent closes it.
pub(crate) fn run() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> std::io::Result<()> {
    // Before it stops being dumpable, which takes its own /proc entries away from it. The
    // sandbox may have no such file.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let forks = shows_ignored_signals();
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    set_child_subreaper(Some(getpid()))?;
    // A session of its own: no controlling terminal, and no signal that user code sends to
    // its own process group ends up here.
    let _ = setsid();
    let socket =
        rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map(UnixStream::from)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    while let Some((spec, stdio)) = receive(&socket)? {
        run_call(&socket, &spec, stdio, forks)?;
    }
    Ok(())
}

type Stdio = [OwnedFd; 3];

fn receive(socket: &UnixStream) -> std::io::Result<Option<(Spec, Stdio)>> {
    let mut header = [0; SPEC_HEADER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut header)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            other => break other?.bytes,
        }
    };
    if received == 0 {
        return Ok(None);
    }
    let fds: Vec<OwnedFd> = control
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
            _ => Vec::new(),
        })
        .collect();
    let mut socket = socket;
    socket.read_exact(&mut header[received..])?;
    let malformed = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let mut body = vec![0; Spec::body_bytes(&header).ok_or_else(malformed)?];
    socket.read_exact(&mut body)?;
    let spec = Spec::decode(&header, &body).ok_or_else(malformed)?;
    let stdio = Stdio::try_from(fds).map_err(|_| malformed())?;
    Ok(Some((spec, stdio)))
}

fn send(mut socket: &UnixStream, event: Event) -> std::io::Result<()> {
    socket.write_all(&event.encode())
}

fn run_call(socket: &UnixStream, spec: &Spec, stdio: Stdio, forks: bool) -> std::io::Result<()> {
    if let Err(error) = chdir(OsStr::from_bytes(&spec.cwd)) {
        return send(socket, Event::BadCwd(error.raw_os_error()));
    }
    let child = spawn(spec, stdio, forks);
    // Its own working directory must keep no mount busy.
    let _ = chdir("/");
    match child {
        Err(error) => send(
            socket,
            Event::SpawnFailed(error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error())),
        ),
        Ok(pid) => {
            send(socket, Event::Started(pid.as_raw_nonzero().get()))?;
            reap_all(socket, pid)
        }
    }
}

/// Has a command started by `fork` instead of `posix_spawn`, which in glibc leaves signals 32
/// and 33 ignored in the child. Naming the user id, although it is the same one, does that.
/// Either way the standard library gives the child an empty mask and the default SIGPIPE.
pub(crate) fn by_fork(command: &mut Command) -> &mut Command {
    command.uid(rustix::process::getuid().as_raw())
}

/// Whether processes have ignored signals that anybody can see. gVisor shows none, and there
/// a `fork` costs milliseconds more than `posix_spawn`: it builds a second address space only
/// for the execution that follows to replace it.
fn shows_ignored_signals() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("SigIgn:")))
}

/// Starts the child; its ends of the pipes are closed here when this returns.
fn spawn(spec: &Spec, [stdin, stdout, stderr]: Stdio, forks: bool) -> std::io::Result<Pid> {
    let (program, arguments) = spec
        .argv
        .split_first()
        .ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(OsStr::from_bytes(program));
    command
        .args(arguments.iter().map(|argument| OsStr::from_bytes(argument)))
        .env_clear();
    for variable in &spec.env {
        let split = variable
            .iter()
            .position(|&byte| byte == b'=')
            .unwrap_or(variable.len());
        let (name, value) = variable.split_at(split);
        command.env(
            OsStr::from_bytes(name),
            OsStr::from_bytes(value.get(1..).unwrap_or_default()),
        );
    }
    command
        .process_group(0)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr);
    let child = if forks {
        by_fork(&mut command)
    } else {
        &mut command
    }
    .spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok(pid.ok_or(std::io::ErrorKind::InvalidData)?)
}

fn reap_all(socket: &UnixStream, child: Pid) -> std::io::Result<()> {
    let mut reported = false;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child && !reported => {
                reported = true;
                let remains = reap_dead();
                send(socket, Event::Exited(Exit::from_status(status), remains))?;
                if !remains {
                    return Ok(());
                }
            }
            Ok(_) | Err(Errno::INTR) => {}
            // No child is left.
            Err(_) => return send(socket, Event::Gone),
        }
    }
}

/// Reaps what is dead already; whether anything remains.
fn reap_dead() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}
