//! The discovery state machine of one master: decides when to switch to another node, when to hold
//! traffic and whom to ask.
//!
//! It has no socket, no clock and no task. Each input is a [`MachineEvent`] with a time, each
//! output a [`MachineAction`], and [`Machine::next_deadline`] gives the time of the next
//! [`MachineEvent::Tick`]. The machine is level-triggered: an event only updates the state of
//! knowledge, and one pass over all of it then decides. A lost, duplicated or late event can
//! therefore delay a decision but not change it.
//!
//! **Fence early, commit late.** A failover is visible long before it is final: the leader
//! announces its candidate about 60 ms before the promotion, and the first `+switch-master` follows
//! about a second after it. An early commit is unsafe, because the leader may die and the promotion
//! may be undone. An early *hold* is safe, and it is what prevents the loss of acknowledged writes.
//! The gate therefore closes at the first sign. The commit waits until a majority of distinct
//! sentinels names the new master at a higher config-epoch and the node itself, queried after it
//! was first named, reports `role:master`. A promotion that was seen closes the gate until the
//! evidence, and no time limit, decides between the two masters (`evidence`).
//!
//! Safety rules, checked by [`Machine::broken_invariant`] and by tests on the stream of actions:
//!
//! - S1: at most one target is published at a time.
//! - S2: after a commit, no client byte goes to an older generation. The `target` crate enforces
//!   it; here, each commit is one action.
//! - S3: the published epoch never falls, except when a majority insists on it
//!   (`Basis::EpochRegression`).
//! - S4: every published target was verified by a query sent after its evidence was complete. For a
//!   majority and while the gate is closed, an answer is sufficient that was requested after the
//!   first vote for the node, is at most 50 ms old, and has not been contradicted since.
//! - S5: silence of the sentinels never removes a target.
//! - S6: at most one vote per MYID.
//!
//! Deliberately absent: which sentinels exist and how they are reached (`link`), name resolution
//! (`net`), metrics.

mod commit;
mod confirmed;
mod decide;
mod doubt;
mod electorate;
mod events;
mod evidence;
pub(crate) mod failover_timeline;
mod history;
mod hold;
mod messages;
mod minority;
mod names;
mod nodes;
mod override_order;
mod pacing;
mod recognition;
mod replies;
pub(crate) mod rules;
mod state;
mod vote_count;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;

pub(crate) use confirmed::{Confirmed, Lacking};
use doubt::Doubt;
pub use electorate::Admission;
use electorate::Electorate;
use evidence::Succession;
pub use failover_timeline::FailoverTimeline;
use history::History;
pub use history::Trust;
use hold::Hold;
pub use hold::Pause;
pub use messages::{Commit, MachineAction, MachineEvent, Warning};
use minority::Reach;
use nodes::{MAX_NODES, NodeTable};
use override_order::Orders;
pub use override_order::{
    FollowOrder, FollowRefusal, Followed, Override, OverrideEnd, OverrideNews,
};
use pacing::Pacing;
pub(crate) use recognition::{Seen, SeenProcess};
pub use state::{Basis, HoldCause, MachineState, NoMasterReason};
pub use vote_count::{Claim, VoteOutcome};

use crate::{Epoch, Lineage, MachineRules, MyId, NodeAddr, Probe, View};

/// The master that was published last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Committed {
    /// The announced address.
    pub addr: NodeAddr,
    /// The verified address, which is the one to dial.
    pub dialled: SocketAddr,
    /// The config-epoch.
    pub epoch: Epoch,
    /// Identity and replication history, from the last good answer.
    pub lineage: Option<Lineage>,
    /// When it was published.
    pub since: Instant,
    /// Whether the target is still published, that is, not cleared since.
    pub published: bool,
    /// What its replicas have acknowledged.
    pub(crate) confirmed: Confirmed,
}

/// A sentinel announced (`+config-update-from`) that it is about to adopt the configuration in a
/// peer's hello.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Announced {
    peer: MyId,
    /// The address it named before. The hello names another one, otherwise there is no
    /// announcement.
    leaving: NodeAddr,
    at: Instant,
    /// The epoch of its last view before the announcement. The view that follows the hello is the
    /// first one with a higher epoch.
    was: Epoch,
    /// The address it has switched to since, until that switch has been counted as a vote.
    to: Option<NodeAddr>,
}

