//! What a request means for the session it is sent in, from its first one to three words.
//!
//! A proxy need not know what a command does to the data, only what it does to the connection:
//! whether its effect can be played again on another connection, pins the session to this one,
//! blocks, subscribes, or leaves the protocol. The classes follow what `RESET` has to clear
//! (`redis:src/networking.c`, `clearClientConnectionState`).

/// The class of one request. Most known commands are [`Class::Ordinary`]: one request, one reply,
/// no trace left in the connection. What is not known by name is [`Class::Unknown`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// One reply and no effect on the connection.
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
    /// `READWRITE`: takes `READONLY` back.
    ReadWrite,
    /// `MULTI`: opens a transaction once it is answered with success.
    Multi,
    /// `EXEC` without arguments: ends the transaction and forgets the watched keys.
    Exec,
    /// `DISCARD`: the same, without executing.
    Discard,
    /// `WATCH`.
    Watch,
    /// `UNWATCH`.
    Unwatch,
    /// `ASKING`: holds for the next command.
    Asking,
    /// `CLIENT REPLY ON`, answered with `+OK`.
    ReplyOn,
    /// `CLIENT REPLY OFF`: not answered, nor is anything after it.
    ReplyOff,
    /// `CLIENT REPLY SKIP`: not answered, nor is the next request.
    ReplySkip,
    /// May wait for data: `BLPOP`, `BRPOP`, `BLMOVE`, `BLMOVEM`, `BLMPOP`, `BRPOPLPUSH`,
    /// `BZPOPMIN`, `BZPOPMAX`, `BZMPOP`, and `XREAD` and `XREADGROUP` whether or not they say
    /// `BLOCK`.
    Blocking,
    /// `SCAN` and its like, with a cursor in the request and the next one in the reply; and
    /// `FT.CURSOR DEL`, which gives one up.
    Iterate,
    /// A command that is not known: one of a module, a renamed one, or none at all. Nobody knows
    /// what it leaves.
    Unknown,
    /// `CLIENT ID`: the client knows by which number this server, and no other, calls its
    /// connection.
    ClientId,
    /// `SCRIPT LOAD`, `SCRIPT EXISTS`, `SCRIPT SHOW`: the client may count on this server's script
    /// cache.
    Script,
    /// `EVAL` and `EVAL_RO`: run a script, which is in the cache then. Binds within a transaction
    /// only (decision 81).
    Eval,
    /// `EVALSHA` and `EVALSHA_RO`: run a script from the cache. Binds within a transaction only,
    /// where no fallback is possible.
    EvalSha,
    /// `WAIT` and `WAITAOF`: may wait for replicas, and speaks of the writes made on this very
    /// connection.
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
    /// `MONITOR`: an endless stream of lines once it is answered with success.
    Monitor,
    /// `CLIENT TRACKING` with anything but `OFF`.
    TrackingOn,
    /// `CLIENT TRACKING OFF`.
    TrackingOff,
    /// `PSYNC`, `SYNC`, `REPLCONF`: the client is a replica, the stream is no longer RESP.
    Replication,
    /// `SCRIPT DEBUG` with anything but `NO`: the next script talks to a debugger.
    Debugger,
    /// `QUIT`: answered with `+OK`, then the server closes.
    Quit,
    /// `RESET` without arguments: clears the connection's state.
    Reset,
    /// `SHUTDOWN`: on success the server closes without a reply.
    Shutdown,
    /// `CLIENT MAINT_NOTIFICATIONS ON`: the client understands pushes about maintenance, and wants
    /// to be told where to go.
    MaintenanceOn,
    /// The same with `moving-endpoint-type none`: told to move, it comes back to the address that
    /// it has.
    MaintenanceOnWithoutAddress,
    /// `CLIENT MAINT_NOTIFICATIONS OFF`.
    MaintenanceOff,
    /// `HIMPORT PREPARE` (Redis 8.10): names of fields, kept for the connection for what it
    /// imports.
    ImportPrepare,
    /// `HIMPORT DISCARDALL`: forgets all of them.
    ImportDiscardAll,
    /// `CLIENT CAPA` and `CLIENT IMPORT-SOURCE` (Valkey): kept for the connection, and not even
    /// `RESET` takes it back.
    ClientCapability,
}

/// What a [`Class`] means for moving the session to another upstream connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClassGroup {
    /// Leaves no trace in the connection.
    Ordinary,
    /// Its effect can be had again by sending the same request on a new connection.
    Replayable,
    /// Pins the session to its connection until something clears it.
    Pinning,
    /// May stay without a reply for long.
    Blocking,
    /// Changes the subscriptions.
    Subscribing,
    /// From here on the session can never be moved.
    NeverMoved,
    /// Ends the connection or the server.
    Ending,
    /// Returns the connection to its first state.
    Reset,
}

impl Class {
    /// Which group the class belongs to.
    #[must_use]
    pub const fn group(self) -> ClassGroup {
        match self {
            Self::Ordinary => ClassGroup::Ordinary,
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

    /// Whether it is the handshake about pushes that tell of maintenance.
    pub(crate) const fn is_maintenance_handshake(self) -> bool {
        matches!(
            self,
            Self::MaintenanceOn | Self::MaintenanceOnWithoutAddress | Self::MaintenanceOff
        )
    }

    /// Whether its reply need not be seen to follow the session. A cursor that was not returned
    /// cannot be used, and a script counts from the request on.
    pub(crate) const fn may_be_unanswered(self) -> bool {
        matches!(
            self,
            Self::Ordinary
                | Self::Blocking
                | Self::Wait
                | Self::Shutdown
                | Self::Iterate
                | Self::ClientId
                | Self::Script
                | Self::Eval
                | Self::EvalSha
                | Self::Unknown
        )
    }

    /// Whether replies can be told from each other and from messages without knowing how it was
    /// answered. What it did to the session is unknown then.
    pub(crate) const fn can_be_unmarked(self) -> bool {
        let counted_by_what_is_known =
            matches!(self, Self::Hello | Self::Reset | Self::ReplyOn | Self::Monitor);
        !counted_by_what_is_known && !matches!(self.group(), ClassGroup::Subscribing)
    }

    /// Whether it runs a script.
    pub(crate) const fn runs_script(self) -> bool {
        matches!(self, Self::Eval | Self::EvalSha)
    }

    /// Whether the reply to it is looked at, outside of transactions too.
    pub(crate) const fn needs_mark(self) -> bool {
        let unmarked = matches!(
            self,
            Self::Ordinary | Self::Shutdown | Self::Unknown | Self::ClientId | Self::Script
        );
        !unmarked && !self.runs_script()
    }

    /// Whether what it does is kept apart from the rest, as that of newer commands is.
    pub(crate) const fn is_connection_feature(self) -> bool {
        self.is_maintenance_handshake()
            || matches!(self, Self::ImportPrepare | Self::ImportDiscardAll | Self::ClientCapability)
    }

    /// Whether a request that is queued would change, within the answer to `EXEC`, how the answers
    /// after it have to be read, or what the server keeps for the connection for good.
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
