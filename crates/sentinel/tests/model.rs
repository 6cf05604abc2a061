//! Exhaustive model checking of the real machine: every interleaving, up to a stated depth, of a small but true Sentinel.
//!
//! Three sentinels, three redis nodes, epochs 0 to 2. A planned failover is a little model of what Sentinel does: a leader
//! takes the next epoch, selects a candidate (`+selected-slave`), promotes it while the old master still calls itself master,
//! sees the promotion (`+promoted-slave`; from here on it names the candidate), and says hello; an observer that hears a hello
//! with a higher epoch follows it (`+config-update-from`, `+switch-master`). A leader may die between any two of these
//! steps. Two leaders may be at it at once, at the same epoch even, as was measured.
//!
//! The network to the machine is as bad as it may be. Whatever was ever published may arrive at any later time, in any order,
//! any number of times, or never. A view may be as old as the last long pause, but a connection does not run backwards. A
//! question to a node may be answered late, twice or never, with what was true when it was asked or when it was answered.
//!
//! Time stands still but for two kinds of pauses, a few of each: one in which a solo grace passes, and one in which holds and
//! votes run out. So states that differ only in when things happened within one moment are one state.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sentinel::{
    Action, Basis, Commit, Event, Lineage, Machine, MyId, NodeAddr, Notice, Probe, ReplicaView, Report, Role, Rules,
    State, View,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// A node's number: 0 is the first master.
type Node = u8;
/// A sentinel's number.
type Who = u8;
/// What a sentinel names.
type Config = (Node, u64);

const SENTINELS: [Who; 3] = [0, 1, 2];
const NODES: [Node; 3] = [0, 1, 2];
const LAST_EPOCH: u64 = 2;

/// Long enough for a solo grace, a verification pause and an alert poll; too short for a hold to run out.
const SHORT: Duration = Duration::from_millis(300);
/// Long enough for a hold to run out and for votes to expire.
const LONG: Duration = Duration::from_millis(5500);

fn id(who: Who) -> MyId {
    MyId::parse(&format!("{who:040x}")).expect("forty digits")
}

fn addr(node: Node) -> NodeAddr {
    NodeAddr { host: ["A", "B", "C"][usize::from(node)].into(), port: 6379 }
}

/// What a leader has in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Attempt {
    candidate: Node,
    epoch: u64,
    promoted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sentinel {
    alive: bool,
    /// Everything it ever named, the present last.
    named: Vec<Config>,
    attempt: Option<Attempt>,
    /// The oldest of these that may still be on its way to the machine.
    oldest: usize,
}

impl Sentinel {
    fn config(&self) -> Config {
        *self.named.last().expect("it names something from the start")
    }
}

/// Something published, kept for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Said {
    Selected(Node),
    Promoted(Node),
    Following(Who),
    Switched(Node),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    machine: Machine,
    now: Instant,
    pauses: (u8, u8),
    sentinels: [Sentinel; 3],
    masters: [bool; 3],
    said: BTreeSet<(Who, Said)>,
    /// Open questions: who was asked, when, and whether it was a master then.
    open: BTreeSet<(Node, Instant, bool)>,
    books: Books,
}

/// The model's own account of what the machine did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Books {
    published: Option<Config>,
    last: Option<Config>,
    held: bool,
    left: BTreeMap<Node, u64>,
    /// When each sentinel was first heard to name a configuration, by itself or through a follower of it.
    heard: BTreeMap<(Config, Who), Instant>,
    bases: BTreeSet<Basis>,
    fault: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Start(Who, Node),
    Promote(Who),
    Notice(Who),
    Hello(Who, Who),
    Die(Who),
    Demote(Node),
    HearView(Who, usize),
    HearNotice(Who, Said),
    Answer(Node, Instant, bool),
    Pause(Duration),
}

struct Cluster {
    /// How many pauses of each kind.
    pauses: (u8, u8),
    start: Instant,
}

