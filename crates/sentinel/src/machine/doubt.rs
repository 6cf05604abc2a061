//! Doubt: the state in which the published master's own answer is not sufficient to send it
//! requests.
//!
//! While this process is suspended, or reaches neither the master nor the sentinels, a complete
//! failover may happen. The superseded master reports `role:master` for about ten more seconds, so
//! its usual answer proves nothing. The same holds for an address at which another process answers
//! than before: if the connection to the master has ended and a new one is refused, nothing is sent
//! until something answers there. A doubt begins
//!
//! - when this process was suspended;
//! - when the master proved unreachable, or was removed;
//! - when another process answers at its address;
//! - when a first master is committed that sentinels see down or do not reach, since no other
//!   process is known to compare it with: most of them have to reach it, or ten seconds to pass;
//! - when a first master, or one with another history, is not the process that most sentinels see,
//!   and whenever most of them have read that it is not. Then only those count that see it. If a
//!   process with another history answers at its address, and a sentinel sees a third one there,
//!   that sentinel does not count, and one has to see this process;
//! - when it failed to answer while no majority of the sentinels was reachable either. If the
//!   sentinels had been silent long before, the loss of the master reveals nothing new, and there
//!   is no doubt.
//!
//! It ends with a commit, or when the master answers and sentinels confirm it in views that were
//! requested *after the last sign of the doubt*. A majority is sufficient at once, unless another
//! names a node at a higher epoch that may still be committed; fewer sentinels after a grace period
//! like that of the start, if none contradicts. The very same process is also
//! accepted without any sentinel, or against a claim that leads to nothing, after a longer period,
//! since silence never removes a master (S5). If neither the master nor any majority answers for
//! ten seconds, although the master is reachable, the network is merely too slow for queries.
//! Another process is never used without a vote. One that does not continue the replication history
//! may be an empty pod at a reused address, which the sentinels are about to replace: it needs
//! views without any sign of that, from sentinels whose PING it has answered since. A process that
//! refuses the query is treated in the same way, unless its sentinels or its replicas see the
//! committed process (`recognition`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::nodes::{NodeRecord, verifies};
use super::recognition::is_another;
use super::state::{Basis, MachineState, NoMasterReason};
use super::{Committed, Machine, MachineAction, Warning};
use crate::{Lineage, Minority, MyId, NodeAddr, NodeReport, Probe, ProbeFailure, Role, View};

/// A sentinel asks the master each second, and sees it down after 30 s by default.
const PONG_LATE: Duration = Duration::from_secs(3);

/// A doubt; see the module documentation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Doubt {
    /// Its first sign.
    since: Instant,
    /// Its last sign. Queries sent before it say nothing about the present.
    until: Instant,
    /// The gate stays closed until the doubt ends. Before that, it is a single failed query that
    /// may lead to nothing.
    grave: bool,
    /// No majority of the sentinels was reachable when it began.
    majority_silent: bool,
    /// It is grave only because neither the master nor the sentinels answered.
    no_answers: bool,
    /// It began with the end of a hold, so a failover in progress was waited for already.
    has_held: bool,
    /// It began with the first commit, of a master that sentinels see down.
    is_first: bool,
    /// Sentinels see another process at the address.
    is_another: bool,
    /// One sees a third, neither the committed process nor that which answers.
    is_third: bool,
    /// The process that answers at the address of the committed one.
    successor: Option<Box<str>>,
}

impl Doubt {
    /// Its last sign.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// When the doubt may change although nothing happens: at the ends of the grace periods.
    pub(super) fn deadlines(&self, rules: &crate::MachineRules) -> [Instant; 5] {
        let graces =
            [rules.hold_max, rules.bootstrap_grace, rules.view_expiry, rules.verify_deadline];
        let [one, two, three, four] = graces.map(|grace| self.until + grace);
        [self.since + rules.unreachable, one, two, three, four]
    }
}

