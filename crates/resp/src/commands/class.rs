//! Command classes: the effect of a request on its connection, from its first one to three words.
//!
//! A proxy does not need to know what a command does to the data, only what it does to the
//! connection: whether its effect can be replayed on another connection, pins the session to this
//! one, blocks, subscribes, or leaves the protocol. The classes follow the state that `RESET`
//! clears (`redis:src/networking.c`, `clearClientConnectionState`).

/// The class of a request. Most known commands are [`Class::Ordinary`]: one reply, and no state on
/// the connection. A command that is not known by name is [`Class::Unknown`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Class {
    /// One reply and no effect on the connection.
    #[default]
    Ordinary,
    /// `HELLO`: protocol version, and optionally credentials and name.
    Hello,
    /// `AUTH`: the connection's user.
    Auth,
    /// `SELECT`: the connection's database.
    Select,
    /// `CLIENT SETNAME`.
    SetName,
    /// `CLIENT SETINFO`: name and version of the client library.
    SetInfo,
    /// `CLIENT NO-EVICT`.
    NoEvict,
    /// `CLIENT NO-TOUCH`.
    NoTouch,
    /// `READONLY`: reads from a cluster's replica are accepted.
    ReadOnly,
    /// `READWRITE`: reverts `READONLY`.
    ReadWrite,
    /// `MULTI`: opens a transaction when it is answered with success.
    Multi,
    /// `EXEC`: ends the transaction and unwatches all keys.
    Exec,
    /// `DISCARD`: the same, without execution.
    Discard,
    /// `WATCH`.
    Watch,
    /// `UNWATCH`.
    Unwatch,
    /// `ASKING`: applies to the next command.
    Asking,
    /// `CLIENT REPLY ON`, answered with `+OK`.
    ReplyOn,
    /// `CLIENT REPLY OFF`: not answered, nor is anything after it.
    ReplyOff,
    /// `CLIENT REPLY SKIP`: not answered, nor is the next request.
    ReplySkip,
    /// May wait for data: `BLPOP`, `BRPOP`, `BLMOVE`, `BLMOVEM`, `BLMPOP`, `BRPOPLPUSH`,
    /// `BZPOPMIN`, `BZPOPMAX`, `BZMPOP`, `BZMOVE`, and `XREAD` and `XREADGROUP` with or without
    /// `BLOCK`.
    Blocking,
    /// `SCAN` and similar commands, with a cursor in the request and the next cursor in the reply;
    /// and `FT.CURSOR DEL`, which deletes a cursor.
    Iterate,
    /// An unknown command: that of a module, a renamed one, or an invalid one. The state that it
    /// leaves on the connection is not known.
    Unknown,
    /// `CLIENT ID`: the client learns the ID that this server, and no other, uses for its
    /// connection.
    ClientId,
    /// `CLIENT INFO` and `CLIENT LIST`: the client learns that ID, too, and hardly uses it.
    ClientInfo,
    /// `SCRIPT LOAD`, `SCRIPT EXISTS`, `SCRIPT SHOW`: the client may rely on the script cache of
    /// this server.
    Script,
    /// `EVAL` and `EVAL_RO`: run a script, which is cached then. Pins only within a transaction
    /// (`docs/decisions/carrying.md#scripts-bind-where-no-fallback-is-possible`).
    Eval,
    /// `EVALSHA` and `EVALSHA_RO`: run a script from the cache. Pins only within a transaction,
    /// where no fallback is possible.
    EvalSha,
    /// `WAIT` and `WAITAOF`: may wait for replicas, and refer to the writes of this connection.
    Wait,
    /// `SUBSCRIBE`.
    Subscribe,
    /// `UNSUBSCRIBE`.
    Unsubscribe,
    /// `PSUBSCRIBE`.
    PSubscribe,
    /// `PUNSUBSCRIBE`.
    PUnsubscribe,
    /// `SSUBSCRIBE`.
    SSubscribe,
    /// `SUNSUBSCRIBE`.
    SUnsubscribe,
    /// `MONITOR`: an endless stream of lines follows when it is answered with success.
    Monitor,
    /// `CLIENT TRACKING` with anything but `OFF`.
    TrackingOn,
    /// `CLIENT TRACKING OFF`.
    TrackingOff,
    /// `PSYNC`, `SYNC`, `REPLCONF`: the client is a replica, and the stream is no longer RESP.
    Replication,
    /// `SCRIPT DEBUG` with anything but `NO`: the next script starts a debugger session.
    Debugger,
    /// `QUIT`: answered with `+OK`, then the server closes.
    Quit,
    /// `RESET`: clears the connection's state.
    Reset,
    /// `SHUTDOWN`: on success the server closes without a reply.
    Shutdown,
    /// `CLIENT MAINT_NOTIFICATIONS ON`: the client understands push messages about maintenance, and
    /// needs an address when it is asked to move.
    MaintenanceOn,
    /// `CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none`: asked to move, the client
    /// reconnects to the address that it has.
    MaintenanceOnWithoutAddress,
    /// `CLIENT MAINT_NOTIFICATIONS OFF`.
    MaintenanceOff,
    /// `HIMPORT PREPARE` (Redis 8.10): field names, which the server keeps for the connection.
    ImportPrepare,
    /// `HIMPORT DISCARDALL`: removes all of them.
    ImportDiscardAll,
    /// `CLIENT CAPA` and `CLIENT IMPORT-SOURCE` (Valkey): kept for the connection, even after
    /// `RESET`.
    ClientCapability,
    /// The request that replaces a refused one; the server does not know it, and the error that it
    /// answers is replaced.
    Refused,
}

