//! How TLS sessions of clients begin: the settings of a listener, and why a handshake failed.

use std::time::Duration;

use tls::rustls::Error;
use tls::{FaultKind, ServerTls};

use crate::labelled::labelled;

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

labelled! {
    /// Why a handshake failed. The label is the word for the same fault of a connection to a
    /// server, if there is one.
    pub enum TlsFailure {
        /// It was not complete in time.
        Timeout = FaultKind::TimedOut.as_str(),
        /// Too many handshakes waited for their clients, and this was the oldest of its source.
        Evicted = "evicted",
        /// The client closed the connection, or it broke.
        Closed = FaultKind::Closed.as_str(),
        /// The client sent something that is not TLS, such as a command.
        NotTls = FaultKind::NotTls.as_str(),
        /// There is no version, cipher, signature or key exchange that both sides support.
        NothingInCommon = FaultKind::NoCommonProtocol.as_str(),
        /// The client sent no certificate, or one that is not valid here.
        ClientCertificate = "client_certificate",
        /// The client refused: often because it does not trust the certificate of the listener.
        RefusedByClient = "refused_by_client",
        /// The client broke the protocol.
        Protocol = FaultKind::Broken.as_str(),
        /// The process could not do its part.
        Internal = FaultKind::Internal.as_str(),
    }
}

impl TlsFailure {
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
