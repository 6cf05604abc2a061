//! Large and small requests at once: clients that receive large values as fast as possible, and one
//! client that sends PING at fixed times. Measures how long small requests wait for large ones, and
//! the throughput meanwhile.
//!
//! The small requests have their own thread on the core of the load: the event loop spends
//! milliseconds on large values, and a latency measured there would be that of the loop. A latency
//! counts from the time at which the request was due, as in the [open loop](super::Open).

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::client::{SILENCE, not_silent_since};
use super::closed::{Closed, Rate};
use super::engine::Engine;
use super::meter::Meter;
use super::tally::Latency;
use super::wire::Workload;

/// The settings of the job.
#[derive(Debug, Clone)]
pub struct Mixed {
    /// The large values. The small requests go to the same address for the same time.
    pub bulk: Closed,
    /// The interval of small requests.
    pub gap: Duration,
}

impl Mixed {
    /// Runs the job.
    ///
    /// # Errors
    /// Like [`Closed::run`], for both kinds of requests.
    pub fn run(&self, engine: &mut Engine, meter: &Meter) -> io::Result<(Latency, Rate)> {
        let Closed { to, warm, time, .. } = self.bulk;
        let gap = self.gap;
        std::thread::scope(|scope| {
            let pings = scope.spawn(move || Pings::new(to)?.run(gap, warm, time));
            let rate = self.bulk.run(engine, meter);
            let found = pings
                .join()
                .map_err(|_| io::Error::other("the thread of small requests panicked"))?;
            Ok((Latency::of(found?), rate?))
        })
    }
}

/// The connection of the small requests.
struct Pings {
    stream: TcpStream,
    /// The due times of the requests that are not answered yet.
    due: VecDeque<Instant>,
    got: usize,
}

impl Pings {
    fn new(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, due: VecDeque::new(), got: 0 })
    }

    /// The latencies of the requests that were due after the warm-up.
    fn run(&mut self, gap: Duration, warm: Duration, time: Duration) -> io::Result<Vec<Duration>> {
        let (request, mut found) = (Workload::Ping.request(), Vec::new());
        let mut next = Instant::now() + gap;
        let begin = next + warm;
        let end = begin + time;
        loop {
            let now = Instant::now();
            while next <= now.min(end) {
                // A socket that does not accept a few bytes has not been answered for long: an
                // error.
                self.stream.write_all(&request)?;
                self.due.push_back(next);
                next += gap;
            }
            if now >= end && self.due.is_empty() {
                return Ok(found);
            }
            if now > end {
                not_silent_since(end)?;
            }
            let wait = if now >= end { SILENCE } else { next.saturating_duration_since(now) };
            self.wait(wait)?;
            self.take(begin, &mut found)?;
        }
    }

    fn wait(&self, most: Duration) -> io::Result<()> {
        let most = Timespec::try_from(most).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&mut self, begin: Instant, found: &mut Vec<Duration>) -> io::Result<()> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed"));
            }
            Ok(read) => self.got += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        let (now, reply) = (Instant::now(), Workload::Ping.reply().len());
        while self.got >= reply {
            self.got -= reply;
            let due = self.due.pop_front();
            let due = due.ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "more replies than requests")
            })?;
            if due >= begin {
                found.push(now.saturating_duration_since(due));
            }
        }
        Ok(())
    }
}
