//! The modelled world, its machine, and the account that is kept of what that machine does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sentinel::{
    Action, Basis, Commit, Event, Lineage, Machine, Minority, MyId, NodeAddr, Probe, ProbeFailure,
    ReplicaView, Report, Role, Rules, State, View,
};

/// A node's number: 0 is the first master.
pub(crate) type Node = u8;
/// A sentinel's number.
pub(crate) type Who = u8;
/// What a sentinel names.
pub(crate) type Config = (Node, u64);

pub(crate) const SENTINELS: [Who; 3] = [0, 1, 2];
pub(crate) const NODES: [Node; 3] = [0, 1, 2];
pub(crate) const LAST_EPOCH: u64 = 2;

/// Long enough for a solo grace, a verification pause and an alert poll; too short for a hold to
/// run out.
pub(crate) const SHORT: Duration = Duration::from_millis(300);
/// Long enough for a hold to run out and for votes to expire.
pub(crate) const LONG: Duration = Duration::from_millis(5500);

/// What an answer may be old to verify what a part of its evidence came after.
const AHEAD: Duration = Duration::from_millis(50);

pub(crate) fn id(who: Who) -> MyId {
    MyId::parse(&format!("{who:040x}")).expect("forty digits")
}

pub(crate) fn addr(node: Node) -> NodeAddr {
    NodeAddr { host: ["A", "B", "C"][usize::from(node)].into(), port: 6379 }
}

/// What a leader has in hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    pub(crate) candidate: Node,
    pub(crate) epoch: u64,
    pub(crate) promoted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sentinel {
    pub(crate) alive: bool,
    /// Everything it ever named, the present last.
    pub(crate) named: Vec<Config>,
    pub(crate) attempt: Option<Attempt>,
    /// When it came to name each of them: an answer that still names the one before was asked for
    /// earlier.
    pub(crate) since: Vec<Instant>,
    /// The oldest of these that may still be on its way to the machine.
    pub(crate) oldest: usize,
}

impl Sentinel {
    pub(crate) fn config(&self) -> Config {
        *self.named.last().expect("it names something from the start")
    }
}

/// Something published, kept for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Said {
    Selected(Node),
    Promoted(Node),
    /// Whose hello, and what it named until then.
    Following(Who, Node),
    Switched(Node),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) now: Instant,
    pub(crate) minority: Minority,
    pub(crate) pauses: (u8, u8),
    pub(crate) sentinels: [Sentinel; 3],
    pub(crate) masters: [bool; 3],
    /// How often each node was restarted, and whether it came back without its data.
    pub(crate) restarts: [(u8, bool); 3],
    pub(crate) said: BTreeSet<(Who, Said)>,
    /// Open questions: who was asked, when, and whether it was a master then.
    pub(crate) open: BTreeSet<(Node, Instant, bool)>,
    pub(crate) books: Books,
}

/// The model's own account of what the machine did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Books {
    pub(crate) published: Option<Config>,
    pub(crate) last: Option<Config>,
    pub(crate) held: bool,
    pub(crate) left: BTreeMap<Node, u64>,
    /// When each sentinel was first heard to name a configuration, by itself or through a follower
    /// of it.
    pub(crate) heard: BTreeMap<(Config, Who), Instant>,
    /// When the youngest question was sent in whose answer each sentinel named a configuration.
    pub(crate) asked: BTreeMap<(Config, Who), Instant>,
    /// The last sign that the last target may have been superseded unnoticed.
    pub(crate) doubted_at: Option<Instant>,
    /// The answer of each node to the youngest question: when that was asked, and whether it is a
    /// master.
    pub(crate) answers: BTreeMap<Node, (Instant, bool)>,
    pub(crate) bases: BTreeSet<Basis>,
    pub(crate) fault: Option<&'static str>,
}

impl World {
    /// One name leads to all three sentinels, and nothing was heard yet.
    pub(crate) fn new(start: Instant, minority: Minority) -> Self {
        let mut machine = Machine::new(start, Rules { minority, ..Rules::default() }, 1);
        machine.step(start, Event::Expected(3));
        let sentinel = Sentinel {
            alive: true,
            named: vec![(0, 0)],
            since: vec![start],
            attempt: None,
            oldest: 0,
        };
        Self {
            machine,
            now: start,
            minority,
            pauses: (0, 0),
            sentinels: [sentinel.clone(), sentinel.clone(), sentinel],
            masters: [true, false, false],
            restarts: [(0, false); 3],
            said: BTreeSet::new(),
            open: BTreeSet::new(),
            books: Books::default(),
        }
    }

