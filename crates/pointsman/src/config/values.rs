//! Values with where each came from, before they become structs.
//!
//! One `Values` for the process, one for each service. A key whose value was at fault is remembered
//! as broken and has no value at all, not even its default: so no later check draws conclusions
//! from a number that nobody wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::secret::Secret;
use super::value::Value;

/// Where a value, or a fault, came from. Sorted as people read: the file from its top, then the
/// environment, then flags.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A place in the configuration file; line and column count from 1, the column in characters.
    File {
        /// The path as it was given.
        file: Arc<str>,
        /// Line.
        line: usize,
        /// Column.
        column: usize,
    },
    /// An environment variable.
    Env(String),
    /// A flag.
    Flag(String),
    /// The built-in default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line, .. } => write!(f, "{file}:{line}"),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value and where it came from.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The value.
    pub value: Value,
    /// Where it came from.
    pub origin: Origin,
}

/// The settings of one service, or of the process, by full path (`service.auth.username`).
#[derive(Debug, Clone, Default)]
pub struct Values {
    /// Where this service begins in the file; for faults about what is missing.
    pub(super) place: Option<Origin>,
    pub(super) settings: BTreeMap<String, Setting>,
    pub(super) broken: BTreeSet<String>,
    /// Passwords by the path of their section (`service.auth`), whichever way each was given.
    pub(super) passwords: BTreeMap<String, Secret>,
}

impl Values {
    /// The value at `path`, if there is one.
    #[must_use]
    pub fn value(&self, path: &str) -> Option<&Value> {
        self.settings.get(path).map(|setting| &setting.value)
    }

    /// The value at `path` with its origin, if there is one.
    #[must_use]
    pub fn setting(&self, path: &str) -> Option<&Setting> {
        self.settings.get(path)
    }

    /// Where faults about `path` are best shown: where its value was written, else where its
    /// service begins.
    pub(super) fn origin(&self, path: &str) -> Origin {
        match self.settings.get(path) {
            Some(setting) if setting.origin != Origin::Default => setting.origin.clone(),
            _ => self.place.clone().unwrap_or(Origin::Default),
        }
    }
}
