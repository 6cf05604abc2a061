//! An operator's order to follow a node without the sentinels: the override, for the night in which
//! all of them are lost.
//!
//! An order is an input like any other. It replaces the evidence that sentinels would give, and
//! nothing else: the node is queried after the order, has to report `role:master` itself, and has
//! to continue the history of the last master, unless the order says that another history is meant.
//! A wrong order changes nothing. A good one is committed like any other master, as a new
//! generation. If the node is the published process already, the order confirms it instead, which
//! ends a doubt.
//!
//! While the override is in force,
//!
//! - the rule for a minority stops no traffic, since the operator has decided;
//! - less than a majority of the sentinels changes nothing: a single sentinel that comes back may
//!   have lost its file. A majority is one that could make the first decision
//!   ([`may_found`](super::Electorate::may_found)), because the electorate may have shrunk to the
//!   sentinels that came back first;
//! - everything else applies to the followed master as to any other. If it becomes unreachable,
//!   demoted or another process, requests are held or its sessions are closed.
//!
//! It ends when a majority confirms the master or commits another one, at its time limit, and by
//! command. It cannot begin while a majority answers: then Sentinel decides.

use std::time::{Duration, Instant};

use super::doubt::{ProcessRelation, relation};
use super::history::Kinship;
use super::nodes::verifies;
use super::state::{Basis, MachineState};
use super::vote_count::VoteOutcome;
use super::{Machine, MachineAction};
use crate::labelled::labelled;
use crate::{Minority, NodeAddr, NodeReport, Probe, ProbeFailure, Role, Verify};

/// How long the node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// An order to follow a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FollowOrder {
    /// Identifies the order in its answer.
    pub id: u64,
    /// The node.
    pub addr: NodeAddr,
    /// How long the override lasts at most.
    pub lasts: Duration,
    /// The node may have another history than the last master, such as that of a restored backup.
    pub force: bool,
}

/// An override in force.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Override {
    /// The followed node.
    pub addr: NodeAddr,
    /// Since when it is followed.
    pub since: Instant,
    /// When the override ends by itself.
    pub until: Instant,
}

/// An order whose node has not answered yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PendingOrder {
    pub(super) order: FollowOrder,
    since: Instant,
}

impl PendingOrder {
    fn expires_at(&self) -> Instant {
        self.since + ANSWER_WITHIN
    }
}

/// What an order led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Followed {
    /// The target changed to the node.
    Switched,
    /// The node was the target already and is confirmed.
    Confirmed,
}

/// Why an order was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FollowRefusal {
    /// A majority of the sentinels answers.
    MajorityAnswers,
    /// A master change is in progress.
    MasterChange,
    /// A switchover is in progress.
    Switchover,
    /// The configuration does not permit to ask the node for its role.
    RoleNotQueried,
    /// The node replicates another one.
    Replica {
        /// Its master.
        master: NodeAddr,
    },
    /// The node reports no role, as a sentinel does.
    NotRedis,
    /// The node reports `role:master`, but refuses `PING`, for example because it is loading.
    NotReady,
    /// The node does not continue the history of the last master.
    OtherHistory {
        /// The last master.
        of: NodeAddr,
    },
    /// It cannot be read whether the node continues the history of the last master, which no
    /// sentinel listed it as a replica of.
    UnknownHistory {
        /// The last master.
        of: NodeAddr,
    },
    /// The node could not be queried.
    Failed(ProbeFailure),
    /// A later order or the end of the override replaced it.
    Replaced,
}

labelled! {
    /// Why an override ended.
    pub enum OverrideEnd {
        /// A majority of the sentinels names the followed master.
        Confirmed = "confirmed",
        /// A majority of the sentinels named another master.
        Switched = "switched",
        /// Its time is over.
        Expired = "expired",
        /// By command.
        Unfollowed = "unfollowed",
    }
}

/// News of orders and overrides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OverrideNews {
    /// The answer to an order.
    Answered(u64, Result<Followed, FollowRefusal>),
    /// The override of this node ended.
    Ended(NodeAddr, OverrideEnd),
}

