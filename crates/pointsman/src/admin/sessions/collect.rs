//! Asks all workers for their sessions, and does not wait for one that hangs.
//!
//! Each worker is asked for one [batch](BATCH) after the other, all of them at the same time. So
//! memory does not depend on the number of sessions: it is one batch per worker, and what the
//! caller keeps.

use std::time::{Duration, Instant};

use proxy::{SessionRow, SessionVisits};
use tokio::sync::mpsc;

/// Rows of one batch.
const BATCH: usize = 128;
/// How long a worker may take for a batch. A busy one takes milliseconds.
const ANSWER: Duration = Duration::from_secs(2);
/// How long a listing may take.
const LONGEST: Duration = Duration::from_secs(10);

/// Passes every session to `sink`. Returns the numbers of the workers that did not answer in time;
/// some of their sessions may have been passed.
pub(super) async fn all(sessions: &SessionVisits, mut sink: impl FnMut(SessionRow)) -> Vec<usize> {
    let (batches, mut received) = mpsc::channel(1);
    let deadline = Instant::now() + LONGEST;
    for worker in 0..sessions.workers() {
        tokio::spawn(one(sessions.clone(), worker, deadline, batches.clone()));
    }
    drop(batches);
    let mut silent = Vec::new();
    while let Some((worker, batch)) = received.recv().await {
        match batch {
            Some(rows) => rows.into_iter().for_each(&mut sink),
            None => silent.push(worker),
        }
    }
    silent.sort_unstable();
    silent
}

/// Sends the sessions of one worker, and `None` if it does not answer.
async fn one(
    sessions: SessionVisits,
    worker: usize,
    deadline: Instant,
    batches: mpsc::Sender<(usize, Option<Vec<SessionRow>>)>,
) {
    let mut from = Some(0);
    while let Some(slot) = from {
        let until = deadline.min(Instant::now() + ANSWER);
        let batch = tokio::time::timeout_at(until.into(), sessions.list(worker, slot, BATCH)).await;
        let (rows, next) = match batch {
            Ok(Ok((rows, next))) => (Some(rows), next),
            Ok(Err(_)) | Err(_) => (None, None),
        };
        // Nobody waits any more if this fails.
        if batches.send((worker, rows)).await.is_err() {
            return;
        }
        from = next;
    }
}
