//! What the doctor says of the certificates that listeners show to clients: those of services, and
//! that of the admin server. Pure.
//!
//! A listener works with a certificate that no client accepts, so these are examined before a
//! client complains. What clients know is not known here: whether they have the authority, and
//! which of the names they use. The names are printed for that.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tls::{CertificateFacts, CertificateFiles, ChainState, KnownAuthorities, PairFault, PemFile};

use crate::Examined;
use crate::diagnose::Severity::{Fault, Note, Warning};
use crate::diagnose::{FEW_NAMES, Findings, days, quote, subject, validity};

/// What follows from files that cannot be used.
const UNUSABLE: &str =
    "Pointsman does not start, and a running process keeps the files from before";

/// What is said of a certificate that is to be replaced.
const RENEW: &str = "renew it; Pointsman uses new contents of the files within seconds";

/// How many names of a certificate the table shows: those that clients may use.
const MANY_NAMES: usize = 32;

/// A problem and its remedy.
pub type Trouble = (String, String);

/// A file that a section names.
#[derive(Debug, Clone)]
pub struct ListenerFile {
    /// The key that names it.
    pub key: String,
    /// Its path.
    pub path: PathBuf,
    /// How a message names it if it cannot be read: its path may be a secret in the wrong place.
    pub name: String,
    /// Whether the path is a symbolic link.
    pub is_link: bool,
    /// Its mode, if it contains a private key that every user of this machine can read or replace.
    pub exposed: Option<u32>,
    /// Its contents, or why they cannot be read.
    pub contents: Result<PemFile, Trouble>,
}

/// A certificate and its key.
#[derive(Debug, Clone)]
pub struct ListenerPair {
    /// The file with the certificate.
    pub chain: ListenerFile,
    /// The file with the key, unless it is the same.
    pub key: Option<ListenerFile>,
}

/// The files of one section.
#[derive(Debug, Clone)]
pub struct ListenerSection {
    /// The certificates, the default one first.
    pub pairs: Vec<ListenerPair>,
    /// The authorities of client certificates.
    pub client_ca: Option<ListenerFile>,
    /// The authorities that are known on this host.
    pub authorities: KnownAuthorities,
    /// Why the section cannot be used, with the keys concerned.
    pub faults: Vec<(String, Trouble)>,
}

impl Examined {
    /// Examines the certificates of a section. `now` is the time since 1970; `None` if the clock is
    /// unset.
    pub fn add_listeners(&mut self, section: &ListenerSection, now: Option<Duration>) {
        let mut found = Findings::default();
        let pairs = section.pairs.iter();
        self.certificates.extend(pairs.filter_map(|it| examine_pair(&mut found, section, it, now)));
        let files = section.pairs.iter().flat_map(|pair| [Some(&pair.chain), pair.key.as_ref()]);
        let files = files.chain([section.client_ca.as_ref()]).flatten();
        files.for_each(|file| examine_file(&mut found, file));
        // Whatever else prevents the section from being used.
        let explained: Vec<String> = found.0.iter().map(|it| it.what.clone()).collect();
        for (key, (what, remedy)) in &section.faults {
            if !explained.iter().any(|it| it.starts_with(what)) {
                found.add(Fault, "certificate-file", key, format!("{what}: {UNUSABLE}"), remedy);
            }
        }
        self.findings.append(&mut found.0);
        self.findings.sort();
        self.findings.dedup();
    }
}

fn about(file: &ListenerFile) -> String {
    match file.contents {
        Ok(_) => format!("{} ({})", file.path.display(), file.key),
        Err(_) => format!("{} ({})", file.name, file.key),
    }
}

/// A path as a word for a shell.
fn word(path: &Path) -> String {
    quote(&path.display().to_string())
}

/// Reports a file that cannot be read, and one with a key that is not secret.
fn examine_file(found: &mut Findings, file: &ListenerFile) {
    if let Err((what, remedy)) = &file.contents {
        let what = format!("{what}: {UNUSABLE}");
        found.add(Fault, "certificate-file", about(file), what, remedy);
    }
    if let Some(mode) = file.exposed {
        let what = format!(
            "it contains a private key and is open to every user of this machine (mode {mode:04o}): \
             a reader of it can pose as this server"
        );
        let remedy = "take the permissions away (in Kubernetes: defaultMode of the volume); if others \
                      had access, replace key and certificate";
        let commands = [format!("chmod o-rwx {}", word(&file.path))];
        found.add_with(Warning, "key-exposed", about(file), what, remedy, &commands);
    }
}

