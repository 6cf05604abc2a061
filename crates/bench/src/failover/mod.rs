//! `cargo xtask bench failover`: acknowledged writes counted through real failovers, of Pointsman
//! and of everything else that stands between clients and a master.
//!
//! All contenders serve the same failovers, so that disturbances of the machine affect all of them.
//! A contender that cannot be fetched is left out, and a failed run does not stop the others; both
//! are reported. Raw data is written line by line, so that an interrupted measurement is not lost.
//!
//! Runs that look odd are not excluded: what disturbed a run (waiting for a core) is recorded
//! with it.

mod contender;
mod durability;
mod record;
mod report;
mod scenario;
mod scene;
mod table;
mod targets;

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::{Args, ValueEnum};
use harness::{Partition, in_private_namespace, loopback_up};
use setup::{files, install};

use super::raw::{Raw, benches};
use super::stats::short;
use super::subject::Subject;
use super::{caught, name_of, peers, space, stop_on_signals, title_of};
use contender::{Contender, Programs};
use durability::Fault;
use record::{Measure, Record};
use scenario::Scenario;
use scene::Stage;
use targets::Target;

/// Options of `bench failover`.
#[derive(Debug, Args)]
pub(crate) struct FailoverOptions {
    /// Runs of each scenario.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// One run of each, without the Service that is moved after thirty seconds; nothing is written
    /// to benches/.
    #[arg(long, conflicts_with = "runs")]
    quick: bool,
    /// Only this scenario; may be repeated. Nothing is written to benches/ then.
    #[arg(long, value_enum)]
    scenario: Vec<Scenario>,
    /// Only this contender; may be repeated. Nothing is written to benches/ then. Libraries cannot
    /// be combined with --durability.
    #[arg(long, value_enum)]
    contender: Vec<Contender>,
    /// Measure what is lost when writes have to be on this many replicas, and when not: another set
    /// of faults, in which a master dies with its latest writes.
    #[arg(long, value_name = "REPLICAS", conflicts_with_all = ["quick", "scenario"], value_parser = clap::value_parser!(u8).range(1..=2))]
    durability: Option<u8>,
    /// Only this fault; may be repeated.
    #[arg(long, value_enum, requires = "durability")]
    fault: Vec<Fault>,
    /// Writers at full speed.
    #[arg(long, value_name = "N", default_value = "16", requires = "durability")]
    writers: NonZeroUsize,
    /// Milliseconds by which the network delays each direction between a master and its replicas.
    #[arg(long, value_name = "MS", default_value_t = 0, requires = "durability")]
    delay: u64,
    /// TLS on all connections; only with Pointsman.
    #[arg(long, requires = "durability")]
    tls: bool,
    #[command(flatten)]
    subject: Subject,
}

impl FailoverOptions {
    fn runs(&self) -> u32 {
        if self.quick { 1 } else { self.runs }
    }

    fn whole(&self) -> bool {
        !self.quick
            && self.durability.is_none()
            && self.scenario.is_empty()
            && self.contender.is_empty()
            && self.subject.raw.is_none()
    }

    fn contenders(&self) -> Vec<Contender> {
        let is_usual = |it: &Contender| match it {
            _ if self.durability.is_some() => durability::WAYS.contains(it),
            Contender::PointsmanSharedDurable => false,
            Contender::Service30 => !self.quick,
            _ => true,
        };
        let wanted = |it: &Contender| {
            (self.contender.contains(it) || self.contender.is_empty() && is_usual(it))
                && (it.is_pointsman() || !self.tls)
        };
        Contender::value_variants().iter().copied().filter(wanted).collect()
    }

    /// The scenarios of all runs, in turns.
    fn playlist(&self) -> Vec<(u32, Scenario)> {
        let wanted = |it: &Scenario| self.scenario.is_empty() || self.scenario.contains(it);
        let scenarios: Vec<_> = Scenario::value_variants().iter().copied().filter(wanted).collect();
        (1..=self.runs()).flat_map(|run| scenarios.iter().map(move |it| (run, *it))).collect()
    }
}

