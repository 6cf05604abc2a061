//! The types in which the ledger reports the state of a session.

/// A direction of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the server.
    Request,
    /// From the server to the client.
    Reply,
}

/// The state of a session. If several apply, it is the first one listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// No longer tracked, because it left the protocol or exceeded a limit. Its bytes are forwarded
    /// without being interpreted, for the rest of the session.
    Opaque,
    /// `MULTI` has been answered with success, `EXEC` or `DISCARD` has not been answered yet.
    Transaction,
    /// The oldest request without a reply is a blocking one, and both directions are between
    /// frames.
    Blocked,
    /// A reply is owed, or a frame is incomplete in either direction.
    Busy,
    /// `QUIT` has been answered: the server is about to close the connection.
    Ended,
    /// Nothing is owed, both directions are between frames, and there are subscriptions: messages
    /// may arrive at any time.
    Subscribed,
    /// Nothing is owed, both directions are between frames, and the server keeps state for this
    /// connection that no other connection has: watched keys, `ASKING`, client-side tracking,
    /// replies switched off, or a request without a reply that is not confirmed yet.
    Pinned,
    /// Nothing is owed, both directions are between frames, and nothing pins the session: it can be
    /// moved or closed now.
    Quiet,
}

/// Why a session must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MustEnd {
    /// It was carried and then sent `WAIT`, which refers to the writes of its former connection:
    /// the reply would be wrong and must not be delivered.
    WaitAfterCarry,
    /// An invariant was violated, so the tracked state cannot be relied on. Never in normal
    /// operation.
    Broken(LedgerFault),
}

/// The violated invariant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LedgerFault {
    /// The request scanner read beyond its input.
    Request,
    /// The reply scanner lost a nesting level or read beyond its input.
    Reply,
    /// More bytes were skipped than the current body had.
    Unseen,
}

impl LedgerFault {
    /// The description for the log.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Request => "the request scanner read beyond its input",
            Self::Reply => "the reply scanner lost track of its frame",
            Self::Unseen => "more bytes were skipped than the body had",
        }
    }
}

/// How a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplyOutcome {
    /// Anything but an error.
    Done,
    /// `+QUEUED`: it takes effect when `EXEC` succeeds.
    Queued,
    /// An error: the request had no effect on the session.
    Error,
}

/// Frames counted since they were last taken; see
/// [`Ledger::take_counts`](crate::Ledger::take_counts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameCounts {
    /// Complete requests, including those without a reply, without empty lines and `*0`.
    pub requests: u32,
    /// Complete replies. Of several confirmations to one request, only the last one counts.
    pub replies: u32,
    /// Other complete frames from the server: push messages, messages, and all confirmations but
    /// the last.
    pub pushes: u32,
}
