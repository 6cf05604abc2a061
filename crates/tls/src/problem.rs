//! What is wrong with a file or a setting, and what to do about it.

use std::path::{Path, PathBuf};

/// A fault that prevents settings from being used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {remedy}")]
pub struct Problem {
    /// The file concerned; `None` for a setting.
    pub file: Option<PathBuf>,
    /// What is wrong. Names the file.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Problem {
    pub(crate) fn of_file(file: &Path, what: &str, remedy: impl Into<String>) -> Self {
        let what = format!("{file:?} {what}");
        Self { file: Some(file.to_owned()), what, remedy: remedy.into() }
    }

    pub(crate) fn of_setting(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { file: None, what: what.into(), remedy: remedy.into() }
    }
}
