//! `cargo xtask bench switchover`: repeated switchovers of one cluster under writers.
//!
//! Each must lose no acknowledged write, cause no error, and pause writes for little longer than
//! Sentinel's promotion takes. Between two switchovers the benchmark waits until both other nodes
//! follow the new master, because the next one would be refused otherwise.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Args;
use harness::{Cluster, Load, Pointsman, wait_until};
use serde_json::{Value, json};

use setup::{build, install};

const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "only-for-this-measurement";
/// How much longer than Sentinel's own promotion the longest pause may be.
const BEYOND: Duration = Duration::from_millis(300);

/// Options of `bench switchover`.
#[derive(Debug, Args)]
pub(crate) struct SwitchoverBenchOptions {
    /// Number of switchovers.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    times: u32,
    /// Writers, each with its own connection, at full speed.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=200))]
    writers: u32,
    /// Only print the figures; write nothing to benches/.
    #[arg(long)]
    dry: bool,
}

/// One switchover.
struct Move {
    held: Duration,
    sentinel: Duration,
    gap: Duration,
    errors: u64,
    text: String,
}

/// Runs the measurement.
///
/// # Errors
/// A message for people, if a switchover fails or the measurement cannot start.
pub(crate) fn run(options: &SwitchoverBenchOptions) -> Result<ExitCode, String> {
    install::whatever_is_missing()?;
    let program = build::released_pointsman()?;
    let cluster = Cluster::builder().start();
    let pointsman = Pointsman::builder(&program, &cluster)
        .arg("--set=admin.control=true")
        .arg("--set=admin.control_token_env=BENCH_TOKEN")
        .env("BENCH_TOKEN", TOKEN)
        .start();
    let writers = usize::try_from(options.writers).unwrap_or(16);
    // The harness paces its writers; an unreachable rate means full speed.
    let mut load = Load::to(pointsman.addr()).writers(writers).rate(200_000).start();
    let mut moves = Vec::new();
    for number in 1..=options.times {
        settle(&cluster);
        let before = load.counts();
        let began = Instant::now();
        let told = order(&program, &pointsman)?;
        let acknowledged = load.counts().acknowledged;
        wait_until("writes to go on", PATIENCE, || load.counts().acknowledged > acknowledged + 100);
        let gaps = load.gaps().into_iter().filter(|gap| gap.to >= began);
        let gap = gaps.map(|gap| gap.length()).max().unwrap_or_default();
        let errors = load.counts().errors - before.errors;
        let span = |key: &str| {
            Duration::from_millis(told.get(key).and_then(Value::as_u64).unwrap_or_default())
        };
        let (held, sentinel) = (span("held_ms"), span("sentinel_ms"));
        println!(
            "{number:>3}. held {held:?}, of that Sentinel's own {sentinel:?}; longest gap {gap:?}; {errors} errors"
        );
        let text =
            json!({ "move": number, "outcome": told, "gap_ms": gap.as_millis() as u64, "errors": errors }).to_string();
        moves.push(Move { held, sentinel, gap, errors, text });
    }
    load.stop();
    let verdict =
        load.verify(cluster.master().addr()).map_err(|error| format!("the new master: {error}"))?;
    let document = document(options, &moves, (verdict.acknowledged, verdict.missing));
    println!("\n{document}");
    for why in load.errors() {
        println!("error seen: {why}");
    }
    if !options.dry {
        let folder = Path::new("benches");
        let lines: String = moves.iter().map(|it| format!("{}\n", it.text)).collect();
        fs::write(folder.join("SWITCHOVER.md"), &document)
            .and_then(|()| fs::write(folder.join("runs/switchover.jsonl"), lines))
            .map_err(|error| format!("benches/ cannot be written: {error}"))?;
    }
    let kept =
        verdict.missing == 0 && moves.iter().all(|it| it.errors == 0 && beyond(it) <= BEYOND);
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The part of the pause that exceeds Sentinel's.
fn beyond(it: &Move) -> Duration {
    it.gap.saturating_sub(it.sentinel)
}

/// Waits until both other nodes follow the master and every sentinel knows it.
fn settle(cluster: &Cluster) {
    wait_until("two replicas of the new master", PATIENCE, || {
        let master = cluster.master();
        let up = |field: &str| {
            master.info("replication", field).is_ok_and(|text| text.contains("state=online"))
        };
        up("slave0") && up("slave1")
    });
    let links = |sentinel: &harness::Node| {
        let list = sentinel.ask(&["SENTINEL", "REPLICAS", "mymaster"]).ok();
        list.is_some_and(|list| {
            list.items().iter().all(|it| {
                it.field("master-link-status").and_then(harness::Value::text) == Some("ok")
                    && it.field("flags").and_then(harness::Value::text) == Some("slave")
            })
        })
    };
    wait_until("the sentinels to know both", PATIENCE, || cluster.sentinels().iter().all(links));
}

/// Runs the switchover command and returns its last line.
fn order(program: &Path, pointsman: &Pointsman) -> Result<Value, String> {
    let admin = pointsman.admin().to_string();
    let mut command = Command::new(program);
    command
        .args(["switchover", "--json", "--admin", &admin])
        .env_clear()
        .env("POINTSMAN_CONTROL_TOKEN", TOKEN);
    let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    last.ok_or_else(|| format!("the order ended without a last line: {text}"))
}

fn document(
    options: &SwitchoverBenchOptions,
    moves: &[Move],
    (acknowledged, missing): (u64, u64),
) -> String {
    let SwitchoverBenchOptions { times, writers, .. } = options;
    let errors: u64 = moves.iter().map(|it| it.errors).sum();
    let mut text = format!(
        "# Switchovers by order, counted\n\n\
         Written by `cargo xtask bench switchover --times {times} --writers {writers}`; every move is a line of\n\
         `benches/runs/switchover.jsonl`. {writers} writers on connections of their own, as fast as they are answered, each write with a\n\
         key of its own; one master, two replicas, three sentinels; `pointsman switchover` {times} times in a row.\n\n\
         | | |\n|---|---|\n\
         | acknowledged writes | {acknowledged} |\n| of them lost | {missing} |\n| errors seen by the writers | {errors} |\n"
    );
    for (name, of) in [
        ("longest gap without a write", (|it| it.gap) as fn(&Move) -> Duration),
        ("traffic held", |it| it.held),
        ("of that Sentinel's own, from the order to the commit", |it| it.sentinel),
        ("the gap beyond Sentinel's own", beyond),
    ] {
        let mut spans: Vec<u128> = moves.iter().map(|it| of(it).as_millis()).collect();
        spans.sort_unstable();
        let at = |index: usize| spans.get(index).copied().unwrap_or_default();
        // Writing to a string does not fail.
        let (middle, last) = (spans.len() / 2, spans.len().saturating_sub(1));
        let _ = writeln!(
            text,
            "| {name}: median (smallest to largest) | {} ms ({} to {}) |",
            at(middle),
            at(0),
            at(last)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_median_and_extremes() {
        let of = |millis| Move {
            held: Duration::from_millis(millis),
            sentinel: Duration::from_millis(1000),
            gap: Duration::from_millis(millis + 1),
            errors: 1,
            text: String::new(),
        };
        let options = SwitchoverBenchOptions { times: 3, writers: 2, dry: true };
        let text = document(&options, &[of(1100), of(1040), of(1070)], (5, 0));
        assert!(
            text.contains(
                "| traffic held: median (smallest to largest) | 1070 ms (1040 to 1100) |"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "beyond Sentinel's own: median (smallest to largest) | 71 ms (41 to 101) |"
            ),
            "{text}"
        );
        assert!(text.contains("| errors seen by the writers | 3 |"), "{text}");
    }
}
