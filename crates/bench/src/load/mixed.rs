//! Bulk and small requests at once: clients that are sent large values as fast as they take them,
//! and one that asks for a PONG at fixed moments. Tells how long small requests wait for large
//! ones, and how much fits through meanwhile.
//!
//! The small requests have a thread of their own on the core of the load: its loop takes
//! milliseconds for the large values, and a latency that is measured there would be the loop's. A
//! latency counts from the moment at which the request was due, as in the [open loop](super::Open).

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::closed::{Closed, Rate, SILENCE};
use super::engine::Engine;
use super::meter::Meter;
use super::tally::Latency;
use super::wire::Workload;

/// What to do.
#[derive(Debug, Clone)]
pub struct Mixed {
    /// The large values. The small requests go to the same address, for the same time.
    pub bulk: Closed,
    /// Time between two small requests.
    pub gap: Duration,
}

impl Mixed {
    /// Runs it.
    ///
    /// # Errors
    /// As [`Closed::run`], for both.
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

/// A connection with small requests.
struct Pings {
    stream: TcpStream,
    /// When each of the requests that are not answered yet was due.
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

    /// How long each took that was due after the warm-up.
    fn run(&mut self, gap: Duration, warm: Duration, time: Duration) -> io::Result<Vec<Duration>> {
        let (request, mut found) = (Workload::Ping.request(), Vec::new());
        let mut next = Instant::now() + gap;
        let begin = next + warm;
        let end = begin + time;
        loop {
            let now = Instant::now();
            while next <= now.min(end) {
                // A socket that does not take a few bytes has had no answer for long: that is an
                // error here.
                self.stream.write_all(&request)?;
                self.due.push_back(next);
                next += gap;
            }
            if now >= end && self.due.is_empty() {
                return Ok(found);
            }
            if now > end + SILENCE {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "small requests without a reply for five seconds",
                ));
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
