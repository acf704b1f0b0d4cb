//! Filtered sandboxes on a stub internet: everything between user code and the world is real.
//!
//! ```text
//!  sandbox (runsc own stack, runsc kernel stack, runc) ── gateway namespace: filter, names
//!      ── uplink ── the stub's host: its own table ── the stub's world
//! ```
//! Each test names the case that it is for. Whatever is found closed has something beside it that is
//! open, so that a dead network cannot pass for a filter.
#![allow(
    clippy::unwrap_used,
    reason = "tests say what is wrong by failing, helpers of theirs too"
)]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod closed;
mod lasting;
mod musl;
mod names;
mod questions;
mod stage;
mod supply;
mod times;
mod warm;

/// Makes one test of each function of a module for each engine.
#[macro_export]
macro_rules! staged {
    ($($name:ident),* $(,)?) => {
        mod runsc_own { $crate::staged_on!(RunscOwn: $($name),*); }
        mod runsc_kernel { $crate::staged_on!(RunscKernel: $($name),*); }
        mod runc { $crate::staged_on!(Runc: $($name),*); }
    };
}

/// See the file.
#[macro_export]
macro_rules! staged_on {
    ($engine:ident: $($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                $crate::stage::Stage::run($crate::common::Engine::$engine, async |stage| {
                    super::$name(stage).await;
                });
            }
        )*
    };
}
