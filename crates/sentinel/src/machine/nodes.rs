//! The state of each redis node, and the schedule of its probes.
//!
//! The probed nodes are the committed master, the nodes named as master or as candidate, and the
//! replicas that the electorate lists. Each has its own schedule. A missing answer is given up
//! after a while: it delays the next query but never prevents it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::{
    Epoch, MachineRules, NodeAddr, NodeReport, PingReply, Probe, ProbeFailure, Role, Verify,
};

/// The maximum number of nodes per master; a bound against sentinels that lie.
pub(super) const MAX_NODES: usize = 64;

/// A query without an answer counts as lost after this time.
const LOST_AFTER: Duration = Duration::from_millis(1500);

/// The maximum age of an answer that verifies a node ahead of its evidence: two intervals of fast
/// probing, and a small margin.
const VERIFY_AHEAD_MAX_AGE: Duration = Duration::from_millis(50);

/// The probe interval after the machine has been alert for [`FAST_FOR`].
const SLOW_ALERT: Duration = Duration::from_millis(200);
const FAST_FOR: Duration = Duration::from_secs(15);

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct NodeRecord {
    /// Answers to queries from before are ignored: this process was suspended, or the node was not
    /// wanted for a while, and a later answer may have been dropped.
    since: Instant,
    pub(super) due: Instant,
    in_flight_since: Option<Instant>,
    /// The last answer, or failure.
    pub(super) last: Option<Probe>,
    /// When its idle connection last ended by itself. Answers from before may be outdated.
    ended_at: Option<Instant>,
    unreachable_since: Option<Instant>,
    unreachable_times: u32,
}

impl NodeRecord {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            due: now,
            in_flight_since: None,
            last: None,
            ended_at: None,
            unreachable_since: None,
            unreachable_times: 0,
        }
    }

    /// The last report, if its query was sent at or after `since` and it is as good as an answer to
    /// a new query: recent, and the connection has not ended after it. A sentinel that reconfigures
    /// the node ends its connections.
    pub(super) fn recent_report(&self, now: Instant, since: Instant) -> Option<&NodeReport> {
        let Probe { asked_at, outcome } = self.last_since(since)?;
        let young = now.saturating_duration_since(*asked_at) <= VERIFY_AHEAD_MAX_AGE;
        outcome.as_ref().ok().filter(|_| young && self.ended_at.is_none_or(|at| *asked_at > at))
    }

    /// The last answer, if it was asked for at or after `since`.
    pub(super) fn last_since(&self, since: Instant) -> Option<&Probe> {
        self.last.as_ref().filter(|probe| probe.asked_at >= since)
    }

    /// The last report, if the last query was answered.
    pub(super) fn report(&self) -> Option<&NodeReport> {
        self.last.as_ref().and_then(|probe| probe.outcome.as_ref().ok())
    }

    /// Its idle connection ended, and then it was unreachable.
    pub(super) fn has_ended(&self) -> bool {
        let last = self.ended_at.and_then(|at| self.last_since(at));
        last.is_some_and(|it| it.outcome == Err(ProbeFailure::Unreachable))
    }

    /// Unreachable at least three times in a row, with at least `long` between the first and the
    /// last of these queries. Only failures count as proof, not the time after the last one.
    pub(super) fn is_gone(&self, long: Duration) -> bool {
        let span = |since: Instant| {
            self.last.as_ref().map(|last| last.asked_at.saturating_duration_since(since))
        };
        self.unreachable_times >= 3
            && self.unreachable_since.and_then(span).is_some_and(|span| span >= long)
    }

    /// Answers may overtake each other: an answer to an older query than that of the last answer is
    /// outdated.
    fn record(&mut self, probe: Probe) -> bool {
        let since = self.last.as_ref().map_or(self.since, |last| last.asked_at);
        if probe.asked_at < since {
            return false;
        }
        self.in_flight_since = None;
        if matches!(probe.outcome, Err(ProbeFailure::Unreachable)) {
            self.unreachable_since.get_or_insert(probe.asked_at);
            self.unreachable_times = self.unreachable_times.saturating_add(1);
        } else {
            self.unreachable_since = None;
            self.unreachable_times = 0;
        }
        self.last = Some(probe);
        true
    }
}

