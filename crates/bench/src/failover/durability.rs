//! `cargo xtask bench failover --durability N`: what is lost when a master dies whose writes
//! replicas have to confirm, and beside it what is lost without that.
//!
//! Each run has a new cluster whose members have addresses of their own, writers at full speed on
//! keys that are written once, and one fault. It ends when the new master has been written to and
//! the old one is back; then the new master must have every acknowledged key. What was written to
//! the old master meanwhile counts as lost, because Sentinel makes it a replica.

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use harness::{Cluster, Cut, Node, PROXY, SlowLink, pause};
use serde_json::json;

use super::FailoverOptions;
use super::contender::{Contender, Front};
use super::scene::{FAILOVER, Stage, wait};
use crate::raw::Raw;
use crate::{caught, name_of};

/// How long Sentinel waits for a master.
const DOWN_AFTER: Duration = Duration::from_millis(600);
/// How long writers run before the fault.
const BEFORE: Duration = Duration::from_millis(500);
/// How long a master is cut off from its replicas before it dies.
const CUT_OFF: Duration = Duration::from_millis(400);
/// Writes that the new master has to acknowledge.
const AFTER: u64 = 200;

/// A fault of the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Fault {
    /// It is cut off from its replicas, and dies.
    CutOff,
    /// Its process hangs until another one is master.
    Hang,
    /// It is cut off from everything but the proxy, the writers and one sentinel.
    Partition,
    /// It dies, and comes back without data.
    PowerLoss,
}

/// What the writers use, if nothing is chosen. What is not confirmed has a fifth of the runs.
pub(super) const WAYS: [Contender; 5] = [
    Contender::PointsmanDurable,
    Contender::PointsmanSharedDurable,
    Contender::Pointsman,
    Contender::Haproxy2,
    Contender::Asking,
];

/// What happened in a run.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    way: Contender,
    fault: Fault,
    acknowledged: u64,
    lost: u64,
    errors: u64,
    gap: Duration,
}

