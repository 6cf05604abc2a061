//! How TLS sessions of clients begin: the settings of a listener, and why a handshake failed.

use std::time::Duration;

use tls::rustls::Error;
use tls::{FaultKind, ServerTls};

/// The settings of listeners for TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsListening {
    /// Certificates, versions and ciphers.
    pub settings: ServerTls,
    /// The time from accept to the end of the handshake.
    pub handshake_timeout: Duration,
    /// How many handshakes of the service may wait for their clients.
    pub max_waiting: usize,
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TlsFailure {
    /// It was not complete in time.
    Timeout,
    /// Too many handshakes waited for their clients, and this was the oldest of its source.
    Evicted,
    /// The client closed the connection, or it broke.
    Closed,
    /// The client sent something that is not TLS, such as a command.
    NotTls,
    /// There is no version, cipher, signature or key exchange that both sides support.
    NothingInCommon,
    /// The client sent no certificate, or one that is not valid here.
    ClientCertificate,
    /// The client refused: often because it does not trust the certificate of the listener.
    RefusedByClient,
    /// The client broke the protocol.
    Protocol,
    /// The process could not do its part.
    Internal,
}

impl TlsFailure {
    /// Every kind, in numerical order.
    pub const ALL: [Self; 9] = [
        Self::Timeout,
        Self::Evicted,
        Self::Closed,
        Self::NotTls,
        Self::NothingInCommon,
        Self::ClientCertificate,
        Self::RefusedByClient,
        Self::Protocol,
        Self::Internal,
    ];

    /// The label in metrics and logs, in snake case: the word for the same fault of a connection to
    /// a server, if there is one. It does not change between releases.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Timeout => FaultKind::TimedOut.as_str(),
            Self::Evicted => "evicted",
            Self::Closed => FaultKind::Closed.as_str(),
            Self::NotTls => FaultKind::NotTls.as_str(),
            Self::NothingInCommon => FaultKind::NoCommonProtocol.as_str(),
            Self::ClientCertificate => "client_certificate",
            Self::RefusedByClient => "refused_by_client",
            Self::Protocol => FaultKind::Broken.as_str(),
            Self::Internal => FaultKind::Internal.as_str(),
        }
    }

    /// The kind of an error of the library.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::NothingInCommon,
            Error::NoCertificatesPresented | Error::InvalidCertificate(_) => {
                Self::ClientCertificate
            }
            Error::AlertReceived(_) => Self::RefusedByClient,
            Error::FailedToGetCurrentTime
            | Error::FailedToGetRandomBytes
            | Error::EncryptError
            | Error::General(_)
            | Error::Other(_) => Self::Internal,
            _ => Self::Protocol,
        }
    }
}