/// The orders of operators.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Orders {
    /// The order to follow a node, until the node has answered.
    pub(super) pending: Option<PendingOrder>,
    pub(super) in_force: Option<Override>,
}

impl Machine {
    /// The override in force, if any.
    #[must_use]
    pub fn override_in_force(&self) -> Option<&Override> {
        self.orders.in_force.as_ref()
    }

    /// The configured policy for a minority.
    #[must_use]
    pub fn configured_minority_policy(&self) -> Minority {
        self.rules.minority
    }

    /// The policy for a minority in force. An override suspends it.
    pub(super) fn minority_policy(&self) -> Minority {
        if self.orders.in_force.is_some() { Minority::Keep } else { self.rules.minority }
    }

    /// When an order or an override ends although nothing happens.
    pub(super) fn override_deadline(&self) -> Option<Instant> {
        let pending = self.orders.pending.as_ref().map(PendingOrder::expires_at);
        pending.into_iter().chain(self.orders.in_force.as_ref().map(|it| it.until)).min()
    }

    /// An order arrives: refuses it, or queries the node.
    pub(super) fn order_follow(&mut self, now: Instant, order: FollowOrder) {
        self.cancel_order();
        if let Some(refusal) = self.order_conflict(&order.addr) {
            return self.answer_order(order.id, Err(refusal));
        }
        self.nodes.ask_at(now, &order.addr);
        self.orders.pending = Some(PendingOrder { order, since: now });
    }

    /// A command ends the override.
    pub(super) fn unfollow(&mut self) {
        self.cancel_order();
        self.end_override(OverrideEnd::Unfollowed);
    }

    fn cancel_order(&mut self) {
        if let Some(older) = self.orders.pending.take() {
            self.answer_order(older.order.id, Err(FollowRefusal::Replaced));
        }
    }

    fn answer_order(&mut self, id: u64, answer: Result<Followed, FollowRefusal>) {
        self.actions.push(MachineAction::Override(OverrideNews::Answered(id, answer)));
    }

    pub(super) fn end_override(&mut self, end: OverrideEnd) {
        if let Some(it) = self.orders.in_force.take() {
            self.actions.push(MachineAction::Override(OverrideNews::Ended(it.addr, end)));
        }
    }

    /// Ends what is over. Called before anything is decided, so that the usual rules apply at once.
    pub(super) fn expire_override(&mut self, now: Instant) {
        if self.orders.pending.as_ref().is_some_and(|it| now >= it.expires_at())
            && let Some(PendingOrder { order, .. }) = self.orders.pending.take()
        {
            let silent = FollowRefusal::Failed(ProbeFailure::Unresponsive);
            self.answer_order(order.id, Err(silent));
        }
        if self.orders.in_force.as_ref().is_some_and(|it| now >= it.until) {
            self.end_override(OverrideEnd::Expired);
        }
    }

    /// Ends the override when a majority confirms the followed master. With a policy for a minority
    /// not before that rule is satisfied too, otherwise the end would stop traffic for a moment.
    pub(super) fn weigh_override(&mut self) {
        let confirmed = matches!(self.vote_outcome, VoteOutcome::Confirmed { majority: true, .. });
        let strict = self.rules.minority != Minority::Keep;
        if confirmed && !(strict && self.reach.minority.is_some()) {
            self.end_override(OverrideEnd::Confirmed);
        }
    }

    /// Whether a majority answers that may decide. While an override is in force, and before the
    /// first decision, that is one that may found.
    fn has_deciding_majority(&self) -> bool {
        self.electorate.has_majority(self.orders.in_force.is_some())
    }

