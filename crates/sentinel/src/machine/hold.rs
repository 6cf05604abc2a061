//! Suspicion and holds: raises suspicion, arms a hold at a sign of a promotion, and ends it.

use std::time::{Duration, Instant};

use super::nodes::NodeRecord;
use super::state::{HoldCause, MachineState, NoMasterReason};
use super::{Machine, MachineAction, Warning};
use crate::{MyId, NodeAddr, NodeReport, Role};

/// The number of holds within [`HOLD_WINDOW`] that may end without a commit. After that, signs of a
/// failover no longer cause a hold.
const MAX_FAILED_HOLDS: usize = 3;
const HOLD_WINDOW: Duration = Duration::from_secs(60);

impl Machine {
    /// Raises suspicion: sentinels and nodes are queried more often, nothing else changes.
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

    /// Whether a sign that is less than a majority may still close the gate.
    pub(super) fn may_hold(&mut self, now: Instant) -> bool {
        self.failed_holds.retain(|at| now.saturating_duration_since(*at) < HOLD_WINDOW);
        self.failed_holds.len() < MAX_FAILED_HOLDS
    }

    /// `promoted` is about to be promoted, or was promoted: holds traffic if it is a replica of
    /// the committed master. `by` is the sentinel that announced it.
    pub(super) fn arm(
        &mut self,
        now: Instant,
        cause: HoldCause,
        promoted: &NodeAddr,
        by: Option<MyId>,
    ) {
        self.suspect(now);
        let replaceable =
            self.committed.as_ref().is_some_and(|it| it.published && it.addr != *promoted);
        if !replaceable || !self.family.contains(promoted) {
            return;
        }
        let may_hold = self.may_hold(now);
        // A master that does not answer at the selection must not acknowledge anything when it
        // wakes up; see `replies`.
        let cause = if cause == HoldCause::Selected && self.is_target_silent() {
            HoldCause::Ordered
        } else {
            cause
        };
        match &mut self.state {
            MachineState::Armed { candidate, cause: was, until, .. } => {
                *candidate = Some(promoted.clone());
                // What remains is that the other sentinels learn of the promotion, which gets its
                // own time limit. Only for a promotion that was observed, since any sentinel can
                // announce one, and once per hold, so that no hold exceeds twice its limit.
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
                    candidate: Some(promoted.clone()),
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
        if self.failed_holds.len() >= MAX_FAILED_HOLDS {
            self.failed_holds.pop_front();
        }
        self.failed_holds.push_back(now);
        self.enter(MachineState::Suspect { since: now, last_sign_at: now });
    }

    /// The hold reached its time limit. A candidate that reports `role:master`, but that no
    /// sentinel has followed in all that time, is ignored from now on.
    pub(super) fn expire_hold(&mut self, now: Instant) {
        self.actions.push(MachineAction::Warning(Warning::HoldExpired));
        if let MachineState::Armed { candidate: Some(candidate), .. } = &self.state {
            let candidate = candidate.clone();
            let report = self.nodes.get(&candidate).and_then(NodeRecord::report);
            if report.is_some_and(|NodeReport { role, .. }| *role == Role::Master) {
                self.mark_zombie(candidate);
            }
        }
        self.disarm(now);
        // No sentinel followed, as far as known. Sentinels have to answer before the old master is
        // used again.
        if self.committed.as_ref().is_some_and(|committed| committed.published) {
            self.doubt(now, now, true);
        }
    }
}
