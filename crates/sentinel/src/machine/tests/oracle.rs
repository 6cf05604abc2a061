//! An independent oracle: checks the safety rules on what went in and what came out, with books of
//! its own. It shares no code with the machine and knows nothing of its states, so a rule that is
//! broken in both places is broken twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::machine::{Action, Basis, Commit, Committed, Event, Lack};
use crate::{Epoch, Minority, MyId, NodeAddr, Notice, Probe, Report, Role, Rules, Verify};

/// More actions than this in one step would be a flood: every node of a full group, and a handful.
const MOST_ACTIONS: usize = 80;

/// An answer older than this verifies only what was asked for after all of its evidence.
const AHEAD: Duration = Duration::from_millis(50);

type Claim = (NodeAddr, Epoch);

/// A sentinel is about to follow a peer's hello.
#[derive(Clone)]
struct Announced {
    peer: MyId,
    at: Instant,
    /// The epoch it named before.
    was: Epoch,
    /// Where it said it switched to.
    to: Option<NodeAddr>,
}

pub(in crate::machine) struct Oracle {
    rules: Rules,
    published: Option<Claim>,
    last: Option<Claim>,
    held: bool,
    /// Until when an operator wants the gate shut, and whether a commit ends that.
    ordered: Option<(Instant, bool)>,
    /// Every address that a commit moved away from, with that commit's epoch.
    left: BTreeMap<NodeAddr, Epoch>,
    /// When each sentinel named each claim, by itself or through a peer that followed it; the last
    /// few.
    named: BTreeMap<Claim, Vec<(MyId, Instant)>>,
    last_word: BTreeMap<MyId, Claim>,
    announced: BTreeMap<MyId, Announced>,
    asked: BTreeMap<NodeAddr, Vec<Instant>>,
    /// The answer of each node to the youngest question.
    answers: BTreeMap<NodeAddr, Probe>,
    /// When each node's idle connection ended last, and whether it was asked again in that very
    /// instant.
    ended: BTreeMap<NodeAddr, (Instant, bool)>,
    /// When this process was last stopped: answers to questions from before prove nothing.
    stalled_at: Option<Instant>,
    /// The last sign that the last target may have been superseded unnoticed: a stop of this
    /// process, a bad answer, another process at its address, or that it was taken away.
    doubted_at: Option<Instant>,
    /// The process that was committed, and another one that answered at its address.
    processes: (Option<Box<str>>, Option<Box<str>>),
    /// The sending of the youngest question to which each sentinel named each claim.
    asked_about: BTreeMap<(Claim, MyId), Instant>,
    /// When anything but time was last heard.
    heard_at: Option<Instant>,
    last_step: Option<Instant>,
    /// How many votes are a majority; `None` where the scenario changes the electorate.
    majority: Option<usize>,
}

impl Oracle {
    pub(in crate::machine) fn new(rules: Rules) -> Self {
        Self {
            rules,
            published: None,
            last: None,
            held: false,
            ordered: None,
            left: BTreeMap::new(),
            named: BTreeMap::new(),
            last_word: BTreeMap::new(),
            announced: BTreeMap::new(),
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
            ended: BTreeMap::new(),
            stalled_at: None,
            doubted_at: None,
            processes: (None, None),
            asked_about: BTreeMap::new(),
            heard_at: None,
            last_step: None,
            majority: None,
        }
    }

    /// The electorate is known and does not change: votes are counted too.
    pub(in crate::machine) fn of_electorate(mut self, voters: usize) -> Self {
        self.majority = Some(voters / 2 + 1);
        self
    }

    /// One step: what went in, what came out, and what the machine says it has published after it.
    pub(in crate::machine) fn saw(
        &mut self,
        now: Instant,
        event: &Event,
        actions: &[Action],
        after: Option<&Committed>,
    ) {
        let gap = self.last_step.is_some_and(|last| now - last > self.rules.stall);
        let stalled = gap || *event == Event::Stalled;
        self.last_step = Some(now);
        if stalled || *event != Event::Tick {
            self.heard_at = Some(now);
        }
        if stalled {
            (self.stalled_at, self.doubted_at) = (Some(now), Some(now));
        }
        self.learn(now, event);
        assert!(actions.len() <= MOST_ACTIONS, "{} actions in one step", actions.len());
        for action in actions {
            match action {
                Action::Hold => {
                    assert!(self.published.is_some(), "held without a target");
                    assert!(!self.held, "held twice");
                    let ordered = self.ordered.is_some() || self.rules.minority == Minority::Hold;
                    let doubted = self.doubted_at.is_some();
                    let heard = self.heard_within(now, self.rules.view_expiry);
                    assert!(ordered || doubted || heard, "S5: held out of silence");
                    self.held = true;
                }
                Action::Release => {
                    assert!(self.held, "released without a hold");
                    assert!(self.published.is_some(), "released without a target");
                    self.released(now);
                    self.held = false;
                }
                Action::Commit(commit) => self.committed(now, commit),
                Action::Clear(lack) => self.cleared(now, *lack, event),
                Action::Probe(node) => {
                    let asked = self.asked.entry(node.clone()).or_default();
                    asked.push(now);
                    if let Some((at, again)) = self.ended.get_mut(node) {
                        *again |= *at == now;
                    }
                    if asked.len() > 256 {
                        asked.remove(0);
                    }
                }
                Action::Redirect(_) => {
                    assert!(self.published.is_some(), "redirected without a target")
                }
                Action::ReplyPolicy(_) => {
                    assert!(self.held, "replies are dropped or wait although the gate is open")
                }
                Action::Ask | Action::Note(_) => {}
            }
        }
        self.ordered = self.ordered.filter(|(until, _)| now < *until);
        assert!(
            self.held || self.ordered.is_none() || self.published.is_none(),
            "open against an order"
        );
        self.agrees_with(after);
    }

