//! The runtime of one service: feeds events to its machine, executes the actions and publishes the
//! snapshot.
//!
//! It publishes the target, closes and opens the gate, and owns the node probers. It makes no
//! decisions.

mod publish;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use target::{ClockReading, Destination, EmptyPool, PoolWriter, ReplyPolicy, Target, TargetWriter};
use tls::Version;
use tracing::{debug, info, warn};

use crate::clock;
use crate::discovery::absence_limit::AbsenceLimit;
use crate::discovery::alarms::{Alarm, Alarms, Conditions};
use crate::discovery::config::{DiscoveryConfig, DiscoverySettings};
use crate::discovery::credential_log::CredentialLog;
use crate::discovery::failover_history::FailoverHistory;
use crate::discovery::learned_addresses::{LearnedAddresses, usable};
use crate::discovery::no_master::NoMaster;
use crate::discovery::sentinel_pool::SentinelPool;
use crate::discovery::snapshot::{DiscoveryCounts, DiscoverySnapshot, MasterSnapshot};

use crate::link::auth::Denied;
use crate::link::links::Links;
use crate::link::messages::{LinkId, ProbeProblem};
use crate::link::poll::{PollOutcome, poll_error};
use crate::machine::Lacking;
use crate::prober::ProberFactory;
use crate::prober::prober_set::ProberSet;
use crate::rate_limiter::RateLimiter;
use crate::replicas::publisher::{ReplicaPublisher, Replicas};
use crate::{
    Commit, FollowRefusal, Followed, Machine, MachineAction, MachineEvent, MachineRules, MyId,
    NodeAddr, OverrideEnd, OverrideNews, Probe, ProbeFailure, ReplicaRules, View, Warning,
};

/// The problem of a sentinel that has another one's identity.
const DUPLICATE_ID: &str =
    "another connection leads to a sentinel with this MYID, its vote is not counted twice";

/// How often an override in force is logged.
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// Answers kept until their senders have read them. An order waits a few seconds for its answer,
/// and one service has one order at a time.
const MAX_ANSWERS: usize = 16;

/// The answer to an order, by its number.
pub(crate) type OrderAnswer = (u64, Result<Followed, FollowRefusal>);

/// The orders and overrides of one service, for their senders, the log and the snapshot.
#[derive(Debug, Default)]
struct OverrideReport {
    answers: VecDeque<OrderAnswer>,
    logged_at: Option<Instant>,
    last_end: Option<OverrideEnd>,
}

/// For how long a check of all deadlines is trusted.
fn absence_limit(rules: &MachineRules) -> AbsenceLimit {
    AbsenceLimit::new(rules.absence, rules.stall)
}

pub(crate) struct ServiceRuntime {
    pub(crate) number: usize,
    /// The name of the service, in logs and metrics.
    pub(crate) name: Arc<str>,
    /// Sentinel's name of the master.
    pub(crate) master_name: Arc<str>,
    /// Whether sentinels that others list are dialled.
    pub(super) learns: bool,
    pub(super) machine: Machine,
    target_writer: TargetWriter,
    /// Publishes the replicas, if readers are configured.
    replica_publisher: Option<ReplicaPublisher>,
    /// Publishes the live sentinels, if a listener for them is configured.
    sentinel_pool: Option<SentinelPool>,
    /// For how long workers may trust the target after a check of all deadlines. A longer absence
    /// of this process is a stall.
    absence_limit: AbsenceLimit,
    probers: ProberSet,
    learned_addresses: LearnedAddresses,
    /// The number of sentinels that the configuration resolves to.
    expected: usize,
    master: Option<MasterSnapshot>,
    /// Failed connections of sessions to former masters.
    failed_connects: BTreeMap<NodeAddr, usize>,
    stopped_since: Option<Instant>,
    held_since: Option<Instant>,
    credential_log: CredentialLog,
    /// Rate limit for the log lines of this service.
    log_limiter: RateLimiter,
    failover_history: FailoverHistory,
    no_master: NoMaster,
    overrides: OverrideReport,
    alarms: Alarms,
    /// Connected sentinels whose last answer was that they do not know the master's name.
    name_unknown_at: BTreeSet<MyId>,
    counts: DiscoveryCounts,
    pub(super) snapshot: Arc<ArcSwap<DiscoverySnapshot>>,
}

