//! Read-only views of the machine: its electorate, its nodes, and a check of its invariants.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Admission, Machine, MachineState};
use crate::{Epoch, MyId, NodeAddr, Probe, View};

impl Machine {
    /// Whether this sentinel belongs to the electorate.
    #[must_use]
    pub fn is_member(&self, id: &MyId) -> bool {
        self.electorate.is_member(id)
    }

    /// Whether fewer sentinels are configured than a failover needs.
    #[must_use]
    pub fn depends_on_learned(&self) -> bool {
        self.electorate.depends_on_learned()
    }

    /// Why and since when each member of the electorate votes.
    pub fn members(&self) -> impl Iterator<Item = (&MyId, Admission, Instant)> {
        self.electorate.members()
    }

    /// Whether more than a single sentinel's list supports this node: it is the current or the last
    /// master, an operator ordered it, or the evidence for it is complete.
    #[must_use]
    pub fn is_corroborated(&self, node: &NodeAddr) -> bool {
        let claimed = matches!(&self.state, MachineState::Committing { addr, .. } if addr == node);
        let ordered = self.orders.pending.as_ref().is_some_and(|it| it.addr() == node);
        claimed || ordered || self.committed.as_ref().is_some_and(|it| it.addr == *node)
    }

    /// Whether requests pass although no majority of the sentinels has answered lately, since
    /// silence never removes a master.
    #[must_use]
    pub fn is_open_without_majority(&self) -> bool {
        !self.hold.is_closed
            && matches!(self.state, MachineState::Stable | MachineState::Suspect { .. })
            && !self.electorate.majority_answers()
    }

    /// Each unexpired view: the sentinel, whether it votes, the view, and when it was received.
    pub fn views(&self) -> impl Iterator<Item = (&MyId, bool, &View, Instant)> {
        self.electorate
            .all_views()
            .map(|(id, member, received)| (id, member, &received.view, received.at))
    }

    /// The views that decide which replicas may serve readers: those of the configured sentinels,
    /// or of all voters while no configured sentinel answers.
    pub(crate) fn trusted_views(&self) -> Vec<&View> {
        let members = || self.electorate.all_views().filter(|(_, member, _)| *member);
        let configured = members().any(|(_, _, received)| received.configured);
        members()
            .filter(|(_, _, received)| received.configured || !configured)
            .map(|(_, _, received)| &received.view)
            .collect()
    }

    /// What the voting and the configured sentinels name. An operator has to know of differences.
    pub fn named_masters(&self) -> BTreeSet<(&NodeAddr, Epoch)> {
        let known = self
            .electorate
            .all_views()
            .filter(|(_, member, received)| *member || received.configured);
        let naming =
            known.filter(|(_, member, received)| *member || !received.view.is_empty_state());
        naming.map(|(_, _, received)| (&received.view.addr, received.view.epoch)).collect()
    }

    /// Each watched node with its last answer.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeAddr, Option<&Probe>)> {
        self.nodes.iter().map(|(addr, node)| (addr, node.last.as_ref()))
    }

    /// The first violated safety rule, if any; for tests and for an assertion of the driver in
    /// debug builds.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        let votes = self.electorate.votes(None);
        let distinct: BTreeSet<&MyId> = votes.iter().map(|vote| &vote.voter).collect();
        if distinct.len() != votes.len() {
            return Some("S6: a sentinel votes twice");
        }
        let committed = self.committed.as_ref()?;
        let superseded = self.nodes.superseded.get(&committed.addr).copied();
        if superseded.is_some_and(|epoch| epoch >= committed.epoch) && committed.published {
            return Some("zombie guard: a superseded address is published");
        }
        None
    }
}
