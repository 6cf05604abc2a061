//! The timers of all workers, on a thread of their own.
//!
//! Timers are for what is rare: a dial that gets no answer, a hold, a drain. tokio's are good, and
//! its timer wheel may be used from any thread, so one small runtime that does nothing else serves
//! all workers, whose event loops then know nothing of time. A timer that is due wakes its task
//! like anything else that comes from another thread.
//!
//! Setting a timer that is due before all others would wake this thread. So one of its own is
//! always due soon, and a worker that dials a thousand times a second only takes a lock for each.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;

/// Its own timer.
const TICK: Duration = Duration::from_millis(100);

/// Nothing is sent through it: while somebody holds it, the clock goes.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    handle: Handle,
    _goes: mpsc::Sender<()>,
}

impl Clock {
    /// Starts the clock. It goes until the last clone is dropped.
    pub(crate) fn start() -> io::Result<(Self, JoinHandle<()>)> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (goes, mut stops) = mpsc::channel(1);
        let clock = Self { handle: runtime.handle().clone(), _goes: goes };
        let tick = async move { while tokio::time::timeout(TICK, stops.recv()).await.is_err() {} };
        let thread = std::thread::Builder::new()
            .name("clock".into())
            .spawn(move || Runtime::block_on(&runtime, tick))?;
        Ok((clock, thread))
    }

    /// Makes tokio's timers on this thread those of this clock, until what is returned is dropped.
    pub(crate) fn enter(&self) -> tokio::runtime::EnterGuard<'_> {
        self.handle.enter()
    }
}
