//! What the first element of a server's message says it is.
//!
//! In RESP2, messages and the confirmations of subscriptions look like any other array, so their first element is all that
//! tells them from a reply (`redis:src/pubsub.c`).

use crate::class::Class;
use crate::standing::Hint;

/// The first element of an array or push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// `message`, `pmessage` or `smessage`.
    Message,
    /// `subscribe`, `unsubscribe` or one of their siblings: the class of the request it confirms.
    Confirmed(Class),
    /// Anything else, or not looked at.
    Other,
}

impl Said {
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