    pub(crate) fn booted(start: Instant, minority: Minority) -> Self {
        let mut world = Self::new(start, minority);
        SENTINELS.into_iter().for_each(|who| world.hear_view(who, 0));
        world.answer(0, start, true);
        assert_eq!(world.books.published, Some((0, 0)));
        world.pass(Duration::from_secs(2));
        world.open.clear();
        world.books.bases.clear();
        world
    }

    pub(crate) fn step(&mut self, event: Event) {
        if let Event::Probed { node, probe } = &event {
            let node = NODES.into_iter().find(|it| addr(*it) == *node).expect("one of ours");
            let master =
                matches!(&probe.outcome, Ok(report) if report.role == Role::Master && report.pong);
            let last = self.books.answers.entry(node).or_insert((probe.asked_at, master));
            if probe.asked_at >= last.0 {
                *last = (probe.asked_at, master);
            }
            if !master && self.books.last.is_some_and(|(last, _)| last == node) {
                self.books.doubted_at = Some(self.now);
            }
        }
        let unconfirmed = matches!(self.machine.state(), State::Unconfirmed { .. });
        let actions = self.machine.step(self.now, event);
        for action in actions {
            match action {
                Action::Hold => {
                    self.expect(
                        !self.books.held && self.books.published.is_some(),
                        "held twice, or nothing",
                    );
                    self.books.held = true;
                }
                Action::Release => {
                    self.expect(self.books.held, "released what was not held");
                    self.expect(self.may_open(), "opened in a minority");
                    self.expect(
                        !unconfirmed || self.is_confirmed(),
                        "released on the old master's own word",
                    );
                    self.books.held = false;
                }
                Action::Commit(commit) => self.committed(&commit),
                Action::Clear(_) => {
                    self.expect(self.books.published.is_some(), "cleared nothing");
                    self.books.doubted_at = Some(self.now);
                    self.books.published = None;
                    self.books.held = false;
                }
                Action::Probe(asked) => {
                    let node = NODES.into_iter().find(|node| addr(*node) == asked);
                    self.open
                        .extend(node.map(|node| (node, self.now, self.masters[usize::from(node)])));
                }
                Action::ReplyPolicy(_) => {
                    self.expect(
                        self.books.held,
                        "replies are dropped or wait although traffic flows",
                    );
                }
                Action::Ask | Action::Note(_) | Action::Redirect(_) => {}
            }
        }
        let shown = self.machine.committed().filter(|it| it.published).map(|it| it.addr.clone());
        self.expect(
            shown == self.books.published.map(|(node, _)| addr(node)),
            "shows another target than it published",
        );
        self.took_over_epoch();
        self.expect(self.machine.broken_invariant().is_none(), "an invariant of its own is broken");
        self.expect(self.machine.next_deadline() > self.now, "a deadline that has passed already");
    }

    /// The epoch of the same master may rise without a commit, if two of the three really named
    /// that.
    fn took_over_epoch(&mut self) {
        let shown = self.machine.committed().filter(|it| it.published).map(|it| it.epoch);
        let Some(((node, epoch), shown)) =
            self.books.published.zip(shown).filter(|((_, epoch), shown)| epoch != shown)
        else {
            return;
        };
        let really = self.sentinels.iter().filter(|it| it.named.contains(&(node, shown))).count();
        self.expect(really >= 2 && shown > epoch, "took over an epoch that too few named");
        (self.books.published, self.books.last) = (Some((node, shown)), Some((node, shown)));
    }

    fn expect(&mut self, holds: bool, otherwise: &'static str) {
        if !holds {
            self.books.fault.get_or_insert(otherwise);
        }
    }

    /// How many sentinels named the last target in answers to questions from `since` on.
    fn named_since(&self, since: Instant) -> usize {
        let fresh = |((config, _), at): &(&(Config, Who), &Instant)| {
            self.books.last == Some(*config) && **at >= since
        };
        self.books.asked.iter().filter(fresh).count()
    }

