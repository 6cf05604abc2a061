//! Where a switchover stands.

use std::time::Instant;

use super::Outcome;
use super::reason::Reason;
use super::weigh::CatchUp;

/// The phases in their order; see `course` for what leads from one to the next.
#[derive(Debug)]
pub(super) enum Phase {
    /// The gate is being shut.
    Shutting,
    /// What was sent before is executed.
    Settling {
        until: Instant,
    },
    /// The first `CLIENT PAUSE` is under way.
    Pausing,
    /// `look_at` is `None` while a look is under way.
    CatchUp {
        waiting: CatchUp,
        look_at: Option<Instant>,
    },
    Ordering {
        since: Instant,
    },
    /// `ask_at` is `None` while a question is under way.
    Following {
        since: Instant,
        ask_at: Option<Instant>,
    },
    /// The leader was lost after it had selected a replica.
    Leaderless {
        since: Instant,
        until: Instant,
        problem: String,
    },
    /// The new master is in force.
    Lingering {
        until: Instant,
        outcome: Outcome,
    },
    /// Only the pause has to be taken back.
    Ending(Result<Outcome, Reason>),
    Over,
}

impl Phase {
    /// Nothing has been changed yet.
    pub(super) fn may_be_taken_back(&self) -> bool {
        matches!(
            self,
            Self::Shutting | Self::Settling { .. } | Self::Pausing | Self::CatchUp { .. }
        )
    }

    /// The order was sent, and what comes of it is not known.
    pub(super) fn is_after_the_order(&self) -> bool {
        matches!(self, Self::Ordering { .. } | Self::Following { .. } | Self::Leaderless { .. })
    }

    /// The master's other clients are kept paused, if they are paused at all.
    pub(super) fn keeps_clients_paused(&self) -> bool {
        matches!(self, Self::CatchUp { .. } | Self::Lingering { .. }) || self.is_after_the_order()
    }
}
