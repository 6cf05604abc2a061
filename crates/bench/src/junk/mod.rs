//! `cargo xtask bench junk`: what strangers at every port cost established sessions.
//!
//! Windows with and without junk alternate under the same load ([`paired`](crate::paired)): random
//! bytes, half hellos, slow headers, requests that no parser can like, floods of connections. When
//! all strangers have left, nothing but counters may have changed: the series of `/metrics`, the
//! master, descriptors, tasks and sessions are as before, the memory has not grown, and the log has
//! no line about a fault of the process.
//!
//! The generator runs on the same machine at a low priority and with a bounded rate. It shows what
//! junk costs, not how much of it a machine survives.

mod stranger;
mod traces;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use harness::{Cluster, Pointsman, pause};
use rustix::process::setpriority_process;
use setup::{build, install};

use crate::load::Meter;
use crate::paired::{Load, verdict};
use stranger::{Port, Strangers};
use traces::Traces;

/// The largest ratio of the p99 with and without junk, in the median of the pairs.
const MOST: f64 = 1.10;
/// The least number of strangers that shows anything.
const ENOUGH: u64 = 1000;

/// Options of `bench junk`.
#[derive(Debug, Args)]
pub(crate) struct JunkOptions {
    /// Minutes of junk; the measurement takes twice as long.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    minutes: u32,
    /// Length of a window in seconds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Requests per second of the established sessions.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=50_000))]
    rate: u32,
    /// Strangers per second.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    strangers: u32,
    /// Seed of the junk.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// Runs the measurement; success if the p99 moves by less than a tenth and nothing is left behind.
///
/// # Errors
/// A message for people, if it cannot start, or if a request of an established session fails.
pub(crate) fn run(options: &JunkOptions) -> Result<ExitCode, String> {
    install::whatever_is_missing()?;
    let program = build::released_or(options.program.as_deref())?;
    let cluster = Cluster::builder().replicas(1).start();
    let pointsman = Pointsman::builder(program, &cluster).start();
    let ports = [Port::Clients(pointsman.addr()), Port::Admin(pointsman.admin())];
    let meter = Meter::of(&pointsman, &cluster);
    let load = Load::new(pointsman.addr(), options.rate, options.seconds, meter)?;
    // Every kind once, so that what is made once is there before the first comparison.
    disturb(options, &ports, &AtomicBool::new(false), Some(Duration::from_secs(3)))?;
    let before = Traces::when_quiet(&pointsman)?;
    let rounds = (options.minutes * 60).div_ceil(options.seconds);
    let mut pairs = Vec::new();
    for round in 1..=rounds {
        let strangers = |over: &AtomicBool| disturb(options, &ports, over, None);
        let pair = load.pair(round, &strangers)?;
        println!("{round:>4}/{rounds}  {}", pair.line("strangers"));
        pairs.push(pair);
    }
    let after = Traces::when_quiet(&pointsman)?;
    let left = before.differences(&after);
    let measured = verdict(&pairs, "strangers", ENOUGH, MOST)?;
    for what in &left {
        println!("left behind: {what}");
    }
    if left.is_empty() {
        println!("Nothing but counters has changed: {}.", after.line());
        return Ok(measured);
    }
    Ok(ExitCode::FAILURE)
}

/// Sends junk until `over`, or for a time; the number of strangers.
fn disturb(
    options: &JunkOptions,
    ports: &[Port],
    over: &AtomicBool,
    time: Option<Duration>,
) -> Result<u64, String> {
    let yielded = setpriority_process(None, 19);
    yielded.map_err(|error| format!("the strangers cannot step back: {error}"))?;
    let mut strangers = Strangers::new(options.seed);
    let (begin, gap) = (Instant::now(), Duration::from_secs(1) / options.strangers);
    let mut next = begin;
    while !over.load(Ordering::Relaxed) && time.is_none_or(|time| begin.elapsed() < time) {
        if let Some(early) = next.checked_duration_since(Instant::now()) {
            pause(early);
        }
        next += gap;
        strangers.visit(ports);
    }
    Ok(strangers.count())
}
