//! What commands of operators have changed on the servers of a service and not undone yet: for
//! reports, and so that a process that stops waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::PriorityChange;
use crate::clock;

/// Interval of checks while a process that stops waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The state of operators' commands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationsSnapshot {
    /// The nodes whose `replica-priority` is not what it was, or may not be.
    pub changed_priorities: Vec<PriorityChange>,
}

/// The state of operators' commands for one service, shared by its handles.
#[derive(Debug, Clone, Default)]
pub(crate) struct Operations {
    state: Arc<Mutex<OperationsSnapshot>>,
    stopping: Arc<AtomicBool>,
    service_removed: Arc<AtomicBool>,
}

impl Operations {
    fn state(&self) -> MutexGuard<'_, OperationsSnapshot> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> OperationsSnapshot {
        self.state().clone()
    }

    pub(crate) fn add_changed_priority(&self, change: PriorityChange) {
        self.state().changed_priorities.push(change);
    }

    pub(crate) fn remove_changed_priority(&self, change: &PriorityChange) {
        self.state().changed_priorities.retain(|it| it != change);
    }

    /// The process stops. From now on no operation may begin, and those that can be revoked end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// The same for as long as the service is removed; `false` if it is configured again.
    pub(crate) fn set_service_removed(&self, is_removed: bool) {
        self.service_removed.store(is_removed, Ordering::Release);
    }

    /// Whether no operation may begin.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_process_stopping() || self.service_removed.load(Ordering::Acquire)
    }

    /// Whether the whole process stops.
    pub(crate) fn is_process_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Completes when the process stops or the service is removed.
    pub(crate) async fn stopped(&self) {
        while !self.is_stopping() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Waits until everything is undone, at most for `limit`. Whether it is.
    pub(crate) async fn wait_undone(&self, limit: Duration, is_busy: impl Fn() -> bool) -> bool {
        let since = clock::now();
        loop {
            if !is_busy() && self.snapshot() == OperationsSnapshot::default() {
                return true;
            }
            if clock::since(since) >= limit {
                return false;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}
