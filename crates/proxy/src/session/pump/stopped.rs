//! The result of a pump, and the step that follows.

use crate::end_reason::EndReason;
use crate::io::shared::Promotion;
use crate::not_carried::Uncarried;
use crate::session::carry::CarryState;
use crate::session::shared::rest::Kept;

/// The result of a pump that has stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// Why it stopped.
    pub(crate) reason: EndReason,
    /// The replies that the client has not taken yet, and our last push to it.
    pub(crate) undelivered: Vec<u8>,
    /// The next step.
    pub(crate) after: Option<Box<After>>,
    /// Bytes forwarded to the target, and to the client.
    pub(crate) bytes: (u64, u64),
    /// Complete requests forwarded.
    pub(crate) commands: u32,
    /// The target has answered everything that it was sent, so a reset discards nothing.
    pub(crate) is_answered: bool,
    /// If it lost its target and cannot continue: why.
    pub(crate) uncarried: Option<Box<Uncarried>>,
}

/// The step that follows the end of a pump.
#[derive(Debug)]
pub(crate) enum After {
    /// Its requests, none of which was forwarded, are refused before it ends.
    Refuse {
        /// The part of them that was read; it begins at a frame boundary.
        unsent: Vec<u8>,
        /// A transaction is open.
        transaction: bool,
    },
    /// The session can continue over another connection.
    Carry(CarryState),
    /// The session moves to another replica, and keeps its connection until the new one works.
    Rebalance(CarryState),
    /// The session has shared a connection, and needs one of its own to the same target.
    Promote(CarryState, Promotion),
    /// The session does not need its own connection any more.
    Return(CarryState),
    /// The session shares connections and is idle. It rests until there is something to do.
    Rest(Kept),
    /// It ends. Nothing is in flight, and the server keeps nothing for the connection, which the
    /// session has had because its service shares connections, but state that can be set on any.
    LeaveClean,
}
