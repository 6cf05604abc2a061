//! The counters of shared upstream connections.

use resp::PromotionReason;

use crate::counter::{Counter, Counters, counted};

/// The number of reasons for which a session gets a connection of its own: those of requests and
/// replies, a request that the server has to verify, and a shared connection that is not available.
const PROMOTIONS: usize = PromotionReason::COUNT + 2;

/// What says which commands are shared on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableSource {
    /// The built-in table, and the server's own.
    Server,
    /// The built-in table alone: the server does not show its own to the clients' user.
    BuiltIn,
}

counted! {
    /// The counters of one worker for one service.
    pub(crate) struct SharedCounters;

    /// The counters of shared upstream connections of one service, summed over all workers.
    pub struct SharedSnapshot {
        /// Times that a session that shares began to rest.
        rests: Counter => u64,
        /// Promotions to a connection of the session's own, in the order of [`Self::reasons`].
        promoted: Counters<PROMOTIONS> => [u64; PROMOTIONS],
        /// Times that a session returned to shared connections.
        returned: Counter => u64,
        /// Shared connections opened.
        opened: Counter => u64,
        /// Attempts to open one that failed.
        not_opened: Counter => u64,
        /// Shared connections closed because the target's replies contradicted the requests.
        desyncs: Counter => u64,
        /// Sessions that had requests in flight on a shared connection that was lost.
        members_lost: Counter => u64,
        /// Writes to shared connections that contained new requests.
        writes: Counter => u64,
        /// The requests in them.
        requests: Counter => u64,
        /// Times that a server was asked whether it admits clients without credentials, in the
        /// order of [`Self::answers`].
        access_checks: Counters<3> => [u64; 3],
        /// Sessions that share connections now.
        sessions: Counter => u64,
        /// Sessions that have a connection of their own now. Without sharing, all that are
        /// connected.
        dedicated: Counter => u64,
        /// Shared connections open now.
        connections: Counter => u64,
        /// Those of them by the table of commands in force, in the order of [`Self::tables`].
        by_table: Counters<2> => [u64; 2],
    }
}

impl SharedSnapshot {
    /// The labels of the promotions, in their order. They do not change between releases.
    pub fn reasons() -> impl Iterator<Item = &'static str> {
        let names = PromotionReason::ALL.iter().map(|reason| reason.label());
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
}
