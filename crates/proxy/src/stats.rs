//! The counters of the data plane.
//!
//! Each worker has its own counters for each service and is the only thread that writes to them. An
//! atomic with one writer needs no atomic addition: a relaxed load, an addition and a relaxed store
//! are the same instructions as for a plain integer, and a reader finds the current number. So
//! counters need no publication interval, no flush at the end, and no lock. A reader may see one
//! counter newer than another; each by itself only grows.

use std::sync::Arc;

use arc_swap::ArcSwap;
use resp::{Pin, RefusedCommand};

use crate::counter::{Counter, Counters};
use crate::end_reason::{EndReason, PerReason};
use crate::latency::{CommandTimes, Distribution, Histogram};
use crate::limits::Limit;
use crate::maintenance_kind::MaintenanceKind;
use crate::not_carried::NotCarried;
use crate::rejection::Rejection;
use crate::service::DialFailure;
use crate::shared_counters::{SharedCounters, SharedSnapshot};
use crate::target_tls::{TargetTlsCounters, TargetTlsSnapshot};
use crate::tls_listening::TlsFailure;

/// The counters of one worker for one service, on cache lines of their own, so that no two workers
/// write to the same one.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerCounters {
    pub(crate) accepted: Counter,
    pub(crate) refused: Counters<{ Limit::ALL.len() }>,
    pub(crate) rejected: Counters<{ Rejection::ALL.len() }>,
    pub(crate) proxy_headers: Counter,
    pub(crate) accept_errors: Counter,
    pub(crate) handed_over: Counter,
    pub(crate) delayed: Counter,
    pub(crate) closed: Counters<{ EndReason::ALL.len() }>,
    pub(crate) held: Counter,
    pub(crate) released: Counter,
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) bytes_spliced: Counter,
    pub(crate) commands: Counter,
    pub(crate) replies: Counter,
    pub(crate) dials: Counter,
    pub(crate) dial_failures: Counters<{ DialFailure::ALL.len() }>,
    pub(crate) hints: Counter,
    pub(crate) measured: CommandTimes,
    pub(crate) dialled_in: Histogram,
    pub(crate) carried: Counter,
    pub(crate) names_dropped: Counter,
    pub(crate) rebalanced: Counter,
    pub(crate) maintenance_handshakes: Counter,
    pub(crate) not_confirmed: Counter,
    /// By the number of the [`RefusedCommand`](resp::RefusedCommand).
    pub(crate) refused_commands: Counters<{ RefusedCommand::COUNT }>,
    pub(crate) notices: Counters<{ MaintenanceKind::ALL.len() }>,
    /// Sessions that are pinned now, by cause.
    pub(crate) pinned: Counters<{ Pin::COUNT }>,
    pub(crate) not_carried: Counters<{ NotCarried::COUNT }>,
    pub(crate) tls_begun: Counter,
    pub(crate) tls_full: Counter,
    pub(crate) tls_resumed: Counter,
    pub(crate) tls_failures: Counters<{ TlsFailure::ALL.len() }>,
    pub(crate) target_tls: TargetTlsCounters,
    pub(crate) shared: SharedCounters,
}

impl WorkerCounters {
    /// A session that was pinned by `before` is pinned by `now`.
    pub(crate) fn repin(&self, before: Option<Pin>, now: Option<Pin>) {
        if let Some(pin) = before {
            self.pinned.decrement(pin as usize);
        }
        if let Some(pin) = now {
            self.pinned.increment(pin as usize);
        }
    }

    /// Sessions that have begun and not ended.
    fn open(&self) -> u64 {
        // Ends are read before beginnings, so that a session that does both in between is not
        // missing from the open ones.
        let ended = self.closed.sum();
        self.accepted.get().saturating_sub(ended)
    }
}

#[derive(Debug, Default)]
struct ServiceBlocks {
    name: Arc<str>,
    workers: Vec<Arc<WorkerCounters>>,
}

/// Read access to the counters of one service, one set per worker. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ServiceCounters(Arc<ServiceBlocks>);

impl ServiceCounters {
    /// Creates the counters of `workers` workers.
    pub(crate) fn new(name: Arc<str>, workers: usize) -> Self {
        let workers = (0..workers).map(|_| Arc::default()).collect();
        Self(Arc::new(ServiceBlocks { name, workers }))
    }

