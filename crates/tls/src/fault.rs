//! Why a connection to a server over TLS failed, in words for operators.
//!
//! The texts of the library do not say what to do, and name neither the setting nor the file that
//! is wrong. Names out of certificates are the server's input: they are bounded and printable.

use std::fmt::Write as _;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error};

use crate::outside_text::OutsideText;

/// Maximum number of names of a certificate that are listed, and of their length.
const MAX_NAMES: usize = 8;
const MAX_NAME: usize = 80;

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// The peer does not speak TLS.
    NotTls,
    /// The peer speaks TLS, and the connection is plain.
    NotPlain,
    /// The certificate has expired.
    Expired,
    /// The certificate is not valid yet.
    NotYetValid,
    /// The certificate leads to no known authority.
    UnknownIssuer,
    /// The certificate is for other names.
    WrongName,
    /// The certificate cannot be used for another reason.
    Unusable,
    /// The server refused our certificate, or demands one.
    Refused,
    /// There is no common version or cipher.
    NoCommonProtocol,
    /// There was no handshake in time.
    TimedOut,
    /// The server closed the connection in the handshake without a reason.
    Closed,
    /// The server sent something that is not allowed, or bytes were changed on their way.
    Broken,
    /// This process could not do its part.
    Internal,
}

impl FaultKind {
    /// The number of kinds.
    pub const COUNT: usize = Self::Internal as usize + 1;

    /// The word for machines: the same one in metrics of discovery and of sessions, in the status
    /// and in logs. It does not change between releases.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::NotPlain => "not_plain",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::UnknownIssuer => "unknown_issuer",
            Self::WrongName => "wrong_name",
            Self::Unusable => "unusable",
            Self::Refused => "refused",
            Self::NoCommonProtocol => "no_common_protocol",
            Self::TimedOut => "timed_out",
            Self::Closed => "closed",
            Self::Broken => "broken",
            Self::Internal => "internal",
        }
    }

    /// Whether it is about the server's certificate, which can then be read without verification.
    #[must_use]
    pub const fn is_about_certificate(self) -> bool {
        matches!(
            self,
            Self::Expired
                | Self::NotYetValid
                | Self::UnknownIssuer
                | Self::WrongName
                | Self::Unusable
        )
    }
}

/// Why there is no TLS session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {remedy}")]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// What is wrong.
    pub what: String,
    /// What to do about it. Keys are named without their section.
    pub remedy: &'static str,
}

impl Fault {
    fn new(kind: FaultKind, what: impl Into<String>, remedy: &'static str) -> Self {
        Self { kind, what: what.into(), remedy }
    }

    /// The server answered with something else than TLS.
    #[must_use]
    pub fn not_tls() -> Self {
        Self::new(
            FaultKind::NotTls,
            "it answers in plain text: this port does not speak TLS",
            "use the port that the server sets by tls-port, or set enabled = false",
        )
    }

    /// The server answered a plain connection with TLS.
    #[must_use]
    pub fn not_plain() -> Self {
        Self::new(
            FaultKind::NotPlain,
            "it answers with TLS: this port does not speak plain text",
            "set enabled = true, with the CA of the server as ca_file",
        )
    }

    /// The server did not complete the handshake in time.
    #[must_use]
    pub fn timed_out() -> Self {
        Self::new(
            FaultKind::TimedOut,
            "it does not complete the TLS handshake in time: its host or this one is busy, or it is \
             a plain port, which waits for the end of a command",
            "check the load of both hosts, and that the port is the one that the server sets by \
             tls-port",
        )
    }

    /// The server ended the connection in the handshake without a reason.
    #[must_use]
    pub fn closed() -> Self {
        Self::new(
            FaultKind::Closed,
            "it closes the connection in the TLS handshake",
            "look into the log of the server; a plain port may do this, too",
        )
    }

    /// The fault that this error of the library stands for.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(error) => of_certificate(error),
            Error::AlertReceived(alert) => of_alert(*alert),
            Error::NoApplicationProtocol => of_alert(AlertDescription::ProtocolVersion),
            Error::FailedToGetCurrentTime
            | Error::FailedToGetRandomBytes
            | Error::EncryptError
            | Error::General(_)
            | Error::Other(_) => Self::new(
                FaultKind::Internal,
                format!("TLS failed in this process: {error}"),
                "report this error",
            ),
            Error::PeerIncompatible(why) => Self::new(
                FaultKind::NoCommonProtocol,
                format!("there is no common version or cipher: {why:?}"),
                "widen min_version, max_version or ciphers here, or tls-protocols there",
            ),
            error => Self::new(
                FaultKind::Broken,
                format!("the TLS session failed: {error}"),
                "check that the port is one of Redis or Sentinel with tls-port",
            ),
        }
    }
}

