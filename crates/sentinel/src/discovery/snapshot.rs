//! The snapshot of discovery's state for status, metrics and maintenance notifications. Published
//! as a whole, without locks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tls::{FaultKind, Version};

use crate::discovery::alarms::AlarmRecord;
use crate::discovery::service_runtime::OrderAnswer;
use crate::link::rotation::CredentialStatus;
use crate::replicas::publisher::ReplicaPoolSnapshot;
use crate::{
    Admission, Basis, Epoch, FailoverTimeline, Minority, MyId, NodeAddr, Override, OverrideEnd,
    Pause, Probe,
};

/// The number of failovers kept.
pub(crate) const MAX_FAILOVERS: usize = 16;

/// One service at one moment.
#[derive(Debug, Clone)]
pub struct DiscoverySnapshot {
    /// The name of the service.
    pub name: Arc<str>,
    /// Sentinel's name of the master.
    pub master_name: Arc<str>,
    /// When the snapshot was taken.
    pub at: Instant,
    /// The machine's state, a stable label.
    pub state: &'static str,
    /// Whether the gate is closed.
    pub holding: bool,
    /// An operator's pause that keeps the gate closed.
    pub pause: Option<Pause>,
    /// The node that is expected to become the master, while a switch is imminent.
    pub candidate: Option<NodeAddr>,
    /// The published master.
    pub master: Option<MasterSnapshot>,
    /// Since when nothing may be sent to a master, because none is known or the gate is closed;
    /// `None` while traffic flows.
    pub stopped_since: Option<Instant>,
    /// Since when the gate is closed; `None` while it is open. The duration of the present hold
    /// follows from it.
    pub held_since: Option<Instant>,
    /// The voters disagree: they name more than one address, or one address at more than one epoch.
    /// [`SentinelSnapshot::disagrees`] tells which ones. True for a moment in every failover.
    pub disagreement: bool,
    /// The reachable sentinels are provably cut off from the majority of their peers.
    pub minority: bool,
    /// How many more replicas the master has than have to confirm a write; `None` without
    /// `durability` or a master.
    pub spare_replicas: Option<i32>,
    /// The size of the electorate and of a majority.
    pub quorum: (usize, usize),
    /// The number of configured sentinels. A name without an address counts as one.
    pub configured: usize,
    /// Fewer sentinels are configured than a failover needs: learned ones have to be trusted.
    pub depends_on_learned: bool,
    /// Every sentinel with an existing or wanted connection.
    pub sentinels: Vec<SentinelSnapshot>,
    /// Every watched redis node.
    pub nodes: Vec<NodeSnapshot>,
    /// The replicas for readers; `None` if readers are not configured.
    pub replicas: Option<ReplicaPoolSnapshot>,
    /// The credentials for the redis nodes.
    pub auth: CredentialStatus,
    /// The credentials for the sentinels.
    pub sentinel_auth: CredentialStatus,
    /// The last commits, oldest first.
    pub failovers: Vec<FailoverRecord>,
    /// Orders to follow a node without the sentinels.
    pub overrides: OverridesSnapshot,
    /// The last alarms that ended, oldest first, then those that are on.
    pub alarms: Vec<AlarmRecord>,
    /// Counters since the start.
    pub counts: DiscoveryCounts,
}

/// Orders to follow a node without the sentinels, and what they led to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OverridesSnapshot {
    /// The override in force, if any.
    pub in_force: Option<Override>,
    /// What sentinels that answer name instead of the followed node.
    pub contradicted_by: Vec<NodeAddr>,
    /// The last answers to orders, by the number of the order.
    pub answers: Vec<OrderAnswer>,
    /// Why the last override ended.
    pub last_end: Option<OverrideEnd>,
    /// The policy for a minority, which an override suspends.
    pub minority: Minority,
}

/// The published master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterSnapshot {
    /// The announced address.
    pub addr: NodeAddr,
    /// The dialled address.
    pub dialled: SocketAddr,
    /// The number of the commit.
    pub generation: u64,
    /// The config-epoch.
    pub epoch: Epoch,
    /// The `run_id` of its process, if known.
    pub run_id: Option<Box<str>>,
    /// When it was published.
    pub since: Instant,
    /// Its current sessions.
    pub sessions: usize,
    /// New connections of sessions to it fail; see [`target::Target::is_failing`].
    pub connects_fail: bool,
}

/// One sentinel.
#[derive(Debug, Clone)]
pub struct SentinelSnapshot {
    /// Its address.
    pub addr: NodeAddr,
    /// Its MYID, once known.
    pub id: Option<MyId>,
    /// The connection is established.
    pub up: bool,
    /// It pushes events. Without them, a switch is detected by polling only.
    pub events: bool,
    /// The version of TLS; `None` for plain text, and while the connection is down.
    pub tls: Option<Version>,
    /// Why there is no connection, if the cause is TLS.
    pub tls_fault: Option<FaultKind>,
    /// The configuration leads to it, or other sentinels do.
    pub origin: Admission,
    /// It belongs to the electorate.
    pub member: bool,
    /// The configuration leads to it and it knows a master, yet it has no vote: it may watch
    /// another cluster.
    pub stranger: bool,
    /// It names another address or epoch than the published master or, if there is none, than the
    /// leading claim. The sentinel may be one without a vote.
    pub disagrees: bool,
    /// It is in TILT, as of its last view: it would not execute a command.
    pub tilt: bool,
    /// The address and epoch it names, and when its view was received.
    pub view: Option<(NodeAddr, Epoch, Instant)>,
    /// Why it is currently unusable, or its answer doubtful. Never contains a secret.
    pub problem: Option<String>,
}