    /// The name of the service.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The counters of one worker.
    pub(crate) fn of_worker(&self, worker: usize) -> Option<Arc<WorkerCounters>> {
        self.0.workers.get(worker).cloned()
    }

    /// The counters, summed over all workers.
    #[must_use]
    pub fn snapshot(&self) -> ServiceSnapshot {
        let mut snapshot = ServiceSnapshot::default();
        self.0.workers.iter().for_each(|counters| snapshot.add(counters));
        snapshot.open = snapshot.accepted.saturating_sub(snapshot.closed_in_all());
        snapshot
    }
}

/// Read access to every counter, from any thread, at any time. Cheap to clone. Services come and go
/// with reloads.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    services: Arc<ArcSwap<Vec<ServiceCounters>>>,
}

/// The counters of one service since the start of the process, summed over all workers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceSnapshot {
    /// Sessions open now, including those that wait at the gate.
    pub open: u64,
    /// Sessions that wait at the gate now.
    pub held: u64,
    /// Times that a session began to wait at the gate.
    pub waits: u64,
    /// Connections accepted and served.
    pub accepted: u64,
    /// Connections rejected by a limit, by [`Limit`]'s number.
    pub refused: [u64; Limit::ALL.len()],
    /// Connections rejected because of where they came from, by [`Rejection`]'s number.
    pub rejected: [u64; Rejection::ALL.len()],
    /// Headers of the PROXY protocol received.
    pub proxy_headers: u64,
    /// Failed calls of `accept(2)`.
    pub accept_errors: u64,
    /// Connections handed over to a less loaded worker after accept.
    pub handed_over: u64,
    /// New clients that had to wait because their first bytes did not begin a request.
    pub delayed: u64,
    /// Sessions ended, by [`EndReason`]'s number.
    pub closed: PerReason,
    /// Bytes forwarded from clients to the target.
    pub bytes_in: u64,
    /// Bytes forwarded from the target to clients.
    pub bytes_out: u64,
    /// Bytes of both directions that were spliced through a kernel pipe.
    pub bytes_spliced: u64,
    /// Requests forwarded in full, in sessions that are followed (not opaque).
    pub commands: u64,
    /// Replies received in full, in sessions that are followed.
    pub replies: u64,
    /// Connections to the target opened.
    pub dials: u64,
    /// Failed attempts to open one, by [`DialFailure`]'s number.
    pub dial_failures: [u64; DialFailure::ALL.len()],
    /// Hints sent to discovery.
    pub hints: u64,
    /// The duration of commands: a sample, from the first bytes of a request written to the target
    /// to the last byte of its reply read from it. Blocking commands are excluded.
    pub command_time: Distribution,
    /// The time to open a connection to the target, of successful attempts.
    pub dial_time: Distribution,
    /// Times that a session was carried to another connection.
    pub carried: u64,
    /// Of these, those without a name that the server denied its user to set.
    pub names_dropped: u64,
    /// Times that a session was moved to another replica to even the load.
    pub rebalanced: u64,
    /// Maintenance handshakes that were answered in place of the server.
    pub maintenance_handshakes: u64,
    /// Writes whose replies were replaced because too few replicas confirmed them in time.
    pub not_confirmed: u64,
    /// Requests refused because of their command, in the order of [`RefusedCommand::labels`].
    pub refused_commands: [u64; RefusedCommand::COUNT],
    /// Maintenance notifications, by [`MaintenanceKind`]'s number.
    pub notices: [u64; MaintenanceKind::ALL.len()],
    /// Sessions that are pinned to their server now, by [`Pin`]'s number. All other open sessions
    /// would be carried, unless a request is in flight at that moment.
    pub pinned: [u64; Pin::COUNT],
    /// Sessions that lost their server and were closed instead of carried, in the order of
    /// [`NotCarried::all`].
    pub not_carried: [u64; NotCarried::COUNT],
    /// TLS handshakes under way now: the client has sent something.
    pub tls_running: u64,
    /// TLS handshakes completed with a new session.
    pub tls_full: u64,
    /// TLS handshakes completed by resuming an earlier session.
    pub tls_resumed: u64,
    /// TLS handshakes that failed, by [`TlsFailure`]'s number.
    pub tls_failures: [u64; TlsFailure::ALL.len()],
    /// TLS sessions with targets.
    pub target_tls: TargetTlsSnapshot,
    /// Shared upstream connections.
    pub shared: SharedSnapshot,
}

