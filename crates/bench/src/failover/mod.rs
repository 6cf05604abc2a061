//! `cargo xtask bench failover`: acknowledged writes counted through real failovers.
//!
//! Pointsman and haproxy alternate run by run, so that disturbances of the machine affect both. A
//! failed run is reported and does not stop the others. Raw data is written line by line, so that
//! an interrupted measurement is not lost.
//!
//! Runs that look odd are not excluded: what disturbed a run (load, waiting for a core) is recorded
//! with it.

mod durability;
mod observer;
mod phase;
mod record;
mod report;
mod samples;
mod scene;
mod table;
mod tap;
mod targets;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum as _};
use harness::{Partition, find_in_path, in_private_namespace, loopback_up};

use super::raw::{Raw, benches};
use super::stats::short;
use super::{machine, name_of, space, stop_on_signals, words};
use durability::{Fault, Plan, Way};
use record::{Measure, Proxy, Record, Scenario};
use scene::{RATE, Stage, WRITERS};
use setup::{build, install};
use targets::Target;

/// Options of `bench failover`.
#[derive(Debug, Args)]
pub(crate) struct FailoverOptions {
    /// Runs of each scenario through each proxy.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// One run of each; nothing is written to benches/.
    #[arg(long, conflicts_with = "runs")]
    quick: bool,
    /// Only this scenario; may be repeated. Nothing is written to benches/ then.
    #[arg(long, value_enum)]
    scenario: Vec<Scenario>,
    /// Only this proxy. Nothing is written to benches/ then.
    #[arg(long, value_enum)]
    proxy: Vec<Proxy>,
    /// Measure what is lost when writes have to be on this many replicas, and when not: another set
    /// of faults, in which a master dies with its latest writes.
    #[arg(long, value_name = "REPLICAS", conflicts_with_all = ["quick", "scenario", "proxy"], value_parser = clap::value_parser!(u8).range(1..=2))]
    durability: Option<u8>,
    /// Only this fault; may be repeated.
    #[arg(long, value_enum, requires = "durability")]
    fault: Vec<Fault>,
    /// Only this way to the master; may be repeated.
    #[arg(long, value_enum, requires = "durability")]
    way: Vec<Way>,
    /// Writers at full speed.
    #[arg(long, value_name = "N", default_value_t = WRITERS, requires = "durability")]
    writers: usize,
    /// Milliseconds by which replicas are late, at most.
    #[arg(long, value_name = "MS", default_value_t = 0, requires = "durability")]
    delay: u64,
    /// Write the raw data to this new file, instead of benches/runs/.
    #[arg(long, value_name = "FILE")]
    raw: Option<PathBuf>,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    #[arg(long, hide = true)]
    namespaced: bool,
}

impl FailoverOptions {
    fn runs(&self) -> u32 {
        if self.quick { 1 } else { self.runs }
    }

    fn whole(&self) -> bool {
        !self.quick
            && self.durability.is_none()
            && self.scenario.is_empty()
            && self.proxy.is_empty()
            && self.raw.is_none()
    }

    /// The order of the runs: the proxies alternate, and so does the first one, so that both meet
    /// the same conditions.
    fn playlist(&self, partitions: bool) -> Vec<(u32, Scenario, Proxy)> {
        let wanted =
            |scenario: &Scenario| self.scenario.is_empty() || self.scenario.contains(scenario);
        let scenarios = Scenario::value_variants().iter().copied().filter(wanted);
        let scenarios: Vec<_> =
            scenarios.filter(|it| partitions || *it != Scenario::Partition).collect();
        let proxies = if self.proxy.is_empty() { Proxy::ALL.to_vec() } else { self.proxy.clone() };
        let mut list = Vec::new();
        for run in 1..=self.runs() {
            for scenario in &scenarios {
                let turn: Vec<Proxy> = if run % 2 == 1 {
                    proxies.clone()
                } else {
                    proxies.iter().rev().copied().collect()
                };
                list.extend(turn.into_iter().map(|proxy| (run, *scenario, proxy)));
            }
        }
        list
    }
}

