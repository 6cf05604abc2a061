//! An independent oracle: checks the safety rules on the inputs and outputs, with records of its
//! own. It shares no code with the machine and knows nothing of its states, so an error would have
//! to be made twice to go unnoticed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::machine::{
    Basis, Commit, Committed, FollowOrder, Followed, MachineAction, MachineEvent, NoMasterReason,
    OverrideEnd, OverrideNews,
};
use crate::{
    Epoch, Lineage, MachineRules, Minority, MyId, NodeAddr, NodeReport, Notice, PingReply, Probe,
    Role, Verify,
};

/// The maximum number of actions in one step: one per node of a full group, and a few more.
const MOST_ACTIONS: usize = 80;

/// An older answer verifies only if it was queried after all of its evidence.
const AHEAD: Duration = Duration::from_millis(50);

type Claim = (NodeAddr, Epoch);

/// A sentinel is about to adopt a peer's hello.
#[derive(Clone)]
struct Announced {
    peer: MyId,
    at: Instant,
    /// The epoch it named before.
    was: Epoch,
    /// The address it switched to.
    to: Option<NodeAddr>,
}

pub(in crate::machine) struct Oracle {
    rules: MachineRules,
    published: Option<Claim>,
    last: Option<Claim>,
    held: bool,
    /// Until when an operator keeps the gate closed, and whether a commit ends that.
    pause: Option<(Instant, bool)>,
    /// Each former master, with the epoch of the commit that replaced it.
    left: BTreeMap<NodeAddr, Epoch>,
    /// When each sentinel named each claim, itself or through a peer that adopted its hello; the
    /// last few.
    named: BTreeMap<Claim, Vec<(MyId, Instant)>>,
    last_named: BTreeMap<MyId, Claim>,
    announced: BTreeMap<MyId, Announced>,
    asked: BTreeMap<NodeAddr, Vec<Instant>>,
    /// The answer of each node to the latest query.
    answers: BTreeMap<NodeAddr, Probe>,
    /// When each node's idle connection last ended, and whether the node was queried again at the
    /// same instant.
    ended: BTreeMap<NodeAddr, (Instant, bool)>,
    /// When this process was last suspended: answers to earlier queries prove nothing.
    stalled_at: Option<Instant>,
    /// The same, until a commit or an order settles which master there is. A doubt that follows may
    /// begin in the same instant.
    stall_in_doubt: Option<Instant>,
    /// The last sign that the last target may have been superseded unnoticed: a stall of this
    /// process, a bad answer, another process at its address, or its removal.
    doubted_at: Option<Instant>,
    /// The committed process, and another one that answered at its address.
    processes: (Option<Box<str>>, Option<Box<str>>),
    /// When the latest query was sent to which each sentinel answered with each claim.
    asked_about: BTreeMap<(Claim, MyId), Instant>,
    /// When the latest query was sent to which each sentinel answered with the last target, at its
    /// epoch of then or a higher one. The epoch may rise before the gate opens.
    confirmed: BTreeMap<(NodeAddr, MyId), Instant>,
    /// The last order to follow a node, and when it was given, until it is answered.
    order: Option<(FollowOrder, Instant)>,
    /// The node of the override in force, and when it has to end.
    following: Option<(NodeAddr, Instant)>,
    /// The last input other than the passage of time.
    last_input: Option<Instant>,
    last_step: Option<Instant>,
    /// Every address of which a sentinel said that it is down, or being replaced.
    views: BTreeMap<MyId, crate::View>,
    /// Every node that has reported `role:master`: closing the gate for one of them is safe.
    masters: BTreeSet<NodeAddr>,
    /// Every history that a node has shown; `None` for one that it did not show.
    written: BTreeSet<(NodeAddr, Option<Box<str>>)>,
    /// The number of votes that is a majority; `None` if the scenario changes the electorate.
    majority: Option<usize>,
}

impl Oracle {
    pub(in crate::machine) fn new(rules: MachineRules) -> Self {
        Self {
            rules,
            published: None,
            last: None,
            held: false,
            pause: None,
            left: BTreeMap::new(),
            named: BTreeMap::new(),
            last_named: BTreeMap::new(),
            announced: BTreeMap::new(),
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
            ended: BTreeMap::new(),
            stalled_at: None,
            stall_in_doubt: None,
            doubted_at: None,
            processes: (None, None),
            asked_about: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            order: None,
            following: None,
            last_input: None,
            last_step: None,
            views: BTreeMap::new(),
            masters: BTreeSet::new(),
            written: BTreeSet::new(),
            majority: None,
        }
    }

