//! Loading: from flags, environment and files to settings and faults.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;

use zeroize::Zeroizing;

use super::change::Change;
use super::environment::{self, CONFIG};
use super::file;
use super::files::{self, InProgress};
use super::finding::{Faults, Finding};
use super::flags::{self, Flags};
use super::passwords::{self, LARGEST_FILE};
use super::secret::Secret;
use super::settings::{self, Settings};
use super::value::Value;
use super::values::Origin;
use super::{Config, check};

/// The largest configuration file that is read, in bytes.
const LARGEST_CONFIG: u64 = 1024 * 1024;

/// A configuration that was read, with or without faults.
#[derive(Debug)]
pub struct Loaded {
    settings: Settings,
    faults: Option<Faults>,
    warnings: Vec<Finding>,
}

impl Loaded {
    /// The configuration.
    ///
    /// # Errors
    ///
    /// Every fault there is.
    pub fn config(&self) -> Result<Config, &Faults> {
        match &self.faults {
            Some(faults) => Err(faults),
            None => Ok(self.settings.to_config(&self.warnings)),
        }
    }

    /// What a running process makes of this.
    ///
    /// # Errors
    ///
    /// Every fault there is, here or in the mixture of what is in force and what can be changed.
    pub fn change(&self, running: &Settings) -> Result<Change, Faults> {
        match &self.faults {
            Some(faults) => Err(faults.clone()),
            None => Change::of(running, &self.settings),
        }
    }

    /// What is not wrong but odd.
    #[must_use]
    pub fn warnings(&self) -> &[Finding] {
        &self.warnings
    }

    /// The effective values with their origins; what is at fault is left out.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The effective configuration as commented TOML, secrets hidden.
    #[must_use]
    pub fn print(&self) -> String {
        super::print::print(&self.settings)
    }
}

/// Reads flags, environment and file (`-` is the standard input), and the files of passwords that
/// they name.
#[must_use]
pub fn load(flags: &Flags, env: impl IntoIterator<Item = (OsString, OsString)>) -> Loaded {
    load_in_view(flags, env, &InProgress::default())
}

/// As [`load`]; `files` tells others which file is being read.
#[must_use]
pub fn load_in_view(
    flags: &Flags,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    files: &InProgress,
) -> Loaded {
    let vars: Vec<(OsString, OsString)> = env.into_iter().collect();
    let from_env = vars
        .iter()
        .find(|(name, value)| name == CONFIG && !value.is_empty())
        .map(|(_, value)| Path::new(value));
    let path = flags.config.as_deref().or(from_env);
    let mut missing = Vec::new();
    let text = path.and_then(|path| {
        let origin = if flags.config.is_some() {
            Origin::Flag("--config".into())
        } else {
            Origin::Env(CONFIG.into())
        };
        let what = |error: io::Error| format!("{} cannot be read: {error}", path.display());
        let remedy = "check the path and its permissions; - is the standard input";
        let note = |error| missing.push(Finding::new(origin, "config", what(error), remedy));
        read_in_view(path, files).map_err(note).ok()
    });
    let name = path.map(|path| path.display().to_string()).unwrap_or_default();
    let file = text.as_ref().map(|text| (name.as_str(), text.as_str()));
    assemble(file, missing, &vars, flags, &|path| {
        files::read_file(path, LARGEST_FILE, files).map(Secret::new)
    })
}

/// Everything after the reading: pure but for `read_file`.
pub(super) fn assemble(
    file: Option<(&str, &str)>,
    missing: Vec<Finding>,
    vars: &[(OsString, OsString)],
    flags: &Flags,
    read_file: passwords::ReadFile<'_>,
) -> Loaded {
    let mut reading = file.map(|(name, text)| file::read(name, text)).unwrap_or_default();
    reading.damaged |= !missing.is_empty();
    reading.findings.extend(missing);
    let damaged = reading.damaged;
    let flags = flags::read(flags);
    let exempt: Vec<String> = reading
        .services
        .iter()
        .flat_map(|service| &service.settings)
        .chain(&flags.values)
        .filter_map(referred)
        .collect();
    let (env, mut warnings) = environment::read(vars, &exempt);
    let (mut settings, mut findings) = settings::assemble(reading, env, flags);

    let texts: BTreeMap<&str, &str> =
        vars.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?))).collect();
    for service in &mut settings.services {
        findings.extend(passwords::resolve(service, read_file, &texts));
    }
    findings.extend(passwords::control_token(&mut settings.process, read_file, &texts));
    findings.extend(check::faults(&settings, damaged));
    warnings.extend(check::warnings(&settings));
    warnings.sort();
    Loaded { settings, faults: Faults::of(findings), warnings }
}

/// The variable that a setting refers to.
fn referred((path, setting): (&String, &super::values::Setting)) -> Option<String> {
    match &setting.value {
        Value::Text(name)
            if path.ends_with(".password_env") || path.ends_with(".control_token_env") =>
        {
            Some(name.clone())
        }
        _ => None,
    }
}

/// The text of a configuration file, of no more than a bounded size; `-` is the standard input.
pub(crate) fn read_config(path: &Path) -> io::Result<Zeroizing<String>> {
    read_in_view(path, &InProgress::default())
}

fn read_in_view(path: &Path, in_progress: &InProgress) -> io::Result<Zeroizing<String>> {
    let text = if path == Path::new("-") {
        files::read_stdin(LARGEST_CONFIG, in_progress)
    } else {
        files::read_file(path, LARGEST_CONFIG, in_progress)
    }?;
    Ok(Zeroizing::new(text))
}
