//! One service: its machine, the points it moves, and the canaries it sends out.
//!
//! The machine decides; this carries out. Nothing here has an opinion.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use target::{ClockReading, Destination, ReplyPolicy, TargetWriter};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::discovery::Incoming;
use crate::discovery::failover_history::FailoverHistory;
use crate::discovery::learned_addresses::{AddressMap, LearnedAddresses};
use crate::discovery::snapshot::{
    Counts, DiscoverySnapshot, MasterSnapshot, NodeSnapshot, SentinelSnapshot,
};
use crate::link::auth::Denied;
use crate::link::links::Links;
use crate::link::poll::Peer;
use crate::prober::ProberFactory;
use crate::prober::prober_set::ProberSet;
use crate::rate_limiter::Voice;
use crate::replicas::publisher::{ReplicaPublisher, Replicas};
use crate::{Action, Commit, Event, Finding, Machine, MyId, NodeAddr, Note, Probe, Rules, View};

/// What is wrong with a configured sentinel that has no vote.
const STRANGER: &str = "no sentinel with a vote knows it, and it knows none of them: it has no vote. Does it watch the same master?";

pub(crate) struct ServiceRuntime {
    pub(crate) number: usize,
    pub(crate) name: Arc<str>,
    machine: Machine,
    points: TargetWriter,
    /// The readers' side, where there is one.
    yard: Option<ReplicaPublisher>,
    /// How long the points may be believed after a look at everything: what the machine calls a
    /// stall.
    trust: Duration,
    aviary: ProberSet,
    learnt: LearnedAddresses,
    /// How many sentinels the configuration leads to.
    expected: usize,
    master: Option<MasterSnapshot>,
    stopped_since: Option<Instant>,
    held_since: Option<Instant>,
    /// Bounds what is logged about this service.
    voice: Voice,
    chronicle: FailoverHistory,
    counts: Counts,
    seen: Arc<ArcSwap<DiscoverySnapshot>>,
}

impl ServiceRuntime {
    pub(crate) fn new(
        number: usize,
        name: &Arc<str>,
        (points, replicas): (TargetWriter, Option<Replicas>),
        (rules, seeds): (Rules, usize),
        keeper: ProberFactory,
        out: mpsc::Sender<Incoming>,
    ) -> Self {
        let (now, trust) = (Instant::now(), rules.stall.max(rules.poll * 2));
        let machine = Machine::new(now, rules, seeds);
        let name = Arc::clone(name);
        let first = DiscoverySnapshot {
            name: Arc::clone(&name),
            at: now,
            state: machine.state().label(),
            holding: false,
            master: None,
            stopped_since: Some(now),
            held_since: None,
            disagreement: false,
            minority: false,
            quorum: machine.quorum(),
            sentinels: Vec::new(),
            nodes: Vec::new(),
            replicas: None,
            failovers: Vec::new(),
            counts: Counts::default(),
        };
        Self {
            number,
            name,
            machine,
            points,
            yard: replicas.map(ReplicaPublisher::new),
            trust,
            aviary: ProberSet::new(number, keeper, out),
            learnt: LearnedAddresses::default(),
            expected: seeds,
            master: None,
            stopped_since: Some(now),
            held_since: None,
            voice: Voice::new(60, Duration::from_millis(500)),
            chronicle: FailoverHistory::default(),
            counts: Counts::default(),
            seen: Arc::new(ArcSwap::from_pointee(first)),
        }
    }

    pub(crate) fn seen(&self) -> Arc<ArcSwap<DiscoverySnapshot>> {
        Arc::clone(&self.seen)
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        let (machine, yard) = (
            self.machine.next_deadline(),
            self.yard.as_ref().and_then(ReplicaPublisher::next_deadline),
        );
        yard.map_or(machine, |at| at.min(machine))
    }

    /// The configuration leads to this many sentinels now.
    pub(crate) fn expect(&mut self, sentinels: usize, links: &Links) {
        if self.expected != sentinels {
            self.expected = sentinels;
            self.step(Event::Expected(sentinels), links);
        }
    }