fn of_certificate(error: &CertificateError) -> Fault {
    let kind = |kind, what: String, remedy| Fault::new(kind, what, remedy);
    match error {
        CertificateError::ExpiredContext { time, not_after } => kind(
            FaultKind::Expired,
            format!("its certificate expired {} ago", between(*not_after, *time)),
            "renew the certificate of the server, and check the clocks",
        ),
        CertificateError::Expired => kind(
            FaultKind::Expired,
            "its certificate has expired".to_owned(),
            "renew the certificate of the server, and check the clocks",
        ),
        CertificateError::NotValidYetContext { time, not_before } => kind(
            FaultKind::NotYetValid,
            format!("its certificate becomes valid in {}", between(*time, *not_before)),
            "check the clocks of this machine and of the authority",
        ),
        CertificateError::NotValidYet => kind(
            FaultKind::NotYetValid,
            "its certificate is not valid yet".to_owned(),
            "check the clocks of this machine and of the authority",
        ),
        CertificateError::NotValidForNameContext { expected, presented } => kind(
            FaultKind::WrongName,
            format!(
                "its certificate is not for {}, only for {}",
                expected.to_str(),
                list_names(presented)
            ),
            "set server_name to one of these names, or verify = \"chain\" to ignore names, or issue \
             the certificate for the name or address that is dialled",
        ),
        CertificateError::NotValidForName => kind(
            FaultKind::WrongName,
            "its certificate is for other names".to_owned(),
            "set server_name, or verify = \"chain\" to ignore names",
        ),
        CertificateError::UnknownIssuer => kind(
            FaultKind::UnknownIssuer,
            "its certificate is not issued by a CA in ca_file".to_owned(),
            "add the CA that issued it to ca_file; a self-signed certificate is its own CA",
        ),
        // What a CA with a new key and the old name looks like.
        CertificateError::BadSignature => kind(
            FaultKind::UnknownIssuer,
            "its certificate is not issued by a CA in ca_file, but by another one of the same name"
                .to_owned(),
            "add the CA that issued it to ca_file: a renewed CA has a new key",
        ),
        error => kind(
            FaultKind::Unusable,
            format!("its certificate cannot be used: {error}"),
            "issue a certificate of version 3 for servers; one that is a CA itself is no server's",
        ),
    }
}

fn of_alert(alert: AlertDescription) -> Fault {
    use AlertDescription as Alert;
    let refused = |what, remedy| Fault::new(FaultKind::Refused, what, remedy);
    match alert {
        Alert::CertificateRequired | Alert::NoCertificate => refused(
            "it demands a client certificate (tls-auth-clients)",
            "set certificate_file and key_file",
        ),
        Alert::CertificateExpired => refused(
            "it finds our client certificate expired",
            "renew the certificate in certificate_file, and check the clock of the server",
        ),
        Alert::UnknownCA
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateUnknown
        | Alert::AccessDenied
        | Alert::DecryptError => refused(
            "it refuses our client certificate",
            "issue certificate_file by a CA that the server trusts (tls-ca-cert-file there)",
        ),
        Alert::HandshakeFailure => Fault::new(
            FaultKind::NoCommonProtocol,
            "it refuses the handshake: no common cipher, or it demands a client certificate",
            "set certificate_file and key_file, or compare ciphers with tls-ciphers there",
        ),
        Alert::ProtocolVersion | Alert::InsufficientSecurity => Fault::new(
            FaultKind::NoCommonProtocol,
            "it refuses our versions of TLS",
            "compare min_version and max_version with tls-protocols there",
        ),
        Alert::UnrecognisedName => Fault::new(
            FaultKind::WrongName,
            "it does not know the name that it is asked for",
            "set server_name to a name that it knows",
        ),
        other => Fault::new(
            FaultKind::Broken,
            format!("it ended the TLS session with the alert {other:?}"),
            "look into the log of the server",
        ),
    }
}

/// A span in the largest whole unit. Coarse: the text of a fault that lasts must not change with
/// each attempt, because a new text is logged.
fn between(from: UnixTime, until: UnixTime) -> String {
    let seconds = until.as_secs().saturating_sub(from.as_secs());
    match (seconds / 86_400, seconds / 3600) {
        (days @ 2.., _) => format!("{days} days"),
        (_, hours @ 2..) => format!("{hours} hours"),
        _ => "less than 2 hours".to_owned(),
    }
}

/// Names as the library presents them, such as `DnsName("redis.example")`.
pub(crate) fn list_names(presented: &[String]) -> String {
    if presented.is_empty() {
        return "nothing (it has no subjectAltName)".to_owned();
    }
    let mut list = String::new();
    for (at, name) in presented.iter().take(MAX_NAMES).enumerate() {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        let inner = inner.unwrap_or(name).trim_matches('"');
        list.push_str(if at == 0 { "" } else { ", " });
        list.push_str(&OutsideText::of_bytes(inner.as_bytes(), MAX_NAME));
    }
    if presented.len() > MAX_NAMES {
        let _ = write!(list, " and {} more", presented.len() - MAX_NAMES);
    }
    list
}
