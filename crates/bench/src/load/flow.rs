//! Requests on connections that stay open: at full speed or at a fixed rate, to one target or to
//! two in turn.
//!
//! At full speed (closed loop) a client sends its next requests when the former ones are answered.
//! At a fixed rate (open loop) requests are sent at their times whatever the replies do, and a
//! latency counts from the time at which the request was due. A pause of the proxy therefore shows
//! in all requests that it delayed, not only in one ("coordinated omission").
//!
//! A window ends when every request is answered; all requests count, and all CPU time until then.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::client::{Batch, Client, not_silent_since};
use super::engine::Engine;
use super::meter::{Meter, Window, cpu};
use super::tls::Tls;
use super::wire::Workload;

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The requests.
    pub workload: Workload,
    /// Connections, used in turn at a fixed rate, including those that wait for a reply.
    pub clients: usize,
    /// Requests that a client sends at once.
    pub pipeline: usize,
    /// Sends of all clients per second; `None` sends when the replies are complete.
    pub rate: Option<u32>,
}

/// The duration of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
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

/// What a measurement gave.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// Requests answered.
    pub requests: u64,
    /// Each reply; none at full speed.
    pub replies: Vec<Reply>,
    /// Resources used meanwhile.
    pub window: Window,
}

/// One of several targets in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The address to connect to.
    pub to: SocketAddr,
    /// The process whose CPU time is counted.
    pub pid: u32,
}

/// The result of a window of one of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Requests answered.
    pub requests: u64,
    /// CPU seconds of the process.
    pub cpu: f64,
}

impl Flow {
    /// Sends to one target.
    ///
    /// # Errors
    /// If a connection fails or ends, a reply is not as expected, or none arrives for five seconds.
    pub fn run(
        self,
        engine: &mut Engine,
        to: SocketAddr,
        tls: Option<&Tls>,
        pace: Pace,
        meter: &Meter,
    ) -> io::Result<Measured> {
        let mut group = self.connect(engine, to, tls, 0)?;
        group.window(engine, pace.warm)?;
        let before = meter.sample();
        let (requests, replies) = group.window(engine, pace.time)?;
        Ok(Measured { requests, replies, window: before.until(&meter.sample()) })
    }

    /// Sends to one target with small requests beside it, whose replies are returned. These have
    /// their own event loop and thread, on the same core: a loop spends milliseconds on large
    /// values, and a latency measured in it would be that of the loop.
    ///
    /// # Errors
    /// As of [`run`](Self::run), for both kinds of requests.
    pub fn run_beside(
        self,
        small: Self,
        engine: &mut Engine,
        to: SocketAddr,
        pace: Pace,
        meter: &Meter,
    ) -> io::Result<Measured> {
        thread::scope(|scope| {
            let beside = scope.spawn(move || {
                let (mut engine, _) = Engine::new(SocketAddr::new(to.ip(), 0))?;
                small.run(&mut engine, to, None, pace, &Meter::default())
            });
            let measured = self.run(engine, to, None, pace, meter);
            let panicked = |_| io::Error::other("the thread of small requests panicked");
            let Measured { replies, .. } = beside.join().map_err(panicked)??;
            Ok(Measured { replies, ..measured? })
        })
    }

    /// Sends to two targets in turn: rounds of a short window for each, until `stop`.
    ///
    /// The speed of a machine drifts within seconds. Short windows, in reverse order in every
    /// second round, let the drift affect both targets, so that a few hundred rounds tell costs
    /// apart that differ by one percent.
    ///
    /// # Errors
    /// As of [`run`](Self::run).
    pub fn alternate(
        self,
        engine: &mut Engine,
        targets: [Target; 2],
        window: Duration,
        rounds: u32,
        stop: &AtomicBool,
    ) -> io::Result<Vec<[Cost; 2]>> {
        let [one, other] = targets;
        let mut one = (self.connect(engine, one.to, None, 0)?, one.pid);
        let mut other = (self.connect(engine, other.to, None, self.clients)?, other.pid);
        let mut costs = Vec::new();
        for round in (1..=rounds).take_while(|_| !stop.load(Ordering::Acquire)) {
            costs.push(pair(round, [&mut one, &mut other], |side: &mut (Group, u32)| {
                let (group, pid) = side;
                let before = cpu(*pid);
                let (requests, _) = group.window(engine, window)?;
                let cpu = cpu(*pid).saturating_sub(before).as_secs_f64();
                io::Result::Ok(Cost { requests, cpu })
            })?);
        }
        Ok(costs)
    }

    fn connect(
        self,
        engine: &Engine,
        to: SocketAddr,
        tls: Option<&Tls>,
        first: usize,
    ) -> io::Result<Group> {
        let clients = Client::connect(engine, to, tls, first..first + self.clients)?;
        let batch = Batch::new(self.workload, self.pipeline);
        let gap = self.rate.map(|rate| Duration::from_secs(1) / rate);
        Ok(Group { clients, first, batch, gap })
    }
}

/// Measures both sides, the second one first in every second round.
///
/// # Errors
/// That of a window.
pub(crate) fn pair<S, T, E>(
    round: u32,
    sides: [&mut S; 2],
    mut window: impl FnMut(&mut S) -> Result<T, E>,
) -> Result<[T; 2], E> {
    let [one, other] = sides;
    if round.is_multiple_of(2) {
        let second = window(other)?;
        return Ok([window(one)?, second]);
    }
    Ok([window(one)?, window(other)?])
}

/// The clients of a target.
struct Group {
    clients: Vec<Client>,
    /// The number of the first one.
    first: usize,
    batch: Batch,
    /// Between two sends at a fixed rate.
    gap: Option<Duration>,
}

impl Group {
    /// Sends for this long, and waits for all replies. Returns how many requests were answered, and
    /// at a fixed rate each reply.
    fn window(&mut self, engine: &mut Engine, time: Duration) -> io::Result<(u64, Vec<Reply>)> {
        let Self { clients, first, batch, gap } = self;
        engine.tick_every(*gap)?;
        let start = Instant::now();
        let end = start + time;
        let (mut due, mut turn, mut last) = (start, 0_usize, start);
        let (mut answered, mut replies) = (0, Vec::new());
        if gap.is_none() {
            clients.iter_mut().try_for_each(|client| client.order(batch, start))?;
        }
        loop {
            while let Some(gap) = gap.filter(|_| due <= Instant::now().min(end)) {
                let place = turn % clients.len().max(1);
                if let Some(client) = clients.get_mut(place) {
                    client.order(batch, due)?;
                }
                (turn, due) = (turn + 1, due + gap);
            }
            if Instant::now() >= end && clients.iter().all(Client::is_idle) {
                engine.tick_every(None)?;
                return Ok((answered, replies));
            }
            engine.turn_with(|engine, number| {
                let place = number.checked_sub(*first);
                let client = place.and_then(|place| clients.get_mut(place));
                let Some(client) = client else { return Ok(()) };
                let (mut completed, now) = (0, Instant::now());
                let came = client.pull(&mut engine.buffer, batch, |due| {
                    completed += 1;
                    if gap.is_some() {
                        replies.push(Reply { due, took: due.elapsed() });
                    }
                })?;
                answered += came;
                if came > 0 {
                    last = now;
                }
                if gap.is_none() && now < end {
                    (0..completed).try_for_each(|_| client.order(batch, now))?;
                }
                client.push(batch)
            })?;
            not_silent_since(last)?;
        }
    }
}
