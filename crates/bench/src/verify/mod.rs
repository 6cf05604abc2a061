//! `cargo xtask verify`: the same random conversations directly and through Pointsman.
//!
//! Several clients of a conversation (`generator`) use a Redis directly and an identical one
//! behind Pointsman (`rig`), with dedicated or with shared connections. The `driver` compares
//! every reply byte by byte; what cannot be equal is listed in `exceptions` with a reason. A
//! conversation that differs is made as short as possible (`minimise`) and printed with both
//! replies.
//!
//! The direct side is right by definition, so there is no model of Redis here. Pointsman is the
//! real program. The seed determines a conversation, and the steps follow each other, so most
//! differences can be repeated; how often one was is reported.

mod connection;
mod conversation;
mod driver;
mod exceptions;
mod generator;
mod minimise;
mod reply;
mod rig;

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use setup::{build, install, seconds};

use crate::{histories, space, stop_on_signals, words as panic_words};
use conversation::Conversation;
use driver::Difference;
use generator::Profile;
use rig::Rig;

/// How often a conversation that differed is repeated, to say whether it always does.
const REPEATS: usize = 3;

/// The time for shorter conversations.
const SHORTENING: Duration = Duration::from_secs(60);

/// What Pointsman counts, to show that conversations reach what they are meant to test.
const COUNTED: [&str; 5] = [
    "pointsman_commands_total",
    "pointsman_shared_requests_total",
    "pointsman_shared_promotions_total",
    "pointsman_shared_returns_total",
    "pointsman_sessions_carried_total",
];

/// Which connections Pointsman uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A connection to Redis for each client.
    Dedicated,
    /// Few connections to Redis for all clients.
    Shared,
}

/// Options of `verify`.
#[derive(Debug, Args)]
pub struct VerifyOptions {
    /// Number of conversations in each mode.
    #[arg(long, value_name = "N", default_value_t = 500,
        value_parser = clap::value_parser!(u64).range(1..))]
    conversations: u64,
    /// Seed of the first conversation; the next one has the next seed.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Connections of Pointsman to Redis; without it both modes, one after the other.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// With a planned failover in the middle of each conversation, which then pins no session.
    #[arg(long)]
    failovers: bool,
    /// Conversations at a time, each with its own servers.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=32))]
    jobs: u8,
    /// Stop after this many conversations that differ.
    #[arg(long, value_name = "N", default_value = "5")]
    most: NonZeroUsize,
    /// Instead of conversations, check histories of clients of several proxies for this long, under
    /// random faults.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000),
        conflicts_with_all = ["conversations", "failovers", "jobs", "most"])]
    minutes: Option<u64>,
    /// Print what is not compared, and why, and run nothing.
    #[arg(long, exclusive = true)]
    exceptions: bool,
    /// Test this pointsman instead of building one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// A conversation that differs.
#[derive(Debug)]
struct Finding {
    seed: u64,
    /// How often it differed again.
    again: usize,
    shortest: Conversation,
    difference: Difference,
    log: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, again, shortest, difference, log } = self;
        writeln!(f, "── seed {seed} differs ({again} of {REPEATS} times again)\n{shortest}")?;
        writeln!(f, "{difference}\n\nthe end of Pointsman's log:\n{log}")
    }
}

/// What was run in one mode.
#[derive(Debug, Default)]
struct Outcome {
    conversations: u64,
    findings: Vec<Finding>,
    counts: [u64; COUNTED.len()],
}