/// How the process that answers now is related to the committed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessRelation {
    /// The same process, as far as can be read.
    Same,
    /// Another process with the same history, or a process at another address whose history cannot
    /// be read.
    Restarted,
    /// Another process with another history, or without the end of the same one.
    Unrelated,
}

pub(super) fn relation(committed: &Committed, report: &NodeReport) -> ProcessRelation {
    match (&committed.lineage, &report.lineage) {
        (Some(old), Some(new)) if old.run_id == new.run_id => ProcessRelation::Same,
        (Some(old), Some(new)) if new.continues(old) && new.offset >= old.offset => {
            ProcessRelation::Restarted
        }
        (Some(_), Some(_)) => ProcessRelation::Unrelated,
        _ if committed.dialled == report.dialled => ProcessRelation::Same,
        _ => ProcessRelation::Restarted,
    }
}

/// The identity of a process.
fn process(report: &NodeReport) -> Box<str> {
    report
        .lineage
        .as_ref()
        .map_or_else(|| report.dialled.to_string().into(), |lineage| lineage.run_id.clone())
}

impl Machine {
    /// The committed master did not answer a query sent at `asked_at`, or did not answer it as a
    /// master. While a majority answers, that alone is no new sign of an unseen failover: on a
    /// network on which every other answer is too late, a doubt would never end.
    pub(super) fn doubt(&mut self, now: Instant, asked_at: Instant, grave: bool) -> &mut Doubt {
        let majority_silent = !self.electorate.majority_answers();
        let recently = now.checked_sub(self.rules.unreachable).unwrap_or(now);
        let is_sign = grave || !self.electorate.is_majority_heard_since(recently);
        let new = Doubt {
            since: asked_at,
            until: now,
            grave,
            majority_silent,
            no_answers: false,
            has_held: false,
            is_first: false,
            is_another: false,
            is_third: false,
            successor: None,
        };
        let doubt = self.doubt.get_or_insert(new);
        if is_sign {
            (doubt.until, doubt.has_held) = (doubt.until.max(now), false);
        }
        doubt.grave |= grave;
        doubt.no_answers &= !grave;
        doubt
    }

    /// A hold ended without a commit. No sentinel followed, as far as known: sentinels have to
    /// answer before the old master is used again.
    pub(super) fn doubt_after_hold(&mut self, now: Instant) {
        self.doubt(now, now, true).has_held = true;
    }

    /// The first master was committed, or one with another history. If sentinels see it down, or
    /// see another process, it may be an empty process that they are about to replace.
    pub(super) fn doubt_new(&mut self, now: Instant, is_first: bool) {
        let is_down = is_first && self.is_seen_down(None);
        let is_another = self.is_seen_as_another(!is_first);
        if is_down || is_another {
            let doubt = self.doubt(now, now, true);
            (doubt.is_first, doubt.is_another) = (is_down, is_another);
            self.enter(MachineState::Unconfirmed { since: now });
            self.warn_of_another(is_another);
        }
    }

    /// Begins a doubt if most sentinels see another process than this one. Returns whether one
    /// began.
    fn doubt_another(&mut self, now: Instant) -> bool {
        let begins = self.has_become_another();
        if begins {
            self.doubt(now, now, true).is_another = true;
        }
        self.warn_of_another(begins);
        begins
    }

    fn warn_of_another(&mut self, is_another: bool) {
        let warning = MachineAction::Warning(Warning::SeenAsAnother);
        self.actions.extend(is_another.then_some(warning));
    }

    /// Whether a sentinel sees the committed master down or restarted, or hears nothing from it, as
    /// far as was asked at or after `since`, those that do not cannot decide, and no operator has
    /// decided.
    fn is_seen_down(&self, since: Option<Instant>) -> bool {
        let Some(committed) = &self.committed else { return false };
        let names = |view: &View| view.addr == committed.addr && !view.tilt;
        let is_down = |it: &View| it.down || it.rebooted || it.pong_age > PONG_LATE;
        let views = self.electorate.member_views().filter(|(_, it)| names(it) && !is_down(it));
        self.orders.in_force.is_none()
            && self.electorate.trusted_views(since).any(|it| names(it) && is_down(it))
            && !self.may_decide(&views.map(|(id, _)| id).collect())
    }

