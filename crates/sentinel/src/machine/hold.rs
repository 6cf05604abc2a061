//! Suspicion and holds: raises suspicion, arms a hold at a sign of a promotion, and ends it.
//!
//! An operator's pause, which is also the first half of a planned switchover, is an additional
//! reason to hold. It affects no safety rule, since holding is always safe. It carries its own end,
//! so that an operator whose connection breaks does not leave traffic stopped. It also says whether
//! a commit ends it: a switchover waits for exactly that, while maintenance of a server needs the
//! gate closed whatever the sentinels do.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use target::ReplyPolicy;

use super::confirmed::Lacking;
use super::state::{HoldCause, MachineState, NoMasterReason};
use super::{Machine, MachineAction, Warning};
use crate::{MyId, NodeAddr};

/// The number of holds within [`HOLD_WINDOW`] that may end without a commit. After that, signs of a
/// failover no longer cause a hold. Each trusted sentinel has a number of its own, and all others
/// together: they must not use up what the leader of a failover needs.
const MAX_FAILED_HOLDS: usize = 3;
const HOLD_WINDOW: Duration = Duration::from_secs(60);

/// A command to keep the gate closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pause {
    /// When it was issued; traffic has been waiting since.
    pub since: Instant,
    /// When it ends by itself.
    pub until: Instant,
    /// Whether the next commit ends it too.
    pub ends_with_commit: bool,
}

/// What keeps the gate closed, and how replies are treated meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    /// When the gate was closed, unless it is open.
    pub(super) closed_since: Option<Instant>,
    /// The offset of the old master in its first answer to a query sent after that: what it writes
    /// later was not requested through this proxy, as the sentinels' hellos.
    pub(super) written: Option<u64>,
    pub(super) replies: ReplyPolicy,
    /// The sentinels whose announcements armed the hold; none if a probe did.
    pub(super) armed_by: BTreeSet<MyId>,
    /// The operator's pause.
    pub(super) pause: Option<Pause>,
    /// The promoted node that is not followed because it lacks confirmed writes.
    pub(super) lacking: Option<Lacking>,
    /// When the last holds ended without a commit, and the trusted sentinel that had armed them.
    failed: VecDeque<(Instant, Option<MyId>)>,
}

impl Hold {
    /// Whether the gate is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed_since.is_some()
    }

    /// Whether a sign that is less than a majority may still close the gate: of this trusted
    /// sentinel, or of any other.
    fn may_begin(&mut self, now: Instant, by: Option<&MyId>) -> bool {
        self.failed.retain(|(at, _)| now.saturating_duration_since(*at) < HOLD_WINDOW);
        self.failed_by(by) < MAX_FAILED_HOLDS
    }

    fn failed_by(&self, by: Option<&MyId>) -> usize {
        self.failed.iter().filter(|(_, it)| it.as_ref() == by).count()
    }

    /// It ended without a commit. Whether it was the last one of this sentinel for a while.
    fn fail(&mut self, now: Instant, by: Option<MyId>) -> bool {
        let was = self.failed_by(by.as_ref());
        if was < MAX_FAILED_HOLDS {
            self.failed.push_back((now, by));
        }
        was + 1 == MAX_FAILED_HOLDS
    }

    /// It led to a commit.
    pub(super) fn succeeded(&mut self) {
        self.failed.clear();
    }

    #[cfg(test)]
    pub(super) fn failed(&self) -> usize {
        self.failed.iter().map(|(_, by)| self.failed_by(by.as_ref())).max().unwrap_or(0)
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
        let trusted = Some(&by).filter(|by| self.electorate.trusts(by));
        if self.hold.may_begin(now, trusted) {
            self.suspect(now);
        } else if !matches!(self.state, MachineState::Armed { .. }) {
            return;
        }
        let replaceable =
            self.committed.as_ref().is_some_and(|it| it.published && it.addr != *promoted);
        let is_known = self.nodes.family.contains(promoted)
            || self.electorate.listed_replicas().contains(promoted);
        if !replaceable || !(is_known || self.electorate.is_listed_by(promoted, &by)) {
            return;
        }
        let known = is_known.then(|| promoted.clone());
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
            }
            MachineState::Suspect { .. }
            | MachineState::Unconfirmed { .. }
            | MachineState::NoMaster { .. } => self.hold_for(now, cause, known),
            _ => return,
        }
        self.hold.armed_by.insert(by);
    }

    pub(super) fn hold_for(&mut self, now: Instant, cause: HoldCause, candidate: Option<NodeAddr>) {
        let until = now + self.rules.hold_max;
        self.hold.armed_by.clear();
        self.enter(MachineState::Armed { cause, candidate, since: now, until });
        self.nodes.probe_soon(now);
    }

    /// Holds if a sentinel has a failover of the committed master in progress.
    pub(super) fn hold_for_failover_in_progress(&mut self, now: Instant) {
        let Some(committed) = &self.committed else { return };
        if self.electorate.trusted_views(None).any(|view| view.replaces(&committed.addr)) {
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
        let by = std::mem::take(&mut self.hold.armed_by);
        let mut by: BTreeSet<Option<MyId>> =
            by.into_iter().map(|id| self.electorate.trusts(&id).then_some(id)).collect();
        if by.is_empty() {
            by.insert(None);
        }
        for by in by {
            if self.hold.fail(now, by) {
                self.actions.push(MachineAction::Warning(Warning::HoldsExhausted));
            }
        }
        self.enter(MachineState::Suspect { since: now, last_sign_at: now });
    }

    /// The hold for an announced promotion, which was not seen, reached its time limit.
    pub(super) fn expire_hold(&mut self, now: Instant) {
        self.actions.push(MachineAction::Warning(Warning::HoldExpired));
        self.disarm(now);
        if self.committed.as_ref().is_some_and(|committed| committed.published) {
            self.doubt_after_hold(now);
        }
    }

    /// The pause in force, if any.
    #[must_use]
    pub fn pause(&self) -> Option<&Pause> {
        self.hold.pause.as_ref()
    }

    pub(super) fn expire_pause(&mut self, now: Instant) {
        if self.hold.pause.is_some_and(|pause| now >= pause.until) {
            self.hold.pause = None;
        }
    }

    /// Called at a commit: returns whether the gate stays closed after it.
    pub(super) fn pause_outlives_commit(&mut self) -> bool {
        if self.hold.pause.is_some_and(|pause| pause.ends_with_commit) {
            self.hold.pause = None;
        }
        self.hold.pause.is_some()
    }
}
