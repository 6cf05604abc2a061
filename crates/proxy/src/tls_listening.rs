//! How TLS sessions of clients begin: the settings of a listener, how many handshakes may run at
//! once, and why one failed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tls::rustls::Error;
use tls::{FaultKind, ServerTls};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The settings of listeners for TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsListening {
    /// Certificates, versions and ciphers.
    pub settings: ServerTls,
    /// The time from accept to the end of the handshake.
    pub handshake_timeout: Duration,
    /// How many handshakes may run at once.
    pub limit: HandshakeLimit,
}

/// The maximum number of handshakes that run at once in the process: further clients wait, in their
/// order. A handshake runs from the first byte of the client on, since one that sends nothing costs
/// nothing. It bounds the memory of half-open sessions, and how long established sessions wait
/// when all clients reconnect at once. Cheap to clone; all clones are one limit.
#[derive(Clone)]
pub struct HandshakeLimit(Arc<Semaphore>);

impl HandshakeLimit {
    /// At most `most` at once.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Whether a further client would have to wait.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.0.available_permits() == 0
    }

    /// Waits for a turn. `None` never happens, because the limit is never closed.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.0.acquire().await.ok()
    }
}

/// Limits are equal if they are one.
impl PartialEq for HandshakeLimit {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HandshakeLimit {}

impl fmt::Debug for HandshakeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandshakeLimit").field(&self.0.available_permits()).finish()
    }
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TlsFailure {
    /// It was not complete in time.
    Timeout,
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
    pub const ALL: [Self; 8] = [
        Self::Timeout,
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
