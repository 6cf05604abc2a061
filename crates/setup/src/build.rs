//! Builds pointsman and finds the path of the program in cargo's messages.

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

/// Builds what a test of the package `pointsman` needs, as the build of all tests does, so that
/// nothing is compiled once more before or after them: with the features that all crates together
/// select. Runs nothing, and returns the program of this name: `pointsman`, or the test itself.
///
/// # Errors
/// Like [`pointsman_or`].
pub fn of_tests(test: &str, program: &str) -> Result<PathBuf, String> {
    let build = ["test", "--no-run", "--workspace", "--test", test];
    made(&[&build[..], &FAST_PROPERTIES].concat(), [program]).map(|[program]| program)
}

/// Builds examples, given as package and name, with the release profile and all at once, so that
/// their dependencies are compiled once. Returns their paths in the same order.
///
/// # Errors
/// Like [`pointsman_or`].
pub fn examples<const N: usize>(wanted: [(&str, &str); N]) -> Result<[PathBuf; N], String> {
    let of = |(package, example)| ["--package", package, "--example", example];
    let args = ["build", "--release"].into_iter().chain(wanted.into_iter().flat_map(of));
    made(&args.collect::<Vec<&str>>(), wanted.map(|(_, example)| example))
}

fn given_or(given: Option<&Path>, args: &[&str]) -> Result<PathBuf, String> {
    let build = ["build", "--package", "pointsman", "--bin", "pointsman"];
    match given {
        Some(program) => std::fs::canonicalize(program)
            .map_err(|error| format!("{}: {error}", program.display())),
        None => made(&[&build, args].concat(), ["pointsman"]).map(|[program]| program),
    }
}

/// Runs cargo, and returns where it says that the programs of these names are.
fn made<const N: usize>(args: &[&str], names: [&str; N]) -> Result<[PathBuf; N], String> {
    let output = cargo()
        .args(args)
        .args(["--message-format", "json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    let mut programs = names.map(|_| None);
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        for (name, program) in names.iter().zip(&mut programs) {
            *program = executable(line, name).or(program.take());
        }
    }
    let names = names.join(", ");
    match output.status.success() {
        false => Err(format!("{names} did not build; cargo says why above.")),
        true if programs.contains(&None) => Err(format!("cargo did not say where {names} is.")),
        true => Ok(programs.map(Option::unwrap_or_default)),
    }
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
