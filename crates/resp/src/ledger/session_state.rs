//! The ledger's answers: small words the pump can decide by.

/// One of the two ways bytes go through a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the server.
    Request,
    /// From the server to the client.
    Reply,
}

/// Where a session stands. If several hold, the one listed first is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// Not followed any more: it left the protocol or went beyond a limit. Its bytes are forwarded
    /// and not understood, for good.
    Opaque,
    /// `MULTI` has been answered with success, `EXEC` or `DISCARD` has not been answered yet.
    Transaction,
    /// The oldest request without a reply is one that may block, and both directions are between
    /// frames.
    Blocked,
    /// A reply is owed, or a frame is under way in either direction.
    Busy,
    /// `QUIT` has been answered: the server is about to close.
    Ended,
    /// Nothing is owed, both directions are between frames, and there are subscriptions: messages
    /// may come at any time.
    Subscribed,
    /// Nothing is owed, both directions are between frames, and the server keeps something for this
    /// connection that cannot be had elsewhere: watched keys, `ASKING`, client-side tracking,
    /// replies switched off, or a request sent with its reply skipped, of which nothing has been
    /// heard since.
    Pinned,
    /// Nothing is owed, both directions are between frames, nothing pins the session: the moment to
    /// move it or to close it.
    Quiet,
}

/// What the server said at the start of a reply, as a reason to verify at once that it is still the
/// master. Legitimate ones exist (a busy or loading master), so whoever acts on a hint must back
/// off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Hint {
    /// `-READONLY`: a replica refused a write.
    ReadOnly,
    /// `-UNBLOCKED`: a master that became a replica let its blocked clients go.
    Unblocked,
    /// `-MASTERDOWN`: a replica without its master.
    MasterDown,
    /// `-LOADING`: the server has just been started.
    Loading,
    /// `-CLUSTERDOWN`.
    ClusterDown,
    /// `-NOREPLICAS`: too few replicas follow for a write to be accepted.
    NoReplicas,
    /// `-TRYAGAIN`.
    TryAgain,
}

/// Why a session must not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MustEnd {
    /// It was carried over and then asked a question whose answer would be about the connection
    /// before (`WAIT`): the reply to it must not be delivered.
    WaitAfterCarry,
    /// An invariant does not hold, so nothing that is known of it may be relied on. Never in normal
    /// operation.
    Broken(LedgerFault),
}

/// The invariant that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LedgerFault {
    /// More bytes were taken of a request than there were.
    Request,
    /// The scanner of replies left the frame that it was in.
    Reply,
    /// More bytes were moved unseen than the body under way had.
    Unseen,
}

impl LedgerFault {
    /// What it is, for a log.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Request => "more of a request was taken than there was",
            Self::Reply => "the scanner of replies left its frame",
            Self::Unseen => "more bytes went unseen than the body had",
        }
    }
}

/// How one request was answered, for whoever records what to play again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplyOutcome {
    /// Anything but an error.
    Done,
    /// `+QUEUED`: it takes effect with `EXEC`, if at all.
    Queued,
    /// An error: the request had no effect on the session.
    Error,
}

/// Frames counted since they were last taken; see
/// [`Ledger::take_counts`](crate::Ledger::take_counts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameCounts {
    /// Requests that ended, silent ones included, empty lines and `*0` not.
    pub requests: u32,
    /// Replies to requests that ended; of several confirmations to one request only the last
    /// counts.
    pub replies: u32,
    /// Other frames from the server that ended: pushes, messages, all confirmations but the last.
    pub pushes: u32,
}
