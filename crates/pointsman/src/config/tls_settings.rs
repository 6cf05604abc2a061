//! Translates the options for TLS into the settings of the `tls` crate, and checks them by building
//! them.

use tls::{CertificateFiles, PemFile, Protocols, ServerSettings, ServerTls, Version};

use super::option_spec::FromSettings as _;
use super::settings::SettingMap;
use super::tls_options::ServerTlsConfig;

impl ServerTlsConfig {
    /// The settings of listeners for TLS; `None` without certificates.
    #[must_use]
    pub fn server_settings(&self) -> Option<ServerSettings> {
        let chains = self.pem.of("certificate_files");
        if chains.is_empty() {
            return None;
        }
        let keys = self.pem.of("key_files");
        Some(ServerSettings {
            certificates: certificates(chains, keys),
            client_certificates: self.client_certificates,
            client_ca: self.pem.of("client_ca_file").pop(),
            protocols: protocols(self.min_version, self.max_version, &self.ciphers),
            application_protocols: Vec::new(),
            without_resumption: false,
        })
    }
}

/// Pairs certificates with their keys: those of a list of their own, or those in the same files.
fn certificates(chains: Vec<PemFile>, keys: Vec<PemFile>) -> Vec<CertificateFiles> {
    let keys = if keys.is_empty() { chains.clone() } else { keys };
    chains.into_iter().zip(keys).map(|(chain, key)| CertificateFiles { chain, key }).collect()
}

pub(super) fn protocols(min: Version, max: Version, ciphers: &[String]) -> Protocols {
    Protocols { min, max, ciphers: ciphers.to_vec() }
}

/// What prevents the settings for clients from being used.
pub(super) fn problems_of_clients_side(values: &SettingMap) -> Vec<tls::Problem> {
    let config = ServerTlsConfig::read(values, "service.tls");
    let Some(settings) = config.server_settings() else { return Vec::new() };
    ServerTls::new(&settings).err().unwrap_or_default()
}
