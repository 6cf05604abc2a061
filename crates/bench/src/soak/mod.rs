//! `cargo xtask soak`: checking clients through random faults, and balanced books at the end.
//!
//! One thread performs the schedule of the seed; every client thread compares each reply with its
//! model. After every step the cluster has to become complete, and then every client compares its
//! whole state: lost writes are attributed to the step that lost them.
//!
//! The seed determines the schedule and the clients' choices, not the interleaving: a finding that
//! depends on a race may need several runs of its seed.

mod books;
mod churn;
mod client;
mod conn;
mod faults;
mod judge;
mod model;
mod pairs;
#[cfg(test)]
mod planted_tests;
mod proxy;
mod report;
mod schedule;
mod settings;
mod shared;
mod stock;
mod switches;
mod timeline;

use std::cell::Cell;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
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
use judge::History;
use pairs::{Pair, ROLES};
use report::{Performed, Sample, Summary};
use schedule::{Act, Fault, Step, schedule};
use shared::{Finding, Shared};
use stock::Stocks;
use switches::Sighting;

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
        let plan = report::plan(&schedule(options.seed, length, true));
        // A reader that has seen enough closes the pipe.
        return match std::io::stdout().write_all(plan.as_bytes()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.to_string()),
            _ => Ok(ExitCode::SUCCESS),
        };
    }
    install::for_failovers_of_ours()?;
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
    program: &Path,
    partitions: bool,
    stop: &AtomicBool,
) -> Result<Summary, String> {
    let length = Duration::from_secs(60 * options.minutes);
    let mut stage = Stage::start(program, partitions)?;
    let (addr, admin) = {
        let proxy = stage.proxy();
        (proxy.addr, proxy.admin)
    };
    stage.settle();
    let files = books::Books::read(admin)?.files();
    let clients = KINDS.len() * EACH + ROLES.len();
    let shared = Shared::new(addr, clients);
    stage.listen(&shared);
    let samples = Mutex::new(Vec::new());
    let begin = Instant::now();
    // More than fit, because a fast machine performs steps faster than estimated.
    let steps = schedule(options.seed, length * 4, partitions);
    let mut conductor = Conductor {
        stage: &stage,
        shared: &shared,
        partitions,
        judged: begin,
        master: stage.cluster.master().addr(),
        stocks: Stocks::default(),
        performed: Performed::default(),
    };
    std::thread::scope(|scope| {
        for id in 0..clients {
            let (shared, seed) = (&shared, options.seed);
            scope.spawn(move || run_client(shared, id, seed));
        }
        scope.spawn(|| measure(&stage, &shared, begin, &samples));
        conductor.conduct(&steps, &|| begin.elapsed() >= length || stop.load(Ordering::Acquire));
        shared.stop.store(true, Ordering::Release);
    });
    let Conductor { stocks, performed, .. } = conductor;
    let samples = samples.into_inner().map_err(|error| error.to_string())?;
    let (books, unbalanced) = books::close(admin, files)?;
    let last = report::growth(&samples)
        .into_iter()
        .chain(unbalanced)
        .chain(books::exact(addr, admin)?)
        .chain(stage.proxy().bad_lines());
    let mut findings = shared.findings();
    findings.extend(last.map(|what| Finding { what, before: Vec::new() }));
    let folder = (!findings.is_empty()).then(|| {
        stage.cluster.keep_folder();
        stage.cluster.folder().to_owned()
    });
    Ok(Summary {
        seed: options.seed,
        minutes: options.minutes,
        lasted: begin.elapsed(),
        clients,
        replies: shared.replies.load(Ordering::Acquire),
        audits: shared.audits.load(Ordering::Acquire),
        connections: shared.connections.load(Ordering::Acquire),
        closed: shared.closed.load(Ordering::Acquire),
        excused: shared.excused(),
        failed_failovers: shared.failed_failovers(),
        errors: shared.error_replies(),
        performed,
        samples,
        stocks,
        books: Some(books.line()),
        findings,
        folder,
    })
}

