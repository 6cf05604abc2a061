//! All options together: sections, full paths, and the names that the environment uses.
//!
//! A service's keys are the ones people set most, so their variables carry no section name:
//! `service.connect_timeout` is `POINTSMAN_CONNECT_TIMEOUT`, and `service.auth.password` is
//! `POINTSMAN_AUTH_PASSWORD`. This also keeps them apart from what Kubernetes injects for a Service
//! that is called pointsman (`POINTSMAN_SERVICE_HOST` and its like).

use super::section::OptionSpec;
use super::sections::{
    Admin, CredentialKeys, Log, Metrics, Process, Replicas, Service, Shutdown, Timers,
};

/// A table of the file.
#[derive(Debug)]
pub struct Section {
    /// Its full path, `service.auth`.
    pub path: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// The keys that stand directly in it.
    pub options: &'static [OptionSpec],
}

/// Every section, in the order of printing; a section comes after the one it stands in.
pub static SECTIONS: &[Section] = &[
    Section { path: "service", about: Service::ABOUT, options: Service::OPTIONS },
    Section {
        path: "service.auth",
        about: "Credentials of this proxy's own checks at masters and replicas. Clients authenticate for themselves. At most one of \
                the three password keys may be set.",
        options: CredentialKeys::OPTIONS,
    },
    Section {
        path: "service.sentinel_auth",
        about: "Credentials at the sentinels. At most one of the three password keys may be set.",
        options: CredentialKeys::OPTIONS,
    },
    Section { path: "service.replicas", about: Replicas::ABOUT, options: Replicas::OPTIONS },
    Section { path: "service.timers", about: Timers::ABOUT, options: Timers::OPTIONS },
    Section { path: "admin", about: Admin::ABOUT, options: Admin::OPTIONS },
    Section { path: "metrics", about: Metrics::ABOUT, options: Metrics::OPTIONS },
    Section { path: "shutdown", about: Shutdown::ABOUT, options: Shutdown::OPTIONS },
    Section { path: "log", about: Log::ABOUT, options: Log::OPTIONS },
    Section { path: "process", about: Process::ABOUT, options: Process::OPTIONS },
];

/// The sections that hold credentials.
pub(super) const CREDENTIALS: [&str; 2] = ["service.auth", "service.sentinel_auth"];
/// The keys by which a password is given.
pub(super) const PASSWORD_KEYS: [&str; 3] = ["password", "password_file", "password_env"];

impl Section {
    /// Whether there is one of it for each service.
    #[must_use]
    pub fn is_of_service(&self) -> bool {
        is_of_service(self.path)
    }

    /// The option with this key.
    #[must_use]
    pub fn option(&self, key: &str) -> Option<&'static OptionSpec> {
        self.options.iter().find(|option| option.key == key)
    }

    /// The full path of one of its keys.
    #[must_use]
    pub fn path_of(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    /// The environment variable of one of its keys.
    #[must_use]
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

/// Whether a path belongs to one service rather than to the process.
pub(super) fn is_of_service(path: &str) -> bool {
    path == "service" || path.starts_with("service.")
}

/// The section with this path.
#[must_use]
pub fn section(path: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.path == path)
}

/// The option with this full path (`shutdown.accept_min`).
#[must_use]
pub fn option(path: &str) -> Option<&'static OptionSpec> {
    let (section_path, key) = path.rsplit_once('.')?;
    section(section_path)?.option(key)
}

/// Every option with its section.
pub fn options() -> impl Iterator<Item = (&'static Section, &'static OptionSpec)> {
    SECTIONS.iter().flat_map(|section| section.options.iter().map(move |option| (section, option)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::environment::is_service_link;

    #[test]
    fn every_default_keeps_the_rule_of_its_kind() {
        for (section, option) in options() {
            let given = option.default.is_some();
            assert_eq!(given, option.default_value().is_some(), "{}.{}", section.path, option.key);
        }
    }

    #[test]
    fn every_option_is_documented_for_people() {
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
    fn variables_are_distinct_and_never_those_of_kubernetes() {
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