/// All nodes of one master.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct NodeTable {
    by_addr: BTreeMap<NodeAddr, NodeRecord>,
    /// Addresses of former masters, each with the epoch that superseded it. Guards against zombies.
    pub(super) superseded: BTreeMap<NodeAddr, Epoch>,
    /// The addresses that members list as replicas of the committed master. A candidate has to be
    /// one of them.
    pub(super) family: BTreeSet<NodeAddr>,
}

impl NodeTable {
    pub(super) fn get(&self, addr: &NodeAddr) -> Option<&NodeRecord> {
        self.by_addr.get(addr)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodeAddr, &NodeRecord)> {
        self.by_addr.iter()
    }

    /// Keeps exactly the wanted nodes, up to the bound; those in `first` are always kept.
    pub(super) fn want(&mut self, now: Instant, first: &[&NodeAddr], others: &BTreeSet<NodeAddr>) {
        self.by_addr.retain(|addr, _| first.contains(&addr) || others.contains(addr));
        for addr in first.iter().copied().chain(others) {
            if self.by_addr.len() < MAX_NODES || first.contains(&addr) {
                self.by_addr.entry(addr.clone()).or_insert_with(|| NodeRecord::new(now));
            }
        }
    }

    /// Stores an answer. Returns `false` and drops it if the node is no longer wanted or a newer
    /// answer has overtaken it.
    pub(super) fn record(&mut self, addr: &NodeAddr, probe: Probe) -> bool {
        self.by_addr.get_mut(addr).is_some_and(|node| node.record(probe))
    }

    /// Schedules a query for `addr` at `at` or earlier, even if an older query is still open: its
    /// answer would not cover what has been learned since.
    pub(super) fn ask_at(&mut self, at: Instant, addr: &NodeAddr) {
        if let Some(node) = self.by_addr.get_mut(addr) {
            node.due = node.due.min(at);
            node.in_flight_since = None;
        }
    }

    /// The node's idle connection ended by itself.
    pub(super) fn ended(&mut self, now: Instant, addr: &NodeAddr) {
        if let Some(node) = self.by_addr.get_mut(addr) {
            node.ended_at = Some(now);
        }
        self.ask_at(now, addr);
    }

    /// Schedules a query to each node as soon as its open query is answered.
    pub(super) fn probe_soon(&mut self, now: Instant) {
        for node in self.by_addr.values_mut() {
            node.due = node.due.min(now);
        }
    }

    /// Discards all answers, including those still in flight.
    pub(super) fn forget(&mut self, now: Instant) {
        for node in self.by_addr.values_mut() {
            *node = NodeRecord::new(now);
        }
    }

    /// The nodes to query now; schedules their next query.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        next_probe: impl Fn(&NodeAddr) -> Instant,
    ) -> Vec<NodeAddr> {
        let mut due = Vec::new();
        for (addr, node) in &mut self.by_addr {
            let waiting = node
                .in_flight_since
                .is_some_and(|since| now.saturating_duration_since(since) < LOST_AFTER);
            if node.due <= now && !waiting {
                node.due = next_probe(addr);
                node.in_flight_since = Some(now);
                due.push(addr.clone());
            }
        }
        due
    }

    /// When [`Self::take_due`] has to be called next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let turn = |node: &NodeRecord| {
            node.in_flight_since.map_or(node.due, |since| node.due.max(since + LOST_AFTER))
        };
        self.by_addr.values().map(turn).min()
    }
}

/// The interval between two queries to a node.
pub(super) fn probe_interval(
    rules: &MachineRules,
    is_master: bool,
    alert_for: Option<Duration>,
) -> Duration {
    match alert_for {
        Some(long) if long < FAST_FOR => rules.probe_suspect,
        Some(_) => SLOW_ALERT.max(rules.probe_suspect),
        None if is_master => rules.probe_master,
        None => rules.probe_replica,
    }
}

/// Whether a report verifies a master, by the configured rule.
pub(super) fn verifies(report: &NodeReport, verify: Verify) -> bool {
    match verify {
        Verify::Role => report.role == Role::Master && report.ping.is_ready(),
        Verify::Ping => {
            report.ping.is_ready()
                && report.ping != PingReply::Other
                && !matches!(report.role, Role::Replica { .. })
        }
        Verify::Tcp => !matches!(report.role, Role::Replica { .. }),
    }
}
