//! The certificates in use, as metrics and status report them.
//!
//! At most [`MAX_LISTED`] are listed, those that expire first, so that neither document grows
//! without bound.

use std::collections::BTreeSet;

use tls::CertificateFacts;

use crate::config::Config;

/// Maximum number of certificates in metrics and status.
const MAX_LISTED: usize = 256;

/// A certificate, and where it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServedCertificate {
    /// The name of its service; empty for the admin server.
    pub service: String,
    /// The peers that it is shown to.
    pub side: &'static str,
    /// What it says.
    pub facts: CertificateFacts,
}

impl ServedCertificate {
    /// The certificates that are shown to clients of services and of the admin server, which has no
    /// name, and by the services of a configuration to Redis and Sentinel, those that expire first
    /// in front. A file that is named twice by one of them is listed once.
    pub(crate) fn list(shown: Vec<(String, CertificateFacts)>, config: &Config) -> Vec<Self> {
        let mut known = BTreeSet::new();
        let shown = shown.into_iter().map(|(service, facts)| {
            let side = if service.is_empty() { "admin" } else { "clients" };
            Self { service, side, facts }
        });
        let own = config.services.iter().flat_map(|service| {
            let sides = [("redis", &service.redis_tls), ("sentinel", &service.sentinel_tls)];
            sides.into_iter().filter_map(|(side, section)| {
                let facts = section.client()?.certificate()?;
                Some(Self { service: service.name.clone(), side, facts })
            })
        });
        let is_new = |it: &Self| known.insert((it.service.clone(), it.side, it.facts.file.clone()));
        let mut list: Vec<Self> = shown.chain(own).filter(is_new).collect();
        list.sort_by_key(|it| it.facts.not_after);
        list.truncate(MAX_LISTED);
        list
    }

    /// The path of its file.
    pub(crate) fn file(&self) -> String {
        self.facts.file.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tls::OutsideText;

    use super::*;

    fn facts(file: &str, not_after: u64) -> (String, CertificateFacts) {
        let facts = CertificateFacts {
            file: file.into(),
            subject: OutsideText::default(),
            issuer: OutsideText::default(),
            names: Vec::new(),
            not_before: Duration::ZERO,
            not_after: Duration::from_secs(not_after),
            self_signed: false,
            warnings: Vec::new(),
        };
        ("mymaster".to_owned(), facts)
    }

    #[test]
    fn lists_those_that_expire_first_once() {
        let admin = (String::new(), facts("admin", 5).1);
        let some = [facts("late", 9), facts("soon", 1), facts("late", 9), admin];
        let config = crate::config::load_text("f", "[[service]]\nsentinels = [\"s\"]\n");
        let config = config.config().unwrap();
        let list = ServedCertificate::list(some.into(), &config);
        let files: Vec<_> = list.iter().map(|it| (it.file(), it.side)).collect();
        let expected = [("soon", "clients"), ("admin", "admin"), ("late", "clients")];
        assert_eq!(files, expected.map(|(file, side)| (file.to_owned(), side)));
        let many = (0..1000).map(|number| facts(&number.to_string(), number)).collect();
        let list = ServedCertificate::list(many, &config);
        assert_eq!(list.last().map(|it| it.facts.not_after), Some(Duration::from_secs(255)));
    }

    #[test]
    fn lists_own_certificates_towards_servers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("client.pem");
        let issued = harness::Authority::new("ca").issue_until(&["client"], 2030);
        std::fs::write(&path, issued.chain + &issued.key).unwrap();
        let keys = format!("enabled = true\nverify = \"none\"\ncertificate_file = {path:?}\n");
        let text = format!(
            "[[service]]\nname = \"m\"\nsentinels = [\"s\"]\n[service.redis_tls]\n{keys}\
             [service.sentinel_tls]\n{keys}"
        );
        let file = folder.path().join("pointsman.toml");
        std::fs::write(&file, text).unwrap();
        let flags = crate::config::Flags { config: Some(file), ..crate::config::Flags::default() };
        let config = crate::config::load(&flags, []).config().unwrap();
        let list = ServedCertificate::list(Vec::new(), &config);
        let listed: Vec<_> =
            list.iter().map(|it| (&*it.service, it.side, &*it.facts.names)).collect();
        let names = [OutsideText::from("client")];
        assert_eq!(listed, [("m", "redis", &names[..]), ("m", "sentinel", &names[..])]);
        assert_eq!(list[0].facts.not_after, Duration::from_secs(1_893_456_000), "2030-01-01");
    }
}
