//! The states of the machine, and which of them keep the gate closed.

use std::time::Instant;

use super::Machine;
use crate::labelled::labelled;
use crate::{Epoch, NodeAddr};

/// Why traffic is held although nothing is committed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldCause {
    /// A sentinel announced which replica it is about to promote.
    Selected,
    /// A sentinel ordered the promotion of a replica of the master, or reports that it has seen it.
    Ordered,
    /// A probe found a replica of the master promoted.
    Promoted,
}

labelled! {
    /// What decided a commit; `decided_by` in logs and status.
    pub enum Basis {
        /// At start: the best verified view after the grace period, without a majority.
        BootstrapMinority = "bootstrap_minority",
        /// One newer view that was not contradicted, with verified lineage.
        SingleSentinel = "single_sentinel",
        /// A majority insisted on an older epoch: the sentinels were reconfigured from scratch.
        EpochRegression = "epoch_regression",
        /// An operator ordered it while no majority of the sentinels answered.
        Operator = "operator",
        /// The same master was confirmed again after a doubt, possibly as another process.
        Reconfirmed = "reconfirmed",
        /// More than half of the electorate.
        Majority = "majority",
    }
}

labelled! {
    /// Why there is no master.
    pub enum NoMasterReason {
        /// The committed node reports that it is a replica.
        Demoted = "demoted",
        /// The committed node is unreachable, and no other node is named.
        Unreachable = "unreachable",
        /// A newer master is named but does not verify.
        Unverified = "unverified",
        /// The sentinels are a provable minority, and the policy is to cut.
        Minority = "minority",
    }
}

/// The states of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MachineState {
    /// Nothing has been committed yet.
    Bootstrap {
        /// When the first usable view arrived; the grace period starts here.
        first_view_at: Option<Instant>,
    },
    /// Normal operation.
    Stable,
    /// Something may be wrong: query more often, change nothing.
    Suspect {
        /// When the suspicion began.
        since: Instant,
        /// The last sign of trouble.
        last_sign_at: Instant,
    },
    /// The published master may have been superseded unnoticed: hold until it answers and sentinels
    /// confirm it.
    Unconfirmed {
        /// When the gate was closed for this.
        since: Instant,
    },
    /// A switch is imminent: hold.
    Armed {
        /// The reason for the hold.
        cause: HoldCause,
        /// The probable next master.
        candidate: Option<NodeAddr>,
        /// When the hold began.
        since: Instant,
        /// When it ends without a commit.
        until: Instant,
    },
    /// The evidence is complete and the verification is in progress: hold.
    Committing {
        /// The node to commit.
        addr: NodeAddr,
        /// The config-epoch.
        epoch: Epoch,
        /// What decided it.
        basis: Basis,
        /// When the evidence was complete. Only an answer to a query sent later verifies.
        evidence_at: Instant,
        /// Failed verifications so far.
        attempts: u32,
        /// When the old master's sessions are closed even if nothing verifies.
        until: Instant,
    },
    /// There is positive evidence that no master exists.
    NoMaster {
        /// The evidence.
        reason: NoMasterReason,
        /// Since when.
        since: Instant,
    },
}

impl MachineState {
    /// A stable label for metrics and status.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Bootstrap { .. } => "bootstrap",
            Self::Stable => "stable",
            Self::Suspect { .. } => "suspect",
            Self::Unconfirmed { .. } => "unconfirmed",
            Self::Armed { .. } => "armed",
            Self::Committing { .. } => "committing",
            Self::NoMaster { .. } => "no_master",
        }
    }

    /// The node that is expected to become the master.
    #[must_use]
    pub fn candidate(&self) -> Option<&NodeAddr> {
        match self {
            Self::Armed { candidate, .. } => candidate.as_ref(),
            Self::Committing { addr, .. } => Some(addr),
            _ => None,
        }
    }

    /// Whether this state by itself keeps the gate closed.
    pub(super) fn holds(&self) -> bool {
        let unconfirmed = matches!(self, Self::Unconfirmed { .. });
        unconfirmed
            || matches!(self, Self::Armed { .. } | Self::Committing { .. } | Self::NoMaster { .. })
    }
}

impl Machine {
    /// Enters a state. All transitions go through here; no other code assigns `state`.
    pub(super) fn enter(&mut self, state: MachineState) {
        if state == MachineState::Stable {
            self.hold.lacking = None;
        }
        self.state = state;
    }
}
