//! Loads the configuration: reads file, environment and flags, merges and checks them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use zeroize::Zeroizing;

use super::credentials::{self, Secret, SecretFindings, SecretResolver, UnreadSecret};
use super::environment::{self, CONFIG};
use super::file_reader::{self, FileStamp, PendingReads, file_name, file_problem};
use super::finding::{Faults, Finding};
use super::flags::{self, Flags};
use super::merge::merge;
use super::pem_files;
use super::reload_plan::ReloadPlan;
use super::settings::{Origin, Setting, SettingMap, Settings};
use super::value::Value;
use super::{Config, consistency, toml_file};

/// Maximum size of a configuration file, in bytes.
const MAX_CONFIG_BYTES: u64 = 1024 * 1024;

/// A configuration that was loaded, with or without faults.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// The effective values with their origins. Invalid values are left out.
    pub(crate) settings: Settings,
    /// All faults, with those of secret files.
    pub(super) faults: Option<Faults>,
    /// Whether there are others than those of secret files.
    pub(super) is_broken: bool,
    pub(super) unread: Vec<UnreadSecret>,
    /// The secret files.
    pub(crate) secret_files: SecretFiles,
    /// Values that are valid and probably not intended.
    pub(crate) warnings: Vec<Finding>,
}

/// The secret files that a configuration names, each with its metadata from before it was read.
pub(crate) type SecretFiles = BTreeMap<PathBuf, FileStamp>;

impl Loaded {
    /// A configuration whose file cannot be read or parsed: no value is known.
    fn unusable(finding: Finding) -> Self {
        Self { faults: Faults::of(vec![finding]), is_broken: true, ..Self::default() }
    }

    /// The configuration.
    ///
    /// # Errors
    ///
    /// All faults.
    pub(crate) fn config(&self) -> Result<Config, Faults> {
        match &self.faults {
            Some(faults) => Err(faults.clone()),
            None => Ok(self.settings.to_config(&self.warnings)),
        }
    }

    /// What a reload of this configuration changes in a running process. `leaving` are services
    /// that were removed earlier and still close their sessions. A secret whose file could not be
    /// read stays as it is; [`Self::unread_secrets`] has the reasons. A service that is new has no
    /// secret to keep: its unreadable file is a fault.
    ///
    /// # Errors
    ///
    /// All faults of this configuration, or of the combination of the running configuration with
    /// the values that a reload can change.
    pub(crate) fn change(
        &self,
        running: &Settings,
        leaving: &[SettingMap],
    ) -> Result<ReloadPlan, Faults> {
        let mut settings = self.settings.clone();
        let kept = self.unread.iter().all(|it| settings.keep_secret(it, running, leaving));
        match &self.faults {
            Some(faults) if self.is_broken || !kept => Err(faults.clone()),
            _ => ReloadPlan::of(running, leaving, &settings),
        }
    }

    /// Certificates that have expired count as unread where those that are running have not.
    pub(crate) fn reject_expired(&mut self, running: &Settings, leaving: &[SettingMap]) {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let old = || running.services.iter().chain(leaving);
        let services = self
            .settings
            .services
            .iter()
            .filter_map(|new| Some((new, old().find(|old| old.name() == new.name())?)));
        let all = services.chain([(&self.settings.process, &running.process)]);
        self.unread.extend(all.flat_map(|(new, old)| pem_files::expired(new, old, now)));
    }

    /// Why secret files could not be read.
    pub(crate) fn unread_secrets(&self) -> Vec<String> {
        self.unread.iter().map(|secret| secret.finding.to_string()).collect()
    }

    /// Why this does not say where its process is reached, or not whether with TLS: the file could
    /// not be read or parsed, or one of these keys has a value of no use.
    pub(crate) fn faults_of_address(&self) -> Option<&Faults> {
        const KEYS: [&str; 3] =
            ["admin.listen", "admin.control_socket", "admin.tls.certificate_file"];
        let values = &self.settings.process;
        let is_broken = |key: &&str| values.broken.contains(*key);
        let is_unknown = values.settings.is_empty() || KEYS.iter().any(is_broken);
        self.faults.as_ref().filter(|_| is_unknown)
    }

    /// The effective configuration as commented TOML, with secrets hidden.
    pub(crate) fn print(&self) -> String {
        super::print::print(&self.settings)
    }
}

/// Loads the configuration from flags, environment and file (`-` is the standard input), with the
/// password files that they name.
pub(crate) fn load(flags: &Flags, env: impl IntoIterator<Item = (OsString, OsString)>) -> Loaded {
    load_tracked(flags, env, &PendingReads::default(), None)
}

