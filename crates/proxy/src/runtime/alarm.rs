//! A timer of one task that is precise to microseconds.
//!
//! The [timers](super::timers) of all workers are precise to a millisecond, which is enough for
//! rare events. This one is a descriptor of the worker's event loop.

use std::io;
use std::os::fd::OwnedFd;
use std::task::Context;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::runtime::reactor::{Readiness, Registration};

/// Wakes the task that has set it.
#[derive(Debug)]
pub(crate) struct Alarm {
    registration: Registration,
    timer: OwnedFd,
}

impl Alarm {
    /// An alarm that is not set.
    ///
    /// # Errors
    ///
    /// There is no descriptor for it.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { registration: Registration::new(&timer, Readiness::NONE, false)?, timer })
    }

    /// Wakes the task of `cx` after `span`, instead of what it was set to before.
    ///
    /// # Errors
    ///
    /// The span is too long.
    pub(crate) fn set(&self, span: Duration, cx: &Context<'_>) -> io::Result<()> {
        // Zero would never be due.
        let span = Timespec::try_from(span.max(Duration::from_nanos(1)))
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        let times = Itimerspec { it_interval: Timespec::default(), it_value: span };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times)?;
        // What was due before is taken, so that the next event is a new one.
        self.registration.update_readiness(cx);
        Ok(())
    }
}
