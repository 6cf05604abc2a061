//! Inputs and actions of the switchover state machine.

use std::time::{Duration, Instant};

use super::SwitchoverOutcome;
use super::catch_up::ReplicationOffsets;
use super::error::SwitchoverError;
use super::handover::HandoverState;
use super::leader::{LeaderEvent, LeaderView};
use crate::NodeAddr;

/// The state shown by discovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DiscoveryState {
    /// The gate is closed.
    pub(super) holding: bool,
    /// The master in force, its generation and its epoch.
    pub(super) master: Option<(NodeAddr, u64, u64)>,
}

/// How a failover is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailoverKind {
    /// The replica is promoted while the master accepts writes.
    Plain,
    /// The master stops accepting writes and hands over, where sentinel and master support that.
    Coordinated,
}

/// The reply to the failover command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FailoverReply {
    /// It may be another kind than the requested one.
    Accepted(FailoverKind),
    Refused(SwitchoverError),
    /// No reply arrived: the command may have been accepted.
    Unknown(String),
}

/// An input of the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Tick,
    Discovery(DiscoveryState),
    /// The offsets: the master's, read first, and those of the replicas.
    OffsetsRead(Result<(ReplicationOffsets, Vec<(NodeAddr, ReplicationOffsets)>), SwitchoverError>),
    /// The answer to a `CLIENT PAUSE`.
    Paused(Result<(), String>),
    /// The pause was revoked, or cannot be: then it ends by itself.
    Unpaused,
    /// What the master reports about the handover; `None` without an answer.
    HandoverRead(Option<HandoverState>),
    /// What a failed handover may leave at the master is revoked; otherwise with a text for
    /// operators.
    HandoverEnded(Result<(), String>),
    FailoverReply(FailoverReply),
    Event(LeaderEvent),
    View(LeaderView),
    LeaderLost(String),
    /// The requester disconnected.
    Abandoned,
}

/// An action to execute. Each request is answered by one input, and repeated only after that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Keep the gate closed until then, or until a commit.
    Hold {
        since: Instant,
        until: Instant,
    },
    /// Open the gate, as far as this switchover closed it.
    Release,
    /// Pause the master's clients for this long.
    Pause(Duration),
    Unpause,
    /// Read the offsets of all nodes.
    ReadOffsets,
    /// `SENTINEL FAILOVER`.
    StartFailover(FailoverKind),
    /// Read whether the master carries out the handover.
    ReadHandover,
    /// Let the master accept writes again after a handover that failed.
    EndHandover,
    /// Poll the leader about the failover.
    PollLeader,
    ReportStep(&'static str, String),
    /// The leader will promote this replica: priorities have no effect on the failover any more.
    Selected(NodeAddr),
    /// It is over, with this result.
    Done(Result<SwitchoverOutcome, SwitchoverError>),
}
