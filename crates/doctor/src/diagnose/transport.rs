//! Findings about TLS: certificates that expire or cannot be verified, and ports that speak plain
//! text where TLS is configured, or the other way round. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tls::{CertificateFacts, FaultKind};

use super::Severity::{Fault, Note, Warning};
use super::{Case, Findings, join};

/// A certificate that expires within this time is reported. Automatic renewal usually happens
/// about a month before the end, so it has failed by then.
pub(crate) const CERTIFICATE_SOON: Duration = Duration::from_secs(14 * DAY);
const DAY: u64 = 24 * 3600;

/// The code of the finding for a connection that failed.
pub(super) fn code(fault: &tls::Fault) -> &'static str {
    match fault.kind {
        FaultKind::Expired | FaultKind::NotYetValid => "certificate-expired",
        FaultKind::UnknownIssuer => "certificate-unknown-ca",
        FaultKind::WrongName => "certificate-name",
        FaultKind::Refused => "certificate-refused",
        FaultKind::NotTls => "plain-on-tls",
        FaultKind::NotPlain => "tls-on-plain",
        _ => "tls",
    }
}

pub(super) fn diagnose(found: &mut Findings, case: &Case<'_>) {
    let (sentinels, nodes) = (case.sentinels.iter(), case.nodes.iter());
    let sentinels =
        sentinels.map(|it| (&it.addr, &it.certificate, it.answer.is_ok(), "service.sentinel_tls"));
    let nodes = nodes.map(|it| (&it.addr, &it.certificate, it.answer.is_ok(), "service.redis_tls"));
    for (at, certificate, answered, section) in sentinels.chain(nodes) {
        let Some(certificate) = certificate else { continue };
        if answered {
            expiry(found, case, &at.to_string(), "its certificate", certificate);
        } else if certificate.self_signed {
            // It was read without verification, to find the cause of the fault.
            let what = format!("its certificate is self-signed: {}", subject(certificate));
            let remedy = format!(
                "[{section}] write this certificate into ca_file, or issue certificates by a CA of \
                 your own, so that they can be renewed one by one"
            );
            found.add(Note, "certificate-self-signed", at, what, remedy);
        }
    }
    // The same files may be configured for both.
    let own: BTreeMap<_, _> = case.own_certificates.iter().map(|it| (&it.1.file, it)).collect();
    for (file, (section, certificate)) in own {
        let at = format!("{} ({section}.certificate_file)", file.display());
        expiry(found, case, &at, "our client certificate", certificate);
    }
}

fn expiry(found: &mut Findings, case: &Case<'_>, at: &str, what: &str, facts: &CertificateFacts) {
    let Some(now) = case.context.now else { return };
    let remedy = "renew it; new contents of its files are used without a restart here, and by Redis \
                  with CONFIG SET tls-cert-file";
    let (name, left) = (subject(facts), facts.not_after.saturating_sub(now));
    if left.is_zero() {
        let what = format!("{what} has expired: {name}");
        found.add(Fault, "certificate-expired", at, what, remedy);
    } else if left < CERTIFICATE_SOON {
        let what = format!("{what} expires in {}: {name}", days(left));
        found.add(Warning, "certificate-expires", at, what, remedy);
    }
}

/// A time in days, or in hours if it is shorter than one.
pub(crate) fn days(span: Duration) -> String {
    match span.as_secs() / DAY {
        0 => format!("{} hours", span.as_secs() / 3600),
        days => format!("{days} days"),
    }
}

/// The names of a certificate, or its subject. Bounded, because the server chose them.
pub(crate) fn subject(certificate: &CertificateFacts) -> String {
    const MAX_NAMES: usize = 4;
    const MAX_LENGTH: usize = 200;
    let text = match certificate.names.as_slice() {
        [] => certificate.subject.to_string(),
        names => join(names.iter().take(MAX_NAMES)),
    };
    let bounded = |text: &str| text.chars().take(MAX_LENGTH).collect::<String>();
    format!("{}, issued by {}", bounded(&text), bounded(&certificate.issuer))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;
    use crate::{Context, Finding, Observed, diagnose};

    fn certificate(not_after: Duration) -> CertificateFacts {
        CertificateFacts {
            file: PathBuf::from("/tls/client.crt"),
            subject: "CN=client".into(),
            issuer: "CN=ca".into(),
            names: Vec::new(),
            not_before: Duration::ZERO,
            not_after,
            self_signed: false,
            warnings: Vec::new(),
        }
    }

    fn found(not_after: Duration, now: Option<Duration>) -> Vec<Finding> {
        let own = certificate(not_after);
        let observed = Observed {
            name: Arc::from("m"),
            sentinels: Vec::new(),
            nodes: Vec::new(),
            own_certificates: vec![
                ("service.redis_tls", own.clone()),
                ("service.sentinel_tls", own),
            ],
        };
        let mut all = diagnose(&observed, &Context { now, ..Context::default() });
        all.retain(|it| it.code.starts_with("certificate"));
        all
    }

    #[test]
    fn reports_own_certificate_once_before_and_after_its_end() {
        let now = Duration::from_secs(1_000 * DAY);
        assert_eq!(found(now + CERTIFICATE_SOON, Some(now)), []);
        assert_eq!(found(Duration::ZERO, None), [], "without a clock nothing is known");
        let soon = found(now + Duration::from_secs(3 * DAY), Some(now));
        assert_eq!(soon.len(), 1, "{soon:?}");
        assert_eq!((soon[0].severity, soon[0].code), (Warning, "certificate-expires"));
        assert!(soon[0].what.contains("expires in 3 days: CN=client"), "{soon:?}");
        assert!(soon[0].about.starts_with("/tls/client.crt"), "{soon:?}");
        let gone = found(now, Some(now));
        assert_eq!((gone[0].severity, gone[0].code), (Fault, "certificate-expired"));
    }
}
