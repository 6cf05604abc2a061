//! Replica eligibility: decides which replicas may serve reads. Pure.
//!
//! It has three sources. Sentinels say which replicas exist and whether they consider them up, the
//! master says which replicas are attached to it, and a probe says what a replica reports about
//! itself. Sentinels alone are not enough: for about ten
//! seconds after a planned failover every sentinel lists the old master as a replica that is up,
//! while it still reports `role:master`. A replica is *eligible* while most sentinels list it and
//! those do not consider it down, the master lists it, it has the master's replication history, it
//! reports that it follows the committed master over a link that is up, is ready, and does not lag
//! too far. While all sentinels are silent, their last list stands.
//!
//! **Transient faults around a failover are ignored.** While the master is in question every
//! replica's link is down, and right after a switch observers list all replicas as disconnected.
//! Emptying the pool then would stop reads at the very moment at which replicas are all there is.
//! Until the state has been stable for a while (`settle`), an eligible replica therefore stays
//! eligible by its own answers: its link may be down, but it must answer, must not be a master, and
//! must not be the candidate for promotion.
//!
//! **Ejected at once, readmitted slowly.** An ejected replica must be free of faults for an
//! uninterrupted time before it is readmitted, and its lag must fall to half of the limit. A new
//! replica is admitted with its first good answer.
//!
//! An ineligible replica is merely worse than others. A *fenced* one is wrong: a master, or a node
//! with another history. No byte may be sent to it.

mod fault;
mod health;
mod lag;
#[cfg(test)]
mod property_tests;
mod repoint_pause;
mod state;
#[cfg(test)]
mod tests;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fault::{fault, is_wrong};
use health::HealthTracker;
pub use lag::Lag;
use lag::OffsetHistory;
pub(crate) use repoint_pause::RepointPause;
pub use state::ReplicaState;
pub(crate) use views::listed;

use crate::{AttachedReplica, NodeAddr, NodeReport, Probe, ProbeFailure, ReplicaRules, Role};

/// Limit of replicas per master; the machine watches no more than that, either.
const MAX_REPLICAS: usize = 64;

/// A node that no sentinel lists any more is not probed any more, so its role is unknown: after
/// this time it is fenced.
const UNLISTED_FOR: Duration = Duration::from_secs(30);

/// Upper bound of the time from the first master, or from a stall of the process, to the first
/// published set.
const FIRST_EVALUATION: Duration = Duration::from_secs(1);

/// The committed master, which replicas are compared with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CurrentMaster<'a> {
    pub(crate) addr: &'a NodeAddr,
    pub(crate) dialled: SocketAddr,
    /// The replication IDs that its followers may report; empty if they could not be read.
    pub(crate) replid: &'a str,
    pub(crate) replid2: &'a str,
    /// The replicas that it lists itself; `None` until known.
    pub(crate) replicas: Option<&'a [AttachedReplica]>,
}

/// The inputs of an evaluation apart from the replicas' own answers.
#[derive(Debug, Clone)]
pub(crate) struct EligibilityInputs<'a> {
    /// The committed master, published or not. Without one there is nothing to follow.
    pub(crate) master: Option<CurrentMaster<'a>>,
    /// The replica that is about to be promoted.
    pub(crate) candidate: Option<&'a NodeAddr>,
    /// The machine is stable at this moment.
    pub(crate) stable: bool,
    /// The operator chose that nothing may be served because the sentinels are a provable minority.
    pub(crate) in_minority: bool,
    /// The listed replicas, and whether most sentinels that list one consider it up. `None` while
    /// no sentinel reports about this master: missing reports eject no replica.
    pub(crate) listed: Option<BTreeMap<NodeAddr, bool>>,
}

/// A replica that may serve reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolMember {
    /// Its announced address.
    pub addr: NodeAddr,
    /// The address that was probed.
    pub dialled: SocketAddr,
    /// Its `run_id`, where known.
    pub run_id: Option<Box<str>>,
}

/// The result of an evaluation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PoolUpdate {
    /// The whole set; `None` while there is not enough information.
    pub members: Option<Vec<PoolMember>>,
    /// Addresses to which nothing may be sent any more.
    pub fenced: BTreeSet<SocketAddr>,
    /// Replicas whose state changed: address, old state, new state.
    pub changes: Vec<(NodeAddr, ReplicaState, ReplicaState)>,
}

/// The last successful probe.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastReport {
    asked_at: Instant,
    report: NodeReport,
}

/// The record of one replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::replicas) struct ReplicaRecord {
    pub(in crate::replicas) state: ReplicaState,
    /// The last probe, to process each once.
    last_probe: Option<Probe>,
    last_report: Option<LastReport>,
    /// How probes failed since the last report, and how many.
    failed: Option<(ProbeFailure, u32)>,
    /// The process that was admitted, if known.
    process: Option<Box<str>>,
    healthy: bool,
    unlisted_since: Option<Instant>,
    /// Without a fault since then.
    faultless_since: Option<Instant>,
    pub(in crate::replicas) lag: Lag,
    pub(in crate::replicas) health: HealthTracker,
}

