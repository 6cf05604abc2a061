//! Publishes the snapshot of one service.

use std::sync::Arc;

use super::ServiceRuntime;
use crate::clock;
use crate::discovery::sentinel_pool::LiveSentinel;
use crate::discovery::snapshot::{
    DiscoverySnapshot, MasterSnapshot, NodeSnapshot, OverridesSnapshot, SentinelSnapshot,
};
use crate::link::links::Links;
use crate::prober::prober_set::ProbeStats;
use crate::replicas::publisher::ReplicaPublisher;
use crate::{Admission, NodeAddr, Probe, Trust, View, VoteOutcome};

/// The problem of a configured sentinel without a vote.
const STRANGER: &str = concat!(
    "it has no vote: no sentinel with a vote knows it, and it knows none of them; ",
    "check that it watches the same master"
);

/// The problem of a sentinel that has read another `run_id`.
const OTHER_PROCESS: &str = "it found another process at the master's address than answers here";

impl ServiceRuntime {
    /// Periodic work: detects the first session on the current master, flushes delayed log lines
    /// and publishes a snapshot.
    pub(crate) fn refresh(&mut self, links: &Links) {
        let now = clock::now();
        self.failover_history.note_first_session(&self.name);
        self.failover_history.flush_logs(now);
        self.log_limiter.flush(now);
        self.remind_of_override(now);
        self.update_replicas();
        self.update_sentinel_pool(links);
        self.update_alarms(now, links);
        self.publish(links);
        let snapshot = self.snapshot.load();
        self.credential_log.update(now, &self.name, &snapshot, &mut self.log_limiter);
        self.no_master.update(now, &self.name, &snapshot);
    }

    /// Updates the pool of sentinels from the connections to them.
    pub(crate) fn update_sentinel_pool(&mut self, links: &Links) {
        let Some(pool) = &mut self.sentinel_pool else { return };
        let live = links.for_service(self.number).filter_map(|link| {
            let (id, dialled) = link.up.clone()?;
            let view = self.machine.views().find(|(voter, ..)| **voter == id);
            let in_tilt = view.is_some_and(|(_, _, view, _)| view.tilt);
            let is_useful = !in_tilt && !link.poll_errors.contains_key(&self.number);
            let (addr, is_configured) = (link.addr.clone(), !link.is_learned());
            Some(LiveSentinel { id, dialled, addr, is_configured, is_useful })
        });
        let mut all = links.for_service(self.number).map(|link| link.problem.is_some()).peekable();
        let all_failed = all.peek().is_some() && all.all(|failed| failed);
        pool.publish(live.collect(), all_failed);
    }

    /// What the sentinels' views are compared with: the published master, or else the leading
    /// claim.
    fn reference(&self) -> Option<(NodeAddr, u64)> {
        let published = self
            .machine
            .committed()
            .filter(|it| it.published)
            .map(|it| (it.addr.clone(), it.epoch));
        published.or_else(|| match self.machine.vote_outcome() {
            VoteOutcome::Claimed(claim) | VoteOutcome::Regressed(claim) => {
                Some((claim.addr.clone(), claim.epoch))
            }
            VoteOutcome::Silence | VoteOutcome::Confirmed { .. } => None,
        })
    }

    /// Failed connections of sessions to a node, as the master now and before.
    fn failed_connects_to(&self, addr: &NodeAddr) -> usize {
        let present = self.target_writer.reader().current();
        let present = present.filter(|_| self.master.as_ref().is_some_and(|it| it.addr == *addr));
        let before = self.failed_connects.get(addr).copied().unwrap_or_default();
        before + present.map_or(0, |it| it.failed_connects())
    }

    fn node(&self, addr: &NodeAddr, probe: Option<&Probe>) -> NodeSnapshot {
        let stats = self.probers.stats(addr);
        let lists = |view: &View| view.replicas.iter().any(|it| it.healthy && it.addr == *addr);
        let listed_healthy =
            self.machine.views().filter(|(_, member, view, _)| *member && lists(view)).count();
        NodeSnapshot {
            addr: addr.clone(),
            tls: stats.and_then(|it| it.tls),
            tls_fault: stats.and_then(ProbeStats::tls_fault),
            probe: probe.cloned(),
            answered_in: stats.and_then(|it| it.answered_in),
            failures: stats.map_or(0, |it| it.failures),
            failed_connects: self.failed_connects_to(addr),
            problem: stats.and_then(ProbeStats::problem),
            listed_healthy,
            trusted: self.machine.trust(addr) != Trust::Stranger,
        }
    }

