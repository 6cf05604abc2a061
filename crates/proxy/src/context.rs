//! What the sessions of one service on one worker have in common.

use std::sync::{Arc, OnceLock};

use drain::{Drain, Phase};
use tokio::sync::Notify;

use crate::limits::{Limits, Slots};
use crate::service::Service;
use crate::session::dial_permits::DialPermits;
use crate::stats::WorkerCounters;

/// What a worker needs to know of a service.
#[derive(Debug)]
pub(crate) struct ServiceContext {
    pub(crate) service: Arc<Service>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) held: Arc<Slots>,
    /// The number of the one drain there can be, for the pushes that tell of it.
    pub(crate) moving: OnceLock<u64>,
}

/// What one worker has of one service: what it shares with the others, and its own counters.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    pub(crate) shared: Arc<ServiceContext>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) drain: Drain,
    /// Rung for the sessions of this seat when the points have moved, and when a drain asks and
    /// when it cuts. Each session waits in this one list instead of one for each kind of news, and
    /// no list is shared between workers.
    pub(crate) session_notify: Notify,
    /// Who of its sessions may be on the way to a target.
    pub(crate) dial_permits: DialPermits,
}

impl WorkerContext {
    /// Passes the news on. Each kind of news has a future that is created before the bell rings,
    /// and whoever waits for the bell creates his before he looks: so no news is lost on either
    /// step.
    pub(crate) async fn forward_news(self: Arc<Self>) {
        let Self { shared, drain, session_notify, dial_permits, .. } = &*self;
        let route = &shared.service.route;
        let mut next = Phase::Draining;
        loop {
            let moved = route.changed();
            let tuned = shared.service.options.changed();
            session_notify.notify_waiters();
            tokio::select! {
                () = moved => dial_permits.start_again(),
                () = tuned => {}
                () = drain.reached(next), if next <= Phase::Cutting => {
                    next = if next == Phase::Draining { Phase::Cutting } else { Phase::Stopped };
                }
            }
        }
    }
}
