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

use crate::counter::{Counted, Counter, Counters, counted};
use crate::end_reason::EndReason;
use crate::latency::{CommandTimes, Distribution, Histogram};
use crate::limits::Limit;
use crate::maintenance_kind::MaintenanceKind;
use crate::not_carried::NotCarried;
use crate::rejection::Rejection;
use crate::service::DialFailure;
use crate::shared_counters::{SharedCounters, SharedSnapshot};
use crate::target_tls::{TargetTlsCounters, TargetTlsSnapshot};
use crate::tls_listening::TlsFailure;

counted! {
    /// The counters of one worker for one service, on cache lines of their own, so that no two
    /// workers write to the same one.
    #[repr(align(128))]
    pub(crate) struct WorkerCounters;

    /// The counters of one service since the start of the process, summed over all workers.
    pub struct ServiceSnapshot {
        /// Sessions ended, by [`EndReason`]'s number.
        closed: Counters<{ EndReason::ALL.len() }> => Vec<u64>,
        /// Sessions that wait at the gate now.
        held: Counter => u64,
        /// Times that a session began to wait at the gate.
        waits: Counter => u64,
        /// Connections accepted and served.
        accepted: Counter => u64,
        /// Connections rejected by a limit, by [`Limit`]'s number.
        refused: Counters<{ Limit::ALL.len() }> => [u64; Limit::ALL.len()],
        /// Connections rejected because of where they came from, by [`Rejection`]'s number.
        rejected: Counters<{ Rejection::ALL.len() }> => [u64; Rejection::ALL.len()],
        /// Headers of the PROXY protocol received.
        proxy_headers: Counter => u64,
        /// Failed calls of `accept(2)`.
        accept_errors: Counter => u64,
        /// Connections handed over to a less loaded worker after accept.
        handed_over: Counter => u64,
        /// New clients that had to wait because their first bytes did not begin a request.
        delayed: Counter => u64,
        /// Bytes forwarded from clients to the target.
        bytes_in: Counter => u64,
        /// Bytes forwarded from the target to clients.
        bytes_out: Counter => u64,
        /// Bytes of both directions that were spliced through a kernel pipe.
        bytes_spliced: Counter => u64,
        /// Requests forwarded in full, in sessions that are followed (not opaque).
        commands: Counter => u64,
        /// Replies received in full, in sessions that are followed.
        replies: Counter => u64,
        /// Connections to the target opened.
        dials: Counter => u64,
        /// Failed attempts to open one, by [`DialFailure`]'s number.
        dial_failures: Counters<{ DialFailure::ALL.len() }> => [u64; DialFailure::ALL.len()],
        /// Hints sent to discovery.
        hints: Counter => u64,
        /// The duration of commands: a sample, from the first bytes of a request written to the
        /// target to the last byte of its reply read from it. Blocking commands are excluded.
        command_time: CommandTimes => Distribution,
        /// The time to open a connection to the target, of successful attempts.
        dial_time: Histogram => Distribution,
        /// Times that a session was carried to another connection.
        carried: Counter => u64,
        /// Of these, those without a name that the server denied its user to set.
        names_dropped: Counter => u64,
        /// Times that a session was moved to another replica to even the load.
        rebalanced: Counter => u64,
        /// Maintenance handshakes that were answered in place of the server.
        maintenance_handshakes: Counter => u64,
        /// Writes whose replies were replaced because too few replicas confirmed them in time.
        not_confirmed: Counter => u64,
        /// Requests refused because of their command, in the order of [`RefusedCommand::labels`].
        refused_commands: Counters<{ RefusedCommand::COUNT }> => [u64; RefusedCommand::COUNT],
        /// Maintenance notifications, by [`MaintenanceKind`]'s number.
        notices: Counters<{ MaintenanceKind::ALL.len() }> => [u64; MaintenanceKind::ALL.len()],
        /// Sessions that are pinned to their server now, by [`Pin`]'s number. All other open
        /// sessions would be carried, unless a request is in flight at that moment.
        pinned: Counters<{ Pin::COUNT }> => [u64; Pin::COUNT],
        /// Sessions that lost their server and were closed instead of carried, in the order of
        /// [`NotCarried::all`].
        not_carried: Counters<{ NotCarried::COUNT }> => [u64; NotCarried::COUNT],
        /// TLS handshakes completed with a new session.
        tls_full: Counter => u64,
        /// TLS handshakes completed by resuming an earlier session.
        tls_resumed: Counter => u64,
        /// TLS handshakes that failed, by [`TlsFailure`]'s number.
        tls_failures: Counters<{ TlsFailure::ALL.len() }> => [u64; TlsFailure::ALL.len()],
        /// TLS handshakes under way now: the client has sent something.
        tls_running: Counter => u64,
        /// TLS sessions with targets.
        target_tls: TargetTlsCounters => TargetTlsSnapshot,
        /// Shared upstream connections.
        shared: SharedCounters => SharedSnapshot,
    }
}

impl WorkerCounters {
    /// The worker's clock, in microseconds.
    pub(crate) fn elapsed(&self) -> u64 {
        self.command_time.elapsed()
    }

    /// A session begins to wait at the gate, or no longer waits.
    pub(crate) fn count_held(&self, begins: bool) {
        if begins {
            self.waits.increment();
            self.held.increment();
        } else {
            self.held.decrement();
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

/// Read access to the counters of one service, one set per worker. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ServiceCounters {
    name: Arc<str>,
    workers: Arc<[Arc<WorkerCounters>]>,
}

impl ServiceCounters {
    /// Creates the counters of `workers` workers.
    pub(crate) fn new(name: Arc<str>, workers: usize) -> Self {
        Self { name, workers: (0..workers).map(|_| Arc::default()).collect() }
    }

    /// The name of the service.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The counters of one worker.
    pub(crate) fn of_worker(&self, worker: usize) -> Option<Arc<WorkerCounters>> {
        self.workers.get(worker).cloned()
    }

    /// The counters, summed over all workers.
    #[must_use]
    pub fn snapshot(&self) -> ServiceSnapshot {
        let mut snapshot = ServiceSnapshot::default();
        self.workers.iter().for_each(|counters| counters.add_to(&mut snapshot));
        snapshot
    }
}

/// Read access to every counter, from any thread, at any time. Cheap to clone. Services come and go
/// with reloads.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    services: Arc<ArcSwap<Vec<ServiceCounters>>>,
}

impl ServiceSnapshot {
    /// Sessions that ended for `reason`.
    #[must_use]
    pub fn closed_for(&self, reason: EndReason) -> u64 {
        self.closed.get(reason as usize).copied().unwrap_or(0)
    }

    /// Sessions that ended.
    #[must_use]
    pub fn closed_in_all(&self) -> u64 {
        self.closed.iter().sum()
    }

    /// Sessions open now, including those that wait at the gate.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.accepted.saturating_sub(self.closed_in_all())
    }

    /// Open sessions that are not pinned.
    #[must_use]
    pub fn ordinary(&self) -> u64 {
        self.open().saturating_sub(self.pinned.iter().sum())
    }

    /// Connections rejected.
    #[must_use]
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().chain(&self.rejected).sum()
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
        services.retain(|it| !Arc::ptr_eq(&it.workers, &counters.workers));
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
        let workers = services.iter().map(|service| service.workers.len()).max().unwrap_or(0);
        let of = |worker| {
            let counters = services.iter().filter_map(|it| it.workers.get(worker));
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
