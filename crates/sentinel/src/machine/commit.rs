//! From complete evidence to the commit, and the removal of a target.

use std::collections::BTreeSet;
use std::time::Instant;

use super::history::Kinship;
use super::nodes::{self, MAX_NODES};
use super::state::{Basis, MachineState, NoMasterReason};
use super::{Commit, Committed, Machine, MachineAction, OverrideEnd, Warning};
use crate::machine::rules::verify_pause;
use crate::{Epoch, Minority, NodeAddr, NodeReport, Probe};

impl Machine {
    /// The evidence for `addr` at `epoch` is complete. From here on traffic is held, and the node's
    /// next answer to a query sent from now on decides. Better evidence for the same claim counts
    /// as new: it may be sufficient where the older was not, and therefore needs an answer of its
    /// own.
    pub(super) fn pursue(&mut self, now: Instant, addr: NodeAddr, epoch: Epoch, basis: Basis) {
        if let MachineState::Committing { addr: same, epoch: as_of, basis: known, .. } = &self.state
            && *same == addr
            && *as_of == epoch
            && *known >= basis
        {
            return;
        }
        self.timeline.evidence(now);
        if basis == Basis::Majority
            && let Some(report) = self.verified_ahead(now, &addr, epoch)
        {
            return self.commit(now, &addr, epoch, basis, &report);
        }
        let until = now + self.rules.verify_deadline;
        self.nodes.ask_at(now, &addr);
        self.enter(MachineState::Committing {
            addr,
            epoch,
            basis,
            evidence_at: now,
            attempts: 0,
            until,
        });
    }

    /// The answer that makes another query unnecessary. The leader names the new master about 85 ms
    /// before the first observer does, and the node is probed throughout. An answer to a query sent
    /// after the *first* vote for this exact claim, which has stood since, proves as much as one
    /// sent after the last vote, if both are about equally recent. Only while the gate is closed,
    /// when no byte depends on the exact moment.
    fn verified_ahead(&self, now: Instant, addr: &NodeAddr, epoch: Epoch) -> Option<NodeReport> {
        let claim = self
            .pending
            .as_ref()
            .filter(|it| self.hold.is_closed() && it.addr == *addr && it.epoch == epoch)?;
        let report = self.nodes.get(addr)?.recent_report(now, claim.since)?;
        let good = nodes::verifies(report, self.rules.verify)
            && self.may_succeed(addr, Basis::Majority, report)
            && self.lacks_confirmed(addr, report).is_none();
        good.then(|| report.clone())
    }

    /// Handles an answer of the node that is about to be committed.
    pub(super) fn verify(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
        let reconfirming =
            matches!(self.state, MachineState::Committing { basis: Basis::Reconfirmed, .. });
        if reconfirming && self.renew_doubt(now, probe) {
            return;
        }
        let MachineState::Committing { epoch, basis, evidence_at, attempts, .. } = &mut self.state
        else {
            return;
        };
        if probe.asked_at < *evidence_at {
            // The query is older than the evidence, so the answer proves nothing about it.
            self.nodes.ask_at(now, node);
            return;
        }
        let (epoch, basis, retry_at) = (*epoch, *basis, now + verify_pause(*attempts));
        let patient = now < *evidence_at + self.rules.bootstrap_grace;
        *attempts = attempts.saturating_add(1);
        let waits = patient && self.committed.is_none() && !self.has_heard_replicas(None);
        match &probe.outcome {
            Ok(report)
                if !waits
                    && nodes::verifies(report, self.rules.verify)
                    && self.may_succeed(node, basis, report)
                    && !self.waits_for_confirmed(now, node, report) =>
            {
                self.commit(now, node, epoch, basis, report);
            }
            _ => self.nodes.ask_at(retry_at, node),
        }
    }

    /// Unless a majority of the configured sentinels names the node itself, it has to continue the
    /// current master's history or, if no history can be read, was listed as its replica.
    pub(super) fn may_succeed(&self, node: &NodeAddr, basis: Basis, report: &NodeReport) -> bool {
        let by_votes = matches!(basis, Basis::Majority | Basis::EpochRegression);
        let is_first = self.committed.is_none();
        let must_prove = basis == Basis::SingleSentinel
            || (by_votes
                && !is_first
                && !self.is_target(node)
                && !self.electorate.vouches_for(node));
        // A node that hides its history, while that of the master could be read, proves nothing.
        let is_known = self.committed.as_ref().is_some_and(|it| it.lineage.is_some());
        let listed = || !is_known && self.nodes.family.contains(node);
        let kinship = self.kinship(node, report);
        !must_prove || kinship.map_or_else(listed, |it| it == Kinship::Continues)
    }

