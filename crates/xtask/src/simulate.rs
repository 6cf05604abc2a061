//! `cargo xtask simulate`: failovers with faults, from seeds; and whether the simulator still finds
//! known faults.
//!
//! The simulator is built optimised, so that thousands of seeds run in a minute or two. With
//! `--mutations` it has to find each fault that [`mutations`] puts in.

use std::process::{Command, ExitCode};

use crate::mutations::{self, Mutated};

/// The folder of the patches, from the workspace's root. Its list has the rule that is violated,
/// the first seed, the number of seeds, and the kinds of faults, or `-` for all.
pub(crate) const MUTATIONS: &str = "crates/simulator/mutations";

#[derive(Debug, clap::Args)]
pub(crate) struct SimulateOptions {
    /// Put every known fault back, one at a time, and check that it is found.
    #[arg(long, conflicts_with = "args")]
    mutations: bool,
    /// With --mutations: only those whose name contains this text.
    #[arg(long, requires = "mutations")]
    only: Option<String>,
    /// Arguments of the simulator, such as `--seeds 3000`, `--seed S` or `--with KINDS`; `--
    /// --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(options: &SimulateOptions) -> Result<ExitCode, String> {
    if options.mutations {
        return mutations::check(MUTATIONS, options.only.as_deref(), find);
    }
    if succeeds(setup::cargo(), &options.args)? {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

/// Runs the simulator.
fn succeeds(mut cargo: Command, args: &[impl AsRef<std::ffi::OsStr>]) -> Result<bool, String> {
    let words =
        ["run", "--quiet", "--profile", "simulate", "--package", "pointsman-simulator", "--"];
    let status = cargo.args(words).args(args).status();
    status
        .map(|status| status.success())
        .map_err(|error| format!("cargo could not be started: {error}"))
}

fn find(words: &[&str], mutated: &Mutated) -> Result<String, String> {
    let [rule, first, seeds, with] = words else {
        return Err(format!("five words are needed, not {words:?}"));
    };
    let mut args = vec!["--seed", first, "--seeds", seeds, "--expect", rule];
    if *with != "-" {
        args.extend(["--with", with]);
    }
    if succeeds(mutated.cargo(), &args)? {
        Ok(format!("by {rule}"))
    } else {
        Err(format!("{rule} was not broken by {seeds} seeds from {first} on, or it does not build"))
    }
}
