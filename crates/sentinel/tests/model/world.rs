//! The modelled state: the cluster, the machine, and a record of what the machine does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sentinel::{
    Basis, Commit, Lineage, Machine, MachineAction, MachineEvent, MachineRules, MachineState,
    Minority, MyId, NodeAddr, NodeReport, PingReply, Probe, ProbeFailure, ReplicaView, Role, View,
};

/// A node's number: 0 is the first master.
pub(crate) type Node = u8;
/// A sentinel's number.
pub(crate) type SentinelNumber = u8;
/// The master that a sentinel names, and its epoch.
pub(crate) type Config = (Node, u64);

pub(crate) const SENTINELS: [SentinelNumber; 3] = [0, 1, 2];
pub(crate) const NODES: [Node; 3] = [0, 1, 2];
pub(crate) const LAST_EPOCH: u64 = 2;

/// Long enough for a solo grace, a verification pause and an alert poll; too short for a hold to
/// time out.
pub(crate) const SHORT: Duration = Duration::from_millis(300);
/// Long enough for a hold to time out and for votes to expire.
pub(crate) const LONG: Duration = Duration::from_millis(5500);

/// Maximum age of an answer that verifies a candidate before all of its evidence has arrived.
const AHEAD: Duration = Duration::from_millis(50);

pub(crate) fn id(who: SentinelNumber) -> MyId {
    MyId::parse(&format!("{who:040x}")).expect("forty digits")
}

pub(crate) fn addr(node: Node) -> NodeAddr {
    NodeAddr { host: ["A", "B", "C"][usize::from(node)].into(), port: 6379 }
}

/// The failover that a leader executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FailoverAttempt {
    pub(crate) candidate: Node,
    pub(crate) epoch: u64,
    pub(crate) promoted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sentinel {
    pub(crate) alive: bool,
    /// Every configuration that it ever named, the current one last.
    pub(crate) named: Vec<Config>,
    pub(crate) attempt: Option<FailoverAttempt>,
    /// When it began to name each of them: a reply that names the one before belongs to an earlier
    /// poll.
    pub(crate) since: Vec<Instant>,
    /// The oldest of these that may still be in flight to the machine.
    pub(crate) oldest: usize,
}

impl Sentinel {
    pub(crate) fn config(&self) -> Config {
        *self.named.last().expect("it names something from the start")
    }
}

/// A published event; it stays deliverable for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Published {
    Selected(Node),
    Promoted(Node),
    /// The peer whose hello was followed, and the master named until then.
    Following(SentinelNumber, Node),
    Switched(Node),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ModelState {
    pub(crate) machine: Machine,
    pub(crate) now: Instant,
    pub(crate) minority: Minority,
    pub(crate) pauses: (u8, u8),
    pub(crate) sentinels: [Sentinel; 3],
    pub(crate) masters: [bool; 3],
    /// How often each node was restarted, and whether it lost its data.
    pub(crate) restarts: [(u8, bool); 3],
    pub(crate) published_events: BTreeSet<(SentinelNumber, Published)>,
    /// Pending probes: the node, the time, and whether it was a master then.
    pub(crate) open: BTreeSet<(Node, Instant, bool)>,
    pub(crate) record: Record,
}

/// The model's own record of what the machine did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) published: Option<Config>,
    pub(crate) last: Option<Config>,
    pub(crate) held: bool,
    pub(crate) left_at: BTreeMap<Node, u64>,
    /// When each sentinel was first heard to name a configuration, by itself or through one of its
    /// followers.
    pub(crate) heard: BTreeMap<(Config, SentinelNumber), Instant>,
    /// When the latest poll was sent in whose reply each sentinel named a configuration.
    pub(crate) asked: BTreeMap<(Config, SentinelNumber), Instant>,
    /// The last sign that the target may have been superseded unnoticed.
    pub(crate) doubted_at: Option<Instant>,
    /// Each node's answer to the latest probe: when that was sent, and whether it is a master.
    pub(crate) answers: BTreeMap<Node, (Instant, bool)>,
    pub(crate) bases: BTreeSet<Basis>,
    pub(crate) fault: Option<&'static str>,
}

