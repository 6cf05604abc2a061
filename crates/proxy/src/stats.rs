//! The counters of the data plane.
//!
//! Each worker has a block of its own for each service, and is the only one that writes to it. An
//! atomic with one writer needs no atomic addition: a relaxed load, an addition and a relaxed store
//! are the same instructions as for a plain integer, and whoever reads finds the present number. So
//! there is no interval at which counters are published, nothing to flush at the end, and no lock
//! anywhere. A reader may see one counter newer than another; each by itself only grows.
//!
//! Deliberately absent: names of metrics and their format, which are the composition root's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use resp::Pin;

use crate::latency::{CommandTimes, Distribution, Histogram};
use crate::limits::Limit;
use crate::maintenance::notice::MaintenanceKind;
use crate::service::DialFailure;
use crate::session::end_reason::EndReason;
use crate::session::not_carried::NotCarried;

/// A number with one writer.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds without an atomic read-modify-write. Only the owning worker may call it.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn increment(&self) {
        self.add(1);
    }

    /// Takes one back, of a number that goes up and down.
    pub(crate) fn decrement(&self) {
        self.add(u64::MAX);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one worker counts for one service. Apart in the processor's caches, so that no worker
/// writes where another does.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerCounters {
    pub(crate) accepted: Counter,
    pub(crate) refused: [Counter; Limit::ALL.len()],
    pub(crate) accept_errors: Counter,
    pub(crate) handed_over: Counter,
    pub(crate) closed: [Counter; EndReason::COUNT],
    pub(crate) held: Counter,
    pub(crate) released: Counter,
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) bytes_spliced: Counter,
    pub(crate) commands: Counter,
    pub(crate) replies: Counter,
    pub(crate) dials: Counter,
    pub(crate) dial_failures: [Counter; DialFailure::ALL.len()],
    pub(crate) hints: Counter,
    pub(crate) measured: CommandTimes,
    pub(crate) dialled_in: Histogram,
    pub(crate) carried: Counter,
    pub(crate) rebalanced: Counter,
    pub(crate) maintenance_handshakes: Counter,
    pub(crate) notices: [Counter; MaintenanceKind::ALL.len()],
    /// Sessions that are pinned now, by what.
    pub(crate) pinned: [Counter; Pin::COUNT],
    pub(crate) not_carried: [Counter; NotCarried::COUNT],
}

#[cfg(test)]
impl WorkerCounters {
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.get()
    }

    pub(crate) fn accept_errors(&self) -> u64 {
        self.accept_errors.get()
    }
}

impl WorkerCounters {
    pub(crate) fn close(&self, reason: EndReason) {
        if let Some(count) = self.closed.get(reason as usize) {
            count.increment();
        }
    }

    pub(crate) fn count_notification(&self, kind: MaintenanceKind) {
        if let Some(count) = self.notices.get(kind as usize) {
            count.increment();
        }
    }

    /// A session's pin is another one now.
    pub(crate) fn repin(&self, before: Option<Pin>, now: Option<Pin>) {
        let count = |pin: Option<Pin>| pin.and_then(|pin| self.pinned.get(pin as usize));
        if let Some(count) = count(before) {
            count.decrement();
        }
        if let Some(count) = count(now) {
            count.increment();
        }
    }

    pub(crate) fn count_not_carried(&self, why: NotCarried) {
        if let Some(count) = self.not_carried.get(why.number()) {
            count.increment();
        }
    }

    pub(crate) fn refuse(&self, limit: Limit) {
        if let Some(count) = self.refused.get(limit as usize) {
            count.increment();
        }
    }

    pub(crate) fn dial_failed(&self, failure: DialFailure) {
        if let Some(count) = self.dial_failures.get(failure as usize) {
            count.increment();
        }
    }
}

/// One service's blocks, one a worker.
#[derive(Debug)]
struct ServiceBlocks {
    name: Arc<str>,
    workers: Vec<Arc<WorkerCounters>>,
}

/// Read access to every counter, from any thread, at any time. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Stats {
    services: Arc<[ServiceBlocks]>,
}

