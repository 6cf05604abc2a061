//! The kind of a frame from the server, by its first words: messages and confirmations of
//! subscriptions, and errors that are a hint.
//!
//! In RESP2, messages and confirmations are arrays like any other, and only their first element
//! distinguishes them from replies (`redis:src/pubsub.c`).

use crate::commands::class::Class;

/// The kind of an array or push message, by its first element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum MessageKind {
    /// `message`, `pmessage` or `smessage`.
    Message,
    /// `subscribe`, `unsubscribe` and the like, with the class of the confirmed request.
    Confirmed(Class),
    /// Anything else, or not inspected.
    #[default]
    Other,
}

impl MessageKind {
    pub(crate) fn of(word: &[u8]) -> Self {
        match word {
            b"message" | b"pmessage" | b"smessage" => Self::Message,
            b"subscribe" => Self::Confirmed(Class::Subscribe),
            b"unsubscribe" => Self::Confirmed(Class::Unsubscribe),
            b"psubscribe" => Self::Confirmed(Class::PSubscribe),
            b"punsubscribe" => Self::Confirmed(Class::PUnsubscribe),
            b"ssubscribe" => Self::Confirmed(Class::SSubscribe),
            b"sunsubscribe" => Self::Confirmed(Class::SUnsubscribe),
            _ => Self::Other,
        }
    }
}

/// The number in a confirmation, from its line with or without the carriage return.
pub(crate) fn count(line: &[u8]) -> Option<u32> {
    std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)).ok()?.parse().ok()
}

/// An error at the start of a reply that is a reason to verify at once that the server is still the
/// master. A healthy master sends some of them too, when it is busy or loading, so verification
/// must back off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Hint {
    /// `-READONLY`: a replica refused a write.
    ReadOnly,
    /// `-UNBLOCKED`: a master that became a replica unblocked its blocked clients.
    Unblocked,
    /// `-MASTERDOWN`: a replica that has lost its master.
    MasterDown,
    /// `-LOADING`: the server was started and loads its data.
    Loading,
    /// `-CLUSTERDOWN`.
    ClusterDown,
    /// `-NOREPLICAS`: too few replicas are connected for a write to be accepted.
    NoReplicas,
    /// `-TRYAGAIN`.
    TryAgain,
}

/// All hints with the codes of their errors, in order of severity.
pub(crate) const HINTS: [(Hint, &[u8]); 7] = [
    (Hint::ReadOnly, b"READONLY"),
    (Hint::Unblocked, b"UNBLOCKED"),
    (Hint::MasterDown, b"MASTERDOWN"),
    (Hint::Loading, b"LOADING"),
    (Hint::ClusterDown, b"CLUSTERDOWN"),
    (Hint::NoReplicas, b"NOREPLICAS"),
    (Hint::TryAgain, b"TRYAGAIN"),
];

/// The bit of a hint in a set of hints.
pub(crate) fn bit(hint: Hint) -> u8 {
    1 << hint as u8
}

/// The hint in an error line, without its `-` and possibly truncated after the first word.
pub(crate) fn hint(error: &[u8]) -> Option<Hint> {
    let end = error.iter().position(|byte| matches!(byte, b' ' | b'\r')).unwrap_or(error.len());
    let code = error.get(..end)?;
    HINTS.iter().find(|(_, it)| *it == code).map(|(hint, _)| *hint)
}

/// Prefixes of errors that say that a server cannot serve now, for a reason other than its data or
/// its role. At its `maxclients`, and in protected mode, a server sends the error without a request
/// and closes the connection.
const UNAVAILABLE: [&[u8]; 3] = [BUSY, b"DENIED ", b"ERR max number of cl"];
const BUSY: &[u8] = b"BUSY ";

/// Whether an error line is such an error. It is given without its `-`, and possibly only its first
/// [`SHORT_WORD_LEN`](crate::scan::short_word::SHORT_WORD_LEN) bytes.
pub(crate) fn is_unavailable(error: &[u8]) -> bool {
    UNAVAILABLE.iter().any(|beginning| error.starts_with(beginning))
}

/// Whether it says that the server runs a script.
pub(crate) fn is_busy(error: &[u8]) -> bool {
    error.starts_with(BUSY)
}

#[cfg(test)]
mod tests {
    use super::is_unavailable;
    use crate::scan::short_word::SHORT_WORD_LEN;

    #[test]
    fn recognizes_unavailable_servers_by_short_prefixes() {
        let yes = [
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "ERR max number of clients reached",
            "ERR max number of clients + cluster connections reached",
            "DENIED Redis is running in protected mode because protected mode is enabled",
        ];
        for error in yes {
            assert!(is_unavailable(&error.as_bytes()[..SHORT_WORD_LEN as usize]), "{error}");
        }
        for error in [
            "BUSYKEY Target key name already exists.",
            "BUSYGROUP x",
            "ERR max daemons",
            "NOAUTH x",
            "",
        ] {
            assert!(!is_unavailable(error.as_bytes()), "{error}");
        }
    }
}
