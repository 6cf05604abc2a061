//! Passing a new connection to another worker, when this one is clearly fuller.
//!
//! The kernel spreads connections over the workers' sockets by a hash, and Redis clients keep their
//! connections for days: what chance has made uneven stays uneven, and one core idles while another
//! is full. So whoever accepts a connection looks at how many tasks each worker has, and gives it
//! to the emptiest if that one has clearly fewer. Only then: it costs the connection a way through
//! another thread's queue. A session that has begun never moves.
//!
//! Nobody is forgotten on the way: a guest brings a door of the drain along, so the drain does not
//! count as over while he is on his way, and the queue is read after the bell was unrung (see
//! [`tasks`](crate::runtime::tasks)).
//!
//! A guest has been let in already: what waits in a queue counts against the limits, so that a
//! flood does not take the descriptors of those who are here.
//!
//! Deliberately absent: load by traffic. Sessions come with unlike loads, but what they will be is
//! not known when they come.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drain::AcceptPermit;

use crate::address::Peer;
use crate::limits::Admission;
use crate::runtime::tasks::WorkerHandle;

/// The most guests that may wait for one worker; who comes later stays where he was accepted.
const MAX_WAITING: usize = 256;

/// Differences up to this are no reason: they come and go with every connection.
const SLACK: usize = 4;

/// A connection on its way to another worker.
#[derive(Debug)]
pub(crate) struct HandedOver {
    /// Number of its service.
    pub(crate) service: usize,
    pub(crate) socket: OwnedFd,
    pub(crate) peer: Peer,
    pub(crate) admission: Admission,
    /// Held until it has a ticket of its own.
    pub(crate) permit: AcceptPermit,
}

/// A connection that was let in.
pub(crate) type Client = (OwnedFd, Peer, Admission);

/// One worker, as the others see it.
#[derive(Debug)]
struct Inbox {
    worker: Arc<WorkerHandle>,
    handed_over: Mutex<VecDeque<HandedOver>>,
    /// How many there are in `handed_over`, to be read without its lock.
    waiting: AtomicUsize,
}

impl Inbox {
    fn new(worker: Arc<WorkerHandle>) -> Self {
        Self { worker, handed_over: Mutex::default(), waiting: AtomicUsize::new(0) }
    }

    fn handed_over(&self) -> MutexGuard<'_, VecDeque<HandedOver>> {
        // Nothing under the lock can panic half-way.
        self.handed_over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its tasks and those that are about to be.
    fn load(&self) -> usize {
        self.worker.tasks() + self.waiting.load(Ordering::Relaxed)
    }
}

/// All workers of a process, as one of them sees them.
#[derive(Debug, Clone)]
pub(crate) struct Inboxes {
    all: Arc<[Inbox]>,
    own: usize,
}

impl Inboxes {
    pub(crate) fn new(workers: impl IntoIterator<Item = Arc<WorkerHandle>>) -> Self {
        Self { all: workers.into_iter().map(Inbox::new).collect(), own: 0 }
    }

    /// The same, seen by worker number `own`.
    pub(crate) fn of(&self, own: usize) -> Self {
        Self { all: Arc::clone(&self.all), own }
    }

    /// The worker that should have the next connection instead of this one, if there is one.
    fn less_loaded(&self) -> Option<&Inbox> {
        let own = self.all.get(self.own)?.load();
        let least = self.all.iter().min_by_key(|inbox| inbox.load())?;
        is_clearly_more_loaded(own, least.load()).then_some(least)
    }

    /// Passes a connection on, or gives it back to be served here.
    ///
    /// # Errors
    ///
    /// The connection, if this is the place for it.
    pub(crate) fn hand_over(
        &self,
        service: usize,
        client: Client,
        permit: impl FnOnce() -> AcceptPermit,
    ) -> Result<(), Client> {
        let Some(inbox) = self.less_loaded() else { return Err(client) };
        let mut handed_over = inbox.handed_over();
        if handed_over.len() >= MAX_WAITING {
            return Err(client);
        }
        let (socket, peer, admission) = client;
        handed_over.push_back(HandedOver { service, socket, peer, admission, permit: permit() });
        inbox.waiting.store(handed_over.len(), Ordering::Relaxed);
        drop(handed_over);
        inbox.worker.wake();
        Ok(())
    }

    /// The guests who have come. To be asked after the bell was unrung.
    pub(crate) fn handed_over(&self) -> VecDeque<HandedOver> {
        let Some(inbox) = self.all.get(self.own) else { return VecDeque::new() };
        let mut handed_over = inbox.handed_over();
        inbox.waiting.store(0, Ordering::Relaxed);
        std::mem::take(&mut *handed_over)
    }
}

/// Whether a worker with `own` tasks should not take one more while another has only `least`.
fn is_clearly_more_loaded(own: usize, least: usize) -> bool {
    own >= least + SLACK + least / 16
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::limits::{Limits, ResourceShortage, Slots};

    #[test]
    fn small_differences_are_no_reason_and_clear_ones_are() {
        for (own, least) in [(0, 0), (3, 0), (4, 4), (7, 4), (103, 100), (109, 100)] {
            assert!(!is_clearly_more_loaded(own, least), "{own} {least}");
        }
        for (own, least) in [(4, 0), (8, 4), (110, 100), (2000, 1800)] {
            assert!(is_clearly_more_loaded(own, least), "{own} {least}");
        }
    }

    #[test]
    fn a_full_room_takes_no_more_and_what_was_passed_arrives_in_order() {
        let (drain, _controller) = drain::new(drain::ShutdownSettings::default());
        let workers: Vec<_> = (0..2).map(|_| WorkerHandle::new().unwrap()).collect();
        let inboxes = Inboxes::new(workers.iter().map(Arc::clone));
        let (from, to) = (inboxes.of(0), inboxes.of(1));
        let socket = || OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let limits =
            Limits::new(usize::MAX, 0, Slots::new(usize::MAX), ResourceShortage::default());
        let peer = |port: usize| {
            Peer::from(SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap())))
        };
        workers[0].set_tasks(3);
        assert!(
            from.hand_over(0, (socket(), peer(9), limits.admit(None).unwrap()), || drain
                .accept_permit())
                .is_err()
        );
        workers[0].set_tasks(10_000);
        for number in 0..MAX_WAITING {
            assert!(
                from.hand_over(
                    number,
                    (socket(), peer(number), limits.admit(None).unwrap()),
                    || drain.accept_permit()
                )
                .is_ok()
            );
        }
        assert!(
            from.hand_over(0, (socket(), peer(9), limits.admit(None).unwrap()), || drain
                .accept_permit())
                .is_err()
        );
        let arrived: Vec<usize> = to.handed_over().iter().map(|client| client.service).collect();
        assert_eq!(arrived, (0..MAX_WAITING).collect::<Vec<_>>());
        assert!(to.handed_over().is_empty() && from.handed_over().is_empty());
        assert!(
            from.hand_over(0, (socket(), peer(9), limits.admit(None).unwrap()), || drain
                .accept_permit())
                .is_ok()
        );
    }
}