    /// The electorate is fixed: votes are counted too.
    pub(in crate::machine) fn of_electorate(mut self, voters: usize) -> Self {
        self.majority = Some(voters / 2 + 1);
        self
    }

    /// One step: the input, the output, and what the machine reports as published after it.
    pub(in crate::machine) fn check_step(
        &mut self,
        now: Instant,
        event: &MachineEvent,
        actions: &[MachineAction],
        after: Option<&Committed>,
    ) {
        let gap = self.last_step.is_some_and(|last| now - last > self.rules.stall);
        let stalled = gap || *event == MachineEvent::Stalled;
        self.last_step = Some(now);
        if stalled || *event != MachineEvent::Tick {
            self.last_input = Some(now);
        }
        if stalled {
            (self.stalled_at, self.doubted_at) = (Some(now), Some(now));
            self.stall_in_doubt = Some(now);
        }
        self.record_event(now, event);
        assert!(actions.len() <= MOST_ACTIONS, "{} actions in one step", actions.len());
        for action in actions {
            match action {
                MachineAction::Hold => {
                    assert!(self.published.is_some(), "held without a target");
                    assert!(!self.held, "held twice");
                    let paused = self.pause.is_some() || self.rules.minority == Minority::Hold;
                    let doubted = self.doubted_at.is_some();
                    let recent = self.had_input_within(now, self.rules.view_expiry);
                    assert!(paused || doubted || recent, "S5: held out of silence");
                    self.held = true;
                }
                MachineAction::Release => {
                    assert!(self.held, "released without a hold");
                    assert!(self.published.is_some(), "released without a target");
                    self.released(now);
                    self.held = false;
                }
                MachineAction::Commit(commit) => self.committed(now, commit),
                MachineAction::Clear(reason) => self.cleared(now, *reason, event),
                MachineAction::Probe(node) => {
                    let asked = self.asked.entry(node.clone()).or_default();
                    asked.push(now);
                    if let Some((at, again)) = self.ended.get_mut(node) {
                        *again |= *at == now;
                    }
                    if asked.len() > 256 {
                        asked.remove(0);
                    }
                }
                MachineAction::Redirect(addr, _) => {
                    assert!(self.published.is_some(), "redirected without a target");
                    let known = self.published.iter_mut().chain(&mut self.last);
                    known.for_each(|(before, _)| before.clone_from(addr));
                }
                MachineAction::ReplyPolicy(_) => {
                    assert!(self.held, "replies are dropped or wait while the gate is open");
                }
                MachineAction::Override(news) => self.overridden(now, event, news),
                MachineAction::Ask | MachineAction::Warning(_) => {}
            }
        }
        let over = self.following.as_ref().is_some_and(|(_, until)| now >= *until);
        assert!(!over, "an override exceeds its time");
        self.pause = self.pause.filter(|(until, _)| now < *until);
        assert!(
            self.held || self.pause.is_none() || self.published.is_none(),
            "open during a pause"
        );
        self.agrees_with(after);
    }

    /// The machine's report and its actions must agree.
    fn agrees_with(&mut self, after: Option<&Committed>) {
        let shown = after.filter(|it| it.published).map(|it| it.addr.clone());
        assert_eq!(
            shown,
            self.published.as_ref().map(|(addr, _)| addr.clone()),
            "S1: shown and published differ"
        );
        if let (Some((addr, epoch)), Some(after)) = (&mut self.last, after) {
            assert_eq!(*addr, after.addr);
            if after.epoch != *epoch {
                // Away and back, or reconfigured from scratch, to the same master: no commit, and
                // the new epoch counts from here.
                let named = self.named.get(&(addr.clone(), after.epoch));
                let voters: BTreeSet<&MyId> =
                    named.into_iter().flatten().map(|(by, _)| by).collect();
                assert!(
                    voters.len() >= self.majority.unwrap_or(1),
                    "an epoch named by too few sentinels"
                );
                if after.epoch < *epoch {
                    self.left.clear();
                }
                *epoch = after.epoch;
            }
        }
    }

