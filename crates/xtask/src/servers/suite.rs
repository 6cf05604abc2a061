//! Runs the parts of the end-to-end tests that depend on the server, with a given one.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::Binary;
use setup::{files, root};

use super::fetch::Programs;
use crate::limited::{ends_within, logged};

/// The modules of the end-to-end tests that depend on the server. The others test only the proxy
/// itself.
pub(super) const PARTS: [&str; 15] = [
    "bytes",
    "carry",
    "carry_state",
    "discovery",
    "doctor",
    "durability",
    "failover",
    "maintenance",
    "new_master",
    "readers",
    "replicas",
    "shared_commands",
    "subscribers",
    "switchover",
    "switchover_faults",
];
/// The module with the upgrades.
pub(super) const UPGRADE: &str = "upgrade";

/// How long the tests of one part may take.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// What the tests of one server gave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) passed: usize,
    /// The names of failed tests.
    pub(super) failed: Vec<String>,
    /// Why the run is incomplete, if it is.
    pub(super) broken: Option<String>,
}

impl Outcome {
    pub(super) fn is_good(&self) -> bool {
        self.passed > 0 && self.failed.is_empty() && self.broken.is_none()
    }

    /// An outcome without any test.
    pub(super) fn incomplete(why: String) -> Self {
        Self { broken: Some(why), ..Self::default() }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.broken = self.broken.take().or(other.broken);
    }
}

/// Runs one part with these programs. Its output stays in `log`.
///
/// # Errors
/// A message for people: the tests cannot be started, or the log cannot be written.
pub(super) fn run(
    tests: &Path,
    part: &str,
    programs: &Programs,
    newer: Option<&Programs>,
    log: &Path,
) -> Result<Outcome, String> {
    let mut command = Command::new(tests);
    command.arg(format!("{part}::"));
    command.env(Binary::Server.variable(), &programs.server);
    command.env(Binary::Sentinel.variable(), &programs.sentinel);
    for binary in [Binary::Server, Binary::Sentinel] {
        command.env_remove(binary.newer_variable());
    }
    if let Some(newer) = newer {
        command.env(Binary::Server.newer_variable(), &newer.server);
        command.env(Binary::Sentinel.newer_variable(), &newer.sentinel);
    }
    logged(command.current_dir(root()), log)?;
    // The servers of its tests end with it.
    ends_within(LIMIT, command.stderr(Stdio::null()))?;
    let outcome = outcome_of(&files::read(log)?);
    outcome.failed.iter().for_each(|name| println!("    FAILED {name}"));
    Ok(outcome)
}

/// The name of a test and its result.
fn verdict(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.rsplit_once(" ... ")
}

/// What the output of the tests says. Ignored tests are ignored here as everywhere.
fn outcome_of(text: &str) -> Outcome {
    let of = |wanted| {
        let named = text.lines().filter_map(verdict).filter(move |(_, it)| *it == wanted);
        named.map(|(name, _)| name.to_owned())
    };
    let ended = text.lines().any(|line| line.starts_with("test result: "));
    let (passed, failed) = (of("ok").count(), of("FAILED").collect::<Vec<_>>());
    let broken = match ended {
        true if passed + failed.len() == 0 => Some("no test was run".to_owned()),
        true => None,
        false => Some("the tests ended early".to_owned()),
    };
    Outcome { passed, failed, broken }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\nrunning 3 tests\ntest carry::one ... ok\ntest carry::two ... FAILED\n\
                          test carry::three ... ignored\n\ntest result: FAILED. 1 passed; 1 failed\n";

    #[test]
    fn counts_tests_and_names_failed_ones() {
        let outcome = outcome_of(OUTPUT);
        assert_eq!(
            (outcome.passed, outcome.failed.as_slice()),
            (1, &["carry::two".to_owned()][..])
        );
        assert!(outcome.broken.is_none() && !outcome.is_good());
        let early = outcome_of(OUTPUT.split_once("\ntest result").expect("the end").0);
        assert_eq!((early.passed, early.broken.is_some()), (1, true));
        assert!(outcome_of("test result: ok. 0 passed; 0 failed").broken.is_some());
    }

    #[test]
    fn adds_outcomes_of_parts() {
        let mut whole = outcome_of(&OUTPUT.replace("FAILED", "ok"));
        whole.add(outcome_of(OUTPUT));
        assert_eq!((whole.passed, whole.failed.len(), whole.broken), (3, 1, None));
    }

    #[test]
    fn passes_only_with_tests() {
        assert!(!Outcome::default().is_good());
        assert!(Outcome { passed: 1, ..Outcome::default() }.is_good());
        let broken = Some("ended early".to_owned());
        assert!(!Outcome { passed: 1, broken, ..Outcome::default() }.is_good());
    }

    #[test]
    fn names_existing_modules() {
        let main = include_str!("../../../../tests/e2e/main.rs");
        for part in PARTS.iter().chain(&[UPGRADE]) {
            assert!(main.lines().any(|line| line == format!("mod {part};")), "{part}");
        }
    }
}