    pub(super) fn commit(
        &mut self,
        now: Instant,
        addr: &NodeAddr,
        epoch: Epoch,
        basis: Basis,
        report: &NodeReport,
    ) {
        if self.is_renamed(addr, basis, report) {
            self.rename(addr, report.dialled);
            return self.stay(now, epoch);
        }
        let (new_lineage, lost_bytes) = (!self.inherits(addr, report), self.lost_bytes(report));
        let warning = match self.kinship(addr, report) {
            Some(Kinship::Continues) => None,
            Some(_) => Some(Warning::LineageBroken),
            None => new_lineage.then_some(Warning::HistoryUnknown),
        };
        self.actions.extend(warning.map(MachineAction::Warning));
        let confirmed = self.confirmed_under(addr, report);
        self.history.advance(!new_lineage, report.lineage.as_ref());
        let first = self.committed.is_none();
        self.record_succession(addr, epoch, basis);
        self.timeline.committed(now);
        self.last_timeline = std::mem::take(&mut self.timeline);
        self.committed = Some(Committed {
            addr: addr.clone(),
            dialled: report.dialled,
            epoch,
            lineage: report.lineage.clone(),
            since: now,
            published: true,
            confirmed,
        });
        let reports = self.nodes.iter().filter_map(|(node, it)| Some((node.clone(), it.report()?)));
        let reports: Vec<_> = reports.map(|(node, report)| (node, report.clone())).collect();
        reports.iter().for_each(|(node, report)| self.learn_history(node, report, false));
        self.enter(MachineState::Stable);
        (self.pending, self.doubt) = (None, None);
        self.weigh_kin_after(now, first, new_lineage && basis != Basis::Reconfirmed);
        if matches!(basis, Basis::Majority | Basis::EpochRegression) {
            self.end_override(OverrideEnd::Switched);
        }
        self.weigh_minority_after(now, basis);
        self.hold.succeeded();
        self.pacing.trust_hints();
        // A commit opens the gate, unless a pause, the policy for a minority or another failover
        // keeps it closed.
        let stays_closed =
            self.pause_outlives_commit() || self.is_held_by_policy() || self.state.holds();
        (self.hold.closed_since, self.hold.written) = (stays_closed.then_some(now), None);
        let commit = Commit {
            addr: addr.clone(),
            dialled: report.dialled,
            epoch,
            run_id: report.lineage.as_ref().map(|lineage| lineage.run_id.clone()),
            basis,
            lost_bytes,
            held: self.hold.is_closed(),
            new_lineage,
        };
        self.actions.push(MachineAction::Commit(commit));
    }

    /// Updates the records of former masters and of the possible successors for a new master.
    fn record_succession(&mut self, addr: &NodeAddr, epoch: Epoch, basis: Basis) {
        if basis == Basis::EpochRegression {
            self.nodes.superseded.clear();
        }
        let former = self.committed.take().filter(|old| old.addr != *addr);
        if let Some(old) = &former {
            self.supersede(old.addr.clone(), epoch);
            self.succession.advance(old, basis);
        }
        self.nodes.superseded.remove(addr);
        self.succession.forgive(addr);
        // The next failover may come before the next view.
        let mut family: BTreeSet<NodeAddr> = match basis {
            // Nobody else decides, and nothing is known from before.
            Basis::BootstrapMinority => self.electorate.usual_replicas_of(addr),
            _ => self.electorate.vouched_replicas(addr),
        };
        let former = former.map(|it| it.addr);
        let known = std::mem::take(&mut self.nodes.family);
        let listed = self.electorate.replicas_of(addr);
        family.extend(listed.filter(|it| known.contains(it) || former.as_ref() == Some(it)));
        self.nodes.family = family.into_iter().take(MAX_NODES).collect();
    }

