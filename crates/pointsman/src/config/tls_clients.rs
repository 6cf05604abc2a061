//! The sides that open connections with TLS: towards Redis and towards Sentinel.
//!
//! Discovery, the data plane and the doctor use one handle per section, so that sessions are
//! resumed across them, and new contents of the files reach all of them at once. Services with the
//! same section share a handle, and therefore their connections to sentinels.

use std::sync::{Mutex, PoisonError};

use tls::{CertificateFiles, ClientSettings, ClientTls, PemFile, Protocols, Roots};

use super::pem_files::{PemTexts, SYSTEM_CA};
use super::settings::SettingMap;
use super::tls_options::ClientTlsConfig;
use super::value::Value;

/// A handle in use, the section that it was made of without the contents of its files, and these.
struct KnownClient {
    section: ClientTlsConfig,
    contents: PemTexts,
    client: ClientTls,
}

static KNOWN: Mutex<Vec<KnownClient>> = Mutex::new(Vec::new());

impl ClientTlsConfig {
    /// The settings of connections; `None` without TLS.
    pub(crate) fn client_settings(&self) -> Option<ClientSettings> {
        if !self.enabled {
            return None;
        }
        let file = |key: &str| self.pem.of(key).pop();
        let roots = match (file("ca_file"), file(SYSTEM_CA)) {
            (Some(file), _) => Roots::Own(file),
            (None, Some(file)) => Roots::System(file),
            (None, None) => Roots::None,
        };
        let pair = |chain: PemFile| {
            let key = file("key_file").unwrap_or_else(|| chain.clone());
            CertificateFiles { chain, key }
        };
        Some(ClientSettings {
            roots,
            verification: self.verify,
            certificate: file("certificate_file").map(pair),
            server_name: self.server_name.clone(),
            protocols: Protocols {
                min: self.min_version,
                max: self.max_version,
                ciphers: self.ciphers.clone(),
            },
        })
    }

    /// The handle for connections, `None` without TLS. It is the same one for equal sections, with
    /// the contents of the files that are [in use](Self::renew).
    pub(crate) fn client(&self) -> Option<ClientTls> {
        let settings = self.client_settings()?;
        let section = self.without_contents();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(it) = known.iter().find(|it| it.section == section) {
            return Some(it.client.clone());
        }
        known.retain(|it| it.client.is_shared());
        // Never plain text: what cannot be set up connects to nobody.
        let client = ClientTls::new(&settings).unwrap_or_else(|_| ClientTls::refusing());
        known.push(KnownClient { section, contents: self.pem.clone(), client: client.clone() });
        Some(client)
    }

    /// Uses these contents of the files for connections that are opened from now on. Apart from
    /// [`client`](Self::client), because a reload that is refused must change nothing.
    pub(crate) fn renew(&self) {
        let Some(settings) = self.client_settings() else { return };
        let section = self.without_contents();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        for it in known.iter_mut().filter(|it| it.section == section && it.contents != self.pem) {
            // The contents were checked together with the section, so this cannot fail.
            if it.client.replace(&settings).is_ok() {
                it.contents = self.pem.clone();
            }
        }
    }

    fn without_contents(&self) -> Self {
        Self { pem: PemTexts::default(), ..self.clone() }
    }
}

/// Whether connections of this section use TLS.
pub(super) fn is_enabled(values: &SettingMap, section: &str) -> bool {
    matches!(values.value(&format!("{section}.enabled")), Some(Value::Bool(true)))
}

/// Whether the authorities of the system are needed.
pub(super) fn needs_system_ca(values: &SettingMap, section: &str) -> bool {
    values.value(&format!("{section}.ca_file")).is_none()
        && values.text(&format!("{section}.verify")) != Some("none")
}

#[cfg(test)]
mod tests {
    use super::super::{Flags, load_text};

    fn load(keys: &str) -> (Result<super::super::Config, String>, String) {
        let text = format!("[[service]]\nsentinels = [\"s\"]\n[service.redis_tls]\n{keys}\n");
        let loaded = load_text("f", &text);
        let warnings = loaded.warnings.iter().map(ToString::to_string).collect::<String>();
        (loaded.config().map_err(|it| format!("{it}")), warnings)
    }

    #[test]
    fn warns_of_unverified_and_of_forgotten_tls() {
        let (config, warnings) = load("enabled = true\nverify = \"none\"");
        assert!(warnings.contains("service.redis_tls.verify: certificates are not verified"));
        assert!(config.unwrap().services[0].redis_tls.client().is_some());
        let (config, warnings) = load("server_name = \"redis.example\"");
        assert!(warnings.contains("it has no effect: connections are in plain text"), "{warnings}");
        assert!(config.unwrap().services[0].redis_tls.client().is_none());
    }

    #[test]
    fn refuses_sections_that_cannot_be_used() {
        let fault = |keys: &str| load(keys).0.unwrap_err();
        let missing = fault("enabled = true\nca_file = \"/missing\"");
        assert!(missing.contains("service.redis_tls.ca_file"), "{missing}");
        let none = fault("enabled = true");
        assert!(none.contains("the system has no file with authorities"), "{none}");
        let name = fault("enabled = true\nverify = \"none\"\nserver_name = \"a b\"");
        assert!(name.contains("is not the name of a server"), "{name}");
        let key = fault("key_file = \"/tls.key\"");
        assert!(key.contains("add certificate_file"), "{key}");
        let versions = fault("min_version = \"1.3\"\nmax_version = \"1.2\"");
        assert!(versions.contains("keep min_version <= max_version"), "{versions}");
    }

    #[test]
    fn changes_contents_in_use_only_when_told_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("both.pem");
        let section = |name: &str| {
            let issued = harness::Authority::new("ca").issue(&[name]);
            std::fs::write(&path, issued.chain + &issued.key).unwrap();
            let file = folder.path().join("pointsman.toml");
            let keys = format!("enabled = true\nverify = \"none\"\ncertificate_file = {path:?}");
            let text = format!("[[service]]\nsentinels = [\"s\"]\n[service.redis_tls]\n{keys}\n");
            std::fs::write(&file, text).unwrap();
            let flags = Flags { config: Some(file), ..Flags::default() };
            super::super::load(&flags, []).config().unwrap().services.remove(0).redis_tls
        };
        let (one, two) = (section("one"), section("two"));
        let client = one.client().unwrap();
        let shown = || client.certificate().unwrap().subject;
        assert_eq!(two.client().unwrap(), client);
        assert_eq!(shown(), "CN=one", "the reload may still be refused");
        two.renew();
        assert_eq!(shown(), "CN=two");
    }

    #[test]
    fn gives_equal_sections_one_handle() {
        let keys = "enabled = true\nverify = \"none\"\nserver_name = \"one.example\"";
        let client = |keys: &str| load(keys).0.unwrap().services[0].redis_tls.client().unwrap();
        let one = client(keys);
        assert_eq!(one, client(keys));
        assert_ne!(one, client(&keys.replace("one.", "other.")));
    }
}
