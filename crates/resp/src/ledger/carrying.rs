//! Whether the session can be carried to another connection, as far as the ledger knows.
//!
//! `WAIT` and `WAITAOF` refer to the writes of their own connection. On another connection the
//! server would answer at once, and about nothing (`redis:src/replication.c`, `waitCommand`,
//! compares with the offset of the client's own last write). A session that has used them is
//! therefore not carried, and one that uses them for the first time after it was carried is ended
//! before that reply.
//!
//! Deliberately absent: what is sent to the other server ([`replay`](crate::replay)).

use crate::ledger::matcher::Matcher;
use crate::ledger::replay_state::ReplayState;
use crate::ledger::session_state::ReplyOutcome;
use crate::scan::reply::ReplyScanner;

/// The use of `WAIT` in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WaitUse {
    /// Never sent.
    #[default]
    Never,
    /// Sent on the connection on which the writes were made.
    OnThisConnection,
    /// Not sent on this connection, but the session was carried: writes may have been made on the
    /// connection before.
    Carried,
    /// Sent after the session was carried.
    AfterCarry,
}

impl WaitUse {
    /// The state after one more `WAIT`.
    pub(crate) fn after_wait(self) -> Self {
        match self {
            Self::Never | Self::OnThisConnection => Self::OnThisConnection,
            Self::Carried | Self::AfterCarry => Self::AfterCarry,
        }
    }
}

impl Matcher {
    /// An iterating command that sent the cursor with the digest `sent` was answered.
    pub(super) fn iterated(&mut self, sent: u32, outcome: ReplyOutcome, frame: &ReplyScanner) {
        match (outcome, frame.top()) {
            // The cursor is still valid: the client may send it again.
            (ReplyOutcome::Error, _) => {}
            (ReplyOutcome::Queued, _) => self.affinity.cursor_missed(),
            (ReplyOutcome::Done, b'+') => self.affinity.cursor_closed(sent),
            (ReplyOutcome::Done, _) => self.affinity.cursor_returned(sent, frame.cursor()),
        }
    }

    /// Whether all subscriptions are known by name, and nothing else pins the session.
    pub(crate) fn can_resubscribe(&self) -> bool {
        !self.is_pinned() && self.subscriptions.are(self.recorder.subscriptions())
    }

    /// The state to replay on another connection; the inner `None` is that of a fresh connection.
    /// The outer `None` if the session cannot be carried.
    pub(crate) fn replay_state(&self) -> Option<Option<&ReplayState>> {
        if self.has_unmarked()
            || self.wait_use == WaitUse::OnThisConnection
            || self.affinity.is_pinned(self.recorder.library())
        {
            None
        } else {
            self.recorder.replay_state()
        }
    }

    /// What is recorded of the replayable state, parts in doubt included; `None` if the client has
    /// changed nothing of it.
    pub(crate) fn recorded_state(&self) -> Option<&ReplayState> {
        self.recorder.recorded_state()
    }

    /// Records that the session was carried here from the connection of `before`.
    pub(crate) fn was_carried(&mut self, before: &Self) {
        (self.wait_use, self.pin_changed) = (WaitUse::Carried, true);
        self.features.carry_from(&before.features);
        self.affinity.carry_from(before.affinity);
    }

    /// Records that the session continues on another connection to the same server.
    pub(crate) fn changed_connection(&mut self) {
        if self.wait_use == WaitUse::Never {
            self.wait_use = WaitUse::Carried;
        }
    }

    /// Records that the session continues on a connection to another server.
    pub(crate) fn changed_server(&mut self) {
        (self.wait_use, self.pin_changed) = (WaitUse::Carried, true);
        self.affinity.carry_from(self.affinity);
    }

    /// Whether the session was carried and then called a script of its former server within a
    /// transaction. It will do so again for as long as its connection lasts
    /// (`docs/decisions/carrying.md`).
    pub(crate) fn relies_on_former_scripts(&self) -> bool {
        self.affinity.relies_on_former_scripts()
    }
}
