//! Examines a certificate with its key before clients see it.
//!
//! A listener only needs a certificate and the key that belongs to it. Clients need more: every
//! certificate between it and an authority that they know. Which authorities they know cannot be
//! known here, so a chain is called incomplete only if the missing certificate is at hand.

use std::path::PathBuf;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;
use x509_cert::name::Name;

use crate::certificate::{CertificateFacts, CertificateFiles, PairFault};
use crate::pem::PemFile;

/// A file with more certificates is a collection of authorities, and not the rest of a chain.
const MAX_CHAIN: usize = 8;

/// Whether clients get every certificate between the first one and an authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainState {
    /// The last one is self-signed, or issued by an authority that is.
    Complete,
    /// It lacks the certificate of its issuer, which is an intermediate authority.
    Incomplete {
        /// The subject of the missing certificate.
        issuer: String,
        /// A file that begins with it.
        found_in: PathBuf,
    },
    /// The issuer is an authority that is not known here.
    Unknown,
}

/// The result of an examination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExaminedPair {
    /// The facts of the certificate, if it can be read.
    pub facts: Option<CertificateFacts>,
    /// Why it cannot be used.
    pub fault: Option<PairFault>,
    /// Whether its chain is complete.
    pub chain: ChainState,
}

/// The certificates of authorities that are at hand.
#[derive(Debug, Clone, Default)]
pub struct KnownAuthorities(Vec<KnownAuthority>);

#[derive(Debug, Clone)]
struct KnownAuthority {
    subject: Name,
    is_root: bool,
    /// The file that begins with it, if that may be the rest of a chain.
    begins: Option<PathBuf>,
}

impl KnownAuthorities {
    /// Those in these files. A file or a certificate that cannot be parsed is ignored.
    #[must_use]
    pub fn of<'a>(files: impl IntoIterator<Item = &'a PemFile>) -> Self {
        let mut all = Vec::new();
        for file in files {
            let found = file.certificates().unwrap_or_default();
            // A private key must not be appended to a certificate.
            let may_follow = found.len() <= MAX_CHAIN && !file.has_key();
            for (number, certificate) in found.iter().enumerate() {
                let Some(certificate) = parse(certificate) else { continue };
                all.push(KnownAuthority {
                    subject: certificate.tbs_certificate().subject().clone(),
                    is_root: is_self_signed(&certificate),
                    begins: (number == 0 && may_follow).then(|| file.path().to_owned()),
                });
            }
        }
        Self(all)
    }

    fn state_of(&self, chain: &[CertificateDer<'_>]) -> ChainState {
        let Some(last) = chain.last().and_then(parse) else { return ChainState::Unknown };
        if is_self_signed(&last) {
            return ChainState::Complete;
        }
        let issuer = last.tbs_certificate().issuer();
        let found = || self.0.iter().filter(|it| it.subject == *issuer);
        if found().any(|it| it.is_root) {
            return ChainState::Complete;
        }
        found().find_map(|it| it.begins.clone()).map_or(ChainState::Unknown, |found_in| {
            ChainState::Incomplete { issuer: issuer.to_string(), found_in }
        })
    }
}

impl CertificateFiles {
    /// Examines the certificate, its key, and its chain.
    #[must_use]
    pub fn examine(&self, authorities: &KnownAuthorities) -> ExaminedPair {
        let chain = self.chain.certificates();
        let read = chain
            .and_then(|chain| Ok((CertificateFacts::parse(self.chain.path(), &chain)?, chain)));
        match read {
            Ok((facts, chain)) => {
                let fault = self.load(&aws_lc_rs::default_provider()).err();
                ExaminedPair { facts: Some(facts), fault, chain: authorities.state_of(&chain) }
            }
            Err(problem) => {
                let (fault, chain) = (Some(PairFault::Unusable(problem)), ChainState::Unknown);
                ExaminedPair { facts: None, fault, chain }
            }
        }
    }
}

fn parse(der: &CertificateDer<'_>) -> Option<CertificateInner<Raw>> {
    CertificateInner::<Raw>::from_der(der).ok()
}

fn is_self_signed(certificate: &CertificateInner<Raw>) -> bool {
    let inner = certificate.tbs_certificate();
    inner.subject() == inner.issuer()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Authority, pem};

    fn files(chain: PemFile, key: PemFile) -> CertificateFiles {
        CertificateFiles { chain, key }
    }

    #[test]
    fn tells_a_foreign_key_from_an_unusable_file() {
        let authority = Authority::new("CA");
        let (one, other) = (authority.issue(&["a.test"]), authority.issue(&["b.test"]));
        let none = KnownAuthorities::default();
        let good = one.examine(&none);
        assert_eq!(good.fault, None);
        assert_eq!(good.facts.map(|it| it.names), Some(vec!["a.test".into()]));
        let swapped = files(one.chain.clone(), other.key).examine(&none);
        assert!(matches!(swapped.fault, Some(PairFault::KeyMismatch(_))), "{swapped:?}");
        assert!(swapped.facts.is_some(), "its names are shown nevertheless");
        for (chain, key) in [
            (pem("tls.crt", "nothing"), one.key.clone()),
            (one.chain.clone(), pem("tls.key", "nothing")),
        ] {
            let examined = files(chain, key).examine(&none);
            assert!(matches!(examined.fault, Some(PairFault::Unusable(_))), "{examined:?}");
        }
    }

    #[test]
    fn calls_a_chain_incomplete_only_if_the_issuer_is_at_hand() {
        let root = Authority::new("root");
        let middle = root.subordinate("middle");
        let leaf = middle.issue(&["a.test"]);
        let known = |files: &[PemFile]| KnownAuthorities::of(files);
        let (nothing, with_root) = (known(&[]), known(&[root.file()]));
        let all = known(&[root.file(), middle.file()]);
        assert_eq!(leaf.examine(&nothing).chain, ChainState::Unknown);
        assert_eq!(leaf.examine(&with_root).chain, ChainState::Unknown);
        let found_in = middle.file().path().to_owned();
        let expected = ChainState::Incomplete { issuer: "CN=middle".to_owned(), found_in };
        assert_eq!(leaf.examine(&all).chain, expected);
        // With the intermediate it ends at a root, which clients have themselves.
        let both = [leaf.chain.text(), &middle.pem()].concat();
        let whole = files(pem("tls.crt", &both), leaf.key.clone());
        assert_eq!(whole.examine(&all).chain, ChainState::Complete);
        assert_eq!(whole.examine(&nothing).chain, ChainState::Unknown);
        let direct = root.issue(&["a.test"]);
        assert_eq!(direct.examine(&with_root).chain, ChainState::Complete);
        // Neither a collection of authorities nor a file with a key is the rest of a chain.
        let many = pem("many.crt", &middle.pem().repeat(MAX_CHAIN + 1));
        let with_key = pem("key.pem", &[&middle.pem(), leaf.key.text()].concat());
        assert_eq!(leaf.examine(&known(&[many, with_key])).chain, ChainState::Unknown);
    }
}
