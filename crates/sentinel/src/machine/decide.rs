//! From what is known to what is wanted: the count of votes weighed, holds armed and ended, and
//! time run out.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::events::{HINT_PAUSE_MAX, HINT_PAUSE_MIN};
use super::nodes::{NodeRecord, verifies};
use super::state::{Basis, HoldCause, MachineState, NoMasterReason};
use super::vote_count::{self, Claim, VoteOutcome};
use super::{Committed, Machine, MachineAction, PendingClaim, Warning};
use crate::{Epoch, Minority, MyId, NodeAddr, NodeReport, Role};

/// Holds that may end without a commit within [`HOLD_WINDOW`]; after that, signs of a failover no
/// longer hold.
const FAILED_HOLDS: usize = 3;
const HOLD_WINDOW: Duration = Duration::from_secs(60);

impl Machine {
    /// Brings the states up to date with all that is known.
    pub(super) fn decide(&mut self, now: Instant) {
        self.electorate.refresh(now, self.rules.view_expiry);
        let committed = self.committed.as_ref().map(|it| (&it.addr, it.epoch));
        let is_majority = |voters: &BTreeSet<&MyId>| self.electorate.is_majority(voters);
        let finding = vote_count::count(&self.electorate.votes(), &is_majority, committed);
        let was_split = matches!(self.finding, VoteOutcome::Confirmed { split: true, .. });
        self.finding = finding.clone();
        self.weigh_electorate(now);
        self.weigh_minority(now);
        self.weigh_denials(now);
        match finding {
            _ if self.is_cut_off() => {
                self.pending = None;
                if self.committed.is_none() {
                    self.enter(MachineState::Bootstrap { heard_at: None });
                }
            }
            VoteOutcome::Silence => {
                self.pending = None;
                if let MachineState::Bootstrap { heard_at } = &mut self.state {
                    *heard_at = None;
                }
            }
            VoteOutcome::Confirmed { majority, split, .. } => {
                if split && !was_split {
                    self.actions.push(MachineAction::Warning(Warning::Split));
                }
                self.pending = None;
                self.confirmed(now, majority);
            }
            VoteOutcome::Claimed(claim) if self.committed.is_none() => self.found(now, &claim),
            VoteOutcome::Claimed(claim) if self.is_zombie_claim(&claim) => {
                self.regressed(now, &claim)
            }
            VoteOutcome::Claimed(claim) => self.claimed(now, &claim),
            VoteOutcome::Regressed(claim) => self.regressed(now, &claim),
        }
        self.run_out(now);
        self.weigh_doubt(now);
    }

    /// Ends the founding when a majority stands behind the master, and tells of sentinels that
    /// nobody knows.
    fn weigh_electorate(&mut self, now: Instant) {
        if let Some(at) = self.electorate.majority_clock() {
            self.majority_at = self.majority_at.max(at.min(now));
        }
        let confirmed = matches!(self.finding, VoteOutcome::Confirmed { majority: true, .. });
        if let Some(committed) = self.committed.as_ref().filter(|_| confirmed)
            && self.has_founders(&committed.addr, committed.epoch)
        {
            self.electorate.close_founding();
        }
        let strangers = self.electorate.has_configured_strangers();
        if strangers && !self.strangers {
            self.actions.push(MachineAction::Warning(Warning::Stranger));
        }
        self.strangers = strangers;
    }

    /// Whether enough sentinels name this to begin with it.
    fn has_founders(&self, addr: &NodeAddr, epoch: Epoch) -> bool {
        let votes = self.electorate.votes();
        let ours = votes.iter().filter(|vote| vote.addr == *addr && vote.epoch == epoch);
        self.electorate.may_found(&ours.map(|vote| &vote.voter).collect())
    }

    /// Evidence that a majority has taken back by naming something else since is none any more.
    fn weigh_denials(&mut self, now: Instant) {
        let floor = self.committed.as_ref().map_or(0, |committed| committed.epoch);
        if let MachineState::Committing { addr, epoch, evidence_at, .. } = &self.state
            && self
                .committed
                .as_ref()
                .is_some_and(|committed| committed.addr != *addr || committed.epoch != *epoch)
            && self.electorate.is_denied(*evidence_at, addr, *epoch, floor)
        {
            self.disarm(now);
        }
    }

    /// The old address at the epoch that superseded it, or below: as hard to believe as an older
    /// epoch.
    fn is_zombie_claim(&self, claim: &Claim) -> bool {
        self.superseded.get(&claim.addr).is_some_and(|epoch| *epoch >= claim.epoch)
    }

