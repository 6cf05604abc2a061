//! `pointsman import`: reads the files, and shows what came of them.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use super::args::ImportArgs;
use crate::config::{self, Endpoint, SENTINEL_PORT};
use crate::import::{self, Entry, Given, Imported, Verdict};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImportError {
    /// A file could not be read.
    #[error("{} cannot be read", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A flag says something that cannot be.
    #[error("{flag}: {what}; {remedy}")]
    Flag {
        /// Which.
        flag: &'static str,
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The files give no configuration; the lines that say why, as they are to be shown.
    #[error("no configuration can be made of it")]
    Faults(String),
}

/// The configuration, and what is told beside it.
///
/// # Errors
/// A file cannot be read, or gives no configuration.
pub(super) fn haproxy(args: &ImportArgs) -> Result<(String, String), ImportError> {
    let given = given(args)?;
    let files: Result<Vec<(String, String)>, ImportError> = args
        .files
        .iter()
        .map(|path| match config::read_config(path) {
            Ok(text) => Ok((path.display().to_string(), text.to_string())),
            Err(source) => Err(ImportError::File { path: path.clone(), source }),
        })
        .collect();
    let imported = import::haproxy(&files?, &given, &|name| std::env::var(name).ok());
    if imported.faults.is_empty() {
        let account = account(&imported, args.explain);
        return Ok((imported.toml, account));
    }
    let count = imported.faults.len();
    let mut lines = if args.explain { table(imported.account.iter()) } else { String::new() };
    imported.faults.iter().for_each(|fault| {
        let _ = writeln!(lines, "{fault}");
    });
    let _ =
        writeln!(lines, "pointsman: {count} {} in the way of an import", if count == 1 { "fault" } else { "faults" });
    Err(ImportError::Faults(lines))
}

fn given(args: &ImportArgs) -> Result<Given, ImportError> {
    let sentinels: Result<Vec<Endpoint>, ImportError> = args
        .sentinels
        .iter()
        .map(|text| {
            let wrong = |problem: config::Problem| ImportError::Flag {
                flag: "--sentinel",
                what: problem.what,
                remedy: problem.remedy,
            };
            Endpoint::parse(text, SENTINEL_PORT).map_err(wrong)
        })
        .collect();
    let name = |text: &String| match text.split_once('=') {
        Some((listener, name)) => (Some(listener.to_owned()), name.to_owned()),
        None => (None, text.clone()),
    };
    Ok(Given { names: args.names.iter().map(name).collect(), sentinels: sentinels? })
}

fn account(imported: &Imported, explain: bool) -> String {
    let of = |verdict| imported.account.iter().filter(move |entry| entry.verdict == verdict);
    let wanted = |entry: &&Entry| explain || matches!(entry.verdict, Verdict::Assumed | Verdict::Unmatched);
    let mut text = table(imported.account.iter().filter(wanted));
    let count = |verdict| of(verdict).count();
    let _ = writeln!(
        text,
        "{} lines: {} mapped, {} not needed any more, {} without counterpart, {} assumed{}",
        imported.account.len(),
        count(Verdict::Mapped),
        count(Verdict::Unneeded),
        count(Verdict::Unmatched),
        count(Verdict::Assumed),
        if explain { "" } else { " (--explain shows every line)" },
    );
    text
}

fn table<'a>(entries: impl Iterator<Item = &'a Entry>) -> String {
    let mut text = String::new();
    for entry in entries {
        let _ = writeln!(text, "{}: {:<14}  {}\n    {}", entry.place, entry.verdict, entry.line, entry.note);
    }
    text
}