impl ServiceRuntime {
    pub(crate) fn new(
        number: usize,
        config: DiscoveryConfig,
        prober_factory: ProberFactory,
    ) -> Self {
        let DiscoveryConfig { name, master_name, target_writer, .. } = config;
        let (now, seeds, rules) = (clock::now(), config.sentinels.len(), config.settings.rules);
        let absence_limit = absence_limit(&rules);
        let machine = Machine::new(now, rules, seeds);
        let first = DiscoverySnapshot::at_start(
            Arc::clone(&name),
            Arc::clone(&master_name),
            now,
            machine.quorum(),
        );
        Self {
            number,
            name,
            master_name,
            learns: config.settings.learn,
            machine,
            target_writer,
            replica_publisher: config.replicas.map(ReplicaPublisher::new),
            sentinel_pool: config.sentinel_pool.map(SentinelPool::new),
            absence_limit,
            probers: ProberSet::new(number, prober_factory),
            learned_addresses: LearnedAddresses::default(),
            expected: seeds,
            master: None,
            failed_connects: BTreeMap::new(),
            stopped_since: Some(now),
            held_since: None,
            credential_log: CredentialLog::default(),
            log_limiter: RateLimiter::new(60, Duration::from_millis(500)),
            failover_history: FailoverHistory::default(),
            no_master: NoMaster::default(),
            overrides: OverrideReport::default(),
            alarms: Alarms::default(),
            name_unknown_at: BTreeSet::new(),
            counts: DiscoveryCounts::default(),
            snapshot: Arc::new(ArcSwap::from_pointee(first)),
        }
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        let (machine, replica_publisher) = (
            self.machine.next_deadline(),
            self.replica_publisher.as_ref().and_then(ReplicaPublisher::next_deadline),
        );
        replica_publisher.map_or(machine, |at| at.min(machine))
    }

    /// The configuration now resolves to this many sentinels.
    pub(crate) fn expect(&mut self, sentinels: usize, links: &Links) {
        if self.expected != sentinels {
            self.expected = sentinels;
            self.step(MachineEvent::ExpectedSentinels(sentinels), links);
        }
    }

    /// Processes an event that has just happened.
    pub(crate) fn step(&mut self, event: MachineEvent, links: &Links) {
        self.handle_event(event, clock::now(), links);
    }

    /// Processes an event that was read from a socket at `read_at`, and executes the resulting
    /// actions.
    pub(crate) fn handle_event(&mut self, event: MachineEvent, read_at: Instant, links: &Links) {
        let before = self.machine.state().label();
        self.failover_history.before_step(&event, read_at, &self.machine);
        self.replica_publisher
            .iter_mut()
            .for_each(|replica_publisher| replica_publisher.on_event(&event));
        for action in self.machine.step(clock::now(), event) {
            self.perform(action, links);
        }
        self.failover_history.after_step(read_at, &self.machine);
        self.update_replicas();
        debug_assert_eq!(self.machine.broken_invariant(), None);
        let wanted: BTreeSet<&NodeAddr> = self.machine.nodes().map(|(addr, _)| addr).collect();
        self.probers.retain(&wanted);
        if before != self.machine.state().label() {
            let after = self.machine.state().label();
            self.log(move |service, suppressed| {
                info!(%service, suppressed, from = before, to = after, "discovery state changed");
            });
            self.publish(links);
        }
    }

    /// The process was away for this long, by any clock. Beyond the limit nothing known before is
    /// trusted. Returns whether that is the case.
    pub(crate) fn check_absence(&mut self, away: Duration, links: &Links) -> bool {
        if !self.absence_limit.is_exceeded(clock::now(), away) {
            return false;
        }
        // Traffic flows although no majority has answered for seconds: a short absence hides
        // nothing that would have been noticed without it.
        if away <= self.machine.rules().stall && self.machine.is_open_without_majority() {
            return false;
        }
        self.step(MachineEvent::Stalled, links);
        true
    }

