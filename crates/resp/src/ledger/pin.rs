//! What keeps a session on its server, as a short word for counters and a phrase for people.
//!
//! A session without a pin is carried over once nothing is in flight. One with a pin is closed when
//! its server is replaced, unless the pin is cleared first. One session has one pin: of several,
//! the one listed first.
//!
//! Deliberately absent: what a session owes at the moment, which changes with every request.

macro_rules! pins {
    ($($(#[$doc:meta])* $name:ident = $label:literal, $meaning:literal;)+) => {
        /// What keeps a session on its server.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Pin {
            $($(#[$doc])* $name,)+
        }

        impl Pin {
            /// Every pin, in the order of their numbers.
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

            /// What it means, as a phrase for the documents.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)+
                }
            }
        }
    };
}

pins! {
    /// Opaque since `MONITOR`.
    Monitor = "monitor", "`MONITOR` was accepted; the stream that follows is not made of replies";
    /// Opaque since the client became a replica.
    Replication = "replication", "the client is a replica (`PSYNC`, `SYNC`, `REPLCONF`, `CLUSTER SYNCSLOTS`)";
    /// Opaque since `SCRIPT DEBUG`.
    Debugger = "debugger", "`SCRIPT DEBUG` was accepted; the stream that follows is not RESP";
    /// Opaque since bytes came that are not RESP or exceed a limit.
    NotResp = "not_resp", "bytes that are not RESP, or larger than any limit of Redis";
    /// Opaque since a request whose effect cannot be followed.
    NotFollowed = "not_followed", "a request whose effect on the connection cannot be followed, such as `SUBSCRIBE` within a transaction";
    /// More requests that change the connection were in flight than can be followed.
    TooManyInFlight = "too_many_in_flight", "more requests that change the connection were in flight than Pointsman follows, until `RESET`";
    /// In a transaction.
    Transaction = "transaction", "between `MULTI` and `EXEC` or `DISCARD`";
    /// A blocking command waits.
    Blocking = "blocking", "a blocking command waits for its reply";
    /// Keys are watched.
    Watch = "watch", "between `WATCH` and `EXEC`, `DISCARD` or `UNWATCH`";
    /// `ASKING` holds for the next command.
    Asking = "asking", "`ASKING` was answered and the next command was not";
    /// Client-side caching.
    Tracking = "tracking", "`CLIENT TRACKING` is on";
    /// Replies are off, or one was skipped.
    ReplyOff = "reply_off", "`CLIENT REPLY OFF` or `SKIP`, until a later request is answered";
    /// Subscribed to something that is not subscribed to again.
    Subscribed = "subscribed", "subscribed to channels or patterns; with `subscriptions = \"replay\"` only where the names are not all remembered";
    /// A cursor was returned and not used up.
    Cursor = "cursor", "an iteration is under way (`SCAN` and others), until its last cursor is 0";
    /// The client knows the number of the connection.
    ClientId = "client_id", "the client asked for its `CLIENT ID`, which another server gives to another connection";
    /// The client counts on the script cache.
    Script = "script", "`SCRIPT LOAD`, or a script within a transaction: the client counts on the script cache of this server";
    /// An unknown command was sent.
    UnknownCommand = "unknown_command", "a command was sent that is not in the table and not in `stateless_commands`";
    /// Writes were followed by `WAIT`.
    Wait = "wait", "`WAIT` or `WAITAOF` was used: it is about the writes of this connection";
    /// Fields were prepared for imports.
    PreparedFields = "prepared_fields", "`HIMPORT PREPARE`, until `HIMPORT DISCARDALL`";
    /// Something that not even `RESET` takes back.
    ClientCapability = "client_capability", "`CLIENT CAPA` or `CLIENT IMPORT-SOURCE` was accepted, or the server itself agreed to `CLIENT MAINT_NOTIFICATIONS`";
    /// It is not known what the server keeps.
    UnknownState = "unknown_state", "an accepted `AUTH`, `HELLO`, `SELECT` or the like is not known exactly: it was queued in a transaction, or too long";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Pin;

    #[test]
    fn labels_are_distinct_and_in_snake_case() {
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