impl World {
    fn booted(start: Instant) -> Self {
        let machine = Machine::new(start, Rules::default(), 3);
        let sentinel = Sentinel { alive: true, named: vec![(0, 0)], attempt: None, oldest: 0 };
        let mut world = Self {
            machine,
            now: start,
            pauses: (0, 0),
            sentinels: [sentinel.clone(), sentinel.clone(), sentinel],
            masters: [true, false, false],
            said: BTreeSet::new(),
            open: BTreeSet::new(),
            books: Books::default(),
        };
        SENTINELS.into_iter().for_each(|who| world.hear_view(who, 0));
        world.answer(0, start, true);
        assert_eq!(world.books.published, Some((0, 0)));
        world.pass(Duration::from_secs(2));
        world.open.clear();
        world.books.bases.clear();
        world
    }

    fn step(&mut self, event: Event) {
        let actions = self.machine.step(self.now, event.clone());
        for action in actions {
            match action {
                Action::Hold => {
                    self.expect(!self.books.held && self.books.published.is_some(), "held twice, or nothing");
                    self.books.held = true;
                }
                Action::Release => {
                    self.expect(self.books.held, "released what was not held");
                    self.books.held = false;
                }
                Action::Commit(commit) => self.committed(&commit, &event),
                Action::Clear(_) => {
                    self.expect(self.books.published.is_some(), "cleared nothing");
                    self.books.published = None;
                    self.books.held = false;
                }
                Action::Probe(asked) => {
                    let node = NODES.into_iter().find(|node| addr(*node) == asked);
                    self.open.extend(node.map(|node| (node, self.now, self.masters[usize::from(node)])));
                }
                Action::Ask | Action::Note(_) => {}
            }
        }
        let shown = self.machine.committed().filter(|it| it.published).map(|it| it.addr.clone());
        self.expect(
            shown == self.books.published.map(|(node, _)| addr(node)),
            "shows another target than it published",
        );
        self.expect(self.machine.broken_invariant().is_none(), "an invariant of its own is broken");
        self.expect(self.machine.next_deadline() > self.now, "a deadline that has passed already");
    }

    fn expect(&mut self, holds: bool, otherwise: &'static str) {
        if !holds {
            self.books.fault.get_or_insert(otherwise);
        }
    }

    fn committed(&mut self, commit: &Commit, event: &Event) {
        let node = NODES.into_iter().find(|node| addr(*node) == commit.addr).expect("one of ours");
        let config = (node, commit.epoch);
        let Event::Probed { node: answered, probe } = event else {
            return self.expect(false, "committed without an answer");
        };
        let master = matches!(&probe.outcome, Ok(report) if report.role == Role::Master && report.pong);
        self.expect(master && *answered == commit.addr, "committed on an answer that verifies nothing");
        // Who really named it, ever; and who was heard to name it before the question was asked.
        let really = self.sentinels.iter().filter(|it| it.named.contains(&config)).count();
        let heard = |who: &Who| self.books.heard.get(&(config, *who)).is_some_and(|at| *at <= probe.asked_at);
        let heard = SENTINELS.iter().filter(|who| heard(who)).count();
        let needed = match commit.basis {
            Basis::Majority | Basis::Regress => 2,
            Basis::Solo | Basis::BootstrapMinority => 1,
            Basis::Again => 0,
        };
        self.expect(really >= needed, "committed what too few sentinels ever named");
        self.expect(heard >= needed, "committed on an answer that is older than its evidence");
        let last = self.books.last;
        self.expect(commit.basis != Basis::Again || last == Some(config), "again, but it never was");
        if commit.basis == Basis::Regress {
            // Nobody who can still be heard knows better.
            let newer = |it: &Sentinel| it.alive && it.config().1 > commit.epoch;
            self.expect(
                self.sentinels.iter().filter(|it| newer(it)).count() < 2,
                "went back although a majority did not",
            );
            self.books.left.clear();
        } else {
            self.expect(last.is_none_or(|(_, epoch)| commit.epoch >= epoch), "the epoch fell");
            self.expect(self.books.left.get(&node).is_none_or(|left| commit.epoch > *left), "published a zombie");
        }
        if let Some((old, _)) = last.filter(|(old, _)| *old != node) {
            self.books.left.insert(old, commit.epoch);
        }
        self.books.bases.insert(commit.basis);
        (self.books.published, self.books.last, self.books.held) = (Some(config), Some(config), false);
    }