    fn record_event(&mut self, now: Instant, event: &MachineEvent) {
        match event {
            MachineEvent::Pause(pause) => self.pause = Some((pause.until, pause.ends_with_commit)),
            MachineEvent::Rules(rules) => self.rules = (**rules).clone(),
            MachineEvent::Resume => self.pause = None,
            MachineEvent::Follow(order) => self.order = Some((order.clone(), now)),
            MachineEvent::View { from, view, asked_at, .. } => {
                let claim = (view.addr.clone(), view.epoch);
                self.views.insert(from.clone(), view.clone());
                if !view.is_empty_state() {
                    self.record_vote(claim.clone(), from.clone(), now);
                    self.asked_about.insert((claim.clone(), from.clone()), *asked_at);
                    let (last, of) = (self.last.as_ref(), (claim.0.clone(), from.clone()));
                    if last.is_some_and(|(addr, epoch)| *addr == claim.0 && claim.1 >= *epoch) {
                        self.confirmed.insert(of, *asked_at);
                    }
                }
                if let Some(Announced { peer, at, was, .. }) = self.announced.get(from).cloned() {
                    let rose = view.epoch > was;
                    if rose {
                        self.announced.remove(from);
                    }
                    if rose && now - at <= self.rules.view_expiry {
                        self.record_vote(claim, peer, now);
                    }
                }
                self.last_named.insert(from.clone(), (view.addr.clone(), view.epoch));
                self.count_announced_switches(now);
            }
            MachineEvent::Notice { from: Some(from), notice: Notice::Switched { to } } => {
                if let Some(announced) = self.announced.get_mut(from) {
                    announced.to = Some(to.clone());
                }
                self.count_announced_switches(now);
            }
            MachineEvent::Probed { node, probe } => {
                if let Ok(report) = &probe.outcome {
                    let history = report.lineage.as_ref().map(|lineage| lineage.replid.clone());
                    self.written.insert((node.clone(), history));
                }
                let younger =
                    self.answers.get(node).is_none_or(|last| probe.asked_at >= last.asked_at);
                if younger && self.stalled_at.is_none_or(|at| probe.asked_at >= at) {
                    self.check_target(now, node, probe);
                    if verifies(probe, Verify::Role) {
                        self.masters.insert(node.clone());
                    }
                    self.answers.insert(node.clone(), probe.clone());
                }
            }
            MachineEvent::ProbeConnectionLost { node } => {
                self.ended.insert(node.clone(), (now, false));
            }
            MachineEvent::Notice {
                from: Some(from),
                notice: Notice::ConfigUpdateFrom { peer, leaving },
            } => {
                if let Some((addr, was)) = self.last_named.get(from)
                    && addr == leaving
                {
                    let (peer, was) = (peer.clone(), *was);
                    self.announced.insert(from.clone(), Announced { peer, at: now, was, to: None });
                }
            }
            _ => {}
        }
    }

    /// Whether an answer of the last target shows that it is still the committed process.
    fn check_target(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
        if self.last.as_ref().is_none_or(|(addr, _)| addr != node) {
            return;
        }
        let process = probe
            .outcome
            .as_ref()
            .ok()
            .and_then(|it| it.lineage.as_ref())
            .map(|it| it.run_id.clone());
        let denied = probe.outcome == Err(crate::ProbeFailure::Denied);
        let (committed, other) = &mut self.processes;
        let restarted =
            process.is_some() && committed.is_some() && process != *committed && process != *other;
        if committed.is_none() && verifies(probe, self.rules.verify) {
            committed.clone_from(&process);
        }
        if restarted {
            *other = process;
        }
        if restarted || !(denied || verifies(probe, self.rules.verify)) {
            self.doubted_at = Some(now);
        }
    }