/// Runs the measurement; success if every promise was kept in every run.
///
/// # Errors
/// A message for people, if it cannot begin, or if a file cannot be written.
pub(crate) fn run(options: &FailoverOptions) -> Result<ExitCode, String> {
    let contenders = options.contenders();
    let library = contenders.iter().find(|it| it.library().is_some());
    if let Some(library) = library.filter(|_| options.durability.is_some()) {
        return Err(format!("--durability counts no writes of {}: leave it out", name_of(library)));
    }
    let program = options.subject.enter(|| {
        install::for_failovers()?;
        peers::fetch(contenders.iter().filter_map(|it| it.source()));
        Ok(())
    })?;
    let stop = stop_on_signals()?;
    space_for_partitions()
        .map_err(|why| format!("{why}; this needs root, nftables and iproute2"))?;
    let programs = Programs::find(&program, options.durability.unwrap_or(1));
    let kind = options.whole().then_some("failover");
    let (sentence, mut raw) = options.subject.describe(&program, &programs.versions(), kind)?;
    let stage = Stage { programs: &programs, stop: &stop };
    if options.durability.is_some() {
        return durability::run(options, &contenders, &stage, raw);
    }
    let (admitted, mut failed) = admit(&contenders);
    let records = play_all(&stage, &options.playlist(), &admitted, raw.as_mut(), &mut failed)?;
    let targets = targets::judge(&records);
    conclude(&records, &targets);
    if let Some(raw) = raw.filter(|_| options.whole() && !stop.load(Ordering::Acquire)) {
        let (runs, name) = (options.runs(), raw.name);
        let about = report::About { machine: &sentence, runs, raw: &name, failed: &failed };
        let file = benches().join("FAILOVER.md");
        files::write(&file, report::document(&records, &targets, &about))?;
        println!("Written to benches/FAILOVER.md and benches/runs/{name}.");
    }
    let kept = targets.iter().all(Target::met) && failed.is_empty() && !records.is_empty();
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The contenders whose programs are there, and a message for each of the others.
fn admit(contenders: &[Contender]) -> (Vec<Contender>, Vec<String>) {
    let (mut admitted, mut left_out) = (Vec::new(), Vec::new());
    for contender in contenders {
        match contender.missing() {
            None => admitted.push(*contender),
            Some(why) => {
                let message = format!("{} is left out: {why}", name_of(contender));
                println!("{message}");
                left_out.push(message);
            }
        }
    }
    (admitted, left_out)
}

/// Executes the runs; returns their records, and adds a message for each that failed.
fn play_all(
    stage: &Stage<'_>,
    list: &[(u32, Scenario)],
    contenders: &[Contender],
    mut raw: Option<&mut Raw>,
    failed: &mut Vec<String>,
) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    for (index, (run, scenario)) in list.iter().enumerate() {
        if stage.stop.load(Ordering::Acquire) {
            break;
        }
        let start = Instant::now();
        let played = caught(|| scene::play(stage, *scenario, contenders, *run));
        let (what, seconds) = (format!("{}, run {run}", name_of(scenario)), start.elapsed());
        println!("{:>3}/{}  {what}, {} s", index + 1, list.len(), seconds.as_secs());
        match played {
            Ok(played) => {
                for (contender, record) in played {
                    match record {
                        Ok(record) => {
                            println!("  {:<18} {}", name_of(&contender), progress(&record));
                            if let Some(raw) = &mut raw {
                                raw.line(&record.line())?;
                            }
                            records.push(record);
                        }
                        Err(why) => failed.push(format!("{what}, {}: {why}", name_of(&contender))),
                    }
                }
            }
            Err(why) => failed.push(format!("{what}: {why}")),
        }
    }
    failed.iter().for_each(|why| println!("FAILED: {why}"));
    Ok(records)
}

fn progress(record: &Record) -> String {
    let text = |measure| record.value(measure).map_or_else(|| "–".to_owned(), short);
    format!(
        "{:>6} acknowledged, {:>5} lost, {:>5} errors, {:>4} wrong, gap {:>6} ms, first after {:>6} ms, {:>5} late",
        text(Measure::Acknowledged),
        text(Measure::Lost),
        text(Measure::Errors),
        text(Measure::Wrong),
        text(Measure::Gap),
        text(Measure::First),
        text(Measure::Late)
    )
}

fn conclude(records: &[Record], targets: &[Target]) {
    for scenario in Scenario::value_variants().iter().copied() {
        if let Some(table) = table::table(records, scenario) {
            println!("\n{}\n\n{table}", title_of(&scenario));
        }
    }
    for target in targets {
        println!("  {}", target.line());
    }
}

fn space_for_partitions() -> Result<(), String> {
    if space::entered().is_some() && in_private_namespace() {
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
            contender: Vec::new(),
            durability: None,
            fault: Vec::new(),
            writers: NonZeroUsize::MIN,
            delay: 0,
            tls: false,
            subject: Subject::default(),
        }
    }

    #[test]
    fn plays_every_scenario_in_turns() {
        let list = options(2, false).playlist();
        assert_eq!(list.len(), 2 * 8);
        assert_eq!((list[0], list[8]), ((1, Scenario::Planned), (2, Scenario::Planned)));
        assert_eq!(options(5, true).playlist().len(), 8);
    }

    #[test]
    fn leaves_out_the_slowest_if_quick() {
        let (all, quick) = (options(1, false).contenders(), options(1, true).contenders());
        assert_eq!(all.len(), quick.len() + 1);
        assert!(!quick.contains(&Contender::Service30));
    }

    #[test]
    fn measures_durability_without_libraries() {
        let of =
            |tls| FailoverOptions { durability: Some(1), tls, ..options(1, false) }.contenders();
        assert_eq!(of(false).len(), durability::WAYS.len());
        assert!(!of(false).into_iter().any(|it| it.source().is_some()));
        assert!(of(true).into_iter().all(Contender::is_pointsman));
    }
}
