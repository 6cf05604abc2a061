//! Whether a worker's event loop still turns, and how often it did not.
//!
//! The worker writes and anybody reads. What CPU time a worker takes is not measured here: the
//! kernel counts that anyway, under the number of its thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An event loop turns at least this often, even if nothing happens.
pub(crate) const BEAT_INTERVAL: Duration = Duration::from_millis(100);

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
struct HeartbeatState {
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
    state: Arc<HeartbeatState>,
}

impl Heartbeat {
    pub(crate) fn new() -> Self {
        Self { origin: Instant::now(), state: Arc::default() }
    }

    /// How long ago the loop last turned, at `now`. It turns at least ten times a second if nothing
    /// holds it up.
    #[must_use]
    pub fn age(&self, now: Instant) -> Duration {
        let last = Duration::from_millis(self.state.last.load(Ordering::Relaxed));
        now.saturating_duration_since(self.origin).saturating_sub(last)
    }

    /// How often it stood still. A stall counts when it is over.
    #[must_use]
    pub fn stalls(&self) -> Stalls {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Stalls {
            count: read(&self.state.stalls),
            time: Duration::from_millis(read(&self.state.stalled_ms)),
        }
    }

    /// The number that the system has given the worker's thread; `None` before it runs.
    #[must_use]
    pub fn thread(&self) -> Option<u32> {
        Some(self.state.thread.load(Ordering::Relaxed)).filter(|id| *id > 0)
    }

    /// The loop is about to turn for the first time, on this thread.
    pub(crate) fn begin(&self) {
        let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        self.state.thread.store(id, Ordering::Relaxed);
        self.state.last.store(self.millis(), Ordering::Relaxed);
    }

    /// The loop turns now. One writer, so plain loads and stores are exact.
    pub(crate) fn beat(&self) {
        let now = self.millis();
        let took = now.saturating_sub(self.state.last.load(Ordering::Relaxed));
        self.state.last.store(now, Ordering::Relaxed);
        if took > STALL.as_millis() as u64 {
            self.note_stall(took);
        }
    }

    #[cold]
    fn note_stall(&self, took: u64) {
        self.state.stalls.fetch_add(1, Ordering::Relaxed);
        self.state.stalled_ms.fetch_add(took, Ordering::Relaxed);
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Hangs, if this worker was asked to.
#[cfg(debug_assertions)]
pub(crate) fn stall_if_asked(worker: usize) {
    static FILE: std::sync::OnceLock<Option<std::path::PathBuf>> = std::sync::OnceLock::new();
    let file =
        FILE.get_or_init(|| std::env::var_os("POINTSMAN_TEST_STALL").map(std::path::PathBuf::from));
    let Some(file) = file else { return };
    let asked = std::fs::read_to_string(file).is_ok_and(|text| text.trim() == worker.to_string());
    if asked && std::fs::remove_file(file).is_ok() {
        #[allow(clippy::disallowed_methods, reason = "to hang is the purpose")]
        std::thread::sleep(Duration::from_secs(8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_takes_too_long_is_a_stall_and_others_are_not() {
        let origin = Instant::now() - Duration::from_secs(10);
        let heartbeat = Heartbeat { origin, state: Arc::default() };
        assert_eq!(heartbeat.thread(), None);
        heartbeat.begin();
        heartbeat.beat();
        // The start itself is none: ten seconds may lie between the creation and the first turn.
        assert_eq!(heartbeat.stalls(), Stalls::default());
        assert!(heartbeat.thread().is_some());
        heartbeat.state.last.fetch_sub(3000, Ordering::Relaxed);
        heartbeat.beat();
        let stalls = heartbeat.stalls();
        assert!(stalls.count == 1 && stalls.time >= Duration::from_secs(3), "{stalls:?}");
        assert!(heartbeat.age(Instant::now()) < Duration::from_secs(3));
    }
}
