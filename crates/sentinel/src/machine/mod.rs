//! The discovery machine of one master: decides when the points move, and nothing else.
//!
//! It has no socket, no clock and no task. Everything that happens is an [`Event`] with a time;
//! everything it wants is an [`Action`]; [`Machine::next_deadline`] says when it wants to be called
//! although nothing happened. It is level-triggered: an event only updates what is known, and then
//! one pass over all that is known decides. A lost, doubled or late event can therefore delay a
//! decision, but cannot change it.
//!
//! **Fence early, commit late.** A failover is visible long before it is final: the leader
//! announces its candidate about 60 ms before the promotion and the first switch comes a second
//! after it. Committing early is unsafe, since the leader may die and the promotion be undone; but
//! *holding* early is safe and is what keeps acknowledged writes from being lost. So the gate shuts
//! at the first sign, and the points move when a majority of distinct sentinels names the new
//! master at a higher config-epoch and the node, asked after it was first named there, says that it
//! is the master.
//!
//! Safety, checked by [`Machine::broken_invariant`] and by tests on the stream of actions:
//!
//! - S1: at most one target is published at a time.
//! - S2: after a commit no client byte goes to an older generation (`route` does that; here: every
//!   commit is one action).
//! - S3: the published epoch never falls, except by a majority that insists (`Basis::Regress`).
//! - S4: every published target was verified by a question asked after its evidence was complete;
//!   or, for a majority and behind a shut gate, after the first word for it, by an answer that is
//!   50 ms old at most and that nothing was heard against since.
//! - S5: silence of the sentinels never takes a target away.
//! - S6: at most one vote per MYID.
//!
//! Deliberately absent: who the sentinels are and how they are reached (`link`), names and
//! addresses (`resolve`), metrics.

mod agree;
mod decide;
mod doubt;
mod electorate;
pub(crate) mod failover_timeline;
mod learn;
mod messages;
mod minority;
mod nodes;
mod pause;
mod pursue;
mod replies;
pub(crate) mod rules;
mod shown;
mod state;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Instant;

pub use agree::{Claim, Finding};
use doubt::Doubt;
pub use electorate::Admission;
use electorate::Electorate;
pub use failover_timeline::FailoverTimeline;
pub use messages::{Action, Commit, Event, Note};
use nodes::Nodes;
pub use pause::Pause;
pub use state::{Basis, Cause, Lack, State};
use target::ReplyPolicy;

use crate::{Epoch, Lineage, MyId, NodeAddr, Rules};

/// What was last published.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Committed {
    /// The node as announced.
    pub addr: NodeAddr,
    /// The address that was verified and is dialled.
    pub dialled: SocketAddr,
    /// The epoch.
    pub epoch: Epoch,
    /// History and identity as of the last good answer.
    pub lineage: Option<Lineage>,
    /// When it was published.
    pub since: Instant,
    /// The target is published now: not cleared since.
    pub published: bool,
}

/// A sentinel said that it is about to follow a peer's hello.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Announced {
    peer: MyId,
    /// What it named before. The hello names something else, or there would be no announcement.
    leaving: NodeAddr,
    at: Instant,
    /// The epoch of its last view before that; the view that follows the hello is the one with a
    /// higher epoch.
    was: Epoch,
    /// Where it has switched to since, as long as nothing has come of that yet.
    to: Option<NodeAddr>,
}

/// A claim that waits for its grace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pending {
    addr: NodeAddr,
    epoch: Epoch,
    since: Instant,
}

/// See the module's header. Two machines that are equal behave alike from there on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    rules: Rules,
    state: State,
    electorate: Electorate,
    nodes: Nodes,
    committed: Option<Committed>,
    /// Addresses that were masters and are no longer, with the epoch that superseded them: the
    /// zombie guard.
    superseded: BTreeMap<NodeAddr, Epoch>,
    /// Nodes whose `role:master` means nothing until they have been seen as replicas: superseded
    /// masters, and candidates of which nothing came.
    zombies: BTreeSet<NodeAddr>,
    /// The addresses that members listed as replicas of the committed master: a candidate comes
    /// from here.
    family: BTreeSet<NodeAddr>,
    /// Sentinels that announced whose hello they are about to follow.
    updating_from: BTreeMap<MyId, Announced>,
    /// Whose announcement armed the hold; `None` where a probe did.
    armed_by: Option<MyId>,
    pending: Option<Pending>,
    /// Why the published master must not be used, or may have to be asked twice.
    doubt: Option<Doubt>,
    minority: Option<Instant>,
    /// When the youngest questions were sent that a majority answered; at first, and after a stall,
    /// the time since which one could have been heard.
    majority_at: Instant,
    /// An alarm stands; it is told once.
    strangers: bool,
    unverified_regress: bool,
    held: bool,
    /// What becomes of replies while it is held.
    replies: ReplyPolicy,
    /// What an operator wants of the gate.
    pause: Option<Pause>,
    failed_holds: VecDeque<Instant>,
    exhausted: bool,
    hint_after: Instant,
    hint_pause: std::time::Duration,
    last_step: Instant,
    next_ask: Instant,
    finding: Finding,
    story: FailoverTimeline,
    last_story: FailoverTimeline,
    actions: Vec<Action>,
}

