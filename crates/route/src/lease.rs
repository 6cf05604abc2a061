//! How long what the points say may be believed without hearing from whoever moves them.
//!
//! A process can be stopped for half a minute: a paused machine, a debugger, a starved container. When it goes on, a worker may
//! be the first to run, with a client's request in its hand and a target in its memory that was superseded long ago. So the
//! writer says, again and again, until when its word holds, and a reader that finds the time past treats the gate as shut.
//! The writer, once it runs, looks at the world before it renews its word.
//!
//! The clock is the system's coarse monotonic one: a few milliseconds rough, and a few nanoseconds to read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point in time on the coarse clock, to be taken before a look at the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self(now())
    }
}

/// A time on the coarse clock until which something holds; set by anybody, at first long past.
#[derive(Debug, Default)]
pub(crate) struct Until(AtomicU64);

impl Until {
    /// It holds for `span` from now on.
    pub(crate) fn set(&self, span: Duration) {
        self.0.store(now().saturating_add(ms(span)), Ordering::Relaxed);
    }

    /// Whether it holds.
    pub(crate) fn holds(&self) -> bool {
        let until = self.0.load(Ordering::Relaxed);
        until != 0 && now() < until
    }
}

/// The time until which the writer's word holds; without end until it is first given.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Milliseconds of the coarse clock.
    until: AtomicU64,
}

impl Lease {
    pub(crate) fn endless() -> Self {
        Self { until: AtomicU64::new(u64::MAX) }
    }

    /// Whether the time is past.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        until != u64::MAX && now() > until
    }

    /// Gives the word anew, for `span` from the moment before the writer looked. Whether it had run out.
    pub(crate) fn renew(&self, looked: Moment, span: Duration) -> bool {
        let was_over = self.is_over();
        self.until.store(looked.0.saturating_add(ms(span)), Ordering::Release);
        was_over
    }
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds of the coarse monotonic clock.
#[inline]
fn now() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_word_there_is_no_end_and_a_renewal_begins_anew() {
        let lease = Lease::endless();
        assert!(!lease.is_over());
        assert!(!lease.renew(Moment::now(), Duration::from_secs(60)));
        assert!(!lease.is_over());
        // An end in the past: the word was given long ago.
        lease.until.store(now().saturating_sub(1), Ordering::Release);
        assert!(lease.is_over());
        assert!(lease.renew(Moment::now(), Duration::from_secs(60)), "the renewal knows that it came late");
        assert!(!lease.is_over());
        // A writer that was stopped between its look and its word says nothing new.
        lease.renew(Moment(now().saturating_sub(10_000)), Duration::from_secs(3));
        assert!(lease.is_over());
    }
}
