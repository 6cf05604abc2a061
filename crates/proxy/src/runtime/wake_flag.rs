//! A waker with a flag, for futures that rarely complete.
//!
//! A session waits for master changes, for the drain, and for one or two timers, none of which
//! happens while ten thousand requests pass. Polling those futures at every poll of the session
//! would cost a lock each time. So they are polled once with a waker of their own, which sets a
//! flag before it wakes the task; from then on the pump reads one flag in its own memory, and polls
//! the futures only when the flag is set.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// Wakes a task and remembers that it did.
#[derive(Debug)]
pub(crate) struct WakeFlag {
    woken: AtomicBool,
    task: Waker,
}

/// A flag, and the waker that sets it.
#[derive(Debug)]
pub(crate) struct FlaggedWaker {
    pub(crate) flag: Arc<WakeFlag>,
    pub(crate) waker: Waker,
}

impl FlaggedWaker {
    /// For the task of `task`, set initially so that the futures are polled first.
    pub(crate) fn new(task: &Waker) -> Self {
        let flag = Arc::new(WakeFlag { woken: AtomicBool::new(true), task: task.clone() });
        Self { waker: Waker::from(Arc::clone(&flag)), flag }
    }
}

impl WakeFlag {
    /// Sets it without waking the task.
    pub(crate) fn set(&self) {
        self.woken.store(true, Ordering::Release);
    }

    /// Whether it was set since the last call; clears it. A single load if it was not.
    pub(crate) fn take_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::Acquire)
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}
