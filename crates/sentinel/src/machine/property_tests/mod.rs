//! Arbitrary streams of events, checked by the independent oracle: the safety rules hold whatever
//! sentinels and nodes report, in any order; and as soon as they agree, the machine converges.

mod orders;
mod streams;
mod supersession;

use std::time::{Duration, Instant};

use proptest::prelude::*;

use self::streams::{Happening, LETTERS, ProbeOutcome, happening, letter, rules};
use self::supersession::Witness;
use super::tests::Oracle;
use super::tests::rig::{Answer, Letter, id, lineage, master, ms, node, replica, view};
use super::{FollowOrder, Machine, MachineAction, MachineEvent, MachineState, Pause};
use crate::{
    Epoch, MachineRules, NodeAddr, NodeReport, Notice, PingReply, Probe, ProbeFailure, Role, View,
};

/// A machine, its clock, its open queries, and the oracle.
struct World {
    machine: Machine,
    now: Instant,
    open: Vec<(NodeAddr, Instant)>,
    oracle: Oracle,
    witness: Witness,
    log: Vec<(Instant, MachineAction)>,
    ticks: u64,
    asked: bool,
}

impl World {
    fn new(rules: MachineRules, oracle: Oracle) -> Self {
        let now = Instant::now() + Duration::from_secs(3600);
        let machine = Machine::new(now, rules, 3);
        let (open, log, witness) = (Vec::new(), Vec::new(), Witness::default());
        Self { machine, now, open, oracle, witness, log, ticks: 0, asked: false }
    }

    fn step(&mut self, event: MachineEvent) {
        let seen = event.clone();
        let actions = self.machine.step(self.now, event);
        self.oracle.check_step(self.now, &seen, &actions, self.machine.committed());
        self.witness.check(self.now, &seen, &actions, &self.machine);
        assert_eq!(self.machine.broken_invariant(), None);
        assert!(self.machine.next_deadline() > self.now, "a deadline in the past");
        let target = self.machine.committed().is_some_and(|it| it.published);
        assert!(
            target
                || !matches!(
                    self.machine.state(),
                    MachineState::Stable
                        | MachineState::Suspect { .. }
                        | MachineState::Armed { .. }
                )
        );
        for action in actions {
            match &action {
                MachineAction::Probe(addr) => self.open.push((addr.clone(), self.now)),
                MachineAction::Ask => self.asked = true,
                _ => {}
            }
            self.log.push((self.now, action));
        }
        let excess = self.open.len().saturating_sub(256);
        self.open.drain(..excess);
    }

    fn happens(&mut self, happening: &Happening) {
        match happening.clone() {
            Happening::View { from, addr, epoch, flags, peers, age } => {
                let view = a_view_of(from, addr, epoch, flags, peers);
                let (asked_at, configured) =
                    (self.now.checked_sub(ms(age)).unwrap_or(self.now), from != 5);
                self.step(MachineEvent::View { from: id(from), view, asked_at, configured });
            }
            Happening::Notice { from, notice } => {
                self.step(MachineEvent::Notice { from: from.map(id), notice });
            }
            Happening::Answer { which, answer, keep } if !self.open.is_empty() => {
                let which = which % self.open.len();
                let (addr, asked_at) =
                    if keep { self.open[which].clone() } else { self.open.remove(which) };
                let outcome = outcome(&addr, answer);
                self.step(MachineEvent::Probed { node: addr, probe: Probe { asked_at, outcome } });
            }
            Happening::Lose { which } if !self.open.is_empty() => {
                self.open.remove(which % self.open.len());
            }
            Happening::Answer { .. } | Happening::Lose { .. } => {}
            Happening::Prober(letter) => {
                self.step(MachineEvent::ProbeConnectionLost { node: node(letter) });
            }
            Happening::Hint => self.step(MachineEvent::Hint),
            Happening::Connections(count) => self.step(MachineEvent::SentinelConnections(count)),
            Happening::Pause { millis, ends_with_commit } => {
                let (since, until) = (self.now, self.now + ms(millis));
                self.step(MachineEvent::Pause(Pause { since, until, ends_with_commit }));
            }
            Happening::Resume => self.step(MachineEvent::Resume),
            Happening::Follow { addr, millis, force } => {
                let (id, addr) = (self.log.len() as u64, node(addr));
                self.step(MachineEvent::Follow(FollowOrder { id, addr, lasts: ms(millis), force }));
            }
            Happening::Unfollow => self.step(MachineEvent::Unfollow),
            Happening::Wait(millis) => self.wait(ms(millis), |_| {}),
            Happening::Stall(millis) => self.now += ms(millis),
            Happening::Suspend => self.step(MachineEvent::Stalled),
            Happening::SentinelsReplaced => self.step(MachineEvent::SentinelsReplaced(3)),
        }
    }

