//! Three kinds of clients of the service, each with counters.
//!
//! Callers open a new connection for every PING. Talkers keep a connection and send one PING after
//! the other with a pause; pipeliners send batches. Before it sends, a client checks whether its
//! connection has ended, like a connection pool; if so, nothing was outstanding, and it opens
//! another one: that is a clean close. All other events are counted by kind. No request is retried.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Client, encode, pause};

use crate::network::SERVICE;

/// The longest wait of a client.
const PATIENCE: Duration = Duration::from_secs(5);
/// Threads that make the callers' calls; several, so that one slow call does not delay the next.
const CALLERS: u64 = 8;
/// Requests per batch.
const BATCH: usize = 16;
/// The pause before a client reconnects.
const AGAIN: Duration = Duration::from_millis(20);

/// Number of clients of each kind, and their rates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crowd {
    /// The interval of calls of all callers together.
    pub(crate) call_every: Duration,
    /// Clients that send one request at a time.
    pub(crate) talkers: usize,
    /// Clients that send batches.
    pub(crate) pipeliners: usize,
    /// The pause of a talker or pipeliner between requests.
    pub(crate) think: Duration,
}

/// The counters of the clients of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Connections opened.
    pub(crate) connections: u64,
    /// Requests answered.
    pub(crate) answered: u64,
    /// Connections that ended while nothing was outstanding.
    pub(crate) clean: u64,
    /// Connections refused.
    pub(crate) refused: u64,
    /// Connections that did not open in time, or not at all.
    pub(crate) unreachable: u64,
    /// Requests without a reply, because the connection ended.
    pub(crate) unanswered: u64,
    /// Connections that ended with outstanding requests.
    pub(crate) cut: u64,
    /// Connections that were reset, and other failures including wrong replies.
    pub(crate) failed: u64,
    /// The longest call, in milliseconds.
    pub(crate) slowest_ms: u64,
}

impl Tally {
    /// Everything that an application would call an error.
    pub(crate) fn errors(&self) -> u64 {
        self.refused + self.unreachable + self.unanswered + self.failed
    }

    fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.answered += other.answered;
        self.clean += other.clean;
        self.refused += other.refused;
        self.unreachable += other.unreachable;
        self.unanswered += other.unanswered;
        self.cut += other.cut;
        self.failed += other.failed;
        self.slowest_ms = self.slowest_ms.max(other.slowest_ms);
    }

    fn connect(&mut self) -> Option<Client> {
        match Client::connect_within(SERVICE, PATIENCE) {
            Ok(client) => {
                self.connections += 1;
                Some(client)
            }
            Err(error) => {
                match error.kind() {
                    ErrorKind::ConnectionRefused => self.refused += 1,
                    _ => self.unreachable += 1,
                }
                None
            }
        }
    }

    /// Sends this many requests at once and reads the replies; `false` if the connection is broken.
    fn exchange(&mut self, client: &mut Client, requests: usize) -> bool {
        let begin = Instant::now();
        let batch = encode(&["PING"]).repeat(requests);
        let mut missing = requests as u64;
        let mut outcome = client.send(&batch);
        while outcome.is_ok() && missing > 0 {
            outcome = match client.read_value() {
                Ok(reply) if reply.text() == Some("PONG") => {
                    missing -= 1;
                    Ok(())
                }
                Ok(_) => Err(ErrorKind::InvalidData.into()),
                Err(error) => Err(error),
            };
        }
        self.answered += requests as u64 - missing;
        let took = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.slowest_ms = self.slowest_ms.max(took);
        match outcome.map_err(|error| error.kind()) {
            Ok(()) => return true,
            Err(ErrorKind::InvalidData | ErrorKind::TimedOut) => self.failed += 1,
            Err(_) => {
                self.unanswered += missing;
                self.cut += 1;
            }
        }
        false
    }

    /// One round of a client that keeps its connection.
    fn round(&mut self, kept: &mut Option<Client>, requests: usize) -> bool {
        if kept.as_ref().is_some_and(|it| it.has_ended().expect("a socket")) {
            self.clean += 1;
            *kept = None;
        }
        if kept.is_none() {
            *kept = self.connect();
        }
        let Some(client) = kept else { return false };
        let fine = self.exchange(client, requests);
        if !fine {
            *kept = None;
        }
        fine
    }
}

/// The running clients.
pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Tally>>,
    talkers: Vec<JoinHandle<Tally>>,
    pipeliners: Vec<JoinHandle<Tally>>,
}

/// The kinds, in the order of the results.
pub(crate) const KINDS: [&str; 3] = ["new connections", "request/response", "pipelining"];

impl Clients {
    pub(crate) fn start(crowd: Crowd) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (begin, call) = (Instant::now(), Arc::<AtomicU64>::default());
        let caller = |_| {
            let (stop, call) = (Arc::clone(&stop), Arc::clone(&call));
            std::thread::spawn(move || calls(&stop, &call, begin, crowd.call_every))
        };
        let keeper = |requests| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || rounds(&stop, requests, crowd.think))
        };
        Self {
            callers: (0..CALLERS).map(caller).collect(),
            talkers: (0..crowd.talkers).map(|_| keeper(1)).collect(),
            pipeliners: (0..crowd.pipeliners).map(|_| keeper(BATCH)).collect(),
            stop,
        }
    }

    /// Stops the clients and returns the counters of each kind.
    pub(crate) fn stop(self) -> [Tally; 3] {
        self.stop.store(true, Ordering::Relaxed);
        [self.callers, self.talkers, self.pipeliners].map(|threads| {
            let mut sum = Tally::default();
            for thread in threads {
                sum.add(&thread.join().expect("a client"));
            }
            sum
        })
    }
}

fn calls(stop: &AtomicBool, call: &AtomicU64, begin: Instant, every: Duration) -> Tally {
    let mut tally = Tally::default();
    while !stop.load(Ordering::Relaxed) {
        let number = call.fetch_add(1, Ordering::Relaxed);
        let due = every * u32::try_from(number).unwrap_or(u32::MAX);
        pause(due.saturating_sub(begin.elapsed()));
        tally.round(&mut None, 1);
    }
    tally
}

fn rounds(stop: &AtomicBool, requests: usize, think: Duration) -> Tally {
    let (mut tally, mut kept) = (Tally::default(), None);
    while !stop.load(Ordering::Relaxed) {
        let fine = tally.round(&mut kept, requests);
        pause(if fine { think } else { AGAIN });
    }
    tally
}
