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

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::runtime::tasks::visits::Visit;
use crate::runtime::tasks::{Tasks, WorkerHandle};
use crate::session_row::{self, SessionId, SessionRow};

/// Maximum sessions visited in one iteration of the event loop.
const SLICE: usize = 32;

/// Time after which no further one is visited in the same iteration.
const SLICE_TIME: Duration = Duration::from_micros(100);

/// Slots examined in one iteration; most of them may be free after a flood.
const SLOTS: usize = 2048;

/// Requests that may wait for a worker. A listing has one at a time.
const MAX_WAITING: usize = 16;

/// Rows of one worker, and the slot with which the next batch begins, if there may be more.
pub type SessionBatch = (Vec<SessionRow>, Option<u32>);

/// A question to a worker.
#[derive(Debug)]
enum Question {
    /// The rows of the sessions from slot `from` on.
    List { from: u32, most: usize, reply: oneshot::Sender<SessionBatch> },
    /// Ends the session; whether there was one.
    Kill { id: SessionId, reply: oneshot::Sender<bool> },
}

/// The questions that wait for a worker.
#[derive(Debug)]
struct Questions {
    worker: Arc<WorkerHandle>,
    waiting: Mutex<VecDeque<Question>>,
}

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

/// The sessions of all workers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SessionVisits {
    process: u32,
    workers: Arc<[Arc<Questions>]>,
}

impl SessionVisits {
    pub(super) fn new<'a>(workers: impl Iterator<Item = &'a Arc<WorkerHandle>>) -> Self {
        let questions =
            |worker| Questions { worker: Arc::clone(worker), waiting: Mutex::default() };
        let workers = workers.map(|worker| Arc::new(questions(worker))).collect();
        Self { process: fastrand::u32(..), workers }
    }

    /// The visitor of a worker.
    pub(super) fn visitor(&self, number: usize) -> Option<SessionVisitor> {
        let questions = Arc::clone(self.workers.get(number)?);
        let worker = u32::try_from(number).ok()?;
        Some(SessionVisitor { process: self.process, worker, questions, listing: None })
    }

    /// The number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers.len()
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
        self.ask(worker, |reply| Question::List { from, most, reply }).await
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
        if worker >= self.workers.len() {
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
        let Questions { worker, waiting } = &**self.workers.get(worker).ok_or(NoAnswer::Ended)?;
        let (reply, answer) = oneshot::channel();
        {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() >= MAX_WAITING {
                return Err(NoAnswer::Busy);
            }
            waiting.push_back(question(reply));
        }
        worker.wake();
        answer.await.map_err(|_| NoAnswer::Ended)
    }
}

/// A batch that is being made.
#[derive(Debug)]
struct Listing {
    next: u32,
    most: usize,
    rows: Vec<SessionRow>,
    reply: oneshot::Sender<SessionBatch>,
}

/// Answers the questions to one worker.
#[derive(Debug)]
pub(super) struct SessionVisitor {
    process: u32,
    worker: u32,
    questions: Arc<Questions>,
    listing: Option<Listing>,
}

impl SessionVisitor {
    /// Visits a few tasks. Returns whether there is more to do. A question on which it panics is
    /// not answered.
    pub(super) fn run(&mut self, tasks: &mut Tasks) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.turn(tasks))).unwrap_or(true)
    }

    fn turn(&mut self, tasks: &mut Tasks) -> bool {
        let next =
            || self.questions.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let listing = match self.listing.take() {
            Some(listing) => listing,
            None => match next() {
                None => return false,
                Some(Question::Kill { id, reply }) => {
                    // Withdrawn if nobody waits for the answer.
                    if !reply.is_closed() {
                        let _ = reply.send(kill(tasks, id));
                    }
                    return true;
                }
                Some(Question::List { from: next, most, reply }) => {
                    Listing { next, most: most.max(1), rows: Vec::new(), reply }
                }
            },
        };
        if !listing.reply.is_closed() {
            self.listing = self.advance(listing, tasks);
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
                let (process, worker) = (self.process, self.worker);
                row.id = SessionId { process, worker, slot, generation };
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

fn kill(tasks: &mut Tasks, id: SessionId) -> bool {
    let exists = tasks.generation(id.slot) == Some(id.generation);
    if exists {
        tasks.visit(id.slot, Visit::End);
    }
    exists
}