fn run_client(shared: &Shared, id: usize, seed: u64) {
    match KINDS.get(id / EACH) {
        Some(kind) => Chained::new(shared, id, *kind, seed).run(),
        None => {
            if let Some(role) = ROLES.get(id - KINDS.len() * EACH) {
                Pair { shared, id, role: *role, seed, phase: Cell::new(shared.phase()) }.run();
            }
        }
    }
}

/// Performs the steps of the schedule and judges each of them.
struct Conductor<'a> {
    stage: &'a Stage,
    shared: &'a Shared,
    partitions: bool,
    /// When the previous step was judged, and the master then.
    judged: Instant,
    master: SocketAddr,
    stocks: Stocks,
    performed: Performed,
}

impl Conductor<'_> {
    fn conduct(&mut self, steps: &[Step], over: &dyn Fn() -> bool) {
        for (index, step) in steps.iter().enumerate() {
            pause(step.pause);
            if over() {
                return;
            }
            let (start, lost) = (Instant::now(), self.shared.excused().lost());
            self.shared.begin(index + 1);
            let done = self.perform(step).and_then(|()| verify(self.shared));
            let disturbed = self.shared.end();
            let calm = !disturbed && self.judge(step);
            if disturbed {
                self.judge(step);
            }
            let balanced = if done.is_ok() {
                self.stocks.take(self.stage, self.shared, self.partitions, calm)
            } else {
                Ok(())
            };
            self.performed.count(step);
            println!(
                "{}  {:.1} s, {} lost",
                report::line(index + 1, step),
                start.elapsed().as_secs_f64(),
                self.shared.excused().lost() - lost
            );
            if let Err(why) = done.and(balanced) {
                let names: Vec<_> = step.acts().map(|act| act.fault.name()).collect();
                self.shared.finding(&format!("{}: {why}", names.join(" and ")));
                // The following steps would report the same again.
                return;
            }
        }
    }

    /// Performs both faults and waits until everything is complete again. In separate threads,
    /// because the harness panics if something does not happen.
    fn perform(&self, step: &Step) -> Result<(), String> {
        let (first, second) = (step.first, step.second);
        let act = |act: Act, other: Option<Fault>| self.stage.perform(&act, other, self.shared);
        std::thread::scope(|scope| {
            let one = scope.spawn(move || act(first, second.map(|(_, act)| act.fault)));
            let other = second.map(|(delay, second)| {
                scope.spawn(move || {
                    pause(delay);
                    act(second, Some(first.fault));
                })
            });
            let one = one.join();
            let other = other.map_or(Ok(()), std::thread::ScopedJoinHandle::join);
            one.and(other).map_err(|panic| words(&*panic))
        })?;
        std::thread::scope(|scope| scope.spawn(|| self.stage.recover()).join())
            .map_err(|panic| words(&*panic))
    }

    /// Judges what clients observed since the previous judgement. Whether no master was replaced.
    fn judge(&mut self, step: &Step) -> bool {
        const FOREBODING: Duration = Duration::from_secs(30);
        let now = Instant::now();
        let deeds = self.shared.timeline.take_deeds();
        if let [first, .., last] = deeds.as_slice()
            && first.end.is_none_or(|end| last.begin < end)
        {
            self.performed.overlaps += 1;
        }
        let since = self.judged.checked_sub(FOREBODING).unwrap_or(self.judged);
        let sightings = self.shared.timeline.sightings(since);
        let aborted =
            |it: &&Sighting| it.at >= self.judged && it.channel.starts_with("-failover-abort");
        let aborted = sightings.iter().filter(aborted).count();
        self.performed.aborted += u64::try_from(aborted).unwrap_or(0);
        let history = History::new(deeds, &sightings, self.judged, self.master);
        self.shared.judge(&history);
        for switch in &history.switches {
            let cause = history.cause(switch);
            self.performed.switched(cause);
            if cause == judge::Cause::Environment {
                println!(
                    "      the sentinels replaced {} by {} without a fault (in the step of: {})",
                    switch.old,
                    switch.new,
                    step.first.fault.name()
                );
            }
        }
        self.judged = now;
        if let Ok(master) = self.stage.cluster.current_master_addr() {
            self.master = master;
        }
        history.switches.is_empty()
    }
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
