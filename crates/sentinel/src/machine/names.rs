//! One process under several names: sentinels announce a node by its address or, with
//! `announce-hostnames`, by a name, and each begins to do so at its own time.
//!
//! The identity of the committed master is its process, not the text by which sentinels name it. A
//! text whose node answers as the committed process, at its epoch or before, is therefore read as
//! the committed address wherever votes are compared. Once a majority uses another text, the
//! published text changes: no commit, and no session notices. A text that leads elsewhere, or not
//! to an answer, is a claim like any other.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

use super::doubt::{ProcessRelation, relation};
use super::nodes::{NodeRecord, verifies};
use super::state::{Basis, MachineState};
use super::{Machine, MachineAction};
use crate::{Epoch, NodeAddr, NodeReport};

impl Machine {
    /// Whether the node that answered is the published master.
    pub(super) fn is_committed_process(&self, report: &NodeReport) -> bool {
        self.committed.as_ref().is_some_and(|committed| {
            committed.published
                && verifies(report, self.rules.verify)
                && relation(committed, report) == ProcessRelation::Same
        })
    }

    /// The texts by which voters name the master, other than the committed address. They are
    /// queried, to learn whether they lead to the same process, once most configured sentinels use
    /// them: a query may carry a password, and one sentinel may name any server.
    pub(super) fn other_names(&self) -> BTreeSet<NodeAddr> {
        let others = self.committed.as_ref();
        let others = others.map(|it| self.electorate.other_texts(&it.addr, it.epoch));
        others.into_iter().flatten().filter(|text| self.is_credible(text)).collect()
    }

    /// Reads all texts that lead to the committed process as its address, and publishes the one
    /// that a majority uses.
    pub(super) fn unify_names(&mut self, now: Instant) {
        let others = self.other_names();
        if others.is_empty() {
            return;
        }
        let Some(epoch) = self.committed.as_ref().map(|it| it.epoch) else { return };
        for text in &others {
            if self.nodes.get(text).is_none_or(|node| node.last.is_none()) {
                self.nodes.ask_at(now, text);
            }
        }
        let mut same: BTreeSet<NodeAddr> = others
            .into_iter()
            .filter(|text| {
                let report = self.nodes.get(text).and_then(NodeRecord::report);
                report.is_some_and(|report| self.is_committed_process(report))
            })
            .collect();
        let usual = same.iter().find(|text| self.electorate.majority_says(text, epoch)).cloned();
        if let Some(text) = usual {
            let before = self.committed.as_ref().map(|it| it.addr.clone());
            let report = self.nodes.get(&text).and_then(NodeRecord::report);
            if let Some(dialled) = report.map(|report| report.dialled) {
                same.extend(before);
                self.rename(&text, dialled);
            }
        }
        if let Some(committed) = &self.committed {
            self.electorate.read_texts_as(&same, &committed.addr, epoch);
        }
    }

    /// Whether a voter names the master by a text whose node has not answered yet: it may be the
    /// same process, which is no disagreement.
    pub(super) fn awaits_other_name(&self) -> bool {
        let unheard = |text: &NodeAddr| self.nodes.get(text).is_none_or(|node| node.last.is_none());
        self.other_names().iter().any(unheard)
    }

    /// Whether a commit would only change the text by which the published master is known. An
    /// operator's order is answered with a commit in any case.
    pub(super) fn is_renamed(&self, addr: &NodeAddr, basis: Basis, report: &NodeReport) -> bool {
        let other = self.committed.as_ref().is_some_and(|committed| committed.addr != *addr);
        other
            && matches!(basis, Basis::Majority | Basis::SingleSentinel)
            && self.is_committed_process(report)
    }

    /// The committed process is announced as `addr` from now on.
    pub(super) fn rename(&mut self, addr: &NodeAddr, dialled: SocketAddr) {
        let Some(committed) = &mut self.committed else { return };
        (committed.addr, committed.dialled) = (addr.clone(), dialled);
        self.nodes.superseded.remove(addr);
        self.succession.forgive(addr);
        self.actions.push(MachineAction::Redirect(addr.clone(), dialled));
    }

    /// The sentinels moved to an epoch at which the published process is still the master.
    pub(super) fn stay(&mut self, now: Instant, epoch: Epoch) {
        if let Some(committed) = &mut self.committed {
            committed.epoch = epoch;
        }
        (self.pending, self.doubt) = (None, None);
        self.timeline.abandoned();
        self.enter(MachineState::Suspect { since: now, last_sign_at: now });
    }
}
