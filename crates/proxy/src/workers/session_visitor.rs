//! The sessions of all workers, for an operator: lists them, and ends one of them.
//!
//! There is no list of sessions. Each worker walks the slots of its own tasks when it is asked, a
//! few per iteration of its event loop ([`SLICE`], [`SLICE_TIME`]), and asks each session for its
//! row. The rows go to the caller in batches that it asks for one by one, so neither side keeps
//! more than a batch. A listing is therefore no snapshot: a session that begins or ends meanwhile
//! may be missing or listed, and rows are of different moments. None is listed twice, because none
//! changes its slot.
//!
//! A worker that hangs answers nothing: the caller decides how long to wait. A request whose caller
//! has gone is dropped, so no session is ended after an error was reported.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::listener::inbox::{Inboxes, Listing, Question, SessionBatch};
use crate::runtime::tasks::Tasks;
use crate::runtime::tasks::visits::Visit;
use crate::session_row::{self, SessionId};

/// Maximum sessions visited in one iteration of the event loop.
const SLICE: usize = 32;

/// Time after which no further one is visited in the same iteration.
const SLICE_TIME: Duration = Duration::from_micros(100);

/// Slots examined in one iteration; most of them may be free after a flood.
const SLOTS: usize = 2048;

/// Requests that may wait for a worker. A listing has one at a time.
const MAX_WAITING: usize = 16;

/// Why a worker has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// There is no such worker, or it has ended.
    #[error("the worker has ended")]
    Ended,
    /// Too many requests wait for it: it hangs.
    #[error("the worker does not respond")]
    Busy,
}

/// Why a session was not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KillError {
    /// The ID belongs to another process.
    #[error("this is the ID of a session of another process")]
    OtherProcess,
    /// It has ended, or never existed.
    #[error("no such session; it may have ended")]
    NoSession,
    /// Its worker does not answer. The order is withdrawn when its future is dropped.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
}

/// The sessions of all workers, as seen by one of them or by another thread. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SessionVisits {
    process: u32,
    inboxes: Inboxes,
}

impl SessionVisits {
    pub(super) fn new(inboxes: Inboxes) -> Self {
        Self { process: fastrand::u32(..), inboxes }
    }

    /// As seen by worker `own`.
    pub(super) fn of(&self, own: usize) -> Self {
        Self { process: self.process, inboxes: self.inboxes.of(own) }
    }

    /// The number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.inboxes.all.len()
    }

    /// The sessions of a worker from slot `from` on, at most `most`. Cancel-safe; a request that is
    /// dropped is not answered.
    ///
    /// # Errors
    ///
    /// The worker has ended, or does not answer.
    pub async fn list(
        &self,
        worker: usize,
        from: u32,
        most: usize,
    ) -> Result<SessionBatch, NoAnswer> {
        let (next, most) = (from, most.max(1));
        let listing = |reply| Question::List(Listing { next, most, rows: Vec::new(), reply });
        self.ask(worker, listing).await
    }

    /// Ends a session at once. Its client sees the connection close. If the future is dropped
    /// before it returns, the session is not ended, unless that was about to be reported.
    ///
    /// # Errors
    ///
    /// Why it was not ended.
    pub async fn kill(&self, id: SessionId) -> Result<(), KillError> {
        if id.process != self.process {
            return Err(KillError::OtherProcess);
        }
        let worker = usize::try_from(id.worker).unwrap_or(usize::MAX);
        if worker >= self.workers() {
            return Err(KillError::NoSession);
        }
        match self.ask(worker, |reply| Question::Kill { id, reply }).await? {
            true => Ok(()),
            false => Err(KillError::NoSession),
        }
    }

    async fn ask<T>(
        &self,
        worker: usize,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, NoAnswer> {
        let inbox = self.inboxes.all.get(worker).ok_or(NoAnswer::Ended)?;
        let (reply, answer) = oneshot::channel();
        {
            let mut waiting = inbox.questions();
            if waiting.len() >= MAX_WAITING {
                return Err(NoAnswer::Busy);
            }
            waiting.push_back(question(reply));
        }
        inbox.worker.wake();
        answer.await.map_err(|_| NoAnswer::Ended)
    }

    // Answering the questions to one worker, on its thread.

    /// Visits a few tasks. Returns whether there is more to do. A question on which it panics is
    /// not answered.
    pub(super) fn run(&self, tasks: &mut Tasks) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.turn(tasks))).unwrap_or(true)
    }

    fn turn(&self, tasks: &mut Tasks) -> bool {
        let Some(inbox) = self.inboxes.all.get(self.inboxes.own) else { return false };
        let Some(question) = inbox.questions().pop_front() else { return false };
        // Withdrawn if nobody waits for the answer.
        match question {
            Question::Kill { id, reply } if !reply.is_closed() => {
                let exists = tasks.generation(id.slot) == Some(id.generation);
                if exists {
                    tasks.visit(id.slot, Visit::End);
                }
                let _ = reply.send(exists);
            }
            Question::List(listing) if !listing.reply.is_closed() => {
                if let Some(rest) = self.advance(listing, tasks) {
                    inbox.questions().push_front(Question::List(rest));
                }
            }
            Question::Kill { .. } | Question::List(_) => {}
        }
        true
    }

    /// Visits some sessions. Returns the listing unless it is complete.
    fn advance(&self, mut listing: Listing, tasks: &mut Tasks) -> Option<Listing> {
        let (slots, begin) = (tasks.slots(), Instant::now());
        let (mut slice, mut examined) = (SLICE.min(listing.most - listing.rows.len()), SLOTS);
        while slice > 0 && examined > 0 && listing.next < slots {
            let slot = listing.next;
            (listing.next, examined) = (slot + 1, examined - 1);
            let Some(generation) = tasks.generation(slot) else { continue };
            slice = if begin.elapsed() < SLICE_TIME { slice - 1 } else { 0 };
            tasks.visit(slot, Visit::Report);
            if let Some(mut row) = session_row::take() {
                let worker = u32::try_from(self.inboxes.own).unwrap_or(u32::MAX);
                row.id = SessionId { process: self.process, worker, slot, generation };
                listing.rows.push(*row);
            }
        }
        let Listing { next, most, .. } = listing;
        if next < slots && listing.rows.len() < most {
            return Some(listing);
        }
        // The caller may have gone.
        let _ = listing.reply.send((listing.rows, (next < slots).then_some(next)));
        None
    }
}
