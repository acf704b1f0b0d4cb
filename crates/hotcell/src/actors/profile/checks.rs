//! What the daemon itself has to say to an operator who tests a profile, whatever its engine.

use std::sync::Arc;

use hotcell_runtime::Check;

use crate::{actors::context::Context, volumes};

/// Every check with what it is about. `docs/operating/preflight.md` holds the same list.
#[cfg(test)]
const CHECKS: &[(&str, &str)] = &[
    (
        volumes::CHECK,
        "persistent volumes end at their size, so no user can fill the disk",
    ),
    (
        crate::skew::CHECK,
        "the clocks of the chat backends and ours agree",
    ),
];

/// The checks of the daemon.
pub(super) async fn of_daemon(context: &Arc<Context>) -> Vec<Check> {
    let volumes = context.volumes.clone();
    let of_volumes = tokio::task::spawn_blocking(move || volumes.check()).await;
    let of_volumes = of_volumes.unwrap_or_else(|error| {
        Check::warn(
            volumes::CHECK,
            format!("it could not be checked: {error}"),
            "look at the log",
        )
    });
    vec![of_volumes, context.skew.check(context.clock.now())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_page_lists_every_check() {
        hotcell_runtime::assert_listed("daemon-checks", CHECKS);
    }
}
