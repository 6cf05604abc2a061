//! One bell for everything that happens rarely.
//!
//! A session waits for news of the points and of the drain, and for a timer or two, and none of it
//! happens while ten thousand requests go by. Asking each of those futures at every poll would cost
//! a lock each time. So they are polled once with a waker of their own, which notes that it was
//! rung before it wakes the task; from then on the pump looks at one flag in its own memory, and at
//! the futures only when the flag is up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// Wakes a task and remembers that it did.
#[derive(Debug)]
pub(crate) struct WakeFlag {
    woken: AtomicBool,
    task: Waker,
}

/// A bell, and the waker that rings it.
#[derive(Debug)]
pub(crate) struct FlaggedWaker {
    pub(crate) flag: Arc<WakeFlag>,
    pub(crate) waker: Waker,
}

impl FlaggedWaker {
    /// For the task that `task` wakes; see [`WakeFlag::new`].
    pub(crate) fn new(task: &Waker) -> Self {
        let flag = WakeFlag::new(task);
        Self { waker: Waker::from(Arc::clone(&flag)), flag }
    }
}

impl WakeFlag {
    /// A bell for the task that `task` wakes, rung once already so that what it is for is looked at
    /// first.
    pub(crate) fn new(task: &Waker) -> Arc<Self> {
        Arc::new(Self { woken: AtomicBool::new(true), task: task.clone() })
    }

    /// Whether it was rung since this was last asked. A load, as long as it was not.
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
