//! Why a session that lost its server was closed instead of carried over: the word that its counter
//! and its log line share.
//!
//! Most of these are what [pinned](resp::Pin) the session, which the gauge of sessions by state
//! shows before anything happens.
//!
//! Deliberately absent: sessions that end for another reason, and those whose client had ended
//! them.

use resp::Pin;

use crate::end_reason::EndReason;

/// Why a session was closed and not carried over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotCarried {
    /// It was pinned to its server.
    Pinned(Pin),
    /// A request or a reply was under way: only the client can decide what to do.
    InFlight,
    /// The configuration says that no session is carried.
    Disabled,
    /// The new server does not accept the session's state.
    Refused,
    /// There was no server in time, or too many waited for one.
    NoServer,
    /// The server closed this connection and still answers others: it meant this session.
    ClosedByServer,
}

impl NotCarried {
    /// How many there are.
    pub const COUNT: usize = Pin::COUNT + Self::OTHERS.len();
    const OTHERS: [Self; 5] =
        [Self::InFlight, Self::Disabled, Self::Refused, Self::NoServer, Self::ClosedByServer];

    /// Every reason, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        Pin::ALL.iter().copied().map(Self::Pinned).chain(Self::OTHERS)
    }

    /// Its number.
    pub(crate) const fn number(self) -> usize {
        match self {
            Self::Pinned(pin) => pin as usize,
            Self::InFlight => Pin::COUNT,
            Self::Disabled => Pin::COUNT + 1,
            Self::Refused => Pin::COUNT + 2,
            Self::NoServer => Pin::COUNT + 3,
            Self::ClosedByServer => Pin::COUNT + 4,
        }
    }

    /// A stable word in snake case, for metrics and logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Pinned(pin) => pin.label(),
            Self::InFlight => "in_flight",
            Self::Disabled => "disabled",
            Self::Refused => "refused",
            Self::NoServer => "no_server",
            Self::ClosedByServer => "closed_by_server",
        }
    }

    /// What it is if a session that could be carried ends for `reason`; `None` if that was the
    /// client's wish or the operator's.
    pub(crate) const fn after_an_attempt(reason: EndReason) -> Option<Self> {
        match reason {
            EndReason::CarryRefused => Some(Self::Refused),
            EndReason::HoldTimeout
            | EndReason::HoldFull
            | EndReason::DialFailed
            | EndReason::NoReplica => Some(Self::NoServer),
            EndReason::UpstreamClosed
            | EndReason::UpstreamReset
            | EndReason::UpstreamLost
            | EndReason::UpstreamError => Some(Self::ClosedByServer),
            _ => None,
        }
    }
}

/// A session that was not carried over. In a box: most sessions never are one.
#[derive(Debug)]
pub(crate) struct Uncarried {
    pub(crate) why: NotCarried,
    /// The name of the unknown command that it sent, if that is why.
    pub(crate) command: Option<Box<str>>,
}

impl Uncarried {
    pub(crate) fn new(why: NotCarried) -> Box<Self> {
        Box::new(Self { why, command: None })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::NotCarried;

    #[test]
    fn labels_are_distinct_and_numbered_in_order() {
        let labels: BTreeSet<&str> = NotCarried::all().map(NotCarried::label).collect();
        assert_eq!(labels.len(), NotCarried::COUNT);
        for (number, why) in NotCarried::all().enumerate() {
            assert_eq!(why.number(), number);
        }
    }
}
