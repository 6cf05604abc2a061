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
use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::time::Sleep;

/// Its own timer.
const TICK: Duration = Duration::from_millis(100);

/// Nothing is sent through it: while somebody holds it, the clock goes.
#[derive(Debug, Clone)]
pub(crate) struct TimerThread {
    handle: Handle,
    _keep_alive: mpsc::Sender<()>,
}

impl TimerThread {
    /// Starts the clock. It goes until the last clone is dropped.
    pub(crate) fn start() -> io::Result<(Self, JoinHandle<()>)> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (keep_alive, mut stopped) = mpsc::channel(1);
        let clock = Self { handle: runtime.handle().clone(), _keep_alive: keep_alive };
        let tick =
            async move { while tokio::time::timeout(TICK, stopped.recv()).await.is_err() {} };
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

/// Set or not. Rings a waker when it is due.
#[derive(Debug, Default)]
pub(crate) struct LazyTimer(Option<Pin<Box<Sleep>>>);

impl LazyTimer {
    /// Sets it to ring `waker` after `span`, in place of an earlier setting.
    pub(crate) fn set(&mut self, span: Duration, waker: &Waker) {
        let mut sleep = Box::pin(tokio::time::sleep(span));
        // The first poll is what enters it into the timer wheel. If it is due at once, the waker
        // must be told by hand.
        if sleep.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
            waker.wake_by_ref();
        }
        self.0 = Some(sleep);
    }

    /// Takes it back.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Whether it is set, due or not.
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it is due.
    pub(crate) fn is_due(&mut self, waker: &Waker) -> bool {
        self.0.as_mut().is_some_and(|sleep| {
            sleep.is_elapsed() || sleep.as_mut().poll(&mut Context::from_waker(waker)).is_ready()
        })
    }
}