    /// Time advances by `long`; `world` may answer after every tick.
    fn wait(&mut self, long: Duration, mut world: impl FnMut(&mut Self)) {
        let until = self.now + long;
        loop {
            let tick = self.machine.next_deadline().max(self.now);
            if tick > until {
                break;
            }
            self.now = tick;
            self.ticks += 1;
            self.step(MachineEvent::Tick);
            world(self);
        }
        self.now = self.now.max(until);
    }

    /// All sentinels agree on `addr` at `epoch`, and answer within a millisecond.
    fn agree(&mut self, addr: Letter, epoch: Epoch) {
        while self.asked || !self.open.is_empty() {
            self.now += ms(1);
            if std::mem::take(&mut self.asked) {
                for sentinel in 1..=3 {
                    let others: Vec<Letter> =
                        LETTERS.into_iter().filter(|letter| *letter != addr).collect();
                    let peers: Vec<u8> = (1..=3).filter(|peer| *peer != sentinel).collect();
                    let (view, asked_at) = (view(addr, epoch, &peers, &others), self.now);
                    self.step(MachineEvent::View {
                        from: id(sentinel),
                        view,
                        asked_at,
                        configured: true,
                    });
                }
            }
            for (asked, asked_at) in std::mem::take(&mut self.open) {
                let probe_outcome =
                    if asked == node(addr) { ProbeOutcome::Master } else { ProbeOutcome::Replica };
                let outcome = outcome(&asked, probe_outcome);
                self.step(MachineEvent::Probed { node: asked, probe: Probe { asked_at, outcome } });
            }
        }
    }

    fn publishes(&self, addr: Letter, epoch: Epoch) -> bool {
        let it = self.machine.committed();
        it.is_some_and(|it| it.published && it.addr == node(addr) && it.epoch == epoch)
            && !self.machine.is_holding()
    }

    /// A master is committed, and the machine is stable.
    fn boot(&mut self) {
        self.step(MachineEvent::Tick);
        self.agree('A', 5);
        assert!(self.publishes('A', 5));
        self.log.clear();
    }
}

fn a_view_of(from: u8, addr: Letter, epoch: Epoch, flags: u8, peers: Option<Vec<u8>>) -> View {
    let kin: &[u8] = if from <= 3 { &[1, 2, 3] } else { &[4, 5] };
    let peers = peers.unwrap_or_else(|| kin.to_vec());
    let peers: Vec<u8> = peers.into_iter().filter(|peer| *peer != from).collect();
    let others: Vec<Letter> = LETTERS.into_iter().filter(|letter| *letter != addr).collect();
    let mut it = view(addr, epoch, &peers, &others);
    (it.down, it.failing_over, it.tilt) = (flags & 7 == 1, flags & 7 == 2, flags & 0x38 == 0x38);
    it.rebooted = flags & 7 == 3;
    if flags >= 0xe0 {
        it.peers.iter_mut().for_each(|(_, up)| *up = false);
    }
    if flags == 0xc0 {
        (it.epoch, it.run_id, it.peers) = (0, "".into(), Vec::new());
    }
    it
}

fn outcome(addr: &NodeAddr, probe_outcome: ProbeOutcome) -> Result<NodeReport, ProbeFailure> {
    let letter = LETTERS.into_iter().find(|letter| node(*letter) == *addr).unwrap_or('Z');
    let report = |answer: Answer| match answer {
        Answer::Report(report) => report,
        other => panic!("{other:?}"),
    };
    let plain = report(master(letter, "history-1", ""));
    Ok(match probe_outcome {
        ProbeOutcome::Master => plain,
        ProbeOutcome::Promoted => report(master(letter, "history-2", "history-1")),
        ProbeOutcome::Unreadable => NodeReport { lineage: None, ..plain },
        ProbeOutcome::Restarted => {
            NodeReport { lineage: Some(lineage("another", "fresh", "")), ..plain }
        }
        ProbeOutcome::Loading => {
            NodeReport { role: Role::Master, ping: PingReply::Loading, ..plain }
        }
        ProbeOutcome::Replica => report(replica(letter, 'A', "history-1")),
        ProbeOutcome::Failed(failure) => return Err(failure),
    })
}

