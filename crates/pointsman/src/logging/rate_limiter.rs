//! Limits the number of log lines per second from one call site; suppressed lines are counted.
//!
//! A failover of ten thousand sessions must not become ten thousand lines, and repeated lines add
//! no information. The call sites share a table of counters: two may fall on one counter and then
//! share its budget, which is still a limit, and nothing is locked and nothing grows.
//!
//! This is not the `RateLimiter` of the `sentinel` crate: that one limits how often discovery
//! reports a repeated fault of one object and belongs to a crate that does not depend on this one.
//! This one limits any log line, as a `tracing` layer, and is shared by all threads.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Number of counters in the table.
const COUNTERS: usize = 1024;

/// The limiter. All clones share one state.
#[derive(Debug, Clone)]
pub(super) struct LogRateLimiter(Arc<LimiterState>);

#[derive(Debug)]
struct LimiterState {
    origin: Instant,
    /// Maximum number of lines per second from one call site; 0 for no limit.
    max_per_second: AtomicU32,
    /// Each holds the second and the number of lines in it, packed into one integer.
    counters: Vec<AtomicU64>,
    suppressed: AtomicU64,
}

impl LogRateLimiter {
    pub(super) fn new(max_per_second: u32) -> Self {
        let counters = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(LimiterState {
            origin: Instant::now(),
            max_per_second: max_per_second.into(),
            counters,
            suppressed: AtomicU64::new(0),
        }))
    }

    pub(super) fn set(&self, max_per_second: u32) {
        self.0.max_per_second.store(max_per_second, Ordering::Relaxed);
    }

    pub(super) fn suppressed(&self) -> u64 {
        self.0.suppressed.load(Ordering::Relaxed)
    }

    /// Whether the call site with this hash may write another line in this second.
    fn admits(&self, call_site: u64, second: u64) -> bool {
        let max_per_second = self.0.max_per_second.load(Ordering::Relaxed);
        let index = usize::try_from(call_site % COUNTERS as u64).unwrap_or(0);
        let Some(counter) = self.0.counters.get(index).filter(|_| max_per_second > 0) else {
            return true;
        };
        let count = |now: u64| if now >> 32 == second { now & u64::from(u32::MAX) } else { 0 };
        // Two concurrent callers may both use the last slot: then one line more is written.
        let before = count(counter.load(Ordering::Relaxed));
        if before >= u64::from(max_per_second) {
            self.0.suppressed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        counter.store(second << 32 | (before + 1), Ordering::Relaxed);
        true
    }
}

impl<S: Subscriber> Layer<S> for LogRateLimiter {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let call_site =
            BuildHasherDefault::<DefaultHasher>::default().hash_one(event.metadata().callsite());
        self.admits(call_site, self.0.origin.elapsed().as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_lines_per_call_site_and_second() {
        let limiter = LogRateLimiter::new(3);
        let admitted =
            |call_site, second| (0..10).filter(|_| limiter.admits(call_site, second)).count();
        assert_eq!((admitted(1, 0), admitted(2, 0), admitted(1, 0), admitted(1, 1)), (3, 3, 0, 3));
        assert_eq!(limiter.suppressed(), 7 + 7 + 10 + 7);
        limiter.set(0);
        assert_eq!(admitted(1, 1), 10);
    }
}