    /// A sentinel's word from after the last sign of a doubt, or silence for as long as a word is
    /// good.
    fn is_confirmed(&self) -> bool {
        let Some(doubted_at) = self.books.doubted_at else { return true };
        self.named_since(doubted_at) >= 1 || self.now - doubted_at >= Rules::default().view_expiry
    }

    /// Where a minority stops traffic, two of the three have to have been heard lately.
    fn may_open(&self) -> bool {
        let lately = |at: &Instant| self.now - *at <= Rules::default().minority_after;
        let who: BTreeSet<Who> = self
            .books
            .asked
            .iter()
            .filter(|(_, at)| lately(at))
            .map(|((_, who), _)| *who)
            .collect();
        self.minority == Minority::Keep || who.len() >= 2
    }

    fn committed(&mut self, commit: &Commit) {
        let node = NODES.into_iter().find(|node| addr(*node) == commit.addr).expect("one of ours");
        let config = (node, commit.epoch);
        let Some((asked_at, master)) = self.books.answers.get(&node).copied() else {
            return self.expect(false, "committed without an answer");
        };
        self.expect(master, "committed on an answer that verifies nothing");
        // Who really named it, ever; and who was heard to name it before the question was asked,
        // and by now.
        let really = self.sentinels.iter().filter(|it| it.named.contains(&config)).count();
        let heard_by = |at: Instant| {
            let heard = |who: &&Who| {
                self.books.heard.get(&(config, **who)).is_some_and(|heard| *heard <= at)
            };
            SENTINELS.iter().filter(heard).count()
        };
        let (heard, by_now) = (heard_by(asked_at), heard_by(self.now));
        // A majority may be verified by a young answer from after the first word, while nothing can
        // be written.
        let ahead = commit.basis == Basis::Majority
            && self.books.held
            && self.now - asked_at <= AHEAD
            && heard >= 1;
        let needed = match commit.basis {
            Basis::Majority | Basis::Regress => 2,
            Basis::Solo | Basis::BootstrapMinority => 1,
            Basis::Again => 0,
        };
        self.expect(really >= needed, "committed what too few sentinels ever named");
        self.expect(by_now >= needed, "committed what too few sentinels were heard to name");
        self.expect(
            heard >= needed || ahead,
            "committed on an answer that is older than its evidence",
        );
        let last = self.books.last;
        self.expect(
            commit.basis != Basis::Again || last == Some(config),
            "again, but it never was",
        );
        let voted = self.books.doubted_at.is_none_or(|at| self.named_since(at) >= 1);
        self.expect(
            commit.basis != Basis::Again || voted,
            "again, without a vote from after the doubt",
        );
        self.expect(commit.held || self.may_open(), "opened in a minority by a commit");
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
            self.expect(
                self.books.left.get(&node).is_none_or(|left| commit.epoch > *left),
                "published a zombie",
            );
        }
        if let Some((old, _)) = last.filter(|(old, _)| *old != node) {
            self.books.left.insert(old, commit.epoch);
        }
        self.books.bases.insert(commit.basis);
        (self.books.published, self.books.last, self.books.held) =
            (Some(config), Some(config), commit.held);
        self.books.doubted_at = None;
    }

    pub(crate) fn hear_view(&mut self, who: Who, which: usize) {
        let sentinel = &mut self.sentinels[usize::from(who)];
        // A connection does not run backwards.
        sentinel.oldest = which;
        let (node, epoch) = sentinel.named[which];
        let failing_over = sentinel.attempt.is_some() && which + 1 == sentinel.named.len();
        let asked_at = sentinel.since.get(which + 1).map_or(self.now, |since| self.now.min(*since));
        self.heard(who, (node, epoch));
        self.books.asked.insert(((node, epoch), who), asked_at);
        let view = View {
            addr: addr(node),
            epoch,
            run_id: "known".into(),
            down: false,
            failing_over,
            rebooted: false,
            tilt: false,
            quorum: 2,
            peers: SENTINELS
                .into_iter()
                .filter(|peer| *peer != who)
                .map(|peer| (id(peer), true))
                .collect(),
            replicas: NODES
                .into_iter()
                .filter(|replica| *replica != node)
                .map(|replica| ReplicaView { addr: addr(replica), healthy: true })
                .collect(),
        };
        self.step(Event::View { from: id(who), view, asked_at, configured: true });
    }

    /// Books: `who` was heard to switch to `node`, which it did with everything it named there.
    pub(crate) fn heard_switching(&mut self, who: Who, node: Node) {
        let named = self.sentinels[usize::from(who)].named.clone();
        for config in named.into_iter().filter(|(it, _)| *it == node) {
            self.heard(who, config);
        }
    }

    /// Books: `who` names `config`, and if it follows somebody to it, that one does too.
    fn heard(&mut self, who: Who, config: Config) {
        self.books.heard.entry((config, who)).or_insert(self.now);
        for peer in SENTINELS {
            let followed = self
                .said
                .iter()
                .any(|it| matches!(it, (by, Said::Following(of, _)) if (*by, *of) == (who, peer)));
            if followed && self.sentinels[usize::from(peer)].named.contains(&config) {
                self.books.heard.entry((config, peer)).or_insert(self.now);
            }
        }
    }

    /// Nobody was there, or nobody answered.
    pub(crate) fn refuse(&mut self, node: Node, asked_at: Instant, failure: ProbeFailure) {
        self.step(Event::Probed {
            node: addr(node),
            probe: Probe { asked_at, outcome: Err(failure) },
        });
    }

    pub(crate) fn answer(&mut self, node: Node, asked_at: Instant, master: bool) {
        let (process, empty) = self.restarts[usize::from(node)];
        let history = if node == 0 { "first".to_owned() } else { format!("history-{node}") };
        let lineage = Lineage {
            run_id: format!("process-{node}-{process}").into(),
            replid: if empty { format!("empty-{node}").into() } else { history.into() },
            replid2: if node == 0 || empty { "".into() } else { "first".into() },
            offset: 0,
            second_offset: -1,
        };
        // Histories can be read of the first master's replicas; after that they are left open,
        // which is the harder case.
        let readable = self.books.last.is_none_or(|(last, _)| last == 0);
        let role =
            if master { Role::Master } else { Role::Replica { master: addr(0), connected: true } };
        let report = Report {
            dialled: SocketAddr::from(([127, 0, 0, 1 + node], 6379)),
            role,
            pong: true,
            offset: None,
            lineage: Some(lineage).filter(|_| readable),
        };
        self.step(Event::Probed {
            node: addr(node),
            probe: Probe { asked_at, outcome: Ok(report) },
        });
    }

    /// Time passes; nothing arrives, and every deadline is kept.
    pub(crate) fn pass(&mut self, long: Duration) {
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
            self.open.extend(
                open.iter()
                    .filter(|(asked, ..)| *asked == node)
                    .max_by_key(|(_, at, _)| *at)
                    .copied(),
            );
        }
        if long > SHORT {
            for sentinel in &mut self.sentinels {
                sentinel.oldest = sentinel.named.len() - 1;
            }
        }
    }

    pub(crate) fn adopt(&mut self, who: Who, config: Config) {
        let now = self.now;
        let sentinel = &mut self.sentinels[usize::from(who)];
        sentinel.named.push(config);
        sentinel.since.push(now);
    }

    /// What the sentinels will settle at if they are left alone: the highest epoch of those that
    /// live, and among equals whatever most of them name.
    pub(crate) fn settled(&self) -> Option<Config> {
        let living: Vec<Config> =
            self.sentinels.iter().filter(|it| it.alive).map(Sentinel::config).collect();
        let highest = living.iter().map(|(_, epoch)| *epoch).max()?;
        let at_highest: BTreeSet<Node> =
            living.iter().filter(|(_, epoch)| *epoch == highest).map(|(node, _)| *node).collect();
        (at_highest.len() == 1).then(|| at_highest.first().map(|node| (*node, highest))).flatten()
    }

    /// From here on nobody fails any more, hellos arrive, and every question is answered at once:
    /// does the machine follow?
    pub(crate) fn converges(&self) -> bool {
        let mut world = self.clone();
        let Some((node, epoch)) = world.settled() else { return true };
        let living: Vec<Who> =
            SENTINELS.into_iter().filter(|who| self.sentinels[usize::from(*who)].alive).collect();
        world.masters = NODES.map(|it| it == node);
        for who in &living {
            let sentinel = &mut world.sentinels[usize::from(*who)];
            sentinel.attempt = None;
            if sentinel.config() != (node, epoch) {
                sentinel.named.push((node, epoch));
                sentinel.since.push(self.now);
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
