//! What keeps the session on its server, and when that may have changed.
//!
//! Everything a pin is made of changes only with a request or a reply that is not ordinary, so
//! ordinary traffic never asks.

use super::{Life, Matcher};
use crate::commands::class::{Class, Group};
use crate::commands::maintenance::Novel;
use crate::ledger::pin::Pin;
use crate::ledger::waiting::Waiting;

impl Matcher {
    /// What keeps the session on its server; `None` if it is carried over once nothing is in
    /// flight.
    pub(crate) fn pin(&self) -> Option<Pin> {
        match self.life {
            Life::Opaque => return Some(self.bound.opaque_since()),
            // The server closes it.
            Life::Ended => return None,
            Life::Followed => {}
        }
        let blocked = || self.head().is_some_and(|class| class.group() == Group::Blocking);
        let resubscribed = || self.subscriptions.are(self.recorder.subscriptions());
        let pins = [
            (self.has_missed(), Pin::TooManyInFlight),
            (self.kept.transaction, Pin::Transaction),
            (self.owed > 0 && blocked(), Pin::Blocking),
            (self.kept.watching, Pin::Watch),
            (self.kept.asking, Pin::Asking),
            (self.kept.tracking, Pin::Tracking),
            (!self.silence.is_over(), Pin::ReplyOff),
            (self.is_subscribed() && !resubscribed(), Pin::Subscribed),
        ];
        let pinned = pins.into_iter().find(|(is, _)| *is).map(|(_, pin)| pin);
        pinned
            .or_else(|| self.bound.pin(self.recorder.library()))
            .or_else(|| (self.waiting == Waiting::Stays).then_some(Pin::Wait))
            .or_else(|| self.novel.pin())
            .or_else(|| self.recorder.is_in_doubt().then_some(Pin::Doubt))
    }

    /// Whether the pin may have changed since this was last asked.
    #[inline]
    pub(crate) fn take_changed(&mut self) -> bool {
        // Written to only if it is set: it is asked at every wake-up.
        let changed = self.changed;
        if changed {
            self.changed = false;
        }
        changed
    }

    pub(crate) fn is_opaque(&self) -> bool {
        self.life == Life::Opaque
    }

    /// Gives up, for good, and frees what was allocated.
    pub(crate) fn turn_opaque(&mut self) {
        (self.life, self.changed) = (Life::Opaque, true);
        self.marks.clear();
        self.recorder.clear();
        self.novel = Novel::default();
    }

    /// Notes that a request of that class, or the reply to it, is about to make the session opaque.
    #[cold]
    pub(crate) fn blame(&mut self, class: Class) {
        self.bound.blame(match class {
            Class::Monitor => Pin::Monitor,
            Class::Replication => Pin::Replication,
            Class::Debugger => Pin::Debugger,
            _ => Pin::NotFollowed,
        });
    }

    /// Whether an unknown command has bound the session.
    pub(crate) fn is_bound_for_good(&self) -> bool {
        self.bound.is_for_good()
    }

    /// An unknown command begins.
    pub(crate) fn bind_for_good(&mut self) {
        self.bound.asked(Class::Unknown);
        self.changed = true;
    }

    /// The name of the first unknown command.
    pub(crate) fn unknown(&self) -> Option<&str> {
        self.recorder.unknown()
    }
}
