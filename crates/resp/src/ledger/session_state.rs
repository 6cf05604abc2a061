//! The types in which the ledger reports the state of a session.
//!
//! A session without a [`Pin`] is carried once nothing is in flight. A pinned session is closed
//! when its server is replaced, unless the pin is cleared first. If several pins apply, the one
//! listed first is reported.

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

labelled! {
    /// What pins a session to its server.
    enum Pin;
    /// Opaque because of `MONITOR`.
    Monitor = "monitor",
        "`MONITOR` was accepted; the stream that follows does not consist of replies";
    /// Opaque because the client is a replica.
    Replication = "replication",
        "the client is a replica (`PSYNC`, `SYNC`, `REPLCONF`, `CLUSTER SYNCSLOTS`)";
    /// Opaque because of `SCRIPT DEBUG`.
    Debugger = "debugger", "`SCRIPT DEBUG` was accepted; the stream that follows is not RESP";
    /// Opaque because of bytes that are not RESP or exceed a limit.
    NotResp = "not_resp", "bytes that are not RESP, or larger than any limit of Redis";
    /// Opaque because of a request whose effect cannot be tracked.
    NotFollowed = "not_followed",
        "a request whose effect on the connection cannot be tracked, such as `SUBSCRIBE` within \
         a transaction";
    /// More requests that change the connection were in flight than can be tracked.
    TooManyInFlight = "too_many_in_flight",
        "more requests that change the connection were in flight than Pointsman tracks; until \
         `RESET`";
    /// In a transaction.
    Transaction = "transaction", "between `MULTI` and `EXEC` or `DISCARD`";
    /// A blocking command is waiting.
    Blocking = "blocking", "a blocking command is waiting for its reply";
    /// Keys are watched.
    Watch = "watch", "between `WATCH` and `EXEC`, `DISCARD` or `UNWATCH`";
    /// `ASKING` applies to the next command.
    Asking = "asking", "`ASKING` was answered and the next command was not";
    /// Client-side caching.
    Tracking = "tracking", "`CLIENT TRACKING` is on";
    /// Replies are off, or one was skipped and is not confirmed.
    ReplyOff = "reply_off", "`CLIENT REPLY OFF` or `SKIP`, until a later request is answered";
    /// Subscribed, and the subscriptions are not replayed.
    Subscribed = "subscribed",
        "subscribed to channels or patterns; with `subscriptions = \"replay\"` only if not all \
         of the names are recorded";
    /// A cursor was returned and not used.
    Cursor = "cursor",
        "an iteration is unfinished (`SCAN` and similar commands), until its last cursor is 0";
    /// The client knows the ID of the connection.
    ClientId = "client_id",
        "the client sent `CLIENT ID`; another server has given that ID to another connection";
    /// The client relies on the script cache.
    Script = "script",
        "`SCRIPT LOAD`, or a script within a transaction: the client relies on the script cache \
         of this server";
    /// An unknown command was sent.
    UnknownCommand = "unknown_command",
        "a command was sent that is not in the table and not in `stateless_commands`";
    /// `WAIT` or `WAITAOF` was used.
    Wait = "wait", "`WAIT` or `WAITAOF` was used; it refers to the writes of this connection";
    /// `HIMPORT PREPARE` was accepted.
    PreparedFields = "prepared_fields", "`HIMPORT PREPARE`, until `HIMPORT DISCARDALL`";
    /// A capability that `RESET` does not clear.
    ClientCapability = "client_capability",
        "`CLIENT CAPA` or `CLIENT IMPORT-SOURCE` was accepted, or the server itself agreed to \
         `CLIENT MAINT_NOTIFICATIONS`";
    /// The state that the server keeps is not known.
    UnknownState = "unknown_state",
        "the effect of an accepted `AUTH`, `HELLO`, `SELECT` or similar command is not known: it \
         was queued in a transaction, or was too long";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Pin;

    #[test]
    fn has_distinct_labels_in_snake_case() {
        let labels: BTreeSet<&str> = Pin::ALL.iter().map(|pin| pin.label()).collect();
        assert_eq!(labels.len(), Pin::COUNT);
        assert!(
            labels
                .iter()
                .all(|label| label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
        );
        for (number, pin) in Pin::ALL.iter().enumerate() {
            assert_eq!(*pin as usize, number);
        }
    }
}