    /// The present master is named.
    fn confirmed(&mut self, now: Instant, majority: bool) {
        let Some(committed) = &self.committed else { return };
        let (addr, epoch) = (&committed.addr, committed.epoch);
        if let MachineState::Committing { addr: other, epoch: as_of, basis, .. } = &self.state
            && other != addr
            && (majority || *as_of <= epoch || *basis == Basis::SingleSentinel)
        {
            // A majority's word for a newer master would stand although its voters fell silent;
            // this is less than that.
            self.disarm(now);
        }
    }

    /// The start: nothing was committed yet.
    fn found(&mut self, now: Instant, claim: &Claim) {
        let since = match &mut self.state {
            MachineState::Bootstrap { heard_at } => *heard_at.get_or_insert(now),
            // A verification is under way, or came to nothing: only a majority, or another grace,
            // brings up something else.
            _ => self.pend(now, &claim.addr, claim.epoch),
        };
        if self.has_founders(&claim.addr, claim.epoch) {
            self.pursue(now, claim.addr.clone(), claim.epoch, Basis::Majority);
        } else if self.rules.minority != Minority::Cut
            && now.saturating_duration_since(since) >= self.rules.bootstrap_grace
        {
            self.pursue(now, claim.addr.clone(), claim.epoch, Basis::BootstrapMinority);
        }
    }

    fn claimed(&mut self, now: Instant, claim: &Claim) {
        self.suspect(now);
        let since = self.pend(now, &claim.addr, claim.epoch);
        let contradicted = claim.contradicted_at.is_some_and(|at| at >= since);
        if claim.majority && self.is_target(&claim.addr) {
            self.adopt_epoch(now, claim.epoch, since);
        } else if claim.majority
            && self.only_differs(claim)
            && self.verified_since(&claim.addr, since) != Some(true)
        {
            self.alarm_unverified(&claim.addr, since);
        } else if claim.majority {
            self.pursue(now, claim.addr.clone(), claim.epoch, Basis::Majority);
        } else if let MachineState::Committing {
            addr, epoch, basis: Basis::SingleSentinel, ..
        } = &self.state
        {
            if contradicted || *addr != claim.addr || *epoch != claim.epoch {
                self.disarm(now);
            }
        } else if !contradicted
            && now.saturating_duration_since(since) >= self.rules.solo_grace
            && !matches!(self.state, MachineState::Committing { .. })
            && !self.is_target(&claim.addr)
            && self.may_hold(now)
            && self.would_succeed_alone(&claim.addr)
        {
            self.pursue(now, claim.addr.clone(), claim.epoch, Basis::SingleSentinel);
        }
    }

    /// A majority names the present master at another epoch, since `since`: nothing moves, only the
    /// clock is theirs. If it was away from there in between, the server itself has ended its
    /// sessions, and if another process is there now, its next answer shows that. A failover that
    /// was announced before is over.
    fn adopt_epoch(&mut self, now: Instant, epoch: Epoch, since: Instant) {
        let Some(committed) = self.committed.as_mut() else { return };
        committed.epoch = epoch;
        self.pending = None;
        match &mut self.state {
            // It is being used again, at the newer epoch then.
            MachineState::Committing { addr, epoch: pursued, .. } if *addr == committed.addr => {
                *pursued = epoch
            }
            MachineState::Committing { .. } => self.disarm(now),
            MachineState::Armed { since: armed, .. } if *armed <= since => {
                self.enter(MachineState::Suspect { since: now, last_sign_at: now });
            }
            _ => {}
        }
    }

    /// One sentinel's word shuts the gate only for a node that has already answered as it must:
    /// otherwise a single liar with a high epoch and a dead address could stop traffic.
    fn would_succeed_alone(&self, addr: &NodeAddr) -> bool {
        let report = self.nodes.get(addr).and_then(NodeRecord::report);
        report.is_some_and(|it| {
            verifies(it, self.rules.verify) && self.may_succeed(addr, Basis::SingleSentinel, it)
        })
    }

