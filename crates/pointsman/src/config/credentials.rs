//! Passwords and tokens, and the keys by which they can be given: directly, in a file, or in an
//! environment variable.
//!
//! The three keys are options of their own (`CredentialKeys`). They are resolved once, while the
//! configuration is loaded, so that a missing password file is a fault of the configuration with
//! its line, reported before anything has started. Files and variables are accessed through
//! arguments, so that every fault can be tested without either.
//!
//! A [`Secret`] cannot be shown by accident: neither formatting nor the printed configuration
//! contains its text. [`Secret::reveal`] is the only access, so that a search for one word finds
//! every use of a password. The memory is overwritten when it is dropped.
//!
//! Secrets cannot be serialised, and are compared only for equality.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::file_reader::file_problem;
use super::finding::Finding;
use super::option_spec::{FromSettings, field};
use super::pem_files;
use super::schema::{CREDENTIALS, PASSWORD_KEYS};
use super::settings::{SettingMap, Settings};
use super::value::{Problem, Value};

/// The placeholder that is shown instead of a secret. If it is read back as a password, a warning
/// is given.
pub(crate) const HIDDEN: &str = "<hidden>";

/// Maximum size of a password file, in bytes.
pub(super) const MAX_PASSWORD_BYTES: u64 = 64 * 1024;

/// Reads a file of at most this many bytes. Its text must not appear in any message.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path, u64) -> std::io::Result<Secret>;

/// A password. It is overwritten in memory when dropped; `Debug` and `Display` print a placeholder.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps the text.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text itself, for the command that authenticates.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// Credentials of one connection. If both fields are empty, there is no authentication.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Credentials {
    /// ACL user name; without it, the password is that of the default user.
    pub username: Option<String>,
    /// The password.
    pub password: Option<Secret>,
}

/// A token: a secret without a user name.
impl FromSettings for Option<Secret> {
    fn read(values: &SettingMap, section: &str) -> Self {
        values.passwords.get(section).cloned()
    }
}

impl FromSettings for Credentials {
    fn read(values: &SettingMap, section: &str) -> Self {
        Self {
            username: field(values, section, "username"),
            password: values.passwords.get(section).cloned(),
        }
    }
}

/// A secret file that could not be read, or whose content is unusable. At the start that is a fault
/// of the configuration; a running process keeps the secret that it has.
#[derive(Debug, Clone)]
pub(super) struct UnreadSecret {
    /// The service; `None` for the process.
    pub(super) service: Option<String>,
    /// The section, as in [`SettingMap::passwords`].
    pub(super) section: &'static str,
    pub(super) finding: Finding,
}

/// Faults of the keys of secrets, and secret files that could not be used.
#[derive(Debug, Default)]
pub(super) struct SecretFindings {
    pub(super) faults: Vec<Finding>,
    pub(super) unread: Vec<UnreadSecret>,
}

impl SecretFindings {
    /// Adds the problem of a key that gives a secret.
    fn add(&mut self, service: Option<&str>, section: &'static str, finding: Finding) {
        if finding.key.ends_with("_file") {
            let service = service.map(str::to_owned);
            self.unread.push(UnreadSecret { service, section, finding });
        } else {
            self.faults.push(finding);
        }
    }
}

/// Minimum length of a token, in bytes.
const MIN_TOKEN_LENGTH: usize = 16;

/// The tokens of the admin server, by their section in [`SettingMap::passwords`].
pub(super) const CONTROL_TOKEN: &str = "admin.control_token";
pub(super) const READ_TOKEN: &str = "admin.read_token";

/// Resolves the keys of secrets, and collects what is wrong with them.
pub(super) struct SecretResolver<'a> {
    pub(super) read_file: ReadFile<'a>,
    pub(super) env: &'a BTreeMap<&'a str, &'a str>,
    pub(super) found: SecretFindings,
}