    /// The bytes that the old master wrote beyond the offset at which the new one left its history,
    /// as far as they may have been requested through this proxy.
    fn lost_bytes(&self, report: &NodeReport) -> Option<u64> {
        let old = self.committed.as_ref()?.lineage.as_ref()?;
        let written = self.hold.written.unwrap_or(old.offset);
        Some(written.saturating_sub(self.shared_with(report)?))
    }

    /// The offset at which a node left the committed master's history to write its own.
    /// `second_repl_offset` is the first offset that is no longer shared.
    pub(super) fn shared_with(&self, report: &NodeReport) -> Option<u64> {
        let old = self.committed.as_ref()?.lineage.as_ref()?;
        let new = report.lineage.as_ref().filter(|new| new.continues(old))?;
        let shared = u64::try_from(new.second_offset.checked_sub(1)?).ok()?;
        (old.run_id != new.run_id).then_some(shared)
    }

    fn supersede(&mut self, old: NodeAddr, by: Epoch) {
        if self.nodes.superseded.len() >= MAX_NODES {
            let oldest = self
                .nodes
                .superseded
                .iter()
                .min_by_key(|(_, epoch)| **epoch)
                .map(|(addr, _)| addr.clone());
            if let Some(oldest) = oldest {
                self.nodes.superseded.remove(&oldest);
            }
        }
        self.nodes.superseded.insert(old, by);
    }

    /// There is no master: closes the sessions of the current target, if one is published.
    pub(super) fn take_away(&mut self, now: Instant, reason: NoMasterReason) {
        self.enter(MachineState::NoMaster { reason, since: now });
        self.pacing.ask_now(now);
        self.nodes.probe_soon(now);
        self.doubt(now, now, true);
        self.unpublish(now, reason);
    }

    /// The target reports that it is a replica. A verification of its successor continues.
    pub(super) fn demoted(&mut self, now: Instant) {
        if matches!(self.state, MachineState::Committing { .. }) {
            self.unpublish(now, NoMasterReason::Demoted);
        } else {
            self.take_away(now, NoMasterReason::Demoted);
        }
    }

    fn unpublish(&mut self, now: Instant, reason: NoMasterReason) {
        if let Some(committed) = self.committed.as_mut().filter(|committed| committed.published) {
            committed.published = false;
            self.hold.closed_since = None;
            self.timeline.suspected(now);
            self.actions.push(MachineAction::Clear(reason));
        }
    }

    /// This process was suspended. A failover may have happened meanwhile: all answers are
    /// outdated, and so is the evidence for a verification in progress.
    pub(super) fn wake_from_stall(&mut self, now: Instant) {
        self.electorate.forget_views();
        self.reach.majority_at = now;
        self.nodes.forget(now);
        self.succession.ask_again(now);
        self.pending = None;
        self.updating_from.clear();
        self.hold.armed_by.clear();
        self.pacing.ask_now(now);
        self.actions.push(MachineAction::Warning(Warning::Stalled));
        self.enter(match (&self.committed, &self.state) {
            (None, _) => MachineState::Bootstrap { first_view_at: None },
            (Some(committed), _) if committed.published => MachineState::Unconfirmed { since: now },
            (Some(_), MachineState::NoMaster { reason, .. }) => {
                MachineState::NoMaster { reason: *reason, since: now }
            }
            (Some(_), _) => {
                MachineState::NoMaster { reason: NoMasterReason::Unverified, since: now }
            }
        });
        if self.committed.is_some() {
            self.doubt(now, now, true);
        }
    }

    pub(super) fn is_target(&self, node: &NodeAddr) -> bool {
        self.committed
            .as_ref()
            .is_some_and(|committed| committed.published && committed.addr == *node)
    }

    /// Since when queries are sent more often; `None` in normal operation.
    pub(super) fn alert_since(&self) -> Option<Instant> {
        match &self.state {
            MachineState::Stable => {
                self.reach.minority.filter(|_| self.rules.minority != Minority::Keep)
            }
            MachineState::Suspect { since, .. }
            | MachineState::Unconfirmed { since }
            | MachineState::Armed { since, .. }
            | MachineState::NoMaster { since, .. } => Some(*since),
            MachineState::Committing { evidence_at, .. } => Some(*evidence_at),
            MachineState::Bootstrap { first_view_at } => {
                Some(first_view_at.unwrap_or(self.last_step))
            }
        }
    }
}