impl Machine {
    /// A machine that knows nothing yet. `expected` is how many sentinels the configuration leads
    /// to, as far as is known; see [`Event::Expected`].
    #[must_use]
    pub fn new(now: Instant, rules: Rules, expected: usize) -> Self {
        Self {
            rules,
            state: State::Bootstrap { heard_at: None },
            electorate: Electorate::new(expected),
            nodes: Nodes::default(),
            committed: None,
            superseded: BTreeMap::new(),
            zombies: BTreeSet::new(),
            family: BTreeSet::new(),
            updating_from: BTreeMap::new(),
            armed_by: None,
            pending: None,
            doubt: None,
            minority: None,
            majority_at: now,
            strangers: false,
            unverified_regress: false,
            held: false,
            replies: ReplyPolicy::Pass,
            pause: None,
            failed_holds: VecDeque::new(),
            exhausted: false,
            hint_after: now,
            hint_pause: learn::HINT_PAUSE_MIN,
            last_step: now,
            next_ask: now,
            finding: Finding::Silence,
            story: FailoverTimeline::default(),
            last_story: FailoverTimeline::default(),
            actions: Vec::new(),
        }
    }

    /// Takes one event in and gives what is to be done, in order. `now` must not go back.
    pub fn step(&mut self, now: Instant, event: Event) -> Vec<Action> {
        // Whoever polls seldom is called seldom: that alone is no stall.
        let gap = now.saturating_duration_since(self.last_step);
        if gap > self.rules.stall.max(self.rules.poll * 2) || event == Event::Stalled {
            self.wake_from_stall(now);
        }
        self.last_step = now;
        self.apply(now, event);
        self.decide(now);
        self.pause_ends_in_time(now);
        self.set_gate(now);
        self.set_replies();
        self.schedule(now);
        std::mem::take(&mut self.actions)
    }

    /// When [`Event::Tick`] is due. Never more than one poll interval away.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let state = match &self.state {
            State::Armed { until, .. } | State::Committing { until, .. } => Some(*until),
            State::Suspect { fed_at, .. } => Some(*fed_at + self.rules.calm),
            State::Bootstrap { heard_at } => heard_at.map(|at| at + self.rules.bootstrap_grace),
            State::Stable | State::Unconfirmed { .. } | State::NoMaster { .. } => None,
        };
        let graces = self.pending.as_ref().map(|pending| pending.since + self.grace(pending));
        // A deadline that has passed already was acted upon as far as it could be; what it waits
        // for is an event.
        let later = |at: &Instant| *at > self.last_step;
        let pause = self.pause.as_ref().map(|pause| pause.until);
        let silence = self.silence_ends_at().filter(later);
        let doubt =
            self.doubt.iter().flat_map(|doubt| doubt.deadlines(&self.rules)).filter(later).min();
        [
            state.filter(later),
            graces.filter(later),
            pause,
            silence,
            doubt,
            self.nodes.next_due(),
            Some(self.next_ask),
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(self.next_ask)
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What was last published, and whether it still is.
    #[must_use]
    pub fn committed(&self) -> Option<&Committed> {
        self.committed.as_ref()
    }

    /// Whether the gate is shut by this machine.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.held
    }

    /// Whether the sentinels that can be heard are cut off from the majority of their peers:
    /// provably, by what they say; where the policy is not to keep the master then, also if too few
    /// of them are heard at all.
    #[must_use]
    pub fn is_minority(&self) -> bool {
        self.minority.is_some()
    }

    /// The last count of votes.
    #[must_use]
    pub fn finding(&self) -> &Finding {
        &self.finding
    }

    /// The phases of the failover under way, or of the last one.
    #[must_use]
    pub fn story(&self) -> &FailoverTimeline {
        if self.story.is_under_way() { &self.story } else { &self.last_story }
    }

    /// Electorate and majority, for people.
    #[must_use]
    pub fn quorum(&self) -> (usize, usize) {
        (self.electorate.size(), self.electorate.majority())
    }

    fn set_gate(&mut self, now: Instant) {
        let published = self.committed.as_ref().is_some_and(|committed| committed.published);
        let by_policy = self.is_held_by_policy();
        let by_order = self.pause.is_some();
        let want = published && (self.state.holds() || by_policy || by_order);
        if want != self.held {
            self.held = want;
            self.actions.push(if want { Action::Hold } else { Action::Release });
        }
        // A pause that leads to no failover is no part of the next one's story.
        if want && (self.state.holds() || by_policy) {
            self.story.held(now, self.pause.map_or(now, |pause| pause.since));
        }
    }

    fn schedule(&mut self, now: Instant) {
        let (committed, named) = (self.committed.as_ref().map(|it| &it.addr), self.named());
        let first: Vec<&NodeAddr> = committed.into_iter().chain(named.iter().flatten()).collect();
        self.nodes.want(now, &first, &self.electorate.listed_replicas());
        let alert_for = self.alert_since().map(|since| now.saturating_duration_since(since));
        let (rules, master) = (&self.rules, committed.cloned());
        let due = self
            .nodes
            .take_due(now, |addr| nodes::pace(rules, master.as_ref() == Some(addr), alert_for));
        self.actions.extend(due.into_iter().map(Action::Probe));
        if self.next_ask <= now {
            self.next_ask =
                now + if alert_for.is_some() { self.rules.poll_suspect } else { self.rules.poll };
            self.actions.push(Action::Ask);
        }
    }

    /// Who is named besides the committed one: as the next master, and by the claim that gathers
    /// votes. As long as that one stands its node is asked and its connection watched, whatever
    /// else is expected, or an answer could be taken for younger than the connection's end.
    fn named(&self) -> [Option<NodeAddr>; 2] {
        let by_state = match &self.state {
            State::Armed { candidate, .. } => candidate.clone(),
            State::Committing { addr, .. } => Some(addr.clone()),
            _ => None,
        };
        [by_state, self.pending.as_ref().map(|pending| pending.addr.clone())]
    }
}
