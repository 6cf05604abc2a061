//! The context of sessions: what they share with other sessions of their service, and of their
//! worker.

use std::sync::{Arc, OnceLock};

use drain::{Drain, Phase};
use tokio::sync::Notify;

use crate::dial_permits::DialPermits;
use crate::limits::{Limits, Slots};
use crate::service::Service;
use crate::stats::WorkerCounters;

/// The state of a service that all workers share.
#[derive(Debug)]
pub(crate) struct ServiceContext {
    pub(crate) service: Arc<Service>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) held: Arc<Slots>,
    /// The number of the process's drain, for the pushes that announce it.
    pub(crate) moving: OnceLock<u64>,
}

/// The state of a service on one worker: the part shared with other workers, and its own counters.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    pub(crate) shared: Arc<ServiceContext>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) drain: Drain,
    /// Notified after a master change, when the drain begins, and when it cuts. Each session waits
    /// on this one list instead of one per kind of event, and no list is shared between workers.
    pub(crate) session_notify: Notify,
    /// The permits of its sessions to connect to a target.
    pub(crate) dial_permits: DialPermits,
}

impl WorkerContext {
    /// Forwards events to the sessions. The futures for all kinds of events are created before the
    /// sessions are notified, and a session creates its future before it checks. So no event is
    /// lost in either step.
    pub(crate) async fn forward_events(self: Arc<Self>) {
        let Self { shared, drain, session_notify, dial_permits, .. } = &*self;
        let route = &shared.service.route;
        let mut next = Phase::Draining;
        loop {
            let target_changed = route.changed();
            let options_changed = shared.service.options.changed();
            session_notify.notify_waiters();
            tokio::select! {
                () = target_changed => dial_permits.reset(),
                () = options_changed => {}
                () = drain.reached(next), if next <= Phase::Cutting => {
                    next = if next == Phase::Draining { Phase::Cutting } else { Phase::Stopped };
                }
            }
        }
    }
}
