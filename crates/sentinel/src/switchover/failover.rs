//! The failover that was ordered, as its leader tells it: by events, and by answers where events
//! are lost.
//!
//! What it is for: to end the hold when Sentinel gives up, and to tell this failover apart from
//! every other one. A new master is taken for the result of the order only if the leader had
//! selected that replica, and at the epoch at which it began.

use super::leader::{LeaderEvent, LeaderView};
use crate::NodeAddr;

/// What is new about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum News {
    Nothing,
    /// This replica is to be promoted.
    Selected(NodeAddr),
    /// It was.
    Promoted(NodeAddr),
    /// Nothing comes of it; with the event that says so.
    Aborted(Box<str>),
}

/// One failover, from its order on.
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

    /// Whether this master is what the order led to.
    pub(super) fn led_to(&self, to: &NodeAddr, epoch: u64) -> bool {
        self.selected.as_ref() == Some(to) && self.epoch.is_none_or(|it| it == epoch)
    }

    /// An event that came after the order. What the leader says before it begins is of another
    /// failover.
    pub(super) fn event(&mut self, event: LeaderEvent) -> News {
        match event {
            LeaderEvent::Epoch(epoch) if !self.begun => self.epoch = Some(epoch),
            LeaderEvent::Begun => self.begun = true,
            LeaderEvent::Selected(node) if self.begun => return self.select(node),
            LeaderEvent::Promoted(node)
                if self.selected.as_ref() == Some(&node) && !self.promoted =>
            {
                self.promoted = true;
                return News::Promoted(node);
            }
            LeaderEvent::Aborted(event) if self.begun && !self.promoted => {
                return News::Aborted(event);
            }
            // After a promotion it completes, whether every replica was told in time or not.
            _ => {}
        }
        News::Nothing
    }

    /// An answer to a question that was asked after the order was taken.
    pub(super) fn view(&mut self, view: LeaderView) -> News {
        match view.selected {
            Some(node) if view.failing_over => {
                // The config-epoch rises with the promotion.
                if view.epoch > self.from.1 {
                    self.epoch.get_or_insert(view.epoch);
                }
                self.select(node)
            }
            None if !view.failing_over && view.master == self.from.0 && !self.promoted => {
                News::Aborted("no failover is under way there any more".into())
            }
            _ => News::Nothing,
        }
    }

    fn select(&mut self, node: NodeAddr) -> News {
        if self.selected.is_some() {
            return News::Nothing;
        }
        News::Selected(self.selected.insert(node).clone())
    }
}
