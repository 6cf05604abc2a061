//! The clients of a part of the crowd, driven by one thread at a fixed rate of requests in all.
//!
//! A request counts from when it was due, so a pause of the server delays all requests that were
//! due in it, as it does for real clients. A client that still awaits a reply sends nothing more.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::client::{Crowded, Fault};

/// Kept texts of what was wrong.
const MOST_TEXTS: usize = 10;

/// What was seen in one phase.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    /// In microseconds.
    pub(super) latencies: Vec<u32>,
    pub(super) wrong: u64,
    pub(super) lost: u64,
    pub(super) refused: u64,
    pub(super) closed: u64,
    /// Requests that were not sent, because the client's last one was not answered.
    pub(super) behind: u64,
    pub(super) texts: BTreeMap<String, u64>,
}

impl Seen {
    fn note(&mut self, text: &str) {
        if self.texts.len() < MOST_TEXTS || self.texts.contains_key(text) {
            *self.texts.entry(text.to_owned()).or_default() += 1;
        }
    }

    /// Adds what another part of the crowd has seen.
    pub(super) fn add(&mut self, other: Self) {
        let Self { latencies, wrong, lost, refused, closed, behind, texts } = other;
        self.latencies.extend(latencies);
        self.wrong += wrong;
        self.lost += lost;
        self.refused += refused;
        self.closed += closed;
        self.behind += behind;
        for (text, count) in texts {
            *self.texts.entry(text).or_default() += count;
        }
    }

    /// The latency that this share of the requests did not exceed.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let at = (sorted.len() as f64 * share) as usize;
        let micros = sorted.get(at.min(sorted.len().saturating_sub(1))).copied();
        Duration::from_micros(micros.unwrap_or_default().into())
    }
}

/// What the thread of the crowd and the one that reads the phases share.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) phase: AtomicUsize,
    pub(super) over: AtomicBool,
    pub(super) seen: Mutex<Vec<Seen>>,
}

/// The clients of one part.
pub(super) struct Crowd {
    /// The number of the first one.
    first: usize,
    clients: Vec<Crowded>,
    epoll: std::os::fd::OwnedFd,
}

impl Crowd {
    /// Connects `count` clients, in turns to these addresses. Their numbers count from `first`.
    ///
    /// # Errors
    /// Those of the connections.
    pub(super) fn gather(first: usize, count: usize, to: &[SocketAddr]) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut clients = Vec::with_capacity(count);
        for (at, to) in (0..count).zip(to.iter().cycle()) {
            let client = Crowded::connect(first + at, *to)?;
            watch(&epoll, &client, at)?;
            clients.push(client);
        }
        Ok(Self { first, clients, epoll })
    }

    /// Sends `rate` requests per second, in turns, until the end.
    ///
    /// # Errors
    /// A client cannot connect again.
    pub(super) fn run(&mut self, rate: u32, stage: &Stage) -> io::Result<()> {
        let gap = Duration::from_secs(1) / rate;
        let (mut due, mut next) = (Instant::now(), 0);
        let mut events = Vec::with_capacity(1024);
        while !stage.over.load(Ordering::Relaxed) {
            let phase = stage.phase.load(Ordering::Relaxed);
            while due <= Instant::now() {
                self.send(next, due, (stage, phase))?;
                next = (next + 1) % self.clients.len();
                due += gap;
            }
            let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: 500_000 };
            events.clear();
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait))?;
            for event in &events {
                let number = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                self.receive(number, (stage, phase))?;
            }
        }
        Ok(())
    }

    fn send(&mut self, at: usize, due: Instant, seen: (&Stage, usize)) -> io::Result<()> {
        let Some(client) = self.clients.get_mut(at) else { return Ok(()) };
        if !client.is_free() {
            record(seen.0, seen.1, |seen| seen.behind += 1);
            return Ok(());
        }
        if client.ask(due).is_err() {
            record(seen.0, seen.1, |seen| seen.closed += 1);
            return self.reconnect(at);
        }
        Ok(())
    }

    fn receive(&mut self, at: usize, seen: (&Stage, usize)) -> io::Result<()> {
        let number = self.first + at;
        let Some(client) = self.clients.get_mut(at) else { return Ok(()) };
        match client.read() {
            Ok(None) => Ok(()),
            Ok(Some((due, fault))) => {
                let took = u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX);
                record(seen.0, seen.1, |seen| {
                    seen.latencies.push(took);
                    match fault {
                        None => {}
                        Some(Fault::Lost) => seen.lost += 1,
                        Some(Fault::Wrong(text)) => {
                            seen.wrong += 1;
                            seen.note(&format!("client {number}: {text}"));
                        }
                        Some(Fault::Refused(text)) => {
                            seen.refused += 1;
                            seen.note(&text);
                        }
                    }
                });
                Ok(())
            }
            Err(error) => {
                record(seen.0, seen.1, |seen| {
                    seen.closed += 1;
                    seen.note(&error.to_string());
                });
                self.reconnect(at)
            }
        }
    }

    fn reconnect(&mut self, at: usize) -> io::Result<()> {
        let Some(client) = self.clients.get_mut(at) else { return Ok(()) };
        client.reconnect()?;
        watch(&self.epoll, client, at)
    }
}

fn watch(epoll: &std::os::fd::OwnedFd, client: &Crowded, number: usize) -> io::Result<()> {
    Ok(epoll::add(epoll, client.stream(), EventData::new_u64(number as u64), EventFlags::IN)?)
}

fn record(stage: &Stage, phase: usize, record: impl FnOnce(&mut Seen)) {
    let mut seen = stage.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(seen) = seen.get_mut(phase) {
        record(seen);
    }
}
