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

impl Matcher {
    /// The refused command that the next reply answers.
    pub(crate) fn next_reply_is_refusal(&self) -> Option<RefusedCommand> {
        let refused = self.head() == Some(Class::Refused);
        let mark = self.marks.first().filter(|_| refused)?;
        Some(RefusedCommand::from_number(mark.expected()))
    }

    /// Whether the next reply answers a handshake.
    pub(crate) fn next_reply_is_handshake(&self) -> bool {
        self.head().is_some_and(Class::is_maintenance_handshake)
    }

    /// The notifications that the client can be sent now: none without RESP3, or to an opaque
    /// session.
    pub(crate) fn maintenance_handshake(&self) -> MaintenanceHandshake {
        let has_pushes = self.connection.resp3 && !self.is_opaque();
        if has_pushes { self.features.agreed } else { MaintenanceHandshake::Off }
    }

    /// Accepts the handshake that the server has just refused. Returns whether that is possible.
    pub(crate) fn accept_handshake(&mut self) -> bool {
        let in_transaction = self.connection.transaction || self.has_unmarked();
        match self.last_answer {
            Some((class, ReplyOutcome::Error))
                if class.is_maintenance_handshake() && self.connection.resp3 && !in_transaction =>
            {
                self.features.agree(class);
                true
            }
            _ => false,
        }
    }
}
