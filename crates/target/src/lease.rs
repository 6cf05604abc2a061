//! The lease: how long workers may trust the target without discovery having renewed it.
//!
//! A process can be stopped for half a minute: a paused machine, a debugger, a starved container.
//! When it continues, a worker may run first, with a client's request and a target that was
//! superseded long ago. So the writer keeps renewing a lease, and a reader that finds it expired
//! treats the gate as closed. Once the writer runs again, it polls before it renews.
//!
//! Two coarse clocks are read: their resolution is a few milliseconds, and a read takes a few
//! nanoseconds. The monotonic clock cannot be set, but it stops while the machine is suspended. The
//! wall clock advances meanwhile and jumps when the machine resumes, in the kernel and thus before
//! any thread of this process runs; but it can be set. The lease is expired as soon as either clock
//! says so. Setting the wall clock back costs nothing, since the monotonic clock still counts.
//! Setting it forward closes the gate until the writer has polled, and the same jump should wake
//! the writer. `CLOCK_BOOTTIME`, which cannot be set and never stops, has no coarse variant: a read
//! takes five times as long, and on some machines a system call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A reading of both coarse clocks, taken before discovery polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// Nanoseconds of the monotonic clock.
    mono: u64,
    /// Nanoseconds of the wall clock.
    wall: u64,
}

impl ClockReading {
    /// The current time.
    #[must_use]
    pub fn now() -> Self {
        Self { mono: mono(), wall: wall() }
    }

    /// A reading of invented clocks for tests and simulations, in nanoseconds.
    #[must_use]
    pub const fn of(mono: u64, wall: u64) -> Self {
        Self { mono, wall }
    }
}

/// A deadline on the coarse monotonic clock, in the past until it is first set. Any thread may set
/// it.
#[derive(Debug, Default)]
pub(crate) struct CoarseDeadline(AtomicU64);

impl CoarseDeadline {
    /// Sets it to `span` from now.
    pub(crate) fn set(&self, span: Duration) {
        self.0.store(mono().saturating_add(ns(span)), Ordering::Relaxed);
    }

    /// Whether it lies in the future.
    pub(crate) fn is_pending(&self) -> bool {
        let until = self.0.load(Ordering::Relaxed);
        until != 0 && mono() < until
    }
}

/// The expiry of the lease; never until it is first granted.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Nanoseconds of the monotonic clock.
    mono: AtomicU64,
    /// Nanoseconds of the wall clock.
    wall: AtomicU64,
}

impl Lease {
    pub(crate) fn unbounded() -> Self {
        Self { mono: AtomicU64::new(u64::MAX), wall: AtomicU64::new(u64::MAX) }
    }

    /// Whether the lease has expired by either clock.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.is_granted() && self.is_over_at(ClockReading::now())
    }

    /// Whether the lease was ever granted. Without that no clock is read.
    #[inline]
    fn is_granted(&self) -> bool {
        self.mono.load(Ordering::Acquire) != u64::MAX
    }

    /// Whether the lease has expired by the wall clock alone. That also detects a stop of the
    /// process and of the machine; it misses a stop during which the wall clock was set back by
    /// just as much. Used for replies, which are not worth a second clock read.
    #[inline]
    pub(crate) fn is_over_by_wall_clock(&self) -> bool {
        self.is_granted() && wall() > self.wall.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn is_over_at(&self, now: ClockReading) -> bool {
        now.mono > self.mono.load(Ordering::Acquire) || now.wall > self.wall.load(Ordering::Acquire)
    }

    /// Renews the lease until `span` after the reading taken before the poll. Returns whether it
    /// had expired.
    pub(crate) fn renew(&self, since: ClockReading, span: Duration) -> bool {
        self.renew_at(ClockReading::now(), since, span)
    }

    fn renew_at(&self, now: ClockReading, since: ClockReading, span: Duration) -> bool {
        let was_over = self.is_over_at(now);
        self.wall.store(since.wall.saturating_add(ns(span)), Ordering::Release);
        self.mono.store(since.mono.saturating_add(ns(span)), Ordering::Release);
        was_over
    }
}

fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[inline]
fn mono() -> u64 {
    read(ClockId::MonotonicCoarse)
}

#[inline]
fn wall() -> u64 {
    read(ClockId::RealtimeCoarse)
}

/// Nanoseconds of a clock. The value fits until the year 2554, and a time before 1970 wraps to one
/// far past every expiry.
#[inline]
#[allow(clippy::cast_sign_loss, reason = "see above")]
fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const SPAN: Duration = Duration::from_secs(3);
    /// A time in November 2023.
    const WALL: u64 = 1_700_000_000 * SECOND;

    /// A lease granted now, by two invented clocks.
    fn granted(mono: u64, wall: u64) -> Lease {
        let (lease, now) = (Lease::unbounded(), ClockReading::of(mono, wall));
        assert!(!lease.renew_at(now, now, SPAN), "the first grant cannot be late");
        assert!(!lease.is_over_at(now));
        lease
    }

    #[test]
    fn never_expires_before_first_grant() {
        let lease = Lease::unbounded();
        assert!(!lease.is_over() && !lease.is_over_by_wall_clock());
        assert!(!lease.is_over_at(ClockReading::of(u64::MAX, u64::MAX)));
    }

    #[test]
    fn expires_by_real_clocks() {
        let lease = Lease::unbounded();
        assert!(!lease.renew(ClockReading::now(), Duration::from_secs(60)));
        assert!(!lease.is_over() && !lease.is_over_by_wall_clock());
        let now = ClockReading::now();
        // A writer that was stopped between its poll and the renewal renews nothing.
        let long_ago =
            ClockReading::of(now.mono.saturating_sub(10 * SECOND), now.wall - 10 * SECOND);
        lease.renew(long_ago, SPAN);
        assert!(lease.is_over() && lease.is_over_by_wall_clock());
        assert!(
            lease.renew(ClockReading::now(), Duration::from_secs(60)),
            "the renewal reports that the lease had expired"
        );
        assert!(!lease.is_over() && !lease.is_over_by_wall_clock());
    }

    #[test]
    fn expires_when_process_was_stopped() {
        // Both clocks advance.
        let lease = granted(SECOND, WALL);
        assert!(!lease.is_over_at(ClockReading::of(4 * SECOND, WALL + 3 * SECOND)));
        assert!(lease.is_over_at(ClockReading::of(4 * SECOND + 1, WALL + 3 * SECOND + 1)));
    }

    #[test]
    fn expires_when_machine_was_suspended() {
        // The monotonic clock stopped for an hour; the wall clock did not.
        let lease = granted(SECOND, WALL);
        assert!(lease.is_over_at(ClockReading::of(SECOND + 1, WALL + 3600 * SECOND)));
    }

    #[test]
    fn expires_when_stop_is_hidden_by_clock_set_back() {
        // Stopped for ten seconds, while the wall clock was set back by nine.
        let lease = granted(20 * SECOND, WALL);
        assert!(lease.is_over_at(ClockReading::of(30 * SECOND, WALL + SECOND)));
    }

    #[test]
    fn stays_valid_when_wall_clock_is_set_slightly() {
        let lease = granted(20 * SECOND, WALL);
        for wall in [WALL - 3600 * SECOND, WALL - SECOND, WALL + 2 * SECOND] {
            assert!(!lease.is_over_at(ClockReading::of(21 * SECOND, wall)), "{wall}");
        }
    }

    #[test]
    fn renews_after_jump_and_reports_expiry() {
        let lease = granted(SECOND, WALL);
        let now = ClockReading::of(SECOND + 1, WALL + 3600 * SECOND);
        assert!(lease.renew_at(now, now, SPAN));
        assert!(!lease.is_over_at(now));
        // The machine was suspended between the poll and the renewal: the poll is older than the
        // lease.
        let later = ClockReading::of(SECOND + 2, WALL + 7200 * SECOND);
        lease.renew_at(later, now, SPAN);
        assert!(lease.is_over_at(later));
    }
}
