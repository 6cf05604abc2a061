//! Succession: which nodes were promoted from replicas of the committed master, and when one of
//! them, or the master itself, is used.
//!
//! - **E1, supersession.** Another node that reports `role:master` and whose history continues that
//!   of the committed master (`history`) is its *child*. From the moment that one is seen, the gate
//!   is closed to the master and its replies acknowledge nothing. No time limit ends this, and
//!   neither does an abort, an expired hold or the silence of the child.
//! - **E2, succession.** A child is committed as soon as a majority of the voters names it, at
//!   whatever epoch. A voter that sees a majority of its peers is sufficient if it names the child
//!   at an epoch above every other claim, and no voter that sees a majority of its peers still
//!   names another node: a config-epoch is won by votes, and the node itself confirms it. A voter
//!   that sees fewer peers belongs to a minority by its own view. It has no word against the child,
//!   and for it only if nobody contradicts it for `solo_grace`.
//! - **E3, reinstatement.** The master is used again when the child follows it; or at once when
//!   every voter, asked after E1, names the master and none has a failover in progress, since the
//!   leader of a failover reports that flag from before the promotion until its switch. A voter
//!   that no other sees up is not waited for if it was gone before the child was seen, or if
//!   another sentinel answers at its address: that alone may as well be a wrong process, or a
//!   voter that has moved. Or, if other voters do not answer, after a majority of such views, and
//!   none other, for [`DEMOTION`]; or when an operator orders it. A learned sentinel that reports a
//!   failover has the weight of one that does not answer: it may be anybody's, and a sentinel whose
//!   failover the majority has not heard of by then loses its candidate to them. The child is a
//!   stray from then on: it closes nothing until a voter names it at an epoch above the master's,
//!   since no hello passes on any other word.
//!
//! If a history cannot be read, a listed replica that reports `role:master` counts as a child,
//! unless it was the master itself before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::history::Kinship;
use super::nodes::{MAX_NODES, NodeRecord, verifies};
use super::state::{Basis, HoldCause, MachineState};
use super::{Committed, Machine, MachineAction, Warning};
use crate::{Epoch, Lineage, MyId, NodeAddr, NodeReport, Probe, ProbeFailure, Role, Verify, View};

/// How long Sentinel takes at most to demote a master that it does not want. It learns of the role
/// from an INFO, of which it sends one every 10 s, and demotes the node at the first INFO that is
/// more than `sentinel_publish_period * 4`, 8 s, younger
/// (`redis:src/sentinel.c:sentinelRefreshInstanceInfo`): at the second one. Shorter, and a failover
/// whose sentinels are out of reach loses writes; longer, and a detached replica stops traffic for
/// longer while a sentinel is lost.
const DEMOTION: Duration = Duration::from_secs(20);

/// The history that a node writes; `None` if it cannot be read.
type Written = Option<Box<str>>;

fn written(lineage: Option<&Lineage>) -> Written {
    lineage.map(|lineage| lineage.replid.clone())
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Child {
    /// Answers to questions from before say nothing about it.
    since: Instant,
    history: Written,
}

/// The children of the committed master; see the module documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Succession {
    children: BTreeMap<NodeAddr, Child>,
    /// The voters that were gone before the first child was seen: they did not promote it.
    absent: BTreeSet<MyId>,
    /// Since when a majority has named the master without a failover, and no voter a child.
    favoured_since: Option<Instant>,
    /// Nodes whose `role:master` is ignored, as long as they write this history and until they have
    /// been seen as replicas: children that were dismissed, and former masters.
    strays: BTreeMap<NodeAddr, Written>,
}

impl Succession {
    /// The children. They are queried whether a sentinel lists them or not.
    pub(super) fn children(&self) -> impl Iterator<Item = &NodeAddr> {
        self.children.keys()
    }

