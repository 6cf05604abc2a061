//! One run: a new cluster, a proxy, writers, a fault, and the count after everything has settled.
//!
//! The writers run until the old master is back and follows the new one, because most losses of a
//! planned failover occur in those seconds. Whatever failed is restored as in production: a dead
//! process is restarted, a stopped one continues, a partition is healed; the old master then
//! believes to be master until Sentinel reconfigures it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{
    Client, Cluster, Event, Events, Haproxy, Load, LoadBuilder, Node, Partition, Pointsman,
    own_source, pause,
};
use serde_json::{Value, json};

use super::observer::Observer;
use super::phase;
use super::record::{Measure, Proxy, Record, Scenario};
use super::samples::{unacknowledged, writes_after};
use super::tap::Tap;
use crate::machine;

/// Writers, each with one connection.
pub(super) const WRITERS: usize = 16;
/// Writes per second of all writers together.
pub(super) const RATE: u32 = 2000;
/// How long a writer waits for a reply before it reconnects.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// Writes before the failover.
const BEFORE: u64 = 4000;
/// Writes to the new master before the old one returns.
const BETWEEN: u64 = 4000;
/// If no write was acknowledged for this long, none is in flight.
const SILENCE: Duration = Duration::from_millis(200);
/// The longest time for a sentinel, a proxy and a writer to find the new master.
pub(super) const FAILOVER: Duration = Duration::from_secs(40);
/// The longest time for the old master to become a replica in sync.
const SETTLE: Duration = Duration::from_secs(60);

/// The settings that all runs share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stage<'a> {
    pub(super) pointsman: &'a Path,
    pub(super) haproxy: &'a Path,
    /// Runs of each scenario through each proxy.
    pub(super) runs: u32,
    /// Set to end the measurement.
    pub(super) stop: &'a AtomicBool,
}

/// The proxy under test, kept alive.
enum Front {
    /// No proxy: the writers query the last sentinel, which no scenario affects, before each
    /// connection.
    Direct(SocketAddr, String),
    Haproxy(Haproxy),
    Pointsman(Pointsman),
}

impl Front {
    fn start(stage: &Stage<'_>, proxy: Proxy, cluster: &Cluster, timed: &Node) -> Self {
        match proxy {
            Proxy::Direct => Self::Direct(timed.addr(), cluster.name().to_owned()),
            Proxy::Haproxy => Self::Haproxy(Haproxy::start(stage.haproxy, cluster)),
            Proxy::Pointsman => {
                Self::Pointsman(Pointsman::builder(stage.pointsman, cluster).start())
            }
        }
    }

    fn load(&self) -> LoadBuilder {
        match self {
            Self::Direct(sentinel, name) => {
                let (sentinel, name) = (*sentinel, name.clone());
                Load::to_resolved(move || named_by(sentinel, &name))
            }
            Self::Haproxy(haproxy) => Load::to(haproxy.addr()),
            Self::Pointsman(pointsman) => Load::to(pointsman.addr()),
        }
    }

    /// The last failover in pointsman's status, and its time.
    fn commit(&self) -> Option<(Instant, Value)> {
        let Self::Pointsman(pointsman) = self else { return None };
        let asked = Instant::now();
        let (_, body) = pointsman.get("/status").ok()?;
        let status: Value = serde_json::from_str(&body).ok()?;
        let failover =
            status.get("services")?.get(0)?.get("failovers")?.as_array()?.last()?.clone();
        // Measured from before the query, so that the time is a lower bound.
        let age = Duration::from_secs_f64(failover.get("age_s")?.as_f64()?);
        failover.get("from").filter(|from| !from.is_null())?;
        Some((asked.checked_sub(age)?, failover))
    }
}

/// The master that a sentinel names.
pub(super) fn named_by(sentinel: SocketAddr, name: &str) -> Option<SocketAddr> {
    let mut client = Client::connect(sentinel).ok()?;
    let reply = client.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name]).ok()?;
    let [host, port] = reply.items() else { return None };
    Some(SocketAddr::new(host.text()?.parse().ok()?, port.int()?.try_into().ok()?))
}

