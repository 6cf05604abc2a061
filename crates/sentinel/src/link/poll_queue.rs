//! The queue of polls requested of a link.
//!
//! Several services share the link to a sentinel, and each polls at its own interval. A request
//! names the master, and the link polls only the requested masters: with fifty services, every
//! service's poll would otherwise cover all fifty.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A set of masters with a notification. Bounded by the number of services.
#[derive(Debug, Default)]
pub(crate) struct PollQueue {
    notify: Notify,
    names: Mutex<BTreeSet<Arc<str>>>,
}

impl PollQueue {
    /// Requests a poll about this master.
    pub(crate) fn request(&self, name: &Arc<str>) {
        self.names().insert(Arc::clone(name));
        self.notify.notify_one();
    }

    /// Waits until a poll is requested. Cancel-safe.
    pub(crate) async fn requested(&self) {
        self.notify.notified().await;
    }

    /// Takes all requested masters.
    pub(crate) fn take(&self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut *self.names())
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        // Only an allocation can panic while it is held; the set is consistent either way.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn merges_requests_and_keeps_those_before_wait() {
        let (queue, one, two) = (PollQueue::default(), Arc::from("one"), Arc::from("two"));
        queue.request(&one);
        queue.request(&two);
        queue.request(&one);
        queue.requested().await;
        assert_eq!(queue.take(), BTreeSet::from([one, two]));
        assert!(queue.take().is_empty());
    }
}
