//! What the machine shows of its electorate and its nodes, and of its own soundness: nothing here changes anything.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Machine, State};
use crate::{MyId, NodeAddr, Probe, View};

impl Machine {
    /// Whether this sentinel belongs to the electorate.
    #[must_use]
    pub fn is_member(&self, id: &MyId) -> bool {
        self.voters.is_member(id)
    }

    /// Whether more than a single sentinel's list stands behind this node: it is the master in force or was so last, or the
    /// evidence for it is complete.
    #[must_use]
    pub fn is_sure(&self, node: &NodeAddr) -> bool {
        let claimed = matches!(&self.state, State::Committing { addr, .. } if addr == node);
        claimed || self.committed.as_ref().is_some_and(|it| it.addr == *node)
    }

    /// Every fresh view: whose, whether it votes, what it says, when it was heard.
    pub fn views(&self) -> impl Iterator<Item = (&MyId, bool, &View, Instant)> {
        self.voters.all_views()
    }

    /// Every node under observation with its last answer.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeAddr, Option<&Probe>)> {
        self.nodes.iter().map(|(addr, node)| (addr, node.last.as_ref()))
    }

    /// The first broken safety rule, if any: for tests, and for a debug build's assertion in the driver.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        let votes = self.voters.votes();
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
