//! The target handle of a listener, whichever kind of listener it is.
//!
//! A session asks one question with three answers: a target, wait, or nothing to wait for. A reader
//! cannot reach a master that it must not use, because its source never returns one; no session has
//! to enforce that rule.

use std::sync::Arc;

use crate::pool::{Pool, Selection};
use crate::{Target, TargetReader, TargetRef};

/// Where the sessions of a listener go.
#[derive(Debug, Clone)]
pub enum TargetSource {
    /// To the master.
    Master(Arc<TargetReader>),
    /// To one of the replicas.
    Replicas(Arc<Pool>),
}

impl From<Arc<TargetReader>> for TargetSource {
    fn from(reader: Arc<TargetReader>) -> Self {
        Self::Master(reader)
    }
}

impl From<Arc<Pool>> for TargetSource {
    fn from(pool: Arc<Pool>) -> Self {
        Self::Replicas(pool)
    }
}

impl TargetSource {
    /// A target, if one may be used now.
    #[must_use]
    pub fn usable_target(&self) -> Option<TargetRef> {
        match self.choose() {
            Selection::Use(held) => Some(held),
            Selection::Wait | Selection::Nothing => None,
        }
    }

    /// Waits until a target may be used. Returns `None` immediately if there is nothing to wait
    /// for. Unbounded: the caller brings the deadline. Cancel-safe.
    pub async fn wait_usable(&self) -> Option<TargetRef> {
        loop {
            // Created before the check, so that an opening in between is not lost.
            let changed = self.changed();
            match self.choose() {
                Selection::Use(held) => return Some(held),
                Selection::Nothing => return None,
                Selection::Wait => changed.await,
            }
        }
    }

    /// Returns at the next change: a target published, drained, fenced or removed, a gate closed or
    /// opened, a late renewal of the lease. Create the future, check, then await it, and no change
    /// is lost.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        let (reader, pool) = match self {
            Self::Master(reader) => (Some(reader), None),
            Self::Replicas(pool) => (pool.fallback(), Some(pool)),
        };
        let (reader, pool) =
            (reader.map(|it| it.changed()), pool.map(|it| it.changed_notify().notified()));
        async move {
            match (reader, pool) {
                (Some(reader), Some(pool)) => tokio::select! {
                    () = reader => {}
                    () = pool => {}
                },
                (Some(reader), None) => reader.await,
                (None, Some(pool)) => pool.await,
                (None, None) => std::future::pending().await,
            }
        }
    }

    /// Whether retrying immediately makes sense after a connect to `target` failed: there is an
    /// alternative.
    #[must_use]
    pub fn has_alternative_to(&self, target: &Target) -> bool {
        match self {
            Self::Master(reader) => {
                reader.usable_target().is_none_or(|it| it.generation() != target.generation())
            }
            Self::Replicas(pool) => target.fence().is_raised() || pool.has_undeferred(),
        }
    }

    fn choose(&self) -> Selection {
        match self {
            Self::Master(reader) => reader
                .usable_target()
                .map_or(Selection::Wait, |target| Selection::Use(TargetRef::new(target))),
            Self::Replicas(pool) => pool.choose(),
        }
    }
}
