//! Handing a new connection over to another worker if this one has clearly more sessions.
//!
//! The kernel distributes connections over the workers' sockets by a hash, and Redis clients keep
//! their connections for days: a random imbalance persists, and one core idles while another is
//! saturated. So the accepting worker compares the number of tasks of all workers, and hands the
//! connection over to the least loaded one if that has clearly fewer. Only then, because it costs a
//! pass through another thread's queue. An established session never moves.
//!
//! No connection is forgotten on the way: it carries a permit of the drain, so the drain is not
//! complete meanwhile, and the inbox is read after `woken` was cleared (see
//! [`tasks`](crate::runtime::tasks)). It waits among the commands to the worker, in their order: so
//! the worker knows its listener already.
//!
//! A connection is admitted before it is handed over: what waits in an inbox counts against the
//! limits, so a flood does not take the descriptors of existing sessions.
//!
//! Traffic is not balanced: the load of a session is not known when it begins.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drain::AcceptPermit;
use tokio::sync::oneshot;

use crate::address::{ListenAddr, ListenerId, Peer};
use crate::context::{ListenerContext, WorkerContext};
use crate::limits::Admission;
use crate::runtime::tasks::WorkerHandle;
use crate::session_row::{SessionId, SessionRow};

/// The capacity of an inbox; further connections stay on the worker that accepted them.
const MAX_WAITING: usize = 256;

/// Differences up to this are ignored: they come and go with every connection.
const SLACK: usize = 4;

/// A message to a worker from another thread.
#[derive(Debug)]
pub(crate) enum WorkerCommand {
    /// A listener exists. Sent to every worker before any of them listens, so that each knows it
    /// before a connection is handed over.
    Attach(Arc<WorkerContext>),
    /// Accepts on this socket until the drain of the listener begins.
    Listen(ListenerId, OwnedFd, ListenAddr, AcceptPermit),
    /// The drain of the listener is over.
    Detach(ListenerId),
    /// Serves a client that came through this listener. The permit is held until the session has a
    /// ticket.
    Serve(ListenerId, Client, AcceptPermit),
}

/// An admitted connection.
pub(crate) type Client = (OwnedFd, Peer, Admission);

/// Rows of one worker, and the slot with which the next batch begins, if there may be more.
pub type SessionBatch = (Vec<SessionRow>, Option<u32>);

/// A question about the sessions of a worker.
#[derive(Debug)]
pub(crate) enum Question {
    /// The rows of sessions.
    List(Listing),
    /// Ends the session; whether there was one.
    Kill { id: SessionId, reply: oneshot::Sender<bool> },
}

/// A batch that is being made, of the sessions from slot `next` on.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) next: u32,
    pub(crate) most: usize,
    pub(crate) rows: Vec<SessionRow>,
    pub(crate) reply: oneshot::Sender<SessionBatch>,
}

/// A worker as seen by other workers.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) worker: Arc<WorkerHandle>,
    commands: Mutex<Vec<WorkerCommand>>,
    questions: Mutex<VecDeque<Question>>,
    /// The clients among them, readable without the lock.
    waiting: AtomicUsize,
}

impl Inbox {
    fn new(worker: Arc<WorkerHandle>) -> Self {
        let (commands, questions) = (Mutex::default(), Mutex::default());
        Self { worker, commands, questions, waiting: AtomicUsize::new(0) }
    }

    pub(crate) fn questions(&self) -> MutexGuard<'_, VecDeque<Question>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commands(&self) -> MutexGuard<'_, Vec<WorkerCommand>> {
        // No critical section can panic half-way.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its tasks, including those that are about to start.
    fn load(&self) -> usize {
        self.worker.tasks() + self.waiting.load(Ordering::Relaxed)
    }
}

/// All workers of a process as seen by one of them.
#[derive(Debug, Clone)]
pub(crate) struct Inboxes {
    pub(crate) all: Arc<[Inbox]>,
    pub(crate) own: usize,
}

impl Inboxes {
    pub(crate) fn new(workers: impl IntoIterator<Item = Arc<WorkerHandle>>) -> Self {
        Self { all: workers.into_iter().map(Inbox::new).collect(), own: 0 }
    }

