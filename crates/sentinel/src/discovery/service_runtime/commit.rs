//! Publishes a new target, and records the switch.
//!
//! The order matters: the node is fenced as a replica before the target leads to it, and statistics
//! and logs come after the switch.

use std::collections::BTreeSet;
use std::time::Instant;

use target::{Destination, Target};

use super::ServiceRuntime;
use crate::clock;
use crate::discovery::snapshot::MasterSnapshot;
use crate::link::links::Links;
use crate::{Commit, NodeAddr};

impl ServiceRuntime {
    pub(super) fn commit(&mut self, commit: Commit, links: &Links) {
        let (name, run_id) = (commit.addr.to_string().into(), commit.run_id.clone());
        let destination = Destination { addr: commit.dialled, name, epoch: commit.epoch, run_id };
        if let Some(replica_publisher) = &mut self.replica_publisher {
            replica_publisher.fence(commit.dialled);
        }
        let former = self.target_writer.reader().current();
        if commit.new_lineage {
            self.target_writer.begin_lineage();
        }
        let target = if commit.held {
            self.target_writer.commit_held(destination)
        } else {
            self.target_writer.commit(destination)
        };
        // Statistics and logs come after the switch.
        let published_at = clock::now();
        self.failover_history.note_first_session(&self.name);
        if commit.held {
            self.stopped_since.get_or_insert(published_at);
            self.held_since.get_or_insert(published_at);
        } else {
            self.end_outage(published_at);
        }
        self.keep_failed_connects(former.as_deref());
        let generation = target.generation().get();
        let from = self.master.take().map(|master| master.addr);
        let history = &mut self.failover_history;
        let failover = history.record(from, &commit, target, published_at, &self.machine);
        self.counts.commits += 1;
        self.counts.held += failover.timeline.hold().unwrap_or_default();
        self.failover_history.log(&self.name, failover);
        let Commit { addr, dialled, epoch, run_id, .. } = commit;
        self.master = Some(MasterSnapshot {
            addr,
            dialled,
            generation,
            epoch,
            run_id,
            since: published_at,
            sessions: 0,
            connects_fail: false,
        });
        self.publish(links);
    }

    /// Keeps the count of the target that was superseded, for the report of its node.
    pub(super) fn keep_failed_connects(&mut self, former: Option<&Target>) {
        let watched: BTreeSet<&NodeAddr> = self.machine.nodes().map(|(addr, _)| addr).collect();
        self.failed_connects.retain(|addr, _| watched.contains(addr));
        let Some(master) = &self.master else { return };
        let failed = former.map_or(0, Target::failed_connects);
        if failed > 0 {
            *self.failed_connects.entry(master.addr.clone()).or_default() += failed;
        }
    }

    /// Traffic can reach a master again. The time before the first master does not count as an
    /// outage.
    pub(super) fn end_outage(&mut self, now: Instant) {
        self.held_since = None;
        if let Some(since) = self.stopped_since.take().filter(|_| self.counts.commits > 0) {
            self.counts.stopped += now.saturating_duration_since(since);
        }
    }
}
