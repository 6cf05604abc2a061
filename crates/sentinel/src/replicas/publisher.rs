//! Publishes the set of replicas that may serve reads. `Eligibility` decides which replicas
//! qualify; this module applies its decisions to the `Pool`.
//!
//! The service runtime calls it after every machine step and several times per second. It sends no
//! queries: the probers that feed the machine also feed eligibility.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use target::{ClockReading, Destination, EmptyPool, Generation, PoolWriter, ReplicaStatus, Target};
use tracing::{debug, info, warn};

use crate::rate_limiter::RateLimiter;
use crate::replicas::eligibility::{
    CurrentMaster, Eligibility, EligibilityInputs, Lag, PoolMember, PoolUpdate, ReplicaState,
    RepointPause, listed,
};
use crate::{
    Machine, MachineEvent, MachineState, NoMasterReason, NodeAddr, Notice, ReplicaRules, View,
};

/// Minimum time between probes that sessions' hints cause.
const HINT_INTERVAL: Duration = Duration::from_millis(100);

/// The configuration of a service with readers.
#[derive(Debug)]
pub struct Replicas {
    /// Rules for eligible replicas.
    pub rules: ReplicaRules,
    /// The writer of the pool.
    pub writer: PoolWriter,
}

/// The replicas for readers.
#[derive(Debug, Clone)]
pub struct ReplicaPoolSnapshot {
    /// The number of replicas that serve readers; `None` until known.
    pub eligible: Option<usize>,
    /// The master serves readers while no replica is eligible.
    pub master_serves_reads: bool,
    /// Every replica that is listed, or was a moment ago.
    pub replicas: Vec<ReplicaSnapshot>,
    /// How often a replica was ejected.
    pub ejections: u64,
    /// How often an ejected replica was readmitted.
    pub readmissions: u64,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSnapshot {
    /// The announced address.
    pub addr: NodeAddr,
    /// Whether it serves readers, and otherwise why not.
    pub state: ReplicaState,
    /// Its lag at its last answer.
    pub lag: Lag,
    /// Its current sessions.
    pub sessions: usize,
    /// Connections of sessions to it that failed, as long as it has been a target.
    pub failed_connects: usize,
}

/// The replica publisher. See the module's header.
pub(crate) struct ReplicaPublisher {
    eligibility: Eligibility,
    writer: PoolWriter,
    /// The last published set, with the generation of the master that may substitute for it.
    published: Option<(Vec<PoolMember>, Option<Generation>)>,
    ejections: u64,
    readmissions: u64,
    /// A session noticed something, and the replicas have not been probed since.
    hinted: bool,
    hint_after: Option<Instant>,
    /// A sentinel has announced that replicas are about to be reconfigured.
    announced: bool,
    pause: RepointPause,
    /// Limits the log lines about replicas.
    log_limiter: RateLimiter,
}

impl ReplicaPublisher {
    pub(crate) fn new(replicas: Replicas) -> Self {
        Self {
            eligibility: Eligibility::new(replicas.rules),
            writer: replicas.writer,
            published: None,
            ejections: 0,
            readmissions: 0,
            hinted: false,
            hint_after: None,
            announced: false,
            pause: RepointPause::default(),
            log_limiter: RateLimiter::new(20, Duration::from_secs(5)),
        }
    }

    /// Applies these rules from the next update on.
    pub(crate) fn set_rules(&mut self, rules: ReplicaRules, when_empty: EmptyPool) {
        self.eligibility.rules = rules;
        self.writer.set_when_empty(when_empty);
    }

    /// Fences this address as a replica. Must be called before the target changes to it.
    pub(crate) fn fence(&mut self, dialled: SocketAddr) {
        self.writer.fence(dialled);
    }

    /// The process was stopped: the published set is not trusted until the replicas have been
    /// probed again.
    pub(crate) fn on_resume(&mut self, now: Instant) {
        self.eligibility.on_resume(now);
    }

    /// Renews the lease of the published set, unless the set is in doubt.
    pub(crate) fn renew(&mut self, looked: ClockReading, span: Duration) {
        if self.eligibility.is_current() {
            self.writer.renew(looked, span);
        }
    }

