//! Whether a worker's event loop still turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An event loop turns at least this often, even if nothing happens.
pub(crate) const BEAT: Duration = Duration::from_millis(100);

/// Shows when a worker's event loop last turned. Cheap to clone, readable from any thread.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    origin: Instant,
    /// Milliseconds since `origin`.
    last: Arc<AtomicU64>,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), last: Arc::default() }
    }

    /// How long ago the loop last turned, at `now`. It turns at least ten times a second if nothing holds it up.
    #[must_use]
    pub fn age(&self, now: Instant) -> Duration {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        now.saturating_duration_since(self.origin).saturating_sub(last)
    }

    /// The loop turns now.
    pub(crate) fn beat(&self) {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }
}
