//! Suspicion and holds: raises suspicion, arms a hold at a sign of a promotion, and ends it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use target::ReplyPolicy;

use super::confirmed::Lacking;
use super::state::{HoldCause, MachineState, NoMasterReason};
use super::{Machine, MachineAction, Pause, Warning};
use crate::{MyId, NodeAddr, View};

/// The number of holds within [`HOLD_WINDOW`] that may end without a commit. After that, signs of a
/// failover no longer cause a hold.
const MAX_FAILED_HOLDS: usize = 3;
const HOLD_WINDOW: Duration = Duration::from_secs(60);

/// What keeps the gate closed, and how replies are treated meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    /// The gate is closed.
    pub(super) is_closed: bool,
    pub(super) replies: ReplyPolicy,
    /// The sentinel whose announcement armed the hold; `None` if a probe did.
    pub(super) armed_by: Option<MyId>,
    /// The operator's pause.
    pub(super) pause: Option<Pause>,
    /// The promoted node that is not followed because it lacks confirmed writes.
    pub(super) lacking: Option<Lacking>,
    /// When the last holds ended without a commit.
    failed: VecDeque<Instant>,
}

impl Hold {
    /// Whether a sign that is less than a majority may still close the gate.
    pub(super) fn may_begin(&mut self, now: Instant) -> bool {
        self.failed.retain(|at| now.saturating_duration_since(*at) < HOLD_WINDOW);
        self.failed.len() < MAX_FAILED_HOLDS
    }

    /// It ended without a commit. Whether it was the last one for a while.
    fn fail(&mut self, now: Instant) -> bool {
        let was_full = self.failed.len() >= MAX_FAILED_HOLDS;
        if was_full {
            self.failed.pop_front();
        }
        self.failed.push_back(now);
        !was_full && self.failed.len() == MAX_FAILED_HOLDS
    }

    /// It led to a commit.
    pub(super) fn succeeded(&mut self) {
        self.failed.clear();
    }

    #[cfg(test)]
    pub(super) fn failed(&self) -> usize {
        self.failed.len()
    }
}

impl Machine {
    /// Raises suspicion: sentinels and nodes are queried more often, nothing else changes.
    pub(super) fn suspect(&mut self, now: Instant) {
        match &mut self.state {
            MachineState::Stable => {
                self.timeline.suspected(now);
                self.enter(MachineState::Suspect { since: now, last_sign_at: now });
                self.pacing.ask_now(now);
                self.nodes.probe_soon(now);
            }
            MachineState::Suspect { last_sign_at, .. } => *last_sign_at = now,
            _ => {}
        }
    }

    /// The sentinel `by` announces that `promoted` is about to be promoted, or was promoted: holds
    /// traffic if it is a replica of the committed master, or if that sentinel lists it as one of
    /// its master: it may name both in another way, even one that does not resolve. It is a
    /// candidate, which is probed, only if more than one sentinel knows it.
    pub(super) fn arm(&mut self, now: Instant, cause: HoldCause, promoted: &NodeAddr, by: MyId) {
        self.suspect(now);
        let replaceable =
            self.committed.as_ref().is_some_and(|it| it.published && it.addr != *promoted);
        let is_known = self.nodes.family.contains(promoted)
            || self.electorate.listed_replicas().contains(promoted);
        if !replaceable || !(is_known || self.electorate.is_listed_by(promoted, &by)) {
            return;
        }
        let known = is_known.then(|| promoted.clone());
        let may_hold = self.hold.may_begin(now);
        // A master that does not answer at the selection must not acknowledge anything when it
        // wakes up; see `replies`.
        let cause = if cause == HoldCause::Selected && self.is_target_silent() {
            HoldCause::Ordered
        } else {
            cause
        };
        match &mut self.state {
            MachineState::Armed { candidate, cause: was, .. } => {
                *candidate = known.or(candidate.take());
                if *was == HoldCause::Selected && cause != HoldCause::Selected {
                    *was = HoldCause::Ordered;
                }
                self.hold.armed_by = Some(by);
            }
            MachineState::Suspect { .. }
            | MachineState::Unconfirmed { .. }
            | MachineState::NoMaster { .. }
                if may_hold =>
            {
                self.hold_for(now, cause, known);
                self.hold.armed_by = Some(by);
            }
            _ => {}
        }
    }

    pub(super) fn hold_for(&mut self, now: Instant, cause: HoldCause, candidate: Option<NodeAddr>) {
        let until = now + self.rules.hold_max;
        self.enter(MachineState::Armed { cause, candidate, since: now, until });
        self.nodes.probe_soon(now);
    }

    /// Holds if a sentinel has a failover of the committed master in progress.
    pub(super) fn hold_for_failover_in_progress(&mut self, now: Instant) {
        let addr = self.committed.as_ref().map(|committed| &committed.addr);
        let failing = |view: &View| view.failing_over && Some(&view.addr) == addr;
        if self.electorate.trusted_views(None).any(failing) {
            self.hold_for(now, HoldCause::Ordered, None);
        }
    }

    /// Ends a hold that led to nothing.
    pub(super) fn disarm(&mut self, now: Instant) {
        if !matches!(self.state, MachineState::Armed { .. } | MachineState::Committing { .. }) {
            return;
        }
        if !self.committed.as_ref().is_some_and(|committed| committed.published) {
            // There is no master to return to.
            self.enter(MachineState::NoMaster { reason: NoMasterReason::Unverified, since: now });
            return;
        }
        if self.hold.fail(now) {
            self.actions.push(MachineAction::Warning(Warning::HoldsExhausted));
        }
        self.enter(MachineState::Suspect { since: now, last_sign_at: now });
    }

    /// The hold for an announced promotion, which was not seen, reached its time limit.
    pub(super) fn expire_hold(&mut self, now: Instant) {
        self.actions.push(MachineAction::Warning(Warning::HoldExpired));
        self.disarm(now);
        // No sentinel followed, as far as known. Sentinels have to answer before the old master is
        // used again.
        if self.committed.as_ref().is_some_and(|committed| committed.published) {
            self.doubt(now, now, true);
        }
    }
}
