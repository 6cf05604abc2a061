//! New connections: connect, send one request, close, repeat. One at a time it measures the latency
//! of the first reply; many at a time it measures connections per second.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use super::client::not_silent_since;
use super::engine::Engine;
use super::flow::{Measured, Pace, Reply};
use super::meter::Meter;
use super::peer::Peer;
use super::tls::Tls;
use super::wire::Workload;

/// The settings of the job.
#[derive(Debug, Clone)]
pub struct Churn {
    /// The address to connect to.
    pub to: SocketAddr,
    /// How to speak TLS there, if at all.
    pub tls: Option<Tls>,
    /// Concurrent connections.
    pub at_once: usize,
    /// Its duration.
    pub pace: Pace,
}

struct Visit {
    peer: Peer,
    got: usize,
    began: Instant,
}

impl Churn {
    /// Runs the job. The latency of each connection lasts from before the connect to the reply to
    /// [`Workload::Ping`].
    ///
    /// # Errors
    /// If a connection fails or is not answered.
    pub fn run(&self, engine: &mut Engine, meter: &Meter) -> io::Result<Measured> {
        let (request, reply) = (Workload::Ping.request(), Workload::Ping.reply());
        let mut visits = Vec::new();
        for number in 0..self.at_once {
            visits.push(self.visit(engine, number, &request)?);
        }
        let begin = Instant::now() + self.pace.warm;
        let (mut start, mut replies, mut last) = (None, Vec::new(), Instant::now());
        let mut resumed = 0;
        loop {
            engine.turn_with(|engine, number| {
                let Some(visit) = visits.get_mut(number) else { return Ok(()) };
                visit.peer.send(&request)?;
                visit.got += visit.peer.receive(&mut engine.buffer, &reply, visit.got)?;
                if visit.got == reply.len() {
                    last = Instant::now();
                    if start.is_some() {
                        replies.push(Reply { due: visit.began, took: visit.began.elapsed() });
                        resumed += usize::from(visit.peer.is_resumed() == Some(true));
                    }
                    // This closes the old connection.
                    *visit = self.visit(engine, number, &request)?;
                }
                Ok(())
            })?;
            let now = Instant::now();
            not_silent_since(last)?;
            match start {
                None if now >= begin => {
                    start = Some((meter.sample(), Instant::now() + self.pace.time));
                }
                Some((sample, end)) if now >= end => {
                    let window = sample.until(&meter.sample());
                    self.tls.as_ref().map_or(Ok(()), |tls| tls.check(replies.len(), resumed))?;
                    return Ok(Measured { requests: replies.len() as u64, replies, window });
                }
                _ => {}
            }
        }
    }

    fn visit(&self, engine: &Engine, number: usize, request: &[u8]) -> io::Result<Visit> {
        let began = Instant::now();
        let mut peer = Peer::connect(engine, self.to, self.tls.as_ref(), number)?;
        // On loopback the connection is open already; otherwise an event follows.
        peer.send(request)?;
        Ok(Visit { peer, got: 0, began })
    }
}