/// Executes one run.
///
/// # Errors
/// A message for people: what was missing, or that the measurement was interrupted.
pub(super) fn play(
    stage: &Stage<'_>,
    scenario: Scenario,
    proxy: Proxy,
    run: u32,
) -> Result<Record, String> {
    let load_average = machine::load_average();
    let cluster = Cluster::builder().start();
    let beside = cluster.sentinels().first().ok_or("no sentinel")?;
    let source = (scenario == Scenario::Partition).then(|| own_source(&cluster, beside));
    // Not the first sentinel, which a partition cuts off.
    let timed = cluster.sentinels().last().ok_or("no sentinel")?;
    let front = Front::start(stage, proxy, &cluster, timed);
    let old = cluster.master();
    let replicas: Vec<_> = cluster.replicas().iter().map(|node| node.addr()).collect();
    let events = Events::of_all(cluster.sentinels());
    let observer = Observer::start(old.addr(), &replicas, source);
    let mut load =
        front.load().prefix("bench").writers(WRITERS).rate(RATE).timeout(TIMEOUT).start();
    let waited = machine::waited_for_cpu();
    let began = Instant::now();
    wait("the first writes", FAILOVER, stage, || load.counts().acknowledged > BEFORE)?;

    let ages = wait_for_phase(stage, &cluster, timed, run)?;
    let tap = Tap::start(old.addr().port())?;
    let cause = Instant::now();
    let cut = bring_about(scenario, &cluster, old, beside, source)?;
    let mut silent = None;
    if matches!(scenario, Scenario::Sigstop | Scenario::Partition) {
        wait("the writers to notice", FAILOVER, stage, || load.since_last() > SILENCE)?;
        silent = Some(load.counts().acknowledged);
    }
    wait("+switch-master", FAILOVER, stage, || switch(&events).is_some())?;
    wait("a write on the new master", FAILOVER, stage, || observer.written())?;
    let seen = load.counts().acknowledged;
    wait("writing to go on", FAILOVER, stage, || load.counts().acknowledged > seen + BETWEEN)?;
    let commit = front.commit();

    bring_back(scenario, old, cut);
    wait("the old master to follow the new one", SETTLE, stage, || follows(&cluster, old))?;
    let settled = cause.elapsed();
    let seen = load.counts().acknowledged;
    wait("writing to go on after that", FAILOVER, stage, || {
        load.counts().acknowledged > seen + u64::from(RATE) / 2
    })?;
    load.stop();
    let busy = share_of_waiting(waited, began);
    let mut record = count(&cluster, &events, &observer, &load, cause, commit.as_ref())?;
    (record.scenario, record.proxy, record.run) = (scenario, proxy, run);
    let late = silent.and_then(|acknowledged| unacknowledged(&observer.old(), acknowledged));
    on_old_master(
        &mut record,
        late,
        tap.as_ref(),
        commit.as_ref().map(|(at, _)| *at).or(switch(&events).map(|it| it.at)),
    )?;
    // Executed without an acknowledgement: before, during or after the partition.
    let more = json!({
        "unacknowledged_on_old_master": late,
        "ping_ages_ms": ages,
        "milestones_ms": phase::milestones(&events.all(), cause),
        "load_average": load_average,
        "share_of_time_waited_for_cpu": busy.map(|busy| (busy * 1000.0).round() / 1000.0),
        "old_master_settled_ms": ms(settled).round(),
        "pointsman_failover": commit.map_or(Value::Null, |(_, failover)| anonymous(failover)),
    });
    if let (Some(all), Value::Object(more)) = (record.more.as_object_mut(), more) {
        all.extend(more);
    }
    Ok(record)
}

/// Waits for the run's phase of the ping period. Returns the ages of all sentinels' last pings,
/// in milliseconds.
fn wait_for_phase(
    stage: &Stage<'_>,
    cluster: &Cluster,
    timed: &Node,
    run: u32,
) -> Result<Vec<Option<f64>>, String> {
    let aim = phase::aim(run, stage.runs);
    wait("the right phase of the pings", FAILOVER, stage, || {
        phase::age(cluster, timed).is_some_and(|age| phase::near(age, aim))
    })?;
    let age = |it| phase::age(cluster, it).map(|age: Duration| age.as_secs_f64() * 1000.0);
    Ok(cluster.sentinels().iter().map(age).collect())
}

/// The share of the time since `began` in which some process waited for a core.
fn share_of_waiting(waited: Option<u64>, began: Instant) -> Option<f64> {
    let (now, then) = machine::waited_for_cpu().zip(waited)?;
    let waited = Duration::from_micros(now.saturating_sub(then));
    Some(waited.as_secs_f64() / began.elapsed().as_secs_f64())
}

/// What went to the old master after it was superseded: from its own statistics, or `late` where it
/// could not be queried; and on the network.
fn on_old_master(
    record: &mut Record,
    late: Option<u64>,
    tap: Option<&Tap>,
    superseded: Option<Instant>,
) -> Result<(), String> {
    if let Some(late) = late.filter(|_| record.scenario == Scenario::Sigstop) {
        record.values.insert(Measure::OldWrites, number(late));
    }
    if let Some((tap, at)) = tap.zip(superseded) {
        record.values.insert(Measure::OldSenders, number(tap.after(at)?));
    }
    Ok(())
}

