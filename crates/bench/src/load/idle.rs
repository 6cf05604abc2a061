//! Idle connections: opened, used once and left alone, to measure the proxy's memory per
//! connection.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::client::not_silent_since;
use super::engine::Engine;
use super::meter::private_memory;
use super::peer::Peer;
use super::tls::Tls;
use super::wire::Workload;

/// Connections opened at a time.
const BATCH: usize = 50;

/// The settings of the job.
#[derive(Debug, Clone)]
pub struct Idle {
    /// The address to connect to.
    pub to: SocketAddr,
    /// How to speak TLS there, if at all.
    pub tls: Option<Tls>,
    /// Connections that are open at the first measurement, so that one-time costs do not count.
    pub before: usize,
    /// Connections added for the second measurement.
    pub pairs: usize,
    /// How long the connections are idle before each measurement.
    pub rest: Duration,
}

/// The result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Bytes at the first measurement.
    pub before: u64,
    /// Bytes with the added connections.
    pub after: u64,
}

impl Idle {
    /// Runs the job and measures the memory of `pids`.
    ///
    /// # Errors
    /// If a connection fails or is not answered.
    pub fn run(&self, engine: &mut Engine, pids: &[u32]) -> io::Result<Memory> {
        let mut peers = Vec::new();
        self.open(engine, &mut peers, self.before)?;
        let before = self.look(engine, pids)?;
        self.open(engine, &mut peers, self.before + self.pairs)?;
        let after = self.look(engine, pids)?;
        Ok(Memory { before, after })
    }

    fn open(
        &self,
        engine: &mut Engine,
        peers: &mut Vec<(Peer, usize)>,
        wanted: usize,
    ) -> io::Result<()> {
        let (request, reply) = (Workload::Ping.request(), Workload::Ping.reply());
        let mut last = Instant::now();
        while peers.len() < wanted {
            let batch = peers.len()..wanted.min(peers.len() + BATCH);
            for number in batch.clone() {
                peers.push((Peer::connect(engine, self.to, self.tls.as_ref(), number)?, 0));
            }
            let mut open = batch.len();
            while open > 0 {
                engine.turn_with(|engine, number| {
                    let Some((peer, got)) = peers.get_mut(number) else { return Ok(()) };
                    peer.send(&request)?;
                    let came = peer.receive(&mut engine.buffer, &reply, *got)?;
                    *got += came;
                    if came > 0 && *got == reply.len() {
                        open = open.saturating_sub(1);
                        last = Instant::now();
                    }
                    Ok(())
                })?;
                not_silent_since(last)?;
            }
        }
        Ok(())
    }

    /// Waits while all connections are idle, then measures.
    fn look(&self, engine: &mut Engine, pids: &[u32]) -> io::Result<u64> {
        let until = Instant::now() + self.rest;
        while let Some(left) =
            until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            engine.turn(Some(left))?;
        }
        Ok(private_memory(pids))
    }
}
