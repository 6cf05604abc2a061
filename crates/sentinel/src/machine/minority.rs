//! Whether the sentinels that can be heard are a minority, and what that means for traffic.
//!
//! With the policy `keep` it is an alarm: the sentinels' own word on their peers decides both ways.
//! With `hold` and `cut` traffic stops for it. There silence of a majority is a minority, too,
//! since a failover may be taking place where nobody is heard; and only a majority ends it, by its
//! word or by a commit.

use std::time::Instant;

use super::state::{Basis, MachineState, NoMasterReason};
use super::vote_count::VoteOutcome;
use super::{Machine, MachineAction, Warning};
use crate::Minority;

impl Machine {
    /// Whether the sentinels that can be heard are a minority. Where nothing depends on it, what
    /// they say of their peers decides both ways. Where traffic stops for it, silence is one too,
    /// and one sentinel's word does not end it: the first that is heard when a partition heals may
    /// be the last to learn of a failover.
    pub(super) fn weigh_minority(&mut self, now: Instant) {
        let provable = self.electorate.provable_minority();
        let strict = self.rules.minority != Minority::Keep;
        let silent = self.is_majority_silent(now);
        match self.minority {
            None if provable == Some(true) || silent => {
                self.minority = Some(now);
                self.actions.push(MachineAction::Warning(Warning::Minority));
            }
            Some(_) if !strict && provable == Some(false) => self.minority = None,
            Some(since) if strict && provable != Some(true) && !silent => {
                let leading = match &self.finding {
                    VoteOutcome::Confirmed { .. } => {
                        self.committed.as_ref().map(|it| (&it.addr, it.epoch))
                    }
                    // Where nothing is published, a majority for something else ends it, too. Where
                    // the gate is shut to the last master, only the commit of that does.
                    VoteOutcome::Claimed(claim) | VoteOutcome::Regressed(claim)
                        if self.rules.minority == Minority::Cut =>
                    {
                        Some((&claim.addr, claim.epoch))
                    }
                    VoteOutcome::Claimed(_) | VoteOutcome::Regressed(_) | VoteOutcome::Silence => {
                        None
                    }
                };
                // First hand: that a sentinel followed another one's hello is no word of a majority
                // that can be reached.
                if leading.is_some_and(|(addr, epoch)| {
                    self.electorate.majority_names_since(since, addr, epoch)
                }) {
                    self.minority = None;
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

    /// Whether no majority was heard for so long that it is a minority.
    pub(super) fn is_majority_silent(&self, now: Instant) -> bool {
        self.silence_ends_at().is_some_and(|at| now > at)
    }

    /// When it is a minority that no majority is heard, if nothing changes; `None` where the policy
    /// is to keep the master then.
    pub(super) fn silence_ends_at(&self) -> Option<Instant> {
        let long = self.rules.minority_after.max(self.rules.poll * 3);
        (self.rules.minority != Minority::Keep).then(|| self.majority_at + long)
    }

    /// Nothing may be published: the sentinels are a minority, and that is what the operator wants
    /// done then.
    pub(super) fn is_cut_off(&self) -> bool {
        self.minority.is_some() && self.rules.minority == Minority::Cut
    }

    /// The gate is shut: the sentinels are a minority, and that is what the operator wants done
    /// then.
    pub(super) fn is_held_by_policy(&self) -> bool {
        self.minority.is_some() && self.rules.minority == Minority::Hold
    }

    /// Fewer than a majority do not end a minority by what they bring about, and where one is
    /// heeded at all they are one.
    pub(super) fn weigh_minority_after(&mut self, now: Instant, basis: Basis) {
        match basis {
            Basis::BootstrapMinority
                if self.rules.minority == Minority::Hold && self.minority.is_none() =>
            {
                self.minority = Some(now);
                self.actions.push(MachineAction::Warning(Warning::Minority));
            }
            // The evidence may be older than the node's answer, or second hand.
            Basis::Majority | Basis::EpochRegression
                if !self.is_majority_silent(now)
                    && self.electorate.provable_minority() != Some(true) =>
            {
                let committed = self.committed.as_ref().map(|it| (&it.addr, it.epoch));
                let named = |(since, (addr, epoch))| {
                    self.electorate.majority_names_since(since, addr, epoch)
                };
                if self.minority.zip(committed).is_some_and(named) {
                    self.minority = None;
                }
            }
            _ => {}
        }
    }
}