/// The maximum number of `wanted` actions in the log within any minute.
fn most_in_a_minute(log: &[(Instant, MachineAction)], wanted: &MachineAction) -> usize {
    let times: Vec<Instant> =
        log.iter().filter(|(_, it)| it == wanted).map(|(at, _)| *at).collect();
    times
        .iter()
        .map(|from| times.iter().filter(|at| **at >= *from && **at < *from + ms(60_000)).count())
        .max()
        .unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    /// S1, S3, S4, S5, S6 and the zombie guard, by the oracle's records.
    #[test]
    fn upholds_safety_rules_on_any_stream(
        rules in rules(), booted in any::<bool>(),
        stream in prop::collection::vec(happening(false), 1..250),
    ) {
        let mut world = World::new(rules.clone(), Oracle::new(rules).of_electorate(3));
        if booted {
            world.boot();
        }
        for happening in &stream {
            world.happens(happening);
        }
    }

    /// The same with sentinels that list any peers: the electorate is then arbitrary, and votes are
    /// not counted.
    #[test]
    fn upholds_safety_rules_for_any_electorate(
        rules in rules(), booted in any::<bool>(),
        stream in prop::collection::vec(happening(true), 1..250),
    ) {
        let mut world = World::new(rules.clone(), Oracle::new(rules));
        if booted {
            world.boot();
        }
        for happening in &stream {
            world.happens(happening);
        }
        prop_assert!(world.machine.nodes.family.len() <= 64);
        prop_assert!(world.machine.succession.is_bounded());
        prop_assert!(world.machine.updating_from.len() <= 64);
        prop_assert!(world.machine.hold.failed() <= 3);
    }

    /// Liveness: once all agree at an epoch above everything, and the node verifies, it is
    /// committed. Within a poll and three round trips if the three are the electorate, otherwise
    /// after strangers and ghosts have been removed.
    #[test]
    fn converges_once_sentinels_agree(
        rules in rules(), any_peers in any::<bool>(), addr in letter(),
        stream in any::<bool>()
            .prop_flat_map(|any_peers| prop::collection::vec(happening(any_peers), 1..120)),
    ) {
        let _ = any_peers;
        let mut world = World::new(rules.clone(), Oracle::new(rules));
        for happening in &stream {
            world.happens(happening);
        }
        world.open.clear();
        world.step(MachineEvent::Resume);
        let start = world.now;
        let mut done_at = None;
        world.wait(ms(60_000), |world| {
            world.agree(addr, 100);
            if done_at.is_none() && world.publishes(addr, 100) {
                done_at = Some(world.now);
            }
        });
        let took = done_at.expect("it is committed").duration_since(start);
        let converged = world.machine.quorum() == (3, 2);
        prop_assert!(
            converged, "strangers and ghosts remain after a minute: {:?}", world.machine.quorum()
        );
        prop_assert!(took <= ms(46_000), "{took:?}");
        prop_assert!(world.publishes(addr, 100));
        prop_assert_eq!(world.machine.override_in_force(), None);
        prop_assert_eq!(world.machine.state(), &MachineState::Stable);
    }

    /// The same, and fast, if strangers and ghosts never answered.
    #[test]
    fn follows_agreement_within_one_poll(
        rules in rules(), addr in letter(),
        stream in prop::collection::vec(happening(false), 1..120),
    ) {
        let mut world = World::new(rules.clone(), Oracle::new(rules).of_electorate(3));
        world.boot();
        let stranger = |it: &&Happening| matches!(it, Happening::View { from: 4..=5, .. });
        for happening in stream.iter().filter(|it| !stranger(it)) {
            world.happens(happening);
        }
        world.open.clear();
        world.step(MachineEvent::Resume);
        let start = world.now;
        let mut done_at = None;
        world.wait(ms(5_000), |world| {
            world.agree(addr, 100);
            if done_at.is_none() && world.publishes(addr, 100) {
                done_at = Some(world.now);
            }
        });
        let took = done_at.expect("it is committed").duration_since(start);
        prop_assert!(took <= ms(1_010), "{took:?}");
        prop_assert_eq!(world.machine.override_in_force(), None);
    }

    /// A single sentinel among three, whatever it reports and whatever the other nodes do, neither
    /// causes a commit nor removes the master, and closes the gate at most three times per minute.
    #[test]
    fn bounds_effects_of_a_single_sentinel(
        stream in prop::collection::vec(happening(false), 1..300),
    ) {
        let rules = MachineRules::default();
        let mut world = World::new(rules.clone(), Oracle::new(rules).of_electorate(3));
        world.boot();
        for happening in &stream {
            let allowed = match happening {
                Happening::View { from, .. } => *from == 1 || *from > 3,
                // Counting an announced switch as two votes means to trust the announcing sentinel;
                // not tested here.
                Happening::Notice { notice: Notice::ConfigUpdateFrom { .. }, .. } => false,
                Happening::Notice { from, .. } => from.is_none_or(|from| from == 1 || from > 3),
                // The promotion of a replica closes the gate by itself, announced or not.
                Happening::Answer {
                    answer:
                        ProbeOutcome::Master | ProbeOutcome::Promoted | ProbeOutcome::Unreadable,
                    ..
                } => false,
                Happening::Stall(_)
                | Happening::Suspend
                | Happening::SentinelsReplaced
                | Happening::Pause { .. } => false,
                _ => true,
            };
            match happening {
                Happening::Wait(millis) => {
                    for _ in 0..=millis / 100 {
                        world.wait(ms((*millis).min(100)), |_| {});
                        rest_confirms(&mut world);
                    }
                }
                _ if allowed => world.happens(happening),
                _ => {}
            }
            rest_confirms(&mut world);
        }
        let changes =
            |it: &MachineAction| matches!(it, MachineAction::Commit(_) | MachineAction::Clear(_));
        let last = world.log.iter().rev().find(|(_, it)| changes(it));
        prop_assert!(last.is_none(), "{last:?}");
        prop_assert!(world.log.iter().all(|(_, it)| orders::is_refused(it)), "an order was not refused");
        prop_assert!(most_in_a_minute(&world.log, &MachineAction::Hold) <= 3);
    }

    /// As time passes, the machine only sends queries, and at a limited rate.
    #[test]
    fn only_queries_as_time_passes(
        booted in any::<bool>(), stream in prop::collection::vec(happening(true), 1..60),
    ) {
        let rules = MachineRules::default();
        let mut world = World::new(rules.clone(), Oracle::new(rules));
        if booted {
            world.boot();
        }
        for happening in &stream {
            world.happens(happening);
        }
        world.wait(ms(30_000), |_| {});
        (world.log, world.ticks) = (Vec::new(), 0);
        world.wait(ms(60_000), |_| {});
        // Every expiry, grace and hold is over by now.
        let queries =
            |it: &MachineAction| matches!(it, MachineAction::Ask | MachineAction::Probe(_));
        let others = world.log.iter().filter(|(_, it)| !queries(it)).count();
        prop_assert_eq!(others, 0);
        prop_assert!(world.ticks <= 60 * 20, "{} ticks in a minute", world.ticks);
        // With every query answered at once the rate is higher, but bounded.
        world.ticks = 0;
        world.wait(ms(5_000), |world| world.agree('A', 200));
        prop_assert!(world.ticks <= 5 * 300, "{} ticks in five seconds", world.ticks);
    }
}

/// The master and the two other sentinels answer as before.
fn rest_confirms(world: &mut World) {
    for sentinel in [2, 3] {
        let peers: Vec<u8> = (1..=3).filter(|peer| *peer != sentinel).collect();
        let (view, asked_at) = (view('A', 5, &peers, &['B', 'C', 'D']), world.now);
        world.step(MachineEvent::View { from: id(sentinel), view, asked_at, configured: true });
    }
    let (ours, rest): (Vec<_>, Vec<_>) =
        std::mem::take(&mut world.open).into_iter().partition(|(it, _)| *it == node('A'));
    world.open = rest;
    for (addr, asked_at) in ours {
        let outcome = outcome(&addr, ProbeOutcome::Master);
        world.step(MachineEvent::Probed { node: addr, probe: Probe { asked_at, outcome } });
    }
}
