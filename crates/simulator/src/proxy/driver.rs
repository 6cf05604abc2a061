//! Drives the real machine; the only file that knows its events and actions.
//!
//! It models what `sentinel/src/discovery/service_runtime.rs` and `sentinel/src/discovery/mod.rs`
//! do with sockets and tasks: an event goes in, the actions are applied to this proxy's target, and
//! what matters to the oracle is recorded.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sentinel::simulation::{AbsenceLimit, Eligibility, Peer, PoolUpdate, evaluate};
use sentinel::{
    Basis, Commit, FollowOrder, Machine, MachineAction, MachineEvent, MachineRules, MachineState,
    MyId, NodeAddr, Notice, OverrideEnd, OverrideNews, Pause, Probe, ProbeFailure, ReplicaRules,
    Role, Trust, View, Warning,
};
use target::ReplyPolicy;

use crate::net::RouteEvent;
use crate::proxy::ProxyConfig;
use crate::wire::{Addr, MS, Micros};

/// Minimum interval of evaluating eligibility.
const EVALUATION_INTERVAL: Micros = 50 * MS;

/// About the interval between two polls.
const ANSWERED: Micros = 1200 * MS;

/// The published target of this proxy.
#[derive(Debug, Clone)]
pub(crate) struct TargetState {
    pub(crate) target: Option<ProxyTarget>,
    pub(crate) shut: bool,
    /// The lease: how long the target may be trusted, on this proxy's monotonic clock.
    pub(crate) trusted_until: Micros,
    pub(crate) generation: u64,
    /// The policy for the target's replies while the gate is closed.
    pub(crate) replies: ReplyPolicy,
}

/// The target of one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyTarget {
    pub(crate) addr: Addr,
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    pub(crate) run_id: Option<Box<str>>,
}

/// A request of the machine to the rest of the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// Poll all sentinels.
    PollSentinels,
    /// Probe this node; whether a decision waits for the answer, and whether it may get the
    /// password.
    Probe(NodeAddr, bool, bool),
}

/// The driver. See the module's header.
#[derive(Debug)]
pub(crate) struct MachineDriver {
    base: Instant,
    pub(super) machine: Machine,
    eligibility: Eligibility,
    pub(crate) pool_update: PoolUpdate,
    /// The sentinels' number of connections, until the machine was given it.
    connections: Option<u32>,
    evaluate_at: Micros,
    /// The lease, and the absence that is a stall.
    absence_limit: AbsenceLimit,
    pub(crate) route: TargetState,
    shut_since: Option<Micros>,
    minority_while_shut: bool,
    /// The process was stopped until then, in virtual time, and has received no view since.
    pub(crate) unproven_since: Option<Micros>,
    /// When the last view of each sentinel was received.
    heard: BTreeMap<MyId, Micros>,
    /// Which address each sentinel named since the gate closed, with the time of the poll.
    named: BTreeMap<MyId, (NodeAddr, Micros)>,
    /// When each claim was first received, and the last good answer of each node.
    claims: BTreeMap<(NodeAddr, u64), Micros>,
    verified: BTreeMap<NodeAddr, Micros>,
    /// Since when there is evidence that another node was, or is being, promoted.
    pub(crate) evidence: Option<Micros>,
    /// Since when a candidate is known to be selected, which precedes its promotion.
    pub(crate) selected: Option<Micros>,
    pub(crate) counts: Counts,
    last_epoch: u64,
    /// The last order: its node, when it was given, and its number.
    order: Option<(NodeAddr, Micros, u64)>,
    /// The target is used by an operator's order, until sentinels name it or another one.
    pub(crate) ordered: bool,
}

/// Totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) commits: u64,
    pub(crate) holds: u64,
    pub(crate) clears: u64,
}

