//! Decisions: weighs the vote count, arms and ends holds, and handles expired deadlines.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::electorate::Vote;
use super::nodes::verifies;
use super::state::{Basis, MachineState, NoMasterReason};
use super::vote_count::{self, Claim, VoteOutcome};
use super::{Committed, Machine, MachineAction, PendingClaim, Warning};
use crate::{Epoch, Minority, MyId, NodeAddr};

impl Machine {
    /// Updates the state from all current knowledge.
    pub(super) fn decide(&mut self, now: Instant) {
        let present =
            |it: &&Committed| it.published && !self.is_gone(&it.addr) && !self.state.holds();
        let current = self.committed.as_ref().filter(present).map(|it| &it.addr);
        self.electorate.refresh(now, self.rules.view_expiry, current);
        self.expire_override(now);
        self.unify_names(now);
        let committed = self.committed.as_ref().map(|it| (&it.addr, it.epoch));
        let is_majority = |voters: &BTreeSet<&MyId>| self.may_decide(voters);
        let votes = self.electorate.votes(committed);
        let mut finding = vote_count::count(&votes, &is_majority, committed);
        if let Some(claim) = self.founders_dissent(&votes) {
            finding = VoteOutcome::Regressed(claim);
        }
        if let VoteOutcome::Confirmed { split, .. } = &mut finding {
            *split &= !self.awaits_other_name();
        }
        let was_split = matches!(self.vote_outcome, VoteOutcome::Confirmed { split: true, .. });
        self.vote_outcome = finding.clone();
        self.weigh_electorate(now);
        self.weigh_minority(now);
        self.weigh_override();
        self.weigh_denials(now);
        self.recall_strays();
        self.meet_children(now, self.committed.as_ref().map(|it| it.since), false);
        match finding {
            _ if self.is_cut_off() => {
                match finding {
                    VoteOutcome::Claimed(claim) => {
                        self.pending_since(now, &claim.addr, claim.epoch);
                    }
                    _ => self.pending = None,
                }
                if self.committed.is_none() {
                    self.enter(MachineState::Bootstrap { first_view_at: None });
                }
            }
            _ if self.succeed(now) => {}
            VoteOutcome::Silence => {
                self.pending = None;
                if let MachineState::Bootstrap { first_view_at } = &mut self.state {
                    *first_view_at = None;
                }
            }
            VoteOutcome::Confirmed { majority, split, .. } => {
                if split && !was_split {
                    self.actions.push(MachineAction::Warning(Warning::Split));
                }
                self.pending = None;
                self.handle_confirmation(now, majority);
            }
            VoteOutcome::Claimed(claim) if self.committed.is_none() => {
                self.handle_first_claim(now, &claim);
            }
            VoteOutcome::Claimed(claim) if self.is_left_behind(&claim.addr, claim.epoch) => {
                self.handle_regression(now, &claim);
            }
            VoteOutcome::Claimed(claim) => self.handle_claim(now, &claim),
            VoteOutcome::Regressed(claim) => self.handle_regression(now, &claim),
        }
        self.reinstate(now);
        self.handle_deadlines(now);
        self.weigh_doubt(now);
        self.close_to_parent(now);
    }

    /// Whether these voters may decide. An operator's order yields to a majority that may found.
    pub(super) fn may_decide(&self, voters: &BTreeSet<&MyId>) -> bool {
        if self.orders.in_force.is_some() {
            self.electorate.may_found(voters)
        } else {
            self.electorate.may_decide(voters)
        }
    }

