//! How a process ended, as numbers and names.

use rustix::process::{Signal, WaitStatus};

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Exit {
    pub(crate) fn from_status(status: WaitStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            // Stops are not waited for, so one of the two is there.
            (None, None) => Self::Code(255),
        }
    }

    /// What a shell would put into `$?`.
    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }

    /// The signal's name, such as `SIGSEGV`.
    pub(crate) fn signal_name(self) -> Option<String> {
        match self {
            Self::Code(_) => None,
            Self::Signal(number) => Some(name(number)),
        }
    }
}

fn name(number: i32) -> String {
    let named = [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::ILL, "ILL"),
        (Signal::TRAP, "TRAP"),
        (Signal::ABORT, "ABRT"),
        (Signal::BUS, "BUS"),
        (Signal::FPE, "FPE"),
        (Signal::KILL, "KILL"),
        (Signal::USR1, "USR1"),
        (Signal::SEGV, "SEGV"),
        (Signal::USR2, "USR2"),
        (Signal::PIPE, "PIPE"),
        (Signal::ALARM, "ALRM"),
        (Signal::TERM, "TERM"),
        (Signal::STKFLT, "STKFLT"),
        (Signal::XCPU, "XCPU"),
        (Signal::XFSZ, "XFSZ"),
        (Signal::VTALARM, "VTALRM"),
        (Signal::PROF, "PROF"),
        (Signal::IO, "IO"),
        (Signal::POWER, "PWR"),
        (Signal::SYS, "SYS"),
    ];
    match named.iter().find(|(signal, _)| signal.as_raw() == number) {
        Some((_, name)) => format!("SIG{name}"),
        None => format!("SIG{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_shell_codes() {
        assert_eq!(Exit::Signal(11).code(), 139);
        assert_eq!(Exit::Signal(11).signal_name().as_deref(), Some("SIGSEGV"));
        assert_eq!(Exit::Signal(42).signal_name().as_deref(), Some("SIG42"));
        assert_eq!(Exit::Code(7).signal_name(), None);
    }
}