    /// When the master may be reinstated although nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.favoured_since.map(|since| since + DEMOTION)
    }

    /// Whatever was asked before `now` does not count.
    pub(super) fn ask_again(&mut self, now: Instant) {
        self.favoured_since = None;
        self.children.values_mut().for_each(|child| child.since = now);
    }

    /// Another master replaces this one. After an epoch regression nothing known before counts.
    pub(super) fn advance(&mut self, old: &Committed, basis: Basis) {
        (self.children, self.favoured_since) = (BTreeMap::new(), None);
        if basis == Basis::EpochRegression {
            self.strays.clear();
        }
        self.ignore(old.addr.clone(), written(old.lineage.as_ref()));
    }

    /// The node is no stray.
    pub(super) fn forgive(&mut self, node: &NodeAddr) {
        self.strays.remove(node);
    }

    fn ignore(&mut self, node: NodeAddr, history: Written) {
        if self.strays.len() >= MAX_NODES {
            self.strays.pop_first();
        }
        self.strays.insert(node, history);
    }

    fn ignores(&self, node: &NodeAddr, report: &NodeReport) -> bool {
        let history = written(report.lineage.as_ref());
        self.strays.get(node).is_some_and(|was| history.is_none() || *was == history)
    }

    #[cfg(test)]
    pub(super) fn strays(&self) -> impl Iterator<Item = &NodeAddr> {
        self.strays.keys()
    }

    /// When each child was seen.
    #[cfg(test)]
    pub(super) fn seen(&self) -> impl Iterator<Item = (NodeAddr, Instant)> {
        self.children.iter().map(|(node, child)| (node.clone(), child.since))
    }

    #[cfg(test)]
    pub(super) fn is_bounded(&self) -> bool {
        self.children.len() <= MAX_NODES && self.strays.len() <= MAX_NODES
    }
}

/// Whether a voter sees a majority of the peers that it knows. In TILT it cannot tell.
fn sees_majority(view: &View) -> Option<bool> {
    let up = view.peers.iter().filter(|(_, up)| *up).count();
    (!view.tilt).then_some((1 + up) * 2 > 1 + view.peers.len())
}

impl Machine {
    /// E1: whether a child of the committed master was seen.
    pub(super) fn is_superseded(&self) -> bool {
        !self.succession.children.is_empty()
    }

    /// A node other than the committed master answered as a replica.
    pub(super) fn weigh_replica(&mut self, now: Instant, node: &NodeAddr, report: &NodeReport) {
        self.succession.forgive(node);
        if self.follows_master(report) && self.succession.children.remove(node).is_some() {
            self.end_hold_for(now, node);
        }
    }

    /// E1: adds the children that the answers to queries from `since` on show. One that was
    /// promoted anew is another one.
    pub(super) fn meet_children(&mut self, now: Instant, since: Option<Instant>, first: bool) {
        let Some(committed) = &self.committed else { return };
        let is_new = |node: &NodeAddr, report: &NodeReport| {
            let known = self.succession.children.get(node);
            *node != committed.addr
                && known.is_none_or(|it| it.history != written(report.lineage.as_ref()))
        };
        let children: Vec<(NodeAddr, Written)> = self
            .nodes
            .iter()
            .filter(|(_, it)| it.last.as_ref().is_some_and(|last| since <= Some(last.asked_at)))
            .filter_map(|(node, it)| Some((node, it.report()?)))
            .filter(|(node, report)| is_new(node, report) && self.is_child(node, report, first))
            .map(|(node, report)| (node.clone(), written(report.lineage.as_ref())))
            .collect();
        if children.is_empty() {
            return;
        }
        let absent = self.electorate.absent();
        self.succession.absent =
            if self.is_superseded() { &self.succession.absent & &absent } else { absent };
        let children = children.into_iter();
        let children = children.map(|(node, history)| (node, Child { since: now, history }));
        self.succession.children.extend(children);
        self.succession.favoured_since = None;
        self.suspect(now);
        self.pacing.ask_now(now);
    }

    /// At the first commit the master may have been restarted unnoticed, and write a new history: a
    /// replica that most sentinels list may continue that of before.
    fn is_child(&self, node: &NodeAddr, report: &NodeReport, first: bool) -> bool {
        let continues = match self.kinship(node, report) {
            Some(Kinship::Continues) => true,
            Some(Kinship::Branches) => false,
            Some(Kinship::Foreign) => first && self.nodes.family.contains(node),
            None => self.nodes.family.contains(node),
        };
        verifies(report, Verify::Role)
            && continues
            && !self.is_committed_process(report)
            && !self.succession.ignores(node, report)
    }

    fn follows_master(&self, report: &NodeReport) -> bool {
        let (Some(committed), Role::Replica { master, .. }) = (&self.committed, &report.role)
        else {
            return false;
        };
        let same = |(new, old): (&Lineage, &Lineage)| new.replid == old.replid;
        *master == committed.addr
            || *master == NodeAddr::from(committed.dialled)
            || report.lineage.as_ref().zip(committed.lineage.as_ref()).is_some_and(same)
    }