    /// One event in, everything that follows from it done.
    pub(crate) fn step(&mut self, event: Event, links: &Links) {
        self.heard(event, Instant::now(), links);
    }

    /// The same for what was read from a socket at `heard_at`.
    pub(crate) fn heard(&mut self, event: Event, heard_at: Instant, links: &Links) {
        let before = self.machine.state().label();
        self.chronicle.before(&event, heard_at, &self.machine);
        self.yard.iter_mut().for_each(|yard| yard.hear(&event));
        for action in self.machine.step(Instant::now(), event) {
            self.perform(action, links);
        }
        self.chronicle.after(heard_at, &self.machine);
        self.turn_the_yard();
        debug_assert_eq!(self.machine.broken_invariant(), None);
        let wanted: BTreeSet<&NodeAddr> = self.machine.nodes().map(|(addr, _)| addr).collect();
        self.aviary.keep(&wanted);
        if before != self.machine.state().label() {
            let (service, after) = (Arc::clone(&self.name), self.machine.state().label());
            self.voice.say(Instant::now(), move |unsaid| {
                info!(%service, unsaid, from = before, to = after, "discovery state");
            });
            self.publish(links);
        }
    }

    /// This process was away for so long, by whatever clock. Beyond what the machine calls a stall
    /// nothing is trusted that was known before. Whether it was that long.
    pub(crate) fn was_away(&mut self, away: Duration, links: &Links) -> bool {
        let long = away > self.trust;
        if long {
            self.step(Event::Stalled, links);
        }
        long
    }

    /// Everything that was due has been looked at since `looked`: the points may be believed for a
    /// while. Not earlier, because after a stall of the process the machine has to shut the gate
    /// first.
    pub(crate) fn renew(&mut self, looked: ClockReading) {
        self.points.renew(looked, self.trust);
        if let Some(yard) = &mut self.yard {
            yard.renew(looked, self.trust);
        }
    }

    /// Brings readers' replicas in line with what is known, and asks them what sessions want to
    /// know.
    fn turn_the_yard(&mut self) {
        let Some(yard) = &mut self.yard else { return };
        let now = Instant::now();
        yard.turn(now, &self.name, &self.machine);
        yard.take_hint(now).iter().for_each(|member| self.aviary.ask(member, false));
    }

    /// A reader's session noticed something: says nothing about the master, so the replicas alone
    /// are asked.
    pub(crate) fn hinted_by_a_reader(&mut self) {
        self.yard.iter_mut().for_each(ReplicaPublisher::hint);
        self.turn_the_yard();
    }

    /// A canary's answer, with what it was refused.
    pub(crate) fn probed(
        &mut self,
        node: NodeAddr,
        probe: Probe,
        denied: Option<Denied>,
        links: &Links,
    ) {
        if let Some(denied) = self.aviary.heard(&node, &probe, denied) {
            let (service, node) = (Arc::clone(&self.name), node.clone());
            self.voice.say(Instant::now(), move |unsaid| {
                warn!(%service, %node, unsaid, "cannot verify a redis node: {denied}");
            });
        }
        self.step(Event::Probed { node, probe }, links);
    }

    /// Takes note of the peers that `teller` lists now. Whether that changes anything.
    pub(crate) fn learn(&mut self, teller: MyId, peers: Vec<Peer>, links: &Links) -> bool {
        self.learnt
            .hear(teller, peers, self.aviary.address_map(), |id| links.reaches(self.number, id))
    }

    /// The sentinels that others told of.
    pub(crate) fn learnt(&self) -> &LearnedAddresses {
        &self.learnt
    }

    /// Announced address to the address to dial.
    pub(crate) fn address_map(&self) -> &AddressMap {
        self.aviary.address_map()
    }

    pub(crate) fn count(&mut self, what: impl FnOnce(&mut Counts)) {
        what(&mut self.counts);
    }

