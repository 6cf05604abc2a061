//! Input and output of the machine: events, actions and warnings.

use std::net::SocketAddr;
use std::time::Instant;

use target::ReplyPolicy;

use super::{Basis, FollowOrder, NoMasterReason, OverrideNews, Pause};
use crate::{Epoch, MachineRules, MyId, NodeAddr, Notice, Probe, View};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MachineEvent {
    /// A sentinel answered all queries of a round consistently.
    View {
        /// The sentinel.
        from: MyId,
        /// Its answers.
        view: View,
        /// When the query was sent. The view says nothing about the time before.
        asked_at: Instant,
        /// The sentinel was queried at an address of the configuration, not at one learned from
        /// another sentinel.
        configured: bool,
    },
    /// The configuration now resolves to this many sentinels. Until a majority has decided once, a
    /// majority means a majority of at least these.
    ExpectedSentinels(usize),
    /// This many connections to a sentinel are open, of this and of all other proxies: the largest
    /// number that a reachable sentinel reports. See `pacing`.
    SentinelConnections(u32),
    /// The operator configured other sentinels, this many names, and none of the former ones. They
    /// form a new electorate, as at a start; the master stays until a majority of it disagrees.
    SentinelsReplaced(usize),
    /// A sentinel published an event about this master, or about itself.
    Notice {
        /// The sentinel; `None` while its identity is unknown.
        from: Option<MyId>,
        /// The event.
        notice: Notice,
    },
    /// A query to a redis node ended with an answer or a failure.
    Probed {
        /// The node.
        node: NodeAddr,
        /// The outcome.
        probe: Probe,
    },
    /// A sentinel at a configured address answered that it does not know the master's name.
    NameUnknown {
        /// The sentinel.
        from: MyId,
    },
    /// The last connection to a sentinel ended.
    SentinelLost {
        /// The sentinel.
        id: MyId,
    },
    /// Another sentinel answers at the configured address of this one, which answers nowhere else.
    Displaced {
        /// The sentinel that answered there before.
        id: MyId,
    },
    /// An idle connection to a node ended by itself. A promotion disconnects clients, and so does a
    /// change of the replicated master, so the node has to be queried.
    ProbeConnectionLost {
        /// The node.
        node: NodeAddr,
    },
    /// The data plane saw a failed dial, a connection closed by the master, or a `-READONLY` reply:
    /// query again.
    Hint,
    /// These rules apply from now on.
    Rules(Box<MachineRules>),
    /// An operator closes the gate; see [`Pause`].
    Pause(Pause),
    /// An operator ends the pause.
    Resume,
    /// An operator orders to follow a node without the sentinels; see `override_order`.
    Follow(FollowOrder),
    /// An operator ends the override.
    Unfollow,
    /// The process or the host was suspended, although the clock of
    /// [`Machine::step`](super::Machine::step) may not show it.
    Stalled,
    /// A deadline passed.
    Tick,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MachineAction {
    /// Query the view of every sentinel now.
    Ask,
    /// Query the role of this node now.
    Probe(NodeAddr),
    /// Close the gate.
    Hold,
    /// Open the gate to the same target.
    Release,
    /// How to treat the master's replies while the gate is closed. After `Hold` they pass until
    /// this action changes it; [`Release`](Self::Release), [`Commit`](Self::Commit) and
    /// [`Clear`](Self::Clear) reset it.
    ReplyPolicy(ReplyPolicy),
    /// Switch to another target.
    Commit(Commit),
    /// The same process is announced as this and reachable at this address from now on: dial it
    /// there. Nothing else changes.
    Redirect(NodeAddr, SocketAddr),
    /// Remove the target and close its sessions.
    Clear(NoMasterReason),
    /// An order was answered, or an override ended.
    Override(OverrideNews),
    /// Warn the operator. Not a decision.
    Warning(Warning),
}

/// A verified switch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Commit {
    /// The announced address.
    pub addr: NodeAddr,
    /// The verified address, which is the one to dial.
    pub dialled: SocketAddr,
    /// The config-epoch.
    pub epoch: Epoch,
    /// The node's `run_id`, if known.
    pub run_id: Option<Box<str>>,
    /// What decided it.
    pub basis: Basis,
    /// Bytes of the replication stream that the old master wrote and the new one never received;
    /// `None` if the lineage is unknown or does not match. An estimate: the old offset is that of
    /// the last probe.
    pub lost_bytes: Option<u64>,
    /// The gate stays closed, because of a pause or of the policy for a minority.
    pub held: bool,
    /// The node is not known to have the data of the former master: no session may be carried to
    /// it.
    pub new_lineage: bool,
}

/// Conditions that an operator should know of. Each is reported once, when it begins; only
/// [`Warning::StaleView`] comes with every such view, for a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Warning {
    /// A sentinel names an older epoch than the committed one; the view is ignored.
    StaleView,
    /// Sentinels name different masters at the same epoch.
    Split,
    /// The new master does not continue the old one's replication history.
    LineageBroken,
    /// The history of the new master cannot be read, and it was never listed as a replica of the
    /// old one.
    HistoryUnknown,
    /// A hold ended without a commit.
    HoldExpired,
    /// Holds keep ending without a commit; the next sign of a failover will not cause a hold.
    HoldsExhausted,
    /// The reachable sentinels are a provable minority.
    Minority,
    /// The process was suspended for a while.
    Stalled,
    /// Another process runs at the master's address.
    Rebooted,
    /// Most sentinels see another process at the master's address.
    SeenAsAnother,
    /// A configured address leads to a sentinel that no member knows and that knows no member: it
    /// has no vote.
    Stranger,
    /// A majority insists on an older epoch and on a node that is not a master, while the current
    /// one may be healthy: nothing changes.
    RegressionUnverified,
}

impl Warning {
    /// The log message.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::StaleView => "sentinel names an older epoch than the committed one",
            Self::Split => "sentinels name different masters at the same epoch",
            Self::LineageBroken => "new master does not continue the history of the old one",
            Self::HistoryUnknown => {
                "history of the new master cannot be read and it was no known replica, sessions \
                 are closed and not carried"
            }
            Self::HoldExpired => "hold expired without a switch",
            Self::HoldsExhausted => "too many holds without a switch, the next one is skipped",
            Self::Minority => "reachable sentinels are a minority",
            Self::Stalled => "process was suspended, confirming the master again",
            Self::Rebooted => "another process answers at the master's address",
            Self::SeenAsAnother => {
                "sentinels see another process at the master's address than we do"
            }
            Self::Stranger => "configured sentinel has no vote, it may watch another cluster",
            Self::RegressionUnverified => {
                "majority names an older epoch and a node that is not a master"
            }
        }
    }
}
