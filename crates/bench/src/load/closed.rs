//! Closed loop: each client sends its next requests when the previous ones are answered. Measures
//! throughput.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::meter::{Meter, Window};
use super::peer::Peer;
use super::tls::Tls;
use super::wire::Workload;

/// The job fails if no reply arrives for this long.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

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

struct Client {
    peer: Peer,
    /// Bytes of the replies received so far.
    got: usize,
}

impl Closed {
    /// Runs the job.
    ///
    /// # Errors
    /// If a connection fails or ends, a reply is not as expected, or none arrives for five seconds.
    pub fn run(&self, engine: &mut Engine, meter: &Meter) -> io::Result<Rate> {
        let requests = self.workload.request().repeat(self.pipeline);
        let reply = self.workload.reply();
        let mut clients = (0..self.clients)
            .map(|number| {
                Ok(Client {
                    peer: Peer::connect(engine, self.to, self.tls.as_ref(), number)?,
                    got: 0,
                })
            })
            .collect::<io::Result<Vec<_>>>()?;
        let begin = Instant::now() + self.warm;
        let (mut done, mut start, mut last) = (0_u64, None, Instant::now());
        loop {
            engine.turn(Some(Duration::from_millis(100)))?;
            let before = done;
            let ready = std::mem::take(&mut engine.ready);
            for number in &ready {
                if let Some(client) = clients.get_mut(*number) {
                    done += client.go_on(&mut engine.buffer, &requests, &reply, self.pipeline)?;
                }
            }
            engine.ready = ready;
            let now = Instant::now();
            if done > before {
                last = now;
            } else if now.duration_since(last) > SILENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no reply for five seconds"));
            }
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

impl Client {
    /// Reads replies and sends the next requests. Returns the number of requests answered.
    fn go_on(
        &mut self,
        buffer: &mut [u8],
        requests: &[u8],
        reply: &[u8],
        pipeline: usize,
    ) -> io::Result<u64> {
        let whole = |got: usize| (got / reply.len()) as u64;
        let before = whole(self.got);
        self.got += self.peer.receive(buffer, reply, self.got % reply.len())?;
        let answered = whole(self.got) - before;
        if self.got == reply.len() * pipeline {
            self.got = 0;
            self.peer.rewind();
        } else if self.got > reply.len() * pipeline {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more replies than requests"));
        }
        self.peer.send(requests)?;
        Ok(answered)
    }
}
