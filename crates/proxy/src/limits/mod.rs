//! Limits on sessions: per service, per process, per source, waiting at a gate, and waiting for
//! their clients in a TLS handshake.
//!
//! A slot is taken when a connection is accepted and released when its guard is dropped, so no way
//! of ending a session can leak it. The counts are shared by all workers, since a limit per worker
//! would reject clients while another worker has capacity.
//!
//! In addition there is [`ResourceShortage`]. The part of the process that watches its memory sets
//! the flag before the kernel would kill the process, and while it is set, no new clients are
//! admitted. The counts rely on an assumption about the memory of a session; the flag also works
//! when the assumption fails. It also has the number of sessions that the limit on open files
//! permits, which may change while the process runs.

pub(crate) mod handshakes;
mod sources;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::labelled::labelled;
use crate::limits::handshakes::{WaitingHandshake, WaitingHandshakes};
use crate::limits::sources::{ClientSource, SourceTable};

/// The number of pipes that each worker may use for splicing, as the limit on open files permits.
pub(crate) static PIPES_PER_WORKER: AtomicUsize = AtomicUsize::new(usize::MAX);

labelled! {
    /// Why a client was rejected.
    pub enum Limit {
        /// The service has reached its maximum number of sessions.
        Service = "service",
        /// The process has reached its maximum number of sessions.
        Process = "process",
        /// The client's source has reached its maximum number of sessions.
        Source = "source",
        /// Memory is low.
        Memory = "memory",
        /// The open files permit no more sessions; each needs two.
        Files = "files",
    }
}

/// A limited number of slots.
#[derive(Debug)]
pub(crate) struct Slots {
    taken: AtomicUsize,
    limit: AtomicUsize,
}

impl Slots {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), limit: AtomicUsize::new(limit) })
    }

    /// Takes a slot, if one is free.
    pub(crate) fn take(self: &Arc<Self>) -> Option<SlotGuard> {
        self.try_acquire().then(|| SlotGuard(Arc::clone(self)))
    }

    fn try_acquire(&self) -> bool {
        // Adding first and checking then never admits one too many; at worst, two simultaneous
        // attempts for the last slot both fail.
        if self.taken.fetch_add(1, Ordering::Relaxed) < self.limit() {
            return true;
        }
        self.release();
        false
    }

    fn release(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of slots.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the number of slots. Slots that are taken stay taken, even if there are fewer now.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The number of slots that are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// The number of slots that are free, if there are at most `limit`.
    fn free_within(&self, limit: usize) -> usize {
        self.limit().min(limit).saturating_sub(self.taken())
    }
}

/// A slot, released when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct SlotGuard(Arc<Slots>);

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// The resources that the process is short of. Cheap to clone; one for the whole process.
#[derive(Debug, Clone)]
pub struct ResourceShortage {
    memory: Arc<AtomicBool>,
    files: Arc<AtomicUsize>,
}

impl Default for ResourceShortage {
    fn default() -> Self {
        Self { memory: Arc::default(), files: Arc::new(AtomicUsize::new(usize::MAX)) }
    }
}

impl ResourceShortage {
    /// Sets whether memory is low.
    pub fn set(&self, scarce: bool) {
        self.memory.store(scarce, Ordering::Relaxed);
    }

    /// Whether memory is low.
    #[must_use]
    pub fn is_memory_low(&self) -> bool {
        self.memory.load(Ordering::Relaxed)
    }

    /// Sets how many sessions the open files permit, and how many pipes per worker in addition.
    pub fn set_files(&self, sessions: usize, pipes: usize) {
        self.files.store(sessions, Ordering::Relaxed);
        PIPES_PER_WORKER.store(pipes, Ordering::Relaxed);
    }

    /// How many sessions the open files permit; unlimited until set.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.load(Ordering::Relaxed)
    }
}

/// The limits that apply to the clients of one service.
#[derive(Debug)]
pub(crate) struct Limits {
    service: Arc<Slots>,
    total: Arc<Slots>,
    sources: SourceTable,
    shortage: ResourceShortage,
    pub(crate) handshakes: WaitingHandshakes,
}

impl Limits {
    /// `per_source` is the maximum number of sessions per source, 0 for no limit.
    pub(crate) fn new(
        service: usize,
        per_source: usize,
        total: Arc<Slots>,
        shortage: ResourceShortage,
    ) -> Arc<Self> {
        let sources = SourceTable::new(per_source);
        let (service, handshakes) = (Slots::new(service), WaitingHandshakes::default());
        Arc::new(Self { service, total, sources, shortage, handshakes })
    }

    /// Changes the maximum number of sessions of the service, and that of each source.
    pub(crate) fn set(&self, limit: usize, per_source: usize) {
        self.service.set_limit(limit);
        self.sources.set_limit(per_source);
    }

    /// Admits a client, or returns the limit that rejects it; of several, the one that is easiest
    /// to remedy for the client.
    pub(crate) fn admit(self: &Arc<Self>, peer: Option<IpAddr>) -> Result<Admission, Limit> {
        if self.shortage.is_memory_low() {
            return Err(Limit::Memory);
        }
        if !self.service.try_acquire() {
            return Err(Limit::Service);
        }
        if !self.total.try_acquire() {
            self.service.release();
            return Err(Limit::Process);
        }
        // From here on the guard releases what was taken. The table of sources comes last, so it
        // never has more entries than there are sessions.
        let mut admission = Admission { limits: Arc::clone(self), source: None };
        // The total includes this client; as above, two simultaneous attempts for the last slot may
        // both fail.
        if self.total.taken() > self.shortage.files() {
            return Err(Limit::Files);
        }
        // A client without an address uses a Unix socket: it has the permission of this machine's
        // administrator.
        admission.count_source(peer)?;
        Ok(admission)
    }

