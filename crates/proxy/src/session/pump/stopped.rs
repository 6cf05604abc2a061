//! Why a pump stops, and what it leaves.

use crate::end_reason::EndReason;
use crate::not_carried::Uncarried;
use crate::session::carry::CarryState;
use crate::session::refusals::Refused;
use crate::session::rest::Resting;
use crate::shared::Promotion;

/// Why a pump stops. One byte, which every poll returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Something has ended. The session ends with this reason, unless it can be carried.
    End(EndReason),
    /// The session leaves an ejected replica.
    Leave,
    /// The session moves to a replica with fewer sessions.
    Rebalance,
    /// The session has shared a connection, and needs one of its own to the same target.
    Promote,
    /// The session does not need its own connection any more.
    Return,
    /// The session shares connections and is idle.
    Rest,
}

impl From<EndReason> for Stop {
    fn from(reason: EndReason) -> Self {
        Self::End(reason)
    }
}

impl Stop {
    /// The end reason of a session that cannot continue after this.
    pub(crate) fn reason(self) -> EndReason {
        match self {
            Self::End(reason) => reason,
            Self::Leave | Self::Rebalance => EndReason::ReplicaEjected,
            // They happen only where the session can continue.
            Self::Promote | Self::Return | Self::Rest => EndReason::InternalError,
        }
    }
}

/// The result of a pump that has stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// Why it stopped.
    pub(crate) stop: Stop,
    /// The replies that the client has not taken yet, and our last push to it.
    pub(crate) undelivered: Vec<u8>,
    /// What the session continues with.
    pub(crate) left: Option<Box<Left>>,
    /// Bytes forwarded to the target, and to the client.
    pub(crate) bytes: (u64, u64),
    /// Complete requests forwarded.
    pub(crate) commands: u32,
    /// The target has answered everything that it was sent, so a reset discards nothing.
    pub(crate) is_answered: bool,
    /// If it lost its target and cannot continue: why.
    pub(crate) uncarried: Option<Box<Uncarried>>,
}

/// What a pump leaves to the next state of its session. A session of which it leaves nothing ends.
#[derive(Debug)]
pub(crate) enum Left {
    /// The state that continues over another connection. If that is one of its own to the same
    /// target: why.
    State(CarryState, Option<Promotion>),
    /// What is kept while the session rests.
    Resting(Resting),
    /// Requests, none of which was forwarded. They are refused before the session ends.
    Refused(Refused),
    /// A connection of its own on which the server keeps nothing but state that can be set on any.
    /// The session ends, and its service shares connections.
    CleanConnection,
}
