//! Authorities and certificates made for a test, as files in the PEM format.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// An authority that issues certificates.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its private key, in the PEM format.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub chain: String,
    /// Its private key.
    pub key: String,
}

/// The files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePaths {
    /// The file with the certificate.
    pub chain: PathBuf,
    /// The file with the private key.
    pub key: PathBuf,
}

impl Authority {
    /// A new authority.
    ///
    /// # Panics
    /// If the library refuses.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// An intermediate authority, whose certificate this one issues.
    ///
    /// # Panics
    /// If the library refuses.
    #[must_use]
    pub fn subordinate(&self, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::signed_by(params, key, &self.0).expect("a certificate"))
    }

    /// Its certificate, in the PEM format.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Its certificate, in the binary format.
    #[must_use]
    pub(crate) fn der(&self) -> rustls::pki_types::CertificateDer<'static> {
        self.0.der().clone().into_owned()
    }

    /// Writes its certificate into a folder.
    ///
    /// # Panics
    /// If the file cannot be written.
    #[must_use]
    #[track_caller]
    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, self.pem()).expect("a file");
        path
    }

    /// A certificate for these names and addresses, valid until 2100.
    #[must_use]
    pub fn issue(&self, names: &[&str]) -> Certificate {
        self.issue_until(names, 2100)
    }

    /// A certificate that expires at the beginning of a year.
    ///
    /// # Panics
    /// If the library refuses.
    #[must_use]
    pub fn issue_until(&self, names: &[&str], year: i32) -> Certificate {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let subject = names.first().cloned().unwrap_or_default();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, subject);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Certificate { chain: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Certificate {
    /// Writes `tls.crt` and `tls.key` into a folder, which is created.
    ///
    /// # Panics
    /// If a file cannot be written.
    #[track_caller]
    pub fn write(&self, folder: &Path) -> CertificatePaths {
        std::fs::create_dir_all(folder).expect("a folder");
        let paths = CertificatePaths { chain: folder.join("tls.crt"), key: folder.join("tls.key") };
        std::fs::write(&paths.chain, &self.chain).expect("a file");
        std::fs::write(&paths.key, &self.key).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&paths.key, mode).expect("a mode");
        paths
    }
}