    /// Renews the lease of the target: all that was due at `checked_at` has been processed. Not
    /// earlier, because after a stall of the process the machine has to close the gate first.
    pub(crate) fn renew(&mut self, checked_at: ClockReading) {
        let lease = self.absence_limit.current();
        self.target_writer.renew(checked_at, lease);
        if let Some(replica_publisher) = &mut self.replica_publisher {
            replica_publisher.renew(checked_at, lease);
        }
        if let Some(pool) = &mut self.sentinel_pool {
            pool.renew(checked_at, lease);
        }
    }

    /// Updates the replicas for readers, and probes those that sessions gave hints about.
    fn update_replicas(&mut self) {
        let Some(replica_publisher) = &mut self.replica_publisher else { return };
        let now = clock::now();
        replica_publisher.update(now, &self.name, &self.machine);
        for member in replica_publisher.take_hint(now) {
            let (trust, seen) = (self.machine.trust(&member), self.machine.seen_at(&member));
            self.probers.ask(&member, false, trust, seen);
        }
    }

    /// A reader's session saw a sign of trouble. It says nothing about the master, so only the
    /// replicas are probed.
    pub(crate) fn handle_reader_hint(&mut self) {
        self.replica_publisher.iter_mut().for_each(ReplicaPublisher::hint);
        self.update_replicas();
    }

    /// A node prober's answer, with the reason for a failure and the version of TLS.
    pub(crate) fn probed(
        &mut self,
        node: NodeAddr,
        probe: Probe,
        problem: Option<ProbeProblem>,
        tls: Option<Version>,
        links: &Links,
    ) {
        if let Some(problem) = self.probers.record(&node, &probe, problem, tls) {
            let node = node.clone();
            self.log(move |service, suppressed| {
                match problem {
                    ProbeProblem::Refuses(_) => {
                        warn!(%service, %node, suppressed, "redis node refuses requests: {problem}");
                    }
                    // At each start, until the master is verified.
                    ProbeProblem::Denied(Denied::PasswordWithheld) => {
                        debug!(%service, %node, suppressed, "redis node not verified: {problem}");
                    }
                    _ => warn!(%service, %node, suppressed, "cannot verify redis node: {problem}"),
                }
            });
        }
        let answered =
            probe.outcome.as_ref().ok().map(|report| {
                (report.dialled, report.lineage.as_ref().map(|it| it.run_id.clone()))
            });
        self.step(MachineEvent::Probed { node, probe }, links);
        if let Some(master) = &self.master
            && answered == Some((master.dialled, master.run_id.clone()))
        {
            let (addr, dialled) = (&master.addr, master.dialled);
            self.probers.ask_commands(&self.name, addr, dialled, master.run_id.as_deref());
        }
    }

    /// A sentinel answered a poll, on this link. Returns whether the addresses that it lists for
    /// other sentinels, which are to be dialled, changed.
    pub(super) fn handle_round(
        &mut self,
        link: LinkId,
        asked_at: Instant,
        read_at: Instant,
        round: PollOutcome,
        links: &mut Links,
    ) -> bool {
        let number = self.number;
        let up = links.get_mut(link).and_then(|it| it.up.clone());
        let Some((from, addr)) = up else { return false };
        let settings = self.probers.settings();
        let round = usable(round, addr.ip(), &settings.address_map);
        let may_vote = links.is_voting_link(number, link, &from);
        let problem = if may_vote {
            poll_error(&round, &self.master_name)
        } else {
            Some(DUPLICATE_ID.to_owned())
        };
        let mut configured = false;
        if let Some(link) = links.get_mut(link) {
            link.set_poll_error(number, problem);
            configured = !link.is_learned();
        }
        // Before the vote counts: a listener may serve as soon as there is a master.
        self.update_sentinel_pool(links);
        if !may_vote {
            return false;
        }
        match round {
            PollOutcome::View { view, peers } => {
                self.name_unknown_at.remove(&from);
                let event = MachineEvent::View { from: from.clone(), view, asked_at, configured };
                self.handle_event(event, read_at, links);
                let (learned, map) = (&mut self.learned_addresses, &settings.address_map);
                let is_reached = |id: &MyId| links.is_reached(number, id);
                return self.learns && learned.record(from, configured, peers, map, is_reached);
            }
            PollOutcome::UnknownName => {
                self.name_unknown_at.insert(from.clone());
                if configured {
                    self.step(MachineEvent::NameUnknown { from }, links);
                }
                self.counts.unknown_names += 1;
            }
            // The link repeats a torn round by itself.
            PollOutcome::Torn | PollOutcome::Malformed(_) | PollOutcome::Denied(_) => {
                self.counts.bad_rounds += 1;
            }
        }
        false
    }

