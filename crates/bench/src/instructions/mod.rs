//! `cargo xtask bench instructions`: user-space instructions a request, counted by valgrind and
//! held against a budget.
//!
//! Time on a shared machine says little about a change of two percent; the number of instructions
//! says it anywhere, also in CI. The scanner is counted by itself; the pump with the whole data
//! plane around it, since what a request costs is spread over accept loop, runtime and pump: the
//! proxy runs under valgrind between a real client and a real backend, in lockstep. Every number is
//! the difference of two runs, so starting and stopping do not count.
//!
//! Deliberately absent: the kernel, where most of a proxy's time goes (`cargo xtask bench` measures
//! that), and budgets for what nobody recorded: on another kind of CPU the numbers are shown and
//! nothing is judged.

mod budget;
mod count;

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;

use super::machine;
use super::raw::benches;
use budget::{Budgets, Outcome};
use count::Case;
use setup::{build, install};
use setup::{cargo, seconds};

/// What to do with what is counted.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Write what is counted down as the budget of this kind of CPU, to be committed.
    #[arg(long)]
    record: bool,
}

/// Counts: success if nothing is over its budget, or if it was recorded.
///
/// # Errors
/// In words, if it cannot be counted.
pub(crate) fn run(options: &Options) -> Result<ExitCode, String> {
    install::for_instructions()?;
    let start = Instant::now();
    let programs = build::examples(&[("pointsman-resp", "count"), ("pointsman-proxy", "fixed")])?;
    let file = benches().join("instructions.json");
    let mut budgets = Budgets::read(&fs::read_to_string(&file).unwrap_or_default())?;
    let compiler = machine::said(cargo().arg("--version")).unwrap_or_default();
    let mut over = 0;
    println!("Instructions a request (user space), budget and difference:");
    for case in Case::ALL {
        let counted = case.count(&programs)?;
        let outcome =
            if options.record { Outcome::Recorded } else { budgets.judge(&case.name(), counted) };
        over += u32::from(matches!(outcome, Outcome::Over { .. }));
        println!("  {:<17} {counted:>9.1}   {outcome}", case.name());
        if options.record {
            budgets.set(&case.name(), counted, &compiler);
        }
    }
    if options.record {
        fs::write(&file, budgets.text()).map_err(|error| format!("{}: {error}", file.display()))?;
        println!(
            "Recorded in benches/instructions.json; commit it with the change that it belongs to."
        );
        return Ok(ExitCode::SUCCESS);
    }
    println!("Counted in {}.", seconds(start.elapsed()));
    if over == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    println!("{over} over budget.{}", budgets.hint(&compiler));
    println!("If that is the price of something wanted: cargo xtask bench instructions --record");
    Ok(ExitCode::FAILURE)
}
