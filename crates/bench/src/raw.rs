//! Raw data of a measurement, written line by line, so that an interrupted one is not lost.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// An append-only file of raw data.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) name: String,
    file: File,
}

impl Raw {
    /// A new file at a given path.
    pub(super) fn at(file: &Path) -> Result<Self, String> {
        let name = file.display().to_string();
        let opened = File::options().write(true).create_new(true).open(file);
        opened
            .map(|file| Self { name: name.clone(), file })
            .map_err(|error| format!("{name}: {error}"))
    }

    /// `benches/runs/KIND.jsonl`, instead of that of the last run: git has those before.
    pub(super) fn create(kind: &str) -> Result<Self, String> {
        let (folder, name) = (benches().join("runs"), format!("{kind}.jsonl"));
        fs::create_dir_all(&folder)
            .and_then(|()| File::create(folder.join(&name)))
            .map(|file| Self { name: name.clone(), file })
            .map_err(|error| format!("{name}: {error}"))
    }

    /// Appends a line.
    pub(super) fn line(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.file, "{line}").map_err(|error| format!("{}: {error}", self.name))
    }
}

/// The folder of all results.
pub(super) fn benches() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches")
}
