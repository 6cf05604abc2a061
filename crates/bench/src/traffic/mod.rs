//! `cargo xtask bench`: the cost of traffic through pointsman and through other proxies.
//!
//! Every row of the targets is measured in every round. Within a row the proxies alternate,
//! starting with another one in each round, so that disturbances of the machine affect all of them.
//! Proxies outside of the comparison are measured in every second round. The raw data is written
//! line by line.
//!
//! Everything runs on loopback: the cost of a network card is the same for every proxy, and this
//! has to run anywhere.

pub(crate) mod alternate;
mod environment;
mod record;
mod report;
mod scene;
mod single_request;
mod targets;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use setup::{build, files, install};

use super::load::Pace;
use super::peers::{self, Peer};
use super::raw::{Raw, benches};
use super::stats::figure;
use super::subject::Subject;
use super::{caught, name_of, stop_on_signals, title_of};
use record::{Record, Row};
use scene::{Built, Scene};

/// The part of a core that other processes may use before a measurement counts as disturbed.
const FOREIGN: f64 = 0.10;
/// The part of the time that the host may take.
const STOLEN: f64 = 0.03;

/// Options of the traffic benchmark.
#[derive(Debug, Args)]
pub(crate) struct TrafficOptions {
    /// Rounds; each measures everything once.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: u32,
    /// One short round in less than two minutes; nothing is written to benches/.
    #[arg(long, conflicts_with = "runs")]
    quick: bool,
    /// Only this row; may be repeated. Nothing is written to benches/ then. Rows of writes are
    /// measured only if they are named.
    #[arg(long, value_enum, value_name = "ROW", value_delimiter = ',')]
    only: Vec<Row>,
    /// Only these proxies. Nothing is written to benches/ then.
    #[arg(long, value_enum, value_name = "PEER", value_delimiter = ',')]
    peers: Vec<Peer>,
    #[command(flatten)]
    subject: Subject,
}

impl TrafficOptions {
    fn peers(&self) -> Vec<Peer> {
        let wanted = |peer: &Peer| self.peers.is_empty() || self.peers.contains(peer);
        Peer::value_variants().iter().copied().filter(wanted).collect()
    }

    fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.runs }
    }

    fn pace(&self) -> Pace {
        let millis = Duration::from_millis;
        if self.quick {
            Pace { warm: millis(150), time: millis(600) }
        } else {
            Pace { warm: millis(250), time: millis(1000) }
        }
    }

    /// Whether this run produces the report.
    fn whole(&self) -> bool {
        !self.quick && self.only.is_empty() && self.peers.is_empty() && self.subject.raw.is_none()
    }

    /// The measurements of a round with these peers, in order.
    fn playlist(&self, round: u32, admitted: &[Peer]) -> Vec<(Row, Peer)> {
        let aside = |peer: Peer| {
            use Peer::{PointsmanDurable, PointsmanShared, PointsmanSharedDurable};
            matches!(peer, PointsmanShared | PointsmanDurable | PointsmanSharedDurable)
                || matches!(peer, Peer::Nginx | Peer::Twemproxy)
        };
        let mut list = Vec::new();
        let wanted =
            |row: &&Row| self.only.contains(row) || (self.only.is_empty() && !row.needs_replicas());
        for row in Row::value_variants().iter().copied().filter(|row| wanted(&row)) {
            let plays = |peer: &Peer| row.includes(*peer) && (round % 2 == 1 || !aside(*peer));
            let mut turn: Vec<Peer> = admitted.iter().copied().filter(plays).collect();
            let first = (round - 1) as usize % turn.len().max(1);
            turn.rotate_left(first);
            list.extend(turn.into_iter().map(|peer| (row, peer)));
        }
        list
    }
}

