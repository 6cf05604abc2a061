//! Checks of the options for TLS: contradictions, and what prevents a section from being used.
//! Whether files fit together is checked by building the settings from them.

use tls::{ClientTls, ServerTls};

use super::consistency::{Note, TLS_LISTEN, has};
use super::option_spec::FromSettings as _;
use super::pem_files::paths;
use super::settings::SettingMap;
use super::tls_clients::is_enabled;
use super::tls_options::{AdminTlsConfig, ClientTlsConfig, ServerTlsConfig};

/// The section of listeners.
pub(super) const SERVICE: &str = "service.tls";
/// The section of the admin server.
pub(super) const ADMIN: &str = "admin.tls";
/// The sections of connections to servers.
pub(super) const CLIENTS: [&str; 2] = ["service.redis_tls", "service.sentinel_tls"];

/// What prevents a section from being used.
pub(super) fn problems(values: &SettingMap, section: &str) -> Vec<tls::Problem> {
    let settings = match section {
        SERVICE => ServerTlsConfig::read(values, section).server_settings(),
        ADMIN => AdminTlsConfig::read(values, section).server_settings(),
        _ => {
            let settings = ClientTlsConfig::read(values, section).client_settings();
            return settings.and_then(|it| ClientTls::new(&it).err()).unwrap_or_default();
        }
    };
    settings.and_then(|it| ServerTls::new(&it).err()).unwrap_or_default()
}

/// Reports addresses for TLS without certificates, and files of a section that do not belong
/// together.
pub(super) fn check_service(service: &SettingMap, note: &mut Note<'_>) {
    let files = |key: &str| paths(service.value(key)).len();
    let (chains, keys) = ("service.tls.certificate_files", "service.tls.key_files");
    if let Some(key) = TLS_LISTEN.iter().find(|key| has(service, key))
        && files(chains) == 0
        && !service.broken.contains(chains)
    {
        note(key, "TLS needs a certificate", "add certificate_files to [service.tls]");
    }
    if files(keys) > 0 && files(keys) != files(chains) {
        note(
            keys,
            "there are not as many keys as certificates",
            "give one key for each of certificate_files, in the same order",
        );
    }
    check_issuer(service, SERVICE, note);
    check_versions(service, SERVICE, note);
    for section in CLIENTS {
        let key = |key: &str| format!("{section}.{key}");
        if service.value(&key("key_file")).is_some() && service.lacks(&key("certificate_file")) {
            note(&key("key_file"), "there is no certificate", "add certificate_file");
        }
        check_versions(service, section, note);
    }
}

/// Reports a section of the admin server without a certificate: plain text where TLS was meant
/// would be worse than no start.
pub(super) fn check_admin(process: &SettingMap, note: &mut Note<'_>) {
    let key = |key: &str| format!("{ADMIN}.{key}");
    if !process.lacks(&key("certificate_file")) {
        check_issuer(process, ADMIN, note);
    } else if let Some(given) = ["key_file", "client_ca_file", "client_certificates"]
        .map(key)
        .iter()
        .find(|key| !process.lacks(key) && process.text(key) != Some("none"))
    {
        note(given, "TLS needs a certificate", "add certificate_file to [admin.tls]");
    }
    check_versions(process, ADMIN, note);
}

/// Reports client certificates that nothing verifies.
fn check_issuer(values: &SettingMap, section: &str, note: &mut Note<'_>) {
    let rule = format!("{section}.client_certificates");
    if values.text(&rule).is_some_and(|rule| rule != "none")
        && values.lacks(&format!("{section}.client_ca_file"))
    {
        note(&rule, "nothing says who issues these certificates", "add client_ca_file");
    }
}

/// Reports a range of TLS versions that is empty.
fn check_versions(values: &SettingMap, section: &str, note: &mut Note<'_>) {
    let min = format!("{section}.min_version");
    if let (Some(oldest), Some(newest)) =
        (values.text(&min), values.text(&format!("{section}.max_version")))
        && oldest > newest
    {
        note(&min, "it is newer than max_version", "keep min_version <= max_version");
    }
}

/// Reports settings that are valid and probably not intended.
pub(super) fn warn(service: &SettingMap, note: &mut Note<'_>) {
    for section in CLIENTS {
        let key = |key: &str| format!("{section}.{key}");
        let enabled = is_enabled(service, section);
        if enabled && service.text(&key("verify")) == Some("none") {
            note(
                &key("verify"),
                "certificates are not verified: anybody on the path can read and change \
                 everything, passwords included",
                "name the CA of the servers in ca_file, with verify = \"full\" or \"chain\"",
            );
        }
        let given = ["ca_file", "certificate_file", "key_file", "server_name"];
        if !enabled && let Some(given) = given.iter().find(|it| service.value(&key(it)).is_some()) {
            note(
                &key(given),
                "it has no effect: connections are in plain text",
                "add enabled = true to its section, or remove it",
            );
        }
    }
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
