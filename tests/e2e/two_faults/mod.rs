//! Two faults at once in what discovery relies on: sentinels that are late, stale or gone while the
//! master is restarted, cut off or superseded. All members have their own addresses, so any two of
//! them can be separated; each test runs in its own network namespace. The harness reaches all
//! members at any time; the program under test connects from [`PROXY`].
//!
//! A pause that a scenario states ("the sentinels come 0.7 s later") is part of the fault and not a
//! wait for a result.

mod blindness;
mod electorate;
mod minority;
mod startup;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use harness::{Cluster, Gap, Load, Node, PROXY, Pointsman, Value, Verdict, wait_until};

use crate::metric;

/// For events without a bound of their own.
const PATIENCE: Duration = Duration::from_secs(40);
/// Clients wait for as long as a scenario lasts.
const LONG_HOLD: &str = "hold_timeout = \"60s\"";
const WRITERS: usize = 8;
/// Writes per second.
const RATE: u32 = 400;

/// A gauge or counter of the only service.
fn value(pointsman: &Pointsman, name: &str) -> Option<f64> {
    metric(pointsman, &format!("pointsman_{name}{{service=\"mymaster\"}}"))
}

fn is(pointsman: &Pointsman, name: &str, expected: f64) -> Result<(), String> {
    match value(pointsman, name) {
        Some(found) if (found - expected).abs() < f64::EPSILON => Ok(()),
        found => Err(format!("{name} is {found:?}")),
    }
}

/// The target in the status.
fn target(pointsman: &Pointsman) -> Option<SocketAddr> {
    let (_, status) = pointsman.get("/status").ok()?;
    let status: serde_json::Value = serde_json::from_str(&status).ok()?;
    status["services"][0]["target"]["addr"].as_str()?.parse().ok()
}

#[track_caller]
fn wait_for_target(pointsman: &Pointsman, expected: SocketAddr, patience: Duration) {
    wait_until(&format!("clients to be led to {expected}"), patience, || match target(pointsman) {
        Some(found) if found == expected => Ok(()),
        found => Err(format!("the target is {found:?}")),
    });
}

/// Waits for a time that the scenario states.
#[track_caller]
fn elapse(since: Instant, time: Duration) {
    wait_until("the scenario's own pause", time + PATIENCE, || since.elapsed() >= time);
}

/// The master that the sentinels have promoted in place of `old`.
#[track_caller]
fn promoted(cluster: &Cluster, old: &Node) -> SocketAddr {
    wait_until("the failover", PATIENCE, || {
        cluster
            .current_master_addr()
            .and_then(|to| if to == old.addr() { Err("none yet".to_owned()) } else { Ok(to) })
    })
}

fn ips<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Vec<IpAddr> {
    nodes.into_iter().map(|node| node.addr().ip()).collect()
}

/// Writers of which some writes have been acknowledged.
#[track_caller]
fn writing(pointsman: &Pointsman) -> Load {
    let load = Load::to(pointsman.addr()).writers(WRITERS).rate(RATE).timeout(PATIENCE).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 200);
    load
}

#[track_caller]
fn more_writes(load: &Load, count: u64) {
    let seen = load.counts().acknowledged;
    wait_until(&format!("{count} more writes"), PATIENCE, || {
        let now = load.counts().acknowledged - seen;
        if now > count {
            Ok(())
        } else {
            Err(format!("{now} more; {:?} {:?}", load.counts(), load.errors()))
        }
    });
}

/// The other sentinels in a sentinel's list: address and flags.
fn listed(sentinel: &Node) -> Result<Vec<(String, String)>, String> {
    let reply = sentinel
        .ask_briefly(&["SENTINEL", "SENTINELS", "mymaster"])
        .map_err(|error| error.to_string())?;
    let text = |it: &Value, key: &str| it.field(key).map(Value::to_string).unwrap_or_default();
    Ok(reply.items().iter().map(|it| (text(it, "ip"), text(it, "flags"))).collect())
}

/// The result of the writes.
struct Outcome {
    verdict: Verdict,
    longest: Option<Duration>,
    errors: Vec<String>,
}

impl Outcome {
    /// Stops the writers and checks their writes on the final master.
    #[track_caller]
    fn of(mut load: Load, master: SocketAddr) -> Self {
        load.stop();
        let verdict = load.verify(master).expect("a look at the master");
        let longest = load.gaps().iter().map(Gap::length).max();
        Self { verdict, longest, errors: load.errors() }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verdict: Verdict { acknowledged, missing, .. }, longest, errors } = self;
        write!(
            f,
            "{acknowledged} writes acknowledged, {missing} of them lost, longest gap {longest:.1?}"
        )?;
        if errors.is_empty() { Ok(()) } else { write!(f, ", errors: {errors:?}") }
    }
}
