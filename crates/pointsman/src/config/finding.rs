//! Faults and warnings of the configuration: origin, key, what is wrong, and what to do.
//!
//! They are printed as `FILE:LINE:COLUMN: key: what; what to do`, the form that editors and CI
//! systems turn into links.

use std::fmt;

use super::settings::Origin;
use super::value::Problem;

/// One fault or one warning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Where the value at fault came from.
    pub origin: Origin,
    /// The full path of the key, or of the nearest section that has one. Empty if the fault is
    /// about a flag or variable that sets no key.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it. May be empty.
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
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.what)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

/// All faults of a configuration: those of the file by line, then those of the environment and of
/// flags. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Faults(pub Vec<Finding>);

impl Faults {
    /// Sorts the findings and removes duplicates. `None` if there are none.
    pub(super) fn of(mut findings: Vec<Finding>) -> Option<Self> {
        findings.sort();
        findings.dedup();
        (!findings.is_empty()).then_some(Self(findings))
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

/// The candidate nearest to `word`, for "did you mean ...?", or `None` if none is close enough to
/// be a typing error: at most one edit per three letters, and one in shorter words. More would
/// suggest a word of another meaning, such as `role` for `none`.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let bound = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| {
            (strsim::damerau_levenshtein(&word, &candidate.to_ascii_lowercase()), candidate)
        })
        .filter(|(distance, candidate)| *distance <= bound && *distance < candidate.len())
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn suggests_the_intended_word_for_typing_errors_only() {
        let keys = ["listen", "sentinels", "connect_timeout", "accept_min", "accept_max"];
        assert_eq!(nearest("sentinel", keys), Some("sentinels"));
        assert_eq!(nearest("lisetn", keys), Some("listen"));
        assert_eq!(nearest("conect-timeout", keys), Some("connect_timeout"));
        assert_eq!(nearest("Accept_Min", keys), Some("accept_min"));
        assert_eq!(nearest("password", keys), None);
        assert_eq!(nearest("none", ["role", "ping", "tcp"]), None, "two edits in four letters");
        assert_eq!(nearest("ä", ["on"]), None, "two letters are too few for two edits");
    }
}