/// A claim that has to stand for a grace period before it has an effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PendingClaim {
    addr: NodeAddr,
    epoch: Epoch,
    since: Instant,
}

/// The state machine; see the module documentation. Equal machines behave identically from then on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    rules: MachineRules,
    state: MachineState,
    electorate: Electorate,
    nodes: NodeTable,
    committed: Option<Committed>,
    /// The nodes that were promoted from replicas of the committed master, and those whose
    /// `role:master` is ignored.
    succession: Succession,
    /// Sentinels that announced which peer's hello they are about to adopt.
    updating_from: BTreeMap<MyId, Announced>,
    hold: Hold,
    pending: Option<PendingClaim>,
    /// Why the published master must not be used, or may have to be queried again.
    doubt: Option<Doubt>,
    reach: Reach,
    history: History,
    /// The warning about strangers is active; it is given once.
    strangers: bool,
    unverified_regress: bool,
    orders: Orders,
    last_step: Instant,
    pacing: Pacing,
    vote_outcome: VoteOutcome,
    timeline: FailoverTimeline,
    pub(crate) last_timeline: FailoverTimeline,
    actions: Vec<MachineAction>,
}

impl Machine {
    /// A machine without any knowledge. `expected` is the number of sentinels that the
    /// configuration resolves to, as far as known; see [`MachineEvent::ExpectedSentinels`].
    #[must_use]
    pub fn new(now: Instant, rules: MachineRules, expected: usize) -> Self {
        Self {
            rules,
            state: MachineState::Bootstrap { first_view_at: None },
            electorate: Electorate::new(expected),
            nodes: NodeTable::default(),
            committed: None,
            succession: Succession::default(),
            updating_from: BTreeMap::new(),
            hold: Hold::default(),
            pending: None,
            doubt: None,
            reach: Reach::new(now),
            history: History::default(),
            strangers: false,
            unverified_regress: false,
            orders: Orders::default(),
            last_step: now,
            pacing: Pacing::new(now),
            vote_outcome: VoteOutcome::Silence,
            timeline: FailoverTimeline::default(),
            last_timeline: FailoverTimeline::default(),
            actions: Vec::new(),
        }
    }

    /// Processes one event and returns the actions in the order in which they have to be executed.
    /// `now` must not go back.
    pub fn step(&mut self, now: Instant, event: MachineEvent) -> Vec<MachineAction> {
        // With a long poll interval, ticks are rare: a gap of that size is not a stall.
        let gap = now.saturating_duration_since(self.last_step);
        if gap > self.rules.stall.max(self.rules.poll * 2) || event == MachineEvent::Stalled {
            self.wake_from_stall(now);
        }
        self.last_step = now;
        self.apply(now, event);
        self.decide(now);
        self.expire_pause(now);
        self.set_gate(now);
        self.set_replies();
        self.schedule(now);
        std::mem::take(&mut self.actions)
    }