    /// What the machine shows and what it did must be the same.
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
                // There and back, or configured anew, to the same master: no commit, and their
                // clock counts from here.
                let named = self.named.get(&(addr.clone(), after.epoch));
                let voters: BTreeSet<&MyId> =
                    named.into_iter().flatten().map(|(by, _)| by).collect();
                assert!(voters.len() >= self.majority.unwrap_or(1), "an epoch that too few named");
                if after.epoch < *epoch {
                    self.left.clear();
                }
                *epoch = after.epoch;
            }
        }
    }

    fn learn(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Pause(pause) => self.ordered = Some((pause.until, pause.ends_with_commit)),
            Event::Resume => self.ordered = None,
            Event::View { from, view, asked_at, .. } => {
                let claim = (view.addr.clone(), view.epoch);
                if !view.is_empty_state() {
                    self.name(claim.clone(), from.clone(), now);
                    self.asked_about.insert((claim.clone(), from.clone()), *asked_at);
                }
                if let Some(Announced { peer, at, was, .. }) = self.announced.get(from).cloned() {
                    let rose = view.epoch > was;
                    if rose {
                        self.announced.remove(from);
                    }
                    if rose && now - at <= self.rules.view_expiry {
                        self.name(claim, peer, now);
                    }
                }
                self.last_word.insert(from.clone(), (view.addr.clone(), view.epoch));
                self.followed(now);
            }
            Event::Notice { from: Some(from), notice: Notice::Switched { to } } => {
                if let Some(announced) = self.announced.get_mut(from) {
                    announced.to = Some(to.clone());
                }
                self.followed(now);
            }
            Event::Probed { node, probe } => {
                let younger =
                    self.answers.get(node).is_none_or(|last| probe.asked_at >= last.asked_at);
                if younger && self.stalled_at.is_none_or(|at| probe.asked_at >= at) {
                    self.look_at_target(now, node, probe);
                    self.answers.insert(node.clone(), probe.clone());
                }
            }
            Event::CanaryLost { node } => drop(self.ended.insert(node.clone(), (now, false))),
            Event::Notice {
                from: Some(from),
                notice: Notice::ConfigUpdateFrom { peer, leaving },
            } => {
                if let Some((addr, was)) = self.last_word.get(from)
                    && addr == leaving
                {
                    let (peer, was) = (peer.clone(), *was);
                    self.announced.insert(from.clone(), Announced { peer, at: now, was, to: None });
                }
            }
            _ => {}
        }
    }

    /// What an answer of the last target says about whether it still is what was committed.
    fn look_at_target(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
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

    /// How many sentinels named the last target in answers to questions from after the last sign of
    /// a doubt.
    fn fresh_voters(&self) -> usize {
        let fresh = |at: &Instant| self.doubted_at.is_none_or(|doubted| *at >= doubted);
        // The epoch may be taken over, and the gate opened, in one step.
        let ours = |claim: &Claim| {
            self.last.as_ref().is_some_and(|(addr, epoch)| *addr == claim.0 && claim.1 >= *epoch)
        };
        self.asked_about.iter().filter(|((claim, _), at)| ours(claim) && fresh(at)).count()
    }

    /// The gate opens to the same target: after a stop of the process only on a sentinel's word
    /// from after it, or where nobody says anything for as long as a word is good.
    fn released(&self, now: Instant) {
        let Some(doubted_at) = self.doubted_at.filter(|at| Some(*at) == self.stalled_at) else {
            return;
        };
        let patient = now >= doubted_at + self.rules.view_expiry;
        assert!(patient || self.fresh_voters() >= 1, "released on the old master's own word");
        let policy = self.rules.minority == Minority::Keep;
        assert!(
            policy || self.fresh_voters() >= self.majority.unwrap_or(1).min(1),
            "released in a minority"
        );
    }

    /// Whoever announced a peer's hello, and then that it switched to where that peer's own word is
    /// by now, names what it names.
    fn followed(&mut self, now: Instant) {
        let of = |(id, it): (&MyId, &Announced)| {
            let word = self.last_word.get(&it.peer)?;
            let follows = it.to.as_ref() == Some(&word.0)
                && word.1 > it.was
                && now - it.at <= self.rules.view_expiry;
            follows.then(|| (id.clone(), word.clone()))
        };
        let followers: Vec<(MyId, Claim)> = self.announced.iter().filter_map(of).collect();
        followers.into_iter().for_each(|(id, claim)| self.name(claim, id, now));
    }

    /// Silence for longer than any opinion stands, and any verification lasts, can be the cause of
    /// nothing.
    fn heard_within(&self, now: Instant, long: Duration) -> bool {
        self.heard_at.is_some_and(|at| now <= at + long + Duration::from_millis(1))
    }

    fn name(&mut self, claim: Claim, by: MyId, at: Instant) {
        let named = self.named.entry(claim).or_default();
        named.push((by, at));
        if named.len() > 512 {
            named.remove(0);
        }
    }

    /// How many distinct sentinels had named `claim` by `at`, in the time in which a vote and a
    /// verification may stand.
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
                commit.epoch >= *epoch || commit.basis == Basis::Regress,
                "S3: the epoch fell from {epoch}: {commit:?}"
            );
        }
        if commit.basis == Basis::Regress {
            self.left.clear();
        }
        if let Some(left) = self.left.get(&commit.addr) {
            assert!(commit.epoch > *left, "zombie: {commit:?} was left at {left}");
        }
        if let Some((old, _)) = self.last.take().filter(|(old, _)| *old != commit.addr) {
            self.left.insert(old, commit.epoch);
        }
        self.published = Some(claim.clone());
        self.last = Some(claim);
        self.doubted_at = None;
        self.processes = (probe.outcome.ok().and_then(|it| it.lineage).map(|it| it.run_id), None);
        // Only an order that does not end with a commit, or the policy for a minority, keeps the
        // gate shut after it.
        let ordered = self.ordered.is_some_and(|(until, ends)| !ends && now < until);
        let policy = self.rules.minority == Minority::Hold;
        assert!(commit.held || !ordered, "open against an order: {commit:?}");
        assert!(!commit.held || ordered || policy, "shut without an order: {commit:?}");
        self.held = commit.held;
        self.ordered = self.ordered.filter(|(_, ends)| !ends);
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
        assert!(asked, "S4: never asked before {commit:?}");
        let at = probe.asked_at;
        let voters = self.voters_by(claim, at);
        match commit.basis {
            Basis::Again => {
                let last = self.last.as_ref().map(|(addr, epoch)| (addr, *epoch));
                assert_eq!(last, Some((&commit.addr, commit.epoch)), "again, but it never was");
                assert!(
                    self.fresh_voters() >= 1,
                    "again, without a vote from after the doubt: {commit:?}"
                );
            }
            Basis::Solo => {
                let early = at
                    .checked_sub(self.rules.solo_grace)
                    .expect("a clock that has run for a while");
                assert!(self.voters_by(claim, early) >= 1, "solo without its grace: {commit:?}");
            }
            Basis::BootstrapMinority => {
                assert!(voters >= 1, "nobody named {commit:?} before it was asked")
            }
            Basis::Majority | Basis::Regress => {
                let (needed, now_are) = (self.majority.unwrap_or(1), self.voters_by(claim, now));
                assert!(now_are >= needed, "S6: {now_are} of {needed} named {commit:?}");
                let ahead = commit.basis == Basis::Majority
                    && self.held
                    && self.is_ahead(now, commit, probe, voters);
                assert!(
                    voters >= needed || ahead,
                    "S4: {voters} of {needed} named {commit:?} before it was asked"
                );
            }
        }
    }

    /// Asked after the first word, answered a moment ago, behind a shut gate, and not a word
    /// against it since.
    fn is_ahead(&self, now: Instant, commit: &Commit, probe: &Probe, voters: usize) -> bool {
        let after =
            |(at, again): &(Instant, bool)| *at < probe.asked_at || *at == probe.asked_at && *again;
        let whole = self.ended.get(&commit.addr).is_none_or(after);
        voters >= 1 && whole && now - probe.asked_at <= AHEAD
    }

    fn cleared(&mut self, now: Instant, lack: Lack, event: &Event) {
        let Some((target, _)) = self.published.take() else { panic!("cleared without a target") };
        let long = self.rules.view_expiry + self.rules.verify_deadline;
        assert!(self.heard_within(now, long), "S5: cleared out of silence");
        match lack {
            Lack::Demoted => {
                let Event::Probed { node, probe } = event else {
                    panic!("demoted, but nobody said so")
                };
                assert_eq!(*node, target);
                assert!(matches!(probe.outcome, Ok(Report { role: Role::Replica { .. }, .. })));
            }
            Lack::Minority => assert_eq!(self.rules.minority, Minority::Cut),
            Lack::Unverified => {}
            Lack::Unreachable => panic!("an unreachable master is held, not cleared"),
        }
        self.held = false;
        self.doubted_at = Some(now);
    }
}

fn verifies(probe: &Probe, verify: Verify) -> bool {
    let Ok(report) = &probe.outcome else { return false };
    let replica = matches!(report.role, Role::Replica { .. });
    match verify {
        Verify::Role => report.role == Role::Master && report.pong,
        Verify::Ping => report.pong && !replica,
        Verify::Tcp => !replica,
    }
}
