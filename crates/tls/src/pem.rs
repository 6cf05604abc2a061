//! Certificates and private keys in the PEM format.

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::problem::Problem;

/// Maximum number of certificates in one file. The bundle of a system has about 150.
const MAX_CERTIFICATES: usize = 2048;

/// A PEM file that was read. The text is wiped when this is dropped, since it may contain a key.
#[derive(Clone, PartialEq, Eq)]
pub struct PemFile {
    path: PathBuf,
    text: Zeroizing<String>,
}

impl PemFile {
    /// The file at `path` with this content.
    #[must_use]
    pub fn new(path: PathBuf, text: String) -> Self {
        Self { path, text: Zeroizing::new(text) }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it may contain a private key.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.text.contains("PRIVATE KEY")
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn sections(&self) -> pem::SliceIter<'_, (SectionKind, Vec<u8>)> {
        pem::SliceIter::new(self.text.as_bytes())
    }

    fn problem(&self, what: &str, remedy: impl Into<String>) -> Problem {
        Problem::of_file(&self.path, what, remedy)
    }

    fn unreadable(&self, error: &pem::Error) -> Problem {
        self.problem(
            &format!("is not complete PEM: {error:?}"),
            "write the whole file again, and replace it by rename",
        )
    }

    /// All of its certificates, in their order; at least one. Other sections are ignored, so that
    /// a key may be in the same file.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, Problem> {
        let mut found = Vec::new();
        for section in self.sections() {
            // A key in the same file is decoded here as well.
            let (kind, der) = section.map_err(|error| self.unreadable(&error))?;
            let mut der = Zeroizing::new(der);
            if kind != SectionKind::Certificate {
                continue;
            }
            if found.len() >= MAX_CERTIFICATES {
                let what = format!("has more than {MAX_CERTIFICATES} certificates");
                return Err(self.problem(&what, "leave only those that are needed"));
            }
            found.push(CertificateDer::from(std::mem::take(&mut *der)));
        }
        if found.is_empty() {
            return Err(self.problem(
                "has no certificate",
                "write a PEM file with a section \"BEGIN CERTIFICATE\"",
            ));
        }
        Ok(found)
    }

    /// Its private key: PKCS #8, PKCS #1 or SEC 1, not encrypted.
    pub(crate) fn private_key(&self) -> Result<PrivateKeyDer<'static>, Problem> {
        let mut found = None;
        for section in self.sections() {
            let (kind, der) = section.map_err(|error| self.unreadable(&error))?;
            let mut der = Zeroizing::new(der);
            let key = match kind {
                SectionKind::PrivateKey => PrivateKeyDer::Pkcs8(std::mem::take(&mut *der).into()),
                SectionKind::RsaPrivateKey => {
                    PrivateKeyDer::Pkcs1(std::mem::take(&mut *der).into())
                }
                SectionKind::EcPrivateKey => PrivateKeyDer::Sec1(std::mem::take(&mut *der).into()),
                _ => continue,
            };
            if found.replace(key).is_some() {
                return Err(self.problem("has more than one private key", "leave only one in it"));
            }
        }
        found.ok_or_else(|| {
            if self.text.contains("ENCRYPTED") {
                return self.problem(
                    "has an encrypted private key",
                    "decrypt it with: openssl pkey -in FILE -out NEW_FILE",
                );
            }
            self.problem(
                "has no private key",
                "write a PEM file with a section \"BEGIN PRIVATE KEY\"",
            )
        })
    }
}

impl fmt::Debug for PemFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PemFile").field("path", &self.path).finish_non_exhaustive()
    }
}