    fn hear_view(&mut self, who: Who, which: usize) {
        let sentinel = &mut self.sentinels[usize::from(who)];
        // A connection does not run backwards.
        sentinel.oldest = which;
        let (node, epoch) = sentinel.named[which];
        let failing_over = sentinel.attempt.is_some() && which + 1 == sentinel.named.len();
        self.heard(who, (node, epoch));
        let view = View {
            addr: addr(node),
            epoch,
            run_id: "known".into(),
            down: false,
            failing_over,
            tilt: false,
            peers: SENTINELS.into_iter().filter(|peer| *peer != who).map(|peer| (id(peer), true)).collect(),
            replicas: NODES
                .into_iter()
                .filter(|replica| *replica != node)
                .map(|replica| ReplicaView { addr: addr(replica), healthy: true })
                .collect(),
        };
        self.step(Event::View { from: id(who), view });
    }

    /// Books: `who` names `config`, and if it follows somebody to it, that one does too.
    fn heard(&mut self, who: Who, config: Config) {
        self.books.heard.entry((config, who)).or_insert(self.now);
        for peer in SENTINELS {
            if self.said.contains(&(who, Said::Following(peer)))
                && self.sentinels[usize::from(peer)].named.contains(&config)
            {
                self.books.heard.entry((config, peer)).or_insert(self.now);
            }
        }
    }

    fn answer(&mut self, node: Node, asked_at: Instant, master: bool) {
        let lineage = Lineage {
            run_id: format!("process-{node}").into(),
            replid: if node == 0 { "first".into() } else { format!("history-{node}").into() },
            replid2: if node == 0 { "".into() } else { "first".into() },
            offset: 0,
            second_offset: -1,
        };
        // Histories can be read of the first master's replicas; after that they are left open, which is the harder case.
        let readable = self.books.last.is_none_or(|(last, _)| last == 0);
        let role = if master { Role::Master } else { Role::Replica { master: addr(0), connected: true } };
        let report = Report {
            dialled: SocketAddr::from(([127, 0, 0, 1 + node], 6379)),
            role,
            pong: true,
            lineage: Some(lineage).filter(|_| readable),
        };
        self.step(Event::Probed { node: addr(node), probe: Probe { asked_at, outcome: Ok(report) } });
    }

    /// Time passes; nothing arrives, and every deadline is kept.
    fn pass(&mut self, long: Duration) {
        let until = self.now + long;
        while self.machine.next_deadline() <= until {
            self.now = self.machine.next_deadline();
            self.step(Event::Tick);
        }
        self.now = until;
        self.step(Event::Tick);
        // Only the youngest question to each node is worth telling apart; an older one proves less.
        let open = std::mem::take(&mut self.open);
        for node in NODES {
            self.open.extend(open.iter().filter(|(asked, ..)| *asked == node).max_by_key(|(_, at, _)| *at).copied());
        }
        if long > SHORT {
            for sentinel in &mut self.sentinels {
                sentinel.oldest = sentinel.named.len() - 1;
            }
        }
    }

    fn adopt(&mut self, who: Who, config: Config) {
        self.sentinels[usize::from(who)].named.push(config);
    }

    /// What the sentinels will settle at if they are left alone: the highest epoch of those that live, and among equals
    /// whatever most of them name.
    fn settled(&self) -> Option<Config> {
        let living: Vec<Config> = self.sentinels.iter().filter(|it| it.alive).map(Sentinel::config).collect();
        let highest = living.iter().map(|(_, epoch)| *epoch).max()?;
        let at_highest: BTreeSet<Node> =
            living.iter().filter(|(_, epoch)| *epoch == highest).map(|(node, _)| *node).collect();
        (at_highest.len() == 1).then(|| at_highest.first().map(|node| (*node, highest))).flatten()
    }

