//! TLS sessions with targets: why one failed, with what to do about it, the counters, and the
//! bounded log.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tls::rustls::Error;
use tls::{Fault, FaultKind};

use crate::counter::{Counter, Counters, counted};
use crate::log_rate::LogRate;

macro_rules! failures {
    ($($(#[$doc:meta])* $name:ident, $remedy:literal;)+) => {
        /// Why a TLS session with a target failed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum TargetTlsFailure {
            $($(#[$doc])* $name,)+
        }

        impl TargetTlsFailure {
            /// Every kind, in numerical order.
            pub const ALL: &[Self] = &[$(Self::$name,)+];
            /// The number of kinds.
            pub const COUNT: usize = Self::ALL.len();

            /// The kind of the fault, which has the same name in every part of the program.
            const fn kind(self) -> FaultKind {
                match self {
                    $(Self::$name => FaultKind::$name,)+
                }
            }

            /// What an operator can do about it.
            const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $remedy,)+
                }
            }
        }
    };
}

failures! {
    /// The handshake was not complete within `connect_timeout`.
    TimedOut,
        "check that the node speaks TLS on this port (tls-port) and is not overloaded";
    /// The target closed the connection during the handshake, or it broke.
    Closed,
        "see the log of the node: it may have too many clients";
    /// The target sent something that is not TLS.
    NotTls,
        "use the node's tls-port (replicas need tls-replication yes), or switch TLS off here";
    /// There is no version, cipher, signature or key exchange that both sides support.
    NoCommonProtocol,
        "compare min_version, max_version and ciphers with tls-protocols and tls-ciphers";
    /// The certificate of the target is for other names.
    WrongName,
        "issue the certificate for this name, set server_name, or set verify = \"chain\"";
    /// The certificate of the target leads to no trusted authority.
    UnknownIssuer,
        "set ca_file to the authority that issued the certificate of the node";
    /// The certificate of the target, or one of its issuers, has expired.
    Expired,
        "renew the certificate of the node, or correct the clock of this host";
    /// The certificate of the target, or one of its issuers, is not valid yet.
    NotYetValid,
        "correct the clock of this host, or that of the authority";
    /// The certificate of the target is wrong in another way.
    Unusable,
        "replace the certificate of the node";
    /// The target refused, often because it wants a certificate of this side, or another one.
    Refused,
        "set certificate_file and key_file to a certificate that the node trusts \
         (tls-auth-clients)";
    /// The target broke the protocol, or the bytes were changed on their way.
    Broken,
        "look for a device or program on the path that changes what it forwards";
    /// This process could not do its part.
    Internal,
        "report this error";
}

impl TargetTlsFailure {
    /// The label in metrics and logs, in snake case. It does not change between releases.
    #[must_use]
    pub const fn label(self) -> &'static str {
        self.kind().as_str()
    }

    /// The kind of an error of the library, as discovery and the doctor classify it.
    pub(crate) fn of(error: &Error) -> Self {
        let kind = Fault::of(error).kind;
        // A plain port for a port with TLS is noticed before the library has anything to say.
        Self::ALL.iter().copied().find(|it| it.kind() == kind).unwrap_or(Self::Broken)
    }

    /// The kind of an error of an established connection; `None` if TLS is not its cause.
    pub(crate) fn of_connection(error: &io::Error) -> Option<Self> {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
        match cause {
            Some(cause) => Some(Self::of(cause)),
            None => (error.kind() == io::ErrorKind::InvalidData).then_some(Self::Broken),
        }
    }
}

counted! {
    /// The counters of one worker.
    pub(crate) struct TargetTlsCounters;

    /// TLS sessions with targets since the start of the process, summed over all workers.
    pub struct TargetTlsSnapshot {
        /// Handshakes completed with a new session.
        full: Counter => u64,
        /// Handshakes completed by resuming an earlier session.
        resumed: Counter => u64,
        /// Failures, by [`TargetTlsFailure`]'s number.
        failures: Counters<{ TargetTlsFailure::COUNT }> => [u64; TargetTlsFailure::COUNT],
    }
}