impl ModelState {
    /// One name leads to all three sentinels, and nothing was received yet.
    pub(crate) fn new(start: Instant, minority: Minority) -> Self {
        let mut machine =
            Machine::new(start, MachineRules { minority, ..MachineRules::default() }, 1);
        machine.step(start, MachineEvent::ExpectedSentinels(3));
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
            published_events: BTreeSet::new(),
            open: BTreeSet::new(),
            record: Record::default(),
        }
    }

    pub(crate) fn booted(start: Instant, minority: Minority) -> Self {
        let mut state = Self::new(start, minority);
        SENTINELS.into_iter().for_each(|who| state.hear_view(who, 0));
        // A start asks the replicas as well, since one of them may have been promoted.
        NODES.into_iter().for_each(|node| state.answer(node, start, node == 0));
        assert_eq!(state.record.published, Some((0, 0)));
        state.pass(Duration::from_secs(2));
        state.open.clear();
        state.record.bases.clear();
        state
    }

    pub(crate) fn step(&mut self, event: MachineEvent) {
        if let MachineEvent::Probed { node, probe } = &event {
            let node = NODES.into_iter().find(|it| addr(*it) == *node).expect("one of ours");
            let report = probe.outcome.as_ref().ok();
            let master = report.is_some_and(|it| it.role == Role::Master && it.ping.is_ready());
            let last = self.record.answers.entry(node).or_insert((probe.asked_at, master));
            if probe.asked_at >= last.0 {
                *last = (probe.asked_at, master);
            }
            if !master && self.record.last.is_some_and(|(last, _)| last == node) {
                self.record.doubted_at = Some(self.now);
            }
        }
        let unconfirmed = matches!(self.machine.state(), MachineState::Unconfirmed { .. });
        let actions = self.machine.step(self.now, event);
        for action in actions {
            match action {
                MachineAction::Hold => {
                    self.expect(
                        !self.record.held && self.record.published.is_some(),
                        "held twice, or nothing",
                    );
                    self.record.held = true;
                }
                MachineAction::Release => {
                    self.expect(self.record.held, "released what was not held");
                    self.expect(self.may_open(), "opened in a minority");
                    self.expect(
                        !unconfirmed || self.is_confirmed(),
                        "released on the old master's own answer",
                    );
                    self.record.held = false;
                }
                MachineAction::Commit(commit) => self.committed(&commit),
                MachineAction::Clear(_) => {
                    self.expect(self.record.published.is_some(), "cleared nothing");
                    self.record.doubted_at = Some(self.now);
                    self.record.published = None;
                    self.record.held = false;
                }
                MachineAction::Probe(asked) => {
                    let node = NODES.into_iter().find(|node| addr(*node) == asked);
                    self.open
                        .extend(node.map(|node| (node, self.now, self.masters[usize::from(node)])));
                }
                MachineAction::ReplyPolicy(_) => {
                    self.expect(
                        self.record.held,
                        "replies are dropped or wait although traffic flows",
                    );
                }
                MachineAction::Override(_) => self.expect(false, "an order that nobody gave"),
                MachineAction::Ask | MachineAction::Warning(_) | MachineAction::Redirect(..) => {}
            }
        }
        let shown = self.machine.committed().filter(|it| it.published).map(|it| it.addr.clone());
        self.expect(
            shown == self.record.published.map(|(node, _)| addr(node)),
            "shows another target than it published",
        );
        self.took_over_epoch();
        self.expect(self.machine.broken_invariant().is_none(), "an invariant of its own is broken");
        self.expect(self.machine.next_deadline() > self.now, "a deadline that has passed already");
    }

    /// The epoch of the same master may rise without a commit if two of the three did name it.
    fn took_over_epoch(&mut self) {
        let shown = self.machine.committed().filter(|it| it.published).map(|it| it.epoch);
        let Some(((node, epoch), shown)) =
            self.record.published.zip(shown).filter(|((_, epoch), shown)| epoch != shown)
        else {
            return;
        };
        let named_by = self.sentinels.iter().filter(|it| it.named.contains(&(node, shown))).count();
        self.expect(named_by >= 2 && shown > epoch, "took over an epoch that too few named");
        (self.record.published, self.record.last) = (Some((node, shown)), Some((node, shown)));
    }

    fn expect(&mut self, holds: bool, otherwise: &'static str) {
        if !holds {
            self.record.fault.get_or_insert(otherwise);
        }
    }

    /// How many sentinels named the last target in replies to polls from `since` on.
    fn named_since(&self, since: Instant) -> usize {
        let fresh = |((config, _), at): &(&(Config, SentinelNumber), &Instant)| {
            self.record.last == Some(*config) && **at >= since
        };
        self.record.asked.iter().filter(fresh).count()
    }

    /// A sentinel's view from after the last sign of doubt, or no view for as long as one is valid.
    fn is_confirmed(&self) -> bool {
        let Some(doubted_at) = self.record.doubted_at else { return true };
        self.named_since(doubted_at) >= 1
            || self.now - doubted_at >= MachineRules::default().view_expiry
    }

    /// If a minority stops traffic, two of the three must have been heard recently.
    fn may_open(&self) -> bool {
        let lately = |at: &Instant| self.now - *at <= MachineRules::default().minority_after;
        let who: BTreeSet<SentinelNumber> = self
            .record
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
        let Some((asked_at, master)) = self.record.answers.get(&node).copied() else {
            return self.expect(false, "committed without an answer");
        };
        self.expect(master, "committed on an answer that verifies nothing");
        // The sentinels that ever named it; and those that were heard to name it before the probe
        // was sent, and by now.
        let named_by = self.sentinels.iter().filter(|it| it.named.contains(&config)).count();
        let heard_by = |at: Instant| {
            let heard = |who: &&SentinelNumber| {
                self.record.heard.get(&(config, **who)).is_some_and(|heard| *heard <= at)
            };
            SENTINELS.iter().filter(heard).count()
        };
        let (heard, by_now) = (heard_by(asked_at), heard_by(self.now));
        // A majority may be verified by a recent answer from after its first vote, while nothing
        // can be written.
        let ahead = commit.basis == Basis::Majority
            && self.record.held
            && self.now - asked_at <= AHEAD
            && heard >= 1;
        let needed = match commit.basis {
            Basis::Majority | Basis::EpochRegression => 2,
            Basis::SingleSentinel | Basis::BootstrapMinority => 1,
            Basis::Reconfirmed => 0,
            // This model has no operator.
            Basis::Operator => usize::MAX,
        };
        self.expect(named_by >= needed, "committed what too few sentinels ever named");
        self.expect(by_now >= needed, "committed what too few sentinels were heard to name");
        self.expect(
            heard >= needed || ahead,
            "committed on an answer that is older than its evidence",
        );
        let last = self.record.last;
        self.expect(
            commit.basis != Basis::Reconfirmed || last == Some(config),
            "again, but it never was",
        );
        let voted = self.record.doubted_at.is_none_or(|at| self.named_since(at) >= 1);
        self.expect(
            commit.basis != Basis::Reconfirmed || voted,
            "again, without a vote from after the doubt",
        );
        self.expect(commit.held || self.may_open(), "opened in a minority by a commit");
        if commit.basis == Basis::EpochRegression {
            // No majority of reachable sentinels has a higher epoch.
            let newer = |it: &Sentinel| it.alive && it.config().1 > commit.epoch;
            self.expect(
                self.sentinels.iter().filter(|it| newer(it)).count() < 2,
                "went back although a majority did not",
            );
            self.record.left_at.clear();
        } else {
            self.expect(last.is_none_or(|(_, epoch)| commit.epoch >= epoch), "the epoch fell");
            self.expect(
                self.record.left_at.get(&node).is_none_or(|left_at| commit.epoch > *left_at),
                "published a zombie",
            );
        }
        if let Some((old, _)) = last.filter(|(old, _)| *old != node) {
            self.record.left_at.insert(old, commit.epoch);
        }
        self.record.bases.insert(commit.basis);
        (self.record.published, self.record.last, self.record.held) =
            (Some(config), Some(config), commit.held);
        self.record.doubted_at = None;
    }

    pub(crate) fn hear_view(&mut self, who: SentinelNumber, index: usize) {
        let sentinel = &mut self.sentinels[usize::from(who)];
        // A connection does not run backwards.
        sentinel.oldest = index;
        let (node, epoch) = sentinel.named[index];
        let failing_over = sentinel.attempt.is_some() && index + 1 == sentinel.named.len();
        let asked_at = sentinel.since.get(index + 1).map_or(self.now, |since| self.now.min(*since));
        self.heard(who, (node, epoch));
        self.record.asked.insert(((node, epoch), who), asked_at);
        let view = View {
            addr: addr(node),
            epoch,
            run_id: format!("process-{node}-{}", self.restarts[usize::from(node)].0).into(),
            down: false,
            objectively_down: false,
            failing_over,
            promoted: false,
            rebooted: false,
            pong_age: Duration::ZERO,
            info_age: Duration::MAX,
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
        self.step(MachineEvent::View { from: id(who), view, asked_at, configured: true });
    }

    /// Records that `who` was heard to switch to `node`, with everything it named there.
    pub(crate) fn heard_switching(&mut self, who: SentinelNumber, node: Node) {
        let named = self.sentinels[usize::from(who)].named.clone();
        for config in named.into_iter().filter(|(it, _)| *it == node) {
            self.heard(who, config);
        }
    }

    /// Records that `who` names `config`, and so does a peer that it followed to it.
    fn heard(&mut self, who: SentinelNumber, config: Config) {
        self.record.heard.entry((config, who)).or_insert(self.now);
        for peer in SENTINELS {
            let followed = self.published_events.iter().any(
                |it| matches!(it, (by, Published::Following(of, _)) if (*by, *of) == (who, peer)),
            );
            if followed && self.sentinels[usize::from(peer)].named.contains(&config) {
                self.record.heard.entry((config, peer)).or_insert(self.now);
            }
        }
    }

    /// The probe failed.
    pub(crate) fn refuse(&mut self, node: Node, asked_at: Instant, failure: ProbeFailure) {
        self.step(MachineEvent::Probed {
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
        // Histories of the first master's replicas are readable; later ones are unknown, which is
        // the harder case.
        let readable = self.record.last.is_none_or(|(last, _)| last == 0);
        let role =
            if master { Role::Master } else { Role::Replica { master: addr(0), connected: true } };
        let report = NodeReport {
            dialled: SocketAddr::from(([127, 0, 0, 1 + node], 6379)),
            role,
            ping: PingReply::Pong,
            offset: None,
            lineage: Some(lineage).filter(|_| readable),
            replicas: None,
        };
        self.step(MachineEvent::Probed {
            node: addr(node),
            probe: Probe { asked_at, outcome: Ok(report) },
        });
    }

    /// Time passes; nothing arrives, and every deadline is met.
    pub(crate) fn pass(&mut self, long: Duration) {
        let until = self.now + long;
        while self.machine.next_deadline() <= until {
            self.now = self.machine.next_deadline();
            self.step(MachineEvent::Tick);
        }
        self.now = until;
        self.step(MachineEvent::Tick);
        // Only the latest probe of each node matters; an earlier one proves less.
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

    pub(crate) fn adopt(&mut self, who: SentinelNumber, config: Config) {
        let now = self.now;
        let sentinel = &mut self.sentinels[usize::from(who)];
        sentinel.named.push(config);
        sentinel.since.push(now);
    }

    /// The configuration that the sentinels agree on if they are left alone: the highest epoch of
    /// the running ones, if they name one master at it.
    pub(crate) fn settled(&self) -> Option<Config> {
        let living: Vec<Config> =
            self.sentinels.iter().filter(|it| it.alive).map(Sentinel::config).collect();
        let highest = living.iter().map(|(_, epoch)| *epoch).max()?;
        let at_highest: BTreeSet<Node> =
            living.iter().filter(|(_, epoch)| *epoch == highest).map(|(node, _)| *node).collect();
        (at_highest.len() == 1).then(|| at_highest.first().map(|node| (*node, highest))).flatten()
    }

    /// From here on nothing fails any more, hellos arrive, and every probe is answered at once:
    /// does the machine follow?
    pub(crate) fn converges(&self) -> bool {
        let mut state = self.clone();
        let Some((node, epoch)) = state.settled() else { return true };
        let living: Vec<SentinelNumber> =
            SENTINELS.into_iter().filter(|who| self.sentinels[usize::from(*who)].alive).collect();
        state.masters = NODES.map(|it| it == node);
        for who in &living {
            let sentinel = &mut state.sentinels[usize::from(*who)];
            sentinel.attempt = None;
            if sentinel.config() != (node, epoch) {
                sentinel.named.push((node, epoch));
                sentinel.since.push(self.now);
            }
        }
        let end = state.now + Duration::from_secs(30);
        while state.now < end {
            for who in &living {
                let last = state.sentinels[usize::from(*who)].named.len() - 1;
                state.hear_view(*who, last);
            }
            state.open.clear();
            state.pass(Duration::from_millis(100));
            for (node, at, _) in std::mem::take(&mut state.open) {
                state.answer(node, at, state.masters[usize::from(node)]);
            }
            let there = state.record.published == Some((node, epoch)) && !state.record.held;
            if there && matches!(state.machine.state(), MachineState::Stable) {
                return state.record.fault.is_none();
            }
        }
        false
    }
}