/// Examines a pair, and returns its certificate if it can be read.
fn examine_pair(
    found: &mut Findings,
    section: &ListenerSection,
    pair: &ListenerPair,
    now: Option<Duration>,
) -> Option<CertificateFacts> {
    let key = pair.key.as_ref().unwrap_or(&pair.chain);
    let chain = pair.chain.contents.as_ref().ok()?;
    // Without the key, the certificate is examined nevertheless.
    let known_key = key.contents.as_ref().unwrap_or(chain);
    let files = CertificateFiles { chain: chain.clone(), key: known_key.clone() };
    let examined = files.examine(&section.authorities);
    if let (Ok(_), Some(fault)) = (&key.contents, examined.fault) {
        pair_fault(found, &section.pairs, pair, fault);
    }
    let facts = examined.facts?;
    let at = about(&pair.chain);
    validity(found, now, &at, "it", &facts, RENEW);
    names(found, &at, &facts);
    if let ChainState::Incomplete { issuer, found_in } = examined.chain {
        incomplete(found, &pair.chain, &issuer, &found_in);
    }
    for what in &facts.warnings {
        let remedy = "write the certificate of each issuer after the one that it has issued";
        found.add(Warning, "certificate-chain", &at, what, remedy);
    }
    Some(facts)
}

fn pair_fault(found: &mut Findings, all: &[ListenerPair], pair: &ListenerPair, fault: PairFault) {
    let key = pair.key.as_ref().unwrap_or(&pair.chain);
    let is_foreign = matches!(fault, PairFault::KeyMismatch(_));
    let problem = fault.into_problem();
    let what = format!("{}: {UNUSABLE}", problem.what);
    if !is_foreign {
        let file = if problem.file.as_ref() == Some(&key.path) { key } else { &pair.chain };
        return found.add(Fault, "certificate-file", about(file), what, &problem.remedy);
    }
    let fits = |other: &&ListenerPair| {
        let (Ok(chain), Ok(key)) = (&other.chain.contents, &key.contents) else { return false };
        let files = CertificateFiles { chain: chain.clone(), key: key.clone() };
        files.examine(&KnownAuthorities::default()).fault.is_none()
    };
    let remedy = match all.iter().find(fits) {
        Some(other) => format!(
            "it is the key of {}: give the keys in the order of the certificates",
            other.chain.path.display()
        ),
        None => format!("{}. The commands print the same for a pair", problem.remedy),
    };
    let commands = [
        format!("openssl x509 -noout -pubkey -in {} | openssl sha256", word(&pair.chain.path)),
        format!("openssl pkey -pubout -in {} | openssl sha256", word(&key.path)),
    ];
    found.add_with(Fault, "certificate-key", about(key), what, remedy, &commands);
}

fn names(found: &mut Findings, at: &str, facts: &CertificateFacts) {
    let name = subject(facts, FEW_NAMES);
    if facts.names.is_empty() {
        let what = format!("it has no names: {name}; clients that verify names refuse it");
        let remedy = "issue it with the names and addresses that clients use as subjectAltName";
        found.add(Warning, "certificate-name", at, what, remedy);
    }
    if facts.self_signed {
        let what =
            format!("it is self-signed: {name}; only clients that have it as their CA accept it");
        let remedy = "issue certificates by a CA of your own, so that they can be renewed without a \
                      change at the clients";
        found.add(Note, "certificate-self-signed", at, what, remedy);
    }
}

fn incomplete(found: &mut Findings, file: &ListenerFile, issuer: &str, found_in: &Path) {
    let what = format!(
        "it lacks the certificate of its issuer, {issuer}, which is an intermediate authority: \
         clients that know the root only refuse it"
    );
    let at = found_in.display();
    if file.is_link {
        // A command would replace the link, and the next renewal would not be noticed.
        let remedy = format!(
            "{at} has it. The path is a symbolic link: let the program that writes these files \
             write the whole chain, or name a file that has it, such as fullchain.pem"
        );
        return found.add(Warning, "certificate-chain", about(file), what, remedy);
    }
    // Replaced by a rename, so that a running process never reads a part of it.
    let (chain, more) = (word(&file.path), word(found_in));
    let new = quote(&format!("{}.new", file.path.display()));
    let command =
        format!("cp -p {chain} {new} && {{ echo; cat {more}; }} >> {new} && mv {new} {chain}");
    let remedy = format!("append {at}, which has it");
    found.add_with(Warning, "certificate-chain", about(file), what, remedy, &[command]);
}

/// A line of a table: two columns, a text, and whether it is good.
pub(crate) type Row = (String, String, String, bool);

