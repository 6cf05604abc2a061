//! Which replicas readers may be sent to: decides, and nothing else.
//!
//! Two witnesses are heard. The sentinels say which replicas there are and what they hold of them;
//! our own questions say what a replica holds of itself. The first alone is not enough: for about
//! ten seconds after a planned failover every sentinel lists the old master as a replica that is
//! up, while it still says `role:master`. So a replica is *eligible* while it is listed, not held
//! to be down by most of those who list it, says by itself that it follows the committed master
//! over a link that is up, answers `PING`, and is not too far behind.
//!
//! **What has just been shaken is not judged by its dust.** While the master is in question every
//! replica's link is down, and right after a switch observers list all replicas as disconnected.
//! Emptying the pool then would take reads away in the very moment in which replicas are all there
//! is. So until things have been calm for a while, who is eligible stays so on its own answers: it
//! need not have its link, but it must answer, must not be a master, and must not be the one about
//! to be promoted.
//!
//! **Out at once, back slowly.** A replica that was ejected has to be sound without a break for a
//! while before it is readmitted, and its lag has to fall to half of what ejects it. One that is
//! seen for the first time comes in with its first sound answer.
//!
//! Ejected means worse than others. *Barred* means wrong: a master, or a node with another history.
//! Not a byte may go there.
//!
//! Deliberately absent: sockets, the clock, the pool itself, and any preference among the eligible.

mod fault;
mod lag;
mod pause;
#[cfg(test)]
mod property_tests;
mod sign;
mod standing;
#[cfg(test)]
mod tests;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fault::{fault, is_wrong};
pub use lag::Lag;
use lag::Past;
pub(crate) use pause::Pause;
pub(crate) use sign::Sign;
use sign::Signs;
pub use standing::ReplicaState;
pub(crate) use views::listed;

use crate::{NodeAddr, NodeReport, Probe, ProbeFailure, ReplicaRules, Role};

/// The most replicas of one master; the machine watches no more either.
const MOST: usize = 64;

/// A node that nobody lists any more is not asked any more, so nobody knows what it becomes: after
/// this long nothing goes there.
const UNLISTED_FOR: Duration = Duration::from_secs(30);

/// The first set is published at the latest this long after the first master, and after a stall of
/// the process.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// The master that replicas are measured by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leader<'a> {
    pub(crate) addr: &'a NodeAddr,
    pub(crate) dialled: SocketAddr,
    /// The histories that its followers may name as theirs; empty where they could not be read.
    pub(crate) replid: &'a str,
    pub(crate) replid2: &'a str,
}

/// What is known apart from the replicas' own answers.
#[derive(Debug, Clone)]
pub(crate) struct Facts<'a> {
    /// The committed master, published or not. Without one there is nothing to follow.
    pub(crate) leader: Option<Leader<'a>>,
    /// Whoever is about to be promoted.
    pub(crate) candidate: Option<&'a NodeAddr>,
    /// Nothing is in question at this moment.
    pub(crate) calm: bool,
    /// By the operator's choice nothing may be served: the sentinels are a provable minority.
    pub(crate) cut_off: bool,
    /// Who is listed, and whether most of those who list it hold it to be sound. `None` while
    /// nobody says anything about this master: silence takes nobody away.
    pub(crate) listed: Option<BTreeMap<NodeAddr, bool>>,
}

/// Where one replica stands, for whoever looks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listed<'a> {
    pub(crate) addr: &'a NodeAddr,
    pub(crate) dialled: Option<SocketAddr>,
    pub(crate) standing: ReplicaState,
    pub(crate) lag: Lag,
}

/// A replica that readers may be sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its announced address.
    pub addr: NodeAddr,
    /// The address that was probed.
    pub dialled: SocketAddr,
    /// Its `run_id`, where known.
    pub run_id: Option<Box<str>>,
}

/// What follows from all that is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ruling {
    /// The whole set; `None` while it is too early to say.
    pub members: Option<Vec<Member>>,
    /// Nothing may go to these any more.
    pub barred: BTreeSet<SocketAddr>,
    /// Whose standing changed: from, to.
    pub changes: Vec<(NodeAddr, ReplicaState, ReplicaState)>,
}

/// An answer that was a report.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    asked_at: Instant,
    report: NodeReport,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    standing: ReplicaState,
    /// What was heard last, to hear it once.
    heard: Option<Probe>,
    answer: Option<Answer>,
    /// Why questions since the last report got none, and how many.
    failed: Option<(ProbeFailure, u32)>,
    /// The process that was let in, where known.
    process: Option<Box<str>>,
    healthy: bool,
    unlisted_since: Option<Instant>,
    /// Without a fault since.
    sound_since: Option<Instant>,
    lag: Lag,
    signs: Signs,
}

