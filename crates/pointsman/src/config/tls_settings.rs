//! Translates the options for TLS of listeners and of the admin server into the settings of the
//! `tls` crate.

use tls::{CertificateFiles, ClientCertificates, Protocols, ServerSettings};

use super::pem_files::PemTexts;
use super::tls_options::{AdminTlsConfig, ServerTlsConfig};

/// Browsers and scrapers offer a newer version of HTTP, too.
const HTTP: &[u8] = b"http/1.1";

impl ServerTlsConfig {
    /// The settings of listeners for TLS; `None` without certificates.
    pub(crate) fn server_settings(&self) -> Option<ServerSettings> {
        Some(ServerSettings {
            client_certificates: self.client_certificates,
            protocols: Protocols {
                min: self.min_version,
                max: self.max_version,
                ciphers: self.ciphers.clone(),
            },
            ..settings(&self.pem, "certificate_files", "key_files")?
        })
    }
}

impl AdminTlsConfig {
    /// The settings of sessions; `None` without a certificate. A certificate of a client is asked
    /// for and not required: the admin server requires it, except for probes.
    pub(crate) fn server_settings(&self) -> Option<ServerSettings> {
        Some(ServerSettings {
            client_certificates: match self.client_certificates {
                ClientCertificates::None => ClientCertificates::None,
                _ => ClientCertificates::Optional,
            },
            protocols: Protocols {
                min: self.min_version,
                max: self.max_version,
                ciphers: Vec::new(),
            },
            application_protocols: vec![HTTP.to_vec()],
            without_resumption: true,
            ..settings(&self.pem, "certificate_file", "key_file")?
        })
    }

    /// Whether everything except probes needs a certificate of the client.
    pub(crate) fn requires_certificate(&self) -> bool {
        self.client_certificates == ClientCertificates::Required
    }
}

/// The settings with the certificates, each with its key: that of a file of its own, or that in the
/// same file.
fn settings(pem: &PemTexts, chains: &str, keys: &str) -> Option<ServerSettings> {
    let (chains, mut keys) = (pem.of(chains), pem.of(keys));
    if keys.is_empty() {
        keys.clone_from(&chains);
    }
    let pairs = chains.into_iter().zip(keys);
    let certificates: Vec<_> = pairs.map(|(chain, key)| CertificateFiles { chain, key }).collect();
    let client_ca = pem.of("client_ca_file").pop();
    (!certificates.is_empty()).then(|| ServerSettings {
        certificates,
        client_ca,
        ..ServerSettings::default()
    })
}