    /// The listed sentinels to dial, with their addresses: those that vote because enough of the
    /// configured ones list them. One that is connected stays, even if no other lists it now.
    pub(crate) fn learned_sentinels(&self, links: &Links) -> BTreeMap<MyId, BTreeSet<NodeAddr>> {
        let mut learned: BTreeMap<MyId, BTreeSet<NodeAddr>> = BTreeMap::new();
        for (id, addrs) in self.learned_addresses.candidates() {
            learned.entry(id.clone()).or_default().extend(addrs.into_iter().cloned());
        }
        for link in links.for_service(self.number).filter(|link| link.is_learned()) {
            if let Some(id) = link.id() {
                learned.entry(id.clone()).or_default().insert(link.addr.clone());
            }
        }
        let settings = self.probers.settings();
        learned.retain(|id, addrs| {
            addrs.retain(|addr| settings.permits(addr));
            !addrs.is_empty() && self.machine.is_member(id)
        });
        learned
    }

    /// Announced addresses that `nodes` does not permit: of nodes, and of learned sentinels.
    fn outside_nodes(&self) -> BTreeSet<String> {
        let nodes = self.machine.nodes().map(|(addr, _)| addr);
        let sentinels = self.learned_addresses.candidates().into_values().flatten();
        let settings = self.probers.settings();
        let outside = nodes.chain(sentinels).filter(|addr| !settings.permits(addr));
        outside.map(ToString::to_string).collect()
    }

    /// Logs a line with the name of the service, now or as soon as the limit allows.
    fn log(&mut self, line: impl FnOnce(&str, u64) + Send + 'static) {
        let service = Arc::clone(&self.name);
        self.log_limiter.log(clock::now(), move |suppressed| line(&service, suppressed));
    }

    fn perform(&mut self, action: MachineAction, links: &Links) {
        match action {
            MachineAction::Ask => links.ask(self.number),
            MachineAction::Probe(node) => {
                let sure = self.machine.is_corroborated(&node);
                let (trust, seen) = (self.machine.trust(&node), self.machine.seen_at(&node));
                self.probers.ask(&node, sure, trust, seen);
            }
            MachineAction::Hold => {
                self.target_writer.hold();
                let now = clock::now();
                self.stopped_since.get_or_insert(now);
                self.held_since.get_or_insert(now);
                self.counts.holds += 1;
                let state = self.machine.state().label();
                self.log(move |service, suppressed| {
                    info!(%service, suppressed, state, "gate closed, holding traffic");
                });
            }
            MachineAction::Release => {
                self.target_writer.release();
                self.end_outage(clock::now());
                self.log(|service, suppressed| {
                    info!(%service, suppressed, "gate opened, same master");
                });
            }
            MachineAction::ReplyPolicy(replies) => self.set_replies(replies),
            MachineAction::Commit(commit) => self.commit(commit, links),
            MachineAction::Redirect(addr, dialled) => {
                self.target_writer.redirect(dialled, addr.to_string().into());
                if let Some(master) = &mut self.master {
                    (master.addr, master.dialled) = (addr.clone(), dialled);
                }
                self.log(move |service, suppressed| {
                    info!(
                        %service, suppressed, %addr, %dialled,
                        "master moved to another address, same process"
                    );
                });
            }
            MachineAction::Clear(reason) => {
                let former = self.target_writer.reader().current();
                self.target_writer.clear();
                self.keep_failed_connects(former.as_deref());
                self.stopped_since.get_or_insert_with(clock::now);
                (self.master, self.held_since) = (None, None);
                self.counts.clears += 1;
                self.log(move |service, suppressed| {
                    warn!(
                        %service, suppressed, reason = reason.label(),
                        "no master: closing its sessions, new ones wait"
                    );
                });
            }
            MachineAction::Override(news) => self.report_override(news, links),
            MachineAction::Warning(warning) => self.handle_warning(warning),
        }
    }