/// All replicas of one master.
#[derive(Debug, Clone)]
pub struct Eligibility {
    rules: ReplicaRules,
    entries: BTreeMap<NodeAddr, Entry>,
    past: Past,
    leader: Option<NodeAddr>,
    /// Until when things count as shaken.
    shaken_until: Option<Instant>,
    /// While set, it is too early to say anything: since when, and which answers are too old.
    blind_since: Option<Instant>,
}

impl Eligibility {
    /// Nobody is known yet.
    #[must_use]
    pub fn new(rules: ReplicaRules) -> Self {
        Self {
            rules,
            entries: BTreeMap::new(),
            past: Past::default(),
            leader: None,
            shaken_until: None,
            blind_since: None,
        }
    }

    /// Where each replica stands.
    pub(crate) fn standings(&self) -> impl Iterator<Item = Listed<'_>> {
        self.entries.iter().map(|(addr, entry)| {
            let dialled = entry.answer.as_ref().map(|answer| answer.report.dialled);
            Listed { addr, dialled, standing: entry.standing, lag: entry.lag }
        })
    }

    /// What sessions on the replicas have to know of them.
    pub(crate) fn signs(&self, now: Instant) -> impl Iterator<Item = Sign<'_>> {
        let unanswered = self.blind_since.is_none().then_some(self.rules.unanswered);
        self.entries.iter().map(move |(addr, entry)| {
            let lineage = entry.answer.as_ref().and_then(|answer| answer.report.lineage.as_ref());
            let sign = entry.signs.tell(now, (addr, lineage.map(|it| &*it.run_id)), unanswered);
            Sign { candidate: entry.standing == ReplicaState::Candidate, ..sign }
        })
    }

    /// The process was stopped: every answer is from before, and nothing that was said may be
    /// believed until the members have been asked again.
    pub fn wake(&mut self, now: Instant) {
        self.blind_since = Some(now);
    }

    /// Whether what was published last may be believed.
    pub(crate) fn sees(&self) -> bool {
        self.blind_since.is_none()
    }

    /// The last answer of a node, whichever it is, as often as anybody likes.
    fn hear(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
        if let (Ok(NodeReport { role: Role::Master, offset: Some(offset), .. }), true) =
            (&probe.outcome, self.leader.as_ref() == Some(node))
        {
            self.past.note(probe.asked_at, now, *offset);
        }
        let past = &self.past;
        let Some(entry) = self.entries.get_mut(node) else { return };
        if entry.heard.as_ref() == Some(probe) {
            return;
        }
        entry.heard = Some(probe.clone());
        entry.signs.hear(now, probe);
        match &probe.outcome {
            Ok(report) => {
                entry.failed = None;
                entry.lag = report
                    .offset
                    .map_or_else(Lag::default, |offset| past.lag(probe.asked_at, offset));
                entry.answer = Some(Answer { asked_at: probe.asked_at, report: report.clone() });
            }
            Err(failure) => {
                let times = entry.failed.map_or(0, |(_, times)| times);
                entry.failed = Some((*failure, times.saturating_add(1)));
            }
        }
    }

    /// Brings every standing up to date with the facts and the nodes' last answers. To be called
    /// after whatever may have changed one, and now and then.
    pub(crate) fn judge<'a>(
        &mut self,
        now: Instant,
        facts: &Facts<'_>,
        answers: impl Iterator<Item = (&'a NodeAddr, &'a Probe)>,
    ) -> Ruling {
        let mut ruling = Ruling::default();
        let Some(leader) = facts.leader else { return ruling };
        self.follow(now, &leader, facts.calm);
        self.list(now, &leader, facts.listed.as_ref(), &mut ruling.barred);
        answers.for_each(|(node, probe)| self.hear(now, node, probe));
        self.open_eyes(now);
        ruling.barred.insert(leader.dialled);
        let shaken = self.shaken_until.is_some_and(|until| now < until);
        for (addr, entry) in &mut self.entries {
            let known = entry.answer.as_ref().map(|answer| answer.report.dialled);
            if let (Some(dialled), true) = (known, is_wrong(entry, addr, &leader, shaken)) {
                ruling.barred.insert(dialled);
            }
            if self.blind_since.is_some() {
                // What is known is too old to put anybody out for it.
                continue;
            }
            let fault = fault(entry, addr, now, &self.rules, &leader, facts, shaken);
            let standing = entry.settle(now, fault, self.rules.readmit);
            if standing == ReplicaState::Eligible && !shaken {
                entry.process = entry.run_id();
            }
            if standing != entry.standing {
                ruling.changes.push((addr.clone(), entry.standing, standing));
                entry.standing = standing;
            }
        }
        if self.blind_since.is_none() {
            ruling.members = Some(self.members(&ruling.barred));
        }
        ruling
    }

    fn members(&self, barred: &BTreeSet<SocketAddr>) -> Vec<Member> {
        let eligible =
            self.entries.iter().filter(|(_, entry)| entry.standing == ReplicaState::Eligible);
        let members = eligible.filter_map(|(addr, entry)| {
            let dialled = entry.answer.as_ref()?.report.dialled;
            Some(Member { addr: addr.clone(), dialled, run_id: entry.run_id() })
        });
        members.filter(|member| !barred.contains(&member.dialled)).collect()
    }

    /// A new master begins a new past, and so does a first one.
    fn follow(&mut self, now: Instant, leader: &Leader<'_>, calm: bool) {
        if self.leader.as_ref() != Some(leader.addr) {
            if self.leader.is_none() {
                self.blind_since = Some(now);
            }
            self.leader = Some(leader.addr.clone());
            self.past.forget();
            self.shaken_until = Some(now + self.rules.settle);
        }
        if !calm {
            self.shaken_until = Some(now + self.rules.settle);
        }
    }

    /// Takes in who is listed. Who is not any more stays for a while, to be barred in the end.
    fn list(
        &mut self,
        now: Instant,
        leader: &Leader<'_>,
        listed: Option<&BTreeMap<NodeAddr, bool>>,
        barred: &mut BTreeSet<SocketAddr>,
    ) {
        let Some(listed) = listed else { return };
        for (addr, healthy) in listed {
            if self.entries.len() < MOST || self.entries.contains_key(addr) {
                let entry = self.entries.entry(addr.clone()).or_insert_with(Entry::new);
                (entry.healthy, entry.unlisted_since) = (*healthy, None);
            }
        }
        self.entries.retain(|addr, entry| {
            if listed.contains_key(addr) {
                return true;
            }
            let since = *entry.unlisted_since.get_or_insert(now);
            // Of the master itself it is known what it became.
            let over = addr == leader.addr || now.saturating_duration_since(since) >= UNLISTED_FOR;
            if let (true, Some(answer)) = (over, &entry.answer) {
                barred.insert(answer.report.dialled);
            }
            !over
        });
    }

    /// Whether there is enough to say something for the first time, or for the first time after a
    /// stall: an answer of everybody, or time enough for one. What was answered before a stall is
    /// forgotten then.
    fn open_eyes(&mut self, now: Instant) {
        let Some(since) = self.blind_since else { return };
        let fresh =
            |entry: &Entry| entry.answer.as_ref().is_some_and(|answer| answer.asked_at >= since);
        let heard = |entry: &Entry| fresh(entry) || entry.failed.is_some();
        let all = !self.entries.is_empty() && self.entries.values().all(heard);
        if all || now.saturating_duration_since(since) >= FIRST_LOOK {
            self.blind_since = None;
            self.entries
                .values_mut()
                .filter(|entry| !fresh(entry))
                .for_each(|entry| entry.answer = None);
        }
    }
}