    /// Whether the process of the committed master has ended, as far as is known: the next one may
    /// be empty, and must not be written to before it has answered.
    pub(super) fn has_target_ended(&self) -> bool {
        let target = self.committed.as_ref().and_then(|it| self.nodes.get(&it.addr));
        target.is_some_and(NodeRecord::has_ended)
    }

    /// The published master answered as a master.
    pub(super) fn target_answered(&mut self, now: Instant, asked_at: Instant, report: &NodeReport) {
        let Some(committed) = self.committed.as_mut() else { return };
        match relation(committed, report) {
            ProcessRelation::Same => {
                if let Some(lineage) = &report.lineage {
                    committed.lineage = Some(lineage.clone());
                    if self.hold.closed_since.is_some_and(|since| asked_at >= since) {
                        self.hold.written.get_or_insert(lineage.offset);
                    }
                }
                if committed.dialled != report.dialled {
                    committed.dialled = report.dialled;
                    let addr = committed.addr.clone();
                    self.actions.push(MachineAction::Redirect(addr, report.dialled));
                }
                self.note_confirmed(report);
            }
            ProcessRelation::Restarted | ProcessRelation::Unrelated => {
                if self.detect_restart(now, asked_at, report) {
                    self.actions.push(MachineAction::Warning(Warning::Rebooted));
                    self.pacing.ask_now(now);
                }
            }
        }
    }

    /// Begins or restarts a doubt if another process than before answers at the address of the
    /// committed master. Earlier votes refer to the former process, which may answer again. Returns
    /// whether that is the case.
    pub(super) fn detect_restart(
        &mut self,
        now: Instant,
        asked_at: Instant,
        report: &NodeReport,
    ) -> bool {
        let Some(committed) = &self.committed else { return false };
        if self.is_known_process(committed, report) {
            return false;
        }
        self.doubt(now, asked_at, true).successor = Some(process(report));
        true
    }

    /// Whether the process that answers is the committed one, or the one to which the votes since
    /// the last sign of the doubt refer. If the history of the committed process could not be read,
    /// nothing distinguishes another one at its address from it, except that a third has answered.
    fn is_known_process(&self, committed: &Committed, report: &NodeReport) -> bool {
        let known = self.doubt.as_ref().and_then(|doubt| doubt.successor.as_ref());
        let is_successor = known == Some(&process(report));
        match relation(committed, report) {
            ProcessRelation::Same if committed.lineage.is_none() && report.lineage.is_some() => {
                known.is_none() || is_successor
            }
            ProcessRelation::Same => true,
            ProcessRelation::Restarted | ProcessRelation::Unrelated => is_successor,
        }
    }

    /// The node that is about to be used again is not a master, or yet another process answers. The
    /// votes so far referred to the previous one. Returns whether the doubt was renewed.
    pub(super) fn renew_doubt(&mut self, now: Instant, probe: &Probe) -> bool {
        let Some(committed) = &self.committed else { return false };
        let published = committed.published;
        let good = probe.outcome.as_ref().ok().filter(|report| verifies(report, self.rules.verify));
        if good.is_some_and(|report| self.is_known_process(committed, report)) {
            return false;
        }
        let successor = good.map(process);
        self.doubt(now, probe.asked_at, true).successor = successor;
        let reason = NoMasterReason::Unverified;
        self.enter(if published {
            MachineState::Unconfirmed { since: now }
        } else {
            MachineState::NoMaster { reason, since: now }
        });
        self.pacing.ask_now(now);
        true
    }

    /// Whether the master must not be used until a doubt ends.
    pub(super) fn is_in_grave_doubt(&self) -> bool {
        self.doubt.as_ref().is_some_and(|doubt| doubt.grave)
    }

