//! The PEM files that the configuration names: certificates, keys and authorities.
//!
//! They are read together with the configuration, like the files of passwords, and checked as they
//! are used: a section whose files cannot be read, or do not fit together, is a fault at the start.
//! A running process keeps all files of the section as they were, since a certificate without its
//! key is of no use. A file that is replaced before the other one is therefore no problem: the
//! next change is complete.
//!
//! Keys are secrets, so all texts are treated as such.

use std::path::Path;
use std::time::Duration;

use tls::{CertificateFacts, PemFile};

use super::credentials::{ReadFile, SecretFindings, UnreadSecret};
use super::file_reader::{file_name, file_problem};
use super::finding::Finding;
use super::option_spec::FromSettings;
use super::settings::SettingMap;
use super::tls_checks::{ADMIN, CLIENTS, SERVICE, problems};
use super::tls_clients;
use super::value::{Problem, Value};

/// Maximum size of a PEM file, in bytes. The authorities of a system take about 220 KiB.
pub(super) const MAX_PEM_BYTES: u64 = 1024 * 1024;

/// The sections with PEM files, each with the keys that name them.
pub(super) const PEM_SECTIONS: [(&str, [&str; 3]); 4] = [
    (SERVICE, ["certificate_files", "key_files", "client_ca_file"]),
    (ADMIN, ["certificate_file", "key_file", "client_ca_file"]),
    (CLIENTS[0], OF_CLIENT),
    (CLIENTS[1], OF_CLIENT),
];
const OF_CLIENT: [&str; 3] = ["ca_file", "certificate_file", "key_file"];

/// In the place of a key: the file with the authorities of the system.
pub(super) const SYSTEM_CA: &str = "system_ca";

const EXPIRED: &str = "has expired";

/// The PEM files of one section, each with its key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PemTexts(Vec<(&'static str, PemFile)>);

impl PemTexts {
    /// The files that a key names, in their order.
    pub(super) fn of(&self, key: &str) -> Vec<PemFile> {
        self.0.iter().filter(|(of, _)| *of == key).map(|(_, file)| file.clone()).collect()
    }
}

impl FromSettings for PemTexts {
    /// `section` is that of the keys, followed by the name of the field.
    fn read(values: &SettingMap, section: &str) -> Self {
        let section = section.rsplit_once('.').map_or(section, |(section, _)| section);
        values.pem_files.get(section).cloned().unwrap_or_default()
    }
}

/// Whether a key names files with private keys, for warnings about their modes.
pub(super) fn may_hold_key(path: &str) -> bool {
    ["certificate_file", "certificate_files", "key_file", "key_files"]
        .iter()
        .any(|key| path.rsplit('.').next() == Some(key))
}

/// Reads the PEM files of one service, or of the process.
pub(super) fn resolve(
    values: &mut SettingMap,
    read_file: ReadFile<'_>,
    found: &mut SecretFindings,
) {
    let service = Some(values.name().to_owned()).filter(|name| !name.is_empty());
    for (section, keys) in PEM_SECTIONS {
        let is_of_client = CLIENTS.contains(&section);
        if is_of_client && !tls_clients::is_enabled(values, section) {
            continue;
        }
        let mut texts = Vec::new();
        let mut findings = Vec::new();
        for key in keys {
            let path = format!("{section}.{key}");
            for file in paths(values.value(&path)) {
                match read(Path::new(file), read_file) {
                    Ok(file) => texts.push((key, file)),
                    Err(problem) => findings.push(values.finding(&path, problem)),
                }
            }
        }
        if is_of_client && tls_clients::needs_system_ca(values, section) {
            match system_ca(read_file) {
                Ok(file) => texts.push((SYSTEM_CA, file)),
                Err(problem) => {
                    findings.push(values.finding(&format!("{section}.ca_file"), problem));
                }
            }
        }
        if findings.is_empty() && (!texts.is_empty() || is_of_client) {
            values.pem_files.insert(section.to_owned(), PemTexts(texts));
            findings = problems(values, section)
                .into_iter()
                .map(|problem| place(section, &keys, values, problem))
                .collect();
        }
        if !findings.is_empty() {
            values.pem_files.remove(section);
        }
        found.unread.extend(findings.into_iter().map(|finding| UnreadSecret {
            service: service.clone(),
            section,
            finding,
        }));
    }
}

