//! The maintenance handshake, and other features that a client enables for its connection.
//!
//! `CLIENT MAINT_NOTIFICATIONS` is a command of Redis Software; the servers that Sentinel monitors
//! do not support it. A proxy can accept the handshake in the server's place. Then the server keeps
//! nothing, and the agreement is carried with the session. If the server itself accepts it, the
//! session is pinned, and so it is by the capabilities that Valkey keeps for a connection. The
//! failover state last announced to the client is kept here as well, because it is carried in the
//! same way.

use crate::commands::class::Class;
use crate::commands::refused::RefusedCommand;
use crate::ledger::Ledger;
use crate::ledger::matcher::Matcher;
use crate::ledger::session_state::Pin;
use crate::ledger::session_state::ReplyOutcome;

/// The maintenance notifications that a client has agreed to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaintenanceHandshake {
    /// None.
    #[default]
    Off,
    /// Push messages; one that asks the client to move must contain an address.
    On,
    /// Push messages; asked to move without an address, the client reconnects to the address that
    /// it has.
    WithoutAddress,
}

/// The features of one connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionFeatures {
    /// Handshakes, and substitutes of refused requests, that were sent and are unanswered. If there
    /// are more than fit, only the server answers the last ones.
    pending: u16,
    agreed: MaintenanceHandshake,
    /// A failover was announced to the client, and its end was not.
    pub(super) failover_announced: bool,
    /// `HIMPORT PREPARE` was accepted.
    prepared: bool,
    /// The server keeps something that `RESET` does not clear.
    permanent: bool,
}

impl ConnectionFeatures {
    /// A request of that class was marked.
    pub(crate) fn sent(&mut self, class: Class) {
        if class.has_replaced_error() {
            self.pending = self.pending.saturating_add(1);
        }
    }

    /// A marked request of that class was answered.
    pub(crate) fn answered(&mut self, class: Class) {
        if class.has_replaced_error() {
            self.pending = self.pending.saturating_sub(1);
        }
    }

    /// Whether a request is unanswered whose error may have to be replaced.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// The server accepted a request of that class.
    pub(crate) fn accepted(&mut self, class: Class) {
        match class {
            Class::ImportPrepare => self.prepared = true,
            Class::ImportDiscardAll => self.prepared = false,
            _ => self.permanent = true,
        }
        self.agree(class);
    }

    /// The server, or the proxy in its place, accepted a handshake.
    fn agree(&mut self, class: Class) {
        match class {
            Class::MaintenanceOn => self.agreed = MaintenanceHandshake::On,
            Class::MaintenanceOnWithoutAddress => {
                self.agreed = MaintenanceHandshake::WithoutAddress;
            }
            Class::MaintenanceOff => self.agreed = MaintenanceHandshake::Off,
            _ => {}
        }
    }

    /// The session was carried here: the agreement and the announced state remain.
    pub(crate) fn carry_from(&mut self, before: &Self) {
        (self.agreed, self.failover_announced) = (before.agreed, before.failover_announced);
    }

    /// `RESET` was answered with success.
    pub(crate) fn reset(&mut self) {
        self.agreed = MaintenanceHandshake::Off;
        (self.failover_announced, self.prepared) = (false, false);
    }

    /// The pin, if the server keeps one of these features for the connection.
    pub(crate) fn pin(&self) -> Option<Pin> {
        if self.permanent {
            Some(Pin::ClientCapability)
        } else {
            self.prepared.then_some(Pin::PreparedFields)
        }
    }
}

impl Ledger {
    /// The refused command that the next frame answers, unless that is a push message. Only at a
    /// reply boundary.
    #[must_use]
    pub fn next_reply_is_refusal(&self) -> Option<RefusedCommand> {
        let refused = self.replies.at_boundary() && self.matcher.head() == Some(Class::Refused);
        let mark = self.matcher.marks.first().filter(|_| refused)?;
        Some(RefusedCommand::from_number(mark.expected()))
    }

    /// Whether `CLIENT MAINT_NOTIFICATIONS` was sent and not answered yet.
    #[inline]
    #[must_use]
    pub fn awaits_handshake_reply(&self) -> bool {
        self.matcher.features.is_pending()
    }

    /// Whether the next frame from the server answers it, unless that is a push message. Only true
    /// at a reply boundary.
    #[must_use]
    pub fn next_reply_is_handshake(&self) -> bool {
        self.matcher.head().is_some_and(Class::is_maintenance_handshake)
            && self.replies.at_boundary()
    }

    /// The maintenance notifications that the client has agreed to receive. None unless the session
    /// uses RESP3 now, which has push messages, and if it is opaque.
    #[must_use]
    pub fn maintenance_handshake(&self) -> MaintenanceHandshake {
        let has_pushes = self.matcher.connection.resp3 && !self.is_opaque();
        if has_pushes { self.matcher.features.agreed } else { MaintenanceHandshake::Off }
    }

    /// Accepts the handshake in the server's place, right after the server refused it. Returns
    /// whether that is possible: not in RESP2, and not in a transaction, which the refusal aborts.
    pub fn accept_handshake(&mut self) -> bool {
        let Matcher { connection, last_answer, .. } = &self.matcher;
        let in_transaction = connection.transaction || self.matcher.has_unmarked();
        match *last_answer {
            Some((class, ReplyOutcome::Error))
                if class.is_maintenance_handshake() && connection.resp3 && !in_transaction =>
            {
                self.matcher.features.agree(class);
                true
            }
            _ => false,
        }
    }

    /// Whether the last announcement to the client was that of a failover in progress. Kept when
    /// the session is carried.
    #[must_use]
    pub fn failover_announced(&self) -> bool {
        self.matcher.features.failover_announced
    }

    /// Records the last announcement to the client.
    pub fn set_failover_announced(&mut self, under_way: bool) {
        self.matcher.features.failover_announced = under_way;
    }
}