    /// When [`MachineEvent::Tick`] is due. At most one poll interval away.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let state = match &self.state {
            MachineState::Armed { until, .. } | MachineState::Committing { until, .. } => {
                Some(*until)
            }
            MachineState::Suspect { last_sign_at, .. } => Some(*last_sign_at + self.rules.calm),
            MachineState::Bootstrap { first_view_at } => {
                first_view_at.map(|at| at + self.rules.bootstrap_grace)
            }
            MachineState::Stable
            | MachineState::Unconfirmed { .. }
            | MachineState::NoMaster { .. } => None,
        };
        let graces = self.pending.as_ref().map(|pending| pending.since + self.grace(pending));
        // A deadline in the past has been acted upon as far as possible; progress now depends on an
        // event.
        let later = |at: &Instant| *at > self.last_step;
        let pause = self.hold.pause.as_ref().map(|pause| pause.until);
        let silence = self.silence_ends_at().filter(later);
        let doubt =
            self.doubt.iter().flat_map(|doubt| doubt.deadlines(&self.rules)).filter(later).min();
        [
            state.filter(later),
            graces.filter(later),
            pause,
            silence,
            doubt,
            self.override_deadline(),
            self.succession.deadline().filter(later),
            self.nodes.next_due(),
            Some(self.pacing.ask_at),
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(self.pacing.ask_at)
    }

    /// The current state.
    #[must_use]
    pub fn state(&self) -> &MachineState {
        &self.state
    }

    /// The master that was published last, and whether it still is.
    #[must_use]
    pub fn committed(&self) -> Option<&Committed> {
        self.committed.as_ref()
    }

    /// Whether the machine keeps the gate closed.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.hold.is_closed()
    }

    /// Whether the reachable sentinels are cut off from the majority of their peers: proven by
    /// their own views or, unless the policy is to keep the master, because too few of them are
    /// reachable.
    #[must_use]
    pub fn is_minority(&self) -> bool {
        self.reach.minority.is_some()
    }

    /// The result of the last vote count.
    #[must_use]
    pub fn vote_outcome(&self) -> &VoteOutcome {
        &self.vote_outcome
    }

    /// The timeline of the failover in progress, or of the last one.
    #[must_use]
    pub fn timeline(&self) -> &FailoverTimeline {
        if self.timeline.is_under_way() { &self.timeline } else { &self.last_timeline }
    }

    /// Size of the electorate and of a majority, for display.
    #[must_use]
    pub fn quorum(&self) -> (usize, usize) {
        (self.electorate.size(), self.electorate.majority())
    }

    fn set_gate(&mut self, now: Instant) {
        let published = self.committed.as_ref().is_some_and(|committed| committed.published);
        let by_policy = self.is_held_by_policy();
        let by_order = self.hold.pause.is_some();
        let holds = self.state.holds() || self.is_superseded() || self.has_target_ended();
        let want = published && (holds || by_policy || by_order);
        if want != self.hold.is_closed() {
            (self.hold.closed_since, self.hold.written) = (want.then_some(now), None);
            self.actions.push(if want { MachineAction::Hold } else { MachineAction::Release });
        }
        // A pause that does not lead to a failover is not part of the next failover's timeline.
        if want && (holds || by_policy) {
            self.timeline.held(now, self.hold.pause.map_or(now, |pause| pause.since));
        }
    }

    fn schedule(&mut self, now: Instant) {
        let (committed, named) = (self.committed.as_ref().map(|it| &it.addr), self.named());
        let listed = self.electorate.listed_replicas();
        let first: Vec<&NodeAddr> =
            committed.into_iter().chain(named.iter().flatten()).chain(&listed).collect();
        let mut replicas = self.other_names();
        replicas.extend(self.succession.children().cloned());
        if self.committed.is_none() {
            // A replica that was promoted since is a child as soon as its parent is committed, and
            // its leader, which names it, lists it no more.
            replicas.extend(self.nodes.iter().map(|(addr, _)| addr.clone()).take(MAX_NODES));
        }
        // In a doubt the replicas may know what sentinels that do not answer cannot say, and they
        // serve readers while the sentinels are silent.
        if self.is_in_grave_doubt() || !self.electorate.majority_answers() {
            replicas.extend(self.nodes.family.iter().cloned());
        }
        self.nodes.want(now, &first, &replicas);
        let alert_for = self.alert_since().map(|since| now.saturating_duration_since(since));
        let (rules, pacing, master) = (&self.rules, &self.pacing, committed.cloned());
        let due = self.nodes.take_due(now, |addr| {
            let interval = nodes::probe_interval(rules, master.as_ref() == Some(addr), alert_for);
            pacing.next_probe(now, rules, interval, alert_for.is_some())
        });
        self.actions.extend(due.into_iter().map(MachineAction::Probe));
        if self.pacing.take_ask(now, &self.rules, alert_for.is_some()) {
            self.actions.push(MachineAction::Ask);
        }
    }

    /// The nodes named besides the committed master: the next master by the current state, the node
    /// of an order, and the node of the pending claim. While the claim is pending, its node is
    /// probed and its connection is watched, whatever else is expected. Otherwise an answer could
    /// be taken for newer than the end of the connection.
    fn named(&self) -> [Option<NodeAddr>; 3] {
        let by_state = self.state.candidate().cloned();
        let ordered = self.orders.pending.as_ref().map(|it| it.order.addr.clone());
        let pending = self.pending.as_ref().filter(|pending| self.is_credible(&pending.addr));
        [by_state, ordered, pending.map(|pending| pending.addr.clone())]
    }

    /// Whether this sentinel belongs to the electorate.
    #[must_use]
    pub fn is_member(&self, id: &MyId) -> bool {
        self.electorate.is_member(id)
    }

    /// Whether fewer sentinels are configured than a failover needs.
    #[must_use]
    pub fn depends_on_learned(&self) -> bool {
        self.electorate.depends_on_learned()
    }

    /// Why and since when each member of the electorate votes.
    pub fn members(&self) -> impl Iterator<Item = (&MyId, Admission, Instant)> {
        self.electorate.members()
    }

    /// Whether more than a single sentinel's list supports this node: it is the current or the last
    /// master, an operator ordered it, or the evidence for it is complete.
    #[must_use]
    pub fn is_corroborated(&self, node: &NodeAddr) -> bool {
        let claimed = matches!(&self.state, MachineState::Committing { addr, .. } if addr == node);
        let ordered = self.orders.pending.as_ref().is_some_and(|it| it.order.addr == *node);
        claimed || ordered || self.committed.as_ref().is_some_and(|it| it.addr == *node)
    }

    /// Whether requests pass although no majority of the sentinels has answered lately, since
    /// silence never removes a master.
    #[must_use]
    pub fn is_open_without_majority(&self) -> bool {
        !self.hold.is_closed()
            && matches!(self.state, MachineState::Stable | MachineState::Suspect { .. })
            && !self.electorate.majority_answers()
    }

    /// Each unexpired view: the sentinel, whether it votes, the view, and when it was received.
    pub fn views(&self) -> impl Iterator<Item = (&MyId, bool, &View, Instant)> {
        self.electorate
            .all_views()
            .map(|(id, member, received)| (id, member, &received.view, received.at))
    }

    /// The views that decide which replicas may serve readers: those of the configured sentinels,
    /// or of all voters while no configured sentinel answers.
    pub(crate) fn trusted_views(&self) -> Vec<&View> {
        let members = || self.electorate.all_views().filter(|(_, member, _)| *member);
        let configured = members().any(|(_, _, received)| received.configured);
        members()
            .filter(|(_, _, received)| received.configured || !configured)
            .map(|(_, _, received)| &received.view)
            .collect()
    }

    /// What the voting and the configured sentinels name. An operator has to know of differences.
    pub fn named_masters(&self) -> BTreeSet<(&NodeAddr, Epoch)> {
        let known = self
            .electorate
            .all_views()
            .filter(|(_, member, received)| *member || received.configured);
        let naming =
            known.filter(|(_, member, received)| *member || !received.view.is_empty_state());
        naming.map(|(_, _, received)| (&received.view.addr, received.view.epoch)).collect()
    }

    /// Each watched node with its last answer.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeAddr, Option<&Probe>)> {
        self.nodes.iter().map(|(addr, node)| (addr, node.last.as_ref()))
    }

    /// The first violated safety rule, if any; for tests and for an assertion of the driver in
    /// debug builds.
    #[must_use]
    pub fn broken_invariant(&self) -> Option<&'static str> {
        let votes = self.electorate.votes(None);
        let distinct: BTreeSet<&MyId> = votes.iter().map(|vote| &vote.voter).collect();
        if distinct.len() != votes.len() {
            return Some("S6: a sentinel votes twice");
        }
        let committed = self.committed.as_ref()?;
        let superseded = self.nodes.superseded.get(&committed.addr).copied();
        if superseded.is_some_and(|epoch| epoch >= committed.epoch) && committed.published {
            return Some("zombie guard: a superseded address is published");
        }
        None
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> &MachineRules {
        &self.rules
    }

    /// Applies these rules from now on. A deadline that has begun to run keeps its time.
    pub(super) fn set_rules(&mut self, now: Instant, rules: MachineRules) {
        if rules.verify != self.rules.verify {
            // Answers to other commands prove other things: a node that was only asked PING would
            // look like one that does not know its role.
            self.nodes.forget(now);
        }
        self.rules = rules;
        // The next queries were scheduled with the old intervals, which may be much longer.
        self.pacing.ask_now(now);
        self.nodes.probe_soon(now);
    }
}