    /// Every vote that counts is older than what is committed, or for a master that was left.
    /// Sentinels that lost their files and were given a replica's address by a script look just
    /// like this, while the present master is healthy. So the node that they name is verified
    /// first, without a hold; as long as it does not verify, there is only an alarm.
    fn regressed(&mut self, now: Instant, claim: &Claim) {
        let since = self.pend(now, &claim.addr, claim.epoch);
        let Some(committed) = self.committed.as_ref() else { return };
        if !claim.majority {
            return;
        }
        let patient = now.saturating_duration_since(since) >= self.rules.regress_grace;
        let node = self.nodes.get(&committed.addr);
        let bad =
            !committed.published || node.is_some_and(|node| node.is_gone(self.rules.unreachable));
        if !patient && !bad {
            return;
        }
        if committed.addr == claim.addr && committed.published {
            self.superseded.clear();
            self.adopt_epoch(now, claim.epoch, since);
        } else if self.verified_since(&claim.addr, since) == Some(true) {
            self.pursue(now, claim.addr.clone(), claim.epoch, Basis::EpochRegression);
        } else {
            self.alarm_unverified(&claim.addr, since);
        }
    }

    /// Whether a claim is no newer than what is published: sentinels that lost their files before
    /// the first failover differ at epoch 0, and Sentinel itself never moves to another master
    /// without a higher epoch.
    fn only_differs(&self, claim: &Claim) -> bool {
        let reachable = |it: &&Committed| {
            !self.nodes.get(&it.addr).is_some_and(|it| it.is_gone(self.rules.unreachable))
        };
        let published = self.committed.as_ref().filter(|it| it.published);
        published.filter(reachable).is_some_and(|it| claim.epoch <= it.epoch)
    }

    /// Whether `addr` verified in its last answer to a question from `since` on; `None` if there
    /// was none.
    fn verified_since(&self, addr: &NodeAddr, since: Instant) -> Option<bool> {
        let node = self
            .nodes
            .get(addr)
            .filter(|it| it.last.as_ref().is_some_and(|probe| probe.asked_at >= since))?;
        Some(node.report().is_some_and(|report| verifies(report, self.rules.verify)))
    }

    /// A majority insists on a node that is no master: told once for each claim.
    fn alarm_unverified(&mut self, addr: &NodeAddr, since: Instant) {
        if self.verified_since(addr, since) == Some(false) && !self.unverified_regress {
            self.unverified_regress = true;
            self.actions.push(MachineAction::Warning(Warning::RegressionUnverified));
        }
    }

    /// Since when this very claim has been standing. A new one is a reason to ask the node: the
    /// answer may be needed soon.
    fn pend(&mut self, now: Instant, addr: &NodeAddr, epoch: Epoch) -> Instant {
        if let Some(pending) =
            self.pending.as_ref().filter(|it| it.addr == *addr && it.epoch == epoch)
        {
            return pending.since;
        }
        self.nodes.ask_at(now, addr);
        self.unverified_regress = false;
        self.pending.insert(PendingClaim { addr: addr.clone(), epoch, since: now }).since
    }

    /// How long the pending claim has to stand before anything comes of it.
    pub(super) fn grace(&self, pending: &PendingClaim) -> Duration {
        let older = |committed: &Committed| pending.epoch < committed.epoch;
        match &self.committed {
            None => self.rules.bootstrap_grace,
            Some(committed)
                if older(committed)
                    || self
                        .superseded
                        .get(&pending.addr)
                        .is_some_and(|by| *by >= pending.epoch) =>
            {
                self.rules.regress_grace
            }
            Some(_) => self.rules.solo_grace,
        }
    }

    /// Feeds suspicion: everything is looked at more often, nothing else changes.
    pub(super) fn suspect(&mut self, now: Instant) {
        match &mut self.state {
            MachineState::Stable => {
                self.timeline.suspected(now);
                self.enter(MachineState::Suspect { since: now, last_sign_at: now });
                self.next_ask = self.next_ask.min(now);
                self.nodes.probe_soon(now);
            }
            MachineState::Suspect { last_sign_at, .. } => *last_sign_at = now,
            _ => {}
        }
    }

    /// Whether a sign short of a majority may still shut the gate.
    fn may_hold(&mut self, now: Instant) -> bool {
        self.failed_holds.retain(|at| now.saturating_duration_since(*at) < HOLD_WINDOW);
        self.failed_holds.len() < FAILED_HOLDS
    }