/// Runs the command; success if nothing differs.
///
/// # Errors
/// A message for people, if it cannot start.
pub fn run(options: &VerifyOptions) -> Result<ExitCode, String> {
    let is_shared = options.mode.map(|mode| mode == Mode::Shared);
    let modes = is_shared.map_or(vec![false, true], |is_shared| vec![is_shared]);
    if options.exceptions {
        print!("{}", exceptions::table());
        return Ok(ExitCode::SUCCESS);
    }
    install::for_failovers_of_ours()?;
    let program = match space::entered() {
        Some(program) => program,
        None => build::pointsman_or(options.program.as_deref())?,
    };
    if let Some(minutes) = options.minutes {
        return histories::run(minutes, options.seed, is_shared, &program);
    }
    let stop = stop_on_signals()?;
    let mut differ = 0;
    for is_shared in modes {
        let begin = Instant::now();
        let seeds = options.seed..options.seed.saturating_add(options.conversations);
        let work = Work {
            program: &program,
            profile: Profile { is_shared, has_failover: options.failovers },
            next: AtomicU64::new(seeds.start),
            end: seeds.end,
            most: options.most.get(),
            stop: &stop,
            outcome: Mutex::default(),
        };
        let outcome = work.carry_out(options.jobs)?;
        let mode = if is_shared { "shared" } else { "dedicated" };
        let (conversations, found) = (outcome.conversations, outcome.findings.len());
        let took = seconds(begin.elapsed());
        println!("{mode}: {conversations} conversations in {took}, {found} differ");
        for (name, count) in COUNTED.iter().zip(outcome.counts) {
            println!("  {name:<36} {count:>9}");
        }
        differ += found;
    }
    Ok(if differ == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Carries out conversations until one differs: the number of conversations, and what differs.
///
/// # Errors
/// A message for people, if it cannot start.
pub fn first_difference(
    program: &Path,
    is_shared: bool,
    has_failover: bool,
    seeds: Range<u64>,
) -> Result<Option<(u64, String)>, String> {
    let work = Work {
        program,
        profile: Profile { is_shared, has_failover },
        next: AtomicU64::new(seeds.start),
        end: seeds.end,
        most: 1,
        stop: &AtomicBool::new(false),
        outcome: Mutex::default(),
    };
    let outcome = work.carry_out(1)?;
    Ok(outcome.findings.first().map(|found| (outcome.conversations, found.to_string())))
}

/// Conversations of one mode, shared among threads.
struct Work<'a> {
    program: &'a Path,
    profile: Profile,
    next: AtomicU64,
    end: u64,
    most: usize,
    stop: &'a AtomicBool,
    outcome: Mutex<Outcome>,
}

impl Work<'_> {
    fn carry_out(self, jobs: u8) -> Result<Outcome, String> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(|| self.job())).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|panic| panic_words(&*panic))?)
        })?;
        self.outcome.into_inner().map_err(|error| error.to_string())
    }

    /// Conversations on servers of its own.
    fn job(&self) -> Result<(), String> {
        let mut rig = Rig::start(self.program, self.profile)?;
        while !self.stop.load(Ordering::Acquire) && !self.is_enough() {
            let seed = self.next.fetch_add(1, Ordering::AcqRel);
            if seed >= self.end {
                break;
            }
            let conversation = generator::conversation(seed, self.profile);
            let found = driver::run(&mut rig, &conversation).err();
            if let Some(difference) = found {
                let log = rig.log();
                // Servers that a difference may have changed are not used again.
                self.count(&rig);
                rig = Rig::start(self.program, self.profile)?;
                let finding = self.examine(&mut rig, seed, &conversation, difference, log);
                println!("{finding}");
                self.change(|outcome| outcome.findings.push(finding));
                rig = Rig::start(self.program, self.profile)?;
            }
            self.change(|outcome| outcome.conversations += 1);
        }
        self.count(&rig);
        Ok(())
    }

    fn is_enough(&self) -> bool {
        self.outcome.lock().is_ok_and(|outcome| outcome.findings.len() >= self.most)
    }

    fn change(&self, change: impl FnOnce(&mut Outcome)) {
        if let Ok(mut outcome) = self.outcome.lock() {
            change(&mut outcome);
        }
    }

    fn count(&self, rig: &Rig) {
        self.change(|outcome| {
            for (count, metric) in outcome.counts.iter_mut().zip(COUNTED) {
                *count += rig.sum(metric);
            }
        });
    }

    /// Repeats and shortens a conversation that differed.
    fn examine(
        &self,
        rig: &mut Rig,
        seed: u64,
        conversation: &Conversation,
        first: Difference,
        log: String,
    ) -> Finding {
        let mut last = first;
        let mut again = 0;
        for _ in 0..REPEATS {
            if let Err(difference) = driver::run(rig, conversation) {
                (again, last) = (again + 1, difference);
            }
        }
        let mut shortest = conversation.clone();
        if again == REPEATS {
            let begin = Instant::now();
            let mut differs = |shorter: &Conversation| {
                if begin.elapsed() > SHORTENING || self.stop.load(Ordering::Acquire) {
                    return false;
                }
                let outcome = driver::run(rig, shorter);
                let differs = outcome.is_err();
                if let Err(difference) = outcome {
                    last = difference;
                }
                differs
            };
            shortest = minimise::minimise(conversation, &mut differs);
        }
        Finding { seed, again, shortest, difference: last, log }
    }
}

/// The words of a request without quotes.
fn words(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}
