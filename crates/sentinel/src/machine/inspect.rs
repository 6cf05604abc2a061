//! What the machine shows of its electorate and its nodes, and of its own soundness: nothing here
//! changes anything.

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

    /// How and since when each member of the electorate votes.
    pub fn members(&self) -> impl Iterator<Item = (&MyId, Admission, Instant)> {
        self.electorate.members()
    }

    /// Whether more than a single sentinel's list stands behind this node: it is the master in
    /// force or was so last, or the evidence for it is complete.
    #[must_use]
    pub fn is_corroborated(&self, node: &NodeAddr) -> bool {
        let claimed = matches!(&self.state, MachineState::Committing { addr, .. } if addr == node);
        claimed || self.committed.as_ref().is_some_and(|it| it.addr == *node)
    }

    /// Every fresh view: whose, whether it votes, what it says, when it was heard.
    pub fn views(&self) -> impl Iterator<Item = (&MyId, bool, &View, Instant)> {
        self.electorate.all_views().map(|(id, member, heard)| (id, member, &heard.view, heard.at))
    }

    /// What the sentinels name that vote or that the configuration leads to: where these differ, an
    /// operator has to know.
    pub fn named_masters(&self) -> BTreeSet<(&NodeAddr, Epoch)> {
        let known =
            self.electorate.all_views().filter(|(_, member, heard)| *member || heard.configured);
        let voiced = known.filter(|(_, member, heard)| *member || !heard.view.is_empty_state());
        voiced.map(|(_, _, heard)| (&heard.view.addr, heard.view.epoch)).collect()
    }

    /// Every node under observation with its last answer.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeAddr, Option<&Probe>)> {
        self.nodes.iter().map(|(addr, node)| (addr, node.last.as_ref()))
    }

    /// The first broken safety rule, if any: for tests, and for a debug build's assertion in the
    /// driver.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        let votes = self.electorate.votes();
        let distinct: BTreeSet<&MyId> = votes.iter().map(|vote| &vote.voter).collect();
        if distinct.len() != votes.len() {
            return Some("S6: a sentinel votes twice");
        }
        let committed = self.committed.as_ref()?;
        let superseded = self.superseded.get(&committed.addr).copied();
        if superseded.is_some_and(|epoch| epoch >= committed.epoch) && committed.published {
            return Some("zombie guard: a superseded address is published");
        }
        None
    }
}
