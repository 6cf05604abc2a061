//! `pointsman import`: reads the files, prints the configuration and the report.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use haproxy_import::{Environment, Import, ImportOptions};

use super::args::ImportArgs;
use crate::config::{self, SENTINEL_PORT, parse_endpoint};

/// Why no configuration was generated.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImportError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A flag has a wrong value.
    #[error("{flag}: {message}; {remedy}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// What is wrong.
        message: String,
        /// What to do.
        remedy: String,
    },
    /// The import was refused, with the text to print.
    #[error("import refused")]
    Refused(String),
}

/// Returns the configuration and the report.
///
/// # Errors
/// A file cannot be read, or the import is refused.
pub(super) fn haproxy(args: &ImportArgs) -> Result<(String, String), ImportError> {
    let options = options(args)?;
    let files: Result<Vec<(String, String)>, ImportError> = args
        .files
        .iter()
        .map(|path| match config::read_config(path) {
            Ok(text) => Ok((path.display().to_string(), text.to_string())),
            Err(source) => Err(ImportError::File { path: path.clone(), source }),
        })
        .collect();
    let env = Environment {
        variable: &|name| std::env::var(name).ok(),
        folder: &|path| files_in(Path::new(path)),
        endpoint: &|text| parse_endpoint(text, SENTINEL_PORT).ok().map(|it| it.to_string()),
    };
    let import = haproxy_import::import(&files?, &options, &env);
    if !import.refusals.is_empty() {
        return Err(ImportError::Refused(refusals(&import, args)));
    }
    let hint = if args.explain { "" } else { " (--explain shows every line)" };
    let report =
        format!("{}{}{hint}\n", import.report.render(args.explain), import.report.summary());
    Ok((import.toml, report))
}

fn options(args: &ImportArgs) -> Result<ImportOptions, ImportError> {
    let endpoint = |text: &String| {
        let (listener, text) = of_listener(text);
        let wrong = |problem: config::Problem| ImportError::Flag {
            flag: "--sentinel",
            message: problem.what,
            remedy: problem.remedy,
        };
        parse_endpoint(&text, SENTINEL_PORT).map(|it| (listener, it.to_string())).map_err(wrong)
    };
    let sentinels: Result<Vec<_>, ImportError> = args.sentinels.iter().map(endpoint).collect();
    Ok(ImportOptions {
        names: args.names.iter().map(|it| of_listener(it)).collect(),
        sentinels: sentinels?,
        allow_plaintext: args.allow_plaintext,
        strict: args.strict,
    })
}

/// The listener that a flag names, if it names one, and the rest of its value.
fn of_listener(text: &str) -> (Option<String>, String) {
    match text.split_once('=') {
        Some((listener, value)) => (Some(listener.to_owned()), value.to_owned()),
        None => (None, text.to_owned()),
    }
}

/// The refusals, one per line, after the lines of the report that explain them.
fn refusals(import: &Import, args: &ImportArgs) -> String {
    let is_shown = args.explain || args.strict;
    let mut text = if is_shown { import.report.render(args.explain) } else { String::new() };
    for refusal in &import.refusals {
        let _ = writeln!(text, "{refusal}");
    }
    let count = import.refusals.len();
    let errors = if count == 1 { "error" } else { "errors" };
    let _ = writeln!(text, "pointsman: import refused: {count} {errors}, no configuration written");
    text
}

/// The most files of a folder with certificates.
const MAX_FILES: usize = 256;

/// The names of the regular files in a folder, sorted; `None` if it cannot be listed or has too
/// many of them.
fn files_in(folder: &Path) -> Option<Vec<String>> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let files = entries.filter(|entry| entry.path().is_file());
    let names = files.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.take(MAX_FILES + 1).collect();
    names.sort();
    (names.len() <= MAX_FILES).then_some(names)
}
