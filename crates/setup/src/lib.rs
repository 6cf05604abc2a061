//! Prepares the machine for a command: installs missing packages and builds the program.
//!
//! `cargo xtask` and the benchmarks use it. [`install`] gets the missing ones of the packages that
//! the module `needs` lists; [`build`] runs cargo and returns the path of what it built;
//! [`packages`] unpacks packages into a folder without installing them, and [`go`] builds with
//! those of Go; [`files`] has errors that name the file.
//!
//! Packages are installed only as root, which is how containers and CI run; other users get the
//! exact command to run.
#![allow(clippy::print_stdout, reason = "a person reads what is being installed")]

pub mod build;
pub mod files;
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
    command.current_dir(root());
    command
}

/// The root of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap_or(root)
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

/// Runs a command that has to succeed, and returns its standard output.
///
/// # Errors
/// A message for people: the program, and everything it printed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output();
    let output = output.map_err(|error| format!("{program} could not be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{program}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// A duration for people, such as `1.2 s`.
#[must_use]
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
