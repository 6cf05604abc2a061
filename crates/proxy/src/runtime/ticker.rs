//! A periodic timer that ends a worker's waits for events.
//!
//! A loop that has to run now and then could limit each wait. The kernel would set and cancel a
//! timer each time: at 20,000 requests per second that is a part of every request. One periodic
//! timer is a descriptor like any other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// Its descriptor becomes readable after each interval, if it was read since the last one.
#[derive(Debug)]
pub(crate) struct Ticker(OwnedFd);

impl Ticker {
    /// A ticker that has begun.
    ///
    /// # Errors
    ///
    /// There is no descriptor for it, or the interval is too long.
    pub(crate) fn new(interval: Duration) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let span = Timespec::try_from(interval).map_err(|_| io::ErrorKind::InvalidInput)?;
        let times = Itimerspec { it_interval: span, it_value: span };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
        Ok(Self(timer))
    }

    /// Reads it, without which it would not continue.
    #[cold]
    pub(crate) fn tick(&self) {
        // It may have been read already; the number of ticks says nothing.
        let _read = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Ticker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
