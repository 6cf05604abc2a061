//! End reasons: why a session ended, as one word for its counter and its log line.
//!
//! Every session ends with exactly one of these, whatever else was under way. They are an enum, so
//! the number of time series is bounded and a new reason is added only here.

use std::io::ErrorKind;

use drain::Exit;

use crate::labelled::labelled;

/// One of the two connections of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The client's connection.
    Client,
    /// The connection to the target.
    Upstream,
}

labelled! {
    /// Why a session ended.
    pub enum EndReason {
        /// The client closed the connection, and had received everything that it was owed.
        ClientClosed = "client_closed",
        /// The target closed the connection.
        UpstreamClosed = "upstream_closed",
        /// The client's connection was reset (RST, or a write into a closed connection).
        ClientReset = "client_reset",
        /// The connection to the target was reset.
        UpstreamReset = "upstream_reset",
        /// The client stopped responding (keepalive, or bytes that were never acknowledged).
        ClientLost = "client_lost",
        /// The target stopped responding at the TCP level.
        UpstreamLost = "upstream_lost",
        /// Another error on the client's connection.
        ClientError = "client_error",
        /// Another error on the connection to the target.
        UpstreamError = "upstream_error",
        /// One direction was closed, and the other one was not closed in time.
        HalfCloseTimeout = "half_close_timeout",
        /// The client sent nothing for too long.
        IdleTimeout = "idle_timeout",
        /// The client sent no complete request after it connected.
        FirstByteTimeout = "first_byte_timeout",
        /// The TLS handshake with the client failed, or was not complete in time.
        TlsHandshakeFailed = "tls_handshake_failed",
        /// The target was fenced: it is no longer the master.
        Fenced = "fenced",
        /// The new target is not known to have the data of the old one: neither the session nor its
        /// password is for it.
        HistoryBroken = "history_broken",
        /// The target replied after another node was promoted: the reply would have acknowledged a
        /// write that is lost.
        ReplyDropped = "reply_dropped",
        /// The replica was ejected from the pool, the session could not be carried to another one,
        /// and it was at a command boundary.
        ReplicaEjected = "replica_ejected",
        /// The target stopped answering, and the session could not be carried: the reply that it
        /// waited for may never come.
        TargetUnresponsive = "target_unresponsive",
        /// No replica may be used, and the master does not serve reads in their place.
        NoReplica = "no_replica",
        /// The new target does not accept the session's state, which the old one had accepted.
        CarryRefused = "carry_refused",
        /// State of the former target that the session relied on is lost. It was carried and then
        /// sent `WAIT`, for which any answer would be wrong; or it called scripts in a transaction
        /// that only its former target had, and would do so again.
        StateLost = "state_lost",
        /// There was no target for `hold_timeout`.
        HoldTimeout = "hold_timeout",
        /// The client disconnected while it was held or while its connection was being opened.
        HoldAbandoned = "hold_abandoned",
        /// No connection to the target could be opened in time.
        DialFailed = "dial_failed",
        /// No TLS session with the target could be opened in time, or an established one broke the
        /// protocol.
        TargetTlsFailed = "target_tls_failed",
        /// A connection that it shared received what cannot be the reply to its oldest request,
        /// while a request of this session was in flight on it.
        SharedDesync = "shared_desync",
        /// Its client did not read, and too much of the replies on a shared connection waited for
        /// it.
        SlowReader = "slow_reader",
        /// It wrote with [durability](crate::Durability), and the write was not confirmed in time,
        /// or cannot be: its requests cannot be followed, or too many bytes were held.
        NotConfirmed = "not_confirmed",
        /// This process or host had no file descriptors, memory or local ports left for the
        /// connection to the target.
        ResourcesExhausted = "resources_exhausted",
        /// The drain closed it at a command boundary.
        Drained = "drained",
        /// The deadline of the drain, or a fast stop, cut it off.
        Cut = "cut",
        /// An operator ended it with `pointsman kill`.
        Killed = "killed",
        /// An invariant of this program was violated: to continue might have lost or changed bytes.
        /// Never in normal operation; the log names the invariant.
        InternalError = "internal_error",
        /// Its task ended without a reason: a panic, or the end of the process. Never in normal
        /// operation.
        Aborted = "aborted",
    }
}

