//! What the first element of a server's message says it is.
//!
//! In RESP2, messages and the confirmations of subscriptions look like any other array, so their
//! first element is all that tells them from a reply (`redis:src/pubsub.c`).

use crate::commands::class::Class;
use crate::ledger::session_state::Hint;

/// The first element of an array or push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// `message`, `pmessage` or `smessage`.
    Message,
    /// `subscribe`, `unsubscribe` or one of their siblings: the class of the request it confirms.
    Confirmed(Class),
    /// Anything else, or not looked at.
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

/// The number of a confirmation, given as its line, perhaps with the carriage return.
pub(crate) fn count(line: &[u8]) -> Option<u32> {
    std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)).ok()?.parse().ok()
}

/// The gravest first.
pub(crate) const HINTS: [Hint; 7] = [
    Hint::ReadOnly,
    Hint::Unblocked,
    Hint::MasterDown,
    Hint::Loading,
    Hint::ClusterDown,
    Hint::NoReplicas,
    Hint::TryAgain,
];

/// Its place in a set of hints.
pub(crate) fn bit(hint: Hint) -> u8 {
    1 << hint as u8
}

/// The hint in an error line, given without its `-` and perhaps cut short behind the first word.
pub(crate) fn hint(error: &[u8]) -> Option<Hint> {
    let end = error.iter().position(|byte| matches!(byte, b' ' | b'\r')).unwrap_or(error.len());
    Some(match error.get(..end)? {
        b"READONLY" => Hint::ReadOnly,
        b"UNBLOCKED" => Hint::Unblocked,
        b"MASTERDOWN" => Hint::MasterDown,
        b"LOADING" => Hint::Loading,
        b"CLUSTERDOWN" => Hint::ClusterDown,
        b"NOREPLICAS" => Hint::NoReplicas,
        b"TRYAGAIN" => Hint::TryAgain,
        _ => return None,
    })
}

/// How errors begin that say that a server serves no one at present, without being about its data
/// or its role. At its `maxclients`, and in protected mode, it writes one unasked and closes the
/// connection.
const UNAVAILABLE: [&[u8]; 3] = [b"BUSY ", b"DENIED ", b"ERR max number of cl"];

/// Whether an error line, given without its `-` and perhaps only its first
/// [`SHORT_WORD_LEN`](crate::scan::short_word::SHORT_WORD_LEN) bytes, says so.
pub(crate) fn is_unavailable(error: &[u8]) -> bool {
    UNAVAILABLE.iter().any(|beginning| error.starts_with(beginning))
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
