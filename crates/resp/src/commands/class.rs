//! Command classes: the effect of a request on its connection, from its first one to three words.
//!
//! A proxy does not need to know what a command does to the data, only what it does to the
//! connection: whether its effect can be replayed on another connection, pins the session to this
//! one, blocks, subscribes, or leaves the protocol. The classes follow the state that `RESET`
//! clears (`redis:src/networking.c`, `clearClientConnectionState`).
//!
//! The table of classes has one row per class with all that depends on it alone.

use crate::commands::carry_effect::CarryEffect::{self, Carried, Ends, Never, Until};
use crate::commands::sharing::PromotionReason as Reason;
use crate::commands::sharing::Sharing::{self, Promotes, Shared, SharedScript, Verified};

/// Defines the classes, from one row per class: the commands that belong to it by their first word,
/// its group, how it is shared, and its effect on carrying the session with the reason.
macro_rules! classes {
    ($(
        $(#[$attribute:meta])* $name:ident [$($word:literal),*]
        $group:ident, $sharing:expr, $effect:expr, $reason:expr;
    )+) => {
        /// The class of a request. Most known commands are [`Class::Ordinary`]: one reply, and no
        /// state on the connection. A command that is not known by name is [`Class::Unknown`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(u8)]
        pub enum Class {
            $($(#[$attribute])* $name,)+
        }

        /// The commands that are classified by their first word, without the ordinary ones.
        pub(crate) const BY_FIRST_WORD: &[(&[u8], Class)] = &[$($(($word, Class::$name),)*)+];

        impl Class {
            /// The effect on moving the session.
            pub(crate) const fn group(self) -> ClassGroup {
                match self {
                    $(Self::$name => ClassGroup::$group,)+
                }
            }

            /// How its requests are handled in a service with shared upstream connections; for an
            /// ordinary class, if the command's name is shared.
            pub(crate) const fn sharing(self) -> Sharing {
                match self {
                    $(Self::$name => $sharing,)+
                }
            }

            /// The effect on carrying the session, and the reason.
            pub(crate) const fn carry_effect(self) -> (CarryEffect, &'static str) {
                match self {
                    $(Self::$name => ($effect, $reason),)+
                }
            }
        }
    };
}

const NO_STATE: &str = "leaves no state on the connection";
const REPLAYED: &str = "its effect is replayed on the new server";
const ENDS_TRANSACTION: &str = "ends the transaction and unwatches all keys";
const MESSAGES: &str = "messages may be lost; carried with `subscriptions = \"replay\"`";
const UNSUBSCRIBES: &str = "ends subscriptions";
const UNANSWERED: &str = "a command without a reply may be lost without notice";
const CURSOR: &str = "a cursor is valid only on its server: on another one, keys would be missed";
const CLIENT_ID: &str = "another server gives this ID to another connection; does not apply to \
                         StackExchange.Redis, which only logs it";
const SCRIPT_CACHE: &str = "the client relies on the script cache of this server; does not apply \
                            after it received `NOSCRIPT`";
const HANDSHAKE: &str = "Pointsman agreed to it and continues to send notifications; never if the \
                         server itself agreed";

classes! {
    /// One reply and no effect on the connection.
    #[default]
    Ordinary [] Ordinary, Shared, Carried, NO_STATE;
    /// `HELLO`: protocol version, and optionally credentials and name.
    Hello [b"HELLO"] Replayable, Verified, Carried, REPLAYED;
    /// `AUTH`: the connection's user.
    Auth [b"AUTH"] Replayable, Verified, Carried, REPLAYED;
    /// `SELECT`: the connection's database.
    Select [b"SELECT"] Replayable, Verified, Carried, REPLAYED;
    /// `CLIENT SETNAME`.
    SetName [] Replayable, Verified, Carried, REPLAYED;
    /// `CLIENT SETINFO`: name and version of the client library.
    SetInfo [] Replayable, Verified, Carried, REPLAYED;
    /// `CLIENT NO-EVICT`.
    NoEvict [] Replayable, Promotes(Reason::Connection), Carried, REPLAYED;
    /// `CLIENT NO-TOUCH`.
    NoTouch [] Replayable, Verified, Carried, REPLAYED;
    /// `READONLY`: reads from a cluster's replica are accepted.
    ReadOnly [b"READONLY"] Replayable, Verified, Carried, REPLAYED;
    /// `READWRITE`: reverts `READONLY`.
    ReadWrite [b"READWRITE"] Replayable, Verified, Carried, REPLAYED;
    /// `MULTI`: opens a transaction when it is answered with success.
    Multi [b"MULTI"] Pinning, Promotes(Reason::Transaction), Until("`EXEC` or `DISCARD`"),
        "the server has queued commands of the transaction";
    /// `EXEC`: ends the transaction and unwatches all keys.
    Exec [b"EXEC"] Pinning, Promotes(Reason::Transaction), Carried, ENDS_TRANSACTION;
    /// `DISCARD`: the same, without execution.
    Discard [b"DISCARD"] Pinning, Promotes(Reason::Transaction), Carried, ENDS_TRANSACTION;
    /// `WATCH`.
    Watch [b"WATCH"] Pinning, Promotes(Reason::Transaction),
        Until("`EXEC`, `DISCARD` or `UNWATCH`"),
        "only this server knows whether a watched key changed";
    /// `UNWATCH`.
    Unwatch [b"UNWATCH"] Pinning, Promotes(Reason::Transaction), Carried, "unwatches all keys";
    /// `ASKING`: applies to the next command.
    Asking [b"ASKING"] Pinning, Promotes(Reason::Asking), Until("the next command is answered"),
        "it applies to the next command";
    /// `CLIENT REPLY ON`, answered with `+OK`.
    ReplyOn [] Pinning, Promotes(Reason::ReplyMode), Carried, "replies are sent again";
    /// `CLIENT REPLY OFF`: not answered, nor is anything after it.
    ReplyOff [] Pinning, Promotes(Reason::ReplyMode), Until("`CLIENT REPLY ON` is answered"),
        UNANSWERED;
    /// `CLIENT REPLY SKIP`: not answered, nor is the next request.
    ReplySkip [] Pinning, Promotes(Reason::ReplyMode), Until("a later command is answered"),
        UNANSWERED;
    /// May wait for data: `BLPOP`, `BRPOP`, `BLMOVE`, `BLMOVEM`, `BLMPOP`, `BRPOPLPUSH`,
    /// `BZPOPMIN`, `BZPOPMAX`, `BZMPOP`, `BZMOVE`, and `XREAD` and `XREADGROUP` with or without
    /// `BLOCK`.
    Blocking [
        b"BLPOP", b"BRPOP", b"XREADGROUP", b"XREAD", b"BLMOVE", b"BLMOVEM", b"BLMPOP", b"BZPOPMIN",
        b"BZPOPMAX", b"BZMPOP", b"BZMOVE", b"BRPOPLPUSH"
    ] Blocking, Promotes(Reason::Blocking), Until("its reply"),
        "only the client knows whether to wait again";
    /// `SCAN` and similar commands, with a cursor in the request and the next cursor in the reply;
    /// and `FT.CURSOR DEL`, which deletes a cursor.
    Iterate [] Pinning, Shared, Until("the cursor is 0"), CURSOR;
    /// An unknown command: that of a module, a renamed one, or an invalid one. The state that it
    /// leaves on the connection is not known.
    Unknown [] Pinning, Promotes(Reason::Unknown), Never,
        "it is not known what the command leaves on the connection";
    /// `CLIENT ID`: the client learns the ID that this server, and no other, uses for its
    /// connection.
    ClientId [] Pinning, Promotes(Reason::Connection), Never, CLIENT_ID;
    /// `CLIENT INFO` and `CLIENT LIST`: the client learns that ID, too, and hardly uses it.
    ClientInfo [] Ordinary, Shared, Carried, NO_STATE;
    /// `SCRIPT LOAD`, `SCRIPT EXISTS`, `SCRIPT SHOW`: the client may rely on the script cache of
    /// this server.
    Script [] Pinning, Shared, Never, SCRIPT_CACHE;
    /// `EVAL` and `EVAL_RO`: run a script, which is cached then. Pins only within a transaction
    /// (`docs/decisions/carrying.md#scripts-bind-where-no-fallback-is-possible`).
    Eval [b"EVAL", b"EVAL_RO"] Pinning, SharedScript, Carried,
        "contains its script; within `MULTI`: never";
    /// `EVALSHA` and `EVALSHA_RO`: run a script from the cache. Pins only within a transaction,
    /// where no fallback is possible.
    EvalSha [b"EVALSHA", b"EVALSHA_RO"] Pinning, SharedScript, Carried,
        "a missing script is answered by `NOSCRIPT`; within `MULTI`: never";
    /// `WAIT` and `WAITAOF`: may wait for replicas, and refer to the writes of this connection.
    Wait [b"WAIT", b"WAITAOF"] Blocking, Promotes(Reason::Wait), Never,
        "it refers to the writes of this connection";
    /// `SUBSCRIBE`.
    Subscribe [b"SUBSCRIBE"] Subscribing, Promotes(Reason::Subscription),
        Until("all subscriptions have ended"), MESSAGES;
    /// `UNSUBSCRIBE`.
    Unsubscribe [b"UNSUBSCRIBE"] Subscribing, Promotes(Reason::Subscription), Carried, UNSUBSCRIBES;
    /// `PSUBSCRIBE`.
    PSubscribe [b"PSUBSCRIBE"] Subscribing, Promotes(Reason::Subscription),
        Until("all subscriptions have ended"), MESSAGES;
    /// `PUNSUBSCRIBE`.
    PUnsubscribe [b"PUNSUBSCRIBE"] Subscribing, Promotes(Reason::Subscription), Carried,
        UNSUBSCRIBES;
    /// `SSUBSCRIBE`.
    SSubscribe [b"SSUBSCRIBE"] Subscribing, Promotes(Reason::Subscription),
        Until("all subscriptions have ended"), MESSAGES;
    /// `SUNSUBSCRIBE`.
    SUnsubscribe [b"SUNSUBSCRIBE"] Subscribing, Promotes(Reason::Subscription), Carried,
        UNSUBSCRIBES;
    /// `MONITOR`: an endless stream of lines follows when it is answered with success.
    Monitor [b"MONITOR"] NeverMoved, Promotes(Reason::Stream), Never,
        "an endless stream of lines follows";
    /// `CLIENT TRACKING` with anything but `OFF`.
    TrackingOn [] NeverMoved, Promotes(Reason::Tracking), Until("`CLIENT TRACKING OFF` or `RESET`"),
        "only this server knows which keys the client has cached";
    /// `CLIENT TRACKING OFF`.
    TrackingOff [] NeverMoved, Promotes(Reason::Tracking), Carried, "ends tracking";
    /// `PSYNC`, `SYNC`, `REPLCONF`: the client is a replica, and the stream is no longer RESP.
    Replication [b"PSYNC", b"SYNC", b"REPLCONF"] NeverMoved, Promotes(Reason::Stream), Never,
        "the connection becomes a replication stream";
    /// `SCRIPT DEBUG` with anything but `NO`: the next script starts a debugger session.
    Debugger [] NeverMoved, Promotes(Reason::Stream), Never,
        "the connection becomes a debugger session";
    /// `QUIT`: answered with `+OK`, then the server closes.
    Quit [b"QUIT"] Ending, Promotes(Reason::Ending), Ends, "the server closes the connection";
    /// `RESET`: clears the connection's state.
    Reset [b"RESET"] Reset, Promotes(Reason::Reset), Carried, "clears the state of the connection";
    /// `SHUTDOWN`: on success the server closes without a reply.
    Shutdown [b"SHUTDOWN"] Ending, Promotes(Reason::Ending), Ends, "the server stops";
    /// `CLIENT MAINT_NOTIFICATIONS ON`: the client understands push messages about maintenance, and
    /// needs an address when it is asked to move.
    MaintenanceOn [] Pinning, Promotes(Reason::MaintenanceHandshake), Carried, HANDSHAKE;
    /// `CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none`: asked to move, the client
    /// reconnects to the address that it has.
    MaintenanceOnWithoutAddress [] Pinning, Promotes(Reason::MaintenanceHandshake), Carried,
        HANDSHAKE;
    /// `CLIENT MAINT_NOTIFICATIONS OFF`.
    MaintenanceOff [] Pinning, Promotes(Reason::MaintenanceHandshake), Carried, HANDSHAKE;
    /// `HIMPORT PREPARE` (Redis 8.10): field names, which the server keeps for the connection.
    ImportPrepare [] Pinning, Promotes(Reason::ImportFields),
        Until("`HIMPORT DISCARDALL` or `RESET`"),
        "the server keeps the prepared fields for the connection";
    /// `HIMPORT DISCARDALL`: removes all of them.
    ImportDiscardAll [] Pinning, Promotes(Reason::ImportFields), Carried,
        "removes the prepared fields";
    /// `CLIENT CAPA` and `CLIENT IMPORT-SOURCE` (Valkey): kept for the connection, even after
    /// `RESET`.
    ClientCapability [] Pinning, Promotes(Reason::Connection), Never,
        "the server keeps it for the connection, even after `RESET`";
    /// The request that replaces a refused one; the server does not know it, and the error that it
    /// answers is replaced.
    Refused [] Ordinary, Shared, Carried, NO_STATE;
}

/// The effect of a [`Class`] on moving the session to another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ClassGroup {
    /// Leaves no state on the connection.
    Ordinary,
    /// Its effect can be replayed on a new connection.
    Replayable,
    /// Pins the session to its connection until the pin is cleared.
    Pinning,
    /// May wait long for its reply.
    Blocking,
    /// Changes the subscriptions.
    Subscribing,
    /// The session can never be moved afterwards.
    NeverMoved,
    /// Ends the connection or the server.
    Ending,
    /// Returns the connection to its initial state.
    Reset,
}

impl Class {
    /// The class of a request of this many words, the name included. With any other number than
    /// expected the server refuses it, and it has no effect on the connection; except `EXEC`, which
    /// ends a transaction even so.
    pub(crate) const fn of_words(self, words: u32) -> Self {
        let expected = match self {
            Self::Multi | Self::Discard | Self::Reset => 1,
            Self::ReplyOn | Self::ReplyOff | Self::ReplySkip => 3,
            _ => return self,
        };
        if words == expected { self } else { Self::Ordinary }
    }

    /// Whether it is the maintenance handshake.
    pub(crate) const fn is_maintenance_handshake(self) -> bool {
        matches!(
            self,
            Self::MaintenanceOn | Self::MaintenanceOnWithoutAddress | Self::MaintenanceOff
        )
    }

    /// Whether the server's error is replaced.
    pub(crate) const fn has_replaced_error(self) -> bool {
        self.is_maintenance_handshake() || matches!(self, Self::Refused)
    }

    /// Whether the session can be tracked without seeing its reply. A cursor that was not returned
    /// cannot be used, and a script counts from the request on.
    pub(crate) const fn may_be_unanswered(self) -> bool {
        !self.needs_mark()
            || matches!(self, Self::Refused | Self::Blocking | Self::Wait | Self::Iterate)
    }

    /// Whether replies can still be distinguished from each other and from messages if its outcome
    /// is not known. Its effect on the session is then unknown.
    pub(crate) const fn can_be_unmarked(self) -> bool {
        let changes_counting =
            matches!(self, Self::Hello | Self::Reset | Self::ReplyOn | Self::Monitor);
        !changes_counting && !matches!(self.group(), ClassGroup::Subscribing)
    }

    /// Whether it runs a script.
    pub(crate) const fn runs_script(self) -> bool {
        matches!(self, Self::Eval | Self::EvalSha)
    }

    /// Whether its reply must be inspected, also outside of transactions.
    pub(crate) const fn needs_mark(self) -> bool {
        let unmarked = matches!(
            self,
            Self::Ordinary
                | Self::Shutdown
                | Self::Unknown
                | Self::ClientId
                | Self::ClientInfo
                | Self::Script
        );
        !unmarked && !self.runs_script()
    }

    /// Whether its effect is tracked in `ConnectionFeatures`.
    pub(crate) const fn is_connection_feature(self) -> bool {
        self.is_maintenance_handshake()
            || matches!(self, Self::ImportPrepare | Self::ImportDiscardAll | Self::ClientCapability)
    }

    /// Whether the request, if queued in a transaction, would change how later replies are read, or
    /// what the server keeps permanently. That happens within the reply to `EXEC`, which is not
    /// inspected.
    pub(crate) const fn is_untrackable_in_transaction(self) -> bool {
        matches!(
            self,
            Self::Hello
                | Self::Monitor
                | Self::TrackingOn
                | Self::TrackingOff
                | Self::ReplyOn
                | Self::Reset
                | Self::ImportPrepare
                | Self::ClientCapability
        ) || matches!(self.group(), ClassGroup::Subscribing)
            || self.is_maintenance_handshake()
    }
}