impl EndReason {
    /// The kind of exit that the drain counts.
    #[must_use]
    pub const fn exit(self) -> Exit {
        match self {
            Self::Drained => Exit::Asked,
            Self::Cut => Exit::Cut,
            _ => Exit::Left,
        }
    }

    /// Whether the session ended other than its client or an operator wanted: by a fault of the
    /// target or of the path to it, by a master change for which it could not be carried, or by a
    /// limit of this proxy.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        !matches!(
            self,
            Self::ClientClosed
                | Self::UpstreamClosed
                | Self::ClientReset
                | Self::ClientLost
                | Self::HoldAbandoned
                | Self::IdleTimeout
                | Self::FirstByteTimeout
                | Self::TlsHandshakeFailed
                | Self::ReplicaEjected
                | Self::Drained
                | Self::Killed
        )
    }

    /// Whether the session lost its connection to a target that may still be one.
    pub(crate) const fn is_loss(self) -> bool {
        matches!(
            self,
            Self::UpstreamClosed
                | Self::UpstreamReset
                | Self::UpstreamLost
                | Self::UpstreamError
                | Self::TargetTlsFailed
        )
    }

    /// Whether the client can still receive anything after a session ended for this reason, and
    /// there is time to send it.
    #[must_use]
    pub(crate) const fn reaches_client(self) -> bool {
        !matches!(
            self,
            Self::ClientClosed
                | Self::ClientReset
                | Self::ClientLost
                | Self::ClientError
                | Self::HoldAbandoned
                | Self::HalfCloseTimeout
                | Self::SlowReader
                | Self::Cut
                | Self::InternalError
                | Self::Aborted
        )
    }

    /// The reason for an error while reading from or writing to `side`.
    #[must_use]
    pub const fn from_error(side: Side, kind: ErrorKind) -> Self {
        let (reset, lost, other) = match side {
            Side::Client => (Self::ClientReset, Self::ClientLost, Self::ClientError),
            Side::Upstream => (Self::UpstreamReset, Self::UpstreamLost, Self::UpstreamError),
        };
        match kind {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                reset
            }
            ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                lost
            }
            // Only a TLS session rejects what it receives.
            ErrorKind::InvalidData if matches!(side, Side::Upstream) => Self::TargetTlsFailed,
            // Only a connection whose writes are confirmed is given up.
            ErrorKind::Unsupported if matches!(side, Side::Upstream) => Self::NotConfirmed,
            _ => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn has_distinct_labels_in_snake_case() {
        let labels: BTreeSet<&str> = EndReason::ALL.iter().map(|reason| reason.label()).collect();
        assert_eq!(labels.len(), EndReason::ALL.len());
        assert!(
            labels
                .iter()
                .all(|label| label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        );
        for (number, reason) in EndReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, number);
        }
    }

    #[test]
    fn names_the_side_of_an_error() {
        assert_eq!(
            EndReason::from_error(Side::Client, ErrorKind::ConnectionReset),
            EndReason::ClientReset
        );
        assert_eq!(
            EndReason::from_error(Side::Upstream, ErrorKind::BrokenPipe),
            EndReason::UpstreamReset
        );
        assert_eq!(
            EndReason::from_error(Side::Upstream, ErrorKind::TimedOut),
            EndReason::UpstreamLost
        );
        assert_eq!(
            EndReason::from_error(Side::Upstream, ErrorKind::InvalidData),
            EndReason::TargetTlsFailed
        );
        assert_eq!(
            EndReason::from_error(Side::Client, ErrorKind::OutOfMemory),
            EndReason::ClientError
        );
    }

    #[test]
    fn counts_in_the_drain_only_what_it_ended() {
        for reason in EndReason::ALL {
            let expected = match reason.label() {
                "drained" => Exit::Asked,
                "cut" => Exit::Cut,
                _ => Exit::Left,
            };
            assert_eq!(reason.exit(), expected);
        }
    }
}
