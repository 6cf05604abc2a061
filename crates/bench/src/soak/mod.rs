//! `cargo xtask soak`: checking clients through random faults, and balanced books at the end.
//!
//! One thread performs the schedule of the seed; every client thread compares each reply with its
//! model. After every step the cluster has to become complete, and then every client compares its
//! whole state: lost writes are attributed to the step that lost them.
//!
//! The seed determines the schedule and the clients' choices, not the interleaving: a finding that
//! depends on a race may need several runs of its seed.

mod books;
mod client;
mod faults;
mod model;
mod pairs;
mod report;
mod schedule;
mod shared;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use harness::{in_private_namespace, loopback_up, pause};
use setup::{build, install};

use crate::{space, stop_on_signals, words};
use client::{Chained, KINDS};
use faults::Stage;
use pairs::{Pair, ROLES};
use report::{Sample, Summary};
use schedule::{Fault, Step, schedule};
use shared::Shared;

/// Clients of each kind of chain.
const EACH: usize = 4;
/// How long a client may take to verify its state after a step.
const VERIFY: Duration = Duration::from_secs(60);

/// Options of `soak`.
#[derive(Debug, Args)]
pub struct SoakOptions {
    /// Length in minutes.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Seed of the schedule and of the clients.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Print the schedule and exit.
    #[arg(long)]
    plan: bool,
    /// Test this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Already in its own network namespace.
    #[arg(long, hide = true)]
    namespaced: bool,
}

