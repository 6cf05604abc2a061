//! What goes into the course of a switchover and what comes out of it.

use std::time::{Duration, Instant};

use super::Outcome;
use super::leader::{LeaderEvent, LeaderView};
use super::reason::Reason;
use super::weigh::ReplicationOffsets;
use crate::NodeAddr;

/// What discovery shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sight {
    /// The gate is shut.
    pub(super) holding: bool,
    /// The master in force, its generation and its epoch.
    pub(super) master: Option<(NodeAddr, u64, u64)>,
}

/// The answer to the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Taken,
    Refused(Reason),
    /// None came: the order may have been taken.
    Unknown(String),
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Tick,
    DiscoverySnapshot(Sight),
    /// The offsets: the master's, and after it those of the replicas.
    Looked(Result<(ReplicationOffsets, Vec<(NodeAddr, ReplicationOffsets)>), Reason>),
    /// The answer to a `CLIENT PAUSE`.
    Paused(Result<(), String>),
    /// The pause was taken back, or cannot be: then it ends by itself.
    Unpaused,
    Ordered(Answer),
    Event(LeaderEvent),
    View(LeaderView),
    LeaderLost(String),
    /// The one that gave the order went away.
    Abandoned,
}

/// Something to be done. Each question is answered by one input, and asked again only after that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Keep the gate shut until then, or until a commit.
    Hold {
        since: Instant,
        until: Instant,
    },
    /// Open the gate, as far as this order shut it.
    Release,
    /// Pause the master's clients for this long.
    Pause(Duration),
    Unpause,
    /// Ask every node for its offset.
    Look,
    /// `SENTINEL FAILOVER`.
    Order,
    /// Ask the leader how it stands.
    Ask,
    Tell(&'static str, String),
    /// It is over, with this result.
    Done(Result<Outcome, Reason>),
}
