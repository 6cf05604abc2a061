//! The real machine, and the only file that knows its events and actions.
//!
//! What `sentinel/src/discovery/service_runtime.rs` and `sentinel/src/discovery/mod.rs` do with sockets and tasks is done
//! here with simulated ones: an event goes in, the actions are carried out on this proxy's route,
//! and what matters to the invariants is noted beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sentinel::simulation::{Eligibility, Peer, Ruling, judge};
use sentinel::{
    Action, Basis, Commit, Event, Machine, Minority, MyId, NodeAddr, Note, Notice, Pause, Probe,
    ProbeFailure, ReplicaRules, Role, Rules, State, View,
};
use target::ReplyPolicy;

use crate::wire::{Addr, MS, Us};

/// Replicas are judged this often at most.
const JUDGE_EVERY: Us = 50 * MS;

/// Where this proxy's clients are sent.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) target: Option<Target>,
    pub(crate) shut: bool,
    /// Until when the route may be believed, on this proxy's monotonic clock.
    pub(crate) vouched_until: Us,
    pub(crate) generation: u64,
    /// What becomes of the target's replies while the gate is shut.
    pub(crate) replies: ReplyPolicy,
}

/// One generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) addr: Addr,
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    pub(crate) run_id: Option<Box<str>>,
}

/// What the machine wants of the rest of the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Want {
    /// Ask all sentinels.
    Ask,
    /// Ask this node; `true`: its answer is waited for.
    Probe(NodeAddr, bool),
}

/// What happened at the route, for the invariants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Happened {
    /// Clients may write again, or for the first time.
    Opened {
        to: Addr,
        how: String,
        /// Distinct sentinels that named this address in a view that was asked for after the gate
        /// shut.
        fresh: BTreeSet<MyId>,
        /// The gate was shut because the sentinels in reach were a minority.
        minority: bool,
        /// How long it was shut, if it was.
        shut_for: Option<Us>,
    },
    /// A rule of the machine's own was broken.
    Broken(String),
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Driver {
    base: Instant,
    machine: Machine,
    roster: Eligibility,
    pub(crate) ruling: Ruling,
    judge_at: Us,
    trust: Us,
    pub(crate) route: Route,
    shut_since: Option<Us>,
    minority_while_shut: bool,
    /// The process slept until then, in virtual time, and has not heard anybody since.
    pub(crate) unproven_since: Option<Us>,
    /// Who named what since the gate shut, with the time of the question.
    named: BTreeMap<MyId, (NodeAddr, Us)>,
    /// When each claim was first heard, and the last good answer of each node.
    claims: BTreeMap<(NodeAddr, u64), Us>,
    verified: BTreeMap<NodeAddr, Us>,
    /// Since when there is evidence that another node was, or is being, promoted.
    pub(crate) evidence: Option<Us>,
    pub(crate) counts: Counts,
    last_epoch: u64,
}

/// Totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) commits: u64,
    pub(crate) holds: u64,
    pub(crate) clears: u64,
}

