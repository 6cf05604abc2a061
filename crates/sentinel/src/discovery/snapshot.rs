//! What discovery sees, as a value: for status, metrics and whoever has to be told. Published
//! whole, never locked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::replicas::eligibility::{Lag, ReplicaState};
use crate::{Basis, Epoch, FailoverTimeline, MyId, NodeAddr, Probe};

/// How many failovers are remembered.
pub(crate) const REMEMBERED: usize = 16;

/// One service, as seen at one moment.
#[derive(Debug, Clone)]
pub struct DiscoverySnapshot {
    /// Sentinel's name of the master.
    pub name: Arc<str>,
    /// When this was put together.
    pub at: Instant,
    /// The machine's state, a stable label.
    pub state: &'static str,
    /// The gate is shut.
    pub holding: bool,
    /// What is published.
    pub master: Option<MasterSnapshot>,
    /// Since when nothing may be sent to a master, because none is known or the gate is shut;
    /// `None` while all flows.
    pub stopped_since: Option<Instant>,
    /// Since when the gate is shut; `None` while it is open. With the present time: how long this
    /// hold has lasted.
    pub held_since: Option<Instant>,
    /// Voters disagree: they name more than one address, or one address at more than one epoch. See
    /// [`SentinelSnapshot::disagrees`] for who does. True for a moment in every failover.
    pub disagreement: bool,
    /// The sentinels that can be heard are provably cut off from the majority of their peers.
    pub minority: bool,
    /// Members of the electorate, and how many of them are a majority.
    pub quorum: (usize, usize),
    /// Every sentinel there is a connection to, or wanted.
    pub sentinels: Vec<SentinelSnapshot>,
    /// Every redis node under observation.
    pub nodes: Vec<NodeSnapshot>,
    /// The replicas that readers may be sent to; `None` where nobody asked for any.
    pub replicas: Option<ReplicaPoolSnapshot>,
    /// The last commits, oldest first.
    pub failovers: Vec<Failover>,
    /// Events counted since the start.
    pub counts: Counts,
}

/// The published master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterSnapshot {
    /// As announced.
    pub addr: NodeAddr,
    /// As dialled.
    pub dialled: SocketAddr,
    /// The commit's number.
    pub generation: u64,
    /// The config-epoch.
    pub epoch: Epoch,
    /// The process behind it, where known.
    pub run_id: Option<Box<str>>,
    /// Published since.
    pub since: Instant,
}

/// One sentinel.
#[derive(Debug, Clone)]
pub struct SentinelSnapshot {
    /// Where it is.
    pub addr: NodeAddr,
    /// Who it is, once it has said so.
    pub id: Option<MyId>,
    /// The connection stands.
    pub up: bool,
    /// It pushes events; without them a switch is found by polling only.
    pub events: bool,
    /// It belongs to the electorate.
    pub member: bool,
    /// The configuration leads to it, it knows a master, and yet it has no vote: it may watch
    /// another cluster.
    pub stranger: bool,
    /// It names another address or epoch than what is published or, where nothing is, than the
    /// leading claim. May be a sentinel without a vote.
    pub disagrees: bool,
    /// It is in TILT, as of its last view: it would not carry out an order.
    pub tilt: bool,
    /// What it names, at which epoch, heard when.
    pub view: Option<(NodeAddr, Epoch, Instant)>,
    /// Why it is of no use now, for people. Never contains a secret.
    pub problem: Option<String>,
}

/// One redis node.
#[derive(Debug, Clone)]
pub struct NodeSnapshot {
    /// As announced.
    pub addr: NodeAddr,
    /// The last answer.
    pub probe: Option<Probe>,
    /// How long the last answer took that was one.
    pub answered_in: Option<Duration>,
    /// Questions without an answer, or with a refusal, since it has been watched.
    pub failures: u64,
    /// Why it refuses our questions, for people.
    pub problem: Option<String>,
    /// How many members of the electorate list it as a replica and hold it to be up: each of them
    /// might promote it.
    pub held_up: usize,
}