/// Runs the measurement.
///
/// # Errors
/// A message for people, if it cannot start, or if a file cannot be written.
pub(crate) fn run(options: &TrafficOptions) -> Result<ExitCode, String> {
    let baseline = || baseline(options.peers().contains(&Peer::Baseline));
    let pointsman = options.subject.enter(|| {
        install::for_traffic()?;
        peers::fetch(options.peers().into_iter().filter_map(Peer::source));
        // In the namespace there is no network for a build.
        drop(baseline());
        Ok(())
    })?;
    let stop = stop_on_signals()?;
    environment::prepare();
    let mut missing = Vec::new();
    let is_there = |peer: Peer| peer.source().map_or(Ok(()), |it| peers::find(it).map(drop));
    let mut admitted = those_that(options.peers(), &mut missing, is_there);
    let versions = versions(&admitted);
    let kind = options.whole().then_some("traffic");
    let (sentence, mut raw) = options.subject.describe(&pointsman, &versions, kind)?;
    let cores = environment::cores()?;
    let built = Built { pointsman, baseline: baseline() };
    let mut scene = caught(|| Scene::start(built, cores, replicas(&options.only)))?;
    admitted = those_that(admitted, &mut missing, |peer| caught(|| scene.admit(peer)));
    let played = play(options, &mut scene, &admitted, &stop, raw.as_mut(), &mut missing)?;
    drop(scene);
    let verdicts = targets::judge(&played);
    for verdict in &verdicts {
        println!("  {}", verdict.line());
    }
    let disturbed = played.iter().filter(|record| record.disturbed).count();
    let usable = 2 * disturbed <= played.len();
    if !usable {
        println!(
            "{disturbed} of {} measurements were disturbed: too many for a document.",
            played.len()
        );
    }
    if let Some(raw) = raw.filter(|_| options.whole() && usable && !stop.load(Ordering::Acquire)) {
        let rounds = played.iter().map(|record| record.round).max().unwrap_or(0);
        let about = report::About {
            machine: &sentence,
            rounds,
            seconds: options.pace().time.as_secs_f64(),
            raw: &raw.name,
            missing: &missing,
        };
        write_report(&played, &verdicts, &about)?;
    }
    Ok(if played.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The number of Redis's replicas that these rows need.
fn replicas(rows: &[Row]) -> usize {
    if rows.iter().any(|row| row.needs_replicas()) { 2 } else { 0 }
}

/// The baseline proxy. Returns quickly if it is built already.
fn baseline(wanted: bool) -> Result<PathBuf, String> {
    if !wanted {
        return Err("not selected".to_owned());
    }
    build::examples([("pointsman-bench", "baseline")]).map(|[baseline]| baseline)
}

fn write_report(
    played: &[Record],
    verdicts: &[targets::Verdict],
    about: &report::About<'_>,
) -> Result<(), String> {
    let file = benches().join("RESULTS.md");
    files::write(&file, report::document(played, verdicts, about))?;
    println!("Written to benches/RESULTS.md and benches/runs/{}.", about.raw);
    Ok(())
}

/// The peers that pass; the others are named on the terminal and in the report.
fn those_that(
    mut peers: Vec<Peer>,
    missing: &mut Vec<String>,
    mut pass: impl FnMut(Peer) -> Result<(), String>,
) -> Vec<Peer> {
    peers.retain(|peer| match pass(*peer) {
        Ok(()) => true,
        Err(why) => {
            println!("SKIPPED {}: {why}", name_of(peer));
            missing.push(format!("{}: {why}", name_of(peer)));
            false
        }
    });
    peers
}

/// The versions of the peers; tuned variants are the same program as another peer.
fn versions(peers: &[Peer]) -> Vec<(String, Option<String>)> {
    let variant = |peer: &Peer| matches!(peer, Peer::Haproxy3Buffers | Peer::Haproxy3Splice);
    let programs = peers.iter().filter(|peer| !variant(peer));
    programs
        .filter_map(|peer| {
            Some((name_of(peer), peers::version(*peer, &peers::find(peer.source()?).ok()?)))
        })
        .collect()
}

/// Runs all rounds and returns the records. A measurement that fails is reported and does not stop
/// the others.
fn play(
    options: &TrafficOptions,
    scene: &mut Scene,
    admitted: &[Peer],
    stop: &AtomicBool,
    mut raw: Option<&mut Raw>,
    missing: &mut Vec<String>,
) -> Result<Vec<Record>, String> {
    let (start, mut records) = (Instant::now(), Vec::new());
    for round in 1..=options.rounds() {
        for (row, peer) in options.playlist(round, admitted) {
            if stop.load(Ordering::Acquire) {
                return Ok(records);
            }
            let said = match measure(scene, row, peer, round, options.pace()) {
                Ok(record) => {
                    if let Some(raw) = &mut raw {
                        raw.line(&record.line())?;
                    }
                    let said = progress(&record);
                    records.push(record);
                    said
                }
                Err(why) => {
                    missing.push(format!(
                        "{} of {} in round {round}: {why}",
                        name_of(&row),
                        name_of(&peer)
                    ));
                    format!("FAILED: {why}")
                }
            };
            let (at, of, row) = (start.elapsed().as_secs(), options.rounds(), name_of(&row));
            println!("{at:>4} s  round {round}/{of}  {row:<11} {:<17} {said}", name_of(&peer));
        }
    }
    Ok(records)
}

/// Measures once, or twice if the first measurement was disturbed; returns the quieter one.
fn measure(
    scene: &mut Scene,
    row: Row,
    peer: Peer,
    round: u32,
    pace: Pace,
) -> Result<Record, String> {
    let mut once = || {
        let (values, window) = caught(|| scene.measure(row, peer, pace))?;
        let share =
            |used: f64| if window.seconds > 0.0 { (used / window.seconds).max(0.0) } else { 0.0 };
        let (foreign, stolen) = (share(window.foreign), share(window.stolen));
        let disturbed = foreign > FOREIGN || stolen > STOLEN;
        Ok::<_, String>((Record { row, peer, round, values, foreign, disturbed }, foreign + stolen))
    };
    let (first, noise) = once()?;
    if !first.disturbed {
        return Ok(first);
    }
    let (second, later) = once()?;
    Ok(if later < noise { second } else { first })
}

fn progress(record: &Record) -> String {
    let values = record.row.measures().iter().filter_map(|measure| {
        let value = record.value(*measure)?;
        Some(format!("{:>9} {}", figure(value), title_of(measure)))
    });
    let disturbed = if record.disturbed {
        format!("  (disturbed: {:.2} cores)", record.foreign)
    } else {
        String::new()
    };
    format!("{}{disturbed}", values.collect::<Vec<_>>().join("  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(runs: u32) -> TrafficOptions {
        let (only, peers) = (Vec::new(), Vec::new());
        TrafficOptions { runs, quick: false, only, peers, subject: Subject::default() }
    }

    #[test]
    fn runs_additional_proxies_every_second_round() {
        let options = options(3);
        let row = |round: u32, row: Row| -> Vec<Peer> {
            let list = options.playlist(round, Peer::value_variants());
            list.into_iter().filter(|(it, _)| *it == row).map(|(_, peer)| peer).collect()
        };
        assert_eq!(row(1, Row::Small)[..2], [Peer::Pointsman, Peer::Haproxy3]);
        assert_eq!(row(2, Row::Small), [Peer::Haproxy3, Peer::Baseline, Peer::Pointsman]);
        assert_eq!(row(3, Row::Small).len(), 6);
        assert_eq!(row(1, Row::Get1m).len(), 9);
    }

    #[test]
    fn writes_no_document_for_a_partial_run() {
        assert!(options(5).whole());
        assert!(!TrafficOptions { only: vec![Row::Small], ..options(5) }.whole());
        assert!(!TrafficOptions { quick: true, ..options(5) }.whole());
        assert!(
            TrafficOptions { only: vec![Row::Idle], ..options(1) }
                .playlist(1, Peer::value_variants())
                .len()
                == 6
        );
    }
}