/// The certificates for people: file, names, and validity.
pub(crate) fn rows(certificates: &[CertificateFacts], now: Option<Duration>) -> Vec<Row> {
    let row = |facts: &CertificateFacts| {
        let (validity, is_valid) = match now {
            None => ("the clock of this host is not set".to_owned(), true),
            Some(now) if now >= facts.not_after => ("expired".to_owned(), false),
            Some(now) if now < facts.not_before => ("not yet valid".to_owned(), false),
            Some(now) => (format!("valid for {}", days(facts.not_after.saturating_sub(now))), true),
        };
        (facts.file.display().to_string(), validity, subject(facts, MANY_NAMES), is_valid)
    };
    certificates.iter().map(row).collect()
}

/// The certificates as JSON, for scripts.
pub(crate) fn document(certificates: &[CertificateFacts], now: Option<Duration>) -> Vec<Json> {
    let of = |facts: &CertificateFacts| {
        json!({
            "file": facts.file.display().to_string(),
            "subject": &*facts.subject,
            "issuer": &*facts.issuer,
            "names": facts.names.iter().map(|it| &**it).collect::<Vec<_>>(),
            "not_before": facts.not_before.as_secs(),
            "not_after": facts.not_after.as_secs(),
            "expires_in_s": now.map(|now| expires_in(facts.not_after, now)),
            "self_signed": facts.self_signed,
        })
    };
    certificates.iter().map(of).collect()
}

/// Seconds; negative after the end.
fn expires_in(end: Duration, now: Duration) -> i64 {
    let seconds = |it: Duration| i64::try_from(it.as_secs()).unwrap_or(i64::MAX);
    seconds(end).saturating_sub(seconds(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(certificate: harness::Certificate) -> ListenerSection {
        let file = |key: &str, text: String| ListenerFile {
            key: format!("admin.tls.{key}"),
            path: format!("/tls/{key}").into(),
            name: format!("/tls/{key}"),
            is_link: false,
            exposed: None,
            contents: Ok(PemFile::new(format!("/tls/{key}").into(), text)),
        };
        let chain = file("certificate_file", certificate.chain);
        let pairs = vec![ListenerPair { chain, key: Some(file("key_file", certificate.key)) }];
        let authorities = KnownAuthorities::default();
        ListenerSection { pairs, client_ca: None, authorities, faults: Vec::new() }
    }

    fn examine_listeners(section: &ListenerSection, now: Option<Duration>) -> Examined {
        let mut examined = Examined::default();
        examined.add_listeners(section, now);
        examined
    }

    #[test]
    fn reports_certificates_without_names() {
        let authority = harness::Authority::new("CA");
        let found = examine_listeners(&section(authority.issue(&[])), None);
        let codes: Vec<_> = found.findings.iter().map(|it| (it.severity, it.code)).collect();
        assert_eq!(codes, [(Warning, "certificate-name")]);
        assert!(found.findings[0].about.ends_with("(admin.tls.certificate_file)"));
        assert_eq!(examine_listeners(&section(authority.issue(&["a.test"])), None).findings, []);
    }

    /// What only the whole section shows, such as authorities that nothing asks for.
    #[test]
    fn reports_every_fault_of_the_section_once() {
        let mut section = section(harness::Authority::new("CA").issue(&["a.test"]));
        let fault = |what: &str| ("admin.tls.client_ca_file".to_owned(), (what.into(), "x".into()));
        section.faults = vec![fault("\"/ca\" is not asked for"), fault("\"/ca\" does not exist")];
        let mut authorities = section.pairs[0].chain.clone();
        authorities.contents = Err(section.faults[1].1.clone());
        section.client_ca = Some(authorities);
        let found: Vec<String> =
            examine_listeners(&section, None).findings.iter().map(|it| it.what.clone()).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|it| it.contains("not asked for")), "{found:?}");
        assert!(found.iter().any(|it| it.contains("does not exist")), "{found:?}");
    }

    #[test]
    fn shows_validity_by_the_clock() {
        let authority = harness::Authority::new("CA");
        let facts = examine_listeners(&section(authority.issue_until(&["a.test"], 2030)), None)
            .certificates;
        let shown = |now: u64| rows(&facts, Some(Duration::from_secs(now)))[0].1.clone();
        assert_eq!(shown(0), "not yet valid");
        assert_eq!(shown(1_893_456_000 - 3 * 86_400), "valid for 3 days");
        assert_eq!(shown(1_893_456_000), "expired");
        let late = document(&facts, Some(Duration::from_secs(1_893_456_060)));
        assert_eq!(late[0]["expires_in_s"], -60);
        assert_eq!(late[0]["issuer"], "CN=CA");
    }
}
