//! Builds pointsman and finds the path of the program in cargo's messages.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::cargo;

/// This program, or else a build with the release profile.
///
/// # Errors
/// A message for people.
pub fn released_or(given: Option<&Path>) -> Result<PathBuf, String> {
    given_or(given, &["--release"])
}

/// This program, or else a build. Cargo's progress goes to standard error.
///
/// # Errors
/// A message for people: cargo failed, or did not report where the program is.
pub fn pointsman_or(given: Option<&Path>) -> Result<PathBuf, String> {
    given_or(given, &[])
}

/// An option of cargo for builds of all tests. The properties and the model of the machine take a
/// seventh of the time with it. The build takes longer, so it is not what every build does.
pub const FAST_PROPERTIES: [&str; 2] =
    ["--config", "profile.dev.package.pointsman-sentinel.opt-level=1"];

/// Builds the program as the tests do, so that nothing is compiled once more after them.
///
/// # Errors
/// Like [`pointsman_or`].
pub fn tested() -> Result<PathBuf, String> {
    given_or(None, &FAST_PROPERTIES)
}

/// Builds examples, given as package and name, with the release profile. Returns their paths in the
/// same order.
///
/// # Errors
/// Like [`pointsman_or`].
pub fn examples(wanted: &[(&str, &str)]) -> Result<Vec<PathBuf>, String> {
    let build = |(package, example): &(&str, &str)| {
        made(&["build", "--package", package, "--example", example, "--release"], example)
    };
    wanted.iter().map(build).collect()
}

/// Builds a test program of the package `pointsman`, and runs nothing.
///
/// # Errors
/// Like [`pointsman_or`].
pub fn tests(name: &str) -> Result<PathBuf, String> {
    made(&["test", "--no-run", "--package", "pointsman", "--test", name], name)
}

fn given_or(given: Option<&Path>, args: &[&str]) -> Result<PathBuf, String> {
    let build = ["build", "--package", "pointsman", "--bin", "pointsman"];
    match given {
        Some(program) => std::fs::canonicalize(program)
            .map_err(|error| format!("{}: {error}", program.display())),
        None => made(&[&build, args].concat(), "pointsman"),
    }
}

fn made(args: &[&str], name: &str) -> Result<PathBuf, String> {
    let mut command = cargo();
    command.args(args);
    command
        .args(["--message-format", "json-render-diagnostics"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child =
        command.spawn().map_err(|error| format!("cargo could not be started: {error}"))?;
    let lines =
        child.stdout.take().map(|stdout| BufReader::new(stdout).lines()).into_iter().flatten();
    let program = lines.map_while(Result::ok).filter_map(|line| executable(&line, name)).last();
    let status = child.wait().map_err(|error| format!("cargo cannot be waited for: {error}"))?;
    if !status.success() {
        return Err(format!("{name} did not build; cargo says why above."));
    }
    program.ok_or_else(|| format!("cargo built {name} without saying where."))
}

/// The path of the executable in one of cargo's messages, if the message is about `name`.
fn executable(message: &str, name: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let named = message.get("target")?.get("name")? == name;
    named.then(|| message.get("executable")?.as_str().map(PathBuf::from)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_path_from_the_right_message() {
        let program = r#"{"reason":"compiler-artifact","target":{"name":"pointsman"},"executable":"/t/debug/pointsman"}"#;
        assert_eq!(executable(program, "pointsman"), Some(PathBuf::from("/t/debug/pointsman")));
        let library =
            r#"{"reason":"compiler-artifact","target":{"name":"pointsman"},"executable":null}"#;
        assert_eq!(executable(library, "pointsman"), None);
        assert_eq!(executable(r#"{"reason":"build-finished","success":true}"#, "pointsman"), None);
    }
}
