//! The certificates in use, in the status document.

use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;

use crate::admin::certificates::ServedCertificate;

/// A certificate in use.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CertificateStatus {
    /// The name of its service; empty for the admin server.
    pub service: String,
    /// The peers that it is shown to: `clients` of a service, those of the server `admin`, or the
    /// servers of a service, which are of `redis` or of `sentinel`.
    pub side: &'static str,
    /// The file that it was read from.
    pub file: String,
    /// Its subject.
    pub subject: String,
    /// The subject of the authority that issued it.
    pub issuer: String,
    /// The host names and addresses that it is valid for.
    pub names: Vec<String>,
    /// The end of its validity, in seconds since 1970. The earliest of its chain.
    pub not_after: u64,
    /// Seconds until then; negative if it has expired.
    pub expires_in_s: i64,
    /// Whether it was issued by its own subject.
    pub self_signed: bool,
    /// Seconds until it is valid. Not in the document.
    #[serde(skip)]
    pub valid_in_s: u32,
}

impl CertificateStatus {
    /// What the status document says of a certificate.
    pub(crate) fn of(certificate: &ServedCertificate) -> Self {
        let facts = &certificate.facts;
        // Validity is a matter of the calendar, so the system's clock decides.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        let not_after = facts.not_after.as_secs();
        Self {
            service: certificate.service.clone(),
            side: certificate.side,
            file: certificate.file(),
            subject: facts.subject.to_string(),
            issuer: facts.issuer.to_string(),
            names: facts.names.iter().map(ToString::to_string).collect(),
            not_after,
            expires_in_s: i64::try_from(not_after).unwrap_or(i64::MAX).saturating_sub_unsigned(now),
            self_signed: facts.self_signed,
            valid_in_s: u32::try_from(facts.not_before.as_secs().saturating_sub(now))
                .unwrap_or(u32::MAX),
        }
    }
}
