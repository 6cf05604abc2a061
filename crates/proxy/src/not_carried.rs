//! Why a session that lost its target was closed instead of carried, as one word for its counter
//! and its log line.
//!
//! Most of these are what [pinned](resp::Pin) the session, which the gauge of sessions by state
//! shows before anything happens.
//!
//! Sessions that end for another reason, or that their client ended, are not counted here.

use resp::Pin;

use crate::end_reason::EndReason;

/// Why a session was closed and not carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotCarried {
    /// It was pinned to its target.
    Pinned(Pin),
    /// A request or a reply was in flight: only the client can decide what to do.
    InFlight,
    /// Carrying is disabled by the configuration.
    Disabled,
    /// The new target does not accept the session's state.
    Refused,
    /// There was no target in time, or too many sessions waited for one.
    NoServer,
    /// The target closed this connection and still answers other ones: it meant this session.
    ClosedByServer,
    /// The service now leads to another deployment with other data.
    OtherData,
}

impl NotCarried {
    /// The number of reasons.
    pub const COUNT: usize = Pin::COUNT + Self::OTHERS.len();
    const OTHERS: [Self; 6] = [
        Self::InFlight,
        Self::Disabled,
        Self::Refused,
        Self::NoServer,
        Self::ClosedByServer,
        Self::OtherData,
    ];

    /// Every reason, in numerical order.
    pub fn all() -> impl Iterator<Item = Self> {
        Pin::ALL.iter().copied().map(Self::Pinned).chain(Self::OTHERS)
    }

    /// Its number.
    pub(crate) fn number(self) -> usize {
        Self::all().position(|it| it == self).unwrap_or_default()
    }

    /// The label in metrics and logs, in snake case. It does not change between releases.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Pinned(pin) => pin.label(),
            Self::InFlight => "in_flight",
            Self::Disabled => "disabled",
            Self::Refused => "refused",
            Self::NoServer => "no_server",
            Self::ClosedByServer => "closed_by_server",
            Self::OtherData => "other_data",
        }
    }

    /// The reason for a session that could be carried and ends for `reason`; `None` if its client
    /// or the operator wanted that.
    pub(crate) const fn after_an_attempt(reason: EndReason) -> Option<Self> {
        match reason {
            EndReason::CarryRefused => Some(Self::Refused),
            EndReason::HistoryBroken => Some(Self::OtherData),
            EndReason::HoldTimeout
            | EndReason::DialFailed
            | EndReason::TargetTlsFailed
            | EndReason::NoReplica => Some(Self::NoServer),
            reason if reason.is_loss() => Some(Self::ClosedByServer),
            _ => None,
        }
    }
}

/// A session that was not carried. Boxed by its owner, because most sessions never need it.
#[derive(Debug)]
pub(crate) struct Uncarried {
    pub(crate) why: NotCarried,
    /// The name of the unknown command that pinned it.
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
    fn numbers_distinct_labels_in_order() {
        let labels: BTreeSet<&str> = NotCarried::all().map(NotCarried::label).collect();
        assert_eq!(labels.len(), NotCarried::COUNT);
        for (number, why) in NotCarried::all().enumerate() {
            assert_eq!(why.number(), number);
        }
    }
}
