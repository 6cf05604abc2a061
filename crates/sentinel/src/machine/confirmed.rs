//! Writes that were confirmed to clients by replicas (`durability`): whether a promoted node has
//! them.
//!
//! `WAIT` confirms a write when enough replicas have acknowledged its offset. What a master lists
//! in `ROLE` says as much: the offset that as many replicas have acknowledged is the furthest that
//! any write can have been confirmed to. A promoted replica shows at which offset it left the
//! history. If that is lower, it may lack confirmed writes; a server that came back without its
//! data lacks all. It is not followed for a while, in which an operator can promote another one,
//! and then it is, because nothing better will come.
//!
//! The list is as old as the last probe, so a node that lacks only the latest writes is not
//! noticed. While the gate is closed no client hears of a write, and a master that was superseded
//! goes on for seconds with the replicas that it still has: what they acknowledge then is not
//! noted. Nor is what a replica acknowledges beyond the offset of its master.
//!
//! A new master writes on at the offset at which it left the history, so what was confirmed before
//! stays known as far as its data reach: failovers may follow one another faster than probes.

use std::time::Instant;

use super::Machine;
use super::history::Kinship;
use crate::{NodeAddr, NodeReport};

/// What the replicas of the committed master, and of those before it, have acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Confirmed {
    /// The furthest offset that enough of them have acknowledged.
    offset: u64,
    /// How many it had in its last answer, if it lists them.
    replicas: Option<usize>,
}

/// A node that was promoted without confirmed writes, and is not followed yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Lacking {
    /// The node.
    pub(crate) node: NodeAddr,
    /// By how many bytes of the replication stream its data ends too early.
    pub(crate) bytes: u64,
    since: Instant,
}

impl Machine {
    /// The committed master has answered, with the offsets that its replicas have acknowledged.
    pub(super) fn note_confirmed(&mut self, report: &NodeReport) {
        let (Some(committed), Some(replicas)) = (&mut self.committed, &report.replicas) else {
            return;
        };
        committed.confirmed.replicas = Some(replicas.len());
        let written = report.offset.or(report.lineage.as_ref().map(|it| it.offset));
        let Some(written) = written.filter(|_| !self.hold.is_closed()) else { return };
        let mut offsets: Vec<u64> = replicas.iter().map(|it| it.acknowledged).collect();
        offsets.sort_unstable_by(|one, other| other.cmp(one));
        let Some(last) = usize::from(self.rules.confirmed_by).checked_sub(1) else { return };
        if let Some(offset) = offsets.get(last) {
            committed.confirmed.offset = committed.confirmed.offset.max(written.min(*offset));
        }
    }

    /// What was confirmed so far and is in the data of a new master.
    pub(super) fn confirmed_under(&self, node: &NodeAddr, report: &NodeReport) -> Confirmed {
        let same = self.is_target(node) && self.kinship(node, report) == Some(Kinship::Continues);
        let shared = if same { u64::MAX } else { self.shared_with(report).unwrap_or(0) };
        let offset = self.committed.as_ref().map_or(0, |it| it.confirmed.offset.min(shared));
        Confirmed { offset, replicas: None }
    }

    /// How many bytes that may have been confirmed are not in the data of a promoted node; all of
    /// them if it has other data. `None` if it has all, if its history cannot be read, or if the
    /// master itself has restarted: a history begins anew with data from an append-only file, too.
    pub(super) fn lacks_confirmed(&self, node: &NodeAddr, report: &NodeReport) -> Option<u64> {
        let committed = self.committed.as_ref().filter(|_| self.rules.confirmed_by > 0)?;
        let shared = match self.kinship(node, report)? {
            Kinship::Continues => self.shared_with(report)?,
            Kinship::Branches | Kinship::Foreign if self.is_target(node) => return None,
            Kinship::Branches | Kinship::Foreign => 0,
        };
        committed.confirmed.offset.checked_sub(shared).filter(|bytes| *bytes > 0)
    }

    /// Whether the node, about which all else is known, must wait because it lacks confirmed
    /// writes.
    pub(super) fn waits_for_confirmed(
        &mut self,
        now: Instant,
        node: &NodeAddr,
        report: &NodeReport,
    ) -> bool {
        let Some(bytes) = self.lacks_confirmed(node, report) else { return false };
        let since =
            self.hold.lacking.as_ref().filter(|it| it.node == *node).map_or(now, |it| it.since);
        self.hold.lacking = Some(Lacking { node: node.clone(), bytes, since });
        now < since + self.rules.confirmed_hold
    }

    /// How many more replicas the master has than have to confirm a write; `None` if none have to,
    /// or there is no master that lists them.
    pub(crate) fn spare_replicas(&self) -> Option<i32> {
        let committed = self.committed.as_ref().filter(|it| it.published)?;
        let needed = Some(self.rules.confirmed_by).filter(|needed| *needed > 0)?;
        let replicas = i32::try_from(committed.confirmed.replicas?).unwrap_or(i32::MAX);
        Some(replicas - i32::from(needed))
    }

    /// The promoted node that is not followed because it lacks confirmed writes.
    pub(crate) fn lacking(&self) -> Option<&Lacking> {
        self.hold.lacking.as_ref()
    }
}
