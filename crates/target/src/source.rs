//! What a session asks for its way, whichever kind of listener it came through.
//!
//! One question with few answers: here is a target, wait, or there is nothing to wait for. That a
//! reader never gets to a master that it must not use follows from whom it asks, and not from a
//! rule that each session has to keep.

use std::sync::Arc;

use crate::pool::{Choice, Pool};
use crate::{Target, TargetReader, TargetRef};

/// Where the sessions of one listener go.
#[derive(Debug, Clone)]
pub enum TargetSource {
    /// To the master.
    Master(Arc<TargetReader>),
    /// To one of the replicas.
    Replicas(Arc<Pool>),
}

impl From<Arc<TargetReader>> for TargetSource {
    fn from(route: Arc<TargetReader>) -> Self {
        Self::Master(route)
    }
}

impl From<Arc<Pool>> for TargetSource {
    fn from(pool: Arc<Pool>) -> Self {
        Self::Replicas(pool)
    }
}

impl TargetSource {
    /// A target, if one may be used right now.
    #[must_use]
    pub fn open_target(&self) -> Option<TargetRef> {
        match self.choose() {
            Choice::TargetRef(ride) => Some(ride),
            Choice::Wait | Choice::Nothing => None,
        }
    }

    /// Waits until a target may be used. `None`, at once, if there is nothing to wait for.
    /// Unbounded: the caller brings the deadline. Safe to drop.
    pub async fn wait_open(&self) -> Option<TargetRef> {
        loop {
            // Created before the look, so that an opening between the look and the wait is not
            // lost.
            let moved = self.moved();
            match self.choose() {
                Choice::TargetRef(ride) => return Some(ride),
                Choice::Nothing => return None,
                Choice::Wait => moved.await,
            }
        }
    }

    /// Returns at the next change: a target published, dismissed, barred or taken away, a gate shut
    /// or opened, a late renewal. Create the future, look, then await it, and no change is lost.
    pub fn moved(&self) -> impl Future<Output = ()> + '_ {
        let (route, pool) = match self {
            Self::Master(route) => (Some(route), None),
            Self::Replicas(pool) => (pool.stand_in(), Some(pool)),
        };
        let (route, pool) = (route.map(|it| it.moved()), pool.map(|it| it.bell().notified()));
        async move {
            match (route, pool) {
                (Some(route), Some(pool)) => tokio::select! {
                    () = route => {}
                    () = pool => {}
                },
                (Some(route), None) => route.await,
                (None, Some(pool)) => pool.await,
                (None, None) => std::future::pending().await,
            }
        }
    }

    /// Whether it is of use to try again at once after `target` could not be reached: there is
    /// something else to try.
    #[must_use]
    pub fn leads_elsewhere(&self, target: &Target) -> bool {
        match self {
            Self::Master(route) => {
                route.open_target().is_none_or(|it| it.generation() != target.generation())
            }
            Self::Replicas(pool) => target.fence().has_fallen() || pool.has_untried(),
        }
    }

    fn choose(&self) -> Choice {
        match self {
            Self::Master(route) => route
                .open_target()
                .map_or(Choice::Wait, |target| Choice::TargetRef(TargetRef::new(target))),
            Self::Replicas(pool) => pool.choose(),
        }
    }
}