    /// What stands against an order to follow this node now.
    fn order_conflict(&self, ordered: &NodeAddr) -> Option<FollowRefusal> {
        if self.rules.verify != Verify::Role {
            Some(FollowRefusal::RoleNotQueried)
        } else if self.hold.pause.is_some_and(|pause| pause.ends_with_commit) {
            Some(FollowRefusal::Switchover)
        } else if self.has_deciding_majority() {
            Some(FollowRefusal::MajorityAnswers)
        } else if self.is_changing_to_another(ordered) {
            Some(FollowRefusal::MasterChange)
        } else {
            None
        }
    }

    /// Whether a master change is in progress that an order to follow this node would contradict. A
    /// hold for this very node is no obstacle: it starts as soon as a query sees that an operator
    /// promoted the node by hand, and without sentinels only the order can end it.
    fn is_changing_to_another(&self, ordered: &NodeAddr) -> bool {
        match &self.state {
            // Without sentinels, nobody but the operator can say which of two masters is meant.
            MachineState::Armed { .. } if self.is_superseded() => false,
            MachineState::Armed { candidate, .. } => candidate.as_ref() != Some(ordered),
            MachineState::Committing { .. } => true,
            _ => false,
        }
    }

    /// The node of an order answered. Only the answer to a query sent after the order counts.
    /// Returns whether the order was carried out.
    pub(super) fn weigh_order(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) -> bool {
        let Some(pending) = self.orders.pending.take_if(|it| it.order.addr == *node) else {
            return false;
        };
        if probe.asked_at < pending.since {
            self.nodes.ask_at(now, node);
            self.orders.pending = Some(pending);
            return false;
        }
        let order = pending.order;
        let conflict = self.order_conflict(node);
        let checked = conflict.map_or_else(|| self.check_order(&order, probe), Err);
        let id = order.id;
        let answer = checked.map(|report| self.follow(now, &order, &report));
        let done = answer.is_ok();
        self.answer_order(id, answer);
        done
    }

    fn check_order(&self, order: &FollowOrder, probe: &Probe) -> Result<NodeReport, FollowRefusal> {
        let report = probe.outcome.as_ref().map_err(|failure| FollowRefusal::Failed(*failure))?;
        match &report.role {
            Role::Replica { master, .. } => {
                return Err(FollowRefusal::Replica { master: master.clone() });
            }
            Role::Unknown => return Err(FollowRefusal::NotRedis),
            Role::Master if !verifies(report, Verify::Role) => return Err(FollowRefusal::NotReady),
            Role::Master => {}
        }
        let Some(last) = self.committed.as_ref().filter(|_| !order.force) else {
            return Ok(report.clone());
        };
        match self.kinship(&order.addr, report) {
            Some(Kinship::Continues) => {}
            Some(_) => return Err(FollowRefusal::OtherHistory { of: last.addr.clone() }),
            None if self.inherits(&order.addr, report) => {}
            None => return Err(FollowRefusal::UnknownHistory { of: last.addr.clone() }),
        }
        Ok(report.clone())
    }

    /// Carries out an order whose node verified.
    fn follow(&mut self, now: Instant, order: &FollowOrder, report: &NodeReport) -> Followed {
        let same = self.committed.as_ref().is_some_and(|it| {
            it.published && it.addr == order.addr && relation(it, report) == ProcessRelation::Same
        });
        let renewed = self.orders.in_force.take().filter(|it| it.addr == order.addr);
        self.orders.in_force = Some(Override {
            addr: order.addr.clone(),
            since: renewed.map_or(now, |it| it.since),
            until: now + order.lasts,
        });
        if !same {
            // No sentinel gave an epoch. That of the last master stays, so that a majority that
            // names a newer one is followed as usual, and an older one is not.
            let epoch = self.committed.as_ref().map_or(0, |it| it.epoch);
            self.commit(now, &order.addr, epoch, Basis::Operator, report);
            return Followed::Switched;
        }
        self.doubt = None;
        self.dismiss_children(now);
        if matches!(self.state, MachineState::Unconfirmed { .. } | MachineState::NoMaster { .. }) {
            self.enter(MachineState::Suspect { since: now, last_sign_at: now });
        }
        Followed::Confirmed
    }
}
