//! The daemon as a service of systemd: it says when it is ready, shows that it lives, and writes
//! to the journal with fields. Without systemd none of this does anything.

mod journal;
mod notify;

pub use journal::{Journal, is_journal};
pub use notify::Notifier;