    fn overrides_snapshot(&self) -> OverridesSnapshot {
        let in_force = self.machine.override_in_force();
        let named = in_force.into_iter().flat_map(|_| self.machine.named_masters());
        let others =
            named.map(|(addr, _)| addr).filter(|addr| in_force.map(|it| &it.addr) != Some(*addr));
        OverridesSnapshot {
            in_force: in_force.cloned(),
            contradicted_by: others.cloned().collect(),
            answers: self.overrides.answers.iter().cloned().collect(),
            last_end: self.overrides.last_end,
            minority: self.machine.configured_minority_policy(),
        }
    }

    /// Publishes a snapshot.
    pub(crate) fn publish(&self, links: &Links) {
        let reference = self.reference();
        let target = self.target_writer.reader().current();
        let sentinels = links.for_service(self.number).map(|link| {
            let id = link.id().cloned();
            let view = self.machine.views().find(|(voter, ..)| id.as_ref() == Some(*voter));
            let unknown =
                view.as_ref().is_some_and(|(_, member, view, _)| !member && !view.is_empty_state());
            let stranger = unknown && !link.is_learned();
            let is_other =
                view.as_ref().is_some_and(|(_, _, view, _)| self.machine.is_read_as_another(view));
            SentinelSnapshot {
                addr: link.addr.clone(),
                origin: if link.is_learned() { Admission::Learned } else { Admission::Configured },
                stranger,
                up: link.up.is_some(),
                events: link.events,
                tls: link.tls,
                tls_fault: link.tls_fault,
                member: view.as_ref().is_some_and(|(_, member, ..)| *member),
                disagrees: view.as_ref().is_some_and(|(_, _, view, _)| {
                    reference
                        .as_ref()
                        .is_some_and(|(addr, epoch)| view.addr != *addr || view.epoch != *epoch)
                }),
                tilt: view.as_ref().is_some_and(|(_, _, view, _)| view.tilt),
                view: view.map(|(_, _, view, at)| (view.addr.clone(), view.epoch, at)),
                problem: link
                    .problem_for(self.number)
                    .or_else(|| stranger.then(|| STRANGER.to_owned()))
                    .or_else(|| is_other.then(|| OTHER_PROCESS.to_owned())),
                id,
            }
        });
        let nodes = self.machine.nodes().map(|(addr, probe)| self.node(addr, probe));
        self.snapshot.store(Arc::new(DiscoverySnapshot {
            name: Arc::clone(&self.name),
            master_name: Arc::clone(&self.master_name),
            at: clock::now(),
            state: self.machine.state().label(),
            holding: self.machine.is_holding(),
            pause: self.machine.pause().copied(),
            candidate: self.machine.state().candidate().cloned(),
            // The epoch may fall without a switch, when the sentinels were reconfigured from
            // scratch.
            master: self.master.clone().map(|master| MasterSnapshot {
                epoch: self.machine.committed().map_or(master.epoch, |it| it.epoch),
                sessions: target.as_ref().map_or(0, |it| it.load()),
                connects_fail: target.as_ref().is_some_and(|it| it.is_failing()),
                ..master
            }),
            stopped_since: self.stopped_since,
            held_since: self.held_since,
            disagreement: self.machine.named_masters().len() > 1,
            minority: self.machine.is_minority(),
            spare_replicas: self.machine.spare_replicas(),
            quorum: self.machine.quorum(),
            configured: self.expected,
            depends_on_learned: self.machine.depends_on_learned(),
            sentinels: sentinels.collect(),
            nodes: nodes.collect(),
            replicas: self.replica_publisher.as_ref().map(ReplicaPublisher::snapshot),
            auth: self.probers.login().status(|_| true),
            sentinel_auth: links.credential_status(self.number),
            failovers: self.failover_history.failovers().to_vec(),
            overrides: self.overrides_snapshot(),
            alarms: self.alarms.records(),
            counts: self.counts,
        }));
    }
}
