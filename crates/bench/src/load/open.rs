//! Open loop: requests are sent at fixed times regardless of replies, and a latency counts from the
//! time at which the request was due. A pause of the proxy therefore shows in all requests that it
//! delayed, not only in one ("coordinated omission").

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::closed::SILENCE;
use super::engine::Engine;
use super::meter::{Meter, Window};
use super::peer::Peer;
use super::tally::Latency;
use super::wire::Workload;

/// The settings of the job.
#[derive(Debug, Clone)]
pub struct Open {
    /// The address to connect to.
    pub to: SocketAddr,
    /// The requests.
    pub workload: Workload,
    /// Connections, used in turn, including those that wait for a reply.
    pub clients: usize,
    /// Requests per second.
    pub rate: u32,
    /// Warm-up before counting starts.
    pub warm: Duration,
    /// Duration of the counting.
    pub time: Duration,
}

/// An answered request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// When the request was due.
    pub due: Instant,
    /// How long after that the reply was complete.
    pub took: Duration,
}

struct Client {
    peer: Peer,
    got: usize,
    /// The due times of the requests that are not answered yet.
    due: VecDeque<Instant>,
    /// Requests that could not be sent yet.
    backlog: usize,
}

impl Open {
    /// Runs the job.
    ///
    /// # Errors
    /// If a connection fails or ends, a reply is not as expected, or replies are missing.
    pub fn run(&self, engine: &mut Engine, meter: &Meter) -> io::Result<(Latency, Window)> {
        let (replies, window) = self.record(engine, meter)?;
        Ok((Latency::of(replies.into_iter().map(|reply| reply.took).collect()), window))
    }

    /// Runs the job and returns each reply instead of percentiles.
    ///
    /// # Errors
    /// As of [`run`](Self::run).
    pub fn record(&self, engine: &mut Engine, meter: &Meter) -> io::Result<(Vec<Reply>, Window)> {
        let gap = Duration::from_secs(1) / self.rate;
        engine.tick_every(Some(gap))?;
        let done = self.play(engine, meter, gap);
        engine.tick_every(None)?;
        done
    }

    fn play(
        &self,
        engine: &mut Engine,
        meter: &Meter,
        gap: Duration,
    ) -> io::Result<(Vec<Reply>, Window)> {
        let (request, reply) = (self.workload.request(), self.workload.reply());
        let mut clients = (0..self.clients)
            .map(|number| Peer::connect(engine, self.to, None, number))
            .map(|peer| Ok(Client { peer: peer?, got: 0, due: VecDeque::new(), backlog: 0 }))
            .collect::<io::Result<Vec<_>>>()?;
        let mut next = Instant::now() + gap;
        let begin = next + self.warm;
        let end = begin + self.time;
        let (mut turn, mut sample, mut found) = (0_usize, None, Vec::new());
        loop {
            let now = Instant::now();
            if sample.is_none() && now >= begin {
                sample = Some(meter.sample());
            }
            while next <= Instant::now().min(end) {
                let number = turn % self.clients.max(1);
                if let Some(client) = clients.get_mut(number) {
                    client.due.push_back(next);
                    client.backlog += 1;
                    client.push(&request)?;
                }
                turn += 1;
                next += gap;
            }
            if now >= end {
                if clients.iter().all(|client| client.due.is_empty()) {
                    break;
                }
                if now > end + SILENCE {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "replies are missing after five seconds",
                    ));
                }
            }
            engine.turn(Some(Duration::from_millis(100)))?;
            let ready = std::mem::take(&mut engine.ready);
            for number in &ready {
                if let Some(client) = clients.get_mut(*number) {
                    client.pull(&mut engine.buffer, &reply, begin, &mut found)?;
                    client.push(&request)?;
                }
            }
            engine.ready = ready;
        }
        let window = sample.map(|sample| sample.until(&meter.sample())).unwrap_or_default();
        Ok((found, window))
    }
}

impl Client {
    fn push(&mut self, request: &[u8]) -> io::Result<()> {
        while self.backlog > 0 && self.peer.send(request)? {
            self.peer.rewind();
            self.backlog -= 1;
        }
        Ok(())
    }

    /// Reads replies and records those to requests that were due since `begin`.
    fn pull(
        &mut self,
        buffer: &mut [u8],
        reply: &[u8],
        begin: Instant,
        found: &mut Vec<Reply>,
    ) -> io::Result<()> {
        self.got += self.peer.receive(buffer, reply, self.got)?;
        let now = Instant::now();
        while self.got >= reply.len() {
            self.got -= reply.len();
            let due = self.due.pop_front();
            let due = due.ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "more replies than requests")
            })?;
            if due >= begin {
                found.push(Reply { due, took: now.saturating_duration_since(due) });
            }
        }
        Ok(())
    }
}
