//! The files of certificates that listeners show to clients, read one by one for the doctor.
//!
//! The configuration is refused as a whole if one of these files is missing or does not fit. The
//! doctor reports each of them with its cure instead, and examines everything else as well. So it
//! reads them again, by the paths of the settings, whatever came of them before.

use std::path::{Path, PathBuf};

use doctor::{ListenerFile, ListenerPair, ListenerSection};
use tls::{KnownAuthorities, PemFile};

use super::Config;
use super::credentials::UnreadSecret;
use super::file_reader::{self, PendingReads, file_name, file_problem};
use super::finding::Faults;
use super::load::Loaded;
use super::pem_files::{MAX_PEM_BYTES, PEM_SECTIONS, paths};
use super::settings::SettingMap;
use super::tls_checks::{ADMIN, SERVICE};

/// Files beside a certificate that usually contain those of its authorities.
const SIBLINGS: [&str; 5] =
    ["chain.pem", "ca.crt", "ca.pem", "intermediate.crt", "intermediate.pem"];

impl Loaded {
    /// The configuration even if certificates of listeners cannot be used.
    ///
    /// # Errors
    ///
    /// All faults, if there are others.
    pub(crate) fn config_without_listener_tls(&self) -> Result<Config, Faults> {
        let is_of_listener = |it: &UnreadSecret| [SERVICE, ADMIN].contains(&it.section);
        match &self.faults {
            Some(faults) if self.is_broken || !self.unread.iter().all(is_of_listener) => {
                Err(faults.clone())
            }
            _ => Ok(self.settings.to_config(&self.warnings)),
        }
    }

    /// The certificates that the listeners of a service show; `None` without any.
    pub(crate) fn listener_certificates(&self, service: &SettingMap) -> Option<ListenerSection> {
        self.section(service, Some(service.name()), SERVICE, "certificate_files", "key_files")
    }

    /// The certificate that the admin server shows; `None` without one.
    pub(crate) fn admin_certificates(&self) -> Option<ListenerSection> {
        let process = &self.settings.process;
        self.section(process, None, ADMIN, "certificate_file", "key_file")
    }

    fn section(
        &self,
        values: &SettingMap,
        service: Option<&str>,
        section: &str,
        chains: &str,
        keys: &str,
    ) -> Option<ListenerSection> {
        let files = |key: &str| -> Vec<ListenerFile> {
            let key = format!("{section}.{key}");
            paths(values.value(&key)).iter().map(|path| read(&key, Path::new(path))).collect()
        };
        let mut keys = files(keys).into_iter();
        let pairs = files(chains).into_iter().map(|chain| ListenerPair { chain, key: keys.next() });
        let pairs: Vec<ListenerPair> = pairs.collect();
        if pairs.is_empty() {
            return None;
        }
        let faults = self
            .unread
            .iter()
            .filter(|it| it.section == section && it.service.as_deref() == service);
        let fault = |it: &UnreadSecret| {
            let finding = &it.finding;
            (finding.key.clone(), (finding.what.clone(), finding.remedy.clone()))
        };
        Some(ListenerSection {
            client_ca: files("client_ca_file").pop(),
            authorities: authorities(values, &pairs),
            faults: faults.map(fault).collect(),
            pairs,
        })
    }
}

fn read(key: &str, path: &Path) -> ListenerFile {
    let name = file_name(path);
    let text = file_reader::read_file(path, MAX_PEM_BYTES, &PendingReads::default());
    let contents = match text {
        Ok(text) => Ok(PemFile::new(path.to_owned(), text)),
        Err(error) => {
            let problem = file_problem(&name, &error);
            Err((problem.what, problem.remedy))
        }
    };
    ListenerFile {
        key: key.to_owned(),
        path: path.to_owned(),
        name: name.trim_matches('"').to_owned(),
        is_link: path.is_symlink(),
        exposed: file_reader::exposed_mode(path)
            .filter(|_| contents.as_ref().is_ok_and(PemFile::has_key)),
        contents,
    }
}

/// The authorities in files beside the certificates, in those that the configuration names, in the
/// other certificates, and in that of the system.
fn authorities(values: &SettingMap, pairs: &[ListenerPair]) -> KnownAuthorities {
    let folders = pairs.iter().filter_map(|pair| pair.chain.path.parent());
    let beside = folders.flat_map(|folder| SIBLINGS.map(|name| folder.join(name)));
    let named = PEM_SECTIONS.iter().flat_map(|(section, _)| {
        ["ca_file", "client_ca_file"].map(|key| format!("{section}.{key}"))
    });
    let named = named.flat_map(|key| paths(values.value(&key)).iter().map(PathBuf::from));
    let certificates = pairs.iter().map(|pair| pair.chain.path.clone());
    let system = tls::SYSTEM_CA_FILES.iter().map(PathBuf::from);
    let mut known: Vec<PathBuf> = Vec::new();
    for path in beside.chain(named).chain(certificates).chain(system) {
        if !known.contains(&path) {
            known.push(path);
        }
    }
    let read = |path: PathBuf| {
        let text = file_reader::read_file(&path, MAX_PEM_BYTES, &PendingReads::default()).ok()?;
        Some(PemFile::new(path, text))
    };
    let files: Vec<PemFile> = known.into_iter().filter_map(read).collect();
    KnownAuthorities::of(&files)
}
