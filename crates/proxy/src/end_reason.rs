//! Why a session ended: the one word that its counter and its log line share.
//!
//! Every session ends with exactly one of these, whatever else was going on. They are an enum and
//! not a text, so that the number of time series is bounded and nobody can invent a new one in
//! passing.
//!
//! Deliberately absent: the act of closing.

use std::io::ErrorKind;

use drain::Exit;

/// One of the two connections of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The client's connection.
    Client,
    /// The connection to the target.
    Upstream,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal;)+) => {
        /// Why a session ended.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum EndReason {
            $($(#[$doc])* $name,)+
        }

        impl EndReason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)+];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// A stable word in snake case, for metrics and logs.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }
        }
    };
}

reasons! {
    /// The client ended it, and everything it was owed was delivered.
    ClientClosed = "client_closed";
    /// The target ended it.
    UpstreamClosed = "upstream_closed";
    /// The client's side broke it off (RST, or a write into a closed connection).
    ClientReset = "client_reset";
    /// The target's side broke it off.
    UpstreamReset = "upstream_reset";
    /// The client was not heard of any more (keepalive, or sent bytes that were never
    /// acknowledged).
    ClientLost = "client_lost";
    /// The target was not heard of any more.
    UpstreamLost = "upstream_lost";
    /// Another error on the client's connection.
    ClientError = "client_error";
    /// Another error on the connection to the target.
    UpstreamError = "upstream_error";
    /// One direction had ended, and the other one did not in time.
    HalfCloseTimeout = "half_close_timeout";
    /// The client had sent nothing for too long.
    IdleTimeout = "idle_timeout";
    /// The client had sent nothing since it came.
    FirstByteTimeout = "first_byte_timeout";
    /// The points moved: the target is not the master any more.
    Fenced = "fenced";
    /// The target answered after another node was promoted: the answer would have acknowledged a
    /// write that is lost.
    ReplyDropped = "reply_dropped";
    /// Its replica is worse than others by now, it could not be carried over, and this was a
    /// boundary.
    ReplicaEjected = "replica_ejected";
    /// Its target answered nobody any more, and it could not be carried over: what it waited for
    /// may never come.
    TargetUnresponsive = "target_unresponsive";
    /// No replica may be used, and the master does not stand in.
    NoReplica = "no_replica";
    /// The new target does not accept what the old one had accepted of the session's state.
    CarryRefused = "carry_refused";
    /// It was carried over and then asked to wait for replicas, which could only have been answered
    /// wrongly; or called scripts within a transaction that only its former server had, which it
    /// would do again.
    StateLost = "state_lost";
    /// There was no target for as long as a client may be held.
    HoldTimeout = "hold_timeout";
    /// Too many clients were held already.
    HoldFull = "hold_full";
    /// The client went away while it was held or while its connection was being opened.
    HoldAbandoned = "hold_abandoned";
    /// The target could not be reached in time.
    DialFailed = "dial_failed";
    /// This process or host had no file descriptors, memory or local ports left for the connection
    /// to the target.
    ResourcesExhausted = "resources_exhausted";
    /// It was its turn in a drain, at a boundary.
    Drained = "drained";
    /// It was cut at the end of a drain, or by a fast stop.
    Cut = "cut";
    /// An invariant of this program did not hold: going on might have lost or changed bytes. Never
    /// in normal operation; the log says which.
    InternalError = "internal_error";
    /// Its task ended without a reason: a panic, or the end of the process. Never in normal
    /// operation.
    Aborted = "aborted";
}

impl EndReason {
    /// What the drain is told.
    #[must_use]
    pub const fn exit(self) -> Exit {
        match self {
            Self::Drained => Exit::Asked,
            Self::Cut => Exit::Cut,
            _ => Exit::Left,
        }
    }

    /// Whether the session ended otherwise than its client or an operator wanted it to: by a fault
    /// of the target or of the way to it, by a move of the points that it could not go along with,
    /// or by a limit of ours.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        match self {
            Self::ClientClosed
            | Self::UpstreamClosed
            | Self::ClientReset
            | Self::ClientLost
            | Self::HoldAbandoned
            | Self::IdleTimeout
            | Self::FirstByteTimeout
            | Self::ReplicaEjected
            | Self::Drained => false,
            Self::UpstreamReset
            | Self::UpstreamLost
            | Self::ClientError
            | Self::UpstreamError
            | Self::HalfCloseTimeout
            | Self::Fenced
            | Self::ReplyDropped
            | Self::TargetUnresponsive
            | Self::NoReplica
            | Self::CarryRefused
            | Self::StateLost
            | Self::HoldTimeout
            | Self::HoldFull
            | Self::DialFailed
            | Self::ResourcesExhausted
            | Self::Cut
            | Self::InternalError
            | Self::Aborted => true,
        }
    }

    /// Whether the client can still receive anything after a session ended for this reason, and
    /// there is time to send it.
    #[must_use]
    pub(crate) const fn reaches_client(self) -> bool {
        match self {
            Self::ClientClosed
            | Self::ClientReset
            | Self::ClientLost
            | Self::ClientError
            | Self::HoldAbandoned
            | Self::HalfCloseTimeout
            | Self::Cut
            | Self::InternalError
            | Self::Aborted => false,
            Self::UpstreamClosed
            | Self::UpstreamReset
            | Self::UpstreamLost
            | Self::UpstreamError
            | Self::IdleTimeout
            | Self::FirstByteTimeout
            | Self::Fenced
            | Self::ReplyDropped
            | Self::ReplicaEjected
            | Self::TargetUnresponsive
            | Self::NoReplica
            | Self::CarryRefused
            | Self::StateLost
            | Self::HoldTimeout
            | Self::HoldFull
            | Self::DialFailed
            | Self::ResourcesExhausted
            | Self::Drained => true,
        }
    }

    /// The reason behind an error while reading from or writing to `side`.
    #[must_use]
    pub const fn from_error(side: Side, kind: ErrorKind) -> Self {
        match (side, kind) {
            (
                Side::Client,
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted,
            ) => Self::ClientReset,
            (
                Side::Upstream,
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted,
            ) => Self::UpstreamReset,
            (
                Side::Client,
                ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable,
            ) => Self::ClientLost,
            (
                Side::Upstream,
                ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable,
            ) => Self::UpstreamLost,
            (Side::Client, _) => Self::ClientError,
            (Side::Upstream, _) => Self::UpstreamError,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn labels_are_distinct_and_in_snake_case() {
        let labels: BTreeSet<&str> = EndReason::ALL.iter().map(|reason| reason.label()).collect();
        assert_eq!(labels.len(), EndReason::COUNT);
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
    fn an_error_names_its_side() {
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
            EndReason::from_error(Side::Client, ErrorKind::OutOfMemory),
            EndReason::ClientError
        );
    }

    #[test]
    fn the_drain_counts_only_its_own() {
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