    fn perform(&mut self, action: Action, links: &Links) {
        match action {
            Action::Ask => links.ask(self.number),
            Action::Probe(node) => {
                let sure = self.machine.is_sure(&node);
                self.aviary.ask(&node, sure);
            }
            Action::Hold => {
                self.points.hold();
                let now = Instant::now();
                self.stopped_since.get_or_insert(now);
                self.held_since.get_or_insert(now);
                self.counts.holds += 1;
                let (service, state) = (Arc::clone(&self.name), self.machine.state().label());
                self.voice.say(
                    now,
                    move |unsaid| info!(%service, unsaid, state, "gate shut: traffic is held"),
                );
            }
            Action::Release => {
                self.points.release();
                self.flows_since(Instant::now());
                let service = Arc::clone(&self.name);
                self.voice.say(Instant::now(), move |unsaid| {
                    info!(%service, unsaid, "gate open again: the same master goes on");
                });
            }
            Action::ReplyPolicy(replies) => self.replies(replies),
            Action::Commit(commit) => self.commit(commit, links),
            Action::Redirect(dialled) => {
                self.points.redirect(dialled);
                if let Some(master) = &mut self.master {
                    master.dialled = dialled;
                }
                let service = Arc::clone(&self.name);
                self.voice.say(Instant::now(), move |unsaid| {
                    info!(%service, unsaid, %dialled, "master reached at another address, same process");
                });
            }
            Action::Clear(lack) => {
                self.points.clear();
                self.stopped_since.get_or_insert_with(Instant::now);
                (self.master, self.held_since) = (None, None);
                self.counts.clears += 1;
                let service = Arc::clone(&self.name);
                self.voice.say(Instant::now(), move |unsaid| {
                    warn!(%service, unsaid, reason = ?lack, "no master: its sessions are cut, new ones wait");
                });
            }
            Action::Note(note) => self.note(note),
        }
    }

    fn replies(&mut self, replies: ReplyPolicy) {
        self.points.set_reply_policy(replies);
        if replies == ReplyPolicy::Drop {
            let service = Arc::clone(&self.name);
            self.voice.say(Instant::now(), move |unsaid| {
                info!(%service, unsaid, "a replica is being promoted: replies of the old master are dropped");
            });
        }
    }

    fn commit(&mut self, commit: Commit, links: &Links) {
        let (name, run_id) = (commit.addr.to_string().into(), commit.run_id.clone());
        let destination = Destination { addr: commit.dialled, name, epoch: commit.epoch, run_id };
        if let Some(yard) = &mut self.yard {
            yard.bar(commit.dialled);
        }
        let target = if commit.held {
            self.points.commit_held(destination)
        } else {
            self.points.commit(destination)
        };
        // Everything else comes after the move: nobody waits for the books.
        let swapped_at = Instant::now();
        self.chronicle.note_first_session(&self.name);
        if commit.held {
            self.stopped_since.get_or_insert(swapped_at);
            self.held_since.get_or_insert(swapped_at);
        } else {
            self.flows_since(swapped_at);
        }
        let generation = target.generation().get();
        let from = self.master.take().map(|master| master.addr);
        let failover = self.chronicle.moved((from, &commit), (target, swapped_at), &self.machine);
        self.counts.commits += 1;
        self.counts.held += failover.story.hold().unwrap_or_default();
        self.chronicle.tell(&self.name, failover);
        let Commit { addr, dialled, epoch, run_id, .. } = commit;
        self.master =
            Some(MasterSnapshot { addr, dialled, generation, epoch, run_id, since: swapped_at });
        self.publish(links);
    }

    /// Something can be sent to a master again. The time until there was one for the first time is
    /// no outage.
    fn flows_since(&mut self, now: Instant) {
        self.held_since = None;
        if let Some(since) = self.stopped_since.take().filter(|_| self.counts.commits > 0) {
            self.counts.stopped += now.saturating_duration_since(since);
        }
    }

    /// What is looked at now and then: whether a session has reached the master in force.
    pub(crate) fn look(&mut self, links: &Links) {
        let now = Instant::now();
        self.chronicle.note_first_session(&self.name);
        self.chronicle.catch_up(now);
        self.voice.catch_up(now);
        self.turn_the_yard();
        self.publish(links);
    }