/// Runs everything; success if nothing was lost where it was confirmed.
///
/// # Errors
/// A message for people, if a file cannot be written.
pub(super) fn run(
    options: &FailoverOptions,
    ways: &[Contender],
    stage: &Stage<'_>,
    mut raw: Option<Raw>,
) -> Result<ExitCode, String> {
    let faults = if options.fault.is_empty() { Fault::value_variants() } else { &options.fault };
    let (mut outcomes, mut failed) = (Vec::new(), 0);
    for run in 1..=options.runs {
        for fault in faults {
            for way in ways.iter().filter(|way| way.is_durable() || run % 5 == 1) {
                if stage.stop.load(Ordering::Acquire) {
                    break;
                }
                let (runs, name, of) = (options.runs, name_of(way), name_of(fault));
                let what = format!("{run:>3}/{runs}  {of:<10} {name:<24}");
                match caught(|| play(options, stage, *way, *fault)) {
                    Ok(outcome) => {
                        println!("{what} {}", outcome.text());
                        if let Some(raw) = &mut raw {
                            raw.line(&outcome.line(options))?;
                        }
                        outcomes.push(outcome);
                    }
                    Err(why) => {
                        println!("{what} FAILED: {why}");
                        failed += 1;
                    }
                }
            }
        }
    }
    summarize(faults, ways, &outcomes);
    let kept = outcomes.iter().all(|it| it.lost == 0 || !it.way.is_durable());
    let is_success = kept && failed == 0 && !outcomes.is_empty();
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn summarize(faults: &[Fault], ways: &[Contender], outcomes: &[Outcome]) {
    println!("\n{:<10} {:<24} {:>4}  {:>12}  lost", "", "", "runs", "acknowledged");
    for fault in faults {
        for way in ways {
            let of = || outcomes.iter().filter(|it| it.fault == *fault && it.way == *way);
            let acknowledged: u64 = of().map(|it| it.acknowledged).sum();
            let lost: u64 = of().map(|it| it.lost).sum();
            let with_loss = of().filter(|it| it.lost > 0).count();
            let (fault, way) = (name_of(fault), name_of(way));
            println!(
                "{fault:<10} {way:<24} {:>4}  {acknowledged:>12}  {lost} in {with_loss} runs",
                of().count()
            );
        }
    }
}

impl Outcome {
    fn text(self) -> String {
        format!(
            "{:>7} acknowledged, {:>5} lost, {:>4} errors, gap {:>5} ms",
            self.acknowledged,
            self.lost,
            self.errors,
            self.gap.as_millis()
        )
    }

    fn line(self, options: &FailoverOptions) -> String {
        let line = json!({
            "way": name_of(&self.way), "fault": name_of(&self.fault),
            "acknowledged": self.acknowledged, "lost": self.lost, "errors": self.errors,
            "gap_ms": self.gap.as_millis(), "replicas": options.durability, "writers": options.writers,
            "delay_ms": options.delay, "tls": options.tls,
        });
        line.to_string()
    }
}

fn play(
    options: &FailoverOptions,
    stage: &Stage<'_>,
    way: Contender,
    fault: Fault,
) -> Result<Outcome, String> {
    let cluster = Cluster::builder().down_after(DOWN_AFTER);
    let cluster = if options.tls { cluster.tls() } else { cluster }.start_apart();
    let sentinels: Vec<&Node> = cluster.sentinels().iter().collect();
    let (beside, others) = sentinels.split_first().ok_or("no sentinel")?;
    let (old, replicas) = (cluster.master(), cluster.replicas());
    let ips = |nodes: &[&Node]| nodes.iter().map(|it| it.addr().ip()).collect::<Vec<IpAddr>>();
    let _slow = slow_replication(&cluster, Duration::from_millis(options.delay), stage)?;
    let front = Front::start(way, stage.programs, &cluster)?;
    let load = front.clients(&cluster).prefix("durable").writers(options.writers.get());
    let mut load = load.start();
    wait("the first writes", FAILOVER, stage, || load.counts().acknowledged > 0)?;
    pause(BEFORE);
    let mut cut = None;
    match fault {
        Fault::CutOff => {
            let cut_off = Cut::between(&ips(&[old]), &ips(&replicas));
            pause(CUT_OFF);
            old.kill();
            drop(cut_off);
        }
        Fault::Hang => old.stop(),
        Fault::Partition => {
            let near = [ips(&[old, beside]), vec![PROXY, cluster.address().ip()]].concat();
            cut = Some(Cut::between(&near, &[ips(&replicas), ips(others)].concat()));
        }
        Fault::PowerLoss => old.kill(),
    }
    let named = || cluster.master_addr_of(others.first().unwrap_or(beside), cluster.name());
    wait("another master", FAILOVER, stage, || named().is_ok_and(|it| it != old.addr()))?;
    if fault == Fault::Partition {
        pause(BEFORE);
    }
    drop(cut);
    match fault {
        Fault::CutOff | Fault::PowerLoss => old.restart(),
        Fault::Hang => old.cont(),
        Fault::Partition => {}
    }
    let master = named()?;
    let mut asked = cluster.node_at(master).ok_or("an unknown master")?.client();
    let keys = move || asked.cmd(&["DBSIZE"]).ok().and_then(|it| it.int()).unwrap_or(0);
    written_on(keys, stage)?;
    wait("the old master to follow", FAILOVER, stage, || {
        old.info("replication", "master_link_status").is_ok_and(|it| it == "up")
    })?;
    load.stop();
    drop(front);
    let verdict = load
        .verify_on(cluster.master().client())
        .map_err(|error| format!("the new master cannot be asked: {error}"))?;
    let counts = load.counts();
    let (acknowledged, errors, gap) = (counts.acknowledged, counts.errors, counts.longest_gap);
    Ok(Outcome { way, fault, acknowledged, lost: verdict.missing, errors, gap })
}

/// Makes replication slow, for as long as the value exists: nodes dial nobody but their masters.
fn slow_replication(
    cluster: &Cluster,
    delay: Duration,
    stage: &Stage<'_>,
) -> Result<Option<SlowLink>, String> {
    if delay.is_zero() {
        return Ok(None);
    }
    let nodes: Vec<IpAddr> = cluster.nodes().iter().map(|it| it.addr().ip()).collect();
    let slow = SlowLink::from(&nodes, delay);
    let mut master = cluster.master().client();
    let mut ask = |words: &[&str]| master.cmd(words).ok().and_then(|it| it.int());
    ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    let number = cluster.replicas().len().to_string();
    wait("slow replicas", FAILOVER, stage, || {
        let began = Instant::now();
        ask(&["INCR", "slow"]);
        let confirmed = ask(&["WAIT", &number, "1000"]);
        confirmed.map(|it| it.to_string()).as_ref() == Some(&number) && began.elapsed() >= 2 * delay
    })?;
    Ok(Some(slow))
}

/// Waits until this many keys were added.
fn written_on(mut keys: impl FnMut() -> i64, stage: &Stage<'_>) -> Result<(), String> {
    let before = keys();
    wait("writes on the new master", FAILOVER, stage, || {
        keys().saturating_sub(before) > AFTER.cast_signed()
    })
}
