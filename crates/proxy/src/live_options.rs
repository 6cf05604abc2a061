//! The settings of a service while it runs: one writer now and then, many readers at any time.
//!
//! A session reads what it needs when it needs it, so a change holds for every session from its
//! next use of the setting on: a timeout that is running already is not shortened under anybody.
//! What the kernel keeps for a socket (keepalive, user timeout) holds for connections opened after
//! the change.
//!
//! Deliberately absent: which change is allowed.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::options::Options;

/// Settings that can be exchanged. Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct LiveOptions(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    now: ArcSwap<Options>,
    changed: Notify,
}

impl From<Options> for LiveOptions {
    fn from(options: Options) -> Self {
        Self(Arc::new(Inner { now: ArcSwap::from_pointee(options), changed: Notify::new() }))
    }
}

impl LiveOptions {
    /// The settings at this moment.
    #[must_use]
    pub fn now(&self) -> Arc<Options> {
        self.0.now.load_full()
    }

    pub(crate) fn set(&self, options: Options) {
        self.0.now.store(Arc::new(options));
        self.0.changed.notify_waiters();
    }

    /// Wakes on every change that comes after this call, polled or not.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.0.changed.notified()
    }
}
