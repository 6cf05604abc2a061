//! What goes into the machine and what comes out: events, actions and notes.

use std::net::SocketAddr;
use std::time::Instant;

use target::ReplyPolicy;

use super::{Basis, Lack, Pause};
use crate::{Epoch, MyId, NodeAddr, Notice, Probe, View};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A sentinel answered a whole round of questions consistently.
    View {
        /// Whose view.
        from: MyId,
        /// What it holds to be true.
        view: View,
        /// When the question was sent: the view says nothing about a time before.
        asked_at: Instant,
        /// It was asked at an address of the configuration, not at one that another sentinel told
        /// of.
        configured: bool,
    },
    /// The configuration leads to this many sentinels now. Until a majority has decided once, a
    /// majority means a majority of at least these.
    Expected(usize),
    /// A sentinel published something about this master, or about itself.
    Notice {
        /// Who published it; `None` while its identity is not known yet.
        from: Option<MyId>,
        /// What.
        notice: Notice,
    },
    /// A redis node was asked, and answered or did not.
    Probed {
        /// The node.
        node: NodeAddr,
        /// The answer.
        probe: Probe,
    },
    /// An idle connection to a node ended by itself. Promotion kills clients, and so does
    /// re-pointing: ask the node.
    CanaryLost {
        /// The node.
        node: NodeAddr,
    },
    /// The data plane saw a failed dial, an upstream end or a `-READONLY`: look again.
    Hint,
    /// An operator wants the gate shut; see `pause`.
    Pause(Pause),
    /// An operator does not want it shut any more.
    Resume,
    /// This process or its machine was stopped, although the clock of
    /// [`Machine::step`](super::Machine::step) may not show it.
    Stalled,
    /// A deadline passed.
    Tick,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Ask every sentinel for its view now.
    Ask,
    /// Ask this node for its role now.
    Probe(NodeAddr),
    /// Shut the gate.
    Hold,
    /// Open the gate again to the same target.
    Release,
    /// What becomes of the master's replies while the gate is shut. A shut gate lets them pass
    /// until this says otherwise, and [`Release`](Self::Release), [`Commit`](Self::Commit) and
    /// [`Clear`](Self::Clear) end it.
    ReplyPolicy(ReplyPolicy),
    /// Move the points.
    Commit(Commit),
    /// The same process is reached at this address from now on: dial it there. Nothing else
    /// changes.
    Redirect(SocketAddr),
    /// Take the target away and cut its sessions.
    Clear(Lack),
    /// Worth telling: an alarm, not a decision.
    Note(Note),
}

/// A verified move of the points.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Commit {
    /// The node as announced.
    pub addr: NodeAddr,
    /// The address that was verified and has to be dialled.
    pub dialled: SocketAddr,
    /// The config-epoch.
    pub epoch: Epoch,
    /// The node's `run_id`, where known.
    pub run_id: Option<Box<str>>,
    /// Why.
    pub basis: Basis,
    /// Bytes of the replication stream that the old master wrote and the new one never received;
    /// `None` where the lineage is not known or does not match. An estimate: the old offset is as
    /// of the last probe.
    pub lost_bytes: Option<u64>,
    /// The gate stays shut: an operator wants it so.
    pub held: bool,
}

/// Things an operator wants to hear of, each at its beginning; only [`Note::StaleView`] comes with
/// every such view, to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Note {
    /// A sentinel names an older epoch than the committed one; it is ignored.
    StaleView,
    /// Sentinels name different masters at one epoch.
    Split,
    /// The new master does not continue the old one's history.
    LineageBroken,
    /// A hold ended without a commit.
    HoldExpired,
    /// Holds keep ending without a commit; the next sign of a failover will not hold.
    HoldsExhausted,
    /// The sentinels that can be heard are a provable minority.
    Minority,
    /// The process was stopped for a while.
    Stalled,
    /// The master runs as another process on the same address.
    Rebooted,
    /// A configured address leads to a sentinel that no member knows and that knows no member: it
    /// has no vote.
    Stranger,
    /// A majority insists on an older epoch and on a node that is no master, while the present one
    /// may be healthy: nothing moves.
    RegressUnverified,
}