/// The eligibility of all replicas of one master.
#[derive(Debug, Clone, Default)]
pub(crate) struct Eligibility {
    pub(in crate::replicas) rules: ReplicaRules,
    replicas: BTreeMap<NodeAddr, ReplicaRecord>,
    history: OffsetHistory,
    master: Option<NodeAddr>,
    /// The replicas in the last answer of the master.
    attached: Option<Box<[AttachedReplica]>>,
    /// Transient faults are ignored until then.
    settling_until: Option<Instant>,
    /// While set, there is not enough information to evaluate: since when, and the age limit for
    /// answers.
    blind_since: Option<Instant>,
}

impl Eligibility {
    /// No replica is known yet.
    #[must_use]
    pub(crate) fn new(rules: ReplicaRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Whether sentinels listed this replica until now.
    pub(crate) fn is_listed(&self, addr: &NodeAddr) -> bool {
        self.replicas.get(addr).is_some_and(|record| record.unlisted_since.is_none())
    }

    /// The record of each replica.
    pub(in crate::replicas) fn records(&self) -> impl Iterator<Item = (&NodeAddr, &ReplicaRecord)> {
        self.replicas.iter()
    }

    /// Whether the replica has not answered for too long. Nobody is silent while this is blind.
    pub(in crate::replicas) fn is_silent(&self, now: Instant, record: &ReplicaRecord) -> bool {
        let unanswered = self.is_current().then_some(self.rules.unanswered);
        record.health.is_silent(now, unanswered)
    }

    /// The process was stopped: every answer is from before, and nothing may be evaluated until the
    /// replicas have been probed again.
    pub(crate) fn on_resume(&mut self, now: Instant) {
        self.blind_since = Some(now);
    }

    /// Whether the last published set is based on current information.
    pub(crate) fn is_current(&self) -> bool {
        self.blind_since.is_none()
    }

    /// Records the last probe of a node of any role. May be called repeatedly with the same probe.
    fn record_probe(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
        if let (Ok(report @ NodeReport { role: Role::Master, .. }), true) =
            (&probe.outcome, self.master.as_ref() == Some(node))
        {
            if let Some(offset) = report.offset {
                self.history.note(probe.asked_at, now, offset);
            }
            if report.replicas.is_some() {
                self.attached.clone_from(&report.replicas);
            }
        }
        let history = &self.history;
        let Some(record) = self.replicas.get_mut(node) else { return };
        if record.last_probe.as_ref() == Some(probe) {
            return;
        }
        record.last_probe = Some(probe.clone());
        record.health.record_probe(now, probe);
        match &probe.outcome {
            Ok(report) => {
                record.failed = None;
                record.lag = report
                    .offset
                    .map_or_else(Lag::default, |offset| history.lag(probe.asked_at, offset));
                record.last_report =
                    Some(LastReport { asked_at: probe.asked_at, report: report.clone() });
            }
            Err(failure) => {
                let times = record.failed.map_or(0, |(_, times)| times);
                record.failed = Some((*failure, times.saturating_add(1)));
            }
        }
    }

    /// Updates every state from the inputs and the nodes' last answers. To be called after each
    /// change of the inputs, and periodically.
    pub(crate) fn evaluate<'a>(
        &mut self,
        now: Instant,
        inputs: &EligibilityInputs<'_>,
        answers: impl Iterator<Item = (&'a NodeAddr, &'a Probe)>,
    ) -> PoolUpdate {
        let mut update = PoolUpdate::default();
        let Some(master) = inputs.master else { return update };
        self.follow(now, &master, inputs.stable);
        self.list(now, &master, inputs.listed.as_ref(), &mut update.fenced);
        answers.for_each(|(node, probe)| self.record_probe(now, node, probe));
        self.end_blind_phase(now);
        update.fenced.insert(master.dialled);
        let master = CurrentMaster { replicas: self.attached.as_deref(), ..master };
        let settling = self.settling_until.is_some_and(|until| now < until);
        for (addr, record) in &mut self.replicas {
            let is_wrong = is_wrong(record, addr, &master, settling);
            update.fenced.extend(record.dialled().filter(|_| is_wrong));
            if self.blind_since.is_some() {
                // The information is too old to eject a replica for it.
                continue;
            }
            let fault = fault(record, addr, now, &self.rules, &master, inputs, settling);
            let state = record.next_state(now, fault, self.rules.readmit);
            if state == ReplicaState::Eligible && !settling {
                record.process = record.run_id().map(Box::from);
            }
            if state != record.state {
                update.changes.push((addr.clone(), record.state, state));
                record.state = state;
            }
        }
        if self.blind_since.is_none() {
            update.members = Some(self.members(&update.fenced));
        }
        update
    }

