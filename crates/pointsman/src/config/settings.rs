//! Settings with their origins: the effective values before they become the structs of
//! [`Config`].
//!
//! [`Settings`] has one [`SettingMap`] for the process and one for each service. A key whose value
//! was invalid is kept in `broken` and has no value at all, not even its default, so that no later
//! check draws conclusions from a number that is not in the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use super::credentials::{Secret, UnreadSecret};
use super::finding::Finding;
use super::option_spec::FromSettings as _;
use super::options::{
    AdminConfig, LogConfig, MetricsConfig, ProcessConfig, ServiceConfig, ShutdownConfig,
};
use super::pem_files::{self, PemTexts};
use super::value::{Problem, Value};
use super::{Config, schema};

/// The origin of a value or of a fault. Sorts the file first, from its top, then the environment,
/// then flags.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// A position in the configuration file. Line and column count from 1, the column in
    /// characters.
    File {
        /// The path as given on the command line.
        file: Arc<str>,
        /// The line.
        line: usize,
        /// The column.
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

/// A value and its origin.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// The value.
    pub value: Value,
    /// Its origin.
    pub origin: Origin,
}

/// The settings of one service, or of the process, by full path (`service.auth.username`).
#[derive(Debug, Clone, Default)]
pub(crate) struct SettingMap {
    /// The position in the file at which this service begins, for faults about missing keys.
    pub(super) service_origin: Option<Origin>,
    pub(crate) settings: BTreeMap<String, Setting>,
    /// Keys whose value is invalid.
    pub(super) broken: BTreeSet<String>,
    /// Passwords by the path of their section (`service.auth`), from any of the password keys.
    pub(super) passwords: BTreeMap<String, Secret>,
    /// The PEM files by the path of their section (`service.tls`).
    pub(super) pem_files: BTreeMap<String, PemTexts>,
}

impl SettingMap {
    /// The value at `path`, if there is one.
    pub(crate) fn value(&self, path: &str) -> Option<&Value> {
        self.settings.get(path).map(|setting| &setting.value)
    }

    /// The value of an option whose kind is a text.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        match self.value(path) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The name of the service; empty without a valid one.
    pub(crate) fn name(&self) -> &str {
        self.text("service.name").unwrap_or_default()
    }

    /// Whether an option is not set, not even to a value that is invalid.
    pub(super) fn lacks(&self, path: &str) -> bool {
        self.value(path).is_none() && !self.broken.contains(path)
    }

    /// A problem with the value of an option.
    pub(super) fn finding(&self, path: &str, problem: Problem) -> Finding {
        Finding::of(self.origin(path), path, problem)
    }

    /// The origin to report for a fault about `path`: that of its value, or the beginning of its
    /// service if the value is a default or missing.
    pub(super) fn origin(&self, path: &str) -> Origin {
        match self.settings.get(path) {
            Some(setting) if setting.origin != Origin::Default => setting.origin.clone(),
            _ => self.service_origin.clone().unwrap_or(Origin::Default),
        }
    }
}

/// The effective values of all services and of the process, with their origins.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// The services, in the order of the file.
    pub services: Vec<SettingMap>,
    /// The sections that apply to the process.
    pub process: SettingMap,
}

impl Settings {
    /// The structs of the configuration. Only meaningful for settings without faults.
    pub(crate) fn to_config(&self, warnings: &[Finding]) -> Config {
        Config {
            services: self
                .services
                .iter()
                .map(|values| ServiceConfig::read(values, "service"))
                .collect(),
            admin: AdminConfig::read(&self.process, "admin"),
            metrics: MetricsConfig::read(&self.process, "metrics"),
            shutdown: ShutdownConfig::read(&self.process, "shutdown"),
            log: LogConfig::read(&self.process, "log"),
            process: ProcessConfig::read(&self.process, "process"),
            hash: self.fingerprint(),
            warnings: warnings.iter().map(ToString::to_string).collect(),
        }
    }

    /// Takes a secret whose file could not be read from the running configuration, or from a
    /// service that was removed and still closes its sessions. `false` if neither has one.
    pub(super) fn keep_secret(
        &mut self,
        unread: &UnreadSecret,
        running: &Self,
        leaving: &[SettingMap],
    ) -> bool {
        let named = |map: &SettingMap| Some(map.name()) == unread.service.as_deref();
        let (ours, old) = if unread.service.is_some() {
            let old = running.services.iter().chain(leaving).find(|map| named(map));
            (self.services.iter_mut().find(|map| named(map)), old)
        } else {
            (Some(&mut self.process), Some(&running.process))
        };
        let Some((ours, old)) = ours.zip(old) else { return false };
        if let Some(secret) = old.passwords.get(unread.section) {
            ours.passwords.insert(unread.section.to_owned(), secret.clone());
        } else if let Some(files) = old.pem_files.get(unread.section) {
            ours.pem_files.insert(unread.section.to_owned(), files.clone());
        } else {
            return false;
        }
        true
    }

    /// The certificates that are not valid now, in the system's clock. They are used if there are
    /// no others.
    pub(crate) fn invalid_certificates(&self) -> Vec<Finding> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let maps = self.services.iter().chain([&self.process]);
        maps.flat_map(|it| pem_files::invalid(it, now)).collect()
    }

    /// A hash of the effective configuration, as 16 hexadecimal digits, by which an operator sees
    /// which instances differ.
    ///
    /// It covers every value and no origin: the same settings by file and by flags have the same
    /// hash. Of a password it covers only its presence, because the hash is shown on status pages
    /// and must not help to guess a password. The function is 64-bit FNV-1a, which gives the same
    /// result on every machine and in every release; the hasher of the standard library does not
    /// promise that. It is not a cryptographic hash.
    pub(super) fn fingerprint(&self) -> String {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for service in &self.services {
            fnv1a(&mut hash, "[service]\n");
            hash_values(&mut hash, service, true);
        }
        hash_values(&mut hash, &self.process, false);
        format!("{hash:016x}")
    }
}

fn hash_values(hash: &mut u64, values: &SettingMap, of_service: bool) {
    for (section, option) in
        schema::options().filter(|(section, _)| section.is_of_service() == of_service)
    {
        let path = section.path_of(option.key);
        if let Some(value) = values.value(&path) {
            fnv1a(hash, &format!("{path} = {}\n", value.to_toml()));
        }
    }
}

fn fnv1a(hash: &mut u64, text: &str) {
    for byte in text.bytes() {
        *hash = (*hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
}
