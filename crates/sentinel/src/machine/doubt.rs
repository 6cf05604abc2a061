//! Doubt: when the published master's own word is not enough to send it anything.
//!
//! While this process is stopped, or reaches neither the master nor the sentinels, a failover may
//! run its whole course. The superseded master says `role:master` for about ten more seconds, so
//! that it answers as it always did proves nothing. The same holds for an address at which another
//! process answers than before. A doubt begins
//!
//! - when this process was stopped;
//! - when the master proved unreachable, or was taken away;
//! - when another process answers at its address;
//! - when it failed to answer while no majority of the sentinels could be heard either. If these
//!   were silent long before, nothing was lost with the master that was there before, and there is
//!   no doubt.
//!
//! It ends with a commit, or when the master answers and sentinels confirm it in views that were
//! asked for *after the last sign of the doubt*: a majority at once; fewer after a grace like that
//! of the start, if none contradicts; and the very same process also without any sentinel, or
//! against a claim that nothing comes of, after a longer one, since silence takes no master away
//! (S5). Where neither the master nor any majority answers for ten seconds, although the master is
//! not out of reach, the network is only too slow for questions. Another process is never used
//! again without a vote. One that does not even continue the history may be an empty pod at a
//! reused address, which the sentinels are about to replace: it needs views without any sign of
//! that. A process that refuses the question is treated the same way, unless a majority of the
//! sentinels sees the process that was committed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::nodes::verifies;
use super::state::{Basis, Lack, State};
use super::{Action, Committed, Machine, Note};
use crate::{Minority, MyId, NodeAddr, Probe, ProbeFailure, Report, Role, View};

/// See the module's header.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Doubt {
    /// Its first sign.
    since: Instant,
    /// Its last sign: nothing that was asked before this says anything about now.
    until: Instant,
    /// The gate stays shut until it ends. Before that it is a failed question, of which nothing may
    /// come.
    grave: bool,
    /// No majority of the sentinels could be heard when it began.
    alone: bool,
    /// It is grave only because neither the master nor the sentinels answered.
    mutual: bool,
    /// The process that answers at the address of the one that was committed.
    successor: Option<Box<str>>,
}

impl Doubt {
    /// When something changes although nothing happens: the ends of the graces.
    pub(super) fn deadlines(&self, rules: &crate::Rules) -> [Instant; 5] {
        let graces =
            [rules.hold_max, rules.bootstrap_grace, rules.view_expiry, rules.verify_deadline];
        let [one, two, three, four] = graces.map(|grace| self.until + grace);
        [self.since + rules.unreachable, one, two, three, four]
    }
}

/// How the process that answers now is related to the one that was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinship {
    /// It is the same one, as far as can be read.
    Same,
    /// Another process with the same history, or one of which that cannot be read at another
    /// address.
    Restarted,
    /// Another process with another history.
    Stranger,
}

fn kinship(committed: &Committed, report: &Report) -> Kinship {
    match (&committed.lineage, &report.lineage) {
        (Some(old), Some(new)) if old.run_id == new.run_id => Kinship::Same,
        (Some(old), Some(new)) if new.continues(old) => Kinship::Restarted,
        (Some(_), Some(_)) => Kinship::Stranger,
        _ if committed.dialled == report.dialled => Kinship::Same,
        _ => Kinship::Restarted,
    }
}

/// What tells one process from another.
fn process(report: &Report) -> Box<str> {
    report
        .lineage
        .as_ref()
        .map_or_else(|| report.dialled.to_string().into(), |lineage| lineage.run_id.clone())
}

impl Machine {
    /// The committed master failed to answer, or answered that it is none, to a question of
    /// `asked_at`.
    pub(super) fn doubt(&mut self, now: Instant, asked_at: Instant, grave: bool) -> &mut Doubt {
        let alone = !self.electorate.majority_speaks();
        let new =
            Doubt { since: asked_at, until: now, grave, alone, mutual: false, successor: None };
        let doubt = self.doubt.get_or_insert(new);
        doubt.until = doubt.until.max(now);
        doubt.grave |= grave;
        doubt.mutual &= !grave;
        doubt
    }

    /// The published master answered as a master has to.
    pub(super) fn target_answered(&mut self, now: Instant, asked_at: Instant, report: &Report) {
        let Some(committed) = self.committed.as_mut() else { return };
        match kinship(committed, report) {
            Kinship::Same => {
                if report.lineage.is_some() {
                    committed.lineage.clone_from(&report.lineage);
                }
                if committed.dialled != report.dialled {
                    committed.dialled = report.dialled;
                    self.actions.push(Action::Redirect(report.dialled));
                }
            }
            Kinship::Restarted | Kinship::Stranger => {
                if self.notes_another_process(now, asked_at, report) {
                    self.actions.push(Action::Note(Note::Rebooted));
                    self.next_ask = now;
                }
            }
        }
    }