    fn members(&self, fenced: &BTreeSet<SocketAddr>) -> Vec<PoolMember> {
        let eligible =
            self.replicas.iter().filter(|(_, record)| record.state == ReplicaState::Eligible);
        let members = eligible.filter_map(|(addr, record)| {
            let (dialled, run_id) = (record.dialled()?, record.run_id().map(Box::from));
            Some(PoolMember { addr: addr.clone(), dialled, run_id })
        });
        members.filter(|member| !fenced.contains(&member.dialled)).collect()
    }

    /// A new master starts a new offset history, and so does the first one.
    fn follow(&mut self, now: Instant, master: &CurrentMaster<'_>, stable: bool) {
        if self.master.as_ref() != Some(master.addr) {
            if self.master.is_none() {
                self.blind_since = Some(now);
            }
            self.master = Some(master.addr.clone());
            self.history.forget();
            self.attached = None;
            self.settling_until = Some(now + self.rules.settle);
        }
        if !stable {
            self.settling_until = Some(now + self.rules.settle);
        }
    }

    /// Takes over the listed replicas. One that is not listed any more is kept for a while, and
    /// then fenced.
    fn list(
        &mut self,
        now: Instant,
        master: &CurrentMaster<'_>,
        listed: Option<&BTreeMap<NodeAddr, bool>>,
        fenced: &mut BTreeSet<SocketAddr>,
    ) {
        let Some(listed) = listed else { return };
        for (addr, healthy) in listed {
            if self.replicas.len() < MAX_REPLICAS || self.replicas.contains_key(addr) {
                let record = self.replicas.entry(addr.clone()).or_default();
                (record.healthy, record.unlisted_since) = (*healthy, None);
            }
        }
        let in_use: BTreeSet<SocketAddr> = self
            .replicas
            .iter()
            .filter(|(addr, _)| listed.contains_key(*addr))
            .filter_map(|(_, record)| record.dialled())
            .collect();
        self.replicas.retain(|addr, record| {
            if listed.contains_key(addr) {
                return true;
            }
            let since = *record.unlisted_since.get_or_insert(now);
            // The role of the master itself is known.
            let over = addr == master.addr || now.saturating_duration_since(since) >= UNLISTED_FOR;
            // It may be listed by another name now.
            let dialled = record.dialled().filter(|dialled| over && !in_use.contains(dialled));
            fenced.extend(dialled);
            !over
        });
    }

    /// Ends the blind phase once every replica has been probed, or after [`FIRST_EVALUATION`].
    /// Answers from before a stall are dropped then.
    fn end_blind_phase(&mut self, now: Instant) {
        let Some(since) = self.blind_since else { return };
        let fresh = |record: &ReplicaRecord| {
            record.last_report.as_ref().is_some_and(|last_report| last_report.asked_at >= since)
        };
        // A failure from before says nothing, either: without a master a replica is not given the
        // password.
        let heard = |record: &ReplicaRecord| {
            record.last_probe.as_ref().is_some_and(|probe| probe.asked_at >= since)
        };
        let all = !self.replicas.is_empty() && self.replicas.values().all(heard);
        if all || now.saturating_duration_since(since) >= FIRST_EVALUATION {
            self.blind_since = None;
            self.replicas
                .values_mut()
                .filter(|record| !fresh(record))
                .for_each(|record| record.last_report = None);
        }
    }
}

impl ReplicaRecord {
    /// The address that was probed when it last answered.
    pub(in crate::replicas) fn dialled(&self) -> Option<SocketAddr> {
        self.last_report.as_ref().map(|it| it.report.dialled)
    }

    pub(in crate::replicas) fn run_id(&self) -> Option<&str> {
        self.last_report.as_ref()?.report.lineage.as_ref().map(|lineage| &*lineage.run_id)
    }

    /// Whether the process that answers now is the one that was admitted, as far as is known.
    fn is_the_same_process(&self) -> bool {
        self.process.is_none()
            || self.run_id().is_none_or(|now| self.process.as_deref() == Some(now))
    }

    /// The state that follows from a fault or its absence: an ejected replica must be free of
    /// faults for a while.
    fn next_state(
        &mut self,
        now: Instant,
        fault: Option<ReplicaState>,
        readmit: Duration,
    ) -> ReplicaState {
        if let Some(fault) = fault {
            self.faultless_since = None;
            return fault;
        }
        let since = *self.faultless_since.get_or_insert(now);
        let known = !matches!(self.state, ReplicaState::Eligible | ReplicaState::Unknown);
        if known && now.saturating_duration_since(since) < readmit {
            ReplicaState::Recovering
        } else {
            ReplicaState::Eligible
        }
    }
}