/// The readers' side.
#[derive(Debug, Clone)]
pub struct ReplicaPoolSnapshot {
    /// How many replicas readers may be sent to; `None` before that is known.
    pub eligible: Option<usize>,
    /// The master serves readers while there is none.
    pub stands_in: bool,
    /// Every replica that is listed, or was a moment ago.
    pub replicas: Vec<ReplicaSnapshot>,
    /// Times a replica was put out.
    pub ejections: u64,
    /// Times one that had been put out came back.
    pub readmissions: u64,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSnapshot {
    /// As announced.
    pub addr: NodeAddr,
    /// Whether readers may be sent there, and if not, why.
    pub state: ReplicaState,
    /// How far it was behind when it last answered.
    pub lag: Lag,
    /// Readers that are on it now.
    pub sessions: usize,
}

/// One move of the points.
#[derive(Debug, Clone)]
pub struct Failover {
    /// Where they led before.
    pub from: Option<NodeAddr>,
    /// Where they lead since.
    pub to: NodeAddr,
    /// At which epoch.
    pub epoch: Epoch,
    /// Why.
    pub basis: Basis,
    /// Bytes of the old master's history that the new one does not have, where known.
    pub lost_bytes: Option<u64>,
    /// The commit's number.
    pub generation: u64,
    /// The phases, by the machine's clock.
    pub story: FailoverTimeline,
    /// When the answer that completed the evidence was read from its socket.
    pub evidence_read_at: Option<Instant>,
    /// When a majority of the sentinels had said so: by the `+switch-master` that made the
    /// majority, or by the answer that did, whichever was read first. `None` if the commit did not
    /// rest on a majority.
    pub decided_at: Option<Instant>,
    /// When the new target had been stored.
    pub swapped_at: Instant,
    /// When the first session reached the new master; `None` while none has.
    pub first_session_at: Option<Instant>,
}

impl DiscoverySnapshot {
    /// For how long nothing could be sent to a master since there was one for the first time, added
    /// up.
    #[must_use]
    pub fn outage(&self, now: Instant) -> Duration {
        let present = self.stopped_since.filter(|_| self.counts.commits > 0);
        self.counts.stopped
            + present.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl Failover {
    /// From complete evidence, as it was read, to the store of the new target: one verification
    /// round trip, or a step of this process where the new master was verified ahead.
    #[must_use]
    pub fn verification(&self) -> Option<Duration> {
        self.evidence_read_at.map(|at| self.swapped_at.saturating_duration_since(at))
    }

    /// From the notice, or answer, that made a majority, as it was read, to the store of the new
    /// target: a round of questions and a verification, where they were not made ahead. Of moves
    /// from one master to another only.
    #[must_use]
    pub fn swap(&self) -> Option<Duration> {
        let moved = self.from.as_ref().is_some_and(|from| *from != self.to);
        self.decided_at.filter(|_| moved).map(|at| self.swapped_at.saturating_duration_since(at))
    }

    /// From the store of the new target to the first session that reached it.
    #[must_use]
    pub fn first_session(&self) -> Option<Duration> {
        self.first_session_at.map(|at| at.saturating_duration_since(self.swapped_at))
    }
}

/// Counters since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Moves of the points.
    pub commits: u64,
    /// Times the gate was shut.
    pub holds: u64,
    /// Holds that ended without a commit.
    pub holds_expired: u64,
    /// Times the target was taken away.
    pub clears: u64,
    /// Views at an older epoch than the committed one.
    pub stale_views: u64,
    /// Rounds torn by a switch, or not understood.
    pub bad_rounds: u64,
    /// Rounds in which the master's name was not known.
    pub unknown_names: u64,
    /// Sentinels at odds at one epoch.
    pub splits: u64,
    /// Times a majority insisted on an older epoch and on a node that is no master.
    pub regress_unverified: u64,
    /// Commits whose new master does not continue the old one's history.
    pub lineage_broken: u64,
    /// Times the process found that it had been stopped.
    pub stalls: u64,
    /// The time traffic was held in commits, added up.
    pub held: Duration,
    /// The time for which nothing could be sent to a master, added up, as far as it is over. The
    /// time before the first one does not count.
    pub stopped: Duration,
}