    /// From here on nobody fails any more, hellos arrive, and every question is answered at once: does the machine follow?
    fn converges(&self) -> bool {
        let mut world = self.clone();
        let Some((node, epoch)) = world.settled() else { return true };
        let living: Vec<Who> = SENTINELS.into_iter().filter(|who| self.sentinels[usize::from(*who)].alive).collect();
        world.masters = NODES.map(|it| it == node);
        for who in &living {
            let sentinel = &mut world.sentinels[usize::from(*who)];
            sentinel.attempt = None;
            if sentinel.config() != (node, epoch) {
                sentinel.named.push((node, epoch));
            }
        }
        let end = world.now + Duration::from_secs(30);
        while world.now < end {
            for who in &living {
                let last = world.sentinels[usize::from(*who)].named.len() - 1;
                world.hear_view(*who, last);
            }
            world.open.clear();
            world.pass(Duration::from_millis(100));
            for (node, at, _) in std::mem::take(&mut world.open) {
                world.answer(node, at, world.masters[usize::from(node)]);
            }
            let there = world.books.published == Some((node, epoch)) && !world.books.held;
            if there && matches!(world.machine.state(), State::Stable) {
                return world.books.fault.is_none();
            }
        }
        false
    }
}

impl Model for Cluster {
    type State = World;
    type Action = Step;

