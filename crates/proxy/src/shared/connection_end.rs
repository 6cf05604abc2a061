//! Why a shared connection ends, and what that means to the sessions with requests on it.

use std::io;

use crate::shared::upstream_ledger::Desync;

use crate::end_reason::EndReason;

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum ConnectionEnd {
    /// The target closed it.
    Closed,
    /// It failed.
    Failed(io::Error),
    /// The two ends disagree about what was asked.
    Desync(Desync),
}

impl ConnectionEnd {
    /// The error that members with requests in flight see.
    pub(crate) fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Closed => io::ErrorKind::ConnectionReset,
            Self::Failed(error) => error.kind(),
            Self::Desync(_) => io::ErrorKind::InvalidData,
        }
    }

    /// Why members with requests in flight end, if neither the target nor its network is the cause.
    pub(super) fn cause(&self) -> Option<EndReason> {
        match self {
            Self::Desync(_) => Some(EndReason::SharedDesync),
            Self::Failed(error) if error.kind() == io::ErrorKind::Unsupported => {
                Some(EndReason::NotConfirmed)
            }
            Self::Closed | Self::Failed(_) => None,
        }
    }
}
