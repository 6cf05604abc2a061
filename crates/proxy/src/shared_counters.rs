//! The counters of shared upstream connections.

use resp::PromotionReason;

use crate::counter::{Counter, Counters};

/// The number of reasons for which a session gets a connection of its own: those of requests and
/// replies, a request that the server has to verify, and a shared connection that is not available.
const PROMOTIONS: usize = PromotionReason::ALL.len() + 2;

/// What says which commands are shared on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableSource {
    /// The built-in table, and the server's own.
    Server,
    /// The built-in table alone: the server does not show its own to the clients' user.
    BuiltIn,
}

/// The counters of one worker for one service.
#[derive(Debug, Default)]
pub(crate) struct SharedCounters {
    /// Sessions that began or began again to share, and sessions that ceased to.
    pub(crate) joined: Counter,
    pub(crate) left: Counter,
    /// Sessions that have a connection of their own now.
    pub(crate) dedicated: Counter,
    /// Times that a session began to rest.
    pub(crate) rests: Counter,
    pub(crate) promoted: Counters<PROMOTIONS>,
    pub(crate) returned: Counter,
    pub(crate) opened: Counter,
    pub(crate) closed: Counter,
    /// Open connections, in the order of [`TableSource`].
    pub(crate) by_table: Counters<2>,
    pub(crate) not_opened: Counter,
    pub(crate) desyncs: Counter,
    pub(crate) members_lost: Counter,
    pub(crate) writes: Counter,
    pub(crate) requests: Counter,
    /// Times that a server was asked whether it admits clients without credentials, in the order of
    /// [`SharedSnapshot::answers`].
    pub(crate) access_checks: Counters<3>,
}

/// The counters of shared upstream connections of one service, summed over all workers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedSnapshot {
    /// Sessions that share connections now.
    pub sessions: u64,
    /// Sessions that have a connection of their own now. Without sharing, all that are connected.
    pub dedicated: u64,
    /// Times that a session that shares began to rest.
    pub rests: u64,
    /// Promotions to a connection of the session's own, in the order of [`Self::reasons`].
    pub promoted: [u64; PROMOTIONS],
    /// Times that a session returned to shared connections.
    pub returned: u64,
    /// Shared connections open now.
    pub connections: u64,
    /// Those of them by the table of commands in force, in the order of [`Self::tables`].
    pub by_table: [u64; 2],
    /// Shared connections opened.
    pub opened: u64,
    /// Attempts to open one that failed.
    pub not_opened: u64,
    /// Shared connections closed because the target's replies contradicted the requests.
    pub desyncs: u64,
    /// Sessions that had requests in flight on a shared connection that was lost.
    pub members_lost: u64,
    /// Writes to shared connections that contained new requests.
    pub writes: u64,
    /// The requests in them.
    pub requests: u64,
    /// Times that a server was asked whether it admits clients without credentials, in the order of
    /// [`Self::answers`].
    pub access_checks: [u64; 3],
}

impl SharedSnapshot {
    /// The labels of the promotions, in their order. They do not change between releases.
    pub fn reasons() -> impl Iterator<Item = &'static str> {
        let names = PromotionReason::ALL.iter().map(|reason| reason.name());
        names.chain(["verification", "not_connected"])
    }

    /// The labels of the tables of commands, in their order: that of the server, and the built-in
    /// one alone. They do not change between releases.
    #[must_use]
    pub fn tables() -> [&'static str; 2] {
        ["server", "built_in"]
    }

    /// The labels of the answers to that question, in their order: the server admits such clients,
    /// it does not, or it could not be asked. They do not change between releases.
    #[must_use]
    pub fn answers() -> [&'static str; 3] {
        ["admitted", "refused", "failed"]
    }

    pub(crate) fn add(&mut self, counters: &SharedCounters) {
        // Ends before beginnings, so that what does both in between is not missing.
        let (left, closed) = (counters.left.get(), counters.closed.get());
        self.sessions += counters.joined.get().saturating_sub(left);
        self.dedicated += counters.dedicated.get();
        self.rests += counters.rests.get();
        let opened = counters.opened.get();
        self.connections += opened.saturating_sub(closed);
        self.opened += opened;
        counters.promoted.add_to(&mut self.promoted);
        counters.by_table.add_to(&mut self.by_table);
        counters.access_checks.add_to(&mut self.access_checks);
        self.returned += counters.returned.get();
        self.not_opened += counters.not_opened.get();
        self.desyncs += counters.desyncs.get();
        self.members_lost += counters.members_lost.get();
        self.writes += counters.writes.get();
        self.requests += counters.requests.get();
    }
}
