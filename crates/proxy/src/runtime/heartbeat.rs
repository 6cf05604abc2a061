//! The heartbeat of a worker's event loop: when it last ticked, and how often it stalled.
//!
//! The [timer thread](crate::runtime::timers) wakes each loop ten times per second, and a loop
//! beats when it was woken by another thread: so a beat says that the loop runs, and costs no
//! request anything.
//!
//! The worker writes, any thread reads. The CPU time of a worker is not measured here: the kernel
//! counts it per thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::runtime::tasks::WorkerHandle;

/// The event loop beats this often, even if nothing happens.
pub(crate) const BEAT_INTERVAL: Duration = Duration::from_millis(100);

/// A longer time between two beats is a stall: something delayed the worker, or the machine did. It
/// includes up to [`BEAT_INTERVAL`] before the delay began.
pub const STALL: Duration = Duration::from_millis(250);

/// The stalls of an event loop: times between beats that are longer than [`STALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stalls {
    /// Their number.
    pub count: u64,
    /// Their total duration.
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

/// When a worker's event loop last beat. Cheap to clone, readable from any thread.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    origin: Instant,
    state: Arc<HeartbeatState>,
    worker: Arc<WorkerHandle>,
}

impl Heartbeat {
    pub(crate) fn new(worker: Arc<WorkerHandle>) -> Self {
        Self { origin: Instant::now(), state: Arc::default(), worker }
    }

    /// The tasks of the worker: one per session, and those that run as long as it does.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.worker.tasks()
    }

    /// How long before `now` the loop last beat. It beats ten times per second unless something
    /// delays it.
    #[must_use]
    pub fn age(&self, now: Instant) -> Duration {
        let last = Duration::from_millis(self.state.last.load(Ordering::Relaxed));
        now.saturating_duration_since(self.origin).saturating_sub(last)
    }

    /// The stalls so far. A stall counts when it is over.
    #[must_use]
    pub fn stalls(&self) -> Stalls {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Stalls {
            count: read(&self.state.stalls),
            time: Duration::from_millis(read(&self.state.stalled_ms)),
        }
    }

    /// The system's id of the worker's thread; `None` before it runs.
    #[must_use]
    pub fn thread(&self) -> Option<u32> {
        Some(self.state.thread.load(Ordering::Relaxed)).filter(|id| *id > 0)
    }

    /// Marks the start of the loop on this thread.
    pub(crate) fn begin(&self) {
        let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        self.state.thread.store(id, Ordering::Relaxed);
        self.state.last.store(self.millis(), Ordering::Relaxed);
    }

    /// Marks a tick. There is one writer, so plain loads and stores are exact.
    pub(crate) fn beat(&self) {
        let now = self.millis();
        let took = now.saturating_sub(self.state.last.load(Ordering::Relaxed));
        self.state.last.store(now, Ordering::Relaxed);
        if took > STALL.as_millis() as u64 {
            self.state.stalls.fetch_add(1, Ordering::Relaxed);
            self.state.stalled_ms.fetch_add(took, Ordering::Relaxed);
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Blocks the worker for longer than liveness waits, if the file named by POINTSMAN_TEST_STALL
/// contains its number; the file is removed. Only for a test of liveness, and absent in release
/// builds.
#[cfg(debug_assertions)]
pub(crate) fn stall_if_asked(worker: usize) {
    let Some(file) = std::env::var_os("POINTSMAN_TEST_STALL") else { return };
    let asked = std::fs::read_to_string(&file).is_ok_and(|text| text.trim() == worker.to_string());
    if asked && std::fs::remove_file(file).is_ok() {
        #[allow(clippy::disallowed_methods, reason = "to hang is the purpose")]
        std::thread::sleep(Duration::from_secs(8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_long_iterations_as_stalls() {
        let origin = Instant::now() - Duration::from_secs(10);
        let worker = WorkerHandle::new().expect("an event descriptor");
        let heartbeat = Heartbeat { origin, state: Arc::default(), worker };
        assert_eq!(heartbeat.thread(), None);
        heartbeat.begin();
        heartbeat.beat();
        // The start is not a stall: ten seconds may pass between creation and the first iteration.
        assert_eq!(heartbeat.stalls(), Stalls::default());
        assert!(heartbeat.thread().is_some());
        heartbeat.state.last.fetch_sub(3000, Ordering::Relaxed);
        heartbeat.beat();
        let stalls = heartbeat.stalls();
        assert!(stalls.count == 1 && stalls.time >= Duration::from_secs(3), "{stalls:?}");
        assert!(heartbeat.age(Instant::now()) < Duration::from_secs(3));
    }
}