    fn set_replies(&mut self, replies: ReplyPolicy) {
        self.target_writer.set_reply_policy(replies);
        if replies == ReplyPolicy::Drop {
            self.log(|service, suppressed| {
                info!(
                    %service, suppressed,
                    "replica is being promoted, dropping replies of the old master"
                );
            });
        }
    }

    fn handle_warning(&mut self, warning: Warning) {
        let counts = &mut self.counts;
        match warning {
            Warning::StaleView => counts.stale_views += 1,
            Warning::Split => counts.splits += 1,
            Warning::LineageBroken | Warning::HistoryUnknown => counts.lineage_broken += 1,
            Warning::HoldExpired => counts.holds_expired += 1,
            Warning::Stalled => {
                counts.stalls += 1;
                self.alarms.restart_delays();
                if let Some(replica_publisher) = &mut self.replica_publisher {
                    replica_publisher.on_resume(clock::now());
                }
            }
            Warning::RegressionUnverified => counts.unverified_regressions += 1,
            Warning::HoldsExhausted
            | Warning::Minority
            | Warning::Rebooted
            | Warning::SeenAsAnother
            | Warning::Stranger => {}
        }
        // A stale view comes with every poll of a stale sentinel; all other warnings come once per
        // condition.
        if warning == Warning::StaleView {
            return;
        }
        self.log(move |service, suppressed| {
            warn!(%service, suppressed, "{}", warning.message());
        });
    }

    fn commit(&mut self, commit: Commit, links: &Links) {
        let (name, run_id) = (commit.addr.to_string().into(), commit.run_id.clone());
        let destination = Destination { addr: commit.dialled, name, epoch: commit.epoch, run_id };
        if let Some(replica_publisher) = &mut self.replica_publisher {
            replica_publisher.fence(commit.dialled);
        }
        let former = self.target_writer.reader().current();
        if commit.new_lineage {
            self.target_writer.begin_lineage();
        }
        let target = if commit.held {
            self.target_writer.commit_held(destination)
        } else {
            self.target_writer.commit(destination)
        };
        // Statistics and logs come after the switch.
        let published_at = clock::now();
        self.failover_history.note_first_session(&self.name);
        if commit.held {
            self.stopped_since.get_or_insert(published_at);
            self.held_since.get_or_insert(published_at);
        } else {
            self.end_outage(published_at);
        }
        self.keep_failed_connects(former.as_deref());
        let generation = target.generation().get();
        let from = self.master.take().map(|master| master.addr);
        let history = &mut self.failover_history;
        let failover = history.record(from, &commit, target, published_at, &self.machine);
        self.counts.commits += 1;
        self.counts.held += failover.timeline.hold().unwrap_or_default();
        self.failover_history.log(&self.name, failover);
        let Commit { addr, dialled, epoch, run_id, .. } = commit;
        self.master = Some(MasterSnapshot {
            addr,
            dialled,
            generation,
            epoch,
            run_id,
            since: published_at,
            sessions: 0,
            connects_fail: false,
        });
        self.publish(links);
    }

    /// Keeps the count of the target that was superseded, for the report of its node.
    fn keep_failed_connects(&mut self, former: Option<&Target>) {
        let watched: BTreeSet<&NodeAddr> = self.machine.nodes().map(|(addr, _)| addr).collect();
        self.failed_connects.retain(|addr, _| watched.contains(addr));
        let Some(master) = &self.master else { return };
        let failed = former.map_or(0, Target::failed_connects);
        if failed > 0 {
            *self.failed_connects.entry(master.addr.clone()).or_default() += failed;
        }
    }