    /// The number of sentinels that named the last target in answer to queries sent after the last
    /// sign of a doubt.
    fn fresh_voters(&self) -> usize {
        let fresh = |at: &Instant| self.doubted_at.is_none_or(|doubted| *at >= doubted);
        // The epoch may be adopted and the gate opened in one step.
        let ours = |claim: &Claim| {
            self.last.as_ref().is_some_and(|(addr, epoch)| *addr == claim.0 && claim.1 >= *epoch)
        };
        let asked = self.asked_about.iter().filter(|((claim, _), at)| ours(claim) && fresh(at));
        let still =
            |addr: &NodeAddr| self.last.as_ref().is_some_and(|(current, _)| current == addr);
        let confirmed = self.confirmed.iter().filter(|((addr, _), at)| still(addr) && fresh(at));
        let voters = asked.map(|((_, by), _)| by).chain(confirmed.map(|((_, by), _)| by));
        let voters = voters.collect::<BTreeSet<_>>().len();
        // A majority is sufficient at a lower epoch, too.
        let at_any =
            self.asked_about.iter().filter(|((claim, _), at)| still(&claim.0) && fresh(at));
        let at_any = at_any.map(|((_, by), _)| by).collect::<BTreeSet<_>>().len();
        if at_any >= self.majority.unwrap_or(1) { voters.max(at_any) } else { voters }
    }

    /// The gate opens to the same target. After a stall this needs a view that is newer, or silence
    /// for as long as a view remains valid.
    fn released(&self, now: Instant) {
        let Some(doubted_at) = self.doubted_at.filter(|at| Some(*at) == self.stall_in_doubt) else {
            return;
        };
        let patient = now >= doubted_at + self.rules.view_expiry;
        assert!(patient || self.fresh_voters() >= 1, "released on the old master's own answer");
        let policy = self.rules.minority == Minority::Keep || self.following.is_some();
        assert!(
            policy || self.fresh_voters() >= self.majority.unwrap_or(1).min(1),
            "released in a minority"
        );
    }

    /// A sentinel that announced a peer's hello, and then a switch to the address that the peer
    /// names by now, votes as the peer does.
    fn count_announced_switches(&mut self, now: Instant) {
        let of = |(id, it): (&MyId, &Announced)| {
            let named = self.last_named.get(&it.peer)?;
            let follows = it.to.as_ref() == Some(&named.0)
                && named.1 > it.was
                && now - it.at <= self.rules.view_expiry;
            follows.then(|| (id.clone(), named.clone()))
        };
        let followers: Vec<(MyId, Claim)> = self.announced.iter().filter_map(of).collect();
        followers.into_iter().for_each(|(id, claim)| self.record_vote(claim, id, now));
    }

    /// Silence for longer than any view remains valid, and any verification lasts, causes nothing.
    fn had_input_within(&self, now: Instant, long: Duration) -> bool {
        self.last_input.is_some_and(|at| now <= at + long + Duration::from_millis(1))
    }

    fn record_vote(&mut self, claim: Claim, by: MyId, at: Instant) {
        let named = self.named.entry(claim).or_default();
        named.push((by, at));
        if named.len() > 512 {
            named.remove(0);
        }
    }

    /// The number of distinct sentinels that had named `claim` by `at`, within the time in which a
    /// vote and a verification remain valid.
    fn voters_by(&self, claim: &Claim, at: Instant) -> usize {
        let window = self.rules.view_expiry + self.rules.verify_deadline + Duration::from_secs(1);
        let mut voters: Vec<&MyId> = self
            .named
            .get(claim)
            .into_iter()
            .flatten()
            .filter(|(_, when)| *when <= at && *when + window >= at)
            .map(|(by, _)| by)
            .collect();
        voters.sort();
        voters.dedup();
        voters.len()
    }

