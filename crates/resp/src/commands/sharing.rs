//! Whether a request may be sent on a connection that many clients share.
//!
//! A request is shared only if it has exactly one reply, neither changes nor reads anything that
//! belongs to its connection, and does not wait for another client. Requests that set replayable
//! state are answered by the server on a separate connection, and change only which connection the
//! client shares. Anything else needs a connection of its own, unknown commands included.
//!
//! This is stricter than the class, which asks only what a request leaves on its connection:
//! `CLIENT LIST` leaves nothing, but its reply names the connections, and `SCRIPT KILL` would wait
//! for the script that it is to end. Commands of modules may block their connection while another
//! thread works, and every request after them on that connection would wait.

use crate::commands::class::Class;
use crate::commands::ordinary::{NAMES, SLOTS, contains, key, subset, table};
use crate::commands::table::ClassLookup;

/// How a request is handled in a service with shared upstream connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Sent on the shared connection of the client's group.
    Shared,
    /// A shared script. Its reply may be any value, so no conclusion is drawn from it.
    SharedScript,
    /// Answered by the server on a verifier connection; an accepted one changes the group.
    Verified,
    /// Needs a connection of its own.
    Promotes(PromotionReason),
}

labelled! {
    /// Why a session needs a connection of its own.
    #[derive(PartialOrd, Ord)]
    enum PromotionReason;
    /// `MULTI`, `WATCH` and the commands that end them.
    Transaction = "transaction", "the server keeps queued commands and watched keys";
    /// The `SUBSCRIBE` family.
    Subscription = "subscription", "messages arrive at any time, for one client";
    /// A command that may wait for data.
    Blocking = "blocking", "may wait for data, and requests after it would wait too";
    /// `WAIT` and `WAITAOF`, which refer to the writes of their connection.
    Wait = "wait", "refers to the writes of its own connection";
    /// `MONITOR`, replication, and the script debugger, which leave the protocol.
    Stream = "stream", "the connection leaves the protocol";
    /// `CLIENT TRACKING`.
    Tracking = "tracking", "the server remembers which keys were read on the connection";
    /// `CLIENT REPLY`: requests are not answered one by one.
    ReplyMode = "reply_mode", "requests are no longer answered one by one";
    /// `ASKING`, which applies to the next request.
    Asking = "asking", "applies to the next request on the connection";
    /// Other commands that name or change the connection: `CLIENT ID`, `CLIENT LIST`.
    Connection = "connection", "names or changes the connection itself";
    /// `CLIENT MAINT_NOTIFICATIONS`: the server may agree, for this connection.
    MaintenanceHandshake = "maintenance_handshake",
        "the server may agree to notify this connection";
    /// `HIMPORT`: fields are prepared for the connection.
    ImportFields = "import_fields", "the server keeps prepared fields for the connection";
    /// Administration: rare, and some of it must not wait for the requests of others.
    Administration = "administration", "administration, which must not wait for other clients";
    /// A command of a module, which may block its connection.
    Module = "module", "a module may block the connection while another thread works";
    /// `QUIT` and `SHUTDOWN`: the server closes the connection.
    Ending = "ending", "the server closes the connection";
    /// `RESET`.
    Reset = "reset", "resets the connection";
    /// A command that is not known.
    Unknown = "unknown", "it is not known what the command does to its connection";
    /// The server's own table contradicts the built-in one.
    ServerTable = "server_table", "the server's own table says that it is not a plain command";
    /// An inline command, or bytes that are not a request.
    Inline = "inline", "not an array of strings";
    /// The request is larger than what is buffered for a shared connection.
    LargeRequest = "large_request", "requests after it would wait until the client has sent it";
    /// A reply was larger than what is buffered for a client.
    LargeReply = "large_reply", "replies after it would wait until the client has read it";
    /// The server requires authentication, and closes connections that send much without it.
    NotAuthenticated = "not_authenticated", "the server closes unauthenticated connections early";
}