/// The effect of a [`Class`] on moving the session to another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClassGroup {
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
    /// The group of the class.
    #[must_use]
    pub const fn group(self) -> ClassGroup {
        match self {
            Self::Ordinary | Self::ClientInfo | Self::Refused => ClassGroup::Ordinary,
            Self::Hello
            | Self::Auth
            | Self::Select
            | Self::SetName
            | Self::SetInfo
            | Self::NoEvict
            | Self::NoTouch
            | Self::ReadOnly
            | Self::ReadWrite => ClassGroup::Replayable,
            Self::Multi
            | Self::Exec
            | Self::Discard
            | Self::Watch
            | Self::Unwatch
            | Self::Asking
            | Self::ReplyOn
            | Self::ReplyOff
            | Self::ReplySkip
            | Self::MaintenanceOn
            | Self::MaintenanceOnWithoutAddress
            | Self::MaintenanceOff
            | Self::ImportPrepare
            | Self::ImportDiscardAll
            | Self::ClientCapability
            | Self::Iterate
            | Self::ClientId
            | Self::Script
            | Self::Eval
            | Self::EvalSha
            | Self::Unknown => ClassGroup::Pinning,
            Self::Blocking | Self::Wait => ClassGroup::Blocking,
            Self::Subscribe
            | Self::Unsubscribe
            | Self::PSubscribe
            | Self::PUnsubscribe
            | Self::SSubscribe
            | Self::SUnsubscribe => ClassGroup::Subscribing,
            Self::Monitor
            | Self::TrackingOn
            | Self::TrackingOff
            | Self::Replication
            | Self::Debugger => ClassGroup::NeverMoved,
            Self::Quit | Self::Shutdown => ClassGroup::Ending,
            Self::Reset => ClassGroup::Reset,
        }
    }

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
        matches!(
            self,
            Self::Ordinary
                | Self::Refused
                | Self::Blocking
                | Self::Wait
                | Self::Shutdown
                | Self::Iterate
                | Self::ClientId
                | Self::ClientInfo
                | Self::Script
                | Self::Eval
                | Self::EvalSha
                | Self::Unknown
        )
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
