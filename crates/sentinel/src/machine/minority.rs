//! Detects that the reachable sentinels are a minority, and applies the configured policy.
//!
//! With the policy `keep` it is only a warning, and the sentinels' own view of their peers decides
//! both ways. With `hold` and `cut` it stops traffic. There, silence of a majority counts as a
//! minority too, because a failover may be in progress out of reach; and only a majority ends it,
//! by its votes or by a commit.
//!
//! The policy may change at any time. What the views say is recorded whatever the
//! policy is, so the new one takes effect at once, as if it had applied all along.

use std::time::Instant;

use super::state::{Basis, MachineState, NoMasterReason};
use super::vote_count::{Claim, VoteOutcome};
use super::{Machine, MachineAction, Warning};
use crate::Minority;

/// Which sentinels this process reaches, as their views tell.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Reach {
    /// Since when they are a minority.
    pub(super) minority: Option<Instant>,
    /// What the views said last about a minority, whatever the policy is: the policy may change.
    is_proven: bool,
    /// When the most recent queries were sent that a majority answered. Initially and after a
    /// stall: the time since which a majority could have answered.
    pub(super) majority_at: Instant,
}

impl Reach {
    pub(super) fn new(now: Instant) -> Self {
        Self { minority: None, is_proven: false, majority_at: now }
    }
}

impl Machine {
    /// Updates whether the reachable sentinels are a minority. With the policy `keep`, their view
    /// of their peers decides both ways. With the other policies silence counts too, and a single
    /// sentinel does not end it: the first sentinel to answer when a partition heals may be the
    /// last one to learn of a failover.
    pub(super) fn weigh_minority(&mut self, now: Instant) {
        let provable = self.electorate.provable_minority();
        let strict = self.rules.minority != Minority::Keep;
        let silent = self.is_majority_silent(now);
        self.reach.is_proven = provable.unwrap_or(self.reach.is_proven);
        let proven = if strict { provable == Some(true) } else { self.reach.is_proven };
        match self.reach.minority {
            None if proven || silent => {
                self.reach.minority = Some(now);
                self.actions.push(MachineAction::Warning(Warning::Minority));
            }
            Some(_) if !strict && !proven => self.reach.minority = None,
            Some(since) if strict && provable != Some(true) && !silent => {
                let last = || self.committed.as_ref().map(|it| (&it.addr, it.epoch));
                let is_void =
                    |it: &Claim| !it.majority && self.leads_nowhere(now, &it.addr, it.epoch, since);
                let leading = match &self.vote_outcome {
                    VoteOutcome::Confirmed { .. } => last(),
                    // Few name what leads nowhere. A majority for the last master counts, then.
                    VoteOutcome::Claimed(claim) if is_void(claim) => last(),
                    // If nothing is published, a majority for another node ends the minority too.
                    // If the gate is closed to the last master, only the commit of that node does.
                    // Sentinels that lost their files name the last master at a lower epoch.
                    VoteOutcome::Claimed(claim) | VoteOutcome::Regressed(claim)
                        if self.rules.minority == Minority::Cut || self.is_target(&claim.addr) =>
                    {
                        Some((&claim.addr, claim.epoch))
                    }
                    VoteOutcome::Claimed(_) | VoteOutcome::Regressed(_) | VoteOutcome::Silence => {
                        None
                    }
                };
                // First-hand views only: that a sentinel adopted a peer's hello does not prove that
                // a majority is reachable.
                if leading.is_some_and(|(addr, epoch)| {
                    self.electorate.majority_names_since(since, addr, epoch)
                }) {
                    self.reach.minority = None;
                }
            }
            _ => {}
        }
        if self.is_cut_off()
            && self.committed.is_some()
            && !matches!(
                self.state,
                MachineState::NoMaster { reason: NoMasterReason::Minority, .. }
            )
        {
            self.take_away(now, NoMasterReason::Minority);
        }
    }

    /// Whether no majority has answered for so long that it counts as a minority.
    pub(super) fn is_majority_silent(&self, now: Instant) -> bool {
        self.silence_ends_at().is_some_and(|at| now > at)
    }

    /// When the silence of the majority starts to count as a minority, if nothing changes; `None`
    /// if the policy is `keep`.
    pub(super) fn silence_ends_at(&self) -> Option<Instant> {
        let long = self.rules.minority_after.max(self.rules.poll * 3);
        (self.rules.minority != Minority::Keep).then(|| self.reach.majority_at + long)
    }

    /// Nothing may be published: the sentinels are a minority, and the policy is `cut`.
    pub(super) fn is_cut_off(&self) -> bool {
        self.reach.minority.is_some() && self.minority_policy() == Minority::Cut
    }

    /// The gate is closed: the sentinels are a minority, and the policy is `hold`.
    pub(super) fn is_held_by_policy(&self) -> bool {
        self.reach.minority.is_some() && self.minority_policy() == Minority::Hold
    }

    /// A commit without a majority does not end a minority. With the policy `hold`, a first commit
    /// without a majority starts one.
    pub(super) fn weigh_minority_after(&mut self, now: Instant, basis: Basis) {
        match basis {
            Basis::BootstrapMinority
                if self.rules.minority == Minority::Hold && self.reach.minority.is_none() =>
            {
                self.reach.minority = Some(now);
                self.actions.push(MachineAction::Warning(Warning::Minority));
            }
            // The evidence may be older than the node's answer, or second-hand.
            Basis::Majority | Basis::EpochRegression
                if !self.is_majority_silent(now)
                    && self.electorate.provable_minority() != Some(true) =>
            {
                let committed = self.committed.as_ref().map(|it| (&it.addr, it.epoch));
                let named = |(since, (addr, epoch))| {
                    self.electorate.majority_names_since(since, addr, epoch)
                };
                if self.reach.minority.zip(committed).is_some_and(named) {
                    (self.reach.minority, self.reach.is_proven) = (None, false);
                }
            }
            _ => {}
        }
    }
}
