//! Reads the clocks of the host and watches them for jumps.
//!
//! The kernel ends a timer of a certain kind at once when the wall clock is set and when the host
//! wakes up from a suspend (`timerfd_create(2)`, `TFD_TIMER_CANCEL_ON_SET`). Discovery therefore
//! checks within the same iteration of its loop. Workers find the gate closed by the same jump, and
//! it does not stay closed until discovery's next timer. On a system without such a timer it takes
//! that long.
//!
//! Deliberately absent: the interpretation of a jump
//! ([`clock_jumps`](crate::discovery::clock_jumps)).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use target::ClockReading;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::discovery::clock_jumps::{ClockJumps, ClockReadings};
use crate::net::host::Host;

/// The watched clocks; see the module documentation. Must be created inside a tokio runtime.
#[derive(Debug)]
pub(crate) struct ClockWatch {
    jumps: ClockJumps,
    timer: Option<AsyncFd<OwnedFd>>,
    host: Option<Arc<dyn Host>>,
    /// When this process last returned from a long absence.
    back_at: Option<Instant>,
}

impl ClockWatch {
    #[allow(
        deprecated,
        reason = "its replacement is unsafe; an `OwnedFd` fulfils its safety contract"
    )]
    pub(crate) fn new(host: Option<&Arc<dyn Host>>) -> Self {
        if let Some(host) = host {
            let (jumps, host) = (ClockJumps::new(clocks(Some(host))), Some(Arc::clone(host)));
            return Self { jumps, timer: None, host, back_at: None };
        }
        let timer = timer().map_err(std::io::Error::from).and_then(AsyncFd::new);
        if let Err(error) = &timer {
            tracing::info!(
                %error,
                "no timer for clock changes, checking the clock several times per second"
            );
        }
        Self { jumps: ClockJumps::new(clocks(None)), timer: timer.ok(), host: None, back_at: None }
    }

    /// Calls `judge` with the time since the last call, including the time during which the host
    /// was suspended. `judge` returns how many services consider that too long.
    pub(crate) fn notice_absence(&mut self, judge: impl FnOnce(Duration) -> usize) {
        if judge(self.jumps.away(clocks(self.host.as_ref()))) > 0 {
            self.back_at = Some(Instant::now());
        }
    }

    /// The clocks by which workers judge the lease.
    pub(crate) fn lease_clocks(&self) -> ClockReading {
        self.host.as_ref().map_or_else(ClockReading::now, |host| host.lease_clocks())
    }

    /// Whether an answer to a query sent at `asked_at` belongs to a time before an absence of this
    /// process.
    pub(crate) fn is_old(&self, asked_at: Instant, limit: Duration) -> bool {
        asked_at.elapsed() > limit || self.back_at.is_some_and(|at| asked_at < at)
    }

    /// Returns when the wall clock was set or the host woke up. Cancel-safe.
    pub(crate) async fn jumped(&self) {
        if let Some(timer) = &self.timer {
            while let Ok(mut ready) = timer.readable().await {
                match rustix::io::read(timer, &mut [0; 8]) {
                    Err(Errno::AGAIN | Errno::INTR) => ready.clear_ready(),
                    Err(Errno::CANCELED) => return,
                    // It ended although its expiry is far away: waiting on it again is pointless.
                    Ok(_) | Err(_) => break,
                }
            }
        }
        std::future::pending::<()>().await;
    }
}

/// A timer that never expires, except when the clock is set.
fn timer() -> rustix::io::Result<OwnedFd> {
    let timer =
        timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let never = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
    let once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
    timerfd_settime(&timer, flags, &Itimerspec { it_interval: once, it_value: never })?;
    Ok(timer)
}

fn clocks(host: Option<&Arc<dyn Host>>) -> ClockReadings {
    if let Some((boot, wall)) = host.map(|host| host.clocks()) {
        return ClockReadings { boot, wall };
    }
    ClockReadings { boot: read(ClockId::Boottime), wall: read(ClockId::Realtime) }
}

/// Times before 1970 are treated as 1970.
fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_advancing_clocks_and_has_a_timer() {
        let mut watch = ClockWatch::new(None);
        assert!(watch.timer.is_some(), "the timer is supported");
        let asked_at = Instant::now();
        while asked_at.elapsed() < Duration::from_millis(5) {
            std::thread::yield_now();
        }
        watch.notice_absence(|away| {
            assert!(away >= Duration::from_millis(5), "{away:?}");
            0
        });
        assert!(!watch.is_old(asked_at, Duration::from_secs(60)), "the absence was short");
        watch.notice_absence(|_| 1);
        assert!(
            watch.is_old(asked_at, Duration::from_secs(60)),
            "the query was sent before the absence"
        );
        assert!(!watch.is_old(Instant::now(), Duration::from_secs(60)));
    }
}
