//! Findings about TLS: certificates that expire or cannot be verified, and ports that speak plain
//! text where TLS is configured, or the other way round. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tls::{CertificateFacts, Fault, FaultKind};

use sentinel::NodeAddr;

use super::{Context, Findings, Severity};
use crate::observed::Observed;

/// A certificate that expires within this time is reported. Automatic renewal usually happens
/// about a month before the end, so it has failed by then.
pub(crate) const CERTIFICATE_SOON: Duration = Duration::from_secs(14 * DAY);
const DAY: u64 = 24 * 3600;

/// The finding for a connection that failed. `section` has the keys that the remedy names.
pub(super) fn fault(
    findings: &mut Findings,
    at: &NodeAddr,
    fault: &Fault,
    section: &str,
    severity: Severity,
) {
    let code = match fault.kind {
        FaultKind::Expired | FaultKind::NotYetValid => "certificate-expired",
        FaultKind::UnknownIssuer => "certificate-unknown-ca",
        FaultKind::WrongName => "certificate-name",
        FaultKind::Refused => "certificate-refused",
        FaultKind::NotTls => "plain-on-tls",
        FaultKind::NotPlain => "tls-on-plain",
        FaultKind::Unusable
        | FaultKind::NoCommonProtocol
        | FaultKind::TimedOut
        | FaultKind::Closed
        | FaultKind::Broken
        | FaultKind::Internal => "tls",
    };
    findings.add((severity, code), at, fault.what.clone(), format!("[{section}] {}", fault.remedy));
}

pub(super) fn diagnose(findings: &mut Findings, observed: &Observed, context: &Context) {
    let sentinels = observed.sentinels.iter().map(|it| {
        (it.addr.to_string(), it.certificate.as_ref(), it.answer.is_ok(), "service.sentinel_tls")
    });
    let nodes = observed.nodes.iter().map(|it| {
        (it.addr.to_string(), it.certificate.as_ref(), it.answer.is_ok(), "service.redis_tls")
    });
    for (at, certificate, answered, section) in sentinels.chain(nodes) {
        let Some(certificate) = certificate else { continue };
        if answered {
            expiry(findings, &at, "its certificate", certificate, context);
        } else {
            unverified(findings, &at, certificate, section);
        }
    }
    // The same files may be configured for both.
    let own: BTreeMap<_, _> = observed
        .own_certificates
        .iter()
        .map(|(section, it)| (it.file.clone(), (*section, it)))
        .collect();
    for (file, (section, certificate)) in own {
        let at = format!("{} ({section}.certificate_file)", file.display());
        expiry(findings, &at, "our client certificate", certificate, context);
    }
}

/// Describes a certificate that was read without verification, to find the cause of the fault.
fn unverified(findings: &mut Findings, at: &str, certificate: &CertificateFacts, section: &str) {
    if !certificate.self_signed {
        return;
    }
    findings.add(
        (Severity::Note, "certificate-self-signed"),
        at,
        format!("its certificate is self-signed: {}", subject(certificate)),
        format!(
            "[{section}] write this certificate into ca_file, or issue certificates by a CA of your \
             own, so that they can be renewed one by one"
        ),
    );
}

fn expiry(
    findings: &mut Findings,
    at: &str,
    what: &str,
    certificate: &CertificateFacts,
    context: &Context,
) {
    let Some(now) = context.now else { return };
    let remedy = "renew it; new contents of its files are used without a restart here, and by Redis \
                  with CONFIG SET tls-cert-file";
    let left = certificate.not_after.saturating_sub(now);
    let name = subject(certificate);
    if left.is_zero() {
        let what = format!("{what} has expired: {name}");
        findings.add((Severity::Fault, "certificate-expired"), at, what, remedy);
    } else if left < CERTIFICATE_SOON {
        let what = format!("{what} expires in {}: {name}", days(left));
        findings.add((Severity::Warning, "certificate-expires"), at, what, remedy);
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
        names => names.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", "),
    };
    let bounded = |text: &str| text.chars().take(MAX_LENGTH).collect::<String>();
    format!("{}, issued by {}", bounded(&text), bounded(&certificate.issuer))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;
    use crate::Finding;
    use crate::diagnose;

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

    fn findings(not_after: Duration, now: Option<Duration>) -> Vec<Finding> {
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
        assert_eq!(findings(now + CERTIFICATE_SOON, Some(now)), []);
        assert_eq!(findings(Duration::ZERO, None), [], "without a clock nothing is known");
        let soon = findings(now + Duration::from_secs(3 * DAY), Some(now));
        assert_eq!(soon.len(), 1, "{soon:?}");
        assert_eq!((soon[0].severity, soon[0].code), (Severity::Warning, "certificate-expires"));
        assert!(soon[0].what.contains("expires in 3 days: CN=client"), "{soon:?}");
        assert!(soon[0].about.starts_with("/tls/client.crt"), "{soon:?}");
        let gone = findings(now, Some(now));
        assert_eq!((gone[0].severity, gone[0].code), (Severity::Fault, "certificate-expired"));
    }
}
