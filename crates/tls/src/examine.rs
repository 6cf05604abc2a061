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

use crate::certificate::{CertificateFacts, CertificateFiles, PairFault};
use crate::pem::PemFile;

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

impl CertificateFiles {
    /// Examines the certificate and its key. `authorities` are files with certificates of
    /// authorities; those that cannot be parsed are ignored.
    #[must_use]
    pub fn examine(&self, authorities: &[PemFile]) -> ExaminedPair {
        let chain = self.chain.certificates();
        let read = chain.and_then(|chain| Ok((CertificateFacts::of(&self.chain, &chain)?, chain)));
        match read {
            Ok((facts, chain)) => {
                let fault = self.load(&aws_lc_rs::default_provider()).err();
                let chain = chain_state(&chain, authorities);
                ExaminedPair { facts: Some(facts), fault, chain }
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

fn chain_state(chain: &[CertificateDer<'_>], authorities: &[PemFile]) -> ChainState {
    let Some(last) = chain.last().and_then(parse) else { return ChainState::Unknown };
    if is_self_signed(&last) {
        return ChainState::Complete;
    }
    let issuer = last.tbs_certificate().issuer();
    let mut missing = None;
    for file in authorities {
        let known = file.certificates().unwrap_or_default();
        for (number, authority) in known.iter().filter_map(parse).enumerate() {
            if authority.tbs_certificate().subject() != issuer {
                continue;
            }
            if is_self_signed(&authority) {
                return ChainState::Complete;
            }
            if number == 0 && missing.is_none() {
                missing = Some(file.path().to_owned());
            }
        }
    }
    missing.map_or(ChainState::Unknown, |found_in| ChainState::Incomplete {
        issuer: issuer.to_string(),
        found_in,
    })
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
        let good = one.examine(&[]);
        assert_eq!(good.fault, None);
        assert_eq!(good.facts.map(|it| it.names), Some(vec!["a.test".to_owned()]));
        let swapped = files(one.chain.clone(), other.key).examine(&[]);
        assert!(matches!(swapped.fault, Some(PairFault::KeyMismatch(_))), "{swapped:?}");
        assert!(swapped.facts.is_some(), "its names are shown nevertheless");
        for (chain, key) in [
            (pem("tls.crt", "nothing"), one.key.clone()),
            (one.chain.clone(), pem("tls.key", "nothing")),
        ] {
            let examined = files(chain, key).examine(&[]);
            assert!(matches!(examined.fault, Some(PairFault::Unusable(_))), "{examined:?}");
        }
    }

    #[test]
    fn calls_a_chain_incomplete_only_if_the_issuer_is_at_hand() {
        let root = Authority::new("root");
        let middle = root.subordinate("middle");
        let leaf = middle.issue(&["a.test"]);
        assert_eq!(leaf.examine(&[]).chain, ChainState::Unknown);
        assert_eq!(leaf.examine(&[root.file()]).chain, ChainState::Unknown);
        let missing = leaf.examine(&[root.file(), middle.file()]).chain;
        let found_in = middle.file().path().to_owned();
        let expected = ChainState::Incomplete { issuer: "CN=middle".to_owned(), found_in };
        assert_eq!(missing, expected);
        // With the intermediate it ends at a root, which clients have themselves.
        let both = [leaf.chain.text(), &middle.pem()].concat();
        let whole = files(pem("tls.crt", &both), leaf.key.clone());
        assert_eq!(whole.examine(&[root.file(), middle.file()]).chain, ChainState::Complete);
        assert_eq!(whole.examine(&[]).chain, ChainState::Unknown);
        let direct = root.issue(&["a.test"]);
        assert_eq!(direct.examine(&[root.file()]).chain, ChainState::Complete);
    }
}