    /// `candidate_node` is about to be, or was, promoted: hold, if it is one of ours. `by` is whoever
    /// announced it.
    pub(super) fn arm(
        &mut self,
        now: Instant,
        cause: HoldCause,
        candidate_node: &NodeAddr,
        by: Option<MyId>,
    ) {
        self.suspect(now);
        let replaceable =
            self.committed.as_ref().is_some_and(|it| it.published && it.addr != *candidate_node);
        if !replaceable || !self.family.contains(candidate_node) {
            return;
        }
        let may_hold = self.may_hold(now);
        // A master that does not answer acknowledges nothing when it wakes up, from the selection
        // on; see `replies`.
        let cause = if cause == HoldCause::Selected && self.is_target_silent() {
            HoldCause::Ordered
        } else {
            cause
        };
        match &mut self.state {
            MachineState::Armed { candidate, cause: was, until, .. } => {
                *candidate = Some(candidate_node.clone());
                // What is left then is for the others to hear of it, which has a time of its own.
                // Only for a promotion that was seen, since anybody can announce one; and once a
                // hold, so none is longer than twice its most.
                let known = *was == HoldCause::Selected || *was == HoldCause::Ordered;
                if by.is_none() && known && cause == HoldCause::Promoted {
                    *was = cause;
                    *until = now + self.rules.hold_max;
                } else if *was == HoldCause::Selected && cause != HoldCause::Selected {
                    *was = HoldCause::Ordered;
                }
                if by.is_some() {
                    self.armed_by = by;
                }
            }
            MachineState::Suspect { .. }
            | MachineState::Unconfirmed { .. }
            | MachineState::NoMaster { .. }
                if may_hold =>
            {
                let until = now + self.rules.hold_max;
                self.enter(MachineState::Armed {
                    cause,
                    candidate: Some(candidate_node.clone()),
                    since: now,
                    until,
                });
                self.armed_by = by;
                self.exhausted = false;
                self.nodes.probe_soon(now);
            }
            MachineState::Suspect { .. } if !self.exhausted => {
                self.exhausted = true;
                self.actions.push(MachineAction::Warning(Warning::HoldsExhausted));
            }
            _ => {}
        }
    }

    /// Ends a hold that came to nothing.
    pub(super) fn disarm(&mut self, now: Instant) {
        if !matches!(self.state, MachineState::Armed { .. } | MachineState::Committing { .. }) {
            return;
        }
        if !self.committed.as_ref().is_some_and(|committed| committed.published) {
            // Nothing to go back to.
            self.enter(MachineState::NoMaster { reason: NoMasterReason::Unverified, since: now });
            return;
        }
        if self.failed_holds.len() >= FAILED_HOLDS {
            self.failed_holds.pop_front();
        }
        self.failed_holds.push_back(now);
        self.enter(MachineState::Suspect { since: now, last_sign_at: now });
    }

    /// The hold lasted too long. A candidate that says it is the master, and that nobody followed
    /// in all that time, means nothing by it any more.
    fn expire_hold(&mut self, now: Instant) {
        self.actions.push(MachineAction::Warning(Warning::HoldExpired));
        if let MachineState::Armed { candidate: Some(candidate), .. } = &self.state {
            let candidate = candidate.clone();
            let report = self.nodes.get(&candidate).and_then(NodeRecord::report);
            if report.is_some_and(|NodeReport { role, .. }| *role == Role::Master) {
                self.mark_zombie(candidate);
            }
        }
        self.disarm(now);
        // Nobody followed, as far as was heard: so sentinels have to be heard before the old master
        // is used again.
        if self.committed.as_ref().is_some_and(|committed| committed.published) {
            self.doubt(now, now, true);
        }
    }

    fn run_out(&mut self, now: Instant) {
        match &self.state {
            MachineState::Armed { until, .. } if now >= *until => self.expire_hold(now),
            MachineState::Committing { until, basis: Basis::SingleSentinel, .. }
                if now >= *until =>
            {
                self.disarm(now)
            }
            MachineState::Committing { until, .. } if now >= *until => {
                self.take_away(now, NoMasterReason::Unverified)
            }
            _ => {}
        }
        // Back in suspicion, the gate stays shut without a gap if nobody is there to open it to.
        let target = self
            .committed
            .as_ref()
            .filter(|it| it.published)
            .and_then(|it| self.nodes.get(&it.addr));
        let gone = target.is_some_and(|node| node.is_gone(self.rules.unreachable));
        match &self.state {
            MachineState::Suspect { .. } | MachineState::Unconfirmed { .. } if gone => {
                self.enter(MachineState::NoMaster {
                    reason: NoMasterReason::Unreachable,
                    since: now,
                });
                self.doubt(now, now, true);
            }
            MachineState::Suspect { last_sign_at, .. }
                if now.saturating_duration_since(*last_sign_at) >= self.rules.calm =>
            {
                self.enter(MachineState::Stable);
                self.timeline.abandoned();
            }
            _ => {}
        }
        if matches!(self.state, MachineState::Stable) && now >= self.hint_after + HINT_PAUSE_MAX {
            self.hint_pause = HINT_PAUSE_MIN;
        }
    }
}