    /// The inboxes as seen by worker `own`.
    pub(crate) fn of(&self, own: usize) -> Self {
        Self { all: Arc::clone(&self.all), own }
    }

    /// Hands a connection over, or returns it to be served here.
    ///
    /// # Errors
    ///
    /// The connection, if it should stay on this worker.
    pub(crate) fn hand_over(
        &self,
        listener: &ListenerContext,
        client: Client,
    ) -> Result<(), Client> {
        let own = self.all.get(self.own).map_or(0, Inbox::load);
        let least = self.all.iter().min_by_key(|inbox| inbox.load());
        let Some(inbox) = least.filter(|it| is_clearly_more_loaded(own, it.load())) else {
            return Err(client);
        };
        let mut commands = inbox.commands();
        if inbox.waiting.load(Ordering::Relaxed) >= MAX_WAITING {
            return Err(client);
        }
        let (listener, permit) = (listener.id, listener.drain.accept_permit());
        commands.push(WorkerCommand::Serve(listener, client, permit));
        inbox.waiting.fetch_add(1, Ordering::Relaxed);
        drop(commands);
        inbox.worker.wake();
        Ok(())
    }

    /// Sends a command to worker `number`.
    pub(crate) fn command(&self, number: usize, command: WorkerCommand) {
        let Some(inbox) = self.all.get(number) else { return };
        inbox.commands().push(command);
        inbox.worker.wake();
    }

    /// The commands to this worker. To be called after `woken` was cleared.
    pub(crate) fn commands(&self) -> Vec<WorkerCommand> {
        let Some(inbox) = self.all.get(self.own) else { return Vec::new() };
        let mut commands = inbox.commands();
        inbox.waiting.store(0, Ordering::Relaxed);
        std::mem::take(&mut *commands)
    }
}

/// Whether a worker with `own` tasks should hand over the next one to a worker with `least` tasks.
fn is_clearly_more_loaded(own: usize, least: usize) -> bool {
    own >= least + SLACK + least / 16
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::limits::{Limits, ResourceShortage, Slots};

    #[test]
    fn hands_over_only_at_clear_differences() {
        for (own, least) in [(0, 0), (3, 0), (4, 4), (7, 4), (103, 100), (109, 100)] {
            assert!(!is_clearly_more_loaded(own, least), "{own} {least}");
        }
        for (own, least) in [(4, 0), (8, 4), (110, 100), (2000, 1800)] {
            assert!(is_clearly_more_loaded(own, least), "{own} {least}");
        }
    }

    #[test]
    fn bounds_inbox_and_keeps_order() {
        let (drain, _controller) = drain::new(drain::ShutdownSettings::default());
        let workers: Vec<_> = (0..2).map(|_| WorkerHandle::new().unwrap()).collect();
        let inboxes = Inboxes::new(workers.iter().map(Arc::clone));
        let (from, to) = (inboxes.of(0), inboxes.of(1));
        let socket = || OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let limits =
            Limits::new(usize::MAX, 0, Slots::new(usize::MAX), ResourceShortage::default());
        let hand_over = |number: usize| {
            let peer = SocketAddr::from(([127, 0, 0, 1], u16::try_from(number).unwrap()));
            let listener = ListenerContext::new(ListenerId::nth(number), &drain, false);
            from.hand_over(&listener, (socket(), peer.into(), limits.admit(None).unwrap()))
        };
        workers[0].set_tasks(3);
        assert!(hand_over(0).is_err());
        workers[0].set_tasks(10_000);
        for number in 0..MAX_WAITING {
            assert!(hand_over(number).is_ok());
        }
        assert!(hand_over(0).is_err());
        let listener = |command: WorkerCommand| match command {
            WorkerCommand::Serve(listener, ..) => listener,
            other => panic!("{other:?}"),
        };
        let arrived: Vec<_> = to.commands().into_iter().map(listener).collect();
        assert_eq!(arrived, (0..MAX_WAITING).map(ListenerId::nth).collect::<Vec<_>>());
        assert!(to.commands().is_empty() && from.commands().is_empty());
        assert!(hand_over(0).is_ok());
    }
}
