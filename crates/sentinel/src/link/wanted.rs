//! What a link is to ask about next.
//!
//! Several services share the connection to a sentinel, and each has its own pace. So whoever rings
//! says for which master, and the link asks about those alone: with fifty services, every service's
//! poll would otherwise ask about all fifty.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A bell with a list beside it. The list is bounded by the number of services.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    bell: Notify,
    names: Mutex<BTreeSet<Arc<str>>>,
}

impl Wanted {
    /// Ask about this master soon.
    pub(crate) fn want(&self, name: &Arc<str>) {
        self.names().insert(Arc::clone(name));
        self.bell.notify_one();
    }

    /// Waits until something is wanted. Safe to drop.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// What is wanted, which then is not any more.
    pub(crate) fn take(&self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut *self.names())
    }

    fn names(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        // Nothing can panic while it is held but an allocation; the list is whole either way.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_wanted_twice_is_asked_once_and_nothing_is_lost_before_the_wait() {
        let (wanted, one, two) = (Wanted::default(), Arc::from("one"), Arc::from("two"));
        wanted.want(&one);
        wanted.want(&two);
        wanted.want(&one);
        wanted.rung().await;
        assert_eq!(wanted.take(), BTreeSet::from([one, two]));
        assert!(wanted.take().is_empty());
    }
}
