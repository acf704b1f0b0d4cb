//! What tests of runtimes on real engines take from the machine: time, chance and built files.

use std::{env, fs::File, io::Read, path::PathBuf};

use hotcell_types::{Clock, IdSource, UnixMillis};

/// The machine's clock.
pub struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> UnixMillis {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let part = |number: i64| u64::try_from(number).unwrap_or_default();
        UnixMillis(part(now.tv_sec) * 1_000 + part(now.tv_nsec) / 1_000_000)
    }
}

/// Ids by chance.
pub struct RealIds;

impl IdSource for RealIds {
    /// # Panics
    /// When the machine has no chance to give.
    fn bits(&self) -> u128 {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut bytes))
            .unwrap_or_else(|error| panic!("/dev/urandom: {error}"));
        u128::from_ne_bytes(bytes)
    }
}

/// The file that the environment variable `name` gives to tests of real sandboxes.
///
/// # Panics
/// When it is not set or names no file.
#[must_use]
pub fn given(name: &str) -> PathBuf {
    let path = env::var_os(name).map(PathBuf::from).unwrap_or_else(|| {
        panic!("{name} is not set: real sandboxes are tested by `cargo xtask test`")
    });
    assert!(path.is_file(), "{name} names no file: {}", path.display());
    path
}
