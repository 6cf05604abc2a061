//! The certificates in use, as metrics and status report them.
//!
//! At most [`MAX_LISTED`] are listed, those that expire first, so that neither document grows
//! without bound.

use std::collections::BTreeSet;

use tls::CertificateFacts;

/// Maximum number of certificates in metrics and status.
const MAX_LISTED: usize = 256;

/// A certificate, and where it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedCertificate {
    /// The name of its service.
    pub service: String,
    /// The peers that it is shown to.
    pub side: &'static str,
    /// What it says.
    pub facts: CertificateFacts,
}

impl ServedCertificate {
    /// The certificates that are shown to clients, those that expire first in front. A file that is
    /// named twice is listed once.
    #[must_use]
    pub fn of_clients(certificates: Vec<(String, CertificateFacts)>) -> Vec<Self> {
        let mut known = BTreeSet::new();
        let mut list: Vec<Self> = certificates
            .into_iter()
            .filter(|(service, facts)| known.insert((service.clone(), facts.file.clone())))
            .map(|(service, facts)| Self { service, side: "clients", facts })
            .collect();
        list.sort_by_key(|it| it.facts.not_after);
        list.truncate(MAX_LISTED);
        list
    }

    /// The path of its file.
    #[must_use]
    pub fn file(&self) -> String {
        self.facts.file.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn facts(file: &str, not_after: u64) -> (String, CertificateFacts) {
        let facts = CertificateFacts {
            file: file.into(),
            subject: String::new(),
            issuer: String::new(),
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
        let some = [facts("late", 9), facts("soon", 1), facts("late", 9)];
        let list = ServedCertificate::of_clients(some.into());
        assert_eq!(list.iter().map(ServedCertificate::file).collect::<Vec<_>>(), ["soon", "late"]);
        let many = (0..1000).map(|number| facts(&number.to_string(), number)).collect();
        let list = ServedCertificate::of_clients(many);
        assert_eq!(list.last().map(|it| it.facts.not_after), Some(Duration::from_secs(255)));
    }
}
