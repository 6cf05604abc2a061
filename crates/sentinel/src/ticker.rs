//! A periodic timer for what has to be done several times per second, however little happens.
//!
//! tokio keeps timers in a wheel with slots of 64 ms and wakes up at the beginning of a slot to
//! look into it, so a timer of 100 ms wakes the process twice. This one is a descriptor that the
//! kernel makes readable. All timers of one interval tick at the same moments, the multiples of it
//! on the monotonic clock, so the process wakes up once for all of them. Each wake-up of a thread
//! that has slept takes some 50 us, and the core's caches from what runs there.
//!
//! Ticks are not counted: a caller that comes late does once what is due.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A ticker. Must be created inside a tokio runtime.
#[derive(Debug)]
pub struct Ticker {
    /// `None` where the system has no such timer.
    timer: Option<AsyncFd<OwnedFd>>,
    interval: Duration,
}

impl Ticker {
    /// A ticker that ticks at the multiples of `interval`, which must not be zero. On a system
    /// without such timers it sleeps instead.
    #[must_use]
    #[allow(
        deprecated,
        reason = "its replacement is unsafe; an `OwnedFd` fulfils its safety contract"
    )]
    pub fn new(interval: Duration) -> Self {
        let timer = timer(interval).map_err(std::io::Error::from).and_then(AsyncFd::new);
        if let Err(error) = &timer {
            tracing::debug!(%error, "no periodic timer, sleeping instead");
        }
        Self { timer: timer.ok(), interval }
    }

    /// A ticker that sleeps: of tokio's clock, which may be paused.
    pub(crate) fn sleeping(interval: Duration) -> Self {
        Self { timer: None, interval }
    }

    /// Returns after the next tick, or at once if there was one since the last call. Cancel-safe.
    pub async fn tick(&self) {
        if let Some(timer) = &self.timer
            && let Ok(mut ready) = timer.readable().await
        {
            // Empty only if another call has read it.
            let _ticks = rustix::io::read(timer, &mut [0; 8]);
            ready.clear_ready();
            return;
        }
        tokio::time::sleep(self.interval).await;
    }
}

fn timer(interval: Duration) -> rustix::io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    let first = next_multiple(now, interval);
    let spec = |time: Duration| Timespec::try_from(time).map_err(|_| rustix::io::Errno::INVAL);
    let times = Itimerspec { it_interval: spec(interval)?, it_value: spec(first)? };
    timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &times)?;
    Ok(timer)
}

/// The first multiple of `interval` after `now`.
fn next_multiple(now: Duration, interval: Duration) -> Duration {
    let past = now.as_nanos().checked_rem(interval.as_nanos()).unwrap_or(0);
    let left = interval.as_nanos() - past;
    now + Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(20);

    #[test]
    fn finds_the_next_multiple() {
        let millis = Duration::from_millis;
        for (now, next) in [(0, 100), (1, 100), (99, 100), (100, 200), (1234, 1300)] {
            assert_eq!(next_multiple(millis(now), millis(100)), millis(next));
        }
    }

    #[tokio::test]
    async fn ticks_once_per_interval() {
        let (ticker, begin) = (Ticker::new(INTERVAL), Instant::now());
        assert!(ticker.timer.is_some(), "the timer is supported");
        for _ in 0..5 {
            ticker.tick().await;
        }
        // The first one came within the interval.
        assert!(begin.elapsed() >= INTERVAL * 4, "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn ticks_once_for_a_late_caller() {
        let (ticker, begin) = (Ticker::new(INTERVAL), Instant::now());
        while begin.elapsed() < INTERVAL * 5 {
            std::thread::yield_now();
        }
        let late = Instant::now();
        // The first one comes at once, the second one within the interval.
        for _ in 0..3 {
            ticker.tick().await;
        }
        assert!(late.elapsed() >= INTERVAL, "{:?}", late.elapsed());
    }

    #[tokio::test]
    async fn sleeps_where_there_is_no_timer() {
        let ticker = Ticker::sleeping(INTERVAL);
        let begin = Instant::now();
        ticker.tick().await;
        assert!(begin.elapsed() >= INTERVAL, "{:?}", begin.elapsed());
    }
}