/// The counters of one service since the start of the process, all workers together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceSnapshot {
    /// Sessions open now, the held ones included.
    pub open: u64,
    /// Sessions that wait at the gate now.
    pub held: u64,
    /// Times a session began to wait at the gate.
    pub waits: u64,
    /// Connections accepted and served.
    pub accepted: u64,
    /// Connections refused because a limit was reached, by [`Limit`]'s number.
    pub refused: [u64; Limit::ALL.len()],
    /// Failures of `accept(2)`.
    pub accept_errors: u64,
    /// Connections that the worker that accepted them gave to an emptier one.
    pub handed_over: u64,
    /// Sessions ended, by [`EndReason`]'s number.
    pub closed: [u64; EndReason::COUNT],
    /// Bytes forwarded from clients to the target.
    pub bytes_in: u64,
    /// Bytes forwarded from the target to clients.
    pub bytes_out: u64,
    /// Bytes of both that went through a pipe of the kernel and not through this process.
    pub bytes_spliced: u64,
    /// Requests forwarded whole, in sessions that are followed (not opaque).
    pub commands: u64,
    /// Replies received whole, in sessions that are followed.
    pub replies: u64,
    /// Connections to the target opened.
    pub dials: u64,
    /// Attempts that failed, by [`DialFailure`]'s number.
    pub dial_failures: [u64; DialFailure::ALL.len()],
    /// Hints given.
    pub hints: u64,
    /// How long commands took: a sample, from the first bytes of a request written to the target to
    /// the last byte of its reply read from it. Commands that wait by their nature are left out.
    pub command_time: Distribution,
    /// How long it took to open a connection to the target, where that succeeded.
    pub dial_time: Distribution,
    /// Times that a session was carried over to another connection.
    pub carried: u64,
    /// Times that a session was moved to another replica to make shares equal.
    pub rebalanced: u64,
    /// Handshakes about maintenance that were answered in the server's place.
    pub maintenance_handshakes: u64,
    /// Pushes about maintenance, by [`MaintenanceKind`]'s number.
    pub notices: [u64; MaintenanceKind::ALL.len()],
    /// Sessions that are pinned to their server now, by [`Pin`]'s number. All other open ones would
    /// be carried over, unless a request is in flight at that moment.
    pub pinned: [u64; Pin::COUNT],
    /// Sessions that lost their server and were closed instead of carried over, in the order of
    /// [`NotCarried::all`].
    pub not_carried: [u64; NotCarried::COUNT],
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

    /// Sessions open now that nothing pins to their server.
    #[must_use]
    pub fn ordinary(&self) -> u64 {
        self.open.saturating_sub(self.pinned.iter().sum())
    }

    /// Connections refused.
    #[must_use]
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().sum()
    }

    fn add(&mut self, counters: &WorkerCounters) {
        // What ends is read before what begins, so that a session that does both meanwhile is not
        // missed from the open ones.
        for (sum, count) in self.closed.iter_mut().zip(&counters.closed) {
            *sum += count.get();
        }
        let released = counters.released.get();
        let waits = counters.held.get();
        self.held += waits.saturating_sub(released);
        self.waits += waits;
        self.accepted += counters.accepted.get();
        for (sum, count) in self.refused.iter_mut().zip(&counters.refused) {
            *sum += count.get();
        }
        self.accept_errors += counters.accept_errors.get();
        self.handed_over += counters.handed_over.get();
        self.bytes_in += counters.bytes_in.get();
        self.bytes_out += counters.bytes_out.get();
        self.bytes_spliced += counters.bytes_spliced.get();
        self.commands += counters.commands.get();
        self.replies += counters.replies.get();
        self.dials += counters.dials.get();
        for (sum, count) in self.dial_failures.iter_mut().zip(&counters.dial_failures) {
            *sum += count.get();
        }
        self.hints += counters.hints.get();
        self.command_time.add(&counters.measured.took);
        self.dial_time.add(&counters.dialled_in);
        self.carried += counters.carried.get();
        self.rebalanced += counters.rebalanced.get();
        self.maintenance_handshakes += counters.maintenance_handshakes.get();
        for (sum, count) in self.notices.iter_mut().zip(&counters.notices) {
            *sum += count.get();
        }
        for (sum, count) in self.pinned.iter_mut().zip(&counters.pinned) {
            *sum += count.get();
        }
        for (sum, count) in self.not_carried.iter_mut().zip(&counters.not_carried) {
            *sum += count.get();
        }
    }
}

