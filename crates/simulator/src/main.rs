//! The command `pointsman-simulator [--seeds N] [--seed S]`, started by `cargo xtask simulate`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program: its output is its purpose"
)]

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use simulator::{FaultKind, Rule, RunResult, Totals, Violation};

/// Simulates failovers with faults, one run per seed.
#[derive(Debug, Parser)]
struct Options {
    /// Number of seeds [default: 2000].
    #[arg(long)]
    seeds: Option<u64>,
    /// First seed. Without --seeds only this one is run, and its timeline printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Continue after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Run only seeds with these kinds of faults, separated by commas.
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    with: Vec<FaultKind>,
    /// Succeed if, and only if, this rule is violated.
    #[arg(long, value_name = "RULE")]
    expect: Option<Rule>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match (options.seed, options.seeds) {
        (Some(seed), None) => {
            let run = show(seed);
            if run.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        (first, seeds) => run_many(first.unwrap_or(1), seeds.unwrap_or(2000), &options),
    }
}

fn run_many(first: u64, seeds: u64, options: &Options) -> ExitCode {
    let (mut totals, started, terminal) =
        (Totals::default(), Instant::now(), std::io::stderr().is_terminal());
    let mut is_over = false;
    for seed in first..first.saturating_add(seeds) {
        let kinds = simulator::kinds(seed);
        if !options.with.iter().all(|it| kinds.contains(it)) {
            continue;
        }
        let run = simulator::run(seed);
        if terminal {
            eprint!("\r{} of {seeds} seeds, {} failed", seed - first + 1, totals.failed());
        }
        if let Some(violation) = &run.violation {
            let Violation { rule, text, .. } = violation;
            if options.expect == Some(*rule) {
                println!("{rule:?} is broken by seed {seed}, as expected: {text}");
                return ExitCode::SUCCESS;
            }
            if options.keep_going {
                println!("seed {seed}: {rule:?} {kinds:?}: {text}");
            } else if options.expect.is_none() {
                println!();
                show(seed);
                is_over = true;
            }
        }
        totals.add(run);
        if is_over {
            break;
        }
    }
    println!("\n{totals}\n{:.1} s", started.elapsed().as_secs_f64());
    if let Some(rule) = options.expect {
        println!("no seed broke {rule:?}");
    }
    let is_fine = options.expect.is_none() && totals.failed() == 0;
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the timeline of one seed, its result and the command that repeats it.
fn show(seed: u64) -> RunResult {
    let (run, text) = simulator::timeline(seed);
    print!("{text}");
    println!("seed {seed}: {:?}", run.kinds);
    println!(
        "{} acknowledged, {} of them lost, converged: {}",
        run.acknowledged, run.lost, run.converged
    );
    match &run.violation {
        None => println!("no invariant was broken"),
        Some(it) => {
            println!("{:?} broken at {} ms at {}: {}", it.rule, it.at / 1000, it.who, it.text);
        }
    }
    println!("again: cargo xtask simulate --seed {seed}");
    run
}
