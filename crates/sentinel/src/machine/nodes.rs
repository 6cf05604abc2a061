//! What is known of each redis node, and when to ask it again.
//!
//! The nodes worth asking are the committed master, whoever is named or about to be named, and the
//! replicas that the electorate lists. Each is asked on its own schedule; an answer that does not
//! come is given up after a while, so that a lost answer delays the next question but never
//! prevents it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::{MachineRules, NodeAddr, NodeReport, Probe, ProbeFailure, Role, Verify};

/// The most nodes one master's group may have; a bound for sentinels that lie.
pub(super) const MAX_NODES: usize = 64;

/// A question is taken for lost after this long.
const LOST_AFTER: Duration = Duration::from_millis(1500);

/// An answer older than this verifies nothing ahead of its evidence: two turns of fast probing, and
/// a little.
const VERIFY_AHEAD_MAX_AGE: Duration = Duration::from_millis(50);

/// Fast probing of a group that stays alert is slowed to this after [`FAST_FOR`].
const SLOW_ALERT: Duration = Duration::from_millis(200);
const FAST_FOR: Duration = Duration::from_secs(15);

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct NodeRecord {
    pub(super) due: Instant,
    in_flight_since: Option<Instant>,
    /// The last answer, whatever it was.
    pub(super) last: Option<Probe>,
    /// When its idle connection last ended by itself: what it said before may be over.
    ended_at: Option<Instant>,
    unreachable_since: Option<Instant>,
    unreachable_times: u32,
}

impl NodeRecord {
    fn new(now: Instant) -> Self {
        let (due, in_flight_since, last, ended_at) = (now, None, None, None);
        Self { due, in_flight_since, last, ended_at, unreachable_since: None, unreachable_times: 0 }
    }

    /// The last report, if it answers a question from `since` on and is as good as one that would
    /// be asked for now: young, and the connection has not ended after it, as it does when a
    /// sentinel re-points the node.
    pub(super) fn recent_report(&self, now: Instant, since: Instant) -> Option<&NodeReport> {
        let asked_at = self.last.as_ref()?.asked_at;
        let young =
            asked_at >= since && now.saturating_duration_since(asked_at) <= VERIFY_AHEAD_MAX_AGE;
        self.report().filter(|_| young && self.ended_at.is_none_or(|at| asked_at > at))
    }

    /// The last report, if the last answer was one.
    pub(super) fn report(&self) -> Option<&NodeReport> {
        self.last.as_ref().and_then(|probe| probe.outcome.as_ref().ok())
    }

    /// Nobody was there, three times at least, and from the first of these questions to the last it
    /// was `long` at least: failures prove something, the time after them does not.
    pub(super) fn is_gone(&self, long: Duration) -> bool {
        let span = |since: Instant| {
            self.last.as_ref().map(|last| last.asked_at.saturating_duration_since(since))
        };
        self.unreachable_times >= 3
            && self.unreachable_since.and_then(span).is_some_and(|span| span >= long)
    }

    /// Answers may overtake each other: one to an older question than the last answer's is history.
    fn heard(&mut self, probe: Probe) -> bool {
        if self.last.as_ref().is_some_and(|last| probe.asked_at < last.asked_at) {
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

/// All nodes of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct NodeTable {
    by_addr: BTreeMap<NodeAddr, NodeRecord>,
    /// Answers to questions from before this prove nothing any more.
    forgotten_at: Option<Instant>,
}

impl NodeTable {
    pub(super) fn get(&self, addr: &NodeAddr) -> Option<&NodeRecord> {
        self.by_addr.get(addr)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodeAddr, &NodeRecord)> {
        self.by_addr.iter()
    }

    /// Keeps exactly the wanted ones, within the bound; `first` are never left out.
    pub(super) fn want(&mut self, now: Instant, first: &[&NodeAddr], others: &BTreeSet<NodeAddr>) {
        self.by_addr.retain(|addr, _| first.contains(&addr) || others.contains(addr));
        for addr in first.iter().copied().chain(others) {
            if self.by_addr.len() < MAX_NODES || first.contains(&addr) {
                self.by_addr.entry(addr.clone()).or_insert_with(|| NodeRecord::new(now));
            }
        }
    }

    /// Takes note of an answer. Answers of nodes that are no longer wanted and answers that newer
    /// ones have overtaken are dropped; then this is `false`.
    pub(super) fn heard(&mut self, addr: &NodeAddr, probe: Probe) -> bool {
        if self.forgotten_at.is_some_and(|at| probe.asked_at < at) {
            return false;
        }
        self.by_addr.get_mut(addr).is_some_and(|node| node.heard(probe))
    }

    /// Asks `addr` at `at`, or earlier if that was planned; even if an older question is still
    /// open, because an answer to that one would not cover what has been learnt since.
    pub(super) fn ask_at(&mut self, at: Instant, addr: &NodeAddr) {
        if let Some(node) = self.by_addr.get_mut(addr) {
            node.due = node.due.min(at);
            node.in_flight_since = None;
        }
    }

    /// Its idle connection ended by itself.
    pub(super) fn ended(&mut self, now: Instant, addr: &NodeAddr) {
        if let Some(node) = self.by_addr.get_mut(addr) {
            node.ended_at = Some(now);
        }
        self.ask_at(now, addr);
    }

    /// Asks everybody as soon as their open question is answered.
    pub(super) fn probe_soon(&mut self, now: Instant) {
        for node in self.by_addr.values_mut() {
            node.due = node.due.min(now);
        }
    }

    /// Forgets every answer, and those that are still on their way.
    pub(super) fn forget(&mut self, now: Instant) {
        self.forgotten_at = Some(now);
        for node in self.by_addr.values_mut() {
            *node = NodeRecord::new(now);
        }
    }

    /// The nodes to ask now; plans their next turn.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        probe_interval: impl Fn(&NodeAddr) -> Duration,
    ) -> Vec<NodeAddr> {
        let mut due = Vec::new();
        for (addr, node) in &mut self.by_addr {
            let waiting = node
                .in_flight_since
                .is_some_and(|since| now.saturating_duration_since(since) < LOST_AFTER);
            if node.due <= now && !waiting {
                node.due = now + probe_interval(addr);
                node.in_flight_since = Some(now);
                due.push(addr.clone());
            }
        }
        due
    }

    /// When [`Self::take_due`] has something to do next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let turn = |node: &NodeRecord| {
            node.in_flight_since.map_or(node.due, |since| node.due.max(since + LOST_AFTER))
        };
        self.by_addr.values().map(turn).min()
    }
}

/// How long to wait between two questions to a node.
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

/// Whether a report verifies a master, by the rule in force.
pub(super) fn verifies(report: &NodeReport, verify: Verify) -> bool {
    match verify {
        Verify::Role => report.role == Role::Master && report.pong,
        Verify::Ping => report.pong && !matches!(report.role, Role::Replica { .. }),
        Verify::Tcp => !matches!(report.role, Role::Replica { .. }),
    }
}
