//! Closed loop: each client sends its next requests when the previous ones are answered. Measures
//! throughput.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::client::{Batch, Client, not_silent_since};
use super::engine::Engine;
use super::meter::{Meter, Window};
use super::tls::Tls;
use super::wire::Workload;

/// The settings of the job.
#[derive(Debug, Clone)]
pub struct Closed {
    /// The address to connect to.
    pub to: SocketAddr,
    /// How to speak TLS there, if at all.
    pub tls: Option<Tls>,
    /// The requests.
    pub workload: Workload,
    /// Connections.
    pub clients: usize,
    /// Requests that a client sends at once.
    pub pipeline: usize,
    /// Warm-up before counting starts.
    pub warm: Duration,
    /// Duration of the counting.
    pub time: Duration,
}

/// The result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests answered within the window.
    pub requests: u64,
    /// Resources used within the window.
    pub window: Window,
}

impl Closed {
    /// Runs the job.
    ///
    /// # Errors
    /// If a connection fails or ends, a reply is not as expected, or none arrives for five seconds.
    pub fn run(&self, engine: &mut Engine, meter: &Meter) -> io::Result<Rate> {
        let batch = Batch::new(self.workload, self.pipeline);
        let mut clients = Client::connect(engine, self.to, self.tls.as_ref(), 0..self.clients)?;
        let begin = Instant::now() + self.warm;
        clients.iter_mut().try_for_each(|client| client.order(&batch, begin))?;
        let (mut done, mut start, mut last) = (0_u64, None, Instant::now());
        loop {
            let before = done;
            engine.turn_with(|engine, number| {
                let Some(client) = clients.get_mut(number) else { return Ok(()) };
                done += client.pull(&mut engine.buffer, &batch, |_| {})?;
                if client.is_idle() { client.order(&batch, begin) } else { client.push(&batch) }
            })?;
            let now = Instant::now();
            if done > before {
                last = now;
            }
            not_silent_since(last)?;
            match start {
                None if now >= begin => {
                    start = Some((done, meter.sample(), Instant::now() + self.time));
                }
                Some((from, sample, end)) if now >= end => {
                    let window = sample.until(&meter.sample());
                    return Ok(Rate { requests: done - from, window });
                }
                _ => {}
            }
        }
    }
}
