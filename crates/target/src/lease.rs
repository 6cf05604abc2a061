//! How long what the points say may be believed without hearing from whoever moves them.
//!
//! A process can be stopped for half a minute: a paused machine, a debugger, a starved container.
//! When it goes on, a worker may be the first to run, with a client's request in its hand and a
//! target in its memory that was superseded long ago. So the writer says, again and again, until
//! when its word holds, and a reader that finds the time past treats the gate as shut. The writer,
//! once it runs, looks at the world before it renews its word.
//!
//! Two clocks are read, both coarse: a few milliseconds rough, and a few nanoseconds to read. The
//! monotonic one cannot be set, but stands still while the whole machine is suspended. The wall
//! clock goes on then, and jumps when the machine wakes up, in the kernel and so before any thread
//! of this process runs; but it can be set. The word has run out as soon as one of the two says so.
//! A wall clock that is set back takes nothing away, since the other one still counts; one that is
//! set forward shuts the gate until the writer has looked, and the writer should be woken by the
//! same jump. `CLOCK_BOOTTIME`, which cannot be set and does not stand still, has no coarse
//! variant: a read takes five times as long, and on some machines a system call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point in time on both coarse clocks, to be taken before a look at the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Nanoseconds of the monotonic clock.
    mono: u64,
    /// Nanoseconds of the wall clock.
    wall: u64,
}

impl Moment {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self { mono: mono(), wall: wall() }
    }

    /// A moment of clocks that a test invents, in nanoseconds.
    #[cfg(test)]
    pub(crate) const fn of(mono: u64, wall: u64) -> Self {
        Self { mono, wall }
    }
}

/// A time on the coarse monotonic clock until which something holds; set by anybody, at first long
/// past.
#[derive(Debug, Default)]
pub(crate) struct Until(AtomicU64);

impl Until {
    /// It holds for `span` from now on.
    pub(crate) fn set(&self, span: Duration) {
        self.0.store(mono().saturating_add(ns(span)), Ordering::Relaxed);
    }

    /// Whether it holds.
    pub(crate) fn holds(&self) -> bool {
        let until = self.0.load(Ordering::Relaxed);
        until != 0 && mono() < until
    }
}

/// The time until which the writer's word holds; without end until it is first given.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Nanoseconds of the monotonic clock.
    mono: AtomicU64,
    /// Nanoseconds of the wall clock.
    wall: AtomicU64,
}

impl Lease {
    pub(crate) fn endless() -> Self {
        Self { mono: AtomicU64::new(u64::MAX), wall: AtomicU64::new(u64::MAX) }
    }

    /// Whether the time is past, by either clock.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.is_given() && self.is_over_at(Moment::now())
    }

    /// Whether a word was ever given. Without one no clock is read.
    #[inline]
    fn is_given(&self) -> bool {
        self.mono.load(Ordering::Acquire) != u64::MAX
    }

    /// Whether the time is past by the wall clock alone. That shows a stop of the process and of
    /// the machine, too; it misses one during which the wall clock was set back by just as much.
    /// For replies, of which none is worth a second read.
    #[inline]
    pub(crate) fn has_passed(&self) -> bool {
        self.is_given() && wall() > self.wall.load(Ordering::Acquire)
    }

    #[inline]
    fn is_over_at(&self, now: Moment) -> bool {
        now.mono > self.mono.load(Ordering::Acquire) || now.wall > self.wall.load(Ordering::Acquire)
    }

    /// Gives the word anew, for `span` from the moment before the writer looked. Whether it had run
    /// out.
    pub(crate) fn renew(&self, looked: Moment, span: Duration) -> bool {
        self.renew_at(Moment::now(), looked, span)
    }

    fn renew_at(&self, now: Moment, looked: Moment, span: Duration) -> bool {
        let was_over = self.is_over_at(now);
        self.wall.store(looked.wall.saturating_add(ns(span)), Ordering::Release);
        self.mono.store(looked.mono.saturating_add(ns(span)), Ordering::Release);
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

/// Nanoseconds of a clock. Until the year 2554 that fits, and a time before 1970 wraps, which is
/// far past every end.
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
    /// Some time in November 2023.
    const WALL: u64 = 1_700_000_000 * SECOND;

    /// A word given at this very moment of two invented clocks.
    fn given(mono: u64, wall: u64) -> Lease {
        let (lease, now) = (Lease::endless(), Moment::of(mono, wall));
        assert!(!lease.renew_at(now, now, SPAN), "the first word cannot be late");
        assert!(!lease.is_over_at(now));
        lease
    }

    #[test]
    fn has_no_end_before_the_first_word() {
        let lease = Lease::endless();
        assert!(!lease.is_over() && !lease.has_passed());
        assert!(!lease.is_over_at(Moment::of(u64::MAX, u64::MAX)));
    }

    #[test]
    fn ends_by_the_real_clocks() {
        let lease = Lease::endless();
        assert!(!lease.renew(Moment::now(), Duration::from_secs(60)));
        assert!(!lease.is_over() && !lease.has_passed());
        let now = Moment::now();
        // A writer that was stopped between its look and its word says nothing new.
        let long_ago = Moment::of(now.mono.saturating_sub(10 * SECOND), now.wall - 10 * SECOND);
        lease.renew(long_ago, SPAN);
        assert!(lease.is_over() && lease.has_passed());
        assert!(
            lease.renew(Moment::now(), Duration::from_secs(60)),
            "the renewal knows that it came late"
        );
        assert!(!lease.is_over() && !lease.has_passed());
    }

    #[test]
    fn ends_when_the_process_was_stopped() {
        // Both clocks go on.
        let lease = given(SECOND, WALL);
        assert!(!lease.is_over_at(Moment::of(4 * SECOND, WALL + 3 * SECOND)));
        assert!(lease.is_over_at(Moment::of(4 * SECOND + 1, WALL + 3 * SECOND + 1)));
    }

    #[test]
    fn ends_when_the_machine_was_suspended() {
        // The monotonic clock stood still for an hour, and the wall clock did not.
        let lease = given(SECOND, WALL);
        assert!(lease.is_over_at(Moment::of(SECOND + 1, WALL + 3600 * SECOND)));
    }

    #[test]
    fn ends_when_a_stop_is_hidden_by_a_clock_set_back() {
        // Stopped for ten seconds, while the wall clock was set back by nine.
        let lease = given(20 * SECOND, WALL);
        assert!(lease.is_over_at(Moment::of(30 * SECOND, WALL + SECOND)));
    }

    #[test]
    fn stands_when_the_wall_clock_is_set_a_little() {
        let lease = given(20 * SECOND, WALL);
        for wall in [WALL - 3600 * SECOND, WALL - SECOND, WALL + 2 * SECOND] {
            assert!(!lease.is_over_at(Moment::of(21 * SECOND, wall)), "{wall}");
        }
    }

    #[test]
    fn renews_after_a_jump_and_says_that_it_was_late() {
        let lease = given(SECOND, WALL);
        let now = Moment::of(SECOND + 1, WALL + 3600 * SECOND);
        assert!(lease.renew_at(now, now, SPAN));
        assert!(!lease.is_over_at(now));
        // A suspend between the look and the word: the word is about the time before.
        let later = Moment::of(SECOND + 2, WALL + 7200 * SECOND);
        lease.renew_at(later, now, SPAN);
        assert!(lease.is_over_at(later));
    }
}
