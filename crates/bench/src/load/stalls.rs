//! Stalls of the machine: times in which the host did not run one of its cores.
//!
//! On a shared host a core can be withheld for milliseconds a few times per second. Requests that
//! were open at such a time say nothing about a proxy, and a hundredth of all time is enough to
//! decide a 99th percentile. One thread per core, which precedes everything else there, sleeps
//! until the next due time; when it wakes late, its core was stalled since it last woke.
//!
//! What the kernel does without a pause (a burst of packets) delays these threads, too, and must
//! not be excused: so short delays do not count, and the part that is left out is reported for both
//! kinds of windows. If it differed, the load itself would be the cause.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use harness::pause;

use super::flow::Reply;
use super::settle_on;
use crate::lock;
use crate::priority::precede_others;

/// Time between due times.
const PERIOD: Duration = Duration::from_micros(500);
/// The delay from which on it is a stall.
const LATE: Duration = Duration::from_micros(400);
/// How long requests that waited in the meantime may delay later ones.
const AFTERMATH: Duration = Duration::from_millis(1);

/// A time in which a core did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stall {
    begin: Instant,
    /// Including its aftermath.
    end: Instant,
}

/// Threads that notice stalls. They end when this is dropped.
#[derive(Debug)]
pub struct StallWatch {
    found: Arc<Mutex<Vec<Stall>>>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl StallWatch {
    /// Starts a thread on each core.
    ///
    /// # Errors
    /// A message for people, if a thread may not precede the others (that needs root).
    pub fn start(cores: &[usize]) -> Result<Self, String> {
        let mut watch = Self { found: Arc::default(), over: Arc::default(), threads: Vec::new() };
        for core in cores {
            let (core, found, over) = (*core, Arc::clone(&watch.found), Arc::clone(&watch.over));
            let (said, heard) = std::sync::mpsc::channel();
            let thread = thread::Builder::new().name("stalls".to_owned()).spawn(move || {
                let ready = settle_on(core).map_err(|error| error.to_string());
                let ready = ready.and_then(|()| precede_others());
                let able = ready.is_ok();
                // The caller waits for this message.
                let _ = said.send(ready);
                if able {
                    notice(&found, &over);
                }
            });
            watch.threads.push(thread.map_err(|error| error.to_string())?);
            heard.recv().map_err(|_| "a thread for stalls ended".to_owned())??;
        }
        Ok(watch)
    }

    /// The replies that no stall delayed, and the part that is left out. Forgets the stalls.
    #[must_use]
    pub fn undelayed(&self, replies: Vec<Reply>) -> (Vec<Reply>, f64) {
        let stalls = std::mem::take(&mut *lock(&self.found));
        undelayed(replies, stalls)
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

/// Records stalls of this thread's core until it is over.
fn notice(found: &Mutex<Vec<Stall>>, over: &AtomicBool) {
    let mut woke = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let due = woke + PERIOD;
        pause(PERIOD);
        let now = Instant::now();
        if now.saturating_duration_since(due) >= LATE {
            let stall = Stall { begin: woke, end: now + AFTERMATH };
            lock(found).push(stall);
        }
        woke = now;
    }
}

fn undelayed(replies: Vec<Reply>, mut stalls: Vec<Stall>) -> (Vec<Reply>, f64) {
    stalls.sort_unstable_by_key(|stall| stall.begin);
    // The latest end so far, so that a search finds also those that began long before.
    let mut latest = None;
    for stall in &mut stalls {
        latest = latest.max(Some(stall.end));
        stall.end = latest.unwrap_or(stall.end);
    }
    let all = replies.len();
    let delayed = |reply: &Reply| {
        let begun = stalls.partition_point(|stall| stall.begin <= reply.due + reply.took);
        begun.checked_sub(1).and_then(|last| stalls.get(last)).is_some_and(|it| it.end >= reply.due)
    };
    let kept: Vec<Reply> = replies.into_iter().filter(|reply| !delayed(reply)).collect();
    let count = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    let part = count(all - kept.len()) / count(all.max(1));
    (kept, part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_out_what_overlaps_a_stall() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let reply = |due: u64, took: u64| Reply { due: at(due), took: Duration::from_millis(took) };
        let stall = |from: u64, to: u64| Stall { begin: at(from), end: at(to) };
        // The first stall lasts beyond the second one.
        let stalls = vec![stall(40, 42), stall(10, 30), stall(12, 14)];
        let replies: Vec<Reply> = [(0, 9), (0, 10), (20, 1), (30, 1), (31, 8), (31, 9), (45, 5)]
            .map(|(due, took)| reply(due, took))
            .into();
        let (kept, part) = undelayed(replies, stalls);
        assert_eq!(kept, [reply(0, 9), reply(31, 8), reply(45, 5)]);
        assert!((part - 4.0 / 7.0).abs() < 1e-9, "{part}");
        assert_eq!(undelayed(Vec::new(), vec![stall(1, 2)]).0, []);
    }
}