    /// Traffic can reach a master again. The time before the first master does not count as an
    /// outage.
    fn end_outage(&mut self, now: Instant) {
        self.held_since = None;
        if let Some(since) = self.stopped_since.take().filter(|_| self.counts.commits > 0) {
            self.counts.stopped += now.saturating_duration_since(since);
        }
    }

    /// An order was answered, or an override ended. The sender of an order waits to see it in the
    /// snapshot.
    fn report_override(&mut self, news: OverrideNews, links: &Links) {
        let (service, report) = (&self.name, &mut self.overrides);
        match news {
            OverrideNews::Answered(order, answer) => {
                if let Some(it) = self.machine.override_in_force().filter(|_| answer.is_ok()) {
                    let seconds = it.until.saturating_duration_since(clock::now()).as_secs();
                    warn!(
                        %service, master = %it.addr, seconds,
                        "override in force: following this master by an operator's order, without \
                         the sentinels"
                    );
                    report.logged_at = Some(clock::now());
                }
                if report.answers.len() >= MAX_ANSWERS {
                    report.answers.pop_front();
                }
                report.answers.push_back((order, answer));
            }
            OverrideNews::Ended(master, end) => {
                warn!(%service, %master, reason = end.label(), "override ended");
                report.last_end = Some(end);
            }
        }
        self.publish(links);
    }

    /// Repeats the log line while an override is in force.
    fn remind_of_override(&mut self, now: Instant) {
        let Some(it) = self.machine.override_in_force() else { return };
        let due = |at: Instant| now.saturating_duration_since(at) >= REMIND_EVERY;
        if self.overrides.logged_at.is_some_and(due) {
            self.overrides.logged_at = Some(now);
            let seconds = it.until.saturating_duration_since(now).as_secs();
            warn!(
                service = %self.name, master = %it.addr, seconds,
                "override still in force: the sentinels do not decide the master"
            );
        }
    }

    /// Applies changed settings.
    pub(crate) fn change(&mut self, settings: DiscoverySettings, links: &Links) {
        self.learns = settings.learn;
        if !self.learns {
            self.forget_learned();
        }
        self.probers.set(settings.probe_settings());
        self.probers.login().replace(settings.node_access());
        if *self.machine.rules() != settings.rules {
            self.absence_limit = absence_limit(&settings.rules);
            self.step(MachineEvent::Rules(Box::new(settings.rules)), links);
        }
    }

    /// Changes which replicas are eligible, and what readers get without one.
    pub(crate) fn set_replica_rules(&mut self, rules: ReplicaRules, empty: EmptyPool) {
        if let Some(publisher) = &mut self.replica_publisher {
            publisher.set_rules(rules, empty);
        }
    }

    /// Begins or ends to publish the replicas for readers.
    pub(crate) fn set_replicas(&mut self, replicas: Option<Replicas>, links: &Links) {
        self.replica_publisher = replicas.map(ReplicaPublisher::new);
        self.update_replicas();
        self.publish(links);
    }

    /// Begins or ends to publish the live sentinels.
    pub(crate) fn set_sentinel_pool(&mut self, pool: Option<PoolWriter>, links: &Links) {
        self.sentinel_pool = pool.map(SentinelPool::new);
        self.update_sentinel_pool(links);
    }

    /// Forgets the sentinels that others list.
    pub(crate) fn forget_learned(&mut self) {
        self.learned_addresses = LearnedAddresses::default();
    }

    /// Updates the alarms. The log says when one begins and when it ends.
    fn update_alarms(&mut self, now: Instant, links: &Links) {
        self.name_unknown_at.retain(|id| links.is_reached(self.number, id));
        let conditions = Conditions::from([
            (Alarm::NameUnknown, self.without_name(links)),
            (Alarm::Unlisted, self.unlisted(links)),
            (Alarm::Ghosts, self.ghosts(links)),
            (Alarm::OutsideNodes, self.outside_nodes()),
            (Alarm::FollowedByReplica, self.own_listeners()),
            (Alarm::LacksConfirmed, self.lacking()),
        ]);
        for record in self.alarms.update(now, &conditions) {
            let (alarm, sentinels) = (record.alarm, record.sentinels.join(", "));
            self.log(move |service, suppressed| match record.ended_at {
                None => warn!(
                    %service, suppressed, alarm = alarm.label(), %sentinels,
                    "{}", alarm.message()
                ),
                Some(at) => {
                    let lasted_s = at.saturating_duration_since(record.since).as_secs();
                    info!(
                        %service, suppressed, alarm = alarm.label(), %sentinels, lasted_s,
                        "alarm ended"
                    );
                }
            });
        }
    }