    /// Closes the gate for a doubt, and opens it or commits again when the doubt is over.
    pub(super) fn weigh_doubt(&mut self, now: Instant) {
        let published = self.committed.as_ref().is_some_and(|committed| committed.published);
        let begins = match &self.state {
            MachineState::Stable | MachineState::Suspect { .. } => {
                self.doubt_another(now) || self.closes_gate(now)
            }
            MachineState::NoMaster { reason: NoMasterReason::Unreachable, .. } => {
                published && self.last_confirmation().is_some()
            }
            _ => false,
        };
        if begins {
            self.enter(MachineState::Unconfirmed { since: now });
            self.pacing.ask_now(now);
            self.nodes.probe_soon(now);
        }
        match &self.state {
            MachineState::Unconfirmed { .. } if self.is_network_slow(now) => {
                self.doubt = None;
                self.enter(MachineState::Suspect { since: now, last_sign_at: now });
            }
            MachineState::Unconfirmed { .. } => self.confirm(now),
            MachineState::NoMaster { .. } if !published && !self.is_cut_off() => self.confirm(now),
            _ => {}
        }
    }

    /// Whether a doubt closes the gate, now or from now on. Ends a doubt that led to nothing.
    fn closes_gate(&mut self, now: Instant) -> bool {
        let Some(doubt) = &self.doubt else { return false };
        if doubt.grave {
            return true;
        }
        let answered = self.last_confirmation().is_some();
        let recently = doubt
            .until
            .checked_sub(self.rules.unreachable)
            .map_or(doubt.since, |at| at.max(doubt.since));
        if doubt.majority_silent || self.electorate.is_majority_heard_since(recently) {
            if answered {
                self.doubt = None;
            }
            return false;
        }
        let lost = answered || now.saturating_duration_since(doubt.since) >= self.rules.unreachable;
        if let Some(doubt) = self.doubt.as_mut().filter(|_| lost) {
            (doubt.grave, doubt.no_answers) = (true, true);
        }
        lost
    }

    /// For a long time neither the sentinels nor the master, which is reachable, has answered: the
    /// network is too slow for queries. Traffic may still get through, and waiting longer reveals
    /// nothing.
    fn is_network_slow(&self, now: Instant) -> bool {
        let Some(doubt) = self.doubt.as_ref().filter(|doubt| doubt.no_answers) else {
            return false;
        };
        let long = now.saturating_duration_since(doubt.since) >= self.rules.verify_deadline;
        long && self.minority_policy() == Minority::Keep
            && self.last_confirmation().is_none()
            && !self.electorate.majority_answers()
    }

    /// The answer of the committed node to a query sent after the last sign of the doubt, if it
    /// verifies or the credentials do not permit the query.
    fn last_confirmation(&self) -> Option<&Probe> {
        let (doubt, committed) = (self.doubt.as_ref()?, self.committed.as_ref()?);
        let last = self.nodes.get(&committed.addr)?.last_since(doubt.until)?;
        let speaks = match &last.outcome {
            Ok(report) => verifies(report, self.rules.verify),
            Err(ProbeFailure::Denied) => true,
            Err(ProbeFailure::ConnectionRejected | ProbeFailure::Busy) => {
                self.is_seen_as_same(doubt, committed)
            }
            Err(_) => false,
        };
        speaks.then_some(last)
    }

    fn confirm(&mut self, now: Instant) {
        if self.is_superseded() {
            return;
        }
        let Some((doubt, committed, answer)) = self.doubted() else { return };
        let refused = answer.outcome.is_err();
        let relation = match &answer.outcome {
            Ok(report) => relation(committed, report),
            Err(_) if self.is_seen_as_same(doubt, committed) => ProcessRelation::Same,
            // A process that refuses the query may be any process: it is treated like one with
            // another history.
            Err(_) => ProcessRelation::Unrelated,
        };
        let begins = !doubt.is_third && !self.not_counting(relation).is_empty();
        if begins {
            self.doubt(now, now, true).is_third = true;
            return self.warn_of_another(true);
        }
        let same = committed.published && relation == ProcessRelation::Same;
        let Some(patience) = self.patience(now, relation, same) else { return };
        let is_down = doubt.is_first && self.is_seen_down(Some(doubt.until));
        let least = if is_down { self.rules.verify_deadline } else { Duration::ZERO };
        if now.saturating_duration_since(doubt.until) < patience.max(least) {
            return;
        }
        let (addr, epoch) = (committed.addr.clone(), committed.epoch);
        if same || (committed.published && refused) {
            self.doubt = None;
            self.enter(MachineState::Suspect { since: now, last_sign_at: now });
        } else if !refused {
            let successor = answer.outcome.as_ref().ok().map(process);
            if let Some(doubt) = &mut self.doubt {
                doubt.successor = successor;
            }
            self.pursue(now, addr, epoch, Basis::Reconfirmed);
        }
    }

