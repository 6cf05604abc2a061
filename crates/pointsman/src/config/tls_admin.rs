//! TLS of the admin server: its settings, and what is checked of them.

use tls::{CertificateFiles, ClientCertificates, ServerSettings, ServerTls};

use super::consistency::{Note, check_versions};
use super::option_spec::FromSettings as _;
use super::settings::SettingMap;
use super::tls_options::AdminTlsConfig;
use super::tls_settings::protocols;

/// The section.
pub(super) const SECTION: &str = "admin.tls";

/// Browsers and scrapers offer a newer version of HTTP, too.
const HTTP: &[u8] = b"http/1.1";

impl AdminTlsConfig {
    /// The settings of sessions; `None` without a certificate. A certificate of a client is asked
    /// for and not required: the admin server requires it, except for probes.
    #[must_use]
    pub fn server_settings(&self) -> Option<ServerSettings> {
        let chain = self.pem.of("certificate_file").pop()?;
        let key = self.pem.of("key_file").pop().unwrap_or_else(|| chain.clone());
        Some(ServerSettings {
            certificates: vec![CertificateFiles { chain, key }],
            client_certificates: match self.client_certificates {
                ClientCertificates::None => ClientCertificates::None,
                _ => ClientCertificates::Optional,
            },
            client_ca: self.pem.of("client_ca_file").pop(),
            protocols: protocols(self.min_version, self.max_version, &[]),
            application_protocols: vec![HTTP.to_vec()],
            without_resumption: true,
        })
    }

    /// Whether everything except probes needs a certificate of the client.
    #[must_use]
    pub fn requires_certificate(&self) -> bool {
        self.client_certificates == ClientCertificates::Required
    }
}

/// What prevents the section from being used.
pub(super) fn problems(values: &SettingMap, section: &str) -> Vec<tls::Problem> {
    let config = AdminTlsConfig::read(values, section);
    let Some(settings) = config.server_settings() else { return Vec::new() };
    ServerTls::new(&settings).err().unwrap_or_default()
}

/// Reports contradictions. Whether the files fit together is checked when they are read.
pub(super) fn check(process: &SettingMap, note: &mut Note<'_>) {
    let key = |key: &str| format!("{SECTION}.{key}");
    let has = |name: &str| !process.lacks(&key(name));
    let rule = process.text(&key("client_certificates")).unwrap_or("none");
    if !has("certificate_file") {
        // Plain text where TLS was meant would be worse than no start.
        let others = [("key_file", has("key_file")), ("client_ca_file", has("client_ca_file"))];
        let given = others.iter().find(|(_, given)| *given).map(|(name, _)| *name);
        if let Some(given) = given.or((rule != "none").then_some("client_certificates")) {
            note(&key(given), "TLS needs a certificate", "add certificate_file to [admin.tls]");
        }
    } else if rule != "none" && !has("client_ca_file") {
        let what = "nothing says who issues these certificates";
        note(&key("client_certificates"), what, "add client_ca_file");
    }
    check_versions(process, SECTION, note);
}

#[cfg(test)]
mod tests {
    use super::super::load_text;

    fn fault(keys: &str) -> String {
        let text = format!("[[service]]\nsentinels = [\"s\"]\n[admin.tls]\n{keys}\n");
        load_text("f", &text).config().map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn refuses_sections_that_would_be_plain_or_open() {
        for keys in [
            "key_file = \"/tls.key\"",
            "client_certificates = \"required\"",
            "client_ca_file = \"/ca.crt\"",
        ] {
            assert!(fault(keys).contains("add certificate_file to [admin.tls]"), "{keys}");
        }
        let open = fault("certificate_file = \"/tls.crt\"\nclient_certificates = \"required\"");
        assert!(open.contains("add client_ca_file"), "{open}");
        let versions = fault("min_version = \"1.3\"\nmax_version = \"1.2\"");
        assert!(versions.contains("keep min_version <= max_version"), "{versions}");
        let missing = fault("certificate_file = \"/missing.crt\"");
        assert!(missing.contains("admin.tls.certificate_file"), "{missing}");
    }

    #[test]
    fn is_plain_without_a_section() {
        let loaded = load_text("f", "[[service]]\nsentinels = [\"s\"]\n");
        let admin = loaded.config().unwrap().admin;
        assert!(admin.tls.server_settings().is_none());
    }
}
