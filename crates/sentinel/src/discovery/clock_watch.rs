//! The clocks as this machine has them: read, and watched for jumps.
//!
//! The kernel ends a timer of a certain kind at once when the wall clock is set and when the
//! machine wakes up from a suspend (`timerfd_create(2)`, `TFD_TIMER_CANCEL_ON_SET`). So discovery
//! looks within the same turn of its loop, and the gate, which workers find shut by the same jump,
//! does not stay shut until the next timer of discovery's own. Where the system has no such timer,
//! that is how long it takes.
//!
//! Deliberately absent: what a jump means ([`jumps`](crate::discovery::clock_jumps)).

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::discovery::clock_jumps::{ClockJumps, ClockReadings};

/// See the module's header. Must be made inside a tokio runtime.
#[derive(Debug)]
pub(crate) struct ClockWatch {
    jumps: ClockJumps,
    timer: Option<AsyncFd<OwnedFd>>,
    /// When this process last came back after it had been stopped for long.
    back_at: Option<Instant>,
}

impl ClockWatch {
    #[allow(
        deprecated,
        reason = "what replaces it is unsafe; an `OwnedFd` keeps the promise that is asked for there"
    )]
    pub(crate) fn new() -> Self {
        let timer = timer().map_err(std::io::Error::from).and_then(AsyncFd::new);
        if let Err(error) = &timer {
            tracing::info!(%error, "the system does not tell when its clock is set: it is looked at a few times a second");
        }
        Self { jumps: ClockJumps::new(clocks()), timer: timer.ok(), back_at: None }
    }

    /// Tells `judge` how long it is since this was last called, the time included in which this
    /// machine was suspended. It gives back how many found that too long.
    pub(crate) fn notice_absence(&mut self, judge: impl FnOnce(Duration) -> usize) {
        if judge(self.jumps.away(clocks())) > 0 {
            self.back_at = Some(Instant::now());
        }
    }

    /// Whether the answer to a question from `asked_at` is about a past that this process slept
    /// through.
    pub(crate) fn is_old(&self, asked_at: Instant, limit: Duration) -> bool {
        asked_at.elapsed() > limit || self.back_at.is_some_and(|at| asked_at < at)
    }

    /// Returns when the wall clock was set or the machine woke up. Safe to drop.
    pub(crate) async fn jumped(&self) {
        if let Some(timer) = &self.timer {
            while let Ok(mut ready) = timer.readable().await {
                match rustix::io::read(timer, &mut [0; 8]) {
                    Err(Errno::AGAIN | Errno::INTR) => ready.clear_ready(),
                    Err(Errno::CANCELED) => return,
                    // It ended although its time is far away: no use in asking it again.
                    Ok(_) | Err(_) => break,
                }
            }
        }
        std::future::pending::<()>().await;
    }
}

/// A timer that never ends, except when the clock is set.
fn timer() -> rustix::io::Result<OwnedFd> {
    let timer =
        timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let never = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
    let once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
    timerfd_settime(&timer, flags, &Itimerspec { it_interval: once, it_value: never })?;
    Ok(timer)
}

fn clocks() -> ClockReadings {
    ClockReadings { boot: read(ClockId::Boottime), wall: read(ClockId::Realtime) }
}

/// A time before 1970 is none.
fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_clocks_that_advance_and_has_a_timer() {
        let mut watch = ClockWatch::new();
        assert!(watch.timer.is_some(), "this system has such timers");
        let asked_at = Instant::now();
        while asked_at.elapsed() < Duration::from_millis(5) {
            std::thread::yield_now();
        }
        watch.notice_absence(|away| {
            assert!(away >= Duration::from_millis(5), "{away:?}");
            0
        });
        assert!(!watch.is_old(asked_at, Duration::from_secs(60)), "nobody found it too long");
        watch.notice_absence(|_| 1);
        assert!(
            watch.is_old(asked_at, Duration::from_secs(60)),
            "the question is from before the absence"
        );
        assert!(!watch.is_old(Instant::now(), Duration::from_secs(60)));
    }
}
