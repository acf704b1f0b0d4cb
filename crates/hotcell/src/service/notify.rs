//! Telling the service manager how the daemon is: `READY=1`, `STOPPING=1`, `WATCHDOG=1`.
//!
//! A ping of the watchdog stands for a round through the root of the supervision tree. When that
//! does not answer, no ping is sent, and the service manager ends and restarts the daemon;
//! sandboxes stay meanwhile, behind their filters.

use std::{
    ffi::OsStr,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

/// Pings in the time after which the service manager gives up.
const PINGS_PER_TIMEOUT: u32 = 3;

/// The way to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// As the environment of this process says.
    #[must_use]
    pub fn from_env() -> Self {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| is_ours);
        match std::env::var_os("NOTIFY_SOCKET") {
            Some(socket) => Self::new(&socket, watchdog),
            None => Self::default(),
        }
    }

    /// A socket by its path, or by its abstract name after an `@`; the watchdog's time in microseconds.
    #[must_use]
    pub fn new(socket: &OsStr, watchdog_micros: Option<u64>) -> Self {
        let address = match socket.as_bytes() {
            [] => return Self::default(),
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            path => SocketAddr::from_pathname(OsStr::from_bytes(path)),
        };
        let opened = address.and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            // A service manager that does not listen must not hold the daemon up.
            socket.set_nonblocking(true)?;
            Ok((socket, address))
        });
        match opened {
            Ok(opened) => Self {
                socket: Some(opened),
                watchdog: watchdog_micros
                    .filter(|micros| *micros > 0)
                    .map(Duration::from_micros),
            },
            Err(error) => {
                tracing::warn!(%error, "the service manager cannot be told anything");
                Self::default()
            }
        }
    }

    fn tell(&self, state: &str) {
        let Some((socket, address)) = &self.socket else {
            return;
        };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::warn!(%error, state, "the service manager cannot be told");
        }
    }

    /// The daemon serves.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// The daemon stops.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=stopping; sandboxes stay");
    }

    /// Pings for as long as `is_alive` says so, which gets a number of milliseconds to find
    /// out. Returns at once when no watchdog waits, and never otherwise.
    pub async fn keep_alive(&self, is_alive: impl AsyncFn(u64) -> bool) {
        let Some(timeout) = self.watchdog.filter(|_| self.socket.is_some()) else {
            return;
        };
        let interval = timeout / PINGS_PER_TIMEOUT;
        let patience_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        loop {
            if is_alive(patience_ms).await {
                self.tell("WATCHDOG=1");
            } else {
                tracing::error!("the supervision tree does not answer: no sign of life is given");
            }
            tokio::time::sleep(interval).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn receive(socket: &UnixDatagram) -> Option<String> {
        let mut buffer = [0; 1024];
        let bytes = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8(buffer[..bytes].to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn pings_stop_when_nobody_is_alive_and_come_back_with_life() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let notifier = Notifier::new(path.as_os_str(), Some(3_000_000));
        notifier.ready("serving");
        assert_eq!(receive(&manager).unwrap(), "READY=1\nSTATUS=serving");
        let lives = AtomicBool::new(true);
        let pings = || {
            let mut pings = 0;
            while let Some(text) = receive(&manager) {
                assert_eq!(text, "WATCHDOG=1");
                pings += 1;
            }
            pings
        };
        let watch = notifier.keep_alive(async |patience_ms| {
            assert_eq!(patience_ms, 1_000);
            lives.load(Ordering::Relaxed)
        });
        let story = async {
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            assert_eq!(pings(), 3);
            lives.store(false, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert_eq!(pings(), 0);
            lives.store(true, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(pings(), 2);
        };
        tokio::select! {
            () = watch => panic!("it stopped watching"),
            () = story => {}
        }
        notifier.stopping();
        assert!(receive(&manager).unwrap().starts_with("STOPPING=1\n"));
    }

    #[tokio::test]
    async fn abstract_names_work_and_nobody_is_missed() {
        let name = format!("hotcell-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        Notifier::new(OsStr::new(&format!("@{name}")), None).ready("x");
        assert_eq!(receive(&manager).unwrap(), "READY=1\nSTATUS=x");
        // Without a service manager nothing happens, and nothing waits.
        let nobody = Notifier::default();
        nobody.ready("x");
        nobody.keep_alive(async |_| panic!("nobody asks")).await;
        let gone = Notifier::new(OsStr::new("/nowhere/notify"), None);
        gone.stopping();
    }
}