    fn note(&mut self, note: Note) {
        let counts = &mut self.counts;
        match note {
            Note::StaleView => counts.stale_views += 1,
            Note::Split => counts.splits += 1,
            Note::LineageBroken => counts.lineage_broken += 1,
            Note::HoldExpired => counts.holds_expired += 1,
            Note::Stalled => {
                counts.stalls += 1;
                if let Some(yard) = &mut self.yard {
                    yard.wake(Instant::now());
                }
            }
            Note::RegressUnverified => counts.regress_unverified += 1,
            Note::HoldsExhausted | Note::Minority | Note::Rebooted | Note::Stranger => {}
        }
        // A stale view comes with every poll of a stale sentinel; all others come once for what
        // they tell of.
        if note == Note::StaleView {
            return;
        }
        let service = Arc::clone(&self.name);
        self.voice.say(Instant::now(), move |unsaid| warn!(%service, unsaid, ?note, "discovery"));
    }

    /// What sentinels are compared with: the published master, or else the leading claim.
    fn reference(&self) -> Option<(NodeAddr, u64)> {
        let published = self
            .machine
            .committed()
            .filter(|it| it.published)
            .map(|it| (it.addr.clone(), it.epoch));
        published.or_else(|| match self.machine.finding() {
            Finding::Claimed(claim) | Finding::Regressed(claim) => {
                Some((claim.addr.clone(), claim.epoch))
            }
            Finding::Silence | Finding::Confirmed { .. } => None,
        })
    }

    /// Puts together what is seen now.
    pub(crate) fn publish(&self, links: &Links) {
        let reference = self.reference();
        let sentinels = links.of(self.number).map(|link| {
            let id = link.id().cloned();
            let view = self.machine.views().find(|(voter, ..)| id.as_ref() == Some(*voter));
            let unknown =
                view.as_ref().is_some_and(|(_, member, view, _)| !member && !view.is_empty_state());
            let stranger = unknown && !link.is_learnt();
            SentinelSnapshot {
                addr: link.addr.clone(),
                stranger,
                up: link.up.is_some(),
                events: link.events,
                member: view.as_ref().is_some_and(|(_, member, ..)| *member),
                disagrees: view.as_ref().is_some_and(|(_, _, view, _)| {
                    reference
                        .as_ref()
                        .is_some_and(|(addr, epoch)| view.addr != *addr || view.epoch != *epoch)
                }),
                tilt: view.as_ref().is_some_and(|(_, _, view, _)| view.tilt),
                view: view.map(|(_, _, view, at)| (view.addr.clone(), view.epoch, at)),
                problem: link
                    .problem_for(self.number)
                    .or_else(|| stranger.then(|| STRANGER.to_owned())),
                id,
            }
        });
        let nodes = self.machine.nodes().map(|(addr, probe)| {
            let (answered_in, failures) = self.aviary.answers(addr);
            let lists = |view: &View| view.replicas.iter().any(|it| it.healthy && it.addr == *addr);
            let held_up =
                self.machine.views().filter(|(_, member, view, _)| *member && lists(view)).count();
            let (addr, problem) = (addr.clone(), self.aviary.problem(addr));
            NodeSnapshot { addr, probe: probe.cloned(), answered_in, failures, problem, held_up }
        });
        self.seen.store(Arc::new(DiscoverySnapshot {
            name: Arc::clone(&self.name),
            at: Instant::now(),
            state: self.machine.state().label(),
            holding: self.machine.is_holding(),
            // The epoch may fall without a move, when the sentinels were configured anew.
            master: self.master.clone().map(|master| MasterSnapshot {
                epoch: self.machine.committed().map_or(master.epoch, |it| it.epoch),
                ..master
            }),
            stopped_since: self.stopped_since,
            held_since: self.held_since,
            disagreement: self.machine.named_masters().len() > 1,
            minority: self.machine.is_minority(),
            quorum: self.machine.quorum(),
            sentinels: sentinels.collect(),
            nodes: nodes.collect(),
            replicas: self.yard.as_ref().map(ReplicaPublisher::seen),
            failovers: self.chronicle.failovers().to_vec(),
            counts: self.counts,
        }));
    }
}
