//! Places: how many sessions there may be, in a service, in the process, from one source, and
//! waiting at a gate.
//!
//! A place is taken when a connection is accepted and given back when its guard is dropped, so no
//! way of ending a session can forget it. The counts are shared by all workers, since a limit a
//! worker would refuse clients while another worker has room.
//!
//! Beside the counts stands [`ResourceShortage`]: somebody who watches the memory of the process raises its
//! flag before the kernel would end the process, and as long as it is up nobody new is let in.
//! Counts are derived from an assumption about what a session costs; the flag holds when the
//! assumption does not. It also has the number of sessions that the limit on open files carries,
//! which may change while the process runs.
//!
//! Deliberately absent: who watches, and how a client is told.

mod sources;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::limits::sources::{ClientSource, SourceTable};

/// How many pipes each worker may use for splicing, as the limit on open files allows.
static PIPES_PER_WORKER: AtomicUsize = AtomicUsize::new(usize::MAX);

/// How many pipes each worker may use for splicing.
pub(crate) fn pipes_per_worker() -> usize {
    PIPES_PER_WORKER.load(Ordering::Relaxed)
}

/// What kept a client out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Limit {
    /// The service has as many sessions as it may have.
    Service,
    /// All services together have as many as the process may have.
    Process,
    /// The client's address has as many as one may have.
    Source,
    /// Memory is about to run out.
    Memory,
    /// There are as many as the system allows open files for, two each.
    Files,
}

impl Limit {
    /// Every one, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Service, Self::Process, Self::Source, Self::Memory, Self::Files];

    /// A stable word in snake case, for metrics and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Process => "process",
            Self::Source => "source",
            Self::Memory => "memory",
            Self::Files => "files",
        }
    }
}

/// A number of places.
#[derive(Debug)]
pub(crate) struct Slots {
    taken: AtomicUsize,
    limit: AtomicUsize,
}

impl Slots {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), limit: AtomicUsize::new(limit) })
    }

    /// A place, if one is left.
    pub(crate) fn take(self: &Arc<Self>) -> Option<SlotGuard> {
        self.try_acquire().then(|| SlotGuard(Arc::clone(self)))
    }

    fn try_acquire(&self) -> bool {
        // Adding first and looking then never lets in one too many; at worst two who ask for the
        // last place at the same moment are both refused.
        if self.taken.fetch_add(1, Ordering::Relaxed) < self.limit() {
            return true;
        }
        self.release();
        false
    }

    fn release(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many there are.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes how many there are. Who has a place keeps it, even if there are fewer now.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// One place, given back when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct SlotGuard(Arc<Slots>);

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// What the process is short of. Cheap to clone; one for the whole process.
#[derive(Debug, Clone)]
pub struct ResourceShortage(Arc<ShortageState>);

#[derive(Debug)]
struct ShortageState {
    memory: AtomicBool,
    files: AtomicUsize,
}

impl Default for ResourceShortage {
    fn default() -> Self {
        Self(Arc::new(ShortageState {
            memory: AtomicBool::new(false),
            files: AtomicUsize::new(usize::MAX),
        }))
    }
}

impl ResourceShortage {
    /// Says whether memory is about to run out.
    pub fn set(&self, scarce: bool) {
        self.0.memory.store(scarce, Ordering::Relaxed);
    }

    /// Whether memory is about to run out.
    #[must_use]
    pub fn is_memory_low(&self) -> bool {
        self.0.memory.load(Ordering::Relaxed)
    }

    /// Says how many sessions there are open files for, and pipes beside them for each worker.
    pub fn set_files(&self, sessions: usize, pipes: usize) {
        self.0.files.store(sessions, Ordering::Relaxed);
        PIPES_PER_WORKER.store(pipes, Ordering::Relaxed);
    }

    /// How many sessions there are open files for; any number until somebody says otherwise.
    #[must_use]
    pub fn files(&self) -> usize {
        self.0.files.load(Ordering::Relaxed)
    }
}

/// All that has to agree before a client of one service is let in.
#[derive(Debug)]
pub(crate) struct Limits {
    service: Arc<Slots>,
    total: Arc<Slots>,
    sources: Option<SourceTable>,
    shortage: ResourceShortage,
}

impl Limits {
    /// `per_source` is the most sessions of one source, 0 for no such limit.
    pub(crate) fn new(
        service: usize,
        per_source: usize,
        total: Arc<Slots>,
        shortage: ResourceShortage,
    ) -> Arc<Self> {
        let sources = (per_source > 0).then(|| SourceTable::new(per_source));
        Arc::new(Self { service: Slots::new(service), total, sources, shortage })
    }

    /// Changes the most sessions of the service.
    pub(crate) fn set_service(&self, limit: usize) {
        self.service.set_limit(limit);
    }

    /// Lets a client in, or says which limit keeps it out; of several the one whose remedy is
    /// nearest to the client.
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
        // This one is counted in; as above, two at once may both be refused for the last place.
        if self.total.taken() > self.shortage.files() {
            self.total.release();
            self.service.release();
            return Err(Limit::Files);
        }
        // From here on the guard gives back what was taken. The table of sources comes last: it
        // then holds no more entries than there are sessions.
        let mut admission = Admission { limits: Arc::clone(self), source: None };
        // A client without an address comes over a Unix socket: it has the permission of this
        // machine's administrator.
        if let Some((sources, peer)) = self.sources.as_ref().zip(peer) {
            let source = sources.try_acquire(ClientSource::of(peer)).ok_or(Limit::Source)?;
            admission.source = Some(Box::new(source));
        }
        Ok(admission)
    }
}

/// The right of one session to be here, given back when dropped. As small as two pointers: every
/// session holds one.
#[derive(Debug)]
#[must_use]
pub(crate) struct Admission {
    limits: Arc<Limits>,
    source: Option<Box<ClientSource>>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let (Some(sources), Some(source)) = (&self.limits.sources, &self.source) {
            sources.release(**source);
        }
        self.limits.total.release();
        self.limits.service.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_end_and_come_back() {
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
        assert!(slots.take().is_none(), "one too many has gone, and there is still none free");
        slots.set_limit(2);
        assert!(slots.take().is_some());
    }

    #[test]
    fn threads_never_get_more_than_there_are() {
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
    fn each_limit_is_told_by_its_name_and_a_refusal_gives_back_what_it_took() {
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
    fn labels_have_the_order_of_their_numbers() {
        for (number, limit) in Limit::ALL.iter().enumerate() {
            assert_eq!(*limit as usize, number, "{}", limit.label());
        }
    }
}