fn micros(time: Duration) -> Micros {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl MachineDriver {
    pub(crate) fn new(now: Micros, config: &ProxyConfig) -> Self {
        let ProxyConfig { minority, names: expected, connections, .. } = *config;
        let base = Instant::now();
        let rules = MachineRules { minority, ..MachineRules::default() };
        let absence_limit = AbsenceLimit::new(rules.absence, rules.stall);
        Self {
            base,
            machine: Machine::new(base + Duration::from_micros(now), rules, expected),
            eligibility: Eligibility::new(ReplicaRules::default()),
            pool_update: PoolUpdate::default(),
            connections: Some(connections),
            evaluate_at: 0,
            absence_limit,
            route: TargetState {
                target: None,
                shut: false,
                trusted_until: Micros::MAX,
                generation: 0,
                replies: ReplyPolicy::Pass,
            },
            shut_since: Some(now),
            minority_while_shut: false,
            unproven_since: None,
            heard: BTreeMap::new(),
            named: BTreeMap::new(),
            claims: BTreeMap::new(),
            verified: BTreeMap::new(),
            evidence: None,
            selected: None,
            counts: Counts::default(),
            last_epoch: 0,
            order: None,
            ordered: false,
        }
    }

    fn instant(&self, at: Micros) -> Instant {
        self.base + Duration::from_micros(at)
    }

    pub(crate) fn next_deadline(&self) -> Micros {
        micros(self.machine.next_deadline().saturating_duration_since(self.base))
    }

    pub(crate) fn state(&self) -> &'static str {
        self.machine.state().label()
    }

    /// How long ago the current hold or verification began.
    pub(crate) fn held_for(&self, now: Micros) -> Micros {
        let now = self.instant(now);
        match self.machine.state() {
            MachineState::Armed { since, .. } => micros(now.saturating_duration_since(*since)),
            MachineState::Committing { evidence_at, .. } => {
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

    /// The replicas with which a switchover may begin, by the rules of
    /// `sentinel/src/switchover/participants.rs`; `None` if it is refused. `is_up`: the link to
    /// this sentinel is up.
    pub(crate) fn switchover_replicas(&self, is_up: impl Fn(&MyId) -> bool) -> Option<Vec<Addr>> {
        let committed = self.machine.committed()?;
        let views = || self.machine.views().filter(|(_, member, ..)| *member);
        let agrees = |id: &MyId, view: &View| {
            is_up(id) && view.addr == committed.addr && view.epoch == committed.epoch
        };
        let agree = views().filter(|(id, _, view, _)| agrees(id, view)).count();
        if agree < self.machine.quorum().1 {
            return None;
        }
        let mut replicas = Vec::new();
        for (node, probe) in self.machine.nodes().filter(|(node, _)| **node != committed.addr) {
            let report = probe.and_then(|probe| probe.outcome.as_ref().ok());
            let promotable = |view: &View| {
                view.replicas.iter().any(|replica| replica.healthy && replica.addr == *node)
            };
            match report.map(|report| &report.role) {
                Some(Role::Replica { master, .. })
                    if *master == committed.addr && self.may_send_password(node) =>
                {
                    replicas.extend(Addr::of(node));
                }
                _ if views().any(|(_, _, view, _)| promotable(view)) => return None,
                _ => {}
            }
        }
        (!replicas.is_empty()).then_some(replicas)
    }

    /// Whether a connection to the node may carry the password: a hostile one asks for it.
    fn may_send_password(&self, node: &NodeAddr) -> bool {
        self.machine.trust(node) != Trust::Stranger
    }

    /// Whether the node answered the last probe.
    #[cfg(test)]
    pub(crate) fn answers_probes(&self, node: &NodeAddr) -> bool {
        let mut nodes = self.machine.nodes().filter(|(addr, _)| *addr == node);
        nodes.any(|(_, probe)| probe.is_some_and(|probe| probe.outcome.is_ok()))
    }

    /// Whether the gate is closed or the lease has expired.
    pub(crate) fn is_closed(&self, now: Micros) -> bool {
        self.route.shut || now > self.route.trusted_until
    }

    /// The policy for replies of a session of this generation.
    pub(crate) fn replies(&self, generation: u64, now: Micros) -> ReplyPolicy {
        if self.route.target.as_ref().is_none_or(|target| target.generation != generation) {
            return ReplyPolicy::Drop;
        }
        match (self.route.shut, now > self.route.trusted_until) {
            (true, _) if self.route.replies != ReplyPolicy::Pass => self.route.replies,
            (_, true) => ReplyPolicy::Wait,
            _ => ReplyPolicy::Pass,
        }
    }

    /// Whether a majority of the sentinels answered shortly before `at`.
    pub(crate) fn was_answered(&self, at: Micros) -> bool {
        let recent = |it: &&Micros| **it + ANSWERED >= at;
        self.heard.values().filter(recent).count() >= self.machine.quorum().1
    }

    /// Renews the lease: everything that was due at `looked` has been processed.
    pub(crate) fn renew(&mut self, looked: Micros) {
        self.route.trusted_until = looked + micros(self.absence_limit.current());
    }

    /// The process was stopped for this long. The lease is over by either clock, and the wall clock
    /// advances while a host is suspended.
    pub(crate) fn expire_lease(&mut self, now: Micros, away: Micros) {
        if away > micros(self.absence_limit.current()) {
            self.route.trusted_until = self.route.trusted_until.min(now.saturating_sub(1));
        }
    }

    // Events of the machine, in the types of the simulation.

    pub(crate) fn tick(&mut self, now: Micros) -> (Vec<Request>, Vec<RouteEvent>) {
        self.step(now, MachineEvent::Tick)
    }

    pub(crate) fn hint(&mut self, now: Micros) -> (Vec<Request>, Vec<RouteEvent>) {
        self.step(now, MachineEvent::Hint)
    }

    pub(crate) fn probe_connection_lost(
        &mut self,
        now: Micros,
        node: NodeAddr,
    ) -> (Vec<Request>, Vec<RouteEvent>) {
        self.step(now, MachineEvent::ProbeConnectionLost { node })
    }

    pub(crate) fn pause(&mut self, now: Micros, span: Micros) -> (Vec<Request>, Vec<RouteEvent>) {
        let (since, until) = (self.instant(now), self.instant(now + span));
        self.step(now, MachineEvent::Pause(Pause { since, until, ends_with_commit: true }))
    }

    pub(crate) fn resume(&mut self, now: Micros) -> (Vec<Request>, Vec<RouteEvent>) {
        self.step(now, MachineEvent::Resume)
    }

    pub(crate) fn follow(
        &mut self,
        now: Micros,
        addr: NodeAddr,
        lasts: Micros,
        force: bool,
    ) -> (Vec<Request>, Vec<RouteEvent>) {
        let id = self.order.as_ref().map_or(0, |(.., id)| id + 1);
        self.order = Some((addr.clone(), now, id));
        let lasts = Duration::from_micros(lasts);
        self.step(now, MachineEvent::Follow(FollowOrder { id, addr, lasts, force }))
    }

    /// Whether an override is in force.
    pub(crate) fn is_overridden(&self) -> bool {
        self.machine.override_in_force().is_some()
    }

    /// The process was stopped for this long, by the clock that a suspend does not stop, which
    /// shows `real_now` by now.
    pub(crate) fn absent(
        &mut self,
        (now, real_now): (Micros, Micros),
        away: Micros,
    ) -> (Vec<Request>, Vec<RouteEvent>) {
        let away = Duration::from_micros(away);
        let base = self.base + Duration::from_micros(real_now);
        let stall = self.machine.rules().stall;
        if !self.absence_limit.is_exceeded(base, away)
            || (away <= stall && self.machine.is_open_without_majority())
        {
            return (Vec::new(), Vec::new());
        }
        self.step(now, MachineEvent::Stalled)
    }

    /// The configured names resolve to this many addresses now.
    pub(crate) fn expect(
        &mut self,
        now: Micros,
        sentinels: usize,
    ) -> (Vec<Request>, Vec<RouteEvent>) {
        self.step(now, MachineEvent::ExpectedSentinels(sentinels))
    }

    /// `configured`: the link belongs to a configured name.
    pub(crate) fn view(
        &mut self,
        (now, asked): (Micros, Micros),
        from: &MyId,
        (view, _peers): (&View, &[Peer]),
        configured: bool,
    ) -> (Vec<Request>, Vec<RouteEvent>) {
        if self.shut_since.is_some_and(|since| asked >= since) {
            self.named.insert(from.clone(), (view.addr.clone(), asked));
        }
        self.unproven_since = None;
        self.heard.insert(from.clone(), now);
        self.claims.entry((view.addr.clone(), view.epoch)).or_insert(now);
        let asked_at = self.instant(asked);
        self.step(
            now,
            MachineEvent::View { from: from.clone(), view: view.clone(), asked_at, configured },
        )
    }

    pub(crate) fn sentinel_lost(
        &mut self,
        now: Micros,
        id: MyId,
    ) -> (Vec<Request>, Vec<RouteEvent>) {
        self.step(now, MachineEvent::SentinelLost { id })
    }

    pub(crate) fn notice(
        &mut self,
        now: Micros,
        from: Option<MyId>,
        notice: Notice,
    ) -> (Vec<Request>, Vec<RouteEvent>) {
        let known = from.as_ref().is_some_and(|from| self.machine.is_member(from));
        match &notice {
            Notice::CandidateSelected { candidate } if known && self.is_other(candidate) => {
                self.selected.get_or_insert(now);
            }
            Notice::PromotionOrdered { candidate } | Notice::Promoted { candidate } if known => {
                self.note_evidence(now, candidate);
            }
            Notice::Aborted => (self.evidence, self.selected) = (None, None),
            _ => {}
        }
        self.step(now, MachineEvent::Notice { from, notice })
    }

    fn is_other(&self, candidate: &NodeAddr) -> bool {
        self.machine.committed().is_some_and(|it| it.addr != *candidate)
    }

    fn note_evidence(&mut self, now: Micros, candidate: &NodeAddr) {
        if self.is_other(candidate) {
            self.evidence.get_or_insert(now);
        }
    }

    pub(crate) fn probed(
        &mut self,
        now: Micros,
        node: &NodeAddr,
        asked: Micros,
        outcome: Result<sentinel::NodeReport, ProbeFailure>,
    ) -> (Vec<Request>, Vec<RouteEvent>) {
        let is_master = outcome
            .as_ref()
            .is_ok_and(|report| report.role == Role::Master && report.ping.is_ready());
        if is_master {
            self.verified.insert(node.clone(), asked);
        }
        let probe = Probe { asked_at: self.instant(asked), outcome };
        let done = self.step(now, MachineEvent::Probed { node: node.clone(), probe });
        let is_candidate = matches!(
            self.machine.state(),
            MachineState::Armed { candidate: Some(it), .. } if it == node
        );
        if is_master && is_candidate {
            self.note_evidence(now, node);
        }
        done
    }

    fn step(&mut self, now: Micros, event: MachineEvent) -> (Vec<Request>, Vec<RouteEvent>) {
        let (mut requests, mut route_events) = (Vec::new(), Vec::new());
        let before = self.machine.state().label();
        let at = self.instant(now);
        let mut actions = Vec::new();
        if let Some(connections) = self.connections.take() {
            actions = self.machine.step(at, MachineEvent::SentinelConnections(connections));
        }
        actions.extend(self.machine.step(at, event));
        for action in actions {
            self.carry_out((now, before), action, &mut requests, &mut route_events);
        }
        if let Some(broken) = self.machine.broken_invariant() {
            route_events.push(RouteEvent::InvariantBroken(broken.to_owned()));
        }
        if self.route.shut && self.machine.is_minority() {
            self.minority_while_shut = true;
        }
        // As often as the pool is evaluated while nothing happens.
        if now >= self.evaluate_at {
            self.evaluate_at = now + EVALUATION_INTERVAL;
            self.pool_update = evaluate(
                &mut self.eligibility,
                self.base + Duration::from_micros(now),
                &self.machine,
            );
        }
        (requests, route_events)
    }

    fn carry_out(
        &mut self,
        (now, before): (Micros, &str),
        action: MachineAction,
        requests: &mut Vec<Request>,
        route_events: &mut Vec<RouteEvent>,
    ) {
        match action {
            MachineAction::Ask => requests.push(Request::PollSentinels),
            MachineAction::Probe(node) => {
                let urgent = self.machine.is_corroborated(&node);
                let password = self.may_send_password(&node);
                requests.push(Request::Probe(node, urgent, password));
            }
            MachineAction::Hold => {
                self.counts.holds += 1;
                self.shut(now);
                (self.route.shut, self.route.replies) = (true, ReplyPolicy::Pass);
            }
            MachineAction::ReplyPolicy(replies) => self.route.replies = replies,
            MachineAction::Redirect(_, dialled) => {
                if let Some(target) = &mut self.route.target {
                    target.addr = Addr::of(&NodeAddr::from(dialled)).unwrap_or(target.addr);
                }
            }
            MachineAction::Release => {
                self.route.shut = false;
                self.evidence = None;
                self.selected = None;
                let target = self.route.target.as_ref().map(|it| it.addr);
                target.into_iter().for_each(|to| {
                    route_events.push(self.opened(now, to, format!("released from {before}")));
                });
            }
            MachineAction::Commit(commit) => self.commit(now, commit, route_events),
            MachineAction::Clear(_) => {
                self.counts.clears += 1;
                self.shut(now);
                (self.route.target, self.route.shut) = (None, false);
            }
            MachineAction::Override(OverrideNews::Answered(_, Ok(_))) => {
                // The operator's word replaces that of the sentinels.
                (self.ordered, self.unproven_since, self.evidence) = (true, None, None);
                let to = self.route.target.as_ref().map(|it| it.addr);
                route_events.extend(to.map(|to| RouteEvent::Ordered { to }));
            }
            MachineAction::Override(OverrideNews::Ended(_, end)) => {
                self.ordered &= end != OverrideEnd::Confirmed;
            }
            MachineAction::Override(OverrideNews::Answered(_, Err(_))) => {}
            MachineAction::Warning(Warning::Stalled) => {
                self.eligibility.on_resume(self.instant(now));
            }
            MachineAction::Warning(_) => {}
        }
    }

    fn shut(&mut self, now: Micros) {
        if self.shut_since.is_none() {
            self.shut_since = Some(now);
            self.named.clear();
            self.minority_while_shut = self.machine.is_minority();
        }
    }

    /// The process was stopped: the gate counts as closed since then.
    pub(crate) fn resumed(&mut self, now: Micros, virtual_now: Micros) {
        self.unproven_since = Some(virtual_now);
        self.shut_since = None;
        self.shut(now);
        self.claims.clear();
        self.verified.clear();
    }

    fn opened(&mut self, now: Micros, to: Addr, how: String) -> RouteEvent {
        let shut_for = self.shut_since.take().map(|since| now.saturating_sub(since));
        let named = self.named.iter().filter(|(_, (addr, _))| Addr::of(addr) == Some(to));
        let fresh = named.map(|(id, _)| id.clone()).collect();
        self.named.clear();
        let minority = std::mem::take(&mut self.minority_while_shut);
        RouteEvent::Opened { to, how, fresh, minority, shut_for }
    }

    fn commit(&mut self, now: Micros, commit: Commit, route_events: &mut Vec<RouteEvent>) {
        self.counts.commits += 1;
        self.ordered = commit.basis == Basis::Operator;
        self.check_commit(&commit, route_events);
        let Some(addr) = Addr::of(&commit.addr) else { return };
        self.route.generation += 1;
        let (generation, epoch, run_id) = (self.route.generation, commit.epoch, commit.run_id);
        self.route.target = Some(ProxyTarget { addr, generation, epoch, run_id });
        self.route.shut = commit.held;
        self.evidence = None;
        self.selected = None;
        if commit.held {
            self.shut(now);
        } else {
            route_events.push(self.opened(
                now,
                addr,
                format!("committed at epoch {epoch} ({:?})", commit.basis),
            ));
        }
        self.claims.clear();
    }

    /// Checks S3 and S4, as far as they are visible from outside.
    fn check_commit(&mut self, commit: &Commit, route_events: &mut Vec<RouteEvent>) {
        // The epoch of the same master is taken over from a majority before it is used again.
        let may_fall = commit.basis == Basis::EpochRegression || commit.basis == Basis::Reconfirmed;
        if commit.epoch < self.last_epoch && !may_fall {
            route_events.push(RouteEvent::InvariantBroken(format!(
                "S3: epoch {} after {}",
                commit.epoch, self.last_epoch
            )));
        }
        self.last_epoch = commit.epoch;
        let claimed = self.claims.get(&(commit.addr.clone(), commit.epoch)).copied();
        let verified = self.verified.get(&commit.addr).copied();
        let claimed = match (&self.order, commit.basis) {
            (Some((node, at, _)), Basis::Operator) if *node == commit.addr => Some(*at),
            _ => claimed,
        };
        if verified.is_none() || (commit.basis != Basis::Reconfirmed && claimed > verified) {
            route_events.push(RouteEvent::InvariantBroken(format!(
                "S4: {} was not verified after its evidence",
                commit.addr
            )));
        }
    }

    /// The epoch may fall without a master change if sentinels were configured anew.
    pub(crate) fn epoch_now(&mut self) -> Option<u64> {
        let epoch = self.machine.committed().map(|it| it.epoch);
        self.last_epoch = epoch.unwrap_or(self.last_epoch);
        epoch
    }
}
