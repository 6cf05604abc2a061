//! The replication history of the committed master: which other nodes belong to it.
//!
//! A history is known by its `replid`, 160 random bits that an outsider without `INFO` does not
//! know. A promoted replica begins a new one and remembers the former as `replid2`, and its own
//! replicas adopt both. Only one step back is remembered: after two failovers A, B, C no node shows
//! the history of A any more. Histories that were seen in between are therefore kept; and if none
//! was, the process that answers at the address of a replica is known by its `run_id`, provided
//! that most of the configured sentinels name it. Sentinels show a `run_id` to anyone.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::{Committed, Machine, MachineState};
use crate::{Lineage, NodeAddr, NodeReport, Role};

/// The maximum number of histories that are kept. The oldest are forgotten first.
const MAX_KNOWN: usize = 64;

/// What is known of the committed master's history; see the module documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct History {
    /// The history of the committed master, and those that continue it.
    current: VecDeque<Box<str>>,
    /// Those that it continues, oldest first.
    former: VecDeque<Box<str>>,
    /// The process last seen in this history at each address of a replica.
    processes: BTreeMap<NodeAddr, Box<str>>,
}

impl History {
    fn add(&mut self, replid: &str) {
        if !self.current.iter().any(|it| **it == *replid) {
            self.current.push_back(replid.into());
            self.current.drain(..self.current.len().saturating_sub(MAX_KNOWN));
        }
    }

    /// Another master is committed, which `inherits` the data of the former one or does not.
    pub(super) fn advance(&mut self, inherits: bool, new: Option<&Lineage>) {
        if !inherits {
            *self = Self::default();
        }
        let Some(new) = new else { return };
        self.former.extend(self.current.drain(..).filter(|it| *it != new.replid));
        self.former.extend(new.continued().map(Box::from));
        self.former.drain(..self.former.len().saturating_sub(MAX_KNOWN));
        self.add(&new.replid);
    }
}

/// How a node's data is related to that of the committed master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kinship {
    /// It has all that the committed master wrote, except for the last writes before a failover.
    Continues,
    /// It left the same history earlier.
    Branches,
    /// It has other data.
    Foreign,
}

/// Whether this process may send its password to a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Trust {
    /// Never: nothing of what follows is true of the node.
    #[default]
    Stranger,
    /// If it does not answer without: a majority of the configured sentinels names it, or has
    /// listed it as a replica of the committed master.
    Vouched,
    /// The same, and on a connection on which it has shown the committed master's history, in
    /// answer to a query sent at this time or before. Another process may have taken over its
    /// address since, and its `run_id`, which sentinels show to anyone.
    Shown(Instant),
    /// At once: it is the committed master, or an operator ordered it.
    Committed,
}

/// Whether the node writes, or left, one of these histories.
fn is_one_of(histories: &VecDeque<Box<str>>, node: &Lineage) -> bool {
    histories.iter().any(|it| *it == node.replid || Some(&**it) == node.continued())
}

impl Machine {
    /// Learns from an answer which histories and processes belong to the committed master. One to a
    /// query before the commit proves kinship, and not the contrary.
    pub(super) fn learn_history(
        &mut self,
        node: &NodeAddr,
        report: &NodeReport,
        since_commit: bool,
    ) {
        let (Some(committed), Some(new)) = (&self.committed, &report.lineage) else { return };
        let history = &mut self.history;
        // A master without replicas begins a new history after an hour. One that was demoted shows
        // the history of whatever node it was made to follow.
        let renewed = report.role == Role::Master && is_committed_process(committed, node, new);
        if renewed || is_one_of(&history.current, new) {
            history.add(&new.replid);
            if self.nodes.family.contains(node) {
                let family = &self.nodes.family;
                history.processes.retain(|addr, _| family.contains(addr));
                history.processes.insert(node.clone(), new.run_id.clone());
            }
        } else if let Role::Replica { master, .. } = &report.role
            && since_commit
            && *master != committed.addr
            && *master != NodeAddr::from(committed.dialled)
            && !self.nodes.family.contains(master)
        {
            // It follows another deployment, and has other data from now on.
            history.processes.remove(node);
        }
    }

    /// Whether `node` has the data of the committed master, as far as its answer shows, so that
    /// sessions may continue there. If a history cannot be read, a node has if it was listed as a
    /// replica of the committed master before, or answers at the same address.
    pub(super) fn inherits(&self, node: &NodeAddr, report: &NodeReport) -> bool {
        let listed = || self.nodes.family.contains(node);
        match self.kinship(node, report) {
            Some(kinship) => kinship != Kinship::Foreign,
            None => self.committed.as_ref().is_none_or(|it| it.addr == *node) || listed(),
        }
    }

    /// What the histories prove; `None` if one cannot be read.
    pub(super) fn kinship(&self, node: &NodeAddr, report: &NodeReport) -> Option<Kinship> {
        let committed = self.committed.as_ref()?;
        let (_, new) = (committed.lineage.as_ref()?, report.lineage.as_ref()?);
        // A process that followed the committed master, and was promoted since, has followed others
        // in between: failovers have passed unseen. Anyone can ask a sentinel for its `run_id`, so
        // that alone proves nothing.
        let seen = self.history.processes.get(node).filter(|_| self.nodes.family.contains(node));
        // One that still writes a former history was the master itself before.
        let left = self.history.former.contains(&new.replid);
        let followed = seen == Some(&new.run_id)
            && new.continued().is_some()
            && !left
            && self.electorate.vouches_for(node);
        let known = followed || is_committed_process(committed, node, new);
        Some(if known || is_one_of(&self.history.current, new) {
            Kinship::Continues
        } else if is_one_of(&self.history.former, new) {
            Kinship::Branches
        } else {
            Kinship::Foreign
        })
    }

    /// Whether a password may be sent to `node`, and when.
    #[must_use]
    pub fn trust(&self, node: &NodeAddr) -> Trust {
        let ordered = self.orders.pending.as_ref().is_some_and(|it| it.order.addr == *node);
        if ordered || self.committed.as_ref().is_some_and(|it| it.addr == *node) {
            return Trust::Committed;
        }
        // At a start without a majority there is nobody else to ask.
        let first = self.committed.is_none()
            && matches!(&self.state, MachineState::Committing { addr, .. } if addr == node);
        if !first && !self.is_credible(node) {
            return Trust::Stranger;
        }
        self.shown_at(node).map_or(Trust::Vouched, Trust::Shown)
    }

    /// When the last query to `node` was sent, if its answer shows the committed master's history.
    fn shown_at(&self, node: &NodeAddr) -> Option<Instant> {
        let probe = self.nodes.get(node)?.last.as_ref()?;
        let lineage = probe.outcome.as_ref().ok()?.lineage.as_ref()?;
        is_one_of(&self.history.current, lineage).then_some(probe.asked_at)
    }
}

fn is_committed_process(committed: &Committed, node: &NodeAddr, new: &Lineage) -> bool {
    let same = |old: &Lineage| old.run_id == new.run_id;
    committed.addr == *node && committed.lineage.as_ref().is_none_or(same)
}