    /// Whether all replicas that the sentinels see up, and the known ones, have answered a query
    /// sent at or after `since`, or are unreachable. A start waits for them, and so does a doubt,
    /// since one of them may have been promoted.
    pub(super) fn has_heard_replicas(&self, since: Option<Instant>) -> bool {
        let listed = self.electorate.member_views().flat_map(|(_, view)| &view.replicas);
        let listed = listed.filter(|replica| replica.healthy).map(|replica| &replica.addr);
        let is_told = |probe: &Probe| {
            use ProbeFailure::{Busy, ConnectionRejected, Unresponsive};
            let silent = matches!(probe.outcome, Err(Unresponsive | ConnectionRejected | Busy));
            since <= Some(probe.asked_at) && !silent
        };
        let heard = |it: &NodeRecord| it.last.as_ref().is_some_and(is_told);
        listed.chain(&self.nodes.family).all(|addr| self.nodes.get(addr).is_none_or(heard))
    }

    /// What is known from before applies to a new master at once: a start, a takeover and a commit
    /// begin with the same evidence. The sentinels of the first master may report a failover.
    pub(super) fn weigh_kin_after(&mut self, now: Instant, first: bool, new_lineage: bool) {
        let Some(committed) = &self.committed else { return };
        let hidden = self.nodes.iter().filter(|(node, it)| {
            let is_master = |report: &NodeReport| report.role == Role::Master;
            let report = it.report().filter(|report| is_master(report));
            **node != committed.addr
                && report.is_some_and(|report| self.kinship(node, report).is_none())
        });
        let hidden: Vec<NodeAddr> = hidden.map(|(node, _)| node.clone()).collect();
        hidden.into_iter().for_each(|node| self.succession.ignore(node, None));
        self.meet_children(now, None, first && self.orders.in_force.is_none());
        if first || new_lineage {
            self.doubt_new(now, first);
        }
        if first {
            self.hold_for_failover_in_progress(now);
        }
        self.close_to_parent(now);
    }

    /// E1, at the end of each step: no state opens the gate while a child stands.
    pub(super) fn close_to_parent(&mut self, now: Instant) {
        let is_open = matches!(self.state, MachineState::Stable | MachineState::Suspect { .. });
        let child = self.succession.children.keys().next().filter(|_| is_open).cloned();
        if child.is_some() {
            self.hold_for(now, HoldCause::Promoted, child);
        }
    }

    /// E2: pursues the child that succeeds the master, if one does.
    pub(super) fn succeed(&mut self, now: Instant) -> bool {
        let found = self.succession.children().find_map(|addr| self.succession_of(now, addr));
        let Some((addr, epoch, basis)) = found else { return false };
        self.pending_since(now, &addr, epoch);
        self.pursue(now, addr, epoch, basis);
        true
    }

    fn succession_of(&self, now: Instant, addr: &NodeAddr) -> Option<(NodeAddr, Epoch, Basis)> {
        let committed = self.committed.as_ref()?;
        let votes = self.electorate.votes(Some((&committed.addr, committed.epoch)));
        let naming = votes.iter().filter(|vote| vote.addr == *addr);
        let epoch = naming.clone().map(|vote| vote.epoch).max()?;
        let newer = epoch >= committed.epoch
            && self.nodes.superseded.get(addr).is_none_or(|by| *by < epoch);
        let exactly = naming.clone().filter(|vote| vote.epoch == epoch);
        if self.may_decide(&exactly.map(|vote| &vote.voter).collect()) {
            let basis = if newer { Basis::Majority } else { Basis::EpochRegression };
            return Some((addr.clone(), epoch, basis));
        }
        if !newer || self.orders.in_force.is_some() {
            return None;
        }
        // At several epochs, the history has to prove the succession as well.
        let basis = Basis::SingleSentinel;
        let report = self.nodes.get(addr).and_then(NodeRecord::report);
        let enough = self.may_decide(&naming.map(|vote| &vote.voter).collect())
            || (epoch > committed.epoch
                && votes.iter().all(|vote| vote.addr == *addr || vote.epoch < epoch)
                && self.is_uncontested(now, addr, epoch));
        let proven = report.is_none_or(|report| self.may_succeed(addr, basis, report));
        (enough && proven).then(|| (addr.clone(), epoch, basis))
    }