/// Runs the measurement; success if every promise was kept in every run.
///
/// # Errors
/// A message for people, if it cannot begin, or if a file cannot be written.
pub(crate) fn run(options: &FailoverOptions) -> Result<ExitCode, String> {
    if !options.namespaced {
        install::for_failovers()?;
    }
    let program = build::released_or(options.program.as_deref())?;
    if !options.namespaced {
        let why = space::enter(&program);
        println!("No network namespace: {why}.");
    }
    let stop = stop_on_signals().map_err(|error| format!("signals cannot be handled: {error}"))?;
    let partitions = space_for_partitions(options.namespaced);
    if let Err(why) = &partitions {
        println!("The partition scenario is skipped: {why}. It needs root, nftables and iproute2.");
    }
    let haproxy = find_in_path("haproxy").unwrap_or_else(|| PathBuf::from("/usr/sbin/haproxy"));
    let versions = [("haproxy".to_owned(), machine::said(Command::new(&haproxy).arg("-v")))];
    let described = machine::describe(&program, options.namespaced, &versions);
    let sentence = machine::sentence(&described);
    println!("{sentence}");
    let mut raw = match &options.raw {
        Some(file) => Some(Raw::at(file)?),
        None if options.whole() => Some(Raw::create("failover")?),
        None => None,
    };
    if let Some(raw) = &mut raw {
        raw.line(&described.to_string())?;
    }
    let stage = Stage { pointsman: &program, haproxy: &haproxy, runs: options.runs(), stop: &stop };
    if let Some(replicas) = options.durability {
        partitions.map_err(|why| format!("{why}; this needs root, nftables and iproute2"))?;
        let (runs, writers) = (options.runs(), options.writers);
        let delay = Duration::from_millis(options.delay);
        let (faults, ways) = (options.fault.clone(), options.way.clone());
        let plan = Plan { replicas, runs, writers, delay, faults, ways };
        return durability::run(&plan, &stage, raw);
    }
    let (records, failed) = play_all(&stage, &options.playlist(partitions.is_ok()), raw.as_mut())?;
    let targets = targets::judge(&records, WRITERS);
    conclude(&records, &targets);
    if let Some(raw) = raw.filter(|_| options.whole() && !stop.load(Ordering::Acquire)) {
        let (runs, name) = (options.runs(), raw.name);
        let about = report::About {
            machine: &sentence,
            runs,
            writers: WRITERS,
            rate: RATE,
            raw: &name,
            failed: &failed,
        };
        let file = benches().join("FAILOVER.md");
        fs::write(&file, report::document(&records, &targets, &about))
            .map_err(|error| format!("{}: {error}", file.display()))?;
        println!("Written to benches/FAILOVER.md and benches/runs/{name}.");
    }
    let kept = targets.iter().all(Target::met) && failed.is_empty() && !records.is_empty();
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Executes the runs; returns their records and a message for each failed run.
fn play_all(
    stage: &Stage<'_>,
    list: &[(u32, Scenario, Proxy)],
    mut raw: Option<&mut Raw>,
) -> Result<(Vec<Record>, Vec<String>), String> {
    let (mut records, mut failed) = (Vec::new(), Vec::new());
    for (index, (run, scenario, proxy)) in list.iter().enumerate() {
        if stage.stop.load(Ordering::Acquire) {
            break;
        }
        let what = format!("{:<9} through {:<9} run {run}", name_of(scenario), name_of(proxy));
        let start = Instant::now();
        // In a separate thread: the harness panics if something is missing, and the other runs
        // should continue.
        let played = std::thread::scope(|scope| {
            scope.spawn(|| scene::play(stage, *scenario, *proxy, *run)).join()
        });
        let said = match played.unwrap_or_else(|panic| Err(words(&*panic))) {
            Ok(record) => {
                if let Some(raw) = &mut raw {
                    raw.line(&record.line())?;
                }
                let said = progress(&record);
                records.push(record);
                said
            }
            Err(why) => {
                failed.push(format!("{what}: {why}"));
                format!("FAILED: {why}")
            }
        };
        println!(
            "{:>3}/{}  {what}  {:>3} s  {said}",
            index + 1,
            list.len(),
            start.elapsed().as_secs()
        );
    }
    Ok((records, failed))
}

fn progress(record: &Record) -> String {
    let text = |measure| record.value(measure).map_or_else(|| "?".to_owned(), short);
    format!(
        "{} acknowledged, {} lost, {} errors, gap {} ms (Sentinel {} ms), {} on the old master",
        text(Measure::Acknowledged),
        text(Measure::Lost),
        text(Measure::Errors),
        text(Measure::Gap),
        text(Measure::Sentinel),
        text(Measure::OldWrites)
    )
}

fn conclude(records: &[Record], targets: &[Target]) {
    for scenario in Scenario::value_variants().iter().copied() {
        if let Some(rows) = table::rows(records, scenario) {
            println!("\n{}\n\n{}", scenario.title(), table::plain(&rows));
        }
    }
    for target in targets {
        println!("  {}", target.line());
    }
}

fn space_for_partitions(namespaced: bool) -> Result<(), String> {
    if namespaced && in_private_namespace() {
        loopback_up()?;
    }
    Partition::possible()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(runs: u32, quick: bool) -> FailoverOptions {
        FailoverOptions {
            runs,
            quick,
            scenario: Vec::new(),
            proxy: Vec::new(),
            raw: None,
            program: None,
            durability: None,
            fault: Vec::new(),
            way: Vec::new(),
            writers: WRITERS,
            delay: 0,
            namespaced: false,
        }
    }

    #[test]
    fn alternates_proxies_and_the_first_one() {
        let list = options(2, false).playlist(true);
        assert_eq!(list.len(), 2 * 4 * 2);
        assert_eq!(list[0], (1, Scenario::Planned, Proxy::Haproxy));
        assert_eq!(list[1], (1, Scenario::Planned, Proxy::Pointsman));
        assert_eq!(list[8], (2, Scenario::Planned, Proxy::Pointsman));
    }

    #[test]
    fn leaves_out_partitions_if_impossible() {
        let list = options(5, true).playlist(false);
        assert_eq!(list.len(), 3 * 2);
        assert!(list.iter().all(|(_, scenario, _)| *scenario != Scenario::Partition));
    }
}