impl Entry {
    fn new() -> Self {
        Self {
            standing: ReplicaState::Unknown,
            heard: None,
            answer: None,
            failed: None,
            process: None,
            healthy: false,
            unlisted_since: None,
            sound_since: None,
            lag: Lag::default(),
            signs: Signs::default(),
        }
    }

    fn run_id(&self) -> Option<Box<str>> {
        self.answer.as_ref()?.report.lineage.as_ref().map(|lineage| lineage.run_id.clone())
    }

    /// Whether who answers now is who was let in, as far as that can be known.
    fn is_the_same_process(&self) -> bool {
        self.process.is_none() || self.run_id().is_none_or(|now| self.process == Some(now))
    }

    /// The standing that follows from a fault, or from none: who was out has to be sound for a
    /// while.
    fn settle(
        &mut self,
        now: Instant,
        fault: Option<ReplicaState>,
        readmit: Duration,
    ) -> ReplicaState {
        if let Some(fault) = fault {
            self.sound_since = None;
            return fault;
        }
        let since = *self.sound_since.get_or_insert(now);
        let known = !matches!(self.standing, ReplicaState::Eligible | ReplicaState::Unknown);
        if known && now.saturating_duration_since(since) < readmit {
            ReplicaState::Recovering
        } else {
            ReplicaState::Eligible
        }
    }
}