    pub(super) fn is_replica_since(&self, addr: &NodeAddr, since: Instant) -> bool {
        let last = self.nodes.get(addr).and_then(|node| node.last_since(since));
        let report = last.and_then(|probe| probe.outcome.as_ref().ok());
        report.is_some_and(|report| matches!(report.role, Role::Replica { .. }))
    }

    fn doubted(&self) -> Option<(&Doubt, &Committed, &Probe)> {
        Some((self.doubt.as_ref()?, self.committed.as_ref()?, self.last_confirmation()?))
    }

    /// How long after the last sign of the doubt the current answers become sufficient; `None` if
    /// time alone does not help.
    fn patience(&self, now: Instant, relation: ProcessRelation, same: bool) -> Option<Duration> {
        let (doubt, committed, answer) = self.doubted()?;
        let lineage = answer.outcome.as_ref().ok().and_then(|report| report.lineage.as_ref());
        let process = lineage.map(|it| &*it.run_id).filter(|_| doubt.is_another);
        // A vote for the same master at a higher epoch confirms it, too.
        let all = || self.electorate.own_votes_since(doubt.until);
        let votes = || all().filter(|(.., epoch)| *epoch >= committed.epoch);
        let ours = |addr: &NodeAddr| *addr == committed.addr;
        let agreeing: BTreeSet<&MyId> =
            all().filter(|(_, addr, _)| ours(addr)).map(|(id, ..)| id).collect();
        let void = self.not_counting(relation);
        let knows =
            |id: &MyId| self.knows_process(id, doubt, relation, process) && !void.contains(id);
        let confirming: BTreeSet<&MyId> =
            votes().filter(|(id, addr, _)| ours(addr) && knows(id)).map(|(id, ..)| id).collect();
        // At the same epoch, a claim for a node that reports itself a replica does not count.
        let refuted = |addr: &NodeAddr, epoch| {
            epoch == committed.epoch && self.is_replica_since(addr, doubt.until)
        };
        let opposed = votes().any(|(_, addr, epoch)| !ours(addr) && !refuted(addr, epoch));
        let is_void = |addr: &NodeAddr, epoch| self.leads_nowhere(now, addr, epoch, doubt.until);
        let newer = votes()
            .any(|(_, it, epoch)| !ours(it) && epoch > committed.epoch && !is_void(it, epoch));
        let trusted = || {
            let views = self.electorate.trusted_views(Some(doubt.until));
            views.filter(|view| !view.tilt && !is_void(&view.addr, view.epoch))
        };
        let views: Vec<&View> = trusted().collect();
        if relation == ProcessRelation::Unrelated && self.may_be_replaced(&views, &confirming) {
            return None;
        }
        if doubt.is_another && self.is_disputed(process, doubt, committed, &confirming) {
            return None;
        }
        // A majority for another node that is a master is no silence, at whatever epoch.
        let others = all().filter(|(_, addr, _)| {
            !ours(addr) && self.verified_since(addr, doubt.until) == Some(true)
        });
        if self.electorate.is_majority(&others.map(|(id, ..)| id).collect()) {
            return None;
        }
        // A failover in progress may promote at any moment, but one that hangs must not stop
        // traffic forever.
        let failing_over = trusted().any(|view| view.replaces(&committed.addr));
        let waits = failing_over && !doubt.has_held;
        let calm = if waits { self.rules.hold_max } else { Duration::ZERO };
        let has_heard_replicas = self.has_heard_replicas(Some(doubt.until));
        if !newer && self.may_decide(&confirming) {
            // One of them may have been promoted, and its leader be out of reach.
            let all_answer = self.electorate.members().all(|(id, ..)| confirming.contains(id));
            let is_told = all_answer || has_heard_replicas;
            Some(if is_told { calm } else { self.rules.bootstrap_grace.max(calm) })
        } else if !opposed
            && relation != ProcessRelation::Unrelated
            && self.may_decide(&agreeing)
            && has_heard_replicas
        {
            // Sentinels that were configured anew begin at epoch 0. They say nothing about a
            // failover before that, but a promoted replica does.
            Some(calm)
        } else if !opposed && !confirming.is_empty() {
            Some(self.rules.bootstrap_grace.max(calm))
        } else if !same || (self.minority_policy() != Minority::Keep && !opposed) {
            None
        } else if opposed {
            Some(self.rules.verify_deadline)
        } else {
            Some(self.rules.view_expiry)
        }
    }