    fn committed(&mut self, now: Instant, commit: &Commit) {
        let claim = (commit.addr.clone(), commit.epoch);
        let probe = self.answers.get(&commit.addr).cloned();
        let probe = probe.unwrap_or_else(|| panic!("S4: a commit without an answer: {commit:?}"));
        assert!(verifies(&probe, self.rules.verify), "S4: {probe:?} verifies nothing");
        self.verified_after_its_evidence(now, commit, &claim, &probe);
        if let Some((_, epoch)) = &self.last {
            assert!(
                commit.epoch >= *epoch || commit.basis == Basis::EpochRegression,
                "S3: the epoch fell from {epoch}: {commit:?}"
            );
        }
        if commit.basis == Basis::EpochRegression {
            self.left.clear();
        }
        let by_order = commit.basis == Basis::Operator;
        if let Some(left) = self.left.get(&commit.addr).filter(|_| !by_order) {
            assert!(commit.epoch > *left, "zombie: {commit:?} was left at {left}");
        }
        self.left.remove(&commit.addr);
        if let Some((old, _)) = self.last.take().filter(|(old, _)| *old != commit.addr) {
            self.left.insert(old, commit.epoch);
        }
        self.published = Some(claim.clone());
        self.last = Some(claim);
        (self.doubted_at, self.stall_in_doubt) = (None, None);
        self.processes = (probe.outcome.ok().and_then(|it| it.lineage).map(|it| it.run_id), None);
        // Only a pause that does not end with a commit, or the policy for a minority, keeps the
        // gate closed after it.
        let paused = self.pause.is_some_and(|(until, ends)| !ends && now < until);
        let policy = self.rules.minority == Minority::Hold;
        assert!(commit.held || !paused, "open during a pause: {commit:?}");
        let is_failing = |it: &crate::View| {
            let is_late = it.pong_age > Duration::from_secs(3);
            let is_another = commit.run_id.as_ref().is_some_and(|id| *id != it.run_id);
            it.failing_over || it.down || it.rebooted || is_late || is_another
        };
        let failover = self.views.values().any(|it| it.addr == commit.addr && is_failing(it))
            || self.masters.iter().any(|it| *it != commit.addr);
        assert!(!commit.held || paused || policy || failover, "closed without a pause: {commit:?}");
        self.held = commit.held;
        self.pause = self.pause.filter(|(_, ends)| !ends);
    }

    /// An order was answered, or an override ended.
    fn overridden(&mut self, now: Instant, event: &MachineEvent, news: &OverrideNews) {
        match news {
            OverrideNews::Answered(id, answer) => {
                // An order that another one replaces is answered in the step of the other one.
                let Some((order, since)) = self.order.take_if(|(it, _)| it.id == *id) else {
                    return assert!(answer.is_err(), "an unknown order was followed");
                };
                let Ok(followed) = answer else { return };
                let probe = self.answers.get(&order.addr).expect("followed without an answer");
                assert!(probe.asked_at >= since && verifies(probe, Verify::Role), "{probe:?}");
                let target = self.published.as_ref().map(|(addr, _)| addr);
                assert_eq!(target, Some(&order.addr), "followed, but not published");
                if *followed == Followed::Confirmed {
                    // The operator confirms what sentinels otherwise would.
                    (self.doubted_at, self.stall_in_doubt) = (None, None);
                }
                self.following = Some((order.addr, now + order.lasts));
            }
            OverrideNews::Ended(addr, end) => {
                let (following, until) = self.following.take().expect("no override to end");
                assert_eq!(following, *addr);
                match end {
                    OverrideEnd::Expired => {
                        assert!(now >= until, "ended early");
                        // The operator chose this time; the policy for a minority applies again.
                        self.last_input = Some(now);
                    }
                    OverrideEnd::Unfollowed => assert_eq!(*event, MachineEvent::Unfollow),
                    OverrideEnd::Confirmed | OverrideEnd::Switched => {
                        let heard = self.heard_within_expiry(now);
                        let needed = self.majority.unwrap_or(1);
                        assert!(heard >= needed, "{heard} of {needed} sentinels ended it");
                    }
                }
            }
        }
    }

    /// The number of sentinels that named anything while their vote, and a verification, may last.
    fn heard_within_expiry(&self, now: Instant) -> usize {
        let window = self.rules.view_expiry + self.rules.verify_deadline + Duration::from_secs(1);
        let recent = self.named.values().flatten().filter(|(_, at)| *at + window >= now);
        recent.map(|(by, _)| by).collect::<BTreeSet<_>>().len()
    }

