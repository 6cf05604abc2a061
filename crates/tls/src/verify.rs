//! How the certificate of a server is verified, other than in full.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Verifies less than usual. That the server has the private key of its certificate is verified in
/// any case.
#[derive(Debug)]
pub(crate) struct LenientVerifier {
    /// The authorities that the certificate must lead to; `None` for no matter which.
    roots: Option<Arc<RootCertStore>>,
    /// The certificates that it must be one of; empty for no matter which.
    exact: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl LenientVerifier {
    /// The certificate must be valid now and lead to one of these authorities. Its names are
    /// ignored.
    pub(crate) fn of_chain(roots: Arc<RootCertStore>, provider: Arc<CryptoProvider>) -> Self {
        Self { roots: Some(roots), exact: Vec::new(), provider }
    }

    /// The certificate must be one of these. Its names, its authority and its validity are ignored.
    pub(crate) fn of_exactly(
        exact: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Self {
        Self { roots: None, exact, provider }
    }

    /// Any certificate will do.
    pub(crate) fn of_nothing(provider: Arc<CryptoProvider>) -> Self {
        Self { roots: None, exact: Vec::new(), provider }
    }
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.exact.is_empty() && !self.exact.iter().any(|it| it == end_entity) {
            return Err(CertificateError::UnknownIssuer.into());
        }
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(
                &certificate,
                roots,
                intermediates,
                now,
                algorithms,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