fn micros(time: Duration) -> Us {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Driver {
    /// `expected`: how many sentinels the configuration names.
    pub(crate) fn new(now: Us, minority: Minority, expected: usize) -> Self {
        let base = Instant::now();
        let rules = Rules { minority, ..Rules::default() };
        let trust = micros(rules.stall.max(rules.poll * 2));
        Self {
            base,
            machine: Machine::new(base + Duration::from_micros(now), rules, expected),
            roster: Eligibility::new(ReplicaRules::default()),
            ruling: Ruling::default(),
            judge_at: 0,
            trust,
            route: Route {
                target: None,
                shut: false,
                vouched_until: Us::MAX,
                generation: 0,
                replies: ReplyPolicy::Pass,
            },
            shut_since: Some(now),
            minority_while_shut: false,
            unproven_since: None,
            named: BTreeMap::new(),
            claims: BTreeMap::new(),
            verified: BTreeMap::new(),
            evidence: None,
            counts: Counts::default(),
            last_epoch: 0,
        }
    }

    fn instant(&self, at: Us) -> Instant {
        self.base + Duration::from_micros(at)
    }

    pub(crate) fn next_deadline(&self) -> Us {
        micros(self.machine.next_deadline().saturating_duration_since(self.base))
    }

    pub(crate) fn state(&self) -> &'static str {
        self.machine.state().label()
    }

    /// How long ago the hold or the verification under way began.
    pub(crate) fn held_for(&self, now: Us) -> Us {
        let now = self.instant(now);
        match self.machine.state() {
            State::Armed { since, .. } => micros(now.saturating_duration_since(*since)),
            State::Committing { evidence_at, .. } => {
                micros(now.saturating_duration_since(*evidence_at))
            }
            _ => 0,
        }
    }

    /// The committed address, published or not.
    pub(crate) fn committed(&self) -> Option<(Addr, u64, Option<Box<str>>)> {
        let committed = self.machine.committed()?;
        let run_id = committed.lineage.as_ref().map(|it| it.run_id.clone());
        Some((Addr::of(&committed.addr)?, committed.epoch, run_id))
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.machine.pause().is_some()
    }

    pub(crate) fn is_minority(&self) -> bool {
        self.machine.is_minority()
    }

    pub(crate) fn electorate(&self) -> String {
        let (all, majority) = self.machine.quorum();
        format!("{majority} of {all}")
    }

    pub(crate) fn is_watched(&self, node: &NodeAddr) -> bool {
        self.machine.nodes().any(|(addr, _)| addr == node)
    }

    pub(crate) fn watched(&self) -> BTreeSet<NodeAddr> {
        self.machine.nodes().map(|(addr, _)| addr.clone()).collect()
    }

    /// Whether requests may go to the target now.
    pub(crate) fn is_closed(&self, now: Us) -> bool {
        self.route.shut || now > self.route.vouched_until
    }

    /// What becomes of replies of a session of this generation.
    pub(crate) fn replies(&self, generation: u64, now: Us) -> ReplyPolicy {
        if self.route.target.as_ref().is_none_or(|target| target.generation != generation) {
            return ReplyPolicy::Drop;
        }
        match (self.route.shut, now > self.route.vouched_until) {
            (true, _) if self.route.replies != ReplyPolicy::Pass => self.route.replies,
            (_, true) => ReplyPolicy::Wait,
            _ => ReplyPolicy::Pass,
        }
    }

    /// Everything that was due was looked at since `looked`. Whether the word had run out.
    pub(crate) fn renew(&mut self, looked: Us) {
        self.route.vouched_until = looked + self.trust;
    }

    // What happens, in the words of the simulation.

    pub(crate) fn tick(&mut self, now: Us) -> (Vec<Want>, Vec<Happened>) {
        self.step(now, Event::Tick)
    }

    pub(crate) fn hint(&mut self, now: Us) -> (Vec<Want>, Vec<Happened>) {
        self.step(now, Event::Hint)
    }

    pub(crate) fn canary_lost(&mut self, now: Us, node: NodeAddr) -> (Vec<Want>, Vec<Happened>) {
        self.step(now, Event::CanaryLost { node })
    }

    pub(crate) fn pause(&mut self, now: Us, span: Us) -> (Vec<Want>, Vec<Happened>) {
        let (since, until) = (self.instant(now), self.instant(now + span));
        self.step(now, Event::Pause(Pause { since, until, ends_with_commit: true }))
    }

    pub(crate) fn resume(&mut self, now: Us) -> (Vec<Want>, Vec<Happened>) {
        self.step(now, Event::Resume)
    }

    pub(crate) fn stalled(&mut self, now: Us) -> (Vec<Want>, Vec<Happened>) {
        self.step(now, Event::Stalled)
    }

    /// The configured names lead to this many addresses now.
    pub(crate) fn expect(&mut self, now: Us, sentinels: usize) -> (Vec<Want>, Vec<Happened>) {
        self.step(now, Event::Expected(sentinels))
    }

    /// `configured`: the link was dialled for a configured name.
    pub(crate) fn view(
        &mut self,
        (now, asked): (Us, Us),
        from: &MyId,
        (view, _peers): (&View, &[Peer]),
        configured: bool,
    ) -> (Vec<Want>, Vec<Happened>) {
        if self.shut_since.is_some_and(|since| asked >= since) {
            self.named.insert(from.clone(), (view.addr.clone(), asked));
        }
        self.unproven_since = None;
        self.claims.entry((view.addr.clone(), view.epoch)).or_insert(now);
        let asked_at = self.instant(asked);
        self.step(now, Event::View { from: from.clone(), view: view.clone(), asked_at, configured })
    }

    pub(crate) fn notice(
        &mut self,
        now: Us,
        from: Option<MyId>,
        notice: Notice,
    ) -> (Vec<Want>, Vec<Happened>) {
        let known = from.as_ref().is_some_and(|from| self.machine.is_member(from));
        match &notice {
            Notice::CandidateSelected { candidate }
            | Notice::PromotionOrdered { candidate }
            | Notice::Promoted { candidate }
                if known =>
            {
                self.note_evidence(now, candidate);
            }
            Notice::Aborted => self.evidence = None,
            _ => {}
        }
        self.step(now, Event::Notice { from, notice })
    }

    fn note_evidence(&mut self, now: Us, candidate: &NodeAddr) {
        if self.machine.committed().is_some_and(|it| it.addr != *candidate) {
            self.evidence.get_or_insert(now);
        }
    }

    pub(crate) fn probed(
        &mut self,
        now: Us,
        node: &NodeAddr,
        asked: Us,
        outcome: Result<sentinel::Report, ProbeFailure>,
    ) -> (Vec<Want>, Vec<Happened>) {
        let is_master =
            outcome.as_ref().is_ok_and(|report| report.role == Role::Master && report.pong);
        if is_master {
            self.verified.insert(node.clone(), asked);
        }
        let probe = Probe { asked_at: self.instant(asked), outcome };
        let done = self.step(now, Event::Probed { node: node.clone(), probe });
        if is_master
            && matches!(self.machine.state(), State::Armed { candidate: Some(it), .. } if it == node)
        {
            self.note_evidence(now, node);
        }
        done
    }

    fn step(&mut self, now: Us, event: Event) -> (Vec<Want>, Vec<Happened>) {
        let (mut wants, mut happened) = (Vec::new(), Vec::new());
        let before = self.machine.state().label();
        let actions = self.machine.step(self.instant(now), event);
        for action in actions {
            self.carry_out((now, before), action, &mut wants, &mut happened);
        }
        if let Some(broken) = self.machine.broken_invariant() {
            happened.push(Happened::Broken(broken.to_owned()));
        }
        if self.route.shut && self.machine.is_minority() {
            self.minority_while_shut = true;
        }
        // As often as the pool would be looked at while nothing happens.
        if now >= self.judge_at {
            self.judge_at = now + JUDGE_EVERY;
            self.ruling =
                judge(&mut self.roster, self.base + Duration::from_micros(now), &self.machine);
        }
        (wants, happened)
    }

    fn carry_out(
        &mut self,
        (now, before): (Us, &str),
        action: Action,
        wants: &mut Vec<Want>,
        happened: &mut Vec<Happened>,
    ) {
        match action {
            Action::Ask => wants.push(Want::Ask),
            Action::Probe(node) => {
                let sure = self.machine.is_sure(&node);
                wants.push(Want::Probe(node, sure));
            }
            Action::Hold => {
                self.counts.holds += 1;
                self.shut(now);
                (self.route.shut, self.route.replies) = (true, ReplyPolicy::Pass);
            }
            Action::ReplyPolicy(replies) => self.route.replies = replies,
            Action::Redirect(dialled) => {
                if let Some(target) = &mut self.route.target {
                    target.addr = Addr::of(&NodeAddr::from(dialled)).unwrap_or(target.addr);
                }
            }
            Action::Release => {
                self.route.shut = false;
                self.evidence = None;
                let target = self.route.target.as_ref().map(|it| it.addr);
                target.into_iter().for_each(|to| {
                    happened.push(self.opened(now, to, format!("released from {before}")))
                });
            }
            Action::Commit(commit) => self.commit(now, commit, happened),
            Action::Clear(_) => {
                self.counts.clears += 1;
                self.shut(now);
                (self.route.target, self.route.shut) = (None, false);
            }
            Action::Note(Note::Stalled) => self.roster.wake(self.instant(now)),
            Action::Note(_) => {}
        }
    }

    fn shut(&mut self, now: Us) {
        if self.shut_since.is_none() {
            self.shut_since = Some(now);
            self.named.clear();
            self.minority_while_shut = self.machine.is_minority();
        }
    }

    /// The process was stopped: the gate counts as shut since then.
    pub(crate) fn slept(&mut self, now: Us, virtual_now: Us) {
        self.unproven_since = Some(virtual_now);
        self.shut_since = None;
        self.shut(now);
        self.claims.clear();
        self.verified.clear();
    }

    fn opened(&mut self, now: Us, to: Addr, how: String) -> Happened {
        let shut_for = self.shut_since.take().map(|since| now.saturating_sub(since));
        let named = self.named.iter().filter(|(_, (addr, _))| Addr::of(addr) == Some(to));
        let fresh = named.map(|(id, _)| id.clone()).collect();
        self.named.clear();
        let minority = std::mem::take(&mut self.minority_while_shut);
        Happened::Opened { to, how, fresh, minority, shut_for }
    }

    fn commit(&mut self, now: Us, commit: Commit, happened: &mut Vec<Happened>) {
        self.counts.commits += 1;
        self.check_commit(&commit, happened);
        let Some(addr) = Addr::of(&commit.addr) else { return };
        self.route.generation += 1;
        let (generation, epoch, run_id) = (self.route.generation, commit.epoch, commit.run_id);
        self.route.target = Some(Target { addr, generation, epoch, run_id });
        self.route.shut = commit.held;
        self.evidence = None;
        if commit.held {
            self.shut(now);
        } else {
            happened.push(self.opened(
                now,
                addr,
                format!("committed at epoch {epoch} ({:?})", commit.basis),
            ));
        }
        self.claims.clear();
    }

    /// S3 and S4, as far as they show from outside.
    fn check_commit(&mut self, commit: &Commit, happened: &mut Vec<Happened>) {
        // The epoch of the same master is taken over from a majority before it is used again.
        let may_fall = commit.basis == Basis::Regress || commit.basis == Basis::Again;
        if commit.epoch < self.last_epoch && !may_fall {
            happened.push(Happened::Broken(format!(
                "S3: epoch {} after {}",
                commit.epoch, self.last_epoch
            )));
        }
        self.last_epoch = commit.epoch;
        let claimed = self.claims.get(&(commit.addr.clone(), commit.epoch)).copied();
        let verified = self.verified.get(&commit.addr).copied();
        if verified.is_none() || (commit.basis != Basis::Again && claimed > verified) {
            happened.push(Happened::Broken(format!(
                "S4: {} was not verified after its evidence",
                commit.addr
            )));
        }
    }

    /// The epoch may fall without a move, where sentinels were configured anew.
    pub(crate) fn epoch_now(&mut self) -> Option<u64> {
        let epoch = self.machine.committed().map(|it| it.epoch);
        self.last_epoch = epoch.unwrap_or(self.last_epoch);
        epoch
    }
}
