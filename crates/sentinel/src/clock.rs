//! The clock of this crate. It is tokio's, so that a runtime whose time is paused drives all of it.

use std::time::{Duration, Instant};

/// The current time.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The time since then.
pub(crate) fn since(at: Instant) -> Duration {
    now().saturating_duration_since(at)
}
