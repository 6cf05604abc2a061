//! The schema of the configuration: all sections, the full paths of their keys, and the names of
//! their environment variables.
//!
//! The keys of a service are set most often, so their variables have no section name:
//! `service.connect_timeout` is `POINTSMAN_CONNECT_TIMEOUT`, and `service.auth.password` is
//! `POINTSMAN_AUTH_PASSWORD`. This also keeps them apart from the variables that Kubernetes injects
//! for a Service called pointsman, such as `POINTSMAN_SERVICE_HOST`.

use super::option_spec::OptionSpec;
use super::options::{
    AdminConfig, CredentialKeys, DurabilityConfig, LogConfig, MetricsConfig, ProcessConfig,
    ReplicasConfig, ServiceConfig, ShutdownConfig, TimersConfig,
};
use super::tls_options::{AdminTlsConfig, ClientTlsConfig, ServerTlsConfig};

/// A section: a table of the file.
#[derive(Debug)]
pub struct ConfigSection {
    /// Its full path, such as `service.auth`.
    pub path: &'static str,
    /// What its keys configure.
    pub about: &'static str,
    /// Its keys, without those of inner sections.
    pub options: &'static [OptionSpec],
}

/// All sections in the order in which they are printed. A section follows the one that contains it.
pub static SECTIONS: &[ConfigSection] = &[
    ConfigSection::new("service", ServiceConfig::ABOUT, ServiceConfig::OPTIONS),
    ConfigSection::new(
        "service.auth",
        "Credentials with which this proxy checks masters and replicas. Clients \
                authenticate themselves. At most one of the three password keys may be set.",
        CredentialKeys::OPTIONS,
    ),
    ConfigSection::new(
        "service.sentinel_auth",
        "Credentials for the sentinels. At most one of the three password keys may be set.",
        CredentialKeys::OPTIONS,
    ),
    ConfigSection::new("service.tls", ServerTlsConfig::ABOUT, ServerTlsConfig::OPTIONS),
    ConfigSection::new(
        "service.redis_tls",
        "TLS of connections to masters and replicas: those of clients' sessions, of discovery \
                and of commands.",
        ClientTlsConfig::OPTIONS,
    ),
    ConfigSection::new(
        "service.sentinel_tls",
        "TLS of connections to sentinels: those of discovery, and of clients of \
                sentinel_listen.",
        ClientTlsConfig::OPTIONS,
    ),
    ConfigSection::new("service.durability", DurabilityConfig::ABOUT, DurabilityConfig::OPTIONS),
    ConfigSection::new("service.replicas", ReplicasConfig::ABOUT, ReplicasConfig::OPTIONS),
    ConfigSection::new("service.timers", TimersConfig::ABOUT, TimersConfig::OPTIONS),
    ConfigSection::new("admin", AdminConfig::ABOUT, AdminConfig::OPTIONS),
    ConfigSection::new("admin.tls", AdminTlsConfig::ABOUT, AdminTlsConfig::OPTIONS),
    ConfigSection::new("metrics", MetricsConfig::ABOUT, MetricsConfig::OPTIONS),
    ConfigSection::new("shutdown", ShutdownConfig::ABOUT, ShutdownConfig::OPTIONS),
    ConfigSection::new("log", LogConfig::ABOUT, LogConfig::OPTIONS),
    ConfigSection::new("process", ProcessConfig::ABOUT, ProcessConfig::OPTIONS),
];

/// The sections with credentials.
pub(super) const CREDENTIALS: [&str; 2] = ["service.auth", "service.sentinel_auth"];
/// The keys that give a password.
pub(super) const PASSWORD_KEYS: [&str; 3] = ["password", "password_file", "password_env"];

impl ConfigSection {
    const fn new(path: &'static str, about: &'static str, options: &'static [OptionSpec]) -> Self {
        Self { path, about, options }
    }

    /// Whether each service has one.
    pub fn is_of_service(&self) -> bool {
        is_of_service(self.path)
    }

    /// Its header in the file: `[[service]]` or `[name]`.
    pub fn header(&self) -> String {
        if self.path == "service" { "[[service]]".to_owned() } else { format!("[{}]", self.path) }
    }

    /// The option with this key.
    pub fn option(&self, key: &str) -> Option<&'static OptionSpec> {
        self.options.iter().find(|option| option.key == key)
    }

    /// The full path of one of its keys.
    pub fn path_of(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    /// The environment variable of one of its keys.
    pub fn variable(&self, key: &str) -> String {
        match (self.path, key) {
            ("service", "name") => "POINTSMAN_SERVICE".to_owned(),
            ("service", "sentinels") => "POINTSMAN_SENTINEL".to_owned(),
            ("admin", "listen") => "POINTSMAN_ADMIN".to_owned(),
            (path, key) => {
                let section = path.strip_prefix("service").unwrap_or(path).trim_start_matches('.');
                let name =
                    if section.is_empty() { key.to_owned() } else { format!("{section}_{key}") };
                format!("POINTSMAN_{}", name.replace('.', "_").to_ascii_uppercase())
            }
        }
    }
}

/// Whether a path belongs to a service; otherwise it belongs to the process.
pub(super) fn is_of_service(path: &str) -> bool {
    path == "service" || path.starts_with("service.")
}

/// The section with this path.
pub(crate) fn section(path: &str) -> Option<&'static ConfigSection> {
    SECTIONS.iter().find(|section| section.path == path)
}

/// The option with this full path, such as `shutdown.accept_min`.
pub(crate) fn option(path: &str) -> Option<&'static OptionSpec> {
    let (section_path, key) = path.rsplit_once('.')?;
    section(section_path)?.option(key)
}

/// Every option with its section.
pub(crate) fn options() -> impl Iterator<Item = (&'static ConfigSection, &'static OptionSpec)> {
    SECTIONS.iter().flat_map(|section| section.options.iter().map(move |option| (section, option)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::environment::is_service_link;

    #[test]
    fn parses_every_default() {
        for (section, option) in options() {
            let given = option.default.is_some();
            assert_eq!(given, option.default_value().is_some(), "{}.{}", section.path, option.key);
        }
    }

    #[test]
    fn documents_every_option_in_one_sentence() {
        for (section, option) in options() {
            let summary = option.summary();
            assert!(
                summary.len() >= 20 && summary.len() <= 130,
                "{}.{}: {summary}",
                section.path,
                option.key
            );
            assert!(summary.ends_with('.'), "{}.{}: {summary}", section.path, option.key);
        }
    }

    #[test]
    fn gives_distinct_variables_unlike_those_of_kubernetes() {
        let mut seen = BTreeSet::new();
        for (section, option) in options() {
            let name = section.variable(option.key);
            assert!(!is_service_link(&name), "{name}");
            assert!(seen.insert(name.clone()), "{name}");
        }
        assert!(
            seen.contains("POINTSMAN_SHUTDOWN_ACCEPT_MIN")
                && seen.contains("POINTSMAN_SENTINEL_AUTH_PASSWORD")
        );
        assert!(
            seen.contains("POINTSMAN_LISTEN")
                && seen.contains("POINTSMAN_ADMIN")
                && !seen.contains("POINTSMAN_CONFIG")
        );
    }
}
