//! What of the replies is not compared, and why: the one list of known differences.
//!
//! A reply is compared byte by byte unless its command is listed here, or its example in
//! `tests/e2e/shared_commands/examples.txt` is marked as dependent on the server or the time.

/// How a reply is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Byte by byte.
    Exact,
    /// Only its type; errors byte by byte.
    Kind,
    /// Without the number of the connection in it.
    HelloId,
    /// Only fields about the state of the session.
    ClientFields,
    /// Fields about the state of the session without the library's name.
    SharedFields,
    /// Of a protocol error, only that it is one.
    ProtocolError,
    /// As a set of lines.
    Unordered,
    /// The proxy agrees in place of a server that does not know the command, if the client uses
    /// RESP3.
    Agreed,
    /// The request is not sent at all.
    LeftOut,
}

use Treatment::{Agreed, ClientFields, HelloId, Kind, LeftOut, SharedFields, Unordered};

/// What bytes that are no request are answered. Pointsman does not forward them (`refuse`) and lets
/// the server answer other ones, so the text says something else.
pub(super) const NO_REQUEST: Treatment = Treatment::ProtocolError;

/// A command, how its reply is treated, whether only with shared connections, and the reason.
type Exception = (&'static str, Treatment, bool, &'static str);

const EXCEPTIONS: &[Exception] = &[
    ("HELLO", HelloId, false, "the number is that of a connection"),
    ("CLIENT ID", Kind, false, "the number is that of a connection"),
    ("CLIENT GETREDIR", Kind, false, "the number is that of a connection"),
    ("CLIENT TRACKINGINFO", HelloId, false, "has the number of a connection"),
    ("CLIENT INFO", SharedFields, true, "has the library of a former client"),
    ("CLIENT INFO", ClientFields, false, "numbers, addresses, ages and buffers of a connection"),
    ("CLIENT LIST", Kind, false, "lists Pointsman's connections, without names of sharing clients"),
    ("CLIENT KILL", LeftOut, false, "ends connections of others; only a client's own is compared"),
    ("CLIENT MAINT_NOTIFICATIONS", Agreed, false, "Pointsman agrees in the server's place"),
    ("CLIENT PAUSE", LeftOut, false, "stops Pointsman's own connections as well"),
    ("CLIENT UNPAUSE", LeftOut, false, "without a pause there is nothing to compare"),
    ("CLIENT CAPA", LeftOut, false, "no server of this comparison redirects"),
    ("SLOWLOG", Kind, false, "has commands of Pointsman"),
    ("COMMANDLOG", Kind, false, "has commands of Pointsman"),
    ("LATENCY", Kind, false, "has commands of Pointsman"),
    ("ACL LOG", Kind, false, "has times, numbers of connections, and commands of Pointsman"),
    ("ACL LIST", Kind, false, "hashes of passwords have no order"),
    ("MEMORY", Kind, false, "memory of a process"),
    ("INFO", Kind, false, "state of a process"),
    ("LOLWUT", Kind, false, "has the version and, in some versions, random art"),
    ("TIME", Kind, false, "the time"),
    ("LASTSAVE", Kind, false, "the start of a server"),
    ("SCAN", Kind, false, "the order of keys depends on a random seed of each server"),
    ("RANDOMKEY", Kind, false, "random"),
    ("SRANDMEMBER", Kind, false, "random"),
    ("HRANDFIELD", Kind, false, "random"),
    ("ZRANDMEMBER", Kind, false, "random"),
    ("SPOP", Kind, false, "random"),
    ("SMEMBERS", Unordered, false, "a set has no order"),
    ("SUNION", Unordered, false, "a set has no order"),
    ("SINTER", Unordered, false, "a set has no order"),
    ("SDIFF", Unordered, false, "a set has no order"),
    ("HGETALL", Unordered, false, "a large hash has no order"),
    ("HKEYS", Unordered, false, "a large hash has no order"),
    ("HVALS", Unordered, false, "a large hash has no order"),
    ("KEYS", Unordered, false, "keys have no order"),
    ("PUBSUB", Unordered, false, "channels have no order"),
    ("COMMAND", Kind, false, "the commands of a server have no order"),
    ("CLUSTER", LeftOut, false, "a service of sentinels has no cluster"),
    ("MONITOR", LeftOut, false, "shows commands of Pointsman"),
    ("WAIT", LeftOut, true, "ends a session that has shared a connection (state_lost)"),
    ("WAITAOF", LeftOut, true, "ends a session that has shared a connection (state_lost)"),
    ("MIGRATE", LeftOut, false, "connects to another server"),
    ("MODULE", LeftOut, false, "changes the server"),
    ("CONFIG", LeftOut, false, "changes the server for later conversations"),
    ("ACL LOAD", LeftOut, false, "ends users of the rig"),
    ("ACL SAVE", LeftOut, false, "writes files of the rig"),
    ("BGSAVE", LeftOut, false, "its reply depends on an earlier one that still runs"),
    ("BGREWRITEAOF", LeftOut, false, "its reply depends on an earlier one that still runs"),
    ("REPLCONF", LeftOut, false, "the connection becomes a stream of replication"),
    ("PFDEBUG", LeftOut, false, "may end the server"),
    ("PFSELFTEST", LeftOut, false, "takes seconds"),
    ("HOTKEYS", LeftOut, false, "counts commands of Pointsman"),
];

/// How the reply to this request is compared.
pub(super) fn treatment(words: &[Vec<u8>], is_shared: bool) -> Treatment {
    let name = |count: usize| {
        let words: Vec<_> = words.iter().take(count).map(|it| it.to_ascii_uppercase()).collect();
        words.join(&b' ')
    };
    let found = |name: &[u8]| {
        EXCEPTIONS
            .iter()
            .find(|(command, _, shared, _)| command.as_bytes() == name && (is_shared || !shared))
    };
    let listed = found(&name(2)).or_else(|| found(&name(1)));
    listed.map_or(Treatment::Exact, |(_, treatment, _, _)| *treatment)
}

/// The list for people.
pub(super) fn table() -> String {
    let line = |(command, treatment, shared, why): &Exception| {
        let only = if *shared { " (shared)" } else { "" };
        format!("  {command:<16} {:<13} {why}{only}\n", format!("{treatment:?}"))
    };
    EXCEPTIONS.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, is_shared: bool) -> Treatment {
        let words: Vec<Vec<u8>> = text.split(' ').map(|it| it.as_bytes().to_vec()).collect();
        treatment(&words, is_shared)
    }

    #[test]
    fn prefers_the_entry_of_a_subcommand() {
        assert_eq!(of("client id", false), Kind);
        assert_eq!(of("CLIENT GETNAME", false), Treatment::Exact);
        assert_eq!((of("WAIT 0 0", false), of("WAIT 0 0", true)), (Treatment::Exact, LeftOut));
        let info = (of("CLIENT INFO", false), of("CLIENT INFO", true));
        assert_eq!(info, (ClientFields, SharedFields));
    }

    #[test]
    fn gives_one_reason_for_each_exception() {
        let mut names: Vec<(&str, bool)> = EXCEPTIONS.iter().map(|it| (it.0, it.2)).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EXCEPTIONS.len());
        assert!(EXCEPTIONS.iter().all(|it| it.3.len() > 5) && table().contains("WAITAOF"));
    }
}