    /// Whether the word of less than a majority for `addr` is sufficient. Voters that still answer
    /// are asked at once when a child is seen and when it is named: after the grace period, only
    /// answers to these questions object.
    fn is_uncontested(&self, now: Instant, addr: &NodeAddr, epoch: Epoch) -> bool {
        let views = || self.electorate.member_views();
        let elected = views().any(|(_, view)| {
            view.addr == *addr
                && view.epoch == epoch
                && sees_majority(view) == Some(true)
                && view.peers.iter().filter(|(_, up)| *up).count() >= self.electorate.majority() - 1
        });
        let claim = self.pending.as_ref().filter(|it| it.addr == *addr && it.epoch == epoch);
        let over = |since: &Instant| now >= *since + self.rules.solo_grace;
        let stood = claim.map(|it| it.since).filter(over);
        let seen = self.succession.children.get(addr).map(|child| child.since).filter(over);
        let ids = |since| self.electorate.member_views_since(since).map(|(id, _)| id);
        let asked = stood.or(seen).map(|since| ids(since).collect::<BTreeSet<&MyId>>());
        let objects = |(id, view): (&MyId, &View)| {
            view.addr != *addr
                && (!elected || sees_majority(view) != Some(false))
                && asked.as_ref().is_none_or(|asked| asked.contains(id))
        };
        (elected || stood.is_some()) && !views().any(objects)
    }

    /// E3: ends the supersession when the voters stand by the master.
    pub(super) fn reinstate(&mut self, now: Instant) {
        let newest = self.succession.children.values().map(|child| child.since).max();
        let (Some(since), Some(committed)) = (newest, &self.committed) else { return };
        let asked: BTreeSet<&MyId> =
            self.electorate.own_votes_since(since).map(|(id, ..)| id).collect();
        let stands = |(id, view): &(&MyId, &View)| {
            view.addr == committed.addr && !view.replaces(&committed.addr) && asked.contains(id)
        };
        let standing: BTreeSet<&MyId> =
            self.electorate.member_views().filter(stands).map(|(id, _)| id).collect();
        let failing = |view: &View| view.replaces(&committed.addr);
        let is_trusted_failing = self.electorate.trusted_views(Some(since)).any(failing);
        let is_failing = self.electorate.member_views_since(since).any(|(_, it)| failing(it));
        let named = self.succession.children().any(|child| self.is_named_above(child));
        if named || is_trusted_failing || !self.may_decide(&standing) {
            self.succession.favoured_since = None;
            return;
        }
        let absent = self.electorate.absent();
        let is_gone = |id: &MyId| {
            absent.contains(id)
                && (self.succession.absent.contains(id) || self.electorate.is_displaced(id))
        };
        let is_settled = |(id, ..): (&MyId, _, _)| asked.contains(id) || is_gone(id);
        // One that is not trusted delays this until `DEMOTION`, however long it says so.
        let every = !is_failing
            && self.electorate.is_root_majority(&standing)
            && self.electorate.members().all(is_settled);
        let favoured = *self.succession.favoured_since.get_or_insert(now);
        if every || now >= favoured + DEMOTION {
            self.actions.push(MachineAction::Warning(Warning::HoldExpired));
            self.dismiss_children(now);
        }
    }

    /// Whether a voter names `node` at an epoch above that of every voter for the master.
    fn is_named_above(&self, node: &NodeAddr) -> bool {
        let Some(committed) = &self.committed else { return false };
        let votes = self.electorate.votes(None);
        let highest = |addr: &NodeAddr| {
            votes.iter().filter(|vote| vote.addr == *addr).map(|vote| vote.epoch).max()
        };
        highest(node) > highest(&committed.addr)
    }

    /// The children are strays from now on.
    pub(super) fn dismiss_children(&mut self, now: Instant) {
        for (node, child) in std::mem::take(&mut self.succession.children) {
            self.end_hold_for(now, &node);
            self.succession.ignore(node, child.history);
        }
        self.succession.favoured_since = None;
    }

    /// Ends the hold for a child that is none any more. A hold for another node stays.
    fn end_hold_for(&mut self, now: Instant, node: &NodeAddr) {
        if matches!(&self.state, MachineState::Armed { cause: HoldCause::Promoted, candidate, .. }
            if candidate.as_ref() == Some(node))
        {
            self.enter(MachineState::Suspect { since: now, last_sign_at: now });
        }
    }

    /// A voter names a stray: its `role:master` counts again. That of a former master does not, at
    /// the epoch that superseded it or before.
    pub(super) fn recall_strays(&mut self) {
        let left = |node: &NodeAddr| {
            let by = self.nodes.superseded.get(node).copied();
            let votes = self.electorate.votes(None);
            by.is_some() && votes.iter().all(|vote| vote.addr != *node || Some(vote.epoch) <= by)
        };
        let named: Vec<NodeAddr> = self
            .succession
            .strays
            .keys()
            .filter(|stray| self.is_named_above(stray) && !left(stray))
            .cloned()
            .collect();
        named.iter().for_each(|stray| self.succession.forgive(stray));
    }
}
