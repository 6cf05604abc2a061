//! The context of sessions: what they share with other sessions of their service, and of their
//! worker.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use drain::{Drain, Phase};
use resp::RefusedCommand;
use target::Target;
use tls::FaultKind;

use crate::address::ListenerId;
use crate::counter::Counter;
use crate::dial_permits::DialPermits;
use crate::limits::{Limit, Limits, Slots};
use crate::log_rate::LogRate;
use crate::rejection::Rejection;
use crate::runtime::tasks::visits;
use crate::service::{Hint, Service};
use crate::silent_clients::SilentClients;
use crate::stats::WorkerCounters;

/// The state of a service that all workers share.
#[derive(Debug)]
pub(crate) struct ServiceContext {
    pub(crate) service: Arc<Service>,
    pub(crate) limits: Arc<Limits>,
    /// Places of connections whose PROXY protocol header has not arrived.
    pub(crate) awaiting_header: Arc<Slots>,
    pub(crate) logs: ServiceLogs,
}

/// The lines of one service about what its peers do, by their kinds.
#[derive(Debug, Default)]
pub(crate) struct ServiceLogs {
    pub(crate) rejections: LogRate<{ Rejection::ALL.len() }>,
    pub(crate) limits: LogRate<{ Limit::ALL.len() }>,
    pub(crate) refused_commands: LogRate<{ RefusedCommand::COUNT }>,
    pub(crate) evicted_handshakes: LogRate<1>,
    pub(crate) target_tls: LogRate<{ FaultKind::COUNT }>,
    /// Sessions that a server refuses: most of them, if it refuses one.
    pub(crate) refused_replays: LogRate<1>,
    pub(crate) limited_clients: LogRate<1>,
}

/// The state of one listening address that all workers share. It is a group of the drain, so that
/// it can be closed with its sessions while other addresses serve.
#[derive(Debug)]
pub(crate) struct ListenerContext {
    pub(crate) id: ListenerId,
    pub(crate) drain: Drain,
    /// Its clients speak TLS.
    pub(crate) tls: bool,
    /// The number of the drain, for the pushes that announce it.
    pub(crate) moving: OnceLock<u64>,
    /// Another service accepts on these sockets now: their queues are left to it.
    /// Set before the drain begins.
    pub(crate) moved: AtomicBool,
}

impl ListenerContext {
    /// `drain` is that of the process.
    pub(crate) fn new(id: ListenerId, drain: &Drain, tls: bool) -> Arc<Self> {
        let (drain, moving) = (drain.group(), OnceLock::new());
        Arc::new(Self { id, drain, tls, moving, moved: AtomicBool::new(false) })
    }
}

/// The state of a listening address on one worker: the parts shared with other workers and with
/// other addresses of the service, and its own.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    pub(crate) shared: Arc<ServiceContext>,
    pub(crate) counters: Arc<WorkerCounters>,
    pub(crate) listener: Arc<ListenerContext>,
    /// The number of events that sessions were notified of, on their worker's thread: master
    /// changes, reloads of options, the beginning of the drain, and when it cuts and stops. One
    /// that [rests](crate::session::rest) compares it.
    pub(crate) events: Counter,
    /// The permits of the service's sessions on this worker to connect to a target.
    pub(crate) dial_permits: Arc<DialPermits>,
    /// How many of its recent clients sent nothing.
    pub(crate) silent_clients: SilentClients,
}

impl WorkerContext {
    /// Reports to discovery what a session has noticed about its target.
    pub(crate) fn hint(&self, target: &Target, hint: Hint) {
        self.counters.hints.increment();
        self.shared.service.hints.hint(target, hint);
    }

    /// Forwards events to the sessions. The futures for all kinds of events are created before the
    /// sessions are notified, and a session creates its future, or its flag, before it checks. So
    /// no event is lost in either step. Ends with the drain.
    pub(crate) async fn forward_events(self: Arc<Self>) {
        let Self { shared, listener, dial_permits, .. } = &*self;
        let route = &shared.service.route;
        let mut next = Phase::Draining;
        loop {
            let target_changed = route.changed();
            let options_changed = shared.service.options.changed();
            self.notify_sessions();
            tokio::select! {
                () = target_changed => dial_permits.reset(),
                () = options_changed => {}
                () = listener.drain.reached(next) => match next {
                    Phase::Draining => next = Phase::Cutting,
                    Phase::Cutting => next = Phase::Stopped,
                    _ => return self.notify_sessions(),
                },
            }
        }
    }

    fn notify_sessions(&self) {
        self.events.increment();
        visits::wake(self.listener.id.group());
    }
}
