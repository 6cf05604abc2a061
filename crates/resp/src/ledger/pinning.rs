//! Determines what pins the session to its server, and when that may have changed.
//!
//! A pin changes only with a request or reply that is not ordinary, so ordinary traffic never
//! evaluates it.

use crate::commands::class::{Class, ClassGroup};
use crate::ledger::carrying::WaitUse;
use crate::ledger::connection_state::ConnectionState;
use crate::ledger::maintenance::ConnectionFeatures;
use crate::ledger::matcher::{LedgerPhase, Matcher};
use crate::ledger::pin::Pin;

impl Matcher {
    /// What pins the session to its server; `None` if it can be carried once nothing is in flight.
    pub(crate) fn pin(&self) -> Option<Pin> {
        match self.phase {
            LedgerPhase::Opaque => return Some(self.affinity.opaque_reason()),
            // The server is closing the connection.
            LedgerPhase::Ended => return None,
            LedgerPhase::Tracked => {}
        }
        let blocked = || self.head().is_some_and(|class| class.group() == ClassGroup::Blocking);
        let can_resubscribe = || self.subscriptions.are(self.recorder.subscriptions());
        let pins = [
            (self.has_unmarked(), Pin::TooManyInFlight),
            (self.connection.transaction, Pin::Transaction),
            (self.owed > 0 && blocked(), Pin::Blocking),
            (self.connection.watching, Pin::Watch),
            (self.connection.asking, Pin::Asking),
            (self.connection.tracking, Pin::Tracking),
            (!self.suppression.is_settled(), Pin::ReplyOff),
            (self.is_subscribed() && !can_resubscribe(), Pin::Subscribed),
        ];
        let pinned = pins.into_iter().find(|(is, _)| *is).map(|(_, pin)| pin);
        pinned
            .or_else(|| self.affinity.pin(self.recorder.library()))
            .or_else(|| (self.wait_use == WaitUse::OnThisConnection).then_some(Pin::Wait))
            .or_else(|| self.features.pin())
            .or_else(|| self.recorder.is_in_doubt().then_some(Pin::UnknownState))
    }

    /// Whether the server keeps state for the connection that another connection would not have.
    pub(super) fn is_pinned(&self) -> bool {
        let ConnectionState { watching, asking, tracking, transaction: _, resp3: _ } =
            self.connection;
        watching
            || asking
            || tracking
            || self.has_unmarked()
            || self.features.pin().is_some()
            || !self.suppression.is_settled()
    }

    /// What [`take_changed`](Self::take_changed) would return.
    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        self.pin_changed
    }

    /// Whether the pin may have changed since the last call.
    #[inline]
    pub(crate) fn take_changed(&mut self) -> bool {
        // Written only if it is set, because this is called at every wake-up.
        let changed = self.pin_changed;
        if changed {
            self.pin_changed = false;
        }
        changed
    }

    pub(crate) fn is_opaque(&self) -> bool {
        self.phase == LedgerPhase::Opaque
    }

    /// Stops tracking the session for good, and frees what was allocated.
    pub(crate) fn become_opaque(&mut self) {
        (self.phase, self.pin_changed) = (LedgerPhase::Opaque, true);
        self.marks.clear();
        self.recorder.clear();
        self.features = ConnectionFeatures::default();
    }

    /// Records that a request of that class, or the reply to it, is about to make the session
    /// opaque.
    #[cold]
    pub(crate) fn record_opaque_reason(&mut self, class: Class) {
        self.affinity.record_opaque_reason(match class {
            Class::Monitor => Pin::Monitor,
            Class::Replication => Pin::Replication,
            Class::Debugger => Pin::Debugger,
            _ => Pin::NotFollowed,
        });
    }

    /// Whether the session is pinned permanently.
    pub(crate) fn is_pinned_permanently(&self) -> bool {
        self.affinity.is_permanent()
    }

    /// An unknown command begins, which pins the session permanently.
    pub(crate) fn pin_permanently(&mut self) {
        self.affinity.sent(Class::Unknown);
        self.pin_changed = true;
    }

    /// The client sent what is no request.
    pub(crate) fn invalid_sent(&mut self) {
        self.affinity.invalid_sent();
    }

    /// Whether the server closes the connection, maybe without a reply, because of what the client
    /// sent: what is no request, or one of the two words by which it recognizes HTTP
    /// (`redis:src/networking.c`, `securityWarningCommand`).
    pub(crate) fn provokes_close(&self) -> bool {
        let is_http = |name: &str| ["POST", "host:"].iter().any(|it| it.eq_ignore_ascii_case(name));
        self.affinity.has_sent_invalid() || self.unknown_command().is_some_and(is_http)
    }

    /// The name of the first unknown command.
    pub(crate) fn unknown_command(&self) -> Option<&str> {
        self.recorder.unknown_command()
    }
}