    /// Three beginnings, so that the same depth reaches further: all is well; a failover was committed, and the old master
    /// calls itself master still; a leader died right after its promotion, which was seen.
    fn init_states(&self) -> Vec<World> {
        let calm = World::booted(self.start);
        let failover = [
            Step::Start(0, 1),
            Step::HearNotice(0, Said::Selected(1)),
            Step::Promote(0),
            Step::Answer(1, self.start, true),
            Step::Notice(0),
            Step::Hello(0, 1),
            Step::HearView(0, 1),
            Step::HearView(1, 1),
        ];
        let run = |world: &World, steps: &[Step]| {
            steps.iter().fold(world.clone(), |world, step| self.next_state(&world, *step).unwrap_or(world))
        };
        let claimed = run(&calm, &failover);
        let committed = run(&claimed, &[Step::Answer(1, claimed.now, true)]);
        assert_eq!(committed.books.published, Some((1, 1)));
        let orphaned = run(&calm, &[failover[0], failover[1], failover[2], Step::Die(0)]);
        assert!(orphaned.books.held);
        vec![calm, committed, orphaned]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let dead = world.sentinels.iter().any(|it| !it.alive);
        for who in SENTINELS {
            let sentinel = &world.sentinels[usize::from(who)];
            let (master, epoch) = sentinel.config();
            if let Some(attempt) = sentinel.attempt.filter(|_| sentinel.alive) {
                steps.push(if attempt.promoted { Step::Notice(who) } else { Step::Promote(who) });
            } else if sentinel.alive && epoch < LAST_EPOCH && who < 2 {
                // B and C differ in name only until one of them was chosen; so do the sentinels, but for who leads.
                let first = world.sentinels.iter().all(|it| it.named.len() == 1 && it.attempt.is_none());
                let candidates = NODES.into_iter().filter(|node| *node != master && (!first || *node == 1));
                steps.extend(candidates.filter(|_| !first || who == 0).map(|node| Step::Start(who, node)));
            }
            let leads = sentinel.attempt.is_some() || sentinel.named.len() > 1;
            if sentinel.alive && !dead && leads {
                steps.push(Step::Die(who));
            }
            for from in SENTINELS {
                let theirs = &world.sentinels[usize::from(from)];
                if from != who && theirs.alive && sentinel.alive && theirs.config().1 > epoch {
                    steps.push(Step::Hello(from, who));
                }
            }
            if sentinel.alive {
                steps.extend((sentinel.oldest..sentinel.named.len()).map(|which| Step::HearView(who, which)));
            }
        }
        if let Some((node, _)) = world.settled() {
            let leading = |it: &Node| world.sentinels.iter().any(|s| s.attempt.is_some_and(|a| a.candidate == *it));
            let zombies = NODES.into_iter().filter(|it| *it != node && world.masters[usize::from(*it)] && !leading(it));
            steps.extend(zombies.map(Step::Demote));
        }
        steps.extend(world.said.iter().map(|(who, said)| Step::HearNotice(*who, *said)));
        for (node, at, then) in &world.open {
            steps.push(Step::Answer(*node, *at, *then));
            if world.masters[usize::from(*node)] != *then {
                steps.push(Step::Answer(*node, *at, !*then));
            }
        }
        if world.pauses.0 < self.pauses.0 {
            steps.push(Step::Pause(SHORT));
        }
        if world.pauses.1 < self.pauses.1 {
            steps.push(Step::Pause(LONG));
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        match step {
            Step::Start(who, candidate) => {
                let epoch = world.sentinels[usize::from(who)].config().1 + 1;
                let attempt = Attempt { candidate, epoch, promoted: false };
                world.sentinels[usize::from(who)].attempt = Some(attempt);
                world.said.insert((who, Said::Selected(candidate)));
            }
            Step::Promote(who) => {
                let attempt = world.sentinels[usize::from(who)].attempt.as_mut()?;
                attempt.promoted = true;
                world.masters[usize::from(attempt.candidate)] = true;
            }
            Step::Notice(who) => {
                let attempt = world.sentinels[usize::from(who)].attempt.take()?;
                if world.sentinels[usize::from(who)].config().1 < attempt.epoch {
                    world.adopt(who, (attempt.candidate, attempt.epoch));
                    world.said.insert((who, Said::Promoted(attempt.candidate)));
                    world.said.insert((who, Said::Switched(attempt.candidate)));
                }
            }
            Step::Hello(from, who) => {
                let config = world.sentinels[usize::from(from)].config();
                world.adopt(who, config);
                world.said.insert((who, Said::Following(from)));
                world.said.insert((who, Said::Switched(config.0)));
            }
            Step::Die(who) => {
                world.sentinels[usize::from(who)].alive = false;
                world.sentinels[usize::from(who)].attempt = None;
            }
            Step::Demote(node) => world.masters[usize::from(node)] = false,
            Step::HearView(who, which) => world.hear_view(who, which),
            Step::HearNotice(who, said) => {
                let notice = match said {
                    Said::Selected(node) => Notice::CandidateSelected { candidate: addr(node) },
                    Said::Promoted(node) => Notice::Promoted { candidate: addr(node) },
                    Said::Following(peer) => Notice::ConfigUpdateFrom { peer: id(peer) },
                    Said::Switched(node) => Notice::Switched { to: addr(node) },
                };
                world.step(Event::Notice { from: Some(id(who)), notice });
            }
            Step::Answer(node, at, master) => world.answer(node, at, master),
            Step::Pause(long) => {
                *(if long == SHORT { &mut world.pauses.0 } else { &mut world.pauses.1 }) += 1;
                world.pass(long);
            }
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every rule holds at every step", |_, world: &World| world.books.fault.is_none()),
            // Following every state to its end would cost a hundred times the search; one in sixteen, always the same ones.
            Property::always("left alone, the machine follows", |_, world: &World| {
                let what = (&world.sentinels, &world.masters, &world.said, &world.books.bases, world.pauses);
                let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(what);
                hash % 16 != 0 || world.converges()
            }),
            Property::sometimes("a majority is followed", |_, world: &World| {
                world.books.bases.contains(&Basis::Majority)
            }),
        ]
    }
}

/// Searches to `depth`; gives the number of distinct states.
fn search(depth: usize, pauses: (u8, u8)) -> usize {
    let cluster = Cluster { pauses, start: Instant::now() };
    let checker = cluster
        .checker()
        .threads(2)
        .target_max_depth(depth)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    for (name, path) in checker.discoveries() {
        if name != "a majority is followed" {
            let steps: Vec<Step> = path.clone().into_actions();
            let fault = path.last_state().books.fault;
            panic!("{name}: {fault:?} after {steps:#?}, state {:#?}", path.last_state().machine.state());
        }
    }
    checker.unique_state_count()
}

#[test]
fn to_the_daily_depth() {
    let d = |n: &str, o: usize| std::env::var(n).map_or(o, |it| it.parse().unwrap());
    let states = search(d("D", 8), (d("P", 1) as u8, d("P", 1) as u8));
    println!("{states} distinct states");
    assert!(states > 10_000, "{states}");
}

/// The depth for a release: minutes, not seconds.
#[test]
#[ignore = "takes minutes; run with --ignored"]
fn to_the_full_depth() {
    let states = search(11, (2, 2));
    println!("{states} distinct states");
}
