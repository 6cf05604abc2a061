//! Tracks the requested failover by the leader's events, and by its answers if events are lost.
//!
//! It ends the hold when Sentinel gives up, and distinguishes this failover from every other one. A
//! new master counts as the result of the command only if the leader had selected that replica, at
//! the epoch at which the failover began.

use super::leader::{LeaderEvent, LeaderView};
use crate::NodeAddr;

/// A change of the failover's progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FailoverUpdate {
    Nothing,
    /// This replica was selected for promotion.
    Selected(NodeAddr),
    /// It was promoted.
    Promoted(NodeAddr),
    /// The failover ended without a promotion; with the event that says so.
    Aborted(Box<str>),
}

/// One failover, from its command on.
#[derive(Debug)]
pub(super) struct Failover {
    /// The master and the config-epoch before.
    from: (NodeAddr, u64),
    /// The epoch that the leader took last; that of the failover once it has begun.
    epoch: Option<u64>,
    begun: bool,
    selected: Option<NodeAddr>,
    promoted: bool,
}

impl Failover {
    pub(super) fn of(master: NodeAddr, epoch: u64) -> Self {
        Self { from: (master, epoch), epoch: None, begun: false, selected: None, promoted: false }
    }

    /// A replica was selected: from here on the discovery machine holds by itself.
    pub(super) fn is_selected(&self) -> bool {
        self.selected.is_some()
    }

    /// Whether this master is the result of the command.
    pub(super) fn led_to(&self, to: &NodeAddr, epoch: u64) -> bool {
        self.selected.as_ref() == Some(to) && self.epoch.is_none_or(|it| it == epoch)
    }

    /// Processes an event received after the command. Events before `Begun` belong to another
    /// failover.
    pub(super) fn event(&mut self, event: LeaderEvent) -> FailoverUpdate {
        match event {
            LeaderEvent::Epoch(epoch) if !self.begun => self.epoch = Some(epoch),
            LeaderEvent::Begun => self.begun = true,
            LeaderEvent::Selected(node) if self.begun => return self.select(node),
            LeaderEvent::Promoted(node)
                if self.selected.as_ref() == Some(&node) && !self.promoted =>
            {
                self.promoted = true;
                return FailoverUpdate::Promoted(node);
            }
            LeaderEvent::Aborted(event) if self.begun && !self.promoted => {
                return FailoverUpdate::Aborted(event);
            }
            // After a promotion it completes, whether every replica was reconfigured in time or
            // not.
            _ => {}
        }
        FailoverUpdate::Nothing
    }

    /// Processes an answer to a poll that was sent after the command was accepted.
    pub(super) fn view(&mut self, view: LeaderView) -> FailoverUpdate {
        match view.selected {
            Some(node) if view.failing_over => {
                // The config-epoch rises with the promotion.
                if view.epoch > self.from.1 {
                    self.epoch.get_or_insert(view.epoch);
                }
                self.select(node)
            }
            None if !view.failing_over && view.master == self.from.0 && !self.promoted => {
                FailoverUpdate::Aborted("no failover is in progress on this sentinel".into())
            }
            _ => FailoverUpdate::Nothing,
        }
    }

    fn select(&mut self, node: NodeAddr) -> FailoverUpdate {
        if self.selected.is_some() {
            return FailoverUpdate::Nothing;
        }
        FailoverUpdate::Selected(self.selected.insert(node).clone())
    }
}
