//! One thing that is wrong, or odd: its place, its key, what it is, and what to do.
//!
//! The form `FILE:LINE:COLUMN: key: what; what to do` is the one that editors and CI systems turn
//! into links.

use std::fmt;

use super::value::Problem;
use super::values::Origin;

/// One fault or one warning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Where.
    pub origin: Origin,
    /// The full path of the key, or of the nearest thing that has one.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to do; may be empty.
    pub remedy: String,
}

impl Finding {
    pub(super) fn new(
        origin: Origin,
        key: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { origin, key: key.into(), what: what.into(), remedy: remedy.into() }
    }

    pub(super) fn of(origin: Origin, key: impl Into<String>, problem: Problem) -> Self {
        Self::new(origin, key, problem.what, problem.remedy)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File { file, line, column } => write!(f, "{file}:{line}:{column}: ")?,
            Origin::Env(name) | Origin::Flag(name) => write!(f, "{name}: ")?,
            Origin::Default => {}
        }
        write!(f, "{}: {}", self.key, self.what)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

/// Every fault of a configuration, in the order of the file; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(Vec<Finding>);

impl Faults {
    /// Sorts the findings; none if there are none.
    pub(super) fn of(mut findings: Vec<Finding>) -> Option<Self> {
        findings.sort();
        findings.dedup();
        (!findings.is_empty()).then_some(Self(findings))
    }

    /// The faults, by file and line, then those of the environment and of flags.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.0
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, finding) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            finding.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
