//! What a Redis node or a sentinel says about the load on it, and the difference of two such
//! readings.

use std::io;
use std::time::{Duration, Instant};

use harness::{Client, Node};

/// One reading of a server's own counters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    at: Instant,
    connections: u64,
    accepted: u64,
    commands: u64,
    cpu: f64,
}

/// The load between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ServerLoad {
    /// Connections at the end, without our own.
    pub(super) connections: u64,
    /// New connections per second.
    pub(super) accepted: f64,
    /// Commands per second.
    pub(super) commands: f64,
    /// Share of one core.
    pub(super) cpu: f64,
}

/// A server that is read over one connection. Opened again if the server closes it, as a master
/// does when it is demoted.
#[derive(Debug)]
pub(super) struct Observed<'a> {
    node: &'a Node,
    client: Client,
}

impl<'a> Observed<'a> {
    pub(super) fn connect(node: &'a Node) -> Self {
        Self { node, client: node.client() }
    }

    /// Reads the counters, and how long the server took to answer.
    pub(super) fn read(&mut self) -> io::Result<(Reading, Duration)> {
        self.ask().or_else(|_| {
            self.client = self.node.client();
            self.ask()
        })
    }

    fn ask(&mut self) -> io::Result<(Reading, Duration)> {
        let asked_at = Instant::now();
        let reply = self.client.cmd(&["INFO"])?;
        let took = asked_at.elapsed();
        let text = reply.text().unwrap_or_default();
        let reading = parse(text, asked_at)
            .ok_or_else(|| io::Error::other("INFO lacks a counter that is measured"))?;
        Ok((reading, took))
    }
}

fn parse(text: &str, at: Instant) -> Option<Reading> {
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    let count = |name: &str| field(name)?.parse::<u64>().ok();
    let seconds = |name: &str| field(name)?.parse::<f64>().ok();
    Some(Reading {
        at,
        connections: count("connected_clients")?,
        accepted: count("total_connections_received")?,
        commands: count("total_commands_processed")?,
        cpu: seconds("used_cpu_user")? + seconds("used_cpu_sys")?,
    })
}

impl Reading {
    /// The load since `before`.
    pub(super) fn since(&self, before: &Self) -> ServerLoad {
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64().max(1e-6);
        // Counts per second: far below 2^52.
        #[expect(clippy::cast_precision_loss, reason = "counts of a short run")]
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        ServerLoad {
            connections: self.connections.saturating_sub(1),
            accepted: rate(self.accepted, before.accepted),
            commands: rate(self.commands, before.commands),
            cpu: (self.cpu - before.cpu) / seconds,
        }
    }
}

impl ServerLoad {
    /// The larger value of each.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            connections: self.connections.max(other.connections),
            accepted: self.accepted.max(other.accepted),
            commands: self.commands.max(other.commands),
            cpu: self.cpu.max(other.cpu),
        }
    }

    /// What `other` does not account for.
    pub(super) fn beyond(self, other: Self) -> Self {
        Self {
            connections: self.connections.saturating_sub(other.connections),
            accepted: (self.accepted - other.accepted).max(0.0),
            commands: (self.commands - other.commands).max(0.0),
            cpu: (self.cpu - other.cpu).max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_rates_between_two_readings() {
        let text = |accepted: u32, commands: u32, cpu: &str| {
            format!(
                "# Clients\r\nconnected_clients:11\r\ntotal_connections_received:{accepted}\r\n\
                 total_commands_processed:{commands}\r\nused_cpu_sys:{cpu}\r\nused_cpu_user:0.5\r\n"
            )
        };
        let start = Instant::now();
        let before = parse(&text(20, 100, "1.0"), start).unwrap();
        let after = parse(&text(24, 300, "1.2"), start + Duration::from_secs(2)).unwrap();
        let load = after.since(&before);
        assert_eq!(load.connections, 10);
        assert!((load.accepted - 2.0).abs() < 1e-9, "{load:?}");
        assert!((load.commands - 100.0).abs() < 1e-9, "{load:?}");
        assert!((load.cpu - 0.1).abs() < 1e-9, "{load:?}");
        assert_eq!(parse("connected_clients:1\r\n", start), None);
    }
}