impl TargetTlsSnapshot {
    /// Failures of this kind.
    #[must_use]
    pub fn failed(&self, failure: TargetTlsFailure) -> u64 {
        self.failures.get(failure as usize).copied().unwrap_or(0)
    }
}

/// A TLS session that failed.
#[derive(Debug)]
pub(crate) struct FailedTls<'a> {
    pub(crate) target: SocketAddr,
    /// How the target was announced.
    pub(crate) announced: &'a str,
    /// The name that is asked for, and that its certificate must have if names are verified.
    pub(crate) expected: &'a str,
    pub(crate) failure: TargetTlsFailure,
}

/// Logs failures of one service, at most one line per kind and interval: every session that
/// connects meets them.
#[derive(Debug, Default)]
pub(crate) struct TargetTlsLog(LogRate<{ TargetTlsFailure::COUNT }>);

impl TargetTlsLog {
    pub(crate) fn record(&self, service: &str, failed: &FailedTls<'_>, error: &str) {
        let &FailedTls { target, announced, expected, failure } = failed;
        let Some(unlogged) = self.0.due(failure as usize, Instant::now()) else { return };
        let (reason, remedy) = (failure.label(), failure.remedy());
        tracing::warn!(
            service, %target, announced, expected, reason, error, remedy, unlogged,
            "TLS session with the target failed"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tls::rustls::{AlertDescription, CertificateError, InvalidMessage};

    use super::*;

    #[test]
    fn numbers_distinct_labels_in_order() {
        let labels: BTreeSet<_> = TargetTlsFailure::ALL.iter().map(|it| it.label()).collect();
        assert_eq!(labels.len(), TargetTlsFailure::COUNT);
        for (number, failure) in TargetTlsFailure::ALL.iter().enumerate() {
            assert_eq!(*failure as usize, number);
        }
    }

    #[test]
    fn names_the_cause_of_an_error() {
        let certificate = |fault| TargetTlsFailure::of(&Error::InvalidCertificate(fault));
        assert_eq!(certificate(CertificateError::NotValidForName), TargetTlsFailure::WrongName);
        assert_eq!(certificate(CertificateError::Expired), TargetTlsFailure::Expired);
        assert_eq!(certificate(CertificateError::NotValidYet), TargetTlsFailure::NotYetValid);
        assert_eq!(certificate(CertificateError::Revoked), TargetTlsFailure::Unusable);
        let alert = |alert| TargetTlsFailure::of(&Error::AlertReceived(alert));
        let wanted = alert(AlertDescription::CertificateRequired);
        assert_eq!(wanted, TargetTlsFailure::Refused);
        let version = alert(AlertDescription::ProtocolVersion);
        assert_eq!(version, TargetTlsFailure::NoCommonProtocol);
        let invalid = Error::InvalidMessage(InvalidMessage::InvalidContentType);
        assert_eq!(TargetTlsFailure::of(&invalid), TargetTlsFailure::Broken);
    }

    #[test]
    fn names_faults_as_discovery_does() {
        let alerts = (0..=255_u8).map(|it| Error::AlertReceived(it.into()));
        let certificates = [
            CertificateError::Expired,
            CertificateError::NotValidYet,
            CertificateError::UnknownIssuer,
            CertificateError::BadSignature,
            CertificateError::NotValidForName,
            CertificateError::Revoked,
        ];
        let others = [Error::DecryptError, Error::EncryptError, Error::NoApplicationProtocol];
        let certificates = certificates.map(Error::InvalidCertificate);
        for error in alerts.chain(certificates).chain(others) {
            let label = TargetTlsFailure::of(&error).label();
            assert_eq!(label, Fault::of(&error).kind.as_str(), "{error}");
        }
    }

    #[test]
    fn tells_tls_faults_from_those_of_sockets() {
        let of = |error: io::Error| TargetTlsFailure::of_connection(&error);
        let library = io::Error::new(io::ErrorKind::InvalidData, Error::DecryptError);
        assert_eq!(of(library), Some(TargetTlsFailure::Broken));
        assert_eq!(of(io::ErrorKind::InvalidData.into()), Some(TargetTlsFailure::Broken));
        assert_eq!(of(io::ErrorKind::ConnectionReset.into()), None);
    }
}