/// Ordinary commands of administration: none of them is frequent.
pub(crate) const ADMINISTRATION: &str = "ACL BGREWRITEAOF BGSAVE COMMANDLOG CONFIG DEBUG FAILOVER FUNCTION HOTKEYS LATENCY MIGRATE \
     MODULE PFDEBUG PFSELFTEST REPLICAOF RESTORE-ASKING SAVE SFLUSH SLAVEOF SLOWLOG";

/// Ordinary commands of modules without a period in their name.
const MODULES: &str = "VADD VCARD VDIM VEMB VGETATTR VINFO VISMEMBER VLINKS VRANDMEMBER VRANGE \
                       VREM VSETATTR VSIM";

/// Ordinary commands that run scripts.
const SCRIPTS: &str = "FCALL FCALL_RO";

static ADMINISTRATION_TABLE: [u64; SLOTS] = table([0; SLOTS], ADMINISTRATION.as_bytes());
static SCRIPT_TABLE: [u64; SLOTS] = table([0; SLOTS], SCRIPTS.as_bytes());

/// Ordinary commands that may be shared. Names with a period are those of modules.
static SHARED_TABLE: [u64; SLOTS] = subset(
    NAMES.as_bytes(),
    &table(
        table(table([0; SLOTS], ADMINISTRATION.as_bytes()), MODULES.as_bytes()),
        SCRIPTS.as_bytes(),
    ),
);

/// Whether the command of that name is shared, whatever its arguments and its reply are.
#[inline]
pub(crate) fn is_shared(name: &[u8]) -> bool {
    contains(&SHARED_TABLE, key(name))
}

/// How a request with these words is handled.
pub(crate) fn sharing<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Sharing {
    let name = words.next().unwrap_or_default();
    if is_shared(name) {
        return Sharing::Shared;
    }
    let lookup = words.fold(ClassLookup::START.with(name), ClassLookup::with);
    match lookup.class() {
        Class::Ordinary | Class::ClientInfo => ordinary(name),
        Class::Iterate if name.contains(&b'.') => Sharing::Promotes(PromotionReason::Module),
        class => class.sharing(),
    }
}

/// An ordinary request that is not in the table of shared names.
fn ordinary(name: &[u8]) -> Sharing {
    let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
    if contains(&SCRIPT_TABLE, key(name)) {
        return Sharing::SharedScript;
    }
    Sharing::Promotes(if is(b"CLIENT") {
        PromotionReason::Connection
    } else if is(b"HIMPORT") {
        PromotionReason::ImportFields
    } else if is(b"SCRIPT") || is(b"CLUSTER") || contains(&ADMINISTRATION_TABLE, key(name)) {
        PromotionReason::Administration
    } else {
        PromotionReason::Module
    })
}