/// One redis node.
#[derive(Debug, Clone)]
pub struct NodeSnapshot {
    /// The announced address.
    pub addr: NodeAddr,
    /// The last answer.
    pub probe: Option<Probe>,
    /// The round trip of the last successful query.
    pub answered_in: Option<Duration>,
    /// Queries without an answer or with a refusal, since the node is watched.
    pub failures: u64,
    /// Connections of sessions to it as the master that failed.
    pub failed_connects: usize,
    /// The version of TLS of the last answer; `None` for plain text.
    pub tls: Option<Version>,
    /// The kind of the problem, if it is one of TLS.
    pub tls_fault: Option<FaultKind>,
    /// Why it refuses the queries, or what is wrong with TLS.
    pub problem: Option<String>,
    /// How many members of the electorate list it as a healthy replica. Each of them might promote
    /// it.
    pub listed_healthy: usize,
    /// A majority of the configured sentinels names or lists it, so it may get a password.
    pub trusted: bool,
}

/// One commit. Usually a failover, but also the first master, and the same master confirmed again.
#[derive(Debug, Clone)]
pub struct FailoverRecord {
    /// The master before.
    pub from: Option<NodeAddr>,
    /// The master since.
    pub to: NodeAddr,
    /// The config-epoch.
    pub epoch: Epoch,
    /// What decided it.
    pub basis: Basis,
    /// Bytes of the old master's history that the new one does not have, if known.
    pub lost_bytes: Option<u64>,
    /// The number of the commit.
    pub generation: u64,
    /// The phases, by the machine's clock.
    pub timeline: FailoverTimeline,
    /// When the answer that completed the evidence was read from its socket.
    pub evidence_read_at: Option<Instant>,
    /// When a majority of the sentinels had decided: when the `+switch-master` or the answer that
    /// made the majority was read, whichever came first. `None` if the commit was not decided by a
    /// majority.
    pub decided_at: Option<Instant>,
    /// When the new target had been published.
    pub published_at: Instant,
    /// When the first session reached the new master; `None` until then.
    pub first_session_at: Option<Instant>,
}

impl DiscoverySnapshot {
    /// Nothing is known yet.
    pub(crate) fn at_start(
        name: Arc<str>,
        master_name: Arc<str>,
        now: Instant,
        quorum: (usize, usize),
    ) -> Self {
        Self {
            name,
            master_name,
            at: now,
            state: "bootstrap",
            holding: false,
            pause: None,
            candidate: None,
            master: None,
            stopped_since: Some(now),
            held_since: None,
            disagreement: false,
            minority: false,
            spare_replicas: None,
            quorum,
            configured: 0,
            depends_on_learned: false,
            sentinels: Vec::new(),
            nodes: Vec::new(),
            replicas: None,
            auth: CredentialStatus::default(),
            sentinel_auth: CredentialStatus::default(),
            failovers: Vec::new(),
            overrides: OverridesSnapshot::default(),
            alarms: Vec::new(),
            counts: DiscoveryCounts::default(),
        }
    }

    /// The total time without traffic to a master since the first master was found.
    #[must_use]
    pub fn outage(&self, now: Instant) -> Duration {
        let present = self.stopped_since.filter(|_| self.counts.commits > 0);
        self.counts.stopped
            + present.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

impl FailoverRecord {
    /// From complete evidence, as read from the socket, to the published target: the verification
    /// with all its attempts. Usually one round trip, or a single step of the process if the new
    /// master was verified ahead.
    #[must_use]
    pub fn verification(&self) -> Option<Duration> {
        self.evidence_read_at.map(|at| self.published_at.saturating_duration_since(at))
    }

    /// From the event or answer that made a majority, as read from the socket, to the published
    /// target: a round of queries and a verification, unless they were made ahead. Only for a
    /// switch from one master to another.
    #[must_use]
    pub fn switch_time(&self) -> Option<Duration> {
        let moved = self.from.as_ref().is_some_and(|from| *from != self.to);
        self.decided_at.filter(|_| moved).map(|at| self.published_at.saturating_duration_since(at))
    }

    /// From the published target to the first session that reached it.
    #[must_use]
    pub fn first_session(&self) -> Option<Duration> {
        self.first_session_at.map(|at| at.saturating_duration_since(self.published_at))
    }
}

/// Counters since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiscoveryCounts {
    /// Commits.
    pub commits: u64,
    /// How often the gate was closed.
    pub holds: u64,
    /// Holds that ended without a commit.
    pub holds_expired: u64,
    /// How often the target was removed.
    pub clears: u64,
    /// Views at an older epoch than the committed one.
    pub stale_views: u64,
    /// Rounds that were torn by a switch, or not understood.
    pub bad_rounds: u64,
    /// Rounds in which the sentinel did not know the master's name.
    pub unknown_names: u64,
    /// Times that sentinels named different masters at the same epoch.
    pub splits: u64,
    /// How often a majority insisted on an older epoch and on a node that is not a master.
    pub unverified_regressions: u64,
    /// Commits whose new master does not continue the old one's history.
    pub lineage_broken: u64,
    /// How often the process found that it had been suspended.
    pub stalls: u64,
    /// The total hold time of all commits.
    pub held: Duration,
    /// The total time without traffic to a master in outages that are over. The time before the
    /// first master does not count.
    pub stopped: Duration,
}