/// Runs a soak; success if there is no finding.
///
/// # Errors
/// A message for people, if it cannot start.
pub fn run(options: &SoakOptions) -> Result<ExitCode, String> {
    let length = Duration::from_secs(60 * options.minutes);
    if options.plan {
        println!("{}", report::plan(&schedule(options.seed, length, true)));
        return Ok(ExitCode::SUCCESS);
    }
    install::for_failovers()?;
    let program = match &options.program {
        Some(program) => std::fs::canonicalize(program)
            .map_err(|error| format!("{}: {error}", program.display()))?,
        None => build::pointsman()?,
    };
    if !options.namespaced {
        let why = space::enter(&program);
        println!("No network namespace: {why}. Without partitions.");
    }
    let partitions = options.namespaced && in_private_namespace();
    if partitions {
        loopback_up()?;
    }
    let stop = stop_on_signals().map_err(|error| format!("no signals: {error}"))?;
    let summary = soak(options, &program, partitions, &stop)?;
    print!("{}", report::summary(&summary));
    Ok(if summary.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn soak(
    options: &SoakOptions,
    program: &std::path::Path,
    partitions: bool,
    stop: &AtomicBool,
) -> Result<Summary, String> {
    let length = Duration::from_secs(60 * options.minutes);
    let stage = Stage::start(program, partitions)?;
    let (addr, admin) = {
        let proxy = stage.proxy();
        (proxy.addr, proxy.admin)
    };
    stage.settle();
    let files = books::Books::read(admin)?.files();
    let clients = KINDS.len() * EACH + ROLES.len();
    let shared = Shared::new(addr, clients);
    let samples = Mutex::new(Vec::new());
    let begin = Instant::now();
    // More than fit, because a fast machine performs steps faster than estimated.
    let steps = schedule(options.seed, length * 4, partitions);
    let performed = std::thread::scope(|scope| {
        for id in 0..clients {
            let (shared, seed) = (&shared, options.seed);
            scope.spawn(move || run_client(shared, id, seed));
        }
        scope.spawn(|| measure(&stage, &shared, begin, &samples));
        let performed = conduct(&stage, &shared, &steps, &|| {
            begin.elapsed() >= length || stop.load(Ordering::Acquire)
        });
        shared.stop.store(true, Ordering::Release);
        performed
    });
    let samples = samples.into_inner().map_err(|error| error.to_string())?;
    let mut findings = shared.findings();
    findings.extend(report::growth(&samples));
    let (books, unbalanced) = books::close(admin, files)?;
    findings.extend(unbalanced);
    findings.extend(books::exact(addr, admin)?);
    findings.extend(stage.proxy().bad_lines());
    Ok(Summary {
        seed: options.seed,
        minutes: options.minutes,
        lasted: begin.elapsed(),
        clients,
        replies: shared.replies.load(Ordering::Acquire),
        audits: shared.audits.load(Ordering::Acquire),
        connections: shared.connections.load(Ordering::Acquire),
        closed: shared.closed.load(Ordering::Acquire),
        lost: shared.lost_so_far(),
        errors: shared.error_replies(),
        performed,
        samples,
        books: Some(books.line()),
        findings,
    })
}

fn run_client(shared: &Shared, id: usize, seed: u64) {
    match KINDS.get(id / EACH) {
        Some(kind) => Chained::new(shared, id, *kind, seed).run(),
        None => {
            if let Some(role) = ROLES.get(id - KINDS.len() * EACH) {
                Pair { shared, id, role: *role, seed, phase: Cell::new(0) }.run();
            }
        }
    }
}

/// Performs the steps until `over`.
fn conduct(
    stage: &Stage,
    shared: &Shared,
    steps: &[Step],
    over: &dyn Fn() -> bool,
) -> BTreeMap<Fault, u64> {
    let mut performed = BTreeMap::new();
    for (index, step) in steps.iter().enumerate() {
        pause(step.pause);
        if over() {
            break;
        }
        let (start, lost) = (Instant::now(), shared.lost_so_far());
        let disturbing = Stage::disturbs(step.fault);
        shared.begin(index + 1, disturbing, step.fault.may_lose_writes());
        // In a separate thread, because the harness panics if something does not happen.
        let done = std::thread::scope(|scope| {
            scope.spawn(|| stage.perform(step, shared)).join().map_err(|panic| words(&*panic))
        });
        let verified = verify(shared);
        shared.end(disturbing);
        *performed.entry(step.fault).or_default() += 1;
        let said = format!(
            "{}  {:>5.1} s, {} lost",
            report::line(index + 1, step),
            start.elapsed().as_secs_f64(),
            shared.lost_so_far() - lost
        );
        println!("{said}");
        if let Err(why) = done.and(verified) {
            shared.finding(&format!("{}: {why}", step.fault.name()));
            // What follows would only report the same again.
            break;
        }
    }
    performed
}

/// Waits until every client has compared its whole state.
fn verify(shared: &Shared) -> Result<(), String> {
    let (round, deadline) = (shared.ask_for_round(), Instant::now() + VERIFY);
    loop {
        let missing = shared.missing(round);
        if missing.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("clients {missing:?} got no reply for {} s", VERIFY.as_secs()));
        }
        pause(Duration::from_millis(10));
    }
}

/// Measures the proxy's memory every ten seconds.
fn measure(stage: &Stage, shared: &Shared, begin: Instant, samples: &Mutex<Vec<Sample>>) {
    const EVERY: Duration = Duration::from_secs(10);
    let mut next = Instant::now() + EVERY / 2;
    while !shared.stopped() {
        pause(Duration::from_millis(200));
        if Instant::now() < next {
            continue;
        }
        next += EVERY;
        // A takeover holds the lock for a moment.
        let pid = stage.proxy().process.pid();
        if let (Some(kib), Ok(mut all)) = (books::private_dirty(pid), samples.lock()) {
            all.push(Sample { at: begin.elapsed(), pid, kib });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "takes two minutes: cargo test -p pointsman-bench soak -- --ignored"]
    fn finds_nothing_within_a_minute() {
        let options =
            SoakOptions { minutes: 1, seed: 1, plan: false, program: None, namespaced: false };
        let program = build::pointsman().expect("a pointsman");
        let summary = soak(&options, &program, false, &AtomicBool::new(false)).expect("a run");
        println!("{}", report::summary(&summary));
        assert!(summary.replies > 1000 && !summary.performed.is_empty());
        assert!(summary.findings.is_empty(), "{:?}", summary.findings);
    }
}
