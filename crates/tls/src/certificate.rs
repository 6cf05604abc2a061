//! A certificate chain with its private key, and what an operator wants to know about it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::outside_text::OutsideText;
use crate::pem::PemFile;
use crate::problem::Problem;

/// Maximum number of names that are listed of a certificate.
const MAX_NAMES: usize = 256;

/// A certificate and its private key. Both may be in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by those of the authorities between it and a known one.
    pub chain: PemFile,
    /// The private key.
    pub key: PemFile,
}

/// What prevents a certificate with its key from being used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PairFault {
    /// One of the files does not contain what it should.
    Unusable(Problem),
    /// The key is that of another certificate.
    KeyMismatch(Problem),
}

impl PairFault {
    /// What is wrong.
    #[must_use]
    pub fn into_problem(self) -> Problem {
        match self {
            Self::Unusable(problem) | Self::KeyMismatch(problem) => problem,
        }
    }
}

/// The facts of one certificate in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The file that it was read from; empty if a peer showed it.
    pub file: PathBuf,
    /// Its subject, as `CN=redis.example,O=Example`. Often empty nowadays.
    pub subject: OutsideText,
    /// The subject of the authority that issued it.
    pub issuer: OutsideText,
    /// The host names and IP addresses it is valid for.
    pub names: Vec<OutsideText>,
    /// When it becomes valid, since 1970. The latest of the chain.
    pub not_before: Duration,
    /// When it expires, since 1970. The earliest of the chain.
    pub not_after: Duration,
    /// It was issued by its own subject, so clients trust it only if they have it.
    pub self_signed: bool,
    /// What may cause trouble, in words: certificates out of order.
    pub warnings: Vec<String>,
}

impl CertificateFacts {
    /// Reads the facts of the chain in a file.
    ///
    /// # Errors
    ///
    /// It has no certificate, or one that cannot be parsed.
    pub fn of_file(file: &PemFile) -> Result<Self, Problem> {
        Self::parse(file.path(), &file.certificates()?)
    }

    /// Reads the facts of the chain that a peer showed. `None` if it cannot be parsed.
    #[must_use]
    pub fn of_peer(chain: &[CertificateDer<'_>]) -> Option<Self> {
        Self::parse(Path::new(""), chain).ok()
    }

    /// Reads the facts of a chain that was read from this file.
    ///
    /// # Errors
    ///
    /// A certificate cannot be parsed.
    pub(crate) fn parse(path: &Path, chain: &[CertificateDer<'_>]) -> Result<Self, Problem> {
        let parsed = chain
            .iter()
            .map(|der| CertificateInner::<Raw>::from_der(der))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| {
                let what = format!("has a certificate that cannot be parsed: {error}");
                Problem::of_file(path, &what, "check it with: openssl x509 -text -in FILE")
            })?;
        let Some(first) = parsed.first().map(CertificateInner::tbs_certificate) else {
            return Err(Problem::of_file(path, "has no certificate", "write one into it"));
        };
        let validity = || parsed.iter().map(|it| it.tbs_certificate().validity());
        let since = validity().map(|it| it.not_before.to_unix_duration()).max();
        let until = validity().map(|it| it.not_after.to_unix_duration()).min();
        let follows = |pair: &[CertificateInner<Raw>]| match pair {
            [one, next] => one.tbs_certificate().issuer() == next.tbs_certificate().subject(),
            _ => true,
        };
        let mut warnings = Vec::new();
        if !parsed.windows(2).all(follows) {
            warnings.push(format!(
                "{path:?} has certificates out of order: each must be followed by its issuer's; \
                 some clients refuse it"
            ));
        }
        Ok(Self {
            file: path.to_owned(),
            subject: first.subject().to_string().into(),
            issuer: first.issuer().to_string().into(),
            names: names(first.get_extension::<SubjectAltName>().ok().flatten()),
            not_before: since.unwrap_or_default(),
            not_after: until.unwrap_or_default(),
            self_signed: first.subject() == first.issuer(),
            warnings,
        })
    }
}

fn names(extension: Option<(bool, SubjectAltName)>) -> Vec<OutsideText> {
    let names = extension.into_iter().flat_map(|(_, SubjectAltName(names))| names);
    let text = |name| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase().into()),
        GeneralName::IpAddress(address) => {
            let bytes = address.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).map(std::net::IpAddr::from);
            let v6 = <[u8; 16]>::try_from(bytes).map(std::net::IpAddr::from);
            v4.or(v6).ok().map(|address| address.to_string().into())
        }
        _ => None,
    };
    names.filter_map(text).take(MAX_NAMES).collect()
}

impl CertificateFiles {
    /// Loads chain and key, and checks that they belong together.
    ///
    /// # Errors
    ///
    /// What is wrong with which file.
    pub(crate) fn load(
        &self,
        provider: &CryptoProvider,
    ) -> Result<(CertifiedKey, CertificateFacts), PairFault> {
        let chain = self.chain.certificates().map_err(PairFault::Unusable)?;
        let facts =
            CertificateFacts::parse(self.chain.path(), &chain).map_err(PairFault::Unusable)?;
        let key = self.key.private_key().map_err(PairFault::Unusable)?;
        let (cert_path, key_path) = (self.chain.path(), self.key.path());
        let certified = CertifiedKey::from_der(chain, key, provider).map_err(|error| {
            let problem = match &error {
                Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => Problem::of_file(
                    key_path,
                    &format!("is not the private key of the first certificate in {cert_path:?}"),
                    "write the key that belongs to the certificate; the certificate of the server \
                     comes first in its file, those of authorities follow",
                ),
                Error::InvalidCertificate(error) => Problem::of_file(
                    cert_path,
                    &format!("has a certificate that cannot be used: {error:?}"),
                    "issue a certificate of version 3",
                ),
                error => Problem::of_file(
                    key_path,
                    &format!("has a private key that cannot be used: {error}"),
                    "use RSA with 2048 to 8192 bits, or ECDSA with P-256, P-384 or P-521, or \
                     Ed25519",
                ),
            };
            match error {
                Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    PairFault::KeyMismatch(problem)
                }
                _ => PairFault::Unusable(problem),
            }
        })?;
        Ok((certified, facts))
    }
}