/// As [`load`]; while a file is read, `files` has its path. A secret file is waited for at most for
/// `patience`, if given.
pub(crate) fn load_tracked(
    flags: &Flags,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    files: &PendingReads,
    patience: Option<Duration>,
) -> Loaded {
    let vars: Vec<(OsString, OsString)> = env.into_iter().collect();
    let from_env = vars
        .iter()
        .find(|(name, value)| name == CONFIG && !value.is_empty())
        .map(|(_, value)| Path::new(value));
    let path = flags.config.as_deref().or(from_env);
    let text = match path.map(|path| read_tracked(path, files)).transpose() {
        Ok(text) => text,
        Err(error) => {
            let origin = match flags.config {
                Some(_) => Origin::Flag("--config".into()),
                None => Origin::Env(CONFIG.into()),
            };
            let name = path.map(file_name).unwrap_or_default();
            return Loaded::unusable(Finding::of(origin, "", file_problem(&name, &error)));
        }
    };
    let name = path.map(|path| path.display().to_string()).unwrap_or_default();
    let file = text.as_ref().map(|text| (name.as_str(), text.as_str()));
    let secret_files = RefCell::new(SecretFiles::new());
    let exposed = RefCell::new(BTreeMap::new());
    let mut loaded = assemble(file, &vars, flags, &|path, bound| {
        let (stamp, text) = match patience {
            Some(patience) => file_reader::read_within(path, bound, files, patience),
            None => {
                let stamp = file_reader::stamp(path);
                (stamp, file_reader::read_file(path, bound, files))
            }
        };
        // Two keys may name the same file: what was seen first is what a change is compared with.
        secret_files.borrow_mut().entry(path.to_owned()).or_insert(stamp);
        // Only of a file that was read: looking at one that hangs would hang as well.
        if let Ok(text) = &text
            && let Some(mode) = file_reader::exposed_mode(path)
        {
            exposed.borrow_mut().insert(path.to_owned(), (mode, text.contains("PRIVATE KEY")));
        }
        text.map(Secret::new)
    });
    loaded.secret_files = secret_files.into_inner();
    let exposed = credentials::exposed_files(&loaded.settings, &exposed.into_inner());
    loaded.warnings.extend(exposed);
    loaded.warnings.extend(loaded.settings.invalid_certificates());
    loaded.warnings.sort();
    loaded
}

/// Merges and checks what was read. Pure, except for `read_file`.
pub(super) fn assemble(
    file: Option<(&str, &str)>,
    vars: &[(OsString, OsString)],
    flags: &Flags,
    read_file: credentials::ReadFile<'_>,
) -> Loaded {
    let parsed = match file.map(|(name, text)| toml_file::read(name, text)).transpose() {
        Ok(parsed) => parsed.unwrap_or_default(),
        Err(finding) => return Loaded::unusable(finding),
    };
    let flags = flags::read(flags);
    let referenced: Vec<String> = parsed
        .services
        .iter()
        .flat_map(|service| &service.settings)
        .chain(&flags.values)
        .filter_map(|(path, setting)| referenced_variable(path, setting))
        .collect();
    let (env, mut warnings) = environment::read(vars, &referenced);
    let (mut settings, mut findings) = merge(parsed, env, flags);

    let texts: BTreeMap<&str, &str> =
        vars.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?))).collect();
    let found = SecretFindings::default();
    let mut secrets = SecretResolver { read_file, env: &texts, found };
    for service in &mut settings.services {
        secrets.resolve_passwords(service);
        pem_files::resolve(service, read_file, &mut secrets.found);
    }
    pem_files::resolve(&mut settings.process, read_file, &mut secrets.found);
    secrets.resolve_tokens(&mut settings.process);
    let SecretFindings { faults, unread } = secrets.found;
    findings.extend(faults);
    findings.extend(consistency::faults(&settings));
    warnings.extend(consistency::warnings(&settings));
    warnings.sort();
    let is_broken = !findings.is_empty();
    findings.extend(unread.iter().map(|secret| secret.finding.clone()));
    let (faults, secret_files) = (Faults::of(findings), SecretFiles::new());
    Loaded { settings, faults, is_broken, unread, secret_files, warnings }
}

/// The environment variable that a setting names.
fn referenced_variable(path: &str, setting: &Setting) -> Option<String> {
    match &setting.value {
        Value::Text(name) if path.ends_with(".password_env") || path.ends_with("_token_env") => {
            Some(name.clone())
        }
        _ => None,
    }
}

/// The text of a configuration file of at most [`MAX_CONFIG_BYTES`]; `-` is the standard input.
pub(crate) fn read_config(path: &Path) -> io::Result<Zeroizing<String>> {
    read_tracked(path, &PendingReads::default())
}

fn read_tracked(path: &Path, in_progress: &PendingReads) -> io::Result<Zeroizing<String>> {
    let text = if path == Path::new("-") {
        file_reader::read_stdin(MAX_CONFIG_BYTES, in_progress)
    } else {
        file_reader::read_file(path, MAX_CONFIG_BYTES, in_progress)
    }?;
    Ok(Zeroizing::new(text))
}
