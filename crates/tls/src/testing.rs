//! Authorities and certificates made for a test, and handshakes in memory.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SignatureAlgorithm,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection};

use crate::{CertificateFiles, PemFile};

pub(crate) const P256: &SignatureAlgorithm = &rcgen::PKCS_ECDSA_P256_SHA256;
pub(crate) const RSA: &SignatureAlgorithm = &rcgen::PKCS_RSA_SHA256;

pub(crate) fn pem(name: &str, text: &str) -> PemFile {
    PemFile::new(PathBuf::from(name), text.to_owned())
}

/// A CA.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate_for(P256).unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// An intermediate CA, whose certificate this one issues.
    pub(crate) fn subordinate(&self, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate_for(P256).unwrap();
        Self(CertifiedIssuer::signed_by(params, key, &self.0).unwrap())
    }

    pub(crate) fn file(&self) -> PemFile {
        pem("ca.crt", &self.0.pem())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names with a key of this kind, valid in these years.
    pub(crate) fn issue_within(
        &self,
        names: &[&str],
        kind: &'static SignatureAlgorithm,
        from: i32,
        to: i32,
    ) -> CertificateFiles {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let subject = names.first().cloned().unwrap_or_default();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, subject);
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let key = KeyPair::generate_for(kind).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        CertificateFiles {
            chain: pem("tls.crt", &certificate.pem()),
            key: pem("tls.key", &key.serialize_pem()),
        }
    }

    /// A certificate that is valid now.
    pub(crate) fn issue(&self, names: &[&str]) -> CertificateFiles {
        self.issue_within(names, P256, 2020, 2100)
    }
}

/// Completes a handshake, or returns the first error of either side.
pub(crate) fn handshake(
    server: Arc<ServerConfig>,
    client: (Arc<ClientConfig>, ServerName<'static>),
) -> Result<(ServerConnection, ClientConnection), Error> {
    let mut server = ServerConnection::new(server)?;
    let mut client = ClientConnection::new(client.0, client.1)?;
    loop {
        let mut moved = false;
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        moved |= !bytes.is_empty();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets()?;
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        moved |= !bytes.is_empty();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets()?;
        }
        if !moved {
            assert!(!server.is_handshaking() && !client.is_handshaking());
            return Ok((server, client));
        }
    }
}
