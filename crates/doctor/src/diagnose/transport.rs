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
/// How many names of a certificate a finding shows.
pub(crate) const FEW_NAMES: usize = 4;
/// The remedy for a certificate of a server or of this client.
const RENEWAL: &str = "renew it; new contents of its files are used without a restart here, and by \
                       Redis with CONFIG SET tls-cert-file";

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
    let now = case.context.now;
    let (sentinels, nodes) = (case.sentinels.iter(), case.nodes.iter());
    let sentinels =
        sentinels.map(|it| (&it.addr, &it.certificate, it.answer.is_ok(), "service.sentinel_tls"));
    let nodes = nodes.map(|it| (&it.addr, &it.certificate, it.answer.is_ok(), "service.redis_tls"));
    for (at, certificate, answered, section) in sentinels.chain(nodes) {
        let Some(certificate) = certificate else { continue };
        if answered {
            validity(found, now, &at.to_string(), "its certificate", certificate, RENEWAL);
        } else if certificate.self_signed {
            // It was read without verification, to find the cause of the fault.
            let what =
                format!("its certificate is self-signed: {}", subject(certificate, FEW_NAMES));
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
        validity(found, now, &at, "our client certificate", certificate, RENEWAL);
    }
}

/// Reports a certificate that is not valid now, or soon no more; `it` names it in a sentence.
pub(crate) fn validity(
    found: &mut Findings,
    now: Option<Duration>,
    at: &str,
    it: &str,
    facts: &CertificateFacts,
    renewal: &str,
) {
    let Some(now) = now else { return };
    let (name, left) = (subject(facts, FEW_NAMES), facts.not_after.saturating_sub(now));
    if left.is_zero() {
        found.add(Fault, "certificate-expired", at, format!("{it} has expired: {name}"), renewal);
    } else if facts.not_before > now {
        let begins = days(facts.not_before.saturating_sub(now));
        let what = format!("{it} is not valid yet, but in {begins}: {name}");
        let remedy = "check the clock of this host, and that of the host that issued it";
        found.add_with(Fault, "certificate-expired", at, what, remedy, &["date -u".to_owned()]);
    } else if left < CERTIFICATE_SOON {
        let what = format!("{it} expires in {}: {name}", days(left));
        found.add(Warning, "certificate-expires", at, what, renewal);
    }
}

/// A time in days, or in hours if it is shorter than one.
pub(crate) fn days(span: Duration) -> String {
    match span.as_secs() / DAY {
        0 => format!("{} hours", span.as_secs() / 3600),
        days => format!("{days} days"),
    }
}

/// The first names of a certificate, or its subject. Bounded, because a server chose them.
pub(crate) fn subject(certificate: &CertificateFacts, most: usize) -> String {
    let mut text = match certificate.names.as_slice() {
        [] => certificate.subject.to_string(),
        names => join(names.iter().take(most)),
    };
    let more = certificate.names.len().saturating_sub(most);
    if more > 0 {
        text = format!("{text} and {more} more");
    }
    let bounded = |text: &str| text.chars().take(50 * most).collect::<String>();
    format!("{}; issued by {}", bounded(&text), bounded(&certificate.issuer))
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
