//! Waiting on conditions, never on durations.

use std::time::Duration;

use tokio::time::Instant;

/// How long a condition may take before its test fails.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two looks.
const POLL: Duration = Duration::from_millis(5);

/// Looks until there is something, and returns it. `what` names it for the failure.
///
/// # Panics
/// When it does not come within twenty seconds.
pub async fn wait_for<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// Looks until it is so.
///
/// # Panics
/// When it is not so within twenty seconds.
pub async fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, async || is_so().then_some(())).await;
}
