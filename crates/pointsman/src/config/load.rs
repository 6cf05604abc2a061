//! Loading: the one place of this module that touches files.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::Path;

use zeroize::Zeroizing;

use super::change::Change;
use super::environment::{self, CONFIG};
use super::file;
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

/// Reads flags, environment and file (`-` is the standard input), and the files of passwords that they name.
#[must_use]
pub fn load(flags: &Flags, env: impl IntoIterator<Item = (OsString, OsString)>) -> Loaded {
    let vars: Vec<(OsString, OsString)> = env.into_iter().collect();
    let from_env =
        vars.iter().find(|(name, value)| name == CONFIG && !value.is_empty()).map(|(_, value)| Path::new(value));
    let path = flags.config.as_deref().or(from_env);
    let mut missing = Vec::new();
    let text = path.and_then(|path| {
        let origin = if flags.config.is_some() { Origin::Flag("--config".into()) } else { Origin::Env(CONFIG.into()) };
        let what = |error: io::Error| format!("{} cannot be read: {error}", path.display());
        let note =
            |error| missing.push(Finding::new(origin, "config", what(error), "check the path and its permissions"));
        read_config(path).map_err(note).ok()
    });
    let name = path.map(|path| path.display().to_string()).unwrap_or_default();
    let file = text.as_ref().map(|text| (name.as_str(), text.as_str()));
    assemble(file, missing, &vars, flags, &|path| read_small(path, LARGEST_FILE).map(Secret::new))
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
        Value::Text(name) if path.ends_with(".password_env") || path.ends_with(".control_token_env") => {
            Some(name.clone())
        }
        _ => None,
    }
}

/// The text of a configuration file, of no more than a bounded size; `-` is the standard input.
pub(crate) fn read_config(path: &Path) -> io::Result<Zeroizing<String>> {
    let text = if path == Path::new("-") {
        read_bounded(io::stdin().lock(), LARGEST_CONFIG)
    } else {
        read_small(path, LARGEST_CONFIG)
    }?;
    Ok(Zeroizing::new(text))
}

fn read_small(path: &Path, bound: u64) -> io::Result<String> {
    read_bounded(std::fs::File::open(path)?, bound)
}

fn read_bounded(from: impl io::Read, bound: u64) -> io::Result<String> {
    let mut text = String::new();
    let length = from.take(bound + 1).read_to_string(&mut text)?;
    if length as u64 > bound {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {bound} bytes")));
    }
    Ok(text)
}
