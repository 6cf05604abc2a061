//! A client that sends equal batches of requests, each as soon as the socket accepts it, and checks
//! the replies.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::peer::Peer;
use super::tls::Tls;
use super::wire::Workload;

/// A job fails if no reply arrives for this long.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// An error if the last reply arrived too long ago.
pub(crate) fn not_silent_since(last: Instant) -> io::Result<()> {
    if last.elapsed() > SILENCE {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "no reply for five seconds"));
    }
    Ok(())
}

/// The requests that a client sends at once.
pub(crate) struct Batch {
    requests: Vec<u8>,
    reply: Vec<u8>,
    pipeline: usize,
}

impl Batch {
    pub(crate) fn new(workload: Workload, pipeline: usize) -> Self {
        let requests = workload.request().repeat(pipeline);
        Self { requests, reply: workload.reply(), pipeline }
    }
}

pub(crate) struct Client {
    peer: Peer,
    /// Bytes of the replies to the oldest batch received so far.
    got: usize,
    /// Batches that are not sent completely.
    backlog: usize,
    /// The due times of the batches that are not answered completely.
    due: VecDeque<Instant>,
}

impl Client {
    /// Connects a client for each of these numbers.
    pub(crate) fn connect(
        engine: &Engine,
        to: SocketAddr,
        tls: Option<&Tls>,
        numbers: Range<usize>,
    ) -> io::Result<Vec<Self>> {
        let peers = numbers.map(|number| Peer::connect(engine, to, tls, number));
        let client = |peer| Self { peer, got: 0, backlog: 0, due: VecDeque::new() };
        peers.map(|peer| peer.map(client)).collect()
    }

    /// Whether every batch is answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.due.is_empty()
    }

    /// Sends one more batch, now or when the socket accepts it.
    pub(crate) fn order(&mut self, batch: &Batch, due: Instant) -> io::Result<()> {
        self.backlog += 1;
        self.due.push_back(due);
        self.push(batch)
    }

    /// Continues to send.
    pub(crate) fn push(&mut self, batch: &Batch) -> io::Result<()> {
        while self.backlog > 0 && self.peer.send(&batch.requests)? {
            self.peer.rewind();
            self.backlog -= 1;
        }
        Ok(())
    }

    /// Reads replies, passes on the due time of each batch that they complete, and returns the
    /// number of requests answered.
    pub(crate) fn pull(
        &mut self,
        buffer: &mut [u8],
        batch: &Batch,
        mut completed: impl FnMut(Instant),
    ) -> io::Result<u64> {
        let length = batch.reply.len();
        let before = self.got / length;
        self.got += self.peer.receive(buffer, &batch.reply, self.got % length)?;
        let answered = self.got / length - before;
        while self.got >= length * batch.pipeline {
            self.got -= length * batch.pipeline;
            completed(self.due.pop_front().ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "more replies than requests")
            })?);
        }
        Ok(answered as u64)
    }
}
