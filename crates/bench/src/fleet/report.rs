//! The table of a fleet measurement, and how its logs are read.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::Cell;
use super::counters::ServerLoad;
use super::observation::Loads;

/// The times of day at which a proxy switched this service, in the order of its log. A line
/// is a JSON object that begins with the time in RFC 3339.
pub(super) fn switch_times(log: &str, service: &str) -> Vec<Duration> {
    let about = format!("\"service\":\"{service}\"");
    let switches =
        log.lines().filter(|line| line.contains("switched to new master") && line.contains(&about));
    switches.filter_map(time_of_day).collect()
}

fn time_of_day(line: &str) -> Option<Duration> {
    let (_, rest) = line.split_once('T')?;
    let (time, _) = rest.split_once('Z')?;
    let mut parts = time.splitn(3, ':').map(str::parse::<f64>);
    let mut next = || parts.next()?.ok();
    let (hours, minutes, seconds) = (next()?, next()?, next()?);
    Duration::try_from_secs_f64(hours.mul_add(3600.0, minutes.mul_add(60.0, seconds))).ok()
}

/// One cell, for people who watch.
pub(super) fn line(cell: &Cell) -> String {
    format!(
        "{} proxies, {} services: sentinel {:.0} commands/s and {:.1} % CPU, {:.0} at most in a failover; \
         node {:.0} commands/s and {:.1} % CPU, {:.0} at most; switched within {:.0?} of each other",
        cell.proxies,
        cell.services,
        cell.calm.sentinel.commands,
        cell.calm.sentinel.cpu * 100.0,
        cell.failover.sentinel.commands,
        cell.calm.node.commands,
        cell.calm.node.cpu * 100.0,
        cell.failover.node.commands,
        cell.spread
    )
}

/// One cell, for the raw data.
pub(super) fn json(cell: &Cell) -> Value {
    let server = |load: ServerLoad| {
        json!({
            "connections": load.connections,
            "accepted_per_s": load.accepted,
            "commands_per_s": load.commands,
            "cores": load.cpu,
        })
    };
    let loads = |it: Loads| json!({ "sentinel": server(it.sentinel), "node": server(it.node) });
    json!({
        "proxies": cell.proxies,
        "services": cell.services,
        "calm": loads(cell.calm),
        "failover_peak": loads(cell.failover),
        "restart_peak": loads(cell.restart),
        "slowest_sentinel_ms": cell.slowest.as_secs_f64() * 1e3,
        "switch_spread_ms": cell.spread.as_secs_f64() * 1e3,
    })
}

/// The document for `benches/`.
pub(super) fn document(cells: &[Cell], machine: &str) -> String {
    let mut text = format!(
        "# Load of a fleet on sentinels and Redis nodes\n\n\
         Written by `cargo xtask bench fleet`; raw data in `runs/RAW`. {machine}\n\n\
         Real processes without clients; three sentinels, one master and one replica per service. The busiest sentinel and the\n\
         busiest node of the first service, without what the cluster does by itself. Peaks are the highest tenth of a second.\n\n\
         | Proxies | Services | Sentinel: connections | commands/s | CPU | peak in a failover | peak after a restart | slowest answer \
         | Node: connections | commands/s | CPU | peak in a failover | Last switch after the first |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    for cell in cells {
        let (sentinel, node) = (cell.calm.sentinel, cell.calm.node);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.1} % | {:.0} | {:.0} | {:.0} ms | {} | {:.0} | {:.1} % | {:.0} | {:.0} ms |",
            cell.proxies,
            cell.services,
            sentinel.connections,
            sentinel.commands,
            sentinel.cpu * 100.0,
            cell.failover.sentinel.commands,
            cell.restart.sentinel.commands,
            cell.slowest.as_secs_f64() * 1e3,
            node.connections,
            node.commands,
            node.cpu * 100.0,
            cell.failover.node.commands,
            cell.spread.as_secs_f64() * 1e3,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_switch_times_of_one_service() {
        let line = |time: &str, service: &str, message: &str| {
            format!(
                "{{\"timestamp\":\"2026-11-22T{time}Z\",\"level\":\"INFO\",\
                 \"message\":\"{message}\",\"service\":\"{service}\",\"from\":\"x\"}}\n"
            )
        };
        let log = [
            line("10:00:00.250000", "a", "switched to new master"),
            line("10:00:01.000000", "b", "switched to new master"),
            line("10:01:00.500000", "a", "gate opened, same master"),
            line("10:01:00.750000", "a", "switched to new master"),
        ]
        .concat();
        let times: Vec<u128> = switch_times(&log, "a").iter().map(Duration::as_millis).collect();
        assert_eq!(times, [36_000_250, 36_060_750]);
    }
}
