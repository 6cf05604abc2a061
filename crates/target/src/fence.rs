//! A barrier that falls once.
//!
//! It is part of the target a session loaded, not a list entry somewhere: whoever holds the target
//! can see the fence, and whoever waits on it is woken when it falls. A plain atomic beside the
//! bell keeps the look on the hot path at one load.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Falls once and never rises again. While it stands, bytes may be sent to the target it belongs
/// to.
#[derive(Debug, Default)]
pub struct Fence {
    fallen: AtomicBool,
    bell: Notify,
}

impl Fence {
    /// Whether the fence has fallen: one atomic load, made to be asked before every write.
    #[must_use]
    pub fn has_fallen(&self) -> bool {
        self.fallen.load(Ordering::Acquire)
    }

    /// Returns once the fence has fallen; at once if it already has. Safe to drop and to call
    /// again.
    pub async fn fallen(&self) {
        // The future takes part in `notify_waiters` from its creation on, so looking after creating
        // it leaves no gap.
        let bell = self.bell.notified();
        if self.has_fallen() {
            return;
        }
        bell.await;
    }

    /// Lets the fence fall and wakes everyone who waits for it. Only the one writer of the route
    /// may do so.
    pub(crate) fn fall(&self) {
        self.fallen.store(true, Ordering::Release);
        self.bell.notify_waiters();
    }
}
