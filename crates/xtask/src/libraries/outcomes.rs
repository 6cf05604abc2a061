//! What the tests of a library gave, and how two runs differ.

use std::collections::{BTreeMap, BTreeSet};

/// How the tests reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Without a proxy.
    Direct,
    /// Through Pointsman, with `upstream = "dedicated"`.
    Dedicated,
    /// Through Pointsman, with `upstream = "shared"`.
    Shared,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Direct, Self::Dedicated, Self::Shared];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Dedicated => "dedicated",
            Self::Shared => "shared",
        }
    }
}

/// What became of one test. The worst one counts if a test reports several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Skipped,
    Passed,
    Failed,
}

/// The outcomes of a complete run, by the name of the test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Outcomes(BTreeMap<String, Outcome>);

impl Outcomes {
    /// Adds what one test reported.
    pub(super) fn add(&mut self, name: &str, outcome: Outcome) {
        let known = self.0.entry(name.to_owned()).or_insert(outcome);
        *known = outcome.max(*known);
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn count(&self, outcome: Outcome) -> usize {
        self.0.values().filter(|it| **it == outcome).count()
    }

    pub(super) fn failed(&self) -> impl Iterator<Item = &str> {
        let failed = self.0.iter().filter(|(_, it)| **it == Outcome::Failed);
        failed.map(|(name, _)| name.as_str())
    }

    /// The tests with another outcome than in the other run, or with none in one of both.
    pub(super) fn unlike<'a>(&'a self, other: &'a Self) -> BTreeSet<&'a str> {
        let names = self.0.keys().chain(other.0.keys());
        let differs = |name: &&String| self.0.get(*name) != other.0.get(*name);
        names.filter(differs).map(String::as_str).collect()
    }

    /// For people: what became of a test.
    pub(super) fn word(&self, name: &str) -> &'static str {
        match self.0.get(name) {
            Some(Outcome::Passed) => "passed",
            Some(Outcome::Failed) => "failed",
            Some(Outcome::Skipped) => "skipped",
            None => "not run",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(all: &[(&str, Outcome)]) -> Outcomes {
        let mut outcomes = Outcomes::default();
        all.iter().for_each(|(name, outcome)| outcomes.add(name, *outcome));
        outcomes
    }

    #[test]
    fn counts_the_worst_of_a_test() {
        use Outcome::{Failed, Passed, Skipped};
        let run = outcomes(&[("a", Failed), ("a", Passed), ("b", Passed), ("c", Skipped)]);
        assert_eq!([Passed, Failed, Skipped].map(|it| run.count(it)), [1, 1, 1]);
        assert_eq!(run.failed().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn finds_every_test_that_differs() {
        use Outcome::{Failed, Passed, Skipped};
        let direct = outcomes(&[("a", Passed), ("b", Failed), ("c", Skipped), ("d", Passed)]);
        let behind = outcomes(&[("a", Passed), ("b", Passed), ("c", Failed), ("e", Passed)]);
        let differing: Vec<_> = behind.unlike(&direct).into_iter().collect();
        assert_eq!(differing, ["b", "c", "d", "e"]);
        assert_eq!((behind.word("d"), direct.word("b")), ("not run", "failed"));
        assert!(direct.unlike(&direct).is_empty());
    }
}
