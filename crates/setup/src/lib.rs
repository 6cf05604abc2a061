//! Prepares the machine for a command: installs missing packages and builds the program.
//!
//! `cargo xtask` and the benchmarks use it. [`install`] looks at the machine and carries out what
//! the pure module `needs` decides; [`build`] runs cargo and returns the path of what it built;
//! [`packages`] unpacks packages into a folder without installing them, and [`go`] builds with
//! those of Go.
//!
//! Packages are installed only as root, which is how containers and CI run; other users get the
//! exact command to run.
#![allow(clippy::print_stdout, reason = "a person reads what is being installed")]

pub mod build;
pub mod go;
pub mod install;
mod needs;
pub mod packages;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A `cargo` command that runs in the root of the workspace.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.."));
    command
}

/// Runs a command that has to succeed.
///
/// # Errors
/// A message for people, with the command.
pub fn must(command: &mut Command) -> Result<(), String> {
    let status = command.stdin(Stdio::null()).status();
    let status = status.map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

/// A duration for people, such as `1.2 s`.
#[must_use]
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
