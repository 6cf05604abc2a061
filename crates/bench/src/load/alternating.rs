//! The same load on several targets in turn, in short windows, over connections that stay open:
//! what a request costs each of them.
//!
//! The speed of a machine drifts within seconds. Windows of a fifth of a second, in reverse order
//! in every second round, let the drift affect all targets, so that a few hundred rounds tell costs
//! apart that differ by one percent. A window ends when every request is answered; all requests
//! count, and all CPU time until then.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::client::{Batch, Client, not_silent_since};
use super::engine::Engine;
use super::meter::cpu;
use super::wire::Workload;

/// The settings of the job.
#[derive(Debug, Clone)]
pub struct Alternating {
    /// The requests.
    pub workload: Workload,
    /// Connections to each target.
    pub clients: usize,
    /// Requests that a client sends at once.
    pub pipeline: usize,
    /// Sends of all clients per second; `None` sends when the replies are complete.
    pub rate: Option<u32>,
    /// The length of a window.
    pub window: Duration,
}

/// What receives the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The address to connect to.
    pub to: SocketAddr,
    /// The process whose CPU time is counted.
    pub pid: u32,
}

/// The result of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Requests answered.
    pub requests: u64,
    /// CPU seconds of the process.
    pub cpu: f64,
}

impl Alternating {
    /// Runs rounds of one window for each target until `go_on` returns `false`, which gets the
    /// results of each round in the order of the targets.
    ///
    /// # Errors
    /// If a connection fails or ends, a reply is not as expected, or none arrives for five seconds.
    pub fn run(
        &self,
        engine: &mut Engine,
        targets: &[Target],
        mut go_on: impl FnMut(&[Cost]) -> bool,
    ) -> io::Result<()> {
        let mut groups = targets
            .iter()
            .enumerate()
            .map(|(place, target)| Client::connect(engine, target.to, None, self.numbers(place)))
            .collect::<io::Result<Vec<_>>>()?;
        let batch = Batch::new(self.workload, self.pipeline);
        for round in 0_u64.. {
            let mut costs = vec![Cost { requests: 0, cpu: 0.0 }; targets.len()];
            let mut order: Vec<usize> = (0..targets.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for place in order {
                let (Some(group), Some(target)) = (groups.get_mut(place), targets.get(place))
                else {
                    continue;
                };
                let before = cpu(target.pid);
                let requests = self.window(engine, group, self.numbers(place).start, &batch)?;
                let cpu = cpu(target.pid).saturating_sub(before).as_secs_f64();
                if let Some(cost) = costs.get_mut(place) {
                    *cost = Cost { requests, cpu };
                }
            }
            if !go_on(&costs) {
                break;
            }
        }
        Ok(())
    }

    /// The numbers of the clients of a target.
    fn numbers(&self, place: usize) -> Range<usize> {
        place * self.clients..(place + 1) * self.clients
    }

    /// Sends for the length of a window, and waits for all replies; returns the requests answered.
    fn window(
        &self,
        engine: &mut Engine,
        group: &mut [Client],
        first: usize,
        batch: &Batch,
    ) -> io::Result<u64> {
        let gap = self.rate.map(|rate| Duration::from_secs(1) / rate);
        engine.tick_every(gap)?;
        let start = Instant::now();
        let end = start + self.window;
        let (mut due, mut turn, mut answered, mut last) = (start, 0_usize, 0, start);
        if gap.is_none() {
            group.iter_mut().try_for_each(|client| client.order(batch, start))?;
        }
        loop {
            let now = Instant::now();
            while let Some(gap) = gap.filter(|_| due <= now.min(end)) {
                let place = turn % self.clients.max(1);
                if let Some(client) = group.get_mut(place) {
                    client.order(batch, due)?;
                }
                (turn, due) = (turn + 1, due + gap);
            }
            if now >= end && group.iter().all(Client::is_idle) {
                engine.tick_every(None)?;
                return Ok(answered);
            }
            let before = answered;
            engine.turn_with(|engine, number| {
                let place = number.checked_sub(first);
                let client = place.and_then(|place| group.get_mut(place));
                let Some(client) = client else { return Ok(()) };
                let mut completed = 0;
                answered += client.pull(&mut engine.buffer, batch, |_| completed += 1)?;
                if gap.is_none() && Instant::now() < end {
                    (0..completed).try_for_each(|_| client.order(batch, now))?;
                }
                client.push(batch)
            })?;
            if answered > before {
                last = now;
            }
            not_silent_since(last)?;
        }
    }
}
