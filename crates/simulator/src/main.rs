//! The command: `pointsman-simulator --seeds N [--seed S]`, as `cargo xtask simulate` starts it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command for people: what it prints is what it is for")]

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use simulator::{Run, Totals};

/// Simulates failovers with faults, one run for each seed.
#[derive(Debug, Parser)]
struct Options {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed; with it alone, only this one is run, and its timeline printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Go on after a failure, and list all of them at the end.
    #[arg(long)]
    keep_going: bool,
    /// List how often each pair of faults occurred.
    #[arg(long)]
    pairs: bool,
    /// Run only seeds in which these kinds of faults occur, separated by commas.
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    with: Vec<String>,
    /// Succeed if, and only if, this rule is broken.
    #[arg(long, value_name = "RULE")]
    expect: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let (Some(seed), true) = (options.seed, std::env::args().len() == 3) {
        let (run, text) = simulator::timeline(seed);
        print!("{text}");
        describe(seed, &run);
        return if run.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let first = options.seed.unwrap_or(1);
    let (mut totals, started) = (Totals::default(), Instant::now());
    let terminal = std::io::stderr().is_terminal();
    for seed in first..first.saturating_add(options.seeds) {
        let kinds: Vec<String> = simulator::kinds(seed).iter().map(|it| format!("{it:?}")).collect();
        if !options.with.iter().all(|it| kinds.contains(it)) {
            continue;
        }
        let run = simulator::run(seed);
        totals.add(seed, &run);
        if terminal && seed % 20 == 0 {
            eprint!("\r{} of {} seeds, {} failed", seed - first + 1, options.seeds, totals.failed());
            let _ = std::io::stderr().flush();
        }
        let Some(violation) = &run.violation else { continue };
        if let Some(expected) = &options.expect {
            if format!("{:?}", violation.rule) == *expected {
                println!("{expected} is broken by seed {seed}, as expected: {}", violation.text);
                return ExitCode::SUCCESS;
            }
        } else if options.keep_going {
            println!("seed {seed}: {:?} {:?}: {}", violation.rule, run.kinds, violation.text);
        } else {
            let (run, text) = simulator::timeline(seed);
            println!("{text}");
            describe(seed, &run);
            println!("{}", totals.text(options.pairs));
            return ExitCode::FAILURE;
        }
    }
    if terminal {
        eprintln!();
    }
    println!("{}", totals.text(options.pairs));
    println!("{:.1} s", started.elapsed().as_secs_f64());
    if let Some(expected) = options.expect {
        println!("no seed broke {expected}");
        return ExitCode::FAILURE;
    }
    if totals.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn describe(seed: u64, run: &Run) {
    println!("seed {seed}: {:?}", run.kinds);
    println!("{} acknowledged, {} lost, converged: {}", run.acknowledged, run.lost, run.converged);
    match &run.violation {
        None => println!("no invariant was broken"),
        Some(it) => println!("{:?} broken at {} ms at {}: {}", it.rule, it.at / 1000, it.who, it.text),
    }
    println!("again: cargo xtask simulate --seed {seed}");
}
