//! Reads the counters of all servers of a cluster, and reduces them to the busiest sentinel and the
//! busiest Redis node.

use std::time::{Duration, Instant};

use harness::{Cluster, pause};

use super::counters::{Observed, Reading, ServerLoad};

/// The window in which the highest load is looked for.
const WINDOW: Duration = Duration::from_millis(100);

/// The load of the busiest sentinel and of the busiest Redis node.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Loads {
    pub(super) sentinel: ServerLoad,
    pub(super) node: ServerLoad,
}

impl Loads {
    /// What `other` does not account for.
    pub(super) fn beyond(self, other: Self) -> Self {
        Self { sentinel: self.sentinel.beyond(other.sentinel), node: self.node.beyond(other.node) }
    }

    fn max(self, other: Self) -> Self {
        Self { sentinel: self.sentinel.max(other.sentinel), node: self.node.max(other.node) }
    }
}

/// The servers whose load is measured: all sentinels, and the nodes of the first service.
#[derive(Debug)]
pub(super) struct Observation<'a> {
    sentinels: Vec<Observed<'a>>,
    nodes: Vec<Observed<'a>>,
}

impl<'a> Observation<'a> {
    pub(super) fn of(cluster: &'a Cluster) -> Self {
        let sentinels = cluster.sentinels().iter().map(Observed::connect).collect();
        let first = cluster.groups().iter().take(1).flat_map(harness::Group::nodes);
        Self { sentinels, nodes: first.map(Observed::connect).collect() }
    }

    /// The average load over a period.
    pub(super) fn average(&mut self, period: Duration) -> Result<Loads, String> {
        let (before, _) = self.read()?;
        pause(period);
        let (after, _) = self.read()?;
        Ok(busiest(&before, &after))
    }

    /// The highest load of any window until `end`, and the slowest answer of a sentinel.
    pub(super) fn peak(&mut self, end: Instant) -> Result<(Loads, Duration), String> {
        let (mut peak, mut slowest) = (Loads::default(), Duration::ZERO);
        let (mut before, _) = self.read()?;
        while Instant::now() < end {
            pause(WINDOW);
            let (after, took) = self.read()?;
            peak = peak.max(busiest(&before, &after));
            slowest = slowest.max(took);
            before = after;
        }
        Ok((peak, slowest))
    }

    /// The readings of all servers, and the slowest answer of a sentinel.
    fn read(&mut self) -> Result<(Readings, Duration), String> {
        let mut slowest = Duration::ZERO;
        let mut read = |servers: &mut [Observed<'_>]| {
            let mut readings = Vec::new();
            for server in servers {
                let (reading, took) = server.read().map_err(|error| error.to_string())?;
                slowest = slowest.max(took);
                readings.push(reading);
            }
            Ok::<_, String>(readings)
        };
        let sentinels = read(&mut self.sentinels)?;
        let slowest_sentinel = slowest;
        let nodes = self.nodes.iter_mut().map(|node| node.read().map(|(reading, _)| reading));
        let nodes = nodes.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok((Readings { sentinels, nodes }, slowest_sentinel))
    }
}

struct Readings {
    sentinels: Vec<Reading>,
    nodes: Vec<Reading>,
}

fn busiest(before: &Readings, after: &Readings) -> Loads {
    let most = |before: &[Reading], after: &[Reading]| {
        let loads = before.iter().zip(after).map(|(before, after)| after.since(before));
        loads.fold(ServerLoad::default(), ServerLoad::max)
    };
    Loads {
        sentinel: most(&before.sentinels, &after.sentinels),
        node: most(&before.nodes, &after.nodes),
    }
}