    /// Begins a doubt, or begins it anew, if another process than before answers at the address of
    /// the committed master: votes from before that are about the former one, which may answer
    /// again. Whether that is so.
    pub(super) fn notes_another_process(
        &mut self,
        now: Instant,
        asked_at: Instant,
        report: &Report,
    ) -> bool {
        let Some(committed) = &self.committed else { return false };
        let process = process(report);
        let known = self.doubt.as_ref().and_then(|doubt| doubt.successor.as_ref());
        if kinship(committed, report) == Kinship::Same || known == Some(&process) {
            return false;
        }
        self.doubt(now, asked_at, true).successor = Some(process);
        true
    }

    /// What answers now in place of the master that is about to be used again is no master, or yet
    /// another process: then what the sentinels said was about the one before.
    pub(super) fn doubts_again(&mut self, now: Instant, probe: &Probe) -> bool {
        let Some(committed) = &self.committed else { return false };
        let published = committed.published;
        let good = probe.outcome.as_ref().ok().filter(|report| verifies(report, self.rules.verify));
        let successor = match good.map(|report| (kinship(committed, report), process(report))) {
            Some((Kinship::Same, _)) => return false,
            Some((_, process))
                if self
                    .doubt
                    .as_ref()
                    .is_some_and(|it| it.successor.as_ref() == Some(&process)) =>
            {
                return false;
            }
            other => other.map(|(_, process)| process),
        };
        self.doubt(now, probe.asked_at, true).successor = successor;
        let lack = Lack::Unverified;
        self.state = if published {
            State::Unconfirmed { since: now }
        } else {
            State::NoMaster { lack, since: now }
        };
        self.next_ask = now;
        true
    }

    /// Whether the master must not be used until a doubt is over.
    pub(super) fn is_in_grave_doubt(&self) -> bool {
        self.doubt.as_ref().is_some_and(|doubt| doubt.grave)
    }

    /// Shuts the gate for a doubt, and opens it or commits anew when the doubt is over.
    pub(super) fn weigh_doubt(&mut self, now: Instant) {
        let published = self.committed.as_ref().is_some_and(|committed| committed.published);
        if matches!(self.state, State::Stable | State::Suspect { .. }) && self.loses_sight(now) {
            self.state = State::Unconfirmed { since: now };
            self.next_ask = now;
            self.nodes.hurry(now);
        }
        match &self.state {
            State::NoMaster { lack: Lack::Unreachable, .. }
                if published && self.last_word().is_some() =>
            {
                self.state = State::Unconfirmed { since: now };
                self.next_ask = now;
            }
            _ => {}
        }
        match &self.state {
            State::Unconfirmed { .. } if self.is_only_slow(now) => {
                self.doubt = None;
                self.state = State::Suspect { since: now, fed_at: now };
            }
            State::Unconfirmed { .. } => self.confirm(now),
            State::NoMaster { .. } if !published && !self.is_cut_off() => self.confirm(now),
            _ => {}
        }
    }

    /// Whether a doubt is, or has just become, one that shuts the gate. Ends one of which nothing
    /// came.
    fn loses_sight(&mut self, now: Instant) -> bool {
        let Some(doubt) = &self.doubt else { return false };
        if doubt.grave {
            return true;
        }
        let answered = self.last_word().is_some();
        let recently = doubt
            .until
            .checked_sub(self.rules.unreachable)
            .map_or(doubt.since, |at| at.max(doubt.since));
        if doubt.alone || self.electorate.majority_spoke_since(recently) {
            if answered {
                self.doubt = None;
            }
            return false;
        }
        let lost = answered || now.saturating_duration_since(doubt.since) >= self.rules.unreachable;
        if let Some(doubt) = self.doubt.as_mut().filter(|_| lost) {
            (doubt.grave, doubt.mutual) = (true, true);
        }
        lost
    }

    /// Nobody has answered for long, neither the master, which is not out of reach, nor the
    /// sentinels: as over a network that is too slow for questions. Traffic may still find its way,
    /// and waiting longer tells nothing.
    fn is_only_slow(&self, now: Instant) -> bool {
        let Some(doubt) = self.doubt.as_ref().filter(|doubt| doubt.mutual) else { return false };
        let long = now.saturating_duration_since(doubt.since) >= self.rules.verify_deadline;
        long && self.rules.minority == Minority::Keep
            && self.last_word().is_none()
            && !self.electorate.majority_speaks()
    }

    /// The answer of the committed node to a question from after the last sign of the doubt, if it
    /// verifies or must not be asked.
    fn last_word(&self) -> Option<&Probe> {
        let (doubt, committed) = (self.doubt.as_ref()?, self.committed.as_ref()?);
        let last = self.nodes.get(&committed.addr)?.last.as_ref()?;
        let speaks = match &last.outcome {
            Ok(report) => verifies(report, self.rules.verify),
            Err(ProbeFailure::Denied) => true,
            Err(ProbeFailure::ConnectionRejected) => self.sentinels_see_the_same(doubt, committed),
            Err(_) => false,
        };
        (speaks && last.asked_at >= doubt.until).then_some(last)
    }