/// How the command with these words, separated by spaces, is handled: for the documents and for a
/// comparison with a server's table.
#[must_use]
pub fn sharing_of(command: &str) -> Sharing {
    sharing(command.split(' ').map(str::as_bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn shares_no_command_that_needs_its_connection() {
        use PromotionReason as Reason;
        let promoting = [
            ("MULTI", Reason::Transaction),
            ("exec", Reason::Transaction),
            ("WATCH k", Reason::Transaction),
            ("SUBSCRIBE c", Reason::Subscription),
            ("BLPOP k 0", Reason::Blocking),
            ("XREAD STREAMS s 0", Reason::Blocking),
            ("WAIT 1 0", Reason::Wait),
            ("MONITOR", Reason::Stream),
            ("PSYNC ? -1", Reason::Stream),
            ("CLIENT TRACKING ON", Reason::Tracking),
            ("CLIENT TRACKING", Reason::Connection),
            ("CLIENT REPLY OFF", Reason::ReplyMode),
            ("CLIENT REPLY ON", Reason::ReplyMode),
            ("CLIENT ID", Reason::Connection),
            ("CLIENT GETNAME", Reason::Connection),
            ("CLIENT LIST", Reason::Connection),
            ("CLIENT KILL x", Reason::Connection),
            ("CLIENT NO-EVICT ON", Reason::Connection),
            ("CLIENT CACHING YES", Reason::Connection),
            ("CLIENT", Reason::Connection),
            ("CLIENT NOVELTY", Reason::Unknown),
            ("CLIENT MAINT_NOTIFICATIONS ON", Reason::MaintenanceHandshake),
            ("HIMPORT SET", Reason::ImportFields),
            ("SCRIPT KILL", Reason::Administration),
            ("function kill", Reason::Administration),
            ("FUNCTION", Reason::Administration),
            ("CLUSTER SLOTS", Reason::Administration),
            ("DEBUG SLEEP 1", Reason::Administration),
            ("FT.SEARCH i q", Reason::Module),
            ("BF.SCANDUMP k 0", Reason::Module),
            ("FT.CURSOR READ i 7", Reason::Module),
            ("VSIM k", Reason::Module),
            ("QUIT", Reason::Ending),
            ("SHUTDOWN", Reason::Ending),
            ("RESET", Reason::Reset),
            ("ASKING", Reason::Asking),
            ("NOSUCH", Reason::Unknown),
            ("", Reason::Unknown),
        ];
        for (command, reason) in promoting {
            assert_eq!(sharing_of(command), Sharing::Promotes(reason), "{command}");
        }
        let others = [
            ("get k", Sharing::Shared),
            ("PING", Sharing::Shared),
            ("SCAN 0", Sharing::Shared),
            ("HSCAN k 17", Sharing::Shared),
            ("SCRIPT LOAD x", Sharing::Shared),
            ("PUBLISH c m", Sharing::Shared),
            ("EVAL x 0", Sharing::SharedScript),
            ("evalsha x 0", Sharing::SharedScript),
            ("FCALL f 0", Sharing::SharedScript),
            ("AUTH p", Sharing::Verified),
            ("HELLO 3 AUTH u p", Sharing::Verified),
            ("SELECT 1", Sharing::Verified),
            ("CLIENT SETNAME n", Sharing::Verified),
            ("CLIENT SETINFO LIB-NAME n", Sharing::Verified),
            ("CLIENT NO-TOUCH ON", Sharing::Verified),
            ("READONLY", Sharing::Verified),
        ];
        for (command, expected) in others {
            assert_eq!(sharing_of(command), expected, "{command}");
        }
    }

    #[test]
    fn sorts_every_ordinary_name() {
        let (mut shared, mut dotted) = (0, 0);
        for name in NAMES.split(' ') {
            let sharing = sharing_of(name);
            if name.contains('.') {
                assert_eq!(sharing, Sharing::Promotes(PromotionReason::Module), "{name}");
                dotted += 1;
            }
            shared += usize::from(sharing == Sharing::Shared);
            assert!(
                !matches!(sharing, Sharing::Promotes(PromotionReason::Unknown)),
                "{name}: {sharing:?}"
            );
        }
        let excluded = [ADMINISTRATION, MODULES, SCRIPTS].map(|it| it.split(' ').count());
        let excluded: usize = excluded.iter().sum();
        assert_eq!(shared + dotted + excluded, NAMES.split(' ').count());
        for name in [ADMINISTRATION, MODULES, SCRIPTS].iter().flat_map(|it| it.split(' ')) {
            assert!(NAMES.split(' ').any(|it| it == name), "{name} is not ordinary");
        }
    }

    #[test]
    fn names_every_reason_once() {
        let names: BTreeSet<&str> = PromotionReason::ALL.iter().map(|it| it.label()).collect();
        assert_eq!(names.len(), PromotionReason::ALL.len());
        for (at, reason) in PromotionReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, at);
            assert!(!reason.meaning().is_empty());
        }
    }
}