    /// A session noticed something.
    pub(crate) fn hint(&mut self) {
        self.hinted = true;
    }

    /// Records an announcement of a sentinel; called before the machine processes the event.
    pub(crate) fn on_event(&mut self, event: &MachineEvent) {
        if let MachineEvent::Notice {
            from: Some(_),
            notice: Notice::Promoted { .. } | Notice::ReplicaDone,
        } = event
        {
            self.announced = true;
        }
    }

    /// When an update is due for the replicas' sake: a delayed hint, or the end of a pause.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let hint = self.hint_after.filter(|_| self.hinted);
        hint.into_iter().chain(self.pause.deadline()).min()
    }

    /// The members to probe again because of a hint. A hint shortly after another one is delayed
    /// and not dropped: the answer to an earlier probe would not say what the session needs to
    /// know.
    pub(crate) fn take_hint(&mut self, now: Instant) -> Vec<NodeAddr> {
        if !self.hinted || self.hint_after.is_some_and(|at| now < at) {
            return Vec::new();
        }
        (self.hinted, self.hint_after) = (false, Some(now + HINT_INTERVAL));
        let members = self.published.iter().flat_map(|(members, _)| members);
        members.map(|member| member.addr.clone()).collect()
    }

    /// Brings the pool in line with the machine's state.
    pub(crate) fn update(&mut self, now: Instant, service: &str, machine: &Machine) {
        let update = evaluate(&mut self.eligibility, now, machine);
        let failing_over = is_failing_over(machine);
        let members = update.members.as_ref().is_none_or(|members| !members.is_empty());
        // If neither a replica nor the master can serve readers, sessions that leave early would be
        // turned away, and the promotion may yet be aborted.
        let others = members || self.writer.pool().when_empty() == EmptyPool::Master;
        // Published before sessions are asked to leave, since they read from it how urgent that is.
        self.publish_health(now, failing_over, others);
        for dialled in &update.fenced {
            self.writer.fence(*dialled);
        }
        if let Some(members) = update.members {
            let master = self.writer.master().map(|target| target.generation());
            let next = (members, master);
            if self.published.as_ref() != Some(&next) {
                self.publish(now, service, next);
                self.publish_health(now, failing_over, others);
            }
        }
        for (addr, from, to) in update.changes {
            self.log_change(now, service, &addr, from, to);
        }
        self.update_pause(now, service, failing_over, machine);
        let stable = !failing_over
            && *machine.state() == MachineState::Stable
            && self.eligibility.is_current();
        self.writer.balance(now, self.eligibility.rules.rebalance, stable);
    }

    /// Holds readers' requests while replicas are about to be reconfigured. An announcement is
    /// credible only while a failover is in progress.
    fn update_pause(&mut self, now: Instant, service: &str, failing_over: bool, machine: &Machine) {
        let next = if is_announced(machine) {
            machine.state().candidate()
        } else {
            machine.committed().map(|it| &it.addr)
        };
        let members = self.published.as_ref().map_or(&[][..], |(members, _)| members);
        let serves = |addr: &NodeAddr| members.iter().any(|member| member.addr == *addr);
        let serving = self.eligibility.records().filter(|(addr, _)| serves(addr));
        let health: Vec<_> = serving
            .map(|(_, it)| {
                let follows = it.health.follows.as_ref().and_then(Option::as_ref);
                (it.health.repointed_at, next.is_some() && follows == next)
            })
            .collect();
        let announced = std::mem::take(&mut self.announced) && failing_over;
        let waits = self.pause.step(now, announced, health.iter().copied());
        if self.writer.hold(waits) {
            debug!(service, waits, "pause of readers' requests while replicas are reconfigured");
        }
    }

    /// Publishes the replicas' health to their sessions.
    fn publish_health(&mut self, now: Instant, failing_over: bool, others: bool) {
        for (addr, it) in self.eligibility.records() {
            let status = ReplicaStatus {
                asked_at: it.health.asked_at,
                repointed_at: it.health.repointed_at,
                failing_over,
                about_to_end: it.state == ReplicaState::Candidate && others,
            };
            let silent = self.eligibility.is_silent(now, it);
            self.writer.set_replica_status(&addr.to_string(), it.run_id(), status, silent);
        }
    }