impl ServiceSnapshot {
    /// Sessions that ended for `reason`.
    #[must_use]
    pub fn closed_for(&self, reason: EndReason) -> u64 {
        self.closed.0.get(reason as usize).copied().unwrap_or(0)
    }

    /// Sessions that ended.
    #[must_use]
    pub fn closed_in_all(&self) -> u64 {
        self.closed.0.iter().sum()
    }

    /// Open sessions that are not pinned.
    #[must_use]
    pub fn ordinary(&self) -> u64 {
        self.open.saturating_sub(self.pinned.iter().sum())
    }

    /// Connections rejected.
    #[must_use]
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().chain(&self.rejected).sum()
    }

    fn add(&mut self, counters: &WorkerCounters) {
        // Ends are read before beginnings, so that a session that does both in between is not
        // missing from the open ones.
        counters.closed.add_to(&mut self.closed.0);
        let released = counters.released.get();
        let waits = counters.held.get();
        self.held += waits.saturating_sub(released);
        self.waits += waits;
        self.accepted += counters.accepted.get();
        counters.refused.add_to(&mut self.refused);
        counters.rejected.add_to(&mut self.rejected);
        self.proxy_headers += counters.proxy_headers.get();
        self.accept_errors += counters.accept_errors.get();
        self.handed_over += counters.handed_over.get();
        self.delayed += counters.delayed.get();
        self.bytes_in += counters.bytes_in.get();
        self.bytes_out += counters.bytes_out.get();
        self.bytes_spliced += counters.bytes_spliced.get();
        self.commands += counters.commands.get();
        self.replies += counters.replies.get();
        self.dials += counters.dials.get();
        counters.dial_failures.add_to(&mut self.dial_failures);
        self.hints += counters.hints.get();
        self.command_time.add(&counters.measured.took);
        self.dial_time.add(&counters.dialled_in);
        self.carried += counters.carried.get();
        self.names_dropped += counters.names_dropped.get();
        self.rebalanced += counters.rebalanced.get();
        self.maintenance_handshakes += counters.maintenance_handshakes.get();
        self.not_confirmed += counters.not_confirmed.get();
        counters.refused_commands.add_to(&mut self.refused_commands);
        counters.notices.add_to(&mut self.notices);
        counters.pinned.add_to(&mut self.pinned);
        counters.not_carried.add_to(&mut self.not_carried);
        self.add_tls(counters);
        self.target_tls.add(&counters.target_tls);
        self.shared.add(&counters.shared);
    }

    fn add_tls(&mut self, counters: &WorkerCounters) {
        // Ends before beginnings, as above.
        let (full, resumed) = (counters.tls_full.get(), counters.tls_resumed.get());
        let failed = counters.tls_failures.add_to(&mut self.tls_failures);
        self.tls_full += full;
        self.tls_resumed += resumed;
        self.tls_running += counters.tls_begun.get().saturating_sub(full + resumed + failed);
    }
}

impl Stats {
    /// Adds the counters of a service.
    pub(crate) fn add(&self, counters: ServiceCounters) {
        let mut services = self.services.load().to_vec();
        services.push(counters);
        self.services.store(Arc::new(services));
    }

    /// Removes the counters of a service.
    pub(crate) fn remove(&self, counters: &ServiceCounters) {
        let mut services = self.services.load().to_vec();
        services.retain(|it| !Arc::ptr_eq(&it.0, &counters.0));
        self.services.store(Arc::new(services));
    }

    /// The counters of each service, in the order in which they were added.
    #[must_use]
    pub fn services(&self) -> Vec<ServiceCounters> {
        self.services.load().to_vec()
    }

    /// The current number of sessions per worker, of all services together.
    #[must_use]
    pub fn open_on_workers(&self) -> Vec<u64> {
        let services = self.services.load();
        let workers = services.iter().map(|service| service.0.workers.len()).max().unwrap_or(0);
        let of = |worker| {
            let counters = services.iter().filter_map(|it| it.0.workers.get(worker));
            counters.map(|counters: &Arc<WorkerCounters>| counters.open()).sum()
        };
        (0..workers).map(of).collect()
    }

    /// The counters of the service called `name`.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<ServiceSnapshot> {
        let services = self.services.load();
        services.iter().find(|it| it.name() == name).map(ServiceCounters::snapshot)
    }
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
