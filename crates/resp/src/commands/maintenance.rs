//! Newer commands that change what a connection is: the handshake about pushes that tell of
//! maintenance, and what lasts as long as the connection does.
//!
//! `CLIENT MAINT_NOTIFICATIONS` is Redis Software's; the servers that Sentinel watches do not know
//! it. So the agreement may be with whoever stands before the server, and then it is nothing that
//! the server keeps: it goes along to the next one. If the server itself agreed, the session is
//! pinned, as it is by what Valkey lets clients say about themselves for good. What the client was
//! told last is kept here too, because it goes the same way.
//!
//! Deliberately absent: the pushes.

use crate::commands::class::Class;
use crate::ledger::pin::Pin;

/// What a client has agreed to be sent about maintenance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaintenanceHandshake {
    /// Nothing.
    #[default]
    Off,
    /// Pushes; one that tells it to move has to name an address.
    On,
    /// Pushes; told to move without an address, it connects again to the one that it has.
    Here,
}

/// What is known of one session in this respect.
#[derive(Debug, Default)]
pub(crate) struct Novel {
    /// Handshakes that were sent and not answered. Beyond what fits, the last ones are answered by
    /// the server alone.
    asked: u16,
    agreed: MaintenanceHandshake,
    /// The client was told of a failover, and not yet of its end.
    told: bool,
    /// Fields were prepared for imports.
    prepared: bool,
    /// The server keeps something that it has to be asked for again, or cannot be.
    lasting: bool,
}

impl Novel {
    /// A request of that class is marked.
    pub(crate) fn asked(&mut self, class: Class) {
        if class.is_about_notices() {
            self.asked = self.asked.saturating_add(1);
        }
    }

    /// One was answered.
    pub(crate) fn answered(&mut self, class: Class) {
        if class.is_about_notices() {
            self.asked = self.asked.saturating_sub(1);
        }
    }

    /// Whether one is still to be answered.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked > 0
    }

    /// The server accepted it.
    pub(crate) fn accepted(&mut self, class: Class) {
        match class {
            Class::Prepare => self.prepared = true,
            Class::DiscardAll => self.prepared = false,
            _ => self.lasting = true,
        }
        self.agree(class);
    }

    /// Somebody accepted it.
    pub(crate) fn agree(&mut self, class: Class) {
        match class {
            Class::NoticesOn => self.agreed = MaintenanceHandshake::On,
            Class::NoticesHere => self.agreed = MaintenanceHandshake::Here,
            Class::NoticesOff => self.agreed = MaintenanceHandshake::Off,
            _ => {}
        }
    }

    pub(crate) fn agreed(&self) -> MaintenanceHandshake {
        self.agreed
    }

    pub(crate) fn is_told(&self) -> bool {
        self.told
    }

    pub(crate) fn tell(&mut self, told: bool) {
        self.told = told;
    }

    /// The session was carried over: what was agreed on and what was told before is so still.
    pub(crate) fn take_over(&mut self, before: &Self) {
        (self.agreed, self.told) = (before.agreed, before.told);
    }

    /// `RESET` was answered with success.
    pub(crate) fn reset(&mut self) {
        (self.agreed, self.told, self.prepared) = (MaintenanceHandshake::Off, false, false);
    }

    /// What of this the server keeps for the connection.
    pub(crate) fn pin(&self) -> Option<Pin> {
        if self.lasting { Some(Pin::Lasting) } else { self.prepared.then_some(Pin::Prepared) }
    }

    /// Whether the server keeps something of this for the connection.
    pub(crate) fn is_kept(&self) -> bool {
        self.lasting || self.prepared
    }
}
