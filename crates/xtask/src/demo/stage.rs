//! The processes of the demo, and their start and stop.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bench::stats::grouped;
use harness::{Cluster, Events, Load, Node, Pointsman, Verdict};

use super::explain::Names;
use super::screen::{self, HEADING};
use super::timeline::{Now, short};

const CLIENTS: usize = 8;
/// Writes per second of all clients together: a busy application, but light for a laptop.
const RATE: u32 = 1000;
/// Sentinel's `down-after-milliseconds`. The default of 30 s is too long for a demo; less than two
/// ping intervals cause false alarms.
const DOWN_AFTER: Duration = Duration::from_secs(2);

/// The cluster, pointsman in front of it, the clients, and a subscription to each sentinel.
#[derive(Debug)]
pub(super) struct Stage {
    // Dropped in this order: clients before their servers.
    load: Load,
    events: Events,
    pointsman: Pointsman,
    cluster: Cluster,
}

impl Stage {
    /// Starts all processes and waits until clients can write.
    pub(super) fn set(program: &Path) -> Self {
        let cluster = Cluster::builder().down_after(DOWN_AFTER).start();
        // No other clients will connect, so it may stop at once when asked to.
        let quick =
            ["shutdown.accept_min=0s", "shutdown.accept_quiet=0s", "shutdown.accept_max=0s"];
        let builder = Pointsman::builder(program, &cluster).by_flags();
        let builder = quick.iter().fold(builder, |builder, pair| builder.arg("--set").arg(*pair));
        let pointsman = builder.start();
        let events = Events::of_all(cluster.sentinels());
        let load = Load::to(pointsman.addr()).prefix("demo").writers(CLIENTS).rate(RATE).start();
        harness::wait_until("the first write through pointsman", Duration::from_secs(10), || {
            if load.counts().acknowledged > 0 { Ok(()) } else { Err(load.errors().join("; ")) }
        });
        Self { load, events, pointsman, cluster }
    }

    pub(super) fn load(&self) -> &Load {
        &self.load
    }

    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    pub(super) fn pointsman(&self) -> &Pointsman {
        &self.pointsman
    }

    /// Short names of all servers, counted from one.
    pub(super) fn names(&self) -> Names {
        let named = |nodes: &[Node], kind: &str| -> Vec<(SocketAddr, String)> {
            nodes
                .iter()
                .zip(1..)
                .map(|(node, number)| (node.addr(), format!("{kind}-{number}")))
                .collect()
        };
        Names::new(
            named(self.cluster.nodes(), "redis")
                .into_iter()
                .chain(named(self.cluster.sentinels(), "sentinel")),
        )
    }

    /// The current master, read from the sentinels.
    pub(super) fn master(&self) -> Option<&Node> {
        self.cluster.node_at(self.cluster.current_master_addr().ok()?)
    }

    pub(super) fn now(&self) -> Now {
        let (master, counts) = (self.master(), self.load.counts());
        Now {
            master: master
                .map_or_else(|| "(no agreement)".to_owned(), |node| self.names().of(node.addr())),
            alive: master.is_none_or(Node::is_running),
            acknowledged: counts.acknowledged,
            errors: counts.errors,
            rate: u64::from(RATE),
        }
    }

    /// Looks up every acknowledged write; the master's name and the result, if a master answers.
    pub(super) fn verify(&self) -> Option<(String, Verdict)> {
        let master = self.master()?.addr();
        Some((self.names().of(master), self.load.verify(master).ok()?))
    }

    /// Stops the clients.
    pub(super) fn stop_clients(&mut self) {
        self.load.stop();
    }

    /// Stops all processes: pointsman by SIGTERM, a second one if it takes too long, the rest at
    /// once.
    pub(super) fn stop(mut self) {
        self.load.stop();
        for _ in 0..2 {
            self.pointsman.sigterm();
            for _ in 0..100 {
                if !self.pointsman.process().is_running() {
                    return;
                }
                harness::pause(Duration::from_millis(20));
            }
        }
    }

    /// Prints the topology, the addresses and what will happen.
    pub(super) fn introduce(&self, kill_after: Duration) -> io::Result<()> {
        let pid = self.pointsman.process().pid();
        screen::painted(HEADING, "\nPointsman in front of a Redis Sentinel cluster\n")?;
        screen::line(&format!(
            "  {CLIENTS} clients ────▶ pointsman ────▶ redis-1   master\n\
             \x20 {:>5} writes/s       │            redis-2   replica\n\
             \x20                      ▼            redis-3   replica\n\
             \x20             sentinel-1, -2, -3",
            grouped(u64::from(RATE))
        ))?;
        screen::line(&format!(
            "\n  clients use  {}   (pointsman, process {pid})",
            self.pointsman.addr()
        ))?;
        screen::line(&format!("  admin page   http://{}/", self.pointsman.admin()))?;
        screen::line(&format!(
            "\n  In {} the master is killed. The sentinels wait {} before they consider it down, then promote a replica.",
            short(kill_after).replace(".00", ""),
            short(DOWN_AFTER).replace(".00", "")
        ))?;
        screen::line("  Ctrl-C ends the demo and removes everything.\n")?;
        screen::painted(HEADING, &format!("{:>9}   {:<15} {:>8}", "time", "master", "writes/s"))
    }
}