    /// A TLS handshake with this number waits for its client, as at most `most` of the service may.
    pub(crate) fn wait_for_client(
        &self,
        peer: Option<IpAddr>,
        number: u64,
        most: usize,
    ) -> WaitingHandshake<'_> {
        let total = self.total.free_within(self.shortage.files());
        let free = self.service.free_within(usize::MAX).min(total);
        self.handshakes.enter(peer.map(ClientSource::of), number, free, most)
    }
}

/// The admission of one session, released when dropped. Two pointers in size, since every session
/// holds one.
#[derive(Debug)]
#[must_use]
pub(crate) struct Admission {
    limits: Arc<Limits>,
    source: Option<Box<ClientSource>>,
}

impl Admission {
    /// Counts the session against the limit of its source. For a client whose address becomes known
    /// after it was admitted without one.
    pub(crate) fn count_source(&mut self, peer: Option<IpAddr>) -> Result<(), Limit> {
        let sources = &self.limits.sources;
        if let Some(peer) = peer.filter(|_| self.source.is_none() && sources.is_on()) {
            let source = sources.try_acquire(ClientSource::of(peer)).ok_or(Limit::Source)?;
            self.source = Some(Box::new(source));
        }
        Ok(())
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            self.limits.sources.release(**source);
        }
        self.limits.total.release();
        self.limits.service.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_and_releases_slots_up_to_limit() {
        let slots = Slots::new(2);
        let first = slots.take();
        let second = slots.take();
        assert!(first.is_some() && second.is_some());
        assert!(slots.take().is_none() && slots.take().is_none());
        assert_eq!(slots.taken(), 2);
        drop(first);
        assert!(slots.take().is_some());
        assert_eq!(slots.taken(), 1);
        let third = slots.take();
        slots.set_limit(1);
        drop(third);
        assert!(slots.take().is_none(), "the limit was lowered, so no slot is free");
        slots.set_limit(2);
        assert!(slots.take().is_some());
    }

    #[test]
    fn never_exceeds_slots_with_threads() {
        let slots = Slots::new(3);
        let limit = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let inside = AtomicUsize::new(0);
                    for _ in 0..10_000 {
                        if let Some(slot) = slots.take() {
                            inside.fetch_add(1, Ordering::Relaxed);
                            drop(slot);
                        }
                    }
                    limit.fetch_max(inside.into_inner(), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(slots.taken(), 0);
        assert!(limit.into_inner() > 0);
    }

    #[test]
    fn names_rejecting_limit_and_releases_what_it_took() {
        let one: Option<IpAddr> = "192.0.2.1".parse().ok();
        let other: Option<IpAddr> = "192.0.2.2".parse().ok();
        let (total, shortage) = (Slots::new(3), ResourceShortage::default());
        let a = Limits::new(2, 1, Arc::clone(&total), shortage.clone());
        let b = Limits::new(9, 0, Arc::clone(&total), shortage.clone());
        let first = a.admit(one).unwrap();
        assert_eq!(a.admit(one).unwrap_err(), Limit::Source);
        let _second = a.admit(other).unwrap();
        assert_eq!(a.admit(one).unwrap_err(), Limit::Service);
        assert_eq!(total.taken(), 2);
        let _third = b.admit(one).unwrap();
        assert_eq!(b.admit(one).unwrap_err(), Limit::Process);
        assert_eq!((total.taken(), b.service.taken()), (3, 1));
        drop(first);
        shortage.set(true);
        assert_eq!(a.admit(one).unwrap_err(), Limit::Memory);
        shortage.set(false);
        shortage.set_files(2, usize::MAX);
        assert_eq!(a.admit(one).unwrap_err(), Limit::Files);
        shortage.set_files(3, usize::MAX);
        assert!(a.admit(one).is_ok());
        assert_eq!((total.taken(), a.service.taken()), (2, 1));
    }

    #[test]
    fn changes_limit_per_source_while_sessions_exist() {
        let peer: Option<IpAddr> = "192.0.2.1".parse().ok();
        let limits = Limits::new(9, 0, Slots::new(9), ResourceShortage::default());
        let before = limits.admit(peer).unwrap();
        limits.set(9, 1);
        let counted = limits.admit(peer).unwrap();
        assert_eq!(limits.admit(peer).unwrap_err(), Limit::Source);
        limits.set(9, 2);
        let second = limits.admit(peer).unwrap();
        limits.set(9, 0);
        let uncounted = limits.admit(peer).unwrap();
        limits.set(9, 1);
        drop((before, counted, second, uncounted));
        let _again = limits.admit(peer).unwrap();
        assert_eq!(limits.admit(peer).unwrap_err(), Limit::Source, "counts are exact");
    }

    #[test]
    fn orders_labels_by_number() {
        for (number, limit) in Limit::ALL.iter().enumerate() {
            assert_eq!(*limit as usize, number, "{}", limit.label());
        }
    }
}