/// The certificates of a section, which were found sound before, each with its key.
fn certificates(values: &SettingMap, section: &str) -> Vec<(String, CertificateFacts)> {
    let files = values.pem_files.get(section).map(|texts| &*texts.0).unwrap_or_default();
    let files = files.iter().filter(|(key, _)| key.starts_with("certificate_file"));
    let facts = |file| CertificateFacts::of_file(file).ok();
    files.filter_map(|(key, file)| Some((format!("{section}.{key}"), facts(file)?))).collect()
}

fn not_valid(values: &SettingMap, key: &str, it: &CertificateFacts, how: &str) -> Finding {
    let what = format!("{:?} has a certificate that {how}", it.file);
    values.finding(key, Problem::new(what, "write one that is valid now; check the clock"))
}

/// The certificates that are not valid at `now`, since 1970: a start has no others to use.
pub(super) fn invalid(values: &SettingMap, now: Duration) -> Vec<Finding> {
    let of = |(section, _)| certificates(values, section);
    let found = PEM_SECTIONS.into_iter().flat_map(of).filter_map(|(key, it)| match () {
        () if it.not_after < now => Some(not_valid(values, &key, &it, EXPIRED)),
        () if it.not_before > now => Some(not_valid(values, &key, &it, "is not valid yet")),
        () => None,
    });
    found.collect()
}

/// The sections in which a certificate has expired, and that from the same file in `old` has not.
pub(super) fn expired(new: &SettingMap, old: &SettingMap, now: Duration) -> Vec<UnreadSecret> {
    let service = Some(new.name().to_owned()).filter(|name| !name.is_empty());
    let sections = PEM_SECTIONS.iter().filter_map(|(section, _)| {
        let old = certificates(old, section);
        let lasts = |file: &Path| old.iter().any(|(_, it)| it.file == file && it.not_after >= now);
        let mut all = certificates(new, section).into_iter();
        let (key, it) = all.find(|(_, it)| it.not_after < now && lasts(&it.file))?;
        let finding = not_valid(new, &key, &it, EXPIRED);
        Some(UnreadSecret { service: service.clone(), section, finding })
    });
    sections.collect()
}

/// The finding about a problem, at the key that names the file concerned.
fn place(section: &str, keys: &[&str], values: &SettingMap, problem: tls::Problem) -> Finding {
    let names = |key: &&&str| {
        let named = paths(values.value(&format!("{section}.{key}")));
        named.iter().any(|file| Some(Path::new(file)) == problem.file.as_deref())
    };
    let key = keys.iter().find(names).or(keys.first()).copied().unwrap_or_default();
    let path = format!("{section}.{key}");
    values.finding(&path, Problem::new(problem.what, problem.remedy))
}

/// The authorities that the system trusts.
fn system_ca(read_file: ReadFile<'_>) -> Result<PemFile, Problem> {
    let mut found = tls::SYSTEM_CA_FILES.iter();
    found.find_map(|path| read(Path::new(path), read_file).ok()).ok_or_else(|| {
        Problem::new(
            "the system has no file with authorities",
            "name the CA of the servers in ca_file, or install the package ca-certificates",
        )
    })
}

pub(super) fn paths(value: Option<&Value>) -> &[String] {
    match value {
        Some(Value::Words(paths)) => paths,
        Some(Value::Text(path)) => std::slice::from_ref(path),
        _ => &[],
    }
}

fn read(path: &Path, read_file: ReadFile<'_>) -> Result<PemFile, Problem> {
    let text =
        read_file(path, MAX_PEM_BYTES).map_err(|error| file_problem(&file_name(path), &error))?;
    Ok(PemFile::new(path.to_owned(), text.reveal().to_owned()))
}

#[cfg(test)]
#[path = "pem_files_tests.rs"]
mod tests;