impl Stats {
    /// Blocks for `workers` workers and the named services.
    pub(crate) fn new(workers: usize, names: impl IntoIterator<Item = Arc<str>>) -> Self {
        let service =
            |name| ServiceBlocks { name, workers: (0..workers).map(|_| Arc::default()).collect() };
        Self { services: names.into_iter().map(service).collect() }
    }

    /// The block of one worker for one service. `None` if there is no such.
    pub(crate) fn counters(&self, service: usize, worker: usize) -> Option<Arc<WorkerCounters>> {
        self.services.get(service)?.workers.get(worker).cloned()
    }

    /// Each service with its counters, in the order they were given to `Bound::bind`.
    pub fn services(&self) -> impl Iterator<Item = (&str, ServiceSnapshot)> {
        self.services.iter().map(|service| {
            let mut snapshot = ServiceSnapshot::default();
            service.workers.iter().for_each(|counters| snapshot.add(counters));
            snapshot.open = snapshot.accepted.saturating_sub(snapshot.closed_in_all());
            (&*service.name, snapshot)
        })
    }

    /// How many sessions of the service called `name` each worker has.
    #[cfg(test)]
    pub(crate) fn open_by_worker(&self, name: &str) -> Vec<u64> {
        let service = self.services.iter().filter(|service| &*service.name == name);
        let ended = |counters: &WorkerCounters| counters.closed.iter().map(Counter::get).sum();
        service
            .flat_map(|it| &it.workers)
            .map(|counters| counters.accepted.get().saturating_sub(ended(counters)))
            .collect()
    }

    /// How many sessions each worker has now, those of all services together.
    #[must_use]
    pub fn open_on_workers(&self) -> Vec<u64> {
        let workers = self.services.iter().map(|service| service.workers.len()).max().unwrap_or(0);
        let open = |counters: &Arc<WorkerCounters>| {
            // In this order, as in `ServiceSnapshot::add`.
            let ended: u64 = counters.closed.iter().map(Counter::get).sum();
            counters.accepted.get().saturating_sub(ended)
        };
        let of =
            |worker| self.services.iter().filter_map(|it| it.workers.get(worker)).map(open).sum();
        (0..workers).map(of).collect()
    }

    /// The counters of the service called `name`.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<ServiceSnapshot> {
        self.services().find(|(it, _)| *it == name).map(|(_, snapshot)| snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_of_a_service_are_summed_and_services_kept_apart() {
        let stats = Stats::new(2, [Arc::from("a"), Arc::from("b")]);
        for worker in 0..2 {
            let counters = stats.counters(0, worker).unwrap();
            counters.accepted.add(2);
            counters.close(EndReason::Fenced);
            counters.bytes_in.add(10);
        }
        stats.counters(1, 0).unwrap().dial_failed(DialFailure::Unreachable);
        let (a, b) = (stats.service("a").unwrap(), stats.service("b").unwrap());
        assert_eq!(
            (a.accepted, a.open, a.closed_for(EndReason::Fenced), a.bytes_in),
            (4, 2, 2, 20)
        );
        assert_eq!(b.dial_failures, [0, 0, 1, 0, 0, 0]);
        assert_eq!((b.accepted, b.open), (0, 0));
        stats.counters(1, 1).unwrap().accepted.add(5);
        assert_eq!(stats.open_on_workers(), [1, 6]);
        assert_eq!((stats.counters(2, 0).is_none(), stats.counters(0, 2).is_none()), (true, true));
    }
}