    /// Ends the founding phase once a majority confirms the master, and warns of sentinels that no
    /// member knows.
    fn weigh_electorate(&mut self, now: Instant) {
        if let Some(at) = self.electorate.majority_answered_at() {
            self.reach.majority_at = self.reach.majority_at.max(at.min(now));
        }
        let confirmed = matches!(self.vote_outcome, VoteOutcome::Confirmed { majority: true, .. });
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

    /// What enough sentinels to start with name, if none such have ever named the master: a start
    /// with few may have been one with a sentinel of another cluster, whose epoch says nothing.
    fn founders_dissent(&self, votes: &[Vote]) -> Option<Claim> {
        let committed = self.committed.as_ref().filter(|_| self.electorate.is_founding())?;
        let may_found = |voters: &BTreeSet<&MyId>| self.electorate.may_found(voters);
        let claim = vote_count::decided(votes, &may_found, 0)?;
        (claim.addr != committed.addr && claim.epoch < committed.epoch).then_some(claim)
    }

    /// Whether enough sentinels name this node to start with it.
    fn has_founders(&self, addr: &NodeAddr, epoch: Epoch) -> bool {
        let votes = self.electorate.votes(None);
        let ours = votes.iter().filter(|vote| vote.addr == *addr && vote.epoch == epoch);
        self.electorate.may_found(&ours.map(|vote| &vote.voter).collect())
    }

    /// Drops evidence that a majority has withdrawn by naming something else.
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

    /// Whether this is a former master, at the epoch that superseded it or below. A claim for it
    /// needs the same proof as one at an older epoch.
    fn is_left_behind(&self, addr: &NodeAddr, epoch: Epoch) -> bool {
        self.nodes.superseded.get(addr).is_some_and(|by| *by >= epoch)
    }

    /// The votes confirm the current master.
    fn handle_confirmation(&mut self, now: Instant, majority: bool) {
        let Some(committed) = &self.committed else { return };
        let (addr, epoch) = (&committed.addr, committed.epoch);
        if let MachineState::Committing { addr: other, epoch: as_of, basis, .. } = &self.state
            && other != addr
            && (majority || *as_of <= epoch || *basis == Basis::SingleSentinel)
        {
            // Majority votes for a newer master remain valid when the voters fall silent; this
            // evidence is weaker.
            self.disarm(now);
        }
    }

    /// At start: nothing has been committed yet.
    fn handle_first_claim(&mut self, now: Instant, claim: &Claim) {
        let since = match &mut self.state {
            MachineState::Bootstrap { first_view_at } => *first_view_at.get_or_insert(now),
            // A verification is in progress or has failed: only a majority, or another grace
            // period, leads to another claim.
            _ => self.pending_since(now, &claim.addr, claim.epoch),
        };
        if self.has_founders(&claim.addr, claim.epoch) {
            return self.pursue(now, claim.addr.clone(), claim.epoch, Basis::Majority);
        }
        if now.saturating_duration_since(since) < self.rules.bootstrap_grace {
            return;
        }
        // The highest epoch had its time to spread. A single sentinel must not lead elsewhere.
        let votes = self.electorate.votes(None);
        let founds = |voters: &BTreeSet<&MyId>| self.electorate.may_found_late(voters);
        if let Some(decided) = vote_count::decided(&votes, &founds, 0) {
            self.pursue(now, decided.addr, decided.epoch, Basis::Majority);
        } else if self.rules.minority != Minority::Cut {
            // Most of the configured ones, though below the quorum, come before one of them.
            let most = |voters: &BTreeSet<&MyId>| self.electorate.are_most_roots(voters);
            let claim = vote_count::decided(&votes, &most, 0).unwrap_or_else(|| claim.clone());
            self.pursue(now, claim.addr, claim.epoch, Basis::BootstrapMinority);
        }
    }

    fn handle_claim(&mut self, now: Instant, claim: &Claim) {
        self.suspect(now);
        let since = self.pending_since(now, &claim.addr, claim.epoch);
        let majority = claim.majority && self.is_credible(&claim.addr);
        if majority && self.is_target(&claim.addr) {
            self.adopt_epoch(now, claim.epoch, since);
        } else if majority
            && self.is_not_newer(claim)
            && self.verified_since(&claim.addr, since) != Some(true)
        {
            self.warn_unverified(&claim.addr, since);
        } else if majority {
            self.pursue(now, claim.addr.clone(), claim.epoch, Basis::Majority);
        } else if matches!(
            self.state,
            MachineState::Committing { basis: Basis::SingleSentinel, .. }
        ) {
            // The word for it does not stand any more.
            self.disarm(now);
        }
    }

    /// A majority names the current master at another epoch, since `since`: only the epoch is
    /// adopted. If the sentinels had moved away and back in between, the server itself has closed
    /// its sessions, and if another process is running now, its next answer shows that. A failover
    /// that was announced earlier is over.
    fn adopt_epoch(&mut self, now: Instant, epoch: Epoch, since: Instant) {
        let Some(committed) = self.committed.as_mut() else { return };
        committed.epoch = epoch;
        self.pending = None;
        match &mut self.state {
            // The node is being confirmed again, now at the newer epoch.
            MachineState::Committing { addr, epoch: pursued, .. } if *addr == committed.addr => {
                *pursued = epoch;
            }
            MachineState::Committing { .. } => self.disarm(now),
            MachineState::Armed { since: armed, .. } if *armed <= since => {
                self.enter(MachineState::Suspect { since: now, last_sign_at: now });
            }
            _ => {}
        }
    }

    /// All votes that count are older than the committed epoch, or name a former master. Sentinels
    /// that lost their files and were given a replica's address by a script look exactly like this,
    /// while the current master is healthy. The named node is therefore verified first, without a
    /// hold; until it verifies there is only a warning.
    fn handle_regression(&mut self, now: Instant, claim: &Claim) {
        let since = self.pending_since(now, &claim.addr, claim.epoch);
        let Some(committed) = self.committed.as_ref() else { return };
        if !claim.majority {
            return;
        }
        let insisted = now.saturating_duration_since(since) >= self.rules.regress_grace;
        let bad = !committed.published || self.is_gone(&committed.addr);
        // A voter that names the master at a higher epoch may be the first one to know of it.
        let votes = self.electorate.votes(Some((&committed.addr, committed.epoch)));
        let is_named = votes.iter().any(|it| it.addr == committed.addr && it.epoch > claim.epoch);
        if !insisted && (!bad || (self.electorate.is_founding() && is_named)) {
            return;
        }
        if committed.addr == claim.addr && committed.published {
            self.nodes.superseded.clear();
            self.adopt_epoch(now, claim.epoch, since);
        } else if self.verified_since(&claim.addr, since) == Some(true) {
            self.pursue(now, claim.addr.clone(), claim.epoch, Basis::EpochRegression);
        } else {
            self.warn_unverified(&claim.addr, since);
        }
    }

    /// Whether a claim is no newer than the published master: sentinels that lost their files
    /// before the first failover differ at epoch 0, and Sentinel itself never switches without a
    /// higher epoch.
    fn is_not_newer(&self, claim: &Claim) -> bool {
        let published = self.committed.as_ref().filter(|it| it.published);
        published.is_some_and(|it| !self.is_gone(&it.addr) && claim.epoch <= it.epoch)
    }

    fn is_gone(&self, addr: &NodeAddr) -> bool {
        self.nodes.get(addr).is_some_and(|node| node.is_gone(self.rules.unreachable))
    }

    /// Whether `addr` verified in its last answer to a query sent at or after `since`; `None`
    /// without such an answer.
    pub(super) fn verified_since(&self, addr: &NodeAddr, since: Instant) -> Option<bool> {
        let probe = self.nodes.get(addr)?.last_since(since)?;
        Some(probe.outcome.as_ref().is_ok_and(|report| verifies(report, self.rules.verify)))
    }

    /// Whether what few name leads nowhere: since they do, and since `since`, the node has reported
    /// itself a replica; or no majority knows it, although there was time to hear of it.
    pub(super) fn leads_nowhere(
        &self,
        now: Instant,
        addr: &NodeAddr,
        epoch: Epoch,
        since: Instant,
    ) -> bool {
        let pending = self.pending.as_ref();
        pending.filter(|it| it.addr == *addr && it.epoch == epoch).is_some_and(|it| {
            self.is_replica_since(addr, it.since.max(since))
                || (!self.is_credible(addr) && now >= it.since + self.rules.verify_deadline)
        })
    }

    /// Warns, once per claim, that a majority insists on a node that is not a master.
    fn warn_unverified(&mut self, addr: &NodeAddr, since: Instant) {
        if self.verified_since(addr, since) == Some(false) && !self.unverified_regress {
            self.unverified_regress = true;
            self.actions.push(MachineAction::Warning(Warning::RegressionUnverified));
        }
    }

    /// Whether more than a single sentinel's word supports this node: it is the committed master, a
    /// majority of the configured sentinels names it, or it was listed as a replica. Any other
    /// could not be committed, and is not even queried: it might collect a password.
    pub(super) fn is_credible(&self, addr: &NodeAddr) -> bool {
        self.committed.as_ref().is_some_and(|it| it.addr == *addr)
            || self.nodes.family.contains(addr)
            || self.electorate.vouches_for(addr)
    }

    /// Since when this exact claim has been pending. A new claim triggers a query to the node,
    /// because the answer may be needed soon.
    pub(super) fn pending_since(&mut self, now: Instant, addr: &NodeAddr, epoch: Epoch) -> Instant {
        if let Some(pending) =
            self.pending.as_ref().filter(|it| it.addr == *addr && it.epoch == epoch)
        {
            return pending.since;
        }
        if self.is_credible(addr) {
            self.nodes.ask_at(now, addr);
        }
        self.unverified_regress = false;
        self.pending.insert(PendingClaim { addr: addr.clone(), epoch, since: now }).since
    }

    /// How long the pending claim has to stand before it has an effect.
    pub(super) fn grace(&self, pending: &PendingClaim) -> Duration {
        match &self.committed {
            None => self.rules.bootstrap_grace,
            Some(committed)
                if pending.epoch < committed.epoch
                    || self.is_left_behind(&pending.addr, pending.epoch) =>
            {
                self.rules.regress_grace
            }
            Some(_) => self.rules.solo_grace,
        }
    }

    fn handle_deadlines(&mut self, now: Instant) {
        match &self.state {
            MachineState::Armed { until, .. } if now >= *until && !self.is_superseded() => {
                self.expire_hold(now);
            }
            MachineState::Committing { until, basis: Basis::SingleSentinel, .. }
                if now >= *until =>
            {
                self.disarm(now);
            }
            MachineState::Committing { until, .. } if now >= *until => {
                self.take_away(now, NoMasterReason::Unverified);
            }
            _ => {}
        }
        // Back in suspicion, the gate stays closed without a gap if the master is unreachable.
        let published = self.committed.as_ref().filter(|it| it.published);
        let gone = published.is_some_and(|it| self.is_gone(&it.addr));
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
        if matches!(self.state, MachineState::Stable) {
            self.pacing.calm_hints(now);
        }
    }
}
