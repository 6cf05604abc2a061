//! Certificates for tests, and the client's side of TLS for the harness itself.
//!
//! A [`Certificates`] is an authority with a folder. The harness does not verify what servers show
//! it: it must reach a server with an expired certificate, too. Verification is the task of the
//! program under test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, SignatureScheme};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A certificate with its key, each in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// An authority, and a folder for the certificates that it issues.
#[derive(Debug)]
pub struct Certificates {
    folder: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    /// A new authority. Its certificate is written into `folder`, which is created if necessary.
    ///
    /// # Panics
    /// If the folder cannot be written.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self::named(folder, "harness CA")
    }

    /// Like [`new`](Self::new), with this name. Servers find an authority by its name, so two that
    /// are trusted at the same time need different ones.
    ///
    /// # Panics
    /// Like [`new`](Self::new).
    #[must_use]
    pub fn named(folder: &Path, name: &str) -> Self {
        std::fs::create_dir_all(folder).expect("a folder for certificates");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("a CA");
        std::fs::write(folder.join("ca.crt"), authority.pem()).expect("ca.crt");
        Self { folder: folder.to_owned(), authority }
    }

    /// The certificate of the authority.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Issues a certificate for these host names and IP addresses, valid for a year, and replaces
    /// `FILE.crt` and `FILE.key` by it.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn issue(&self, file: &str, names: &[&str]) -> CertificateFiles {
        let now = now();
        self.issue_within(file, names, (now - DAY, now + DAY * 365))
    }

    /// Like [`issue`](Self::issue), valid between these times.
    ///
    /// # Panics
    /// Like [`issue`](Self::issue).
    pub fn issue_within(
        &self,
        file: &str,
        names: &[&str],
        validity: (SystemTime, SystemTime),
    ) -> CertificateFiles {
        let key = KeyPair::generate().expect("a key");
        let certificate = params(names, validity.0, validity.1).signed_by(&key, &self.authority);
        self.write(file, &certificate.expect("a certificate").pem(), &key)
    }

    /// Like [`issue`](Self::issue), signed with its own key in the place of the authority's.
    ///
    /// # Panics
    /// Like [`issue`](Self::issue).
    pub fn self_signed(&self, file: &str, names: &[&str]) -> CertificateFiles {
        let (key, now) = (KeyPair::generate().expect("a key"), now());
        let certificate = params(names, now - DAY, now + DAY * 365).self_signed(&key);
        self.write(file, &certificate.expect("a certificate").pem(), &key)
    }

    fn write(&self, file: &str, certificate: &str, key: &KeyPair) -> CertificateFiles {
        let path = |extension: &str| self.folder.join(format!("{file}.{extension}"));
        let files = CertificateFiles { certificate: path("crt"), key: path("key") };
        for (path, text) in [(&files.key, &*key.serialize_pem()), (&files.certificate, certificate)]
        {
            // In one step, so that nobody reads a part of it.
            let new = path.with_extension("new");
            std::fs::write(&new, text)
                .and_then(|()| std::fs::rename(&new, path))
                .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        }
        files
    }
}

#[expect(clippy::disallowed_methods, reason = "the validity of certificates is in wall time")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn params(names: &[&str], from: SystemTime, until: SystemTime) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let subject = names.first().cloned().unwrap_or_default();
    let mut params = CertificateParams::new(names).expect("host names or addresses");
    params.distinguished_name.push(DnType::CommonName, subject);
    let since_1970 = |time: SystemTime| {
        let elapsed = time.duration_since(SystemTime::UNIX_EPOCH).expect("a time after 1970");
        rcgen::date_time_ymd(1970, 1, 1) + elapsed
    };
    (params.not_before, params.not_after) = (since_1970(from), since_1970(until));
    params
}

/// Accepts every certificate.
#[derive(Debug)]
struct NoVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerification {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The settings of connections over TLS that show this certificate, if one is given, and accept
/// every server's.
///
/// # Panics
/// If the files cannot be read.
#[must_use]
pub fn tls_client(identity: Option<&CertificateFiles>) -> Arc<ClientConfig> {
    let builder = accepting(aws_lc_rs::default_provider());
    Arc::new(match identity {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let chain: Result<Vec<_>, _> =
                CertificateDer::pem_file_iter(&files.certificate).expect("a file").collect();
            let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
            builder.with_client_auth_cert(chain.expect("certificates"), key).expect("a pair")
        }
    })
}

/// The settings of connections over TLS with the ciphers and key exchanges of this provider, which
/// accept every server's certificate.
///
/// # Panics
/// If no version of TLS can be used with it.
#[must_use]
pub fn tls_client_with(provider: CryptoProvider) -> ClientConfig {
    accepting(provider).with_no_client_auth()
}

fn accepting(provider: CryptoProvider) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let provider = Arc::new(provider);
    ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NoVerification(provider)))
}
