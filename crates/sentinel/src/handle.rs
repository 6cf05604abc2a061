//! What the rest of the process holds of discovery: a picture to look at, a bell to ring, a pulse to feel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::Seen;

/// What the rest of the process holds of one service's discovery.
#[derive(Debug, Clone)]
pub struct Handle {
    seen: Arc<ArcSwap<Seen>>,
    hinted: Arc<AtomicBool>,
    bell: Arc<Notify>,
}

impl Handle {
    pub(crate) fn new(seen: Arc<ArcSwap<Seen>>, bell: Arc<Notify>) -> Self {
        Self { seen, hinted: Arc::new(AtomicBool::new(false)), bell }
    }

    /// The latest picture, at most a quarter of a second old.
    #[must_use]
    pub fn seen(&self) -> Arc<Seen> {
        self.seen.load_full()
    }

    /// The data plane saw something that makes a look worth while. Cheap, and any number of times.
    pub fn hint(&self) {
        if !self.hinted.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }

    /// Whether it was hinted since the last call.
    pub(crate) fn take_hint(&self) -> bool {
        self.hinted.load(Ordering::Relaxed) && self.hinted.swap(false, Ordering::AcqRel)
    }
}

/// Beats as long as the loop turns.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    start: Instant,
    beat_ms: Arc<AtomicU64>,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), beat_ms: Arc::new(AtomicU64::new(0)) }
    }

    pub(crate) fn beat(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat_ms.store(ms, Ordering::Relaxed);
    }

    /// How long ago the loop last turned. It turns every second at least.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.beat_ms.load(Ordering::Relaxed)))
    }
}