    /// Listed nodes that are listeners of this process.
    fn own_listeners(&self) -> BTreeSet<String> {
        let leads_back = |probe: &&Probe| probe.outcome == Err(ProbeFailure::UnusableAddress);
        let nodes = self.machine.nodes();
        let own = nodes.filter(|(_, probe)| probe.as_ref().is_some_and(leads_back));
        own.map(|(addr, _)| addr.to_string()).collect()
    }

    /// The promoted node that lacks confirmed writes.
    fn lacking(&self) -> BTreeSet<String> {
        let text = |it: &Lacking| format!("{} (at least {} bytes)", it.node, it.bytes);
        self.machine.lacking().map(text).into_iter().collect()
    }

    /// The sentinels that do not know the name, if those that do are no majority.
    fn without_name(&self, links: &Links) -> BTreeSet<String> {
        let knowing = self.machine.views().filter(|(_, member, ..)| *member).count();
        let all = self.expected.max(self.machine.quorum().0);
        if knowing > all / 2 {
            return BTreeSet::new();
        }
        let unknown = self.name_unknown_at.iter();
        let links = unknown.filter_map(|id| links.voting_link(self.number, id));
        links.map(|link| link.addr.to_string()).collect()
    }

    /// Configured sentinels that answer and that no other one lists. One that has no vote, since it
    /// does not know the others either, is reported as such. A single sentinel has no others.
    fn unlisted(&self, links: &Links) -> BTreeSet<String> {
        let views: Vec<(&MyId, bool, &View)> =
            self.machine.views().map(|(id, member, view, _)| (id, member, view)).collect();
        if views.len() < 2 {
            return BTreeSet::new();
        }
        let listed: BTreeSet<&MyId> = views
            .iter()
            .flat_map(|(lister, _, view)| {
                view.peers.iter().map(|(id, _)| id).filter(move |id| id != lister)
            })
            .collect();
        views
            .into_iter()
            .filter(|(id, member, view)| !listed.contains(id) && (*member || view.is_empty_state()))
            .filter_map(|(id, ..)| links.voting_link(self.number, id))
            .filter(|link| !link.is_learned())
            .map(|link| link.addr.to_string())
            .collect()
    }

    /// Listed sentinels that every lister finds down and that do not answer here. One at a
    /// configured address is expected back and is reported as a sentinel that is down.
    fn ghosts(&self, links: &Links) -> BTreeSet<String> {
        let views = || self.machine.views().filter(|(_, member, view, _)| *member && !view.tilt);
        let (mut down, mut up) = (BTreeSet::new(), BTreeSet::new());
        for (id, is_up) in views().flat_map(|(_, _, view, _)| &view.peers) {
            if *is_up {
                up.insert(id)
            } else {
                down.insert(id)
            };
        }
        let configured: BTreeSet<_> = links
            .for_service(self.number)
            .filter(|link| !link.is_learned() && link.up.is_none())
            .map(|link| &link.addr)
            .collect();
        let addresses = self.learned_addresses.candidates();
        let ghosts = down.difference(&up).filter(|id| !links.is_reached(self.number, id));
        ghosts
            .filter_map(|id| {
                let addrs = addresses.get(*id);
                let is_expected = |addr| configured.contains(addr);
                if addrs.is_some_and(|addrs| addrs.iter().any(|addr| is_expected(*addr))) {
                    return None;
                }
                let addr = addrs.and_then(|addrs| addrs.first()).map(ToString::to_string);
                Some(addr.unwrap_or_else(|| id.short().to_owned()))
            })
            .collect()
    }
}
