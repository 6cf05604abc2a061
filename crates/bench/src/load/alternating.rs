//! The same load on several targets in turn, in short windows, over connections that stay open:
//! what a request costs each of them.
//!
//! The speed of a machine drifts within seconds. Windows of a fifth of a second, in reverse order
//! in every second round, let the drift affect all targets, so that a few hundred rounds tell costs
//! apart that differ by one percent. A window ends when every request is answered; all requests
//! count, and all CPU time until then.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::closed::SILENCE;
use super::engine::Engine;
use super::meter::cpu;
use super::peer::Peer;
use super::wire::Workload;

/// The settings of the job.
#[derive(Debug, Clone)]
pub struct Alternating {
    /// The requests.
    pub workload: Workload,
    /// Connections to each target.
    pub clients: usize,
    /// Requests that a client sends at once.
    pub pipeline: usize,
    /// Sends of all clients per second; `None` sends when the replies are complete.
    pub rate: Option<u32>,
    /// The length of a window.
    pub window: Duration,
}

/// What receives the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The address to connect to.
    pub to: SocketAddr,
    /// The process whose CPU time is counted.
    pub pid: u32,
}

/// The result of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Requests answered.
    pub requests: u64,
    /// CPU seconds of the process.
    pub cpu: f64,
}

struct Client {
    peer: Peer,
    /// Bytes of the replies received so far.
    got: usize,
    /// Batches that are not sent completely.
    backlog: usize,
    /// Batches that are not answered completely.
    open: usize,
}

/// The texts of a batch.
struct Batch {
    requests: Vec<u8>,
    reply: Vec<u8>,
    pipeline: usize,
}

impl Alternating {
    /// Runs rounds of one window for each target until `go_on` returns `false`, which gets the
    /// results of each round in the order of the targets.
    ///
    /// # Errors
    /// If a connection fails or ends, a reply is not as expected, or none arrives for five seconds.
    pub fn run(
        &self,
        engine: &mut Engine,
        targets: &[Target],
        mut go_on: impl FnMut(&[Cost]) -> bool,
    ) -> io::Result<()> {
        let mut groups = targets
            .iter()
            .enumerate()
            .map(|(place, target)| self.connect(engine, target.to, place * self.clients))
            .collect::<io::Result<Vec<_>>>()?;
        let batch = Batch {
            requests: self.workload.request().repeat(self.pipeline),
            reply: self.workload.reply(),
            pipeline: self.pipeline,
        };
        for round in 0_u64.. {
            let mut costs = vec![Cost { requests: 0, cpu: 0.0 }; targets.len()];
            let mut order: Vec<usize> = (0..targets.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for place in order {
                let (Some(group), Some(target)) = (groups.get_mut(place), targets.get(place))
                else {
                    continue;
                };
                let before = cpu(target.pid);
                let requests = self.window(engine, group, place * self.clients, &batch)?;
                let cpu = cpu(target.pid).saturating_sub(before).as_secs_f64();
                if let Some(cost) = costs.get_mut(place) {
                    *cost = Cost { requests, cpu };
                }
            }
            if !go_on(&costs) {
                break;
            }
        }
        Ok(())
    }

    fn connect(&self, engine: &Engine, to: SocketAddr, first: usize) -> io::Result<Vec<Client>> {
        let numbers = first..first + self.clients;
        numbers
            .map(|number| {
                let peer = Peer::connect(engine, to, None, number)?;
                Ok(Client { peer, got: 0, backlog: 0, open: 0 })
            })
            .collect()
    }

    /// Sends for the length of a window, and waits for all replies; returns the requests answered.
    fn window(
        &self,
        engine: &mut Engine,
        group: &mut [Client],
        first: usize,
        batch: &Batch,
    ) -> io::Result<u64> {
        let gap = self.rate.map(|rate| Duration::from_secs(1) / rate);
        engine.tick_every(gap)?;
        let start = Instant::now();
        let end = start + self.window;
        let (mut due, mut turn, mut answered, mut last) = (start, 0_usize, 0, start);
        if gap.is_none() {
            for client in &mut *group {
                client.order(batch)?;
            }
        }
        loop {
            let now = Instant::now();
            while let Some(gap) = gap.filter(|_| due <= now.min(end)) {
                let place = turn % self.clients.max(1);
                if let Some(client) = group.get_mut(place) {
                    client.order(batch)?;
                }
                (turn, due) = (turn + 1, due + gap);
            }
            if now >= end && group.iter().all(|client| client.open == 0) {
                engine.tick_every(None)?;
                return Ok(answered);
            }
            engine.turn(Some(Duration::from_millis(100)))?;
            let again = gap.is_none() && Instant::now() < end;
            let before = answered;
            let ready = std::mem::take(&mut engine.ready);
            for number in &ready {
                let place = number.checked_sub(first);
                if let Some(client) = place.and_then(|place| group.get_mut(place)) {
                    answered += client.go_on(&mut engine.buffer, batch, again)?;
                }
            }
            engine.ready = ready;
            if answered > before {
                last = now;
            } else if now.duration_since(last) > SILENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no reply for five seconds"));
            }
        }
    }
}

impl Client {
    /// Sends one more batch, now or when the socket accepts it.
    fn order(&mut self, batch: &Batch) -> io::Result<()> {
        self.backlog += 1;
        self.open += 1;
        self.push(batch)
    }

    fn push(&mut self, batch: &Batch) -> io::Result<()> {
        while self.backlog > 0 && self.peer.send(&batch.requests)? {
            self.peer.rewind();
            self.backlog -= 1;
        }
        Ok(())
    }

    /// Reads replies, and sends the next batch after each completed one if `again`. Returns the
    /// number of requests answered.
    fn go_on(&mut self, buffer: &mut [u8], batch: &Batch, again: bool) -> io::Result<u64> {
        let whole = batch.reply.len() * batch.pipeline;
        let requests = |got: usize| (got / batch.reply.len()) as u64;
        let before = requests(self.got);
        self.got += self.peer.receive(buffer, &batch.reply, self.got % batch.reply.len())?;
        let answered = requests(self.got) - before;
        while self.got >= whole {
            self.got -= whole;
            self.open = self.open.checked_sub(1).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "more replies than requests")
            })?;
            if again {
                self.order(batch)?;
            }
        }
        self.push(batch)?;
        Ok(answered)
    }
}
