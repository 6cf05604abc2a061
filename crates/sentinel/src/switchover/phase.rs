//! The phases of a switchover.

use std::time::Instant;

use super::SwitchoverOutcome;
use super::catch_up::CatchUp;
use super::error::SwitchoverError;

/// The phases in their order; see `state_machine` for the transitions.
#[derive(Debug)]
pub(super) enum SwitchoverPhase {
    /// The gate is being closed.
    ClosingGate,
    /// Waiting for requests that were sent before to be executed.
    Settling {
        until: Instant,
    },
    /// The first `CLIENT PAUSE` is pending.
    Pausing,
    /// `look_at` is `None` while the offsets are being read.
    CatchUp {
        catch_up: CatchUp,
        look_at: Option<Instant>,
    },
    StartingFailover {
        since: Instant,
    },
    /// `ask_at` is `None` while a poll of the leader is pending.
    Following {
        since: Instant,
        ask_at: Option<Instant>,
    },
    /// The leader was lost after it had selected a replica.
    LeaderLost {
        since: Instant,
        until: Instant,
        problem: String,
    },
    /// The new master is in force; other clients stay paused for a while.
    Lingering {
        until: Instant,
        outcome: SwitchoverOutcome,
    },
    /// Only the pause has to be revoked.
    Ending(Result<SwitchoverOutcome, SwitchoverError>),
    Over,
}

impl SwitchoverPhase {
    /// Nothing has been changed yet.
    pub(super) fn is_revocable(&self) -> bool {
        matches!(
            self,
            Self::ClosingGate | Self::Settling { .. } | Self::Pausing | Self::CatchUp { .. }
        )
    }

    /// The failover command was sent, and its result is unknown.
    pub(super) fn is_after_failover_command(&self) -> bool {
        matches!(
            self,
            Self::StartingFailover { .. } | Self::Following { .. } | Self::LeaderLost { .. }
        )
    }

    /// The master's other clients are kept paused, if they are paused at all.
    pub(super) fn keeps_clients_paused(&self) -> bool {
        matches!(self, Self::CatchUp { .. } | Self::Lingering { .. })
            || self.is_after_failover_command()
    }
}