    /// The sentinels that do not count about a process with another history: those that see a third
    /// one, and all until one sees this process, for up to ten seconds.
    fn not_counting(&self, relation: ProcessRelation) -> BTreeSet<&MyId> {
        let Some((doubt, committed, answer)) = self.doubted() else { return BTreeSet::new() };
        let lineage = answer.outcome.as_ref().ok().and_then(|report| report.lineage.as_ref());
        let asks = relation == ProcessRelation::Unrelated
            && !doubt.is_another
            && self.orders.in_force.is_none();
        let Some(Lineage { run_id, .. }) = lineage.filter(|_| asks) else { return BTreeSet::new() };
        let third = self.seeing_third(committed, run_id);
        if third.is_empty() || self.electorate.is_seen(run_id) {
            return third;
        }
        self.electorate.members().map(|(id, ..)| id).collect()
    }

    /// Whether a sentinel is about to replace the master, or may begin to: for that, the quorum has
    /// to find it down, to which those that have reached this process do not belong.
    fn may_be_replaced(&self, views: &[&View], confirming: &BTreeSet<&MyId>) -> bool {
        let reaching = self.electorate.member_views();
        let reaching = reaching.filter(|(id, view)| confirming.contains(id) && !view.down).count();
        let sentinels = views.iter().map(|view| view.peers.len() + 1).max().unwrap_or(0);
        let others = sentinels.max(self.electorate.size()).saturating_sub(reaching);
        let may_agree = views.iter().any(|view| view.quorum <= others);
        let is_due = |view: &&View| view.failing_over || view.rebooted || view.objectively_down;
        views.iter().any(|view| is_due(view) || (view.down && may_agree))
    }

    /// Whether this sentinel knows which process it confirms. It may not have noticed yet that
    /// another one answers, or not reach it.
    fn knows_process(
        &self,
        id: &MyId,
        doubt: &Doubt,
        relation: ProcessRelation,
        process: Option<&str>,
    ) -> bool {
        match process {
            Some(run_id) => self.electorate.sees(id, run_id),
            None if relation == ProcessRelation::Unrelated => {
                self.electorate.has_reached_since(id, doubt.until)
            }
            None => true,
        }
    }

    /// Whether no sentinel sees this process, or some see another one and too few see this one. Of
    /// a process that hides its `run_id`: whether others do not see the committed one.
    fn is_disputed(
        &self,
        process: Option<&str>,
        doubt: &Doubt,
        committed: &Committed,
        seeing: &BTreeSet<&MyId>,
    ) -> bool {
        let Some(process) = process else { return !self.is_seen_as_same(doubt, committed) };
        let mut views = self.electorate.trusted_views(Some(doubt.until));
        let is_other = |view: &View| is_another(view, committed, process, false);
        (seeing.is_empty() || views.any(is_other)) && !self.may_decide(seeing)
    }
}