    fn publish(
        &mut self,
        now: Instant,
        service: &str,
        next: (Vec<PoolMember>, Option<Generation>),
    ) {
        let had = self.published.as_ref().map(|(members, _)| members.len());
        let destinations = next.0.iter().map(|it| Destination {
            addr: it.dialled,
            name: it.addr.to_string().into(),
            epoch: 0,
            run_id: it.run_id.clone(),
        });
        self.writer.publish(destinations.collect());
        let is_empty = next.0.is_empty();
        self.published = Some(next);
        if is_empty && had != Some(0) {
            let Some(suppressed) = self.log_limiter.allow(now) else { return };
            let readers = match self.writer.pool().when_empty() {
                EmptyPool::Reject => "rejected",
                EmptyPool::Master => "sent to the master",
            };
            warn!(service, suppressed, readers, "no replica is eligible to serve reads");
        }
    }

    fn log_change(
        &mut self,
        now: Instant,
        service: &str,
        addr: &NodeAddr,
        from: ReplicaState,
        to: ReplicaState,
    ) {
        let (left, came) = (from == ReplicaState::Eligible, to == ReplicaState::Eligible);
        self.ejections += u64::from(left);
        self.readmissions += u64::from(came && from == ReplicaState::Recovering);
        if !left && !came {
            return;
        }
        let Some(suppressed) = self.log_limiter.allow(now) else { return };
        let replicas = self.published.as_ref().map_or(0, |(members, _)| members.len());
        let (from, to) = (from.label(), to.label());
        info!(service, suppressed, replica = %addr, from, to, replicas, "replica state changed");
    }

    /// The current state, for the discovery snapshot.
    pub(crate) fn snapshot(&self) -> ReplicaPoolSnapshot {
        let members = self.published.as_ref().map(|(members, _)| members.len());
        let sum = |dialled: Option<SocketAddr>, of: fn(&Target) -> usize| {
            let there =
                self.writer.targets().iter().filter(|target| Some(target.addr()) == dialled);
            there.map(|target| of(target)).sum()
        };
        let replicas = self.eligibility.records().map(|(addr, it)| ReplicaSnapshot {
            addr: addr.clone(),
            state: it.state,
            lag: it.lag,
            sessions: sum(it.dialled(), Target::load),
            failed_connects: sum(it.dialled(), Target::failed_connects),
        });
        ReplicaPoolSnapshot {
            eligible: members,
            master_serves_reads: self.writer.pool().when_empty() == EmptyPool::Master,
            replicas: replicas.collect(),
            ejections: self.ejections,
            readmissions: self.readmissions,
        }
    }
}

/// Whether a switch is imminent.
fn is_announced(machine: &Machine) -> bool {
    matches!(machine.state(), MachineState::Armed { .. } | MachineState::Committing { .. })
}

/// Whether a failover is in progress, until the last replica follows the new master.
fn is_failing_over(machine: &Machine) -> bool {
    is_announced(machine) || machine.views().any(|(_, member, view, _)| member && view.failing_over)
}

/// Evaluates eligibility from the machine's state.
pub(crate) fn evaluate(
    eligibility: &mut Eligibility,
    now: Instant,
    machine: &Machine,
) -> PoolUpdate {
    let committed = machine.committed();
    let master = committed.map(|it| {
        let history = it.lineage.as_ref();
        CurrentMaster {
            addr: &it.addr,
            dialled: it.dialled,
            replid: history.map_or("", |lineage| &*lineage.replid),
            replid2: history.map_or("", |lineage| &*lineage.replid2),
            replicas: None,
        }
    });
    let views: Vec<&View> = machine.trusted_views();
    let inputs = EligibilityInputs {
        master,
        candidate: machine.state().candidate(),
        stable: *machine.state() == MachineState::Stable,
        in_minority: matches!(
            machine.state(),
            MachineState::NoMaster { reason: NoMasterReason::Minority, .. }
        ),
        listed: master.and_then(|master| {
            listed(master.addr, views.iter().copied(), |addr| eligibility.is_listed(addr))
        }),
    };
    let answers = machine.nodes().filter_map(|(addr, probe)| Some((addr, probe?)));
    eligibility.evaluate(now, &inputs, answers)
}
