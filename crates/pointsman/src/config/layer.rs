//! What the environment, or the flags, lay over the file.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::schema::{CREDENTIALS, PASSWORD_KEYS};
use super::value::{Problem, Value};
use super::values::{Origin, Setting, Values};

/// Values by full path, and the faults met in reading them. For the keys of a service it is decided
/// later which one is meant.
#[derive(Debug, Default)]
pub(super) struct Layer {
    pub(super) values: BTreeMap<String, Setting>,
    pub(super) broken: BTreeSet<String>,
    pub(super) findings: Vec<Finding>,
}

impl Layer {
    /// Takes a value, or notes why there is none.
    pub(super) fn set(&mut self, path: String, read: Result<Value, Problem>, origin: Origin) {
        match read {
            Ok(value) => {
                self.values.insert(path, Setting { value, origin });
            }
            Err(problem) => {
                self.findings.push(Finding::of(origin, path.clone(), problem));
                self.broken.insert(path);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.broken.is_empty() && self.findings.is_empty()
    }

    /// Lays itself over `values`, as far as `takes` says. A password given here replaces one given
    /// below in any of its ways.
    pub(super) fn lay_over(&self, values: &mut Values, takes: impl Fn(&str) -> bool) {
        for section in CREDENTIALS {
            let ways = PASSWORD_KEYS.map(|key| format!("{section}.{key}"));
            if takes(section) && ways.iter().any(|way| self.values.contains_key(way)) {
                for way in &ways {
                    values.settings.remove(way);
                    values.broken.remove(way);
                }
            }
        }
        for (path, setting) in self.values.iter().filter(|(path, _)| takes(path)) {
            values.broken.remove(path);
            values.settings.insert(path.clone(), setting.clone());
        }
        for path in self.broken.iter().filter(|path| takes(path)) {
            values.settings.remove(path);
            values.broken.insert(path.clone());
        }
    }
}