    fn confirm(&mut self, now: Instant) {
        let Some((doubt, committed, word)) = self.doubted() else { return };
        let refused = word.outcome.is_err();
        let kinship = match &word.outcome {
            Ok(report) => kinship(committed, report),
            Err(_) if self.sentinels_see_the_same(doubt, committed) => Kinship::Same,
            // A process that refuses the question may be any process: it is used like one without
            // the history.
            Err(_) => Kinship::Stranger,
        };
        let same = committed.published && kinship == Kinship::Same;
        let Some(patience) = self.patience(doubt, committed, kinship, same) else { return };
        if now.saturating_duration_since(doubt.until) < patience {
            return;
        }
        let (addr, epoch) = (committed.addr.clone(), committed.epoch);
        if same || (committed.published && refused) {
            self.doubt = None;
            self.state = State::Suspect { since: now, fed_at: now };
        } else if !refused {
            let successor = word.outcome.as_ref().ok().map(process);
            if let Some(doubt) = &mut self.doubt {
                doubt.successor = successor;
            }
            self.pursue(now, addr, epoch, Basis::Again);
        }
    }

    /// A master that is full turns the question away. Sentinels are connected already: if a
    /// majority sees the very process that was committed, and sees it up, it is there.
    fn sentinels_see_the_same(&self, doubt: &Doubt, committed: &Committed) -> bool {
        let Some(lineage) = &committed.lineage else { return false };
        let same = |view: &View| {
            view.addr == committed.addr && view.run_id == lineage.run_id && !view.down
        };
        let votes = self.electorate.member_views().filter(|(_, view)| same(view)).map(|(id, _)| id);
        let fresh: BTreeSet<&MyId> =
            self.electorate.own_votes_since(doubt.until).map(|(id, ..)| id).collect();
        self.electorate.is_majority(&votes.filter(|id| fresh.contains(id)).collect())
    }

    fn is_replica_since(&self, addr: &NodeAddr, since: Instant) -> bool {
        let last = self
            .nodes
            .get(addr)
            .and_then(|node| node.last.as_ref())
            .filter(|probe| probe.asked_at >= since);
        last.is_some_and(|probe| {
            matches!(&probe.outcome, Ok(Report { role: Role::Replica { .. }, .. }))
        })
    }

    fn doubted(&self) -> Option<(&Doubt, &Committed, &Probe)> {
        Some((self.doubt.as_ref()?, self.committed.as_ref()?, self.last_word()?))
    }

    /// How long after the last sign of the doubt what is heard suffices; `None` if time alone does
    /// not help.
    fn patience(
        &self,
        doubt: &Doubt,
        committed: &Committed,
        kinship: Kinship,
        same: bool,
    ) -> Option<Duration> {
        // A vote for the same master at a higher epoch confirms it, too.
        let votes = || {
            self.electorate
                .own_votes_since(doubt.until)
                .filter(|(.., epoch)| *epoch >= committed.epoch)
        };
        let ours = |addr: &NodeAddr| *addr == committed.addr;
        let confirming: BTreeSet<&MyId> =
            votes().filter(|(_, addr, _)| ours(addr)).map(|(id, ..)| id).collect();
        // At the same epoch a claim for a node that says itself that it is a replica is none.
        let refuted = |addr: &NodeAddr, epoch| {
            epoch == committed.epoch && self.is_replica_since(addr, doubt.until)
        };
        let opposed = votes().any(|(_, addr, epoch)| !ours(addr) && !refuted(addr, epoch));
        let newer = votes().any(|(_, addr, epoch)| !ours(addr) && epoch > committed.epoch);
        let views = || self.electorate.member_views_since(doubt.until).filter(|view| !view.tilt);
        if kinship == Kinship::Stranger
            && views().any(|view| view.down || view.failing_over || view.rebooted)
        {
            return None;
        }
        // A failover that is under way may promote any moment now; but one that hangs must not stop
        // traffic for ever.
        let failing_over = views().any(|view| view.failing_over && view.addr == committed.addr);
        let calm = if failing_over { self.rules.hold_max } else { Duration::ZERO };
        if !newer && self.electorate.is_majority(&confirming) {
            Some(calm)
        } else if !opposed && !confirming.is_empty() {
            Some(self.rules.bootstrap_grace.max(calm))
        } else if !same || (self.rules.minority != Minority::Keep && !opposed) {
            None
        } else if opposed {
            Some(self.rules.verify_deadline)
        } else {
            Some(self.rules.view_expiry)
        }
    }
}
