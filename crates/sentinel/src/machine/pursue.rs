//! From complete evidence to the move of the points, and the ways a target is taken away.

use std::time::Instant;

use super::nodes::{self, MAX_NODES};
use super::state::{Basis, Cause, Lack, State};
use super::{Action, Commit, Committed, Machine, Note};
use crate::timers::verify_pause;
use crate::{Epoch, NodeAddr, Probe, Report};

impl Machine {
    /// The evidence for `addr` at `epoch` is complete. From here on traffic is held, and the next answer of that node to a
    /// question asked from now on decides.
    pub(super) fn pursue(&mut self, now: Instant, addr: NodeAddr, epoch: Epoch, basis: Basis) {
        if let State::Committing { addr: same, epoch: as_of, basis: known, .. } = &mut self.state {
            if *same == addr && *as_of == epoch {
                *known = basis.max(*known);
                return;
            }
        }
        self.story.evidence(now);
        let until = now + self.rules.verify_deadline;
        self.nodes.ask_at(now, &addr);
        self.state = State::Committing { addr, epoch, basis, evidence_at: now, attempts: 0, until };
    }

    /// An answer of the node that is about to be committed.
    pub(super) fn verify(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
        let State::Committing { epoch, basis, evidence_at, attempts, .. } = &mut self.state else { return };
        if probe.asked_at < *evidence_at {
            // The answer is older than the evidence and proves nothing about it.
            self.nodes.ask_at(now, node);
            return;
        }
        let (epoch, basis, again) = (*epoch, *basis, now + verify_pause(*attempts));
        *attempts = attempts.saturating_add(1);
        match &probe.outcome {
            Ok(report) if nodes::verifies(report, self.rules.verify) && self.may_succeed(node, basis, report) => {
                self.commit(now, node, epoch, basis, report);
            }
            _ => self.nodes.ask_at(again, node),
        }
    }

    /// A single sentinel's word moves the points only to a node that continues the present master's history, or, where
    /// histories cannot be read, to one that was listed as its replica.
    fn may_succeed(&self, node: &NodeAddr, basis: Basis, report: &Report) -> bool {
        match (basis, self.continues(report)) {
            (Basis::Solo, Some(continues)) => continues,
            (Basis::Solo, None) => self.family.contains(node),
            _ => true,
        }
    }

    fn continues(&self, report: &Report) -> Option<bool> {
        let old = self.committed.as_ref()?.lineage.as_ref()?;
        report.lineage.as_ref().map(|new| new.continues(old))
    }

    fn commit(&mut self, now: Instant, addr: &NodeAddr, epoch: Epoch, basis: Basis, report: &Report) {
        let continues = self.continues(report);
        if continues == Some(false) {
            self.actions.push(Action::Note(Note::LineageBroken));
        }
        let lost_bytes = if continues == Some(true) { self.lost_bytes(report) } else { None };
        if basis == Basis::Regress {
            self.superseded.clear();
        }
        if let Some(old) = self.committed.take().filter(|old| old.addr != *addr) {
            self.supersede(old.addr, epoch);
            self.family.clear();
        }
        self.superseded.remove(addr);
        self.zombies.remove(addr);
        self.story.committed(now);
        self.committed =
            Some(Committed { addr: addr.clone(), epoch, lineage: report.lineage.clone(), since: now, published: true });
        self.state = State::Stable;
        self.pending = None;
        self.updating_from.clear();
        self.failed_holds.clear();
        // A commit opens the gate by itself.
        self.held = false;
        let run_id = report.lineage.as_ref().map(|lineage| lineage.run_id.clone());
        let commit = Commit { addr: addr.clone(), dialled: report.dialled, epoch, run_id, basis, lost_bytes };
        self.actions.push(Action::Commit(commit));
    }

    /// What the old master wrote beyond the point at which the new one left its history. `second_repl_offset` is the first
    /// offset that is no longer shared.
    fn lost_bytes(&self, report: &Report) -> Option<u64> {
        let old = self.committed.as_ref()?.lineage.as_ref()?;
        let new = report.lineage.as_ref()?;
        let shared = u64::try_from(new.second_offset.checked_sub(1)?).ok()?;
        (old.run_id != new.run_id).then(|| old.offset.saturating_sub(shared))
    }

    fn supersede(&mut self, old: NodeAddr, by: Epoch) {
        if self.superseded.len() >= MAX_NODES {
            let oldest = self.superseded.iter().min_by_key(|(_, epoch)| **epoch).map(|(addr, _)| addr.clone());
            if let Some(oldest) = oldest {
                self.superseded.remove(&oldest);
                self.zombies.remove(&oldest);
            }
        }
        self.zombies.insert(old.clone());
        self.superseded.insert(old, by);
    }

    /// There is no master: cuts the sessions of the present target, if one is published.
    pub(super) fn take_away(&mut self, now: Instant, lack: Lack) {
        self.state = State::NoMaster { lack, since: now };
        self.next_ask = self.next_ask.min(now);
        self.nodes.hurry(now);
        if let Some(committed) = self.committed.as_mut().filter(|committed| committed.published) {
            committed.published = false;
            self.held = false;
            self.story.suspected(now);
            self.actions.push(Action::Clear(lack));
        }
    }

    /// This process was stopped: the points may have moved meanwhile, and every answer in hand is from before.
    pub(super) fn wake_from_stall(&mut self, now: Instant) {
        self.voters.silence();
        self.nodes.forget(now);
        self.pending = None;
        self.updating_from.clear();
        self.next_ask = now;
        self.actions.push(Action::Note(Note::Stalled));
        if self.committed.as_ref().is_some_and(|committed| committed.published) {
            let until = now + self.rules.hold_max;
            self.state = State::Armed { cause: Cause::Stalled, candidate: None, since: now, until };
        }
    }

    pub(super) fn is_target(&self, node: &NodeAddr) -> bool {
        self.committed.as_ref().is_some_and(|committed| committed.published && committed.addr == *node)
    }

    /// Since when everything is looked at more often; `None` while all is well.
    pub(super) fn alert_since(&self) -> Option<Instant> {
        match &self.state {
            State::Stable => None,
            State::Suspect { since, .. } | State::Armed { since, .. } | State::NoMaster { since, .. } => Some(*since),
            State::Committing { evidence_at, .. } => Some(*evidence_at),
            State::Bootstrap { heard_at } => Some(heard_at.unwrap_or(self.last_step)),
        }
    }
}