    fn verified_after_its_evidence(
        &self,
        now: Instant,
        commit: &Commit,
        claim: &Claim,
        probe: &Probe,
    ) {
        assert!(probe.asked_at <= now);
        let asked =
            self.asked.get(&commit.addr).into_iter().flatten().any(|at| *at <= probe.asked_at);
        assert!(asked, "S4: never queried before {commit:?}");
        let at = probe.asked_at;
        let voters = self.voters_by(claim, at);
        match commit.basis {
            Basis::Reconfirmed => {
                let last = self.last.as_ref().map(|(addr, epoch)| (addr, *epoch));
                assert_eq!(
                    last,
                    Some((&commit.addr, commit.epoch)),
                    "reconfirmed, but never committed"
                );
                assert!(
                    self.fresh_voters() >= 1,
                    "reconfirmed without a vote from after the doubt: {commit:?}"
                );
            }
            Basis::Operator => {
                let (order, since) = self.order.as_ref().expect("a commit without an order");
                assert_eq!(order.addr, commit.addr, "another node than ordered");
                assert!(at >= *since, "S4: queried before the order: {commit:?}");
                let epoch = self.last.as_ref().map_or(0, |(_, epoch)| *epoch);
                assert_eq!(commit.epoch, epoch, "an epoch that no sentinel gave");
                let role = probe.outcome.as_ref().map(|report| &report.role);
                assert_eq!(role, Ok(&Role::Master), "an order for a node that is no master");
            }
            Basis::SingleSentinel => {
                assert_eq!(self.following, None, "a single sentinel ended an override");
                let early = at
                    .checked_sub(self.rules.solo_grace)
                    .expect("a clock that has run for a while");
                // A child of the master needs no grace.
                let early = if self.is_child(&commit.addr, probe) { at } else { early };
                assert!(
                    self.voters_by(claim, early) >= 1,
                    "single sentinel without its grace: {commit:?}"
                );
            }
            Basis::BootstrapMinority => {
                assert!(voters >= 1, "no sentinel named {commit:?} before the query");
            }
            Basis::Majority | Basis::EpochRegression => {
                let (needed, now_are) = (self.majority.unwrap_or(1), self.voters_by(claim, now));
                assert!(now_are >= needed, "S6: {now_are} of {needed} named {commit:?}");
                let ahead = commit.basis == Basis::Majority
                    && self.held
                    && self.is_ahead(now, commit, probe, voters);
                assert!(
                    voters >= needed || ahead,
                    "S4: {voters} of {needed} named {commit:?} before the query"
                );
            }
        }
    }

    /// Queried after the first vote, answered recently, while the gate was closed, and not
    /// contradicted since.
    fn is_ahead(&self, now: Instant, commit: &Commit, probe: &Probe, voters: usize) -> bool {
        let after =
            |(at, again): &(Instant, bool)| *at < probe.asked_at || *at == probe.asked_at && *again;
        let whole = self.ended.get(&commit.addr).is_none_or(after);
        voters >= 1 && whole && now - probe.asked_at <= AHEAD
    }

    /// Whether the answer is that of a master that continues a history that another node wrote, as
    /// far as can be read.
    fn is_child(&self, addr: &NodeAddr, probe: &Probe) -> bool {
        let new = probe.outcome.as_ref().ok().and_then(|it| it.lineage.as_ref());
        let continues = |new: &Lineage| {
            self.written.iter().filter(|(node, _)| node != addr).any(|(node, history)| {
                let is_last = self.last.as_ref().is_some_and(|(last, _)| last == node);
                history.as_deref().map_or(is_last, |replid| {
                    *replid == *new.replid || Some(replid) == new.continued()
                })
            })
        };
        verifies(probe, Verify::Role) && new.is_none_or(continues)
    }

    fn cleared(&mut self, now: Instant, reason: NoMasterReason, event: &MachineEvent) {
        let Some((target, _)) = self.published.take() else { panic!("cleared without a target") };
        let long = self.rules.view_expiry + self.rules.verify_deadline;
        assert!(self.had_input_within(now, long), "S5: cleared out of silence");
        match reason {
            NoMasterReason::Demoted => {
                let MachineEvent::Probed { node, probe } = event else {
                    panic!("demoted without an answer that says so")
                };
                assert_eq!(*node, target);
                assert!(matches!(probe.outcome, Ok(NodeReport { role: Role::Replica { .. }, .. })));
            }
            NoMasterReason::Minority => assert_eq!(self.rules.minority, Minority::Cut),
            NoMasterReason::Unverified => {}
            NoMasterReason::Unreachable => panic!("an unreachable master is held, not cleared"),
        }
        self.held = false;
        self.doubted_at = Some(now);
    }
}

fn verifies(probe: &Probe, verify: Verify) -> bool {
    let Ok(report) = &probe.outcome else { return false };
    let replica = matches!(report.role, Role::Replica { .. });
    match verify {
        Verify::Role => report.role == Role::Master && report.ping.is_ready(),
        Verify::Ping => report.ping.is_ready() && report.ping != PingReply::Other && !replica,
        Verify::Tcp => !replica,
    }
}
