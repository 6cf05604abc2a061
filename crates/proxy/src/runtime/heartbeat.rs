//! Whether a worker's event loop still turns, and how often it did not.
//!
//! The worker writes and anybody reads. What CPU time a worker takes is not measured here: the
//! kernel counts that anyway, under the number of its thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An event loop turns at least this often, even if nothing happens.
pub(crate) const BEAT: Duration = Duration::from_millis(100);

/// A turn that takes longer is a stall: something held the worker up, or the machine did.
pub const STALL: Duration = Duration::from_millis(250);

/// Times an event loop stood still for longer than [`STALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stalls {
    /// How many.
    pub count: u64,
    /// How long they took, added up.
    pub time: Duration,
}

#[derive(Debug, Default)]
struct Shown {
    /// Milliseconds since the origin.
    last: AtomicU64,
    stalls: AtomicU64,
    stalled_ms: AtomicU64,
    /// 0 before the thread runs.
    thread: AtomicU32,
}

/// Shows when a worker's event loop last turned. Cheap to clone, readable from any thread.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    origin: Instant,
    shown: Arc<Shown>,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), shown: Arc::default() }
    }

    /// How long ago the loop last turned, at `now`. It turns at least ten times a second if nothing
    /// holds it up.
    #[must_use]
    pub fn age(&self, now: Instant) -> Duration {
        let last = Duration::from_millis(self.shown.last.load(Ordering::Relaxed));
        now.saturating_duration_since(self.origin).saturating_sub(last)
    }

    /// How often it stood still. A stall counts when it is over.
    #[must_use]
    pub fn stalls(&self) -> Stalls {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Stalls {
            count: read(&self.shown.stalls),
            time: Duration::from_millis(read(&self.shown.stalled_ms)),
        }
    }

    /// The number that the system has given the worker's thread; `None` before it runs.
    #[must_use]
    pub fn thread(&self) -> Option<u32> {
        Some(self.shown.thread.load(Ordering::Relaxed)).filter(|id| *id > 0)
    }

    /// The loop is about to turn for the first time, on this thread.
    pub(crate) fn begin(&self) {
        let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        self.shown.thread.store(id, Ordering::Relaxed);
        self.shown.last.store(self.millis(), Ordering::Relaxed);
    }

    /// The loop turns now. One writer, so plain loads and stores are exact.
    pub(crate) fn beat(&self) {
        let now = self.millis();
        let took = now.saturating_sub(self.shown.last.load(Ordering::Relaxed));
        self.shown.last.store(now, Ordering::Relaxed);
        if took > STALL.as_millis() as u64 {
            self.note_stall(took);
        }
    }

    #[cold]
    fn note_stall(&self, took: u64) {
        self.shown.stalls.fetch_add(1, Ordering::Relaxed);
        self.shown.stalled_ms.fetch_add(took, Ordering::Relaxed);
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_takes_too_long_is_a_stall_and_others_are_not() {
        let origin = Instant::now() - Duration::from_secs(10);
        let heart = Heartbeat { origin, shown: Arc::default() };
        assert_eq!(heart.thread(), None);
        heart.begin();
        heart.beat();
        // The start itself is none: ten seconds may lie between the creation and the first turn.
        assert_eq!(heart.stalls(), Stalls::default());
        assert!(heart.thread().is_some());
        heart.shown.last.fetch_sub(3000, Ordering::Relaxed);
        heart.beat();
        let stalls = heart.stalls();
        assert!(stalls.count == 1 && stalls.time >= Duration::from_secs(3), "{stalls:?}");
        assert!(heart.age(Instant::now()) < Duration::from_secs(3));
    }
}
