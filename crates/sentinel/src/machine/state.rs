//! Where the machine stands, and what that means for the gate.

use std::time::Instant;

use super::Machine;
use crate::{Epoch, NodeAddr};

/// Why traffic is held although nothing is committed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldCause {
    /// A sentinel announced which replica it is about to promote.
    Selected,
    /// A sentinel ordered the promotion of a replica of ours, or says that it has seen it.
    Ordered,
    /// A replica of ours was seen promoted.
    Promoted,
}

/// Why a commit is pursued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Basis {
    /// The best view at the start, without a majority, after the grace.
    BootstrapMinority,
    /// One newer view that nobody contradicted, its lineage checked.
    SingleSentinel,
    /// A majority insisted on an older epoch: the sentinels were configured anew.
    EpochRegression,
    /// The same master came back, or came back as another process.
    Reconfirmed,
    /// More than half of the electorate.
    Majority,
}

impl Basis {
    /// The word for logs and the status: `decided_by`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::BootstrapMinority => "bootstrap_minority",
            Self::SingleSentinel => "single_sentinel",
            Self::EpochRegression => "epoch_regression",
            Self::Reconfirmed => "reconfirmed",
            Self::Majority => "majority",
        }
    }
}

/// Why there is no master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoMasterReason {
    /// The committed node says that it is a replica.
    Demoted,
    /// The committed node cannot be reached, and nothing else is named.
    Unreachable,
    /// A newer master is named but does not verify.
    Unverified,
    /// The sentinels are a provable minority, and the policy is to cut.
    Minority,
}

/// The states of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MachineState {
    /// Nothing was ever committed.
    Bootstrap {
        /// When the first usable view arrived; the grace runs from here.
        heard_at: Option<Instant>,
    },
    /// All is well.
    Stable,
    /// Something may be wrong: look harder, change nothing.
    Suspect {
        /// When suspicion began.
        since: Instant,
        /// When it was last fed.
        last_sign_at: Instant,
    },
    /// The published master may have been superseded unnoticed: hold until it answers and sentinels
    /// confirm it.
    Unconfirmed {
        /// When the gate was shut for this.
        since: Instant,
    },
    /// A switch is about to happen: hold.
    Armed {
        /// Why.
        cause: HoldCause,
        /// Who will probably be next.
        candidate: Option<NodeAddr>,
        /// When the hold began.
        since: Instant,
        /// When it ends without a commit.
        until: Instant,
    },
    /// The evidence is complete; the verification is under way. Hold.
    Committing {
        /// What is going to be committed.
        addr: NodeAddr,
        /// At which epoch.
        epoch: Epoch,
        /// Why.
        basis: Basis,
        /// When the evidence was complete. Only an answer to a later question verifies.
        evidence_at: Instant,
        /// Verifications that failed so far.
        attempts: u32,
        /// When the old master's sessions are cut even if nothing verifies.
        until: Instant,
    },
    /// There is positive evidence that no master exists.
    NoMaster {
        /// Which.
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

    /// Whether this state by itself keeps the gate shut.
    pub(super) fn holds(&self) -> bool {
        let unconfirmed = matches!(self, Self::Unconfirmed { .. });
        unconfirmed
            || matches!(self, Self::Armed { .. } | Self::Committing { .. } | Self::NoMaster { .. })
    }
}

impl Machine {
    /// The only place that assigns the state, so that every transition can be found by its calls.
    pub(super) fn enter(&mut self, state: MachineState) {
        self.state = state;
    }
}