/// Starts the fault of the scenario. A partition lasts until the returned value is dropped.
fn bring_about(
    scenario: Scenario,
    cluster: &Cluster,
    old: &Node,
    beside: &Node,
    source: Option<Ipv4Addr>,
) -> Result<Option<Partition>, String> {
    match (scenario, source) {
        (Scenario::Planned, _) => drop(cluster.begin_failover_of(cluster.name())),
        (Scenario::Sigkill, _) => old.kill(),
        (Scenario::Sigstop, _) => old.stop(),
        (Scenario::Partition, Some(source)) => {
            return Partition::around(old, beside, source).map(Some);
        }
        (Scenario::Partition, None) => return Err("a partition without a source".to_owned()),
    }
    Ok(None)
}

/// Restores the old master as in production.
fn bring_back(scenario: Scenario, old: &Node, cut: Option<Partition>) {
    drop(cut);
    match scenario {
        Scenario::Sigkill => old.restart(),
        Scenario::Sigstop => old.cont(),
        Scenario::Planned | Scenario::Partition => {}
    }
}

/// The values of the run; the caller adds scenario, proxy and number.
fn count(
    cluster: &Cluster,
    events: &Events,
    observer: &Observer,
    load: &Load,
    cause: Instant,
    commit: Option<&(Instant, Value)>,
) -> Result<Record, String> {
    let master = cluster.current_master_addr()?;
    let verdict =
        load.verify(master).map_err(|error| format!("the new master cannot be asked: {error}"))?;
    let counts = load.counts();
    let switch = switch(events).ok_or("no +switch-master")?;
    let sentinel = switch.at.saturating_duration_since(cause);
    let mut values = BTreeMap::from([
        (Measure::Acknowledged, number(counts.acknowledged)),
        (Measure::Lost, number(verdict.missing)),
        (Measure::Errors, number(counts.errors)),
        (Measure::Gap, ms(counts.longest_gap)),
        (Measure::Sentinel, ms(sentinel)),
        (Measure::Beyond, ms(counts.longest_gap) - ms(sentinel)),
    ]);
    let promotion = observer.promotion(master);
    if let Some((writable, first)) = promotion.and_then(|it| Some((it.writable, it.first_write?))) {
        values.insert(Measure::FirstWrite, ms(first.saturating_duration_since(writable)));
    }
    let superseded = commit.map_or(switch.at, |(at, _)| *at);
    if let Some(writes) = writes_after(&observer.old(), superseded) {
        values.insert(Measure::OldWrites, number(writes));
    }
    let after = |at: Instant| signed_ms(cause, at);
    let gaps =
        load.gaps().into_iter().map(|gap| json!([after(gap.from).round(), after(gap.to).round()]));
    let more = json!({
        "switches": switches(events),
        "writable_ms": promotion.map(|it| after(it.writable)),
        "commit_ms": commit.map(|(at, _)| after(*at)),
        "gaps_ms": gaps.collect::<Vec<_>>(),
        "errors": load.errors(),
        "connections": counts.connections,
        "missing": verdict.examples,
    });
    Ok(Record { scenario: Scenario::Planned, proxy: Proxy::Haproxy, run: 0, values, more })
}

fn switch(events: &Events) -> Option<Event> {
    events.first("+switch-master")
}

/// How many different switches the sentinels announced; more than one means a second failover.
fn switches(events: &Events) -> usize {
    let all = events
        .all()
        .into_iter()
        .filter(|event| event.channel == "+switch-master")
        .map(|event| event.payload);
    all.collect::<std::collections::BTreeSet<_>>().len()
}

/// Whether the old master replicates, in sync, from the master that the sentinels name.
fn follows(cluster: &Cluster, old: &Node) -> bool {
    let Ok(master) = cluster.current_master_addr() else { return false };
    let says = |field: &str, wanted: &str| {
        old.info("replication", field).is_ok_and(|value| value == wanted)
    };
    says("role", "slave")
        && says("master_port", &master.port().to_string())
        && says("master_link_status", "up")
}

/// Pointsman's report of the failover, without the addresses.
fn anonymous(mut failover: Value) -> Value {
    if let Some(object) = failover.as_object_mut() {
        for key in ["from", "to", "age_s"] {
            object.remove(key);
        }
    }
    failover
}

pub(super) fn wait(
    what: &str,
    timeout: Duration,
    stage: &Stage<'_>,
    mut look: impl FnMut() -> bool,
) -> Result<(), String> {
    let deadline = Instant::now() + timeout;
    while !look() {
        if stage.stop.load(Ordering::Acquire) {
            return Err("the end was asked for".to_owned());
        }
        if Instant::now() > deadline {
            return Err(format!("waited {} s in vain for {what}", timeout.as_secs()));
        }
        pause(Duration::from_millis(10));
    }
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn signed_ms(from: Instant, to: Instant) -> f64 {
    ms(to.saturating_duration_since(from)) - ms(from.saturating_duration_since(to))
}

#[allow(clippy::cast_precision_loss, reason = "counts of one run are far below 2^53")]
fn number(count: u64) -> f64 {
    count as f64
}
