//! `cargo xtask bench instructions`: user-space instructions per request, counted by valgrind and
//! compared with a budget.
//!
//! Time on a shared machine does not show a change of two percent; the number of instructions does,
//! also in CI. The scanner is counted alone; the pump with the whole data plane, because the cost
//! of a request is spread over accept loop, runtime and pump: the proxy runs under valgrind between
//! a client and a backend, in lockstep. Every number is the difference of two runs, so start and
//! stop do not count.
//!
//! The kernel, where most of a proxy's time is spent, is not counted (`cargo xtask bench` measures
//! it). On other CPUs than that of the budgets the numbers are shown and not judged.

mod budget;
mod count;

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use setup::{build, cargo, files, install, seconds};

use super::raw::benches;
use super::{caught, machine};
use budget::Budgets;
use count::Case;

/// Options of `bench instructions`.
#[derive(Debug, Args)]
pub(crate) struct InstructionsOptions {
    /// Record the counts as budgets of this kind of CPU, to be committed.
    #[arg(long)]
    record: bool,
}

/// Counts; success if nothing is over its budget, or if it was recorded.
///
/// # Errors
/// A message for people, if counting fails.
pub(crate) fn run(options: &InstructionsOptions) -> Result<ExitCode, String> {
    install::for_instructions()?;
    let start = Instant::now();
    let programs = build::examples([("pointsman-resp", "count"), ("pointsman-proxy", "fixed")])?;
    let file = benches().join("instructions.json");
    let mut budgets = Budgets::read(&fs::read_to_string(&file).unwrap_or_default())?;
    let compiler = machine::said(cargo().arg("--version")).unwrap_or_default();
    let mut over = 0;
    println!("Instructions per request (user space), budget and difference:");
    for case in Case::ALL {
        let counted = caught(|| case.count(&programs))?;
        let name = case.name();
        if options.record {
            println!("  {name:<17} {counted:>9.1}   recorded");
            budgets.set(&name, counted, &compiler);
        } else {
            let outcome = budgets.judge(&name, counted);
            println!("  {name:<17} {counted:>9.1}   {}", outcome.text);
            over += u32::from(outcome.is_over);
        }
    }
    if options.record {
        files::write(&file, budgets.text()?)?;
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
