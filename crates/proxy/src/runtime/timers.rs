//! The timers of all workers, on a thread of their own.
//!
//! Timers are for rare events: a connect without an answer, a hold, a drain. tokio's timer wheel
//! may be used from any thread, so one small runtime that does nothing else serves all workers,
//! whose event loops need not know the time. A due timer wakes its task like any other event from
//! another thread.
//!
//! Setting a timer that is due before all others would wake this thread. So the thread always has a
//! timer of its own that is due soon, and a worker that connects a thousand times per second only
//! takes a lock for each timer.
//!
//! That timer also wakes the workers, so that their loops [beat](crate::runtime::heartbeat) without
//! a limit on each wait: the kernel would set and cancel a timer for each, which at 20,000 requests
//! per second is a part of every request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::time::Sleep;

use crate::runtime::heartbeat::BEAT_INTERVAL;
use crate::runtime::tasks::WorkerHandle;

/// A handle to the timer thread, which runs while there is a handle. Nothing is sent through the
/// channel.
#[derive(Debug, Clone)]
pub(crate) struct TimerThread {
    /// Tokio's timers on a thread that has entered it use the timer thread.
    pub(crate) handle: Handle,
    _keep_alive: mpsc::Sender<()>,
}

impl TimerThread {
    /// Starts the thread, which wakes these workers at every beat. It ends when the last clone is
    /// dropped.
    pub(crate) fn start(workers: Vec<Arc<WorkerHandle>>) -> io::Result<(Self, JoinHandle<()>)> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (keep_alive, mut stopped) = mpsc::channel(1);
        let clock = Self { handle: runtime.handle().clone(), _keep_alive: keep_alive };
        let tick = async move {
            while tokio::time::timeout(BEAT_INTERVAL, stopped.recv()).await.is_err() {
                workers.iter().for_each(|worker| worker.wake());
            }
        };
        let thread = std::thread::Builder::new()
            .name("timers".into())
            .spawn(move || Runtime::block_on(&runtime, tick))?;
        Ok((clock, thread))
    }
}

/// A timer that allocates only while it is set.
#[derive(Debug, Default)]
pub(crate) struct LazyTimer(Option<Pin<Box<Sleep>>>);

impl LazyTimer {
    /// Sets it to wake `waker` after `span`, replacing an earlier setting.
    pub(crate) fn set(&mut self, span: Duration, waker: &Waker) {
        let mut sleep = Box::pin(tokio::time::sleep(span));
        // The first poll registers it with the timer wheel. If it is due already, no later poll
        // wakes the task.
        if sleep.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
            waker.wake_by_ref();
        }
        self.0 = Some(sleep);
    }

    /// Clears it.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    /// Whether it is set, due or not.
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it is due, for a task whose waker is always the one with which it was set.
    pub(crate) fn has_elapsed(&self) -> bool {
        self.0.as_ref().is_some_and(|sleep| sleep.is_elapsed())
    }

    /// Whether it is due.
    pub(crate) fn is_due(&mut self, waker: &Waker) -> bool {
        self.0.as_mut().is_some_and(|sleep| {
            sleep.is_elapsed() || sleep.as_mut().poll(&mut Context::from_waker(waker)).is_ready()
        })
    }
}