impl SecretResolver<'_> {
    /// Resolves the passwords of one service.
    pub(super) fn resolve_passwords(&mut self, service: &mut SettingMap) {
        let name = service.name().to_owned();
        for section in CREDENTIALS {
            let keys = PASSWORD_KEYS.map(|name| format!("{section}.{name}"));
            let sound = !keys.iter().any(|key| service.broken.contains(key));
            let is_given = self.resolve(service, Some(&name), section, &keys);
            let username = format!("{section}.username");
            if !is_given && sound && service.settings.contains_key(&username) {
                let remedy = "add password, password_file or password_env";
                let problem = Problem::new("a user name without a password", remedy);
                self.found.faults.push(service.finding(&username, problem));
            }
        }
    }

    /// Resolves the tokens of the admin server.
    pub(super) fn resolve_tokens(&mut self, process: &mut SettingMap) {
        let keys_of = |section: &str| ["file", "env"].map(|kind| format!("{section}_{kind}"));
        let keys = keys_of(CONTROL_TOKEN);
        let sound = !keys.iter().any(|key| process.broken.contains(key));
        let is_given = self.resolve(process, None, CONTROL_TOKEN, &keys);
        let on = matches!(process.value("admin.control"), Some(Value::Bool(true)));
        if on && sound && !is_given && process.value("admin.control_socket").is_none() {
            let what = "commands are enabled without a token or a socket";
            let remedy = "add control_socket, control_token_file or control_token_env";
            let problem = Problem::new(what, remedy);
            self.found.faults.push(process.finding("admin.control", problem));
        }
        self.resolve(process, None, READ_TOKEN, &keys_of(READ_TOKEN));
    }

    /// Resolves a secret that one of these keys gives: a password of this service, or a token.
    /// Returns whether one of them is set.
    fn resolve(
        &mut self,
        map: &mut SettingMap,
        service: Option<&str>,
        section: &'static str,
        keys: &[String],
    ) -> bool {
        let given = || keys.iter().filter(|key| map.settings.contains_key(*key));
        let Some(key) = given().next() else { return false };
        if let Some(second) = given().nth(1) {
            let remedy = format!("keep only one of {}", names(keys));
            let problem = Problem::new(format!("{key} is set as well"), remedy);
            self.found.faults.push(map.finding(second, problem));
            return true;
        }
        match read_secret(map.value(key), key, self.read_file, self.env) {
            Ok(Some(it)) if service.is_none() && it.reveal().len() < MIN_TOKEN_LENGTH => {
                let remedy = "use at least 16 random characters";
                let problem = Problem::new("the token has fewer than 16 characters", remedy);
                self.found.add(service, section, map.finding(key, problem));
            }
            Ok(secret) => map.passwords.extend(secret.map(|it| (section.to_owned(), it))),
            Err(problem) => self.found.add(service, section, map.finding(key, problem)),
        }
        true
    }
}

/// Keys without their section, for a message.
fn names(keys: &[String]) -> String {
    let mut names: Vec<&str> = keys.iter().filter_map(|key| key.rsplit('.').next()).collect();
    let last = names.pop().unwrap_or_default();
    format!("{} and {last}", names.join(", "))
}

/// Warnings about secret files that other users of the machine can read or replace. `exposed` has
/// their modes, and whether they contain a private key.
pub(super) fn exposed_files(
    settings: &Settings,
    exposed: &BTreeMap<PathBuf, (u32, bool)>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for map in settings.services.iter().chain([&settings.process]) {
        for (key, setting) in &map.settings {
            let is_secret = key.ends_with("password_file") || key.ends_with("token_file");
            for path in pem_files::paths(Some(&setting.value)) {
                let Some((mode, has_key)) = exposed.get(Path::new(path)) else { continue };
                let holds_key = pem_files::may_hold_key(key) && *has_key;
                if !(is_secret || holds_key) {
                    continue;
                }
                let what =
                    format!("{path:?} is open to every user of this machine (mode {mode:04o})");
                let remedy = format!("run: chmod o-rwx {path}");
                findings.push(map.finding(key, Problem::new(what, remedy)));
            }
        }
    }
    findings
}

/// The secret to which one of the keys leads.
fn read_secret(
    value: Option<&Value>,
    key: &str,
    read_file: ReadFile<'_>,
    env: &BTreeMap<&str, &str>,
) -> Result<Option<Secret>, Problem> {
    match value {
        Some(Value::Secret(secret)) => Ok(Some(secret.clone())),
        Some(Value::Text(name)) if key.ends_with("_env") => match env.get(name.as_str()) {
            Some(text) if !text.is_empty() => Ok(Some(Secret::new((*text).to_owned()))),
            _ => Err(Problem::new(
                "the environment variable that it names is not set, or is empty",
                "set it, or correct the name",
            )),
        },
        Some(Value::Text(path)) => secret_from_file(path, read_file).map(Some),
        _ => Ok(None),
    }
}

fn secret_from_file(path: &str, read_file: ReadFile<'_>) -> Result<Secret, Problem> {
    let read = read_file(Path::new(path), MAX_PASSWORD_BYTES)
        .map_err(|error| file_problem("the file", &error))?;
    let text = read.reveal();
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(Problem::new(format!("{path:?} is empty"), "write the secret into it"));
    }
    if text.contains(['\n', '\r']) {
        return Err(Problem::new(
            format!("{path:?} has more than one line"),
            "leave only the secret in it",
        ));
    }
    Ok(Secret::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_the_secret_in_every_format() {
        let secret = Secret::new("hunter2".to_owned());
        let shown = format!("{secret} {secret:?} {secret:#?} {:?}", Some(secret.clone()));
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(secret.reveal(), "hunter2");
    }
}
