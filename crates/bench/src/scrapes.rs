//! `cargo xtask bench scrapes`: the effect of continuous `/metrics` scrapes on clients.
//!
//! A scrape reads atomics on the admin server's thread, so even a thousand in a row should not be
//! noticeable. Windows with and without scrapes alternate ([`paired`](crate::paired)).

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use harness::{Cluster, Pointsman, http_get};
use rustix::process::setpriority_process;

use crate::load::Meter;
use crate::paired::{Load, verdict};
use setup::{build, install};

/// The least number of scrapes that shows anything.
const ENOUGH: u64 = 1000;
/// The largest ratio of the p99 with and without scrapes, in the median of the pairs.
const MOST: f64 = 1.25;

/// Options of `bench scrapes`.
#[derive(Debug, Args)]
pub(crate) struct ScrapesOptions {
    /// Pairs of windows.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Length of a window in seconds.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Requests per second.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=50_000))]
    rate: u32,
    /// Measure this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// Runs the measurement; success if the p99 does not change.
///
/// # Errors
/// A message for people, if it cannot start, or if a request or a scrape fails.
pub(crate) fn run(options: &ScrapesOptions) -> Result<ExitCode, String> {
    install::whatever_is_missing()?;
    let program = build::released_or(options.program.as_deref())?;
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = Pointsman::builder(program, &cluster).start();
    let meter = Meter::of(&pointsman, &cluster);
    let load = Load::new(pointsman.addr(), options.rate, options.seconds, meter)?;
    let scrape = |over: &AtomicBool| scrape(&pointsman, over);
    let mut pairs = Vec::new();
    for round in 1..=options.rounds {
        let pair = load.pair(round, &scrape)?;
        println!("{round:>4}/{}  {}", options.rounds, pair.line("scrapes"));
        pairs.push(pair);
    }
    verdict(&pairs, "scrapes", ENOUGH, MOST)
}

/// Scrapes without a pause; the number of scrapes.
fn scrape(pointsman: &Pointsman, over: &AtomicBool) -> Result<u64, String> {
    // Prometheus would run on another machine, so it must not slow the load down.
    let yielded = setpriority_process(None, 19);
    yielded.map_err(|error| format!("the scraper cannot step back: {error}"))?;
    let mut done = 0;
    while !over.load(Ordering::Relaxed) {
        match http_get(pointsman.admin(), "/metrics") {
            Ok((200, _)) => done += 1,
            Ok((status, _)) => return Err(format!("a scrape was answered with {status}")),
            Err(error) => return Err(format!("a scrape: {error}")),
        }
    }
    Ok(done)
}
