//! Open loop: requests are sent at fixed times regardless of replies, and a latency counts from the
//! time at which the request was due. A pause of the proxy therefore shows in all requests that it
//! delayed, not only in one ("coordinated omission").

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::client::{Batch, Client, not_silent_since};
use super::engine::Engine;
use super::meter::{Meter, Window};
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
        let batch = Batch::new(self.workload, 1);
        let mut clients = Client::connect(engine, self.to, None, 0..self.clients)?;
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
                    client.order(&batch, next)?;
                }
                turn += 1;
                next += gap;
            }
            if now >= end {
                if clients.iter().all(Client::is_idle) {
                    break;
                }
                not_silent_since(end)?;
            }
            engine.turn_with(|engine, number| {
                let Some(client) = clients.get_mut(number) else { return Ok(()) };
                client.pull(&mut engine.buffer, &batch, |due| {
                    if due >= begin {
                        found.push(Reply { due, took: due.elapsed() });
                    }
                })?;
                client.push(&batch)
            })?;
        }
        let window = sample.map(|sample| sample.until(&meter.sample())).unwrap_or_default();
        Ok((found, window))
    }
}
