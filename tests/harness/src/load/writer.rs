//! One writer: connects, writes one key after the other, and reconnects on any error.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::tally::Tally;
use crate::client::{Client, Login};
use crate::tls::Tls;
use crate::wait::pause;

/// Returns the address to connect to.
#[derive(Clone)]
pub(super) struct Find(pub(super) Arc<dyn Fn() -> Option<SocketAddr> + Send + Sync>);

impl fmt::Debug for Find {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Find")
    }
}

/// The settings of every writer.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) find: Find,
    pub(super) prefix: String,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Tls>,
    pub(super) timeout: Duration,
    /// The interval between two writes of one writer.
    pub(super) interval: Option<Duration>,
    /// The pause between a failure and the next attempt.
    pub(super) back_off: Duration,
}

impl Plan {
    /// A new connection to the present address.
    pub(super) fn connect(&self) -> Result<Client, String> {
        let addr = (self.find.0)().ok_or("nowhere to connect")?;
        let connected = match &self.tls {
            Some(tls) => Client::connect_tls(addr, tls, self.timeout),
            None => Client::connect_within(addr, self.timeout),
        };
        connected
            .and_then(|client| client.log_in(self.login.as_ref()))
            .map_err(|error| format!("connecting: {error}"))
    }
}

pub(super) struct Writer {
    index: usize,
    plan: Plan,
    tally: Arc<Tally>,
    next: u64,
    due: Instant,
}

impl Writer {
    pub(super) fn new(index: usize, plan: Plan, tally: Arc<Tally>) -> Self {
        Self { index, plan, tally, next: 0, due: Instant::now() }
    }

    pub(super) fn run(&mut self) {
        while !self.tally.stopped() {
            if let Err(text) = self.one_connection()
                && !self.tally.stopped()
            {
                self.tally.fail(text);
                pause(self.plan.back_off);
            }
        }
    }

    fn one_connection(&mut self) -> Result<(), String> {
        let mut client = self.plan.connect()?;
        self.tally.connected(self.index, client.stream());
        while !self.tally.stopped() {
            self.keep_pace();
            let number = self.next;
            self.next += 1;
            let key = key(&self.plan.prefix, self.index, number);
            let reply =
                client.cmd(&["SET", &key, "1"]).map_err(|error| format!("writing: {error}"))?;
            if !reply.is_ok() {
                return Err(format!("answered: {reply}"));
            }
            self.tally.acknowledge(self.index, number);
        }
        Ok(())
    }

    fn keep_pace(&mut self) {
        let Some(interval) = self.plan.interval else { return };
        let now = Instant::now();
        pause(self.due.saturating_duration_since(now));
        // Writes that were impossible during an outage are not made up for in a burst.
        self.due = self.due.max(now) + interval;
    }
}

pub(super) fn key(prefix: &str, writer: usize, number: u64) -> String {
    format!("{prefix}:{writer}:{number}")
}
