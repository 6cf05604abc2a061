//! A scenario language: a machine, a clock, and a small simulated world of sentinels and redis
//! nodes that the test controls.
//!
//! The world answers by itself. A query takes [`Rig::ANSWER`] each way, and the answer is the state
//! at the time when it is given. Deadlines are kept to the microsecond. The actions of the machine
//! are recorded as short strings with their milliseconds, such as `"84 hold"` or `"1150 commit B@6
//! majority"`, and an [`Oracle`] checks the safety rules at each step of each scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::oracle::Oracle;
use crate::machine::{FollowOrder, Machine, MachineAction, MachineEvent, OverrideNews};
use crate::{
    Epoch, Lineage, MachineRules, MyId, NodeAddr, NodeReport, Notice, PingReply, Probe,
    ProbeFailure, ReplicaView, Role, View,
};

/// The letter of a redis node.
pub(in crate::machine) type Letter = char;

pub(in crate::machine) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(in crate::machine) fn node(letter: Letter) -> NodeAddr {
    NodeAddr { host: format!("redis-{letter}").into(), port: 6379 }
}

pub(in crate::machine) fn id(sentinel: u8) -> MyId {
    MyId::parse(&format!("{sentinel:040x}")).expect("forty digits")
}

pub(in crate::machine) fn dialled(letter: Letter) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, letter as u8], 6379))
}

pub(in crate::machine) fn lineage(run_id: &str, replid: &str, replid2: &str) -> Lineage {
    Lineage {
        run_id: run_id.into(),
        replid: replid.into(),
        replid2: replid2.into(),
        offset: 1000,
        second_offset: -1,
    }
}

/// A view as a healthy sentinel of three reports it.
pub(in crate::machine) fn view(
    addr: Letter,
    epoch: Epoch,
    peers: &[u8],
    replicas: &[Letter],
) -> View {
    View {
        addr: node(addr),
        epoch,
        run_id: format!("process-{addr}").into(),
        down: false,
        objectively_down: false,
        failing_over: false,
        promoted: false,
        rebooted: false,
        pong_age: Duration::ZERO,
        info_age: Duration::MAX,
        tilt: false,
        quorum: 2,
        peers: peers.iter().map(|peer| (id(*peer), true)).collect(),
        replicas: replicas
            .iter()
            .map(|addr| ReplicaView { addr: node(*addr), healthy: true })
            .collect(),
    }
}

/// The result of a query to a node.
#[derive(Debug, Clone)]
pub(in crate::machine) enum Answer {
    Report(NodeReport),
    Failure(ProbeFailure),
    /// The answer never arrives, not even as a failure.
    Lost,
}

#[derive(Debug)]
enum Due {
    ViewOf(u8, Instant),
    ProbeOf(NodeAddr, Instant),
}

pub(in crate::machine) struct Rig {
    pub(in crate::machine) machine: Machine,
    pub(in crate::machine) now: Instant,
    zero: Instant,
    /// The current views of the reachable sentinels.
    pub(in crate::machine) sentinels: BTreeMap<u8, View>,
    unreachable: BTreeMap<u8, View>,
    /// The sentinels at addresses that are no longer configured.
    pub(in crate::machine) former: BTreeSet<u8>,
    pub(in crate::machine) nodes: BTreeMap<Letter, Answer>,
    queue: BTreeMap<(Instant, u64), Due>,
    sequence: u64,
    pub(in crate::machine) log: Vec<(Instant, MachineAction)>,
    oracle: Oracle,
    /// The sentinel that selected a candidate last: it shows its failover in progress from the
    /// promotion until it names another master.
    leader: Option<u8>,
}

impl Rig {
    /// One way of a query or an answer.
    pub(in crate::machine) const ANSWER: Duration = Duration::from_micros(500);

    /// Three sentinels that name A at epoch 5, with A as master and B and C as its replicas.
    pub(in crate::machine) fn new() -> Self {
        Self::with(MachineRules::default(), 3)
    }

    pub(in crate::machine) fn with(rules: MachineRules, seeds: usize) -> Self {
        let now = Instant::now();
        let mut rig = Self {
            machine: Machine::new(now, rules.clone(), seeds),
            now,
            zero: now,
            sentinels: BTreeMap::new(),
            unreachable: BTreeMap::new(),
            former: BTreeSet::new(),
            nodes: BTreeMap::new(),
            queue: BTreeMap::new(),
            sequence: 0,
            log: Vec::new(),
            oracle: Oracle::new(rules),
            leader: None,
        };
        for sentinel in 1..=3 {
            let peers: Vec<u8> = (1..=3).filter(|peer| *peer != sentinel).collect();
            rig.sentinels.insert(sentinel, view('A', 5, &peers, &['B', 'C']));
        }
        rig.nodes.insert('A', master('A', "history-1", ""));
        rig.nodes.insert('B', replica('B', 'A', "history-1"));
        rig.nodes.insert('C', replica('C', 'A', "history-1"));
        rig
    }

    /// A machine that has committed A at epoch 5 and is stable. The clock of the scenario starts
    /// now.
    pub(in crate::machine) fn booted() -> Self {
        Self::booted_with(MachineRules::default())
    }

    pub(in crate::machine) fn booted_with(rules: MachineRules) -> Self {
        let mut rig = Self::with(rules, 3);
        rig.run(3000);
        assert_eq!(rig.outcomes(), ["2 commit A@5 majority"]);
        rig.mark();
        rig
    }

    /// Restarts the scenario's clock and clears the log.
    pub(in crate::machine) fn mark(&mut self) {
        self.zero = self.now;
        self.log.clear();
    }

    /// Advances the clock by `millis`.
    pub(in crate::machine) fn run(&mut self, millis: u64) {
        self.run_until(self.now + ms(millis));
    }

    /// Advances the clock to `millis` since the start of the scenario.
    pub(in crate::machine) fn at(&mut self, millis: u64) -> &mut Self {
        self.run_until(self.zero + ms(millis));
        self
    }

    fn run_until(&mut self, until: Instant) {
        loop {
            let tick = self.machine.next_deadline().max(self.now);
            let next = self.queue.first_key_value().map(|((at, _), _)| *at);
            match next {
                Some(at) if at <= until && at <= tick => {
                    self.now = self.now.max(at);
                    let (_, due) = self.queue.pop_first().expect("just seen");
                    self.deliver(due);
                }
                _ if tick <= until => {
                    self.now = tick;
                    self.step(MachineEvent::Tick);
                }
                _ => break,
            }
        }
        self.now = until;
    }

    fn deliver(&mut self, due: Due) {
        match due {
            Due::ViewOf(sentinel, asked_at) => {
                if let Some(view) = self.sentinels.get(&sentinel).cloned() {
                    self.step(MachineEvent::View {
                        from: id(sentinel),
                        view,
                        asked_at,
                        configured: !self.former.contains(&sentinel),
                    });
                }
            }
            Due::ProbeOf(addr, asked_at) => {
                let answer = self
                    .nodes
                    .iter()
                    .find(|(letter, _)| node(**letter) == addr)
                    .map(|(_, it)| it.clone());
                let outcome = match answer.unwrap_or(Answer::Failure(ProbeFailure::Unreachable)) {
                    Answer::Report(report) => Ok(report),
                    Answer::Failure(failure) => Err(failure),
                    Answer::Lost => return,
                };
                self.step(MachineEvent::Probed { node: addr, probe: Probe { asked_at, outcome } });
            }
        }
    }

    /// One event, now.
    pub(in crate::machine) fn step(&mut self, event: MachineEvent) {
        let seen = event.clone();
        let actions = self.machine.step(self.now, event);
        self.oracle.check_step(self.now, &seen, &actions, self.machine.committed());
        assert_eq!(self.machine.broken_invariant(), None);
        assert!(
            self.machine.next_deadline() > self.now,
            "a deadline in the past would be a busy loop"
        );
        for action in actions {
            match &action {
                MachineAction::Ask => {
                    for sentinel in self.sentinels.keys().copied().collect::<Vec<_>>() {
                        self.later(Self::ANSWER * 2, Due::ViewOf(sentinel, self.now));
                    }
                }
                MachineAction::Probe(addr) => {
                    self.later(Self::ANSWER * 2, Due::ProbeOf(addr.clone(), self.now));
                }
                _ => {}
            }
            self.log.push((self.now, action));
        }
    }

    fn later(&mut self, after: Duration, due: Due) {
        self.sequence += 1;
        self.queue.insert((self.now + after, self.sequence), due);
    }

    /// Suspends the process for `millis`: nothing is answered, and everything in flight arrives
    /// afterwards.
    pub(in crate::machine) fn stall(&mut self, millis: u64) {
        self.now += ms(millis);
    }

    /// The actions of the machine, without queries and warnings, in milliseconds of the scenario's
    /// clock.
    pub(in crate::machine) fn outcomes(&self) -> Vec<String> {
        let at = |at: &Instant| at.saturating_duration_since(self.zero).as_millis();
        self.log
            .iter()
            .filter_map(|(when, action)| {
                let what = match action {
                    MachineAction::Hold => "hold".to_owned(),
                    MachineAction::Release => "release".to_owned(),
                    MachineAction::Clear(reason) => format!("clear {reason:?}"),
                    MachineAction::Commit(it) => {
                        let letter = it.addr.host.strip_prefix("redis-").unwrap_or(&it.addr.host);
                        format!("commit {letter}@{} {}", it.epoch, it.basis.label())
                    }
                    MachineAction::Redirect(_, to) => format!("redirect {to}"),
                    MachineAction::Override(OverrideNews::Answered(_, Ok(followed))) => {
                        format!("follow {followed:?}")
                    }
                    MachineAction::Override(OverrideNews::Answered(_, Err(refusal))) => {
                        format!("refuse {refusal:?}")
                    }
                    MachineAction::Override(OverrideNews::Ended(_, end)) => {
                        format!("override {}", end.label())
                    }
                    MachineAction::Ask
                    | MachineAction::Probe(_)
                    | MachineAction::Warning(_)
                    | MachineAction::ReplyPolicy(_) => {
                        return None;
                    }
                };
                Some(format!("{} {what}", at(when)))
            })
            .collect()
    }

    /// The same without times, for scenarios in which only the order matters.
    pub(in crate::machine) fn outcomes_untimed(&self) -> Vec<String> {
        self.outcomes()
            .iter()
            .filter_map(|line| line.split_once(' ').map(|(_, what)| what.to_owned()))
            .collect()
    }

    /// How often a warning was given.
    pub(in crate::machine) fn warnings(&self, wanted: crate::Warning) -> usize {
        self.log.iter().filter(|(_, action)| *action == MachineAction::Warning(wanted)).count()
    }

    /// How often this node was probed.
    pub(in crate::machine) fn probes(&self, letter: Letter) -> usize {
        self.log.iter().filter(|(_, action)| *action == MachineAction::Probe(node(letter))).count()
    }
}

/// Changes of the world.
impl Rig {
    /// From now on this sentinel names `addr` at `epoch`, and lists the other nodes as its
    /// replicas.
    pub(in crate::machine) fn names(
        &mut self,
        sentinel: u8,
        addr: Letter,
        epoch: Epoch,
    ) -> &mut Self {
        let others: Vec<Letter> =
            ['A', 'B', 'C'].into_iter().filter(|letter| *letter != addr).collect();
        self.change(sentinel, |it| {
            let listed = view(addr, epoch, &[], &others);
            (it.addr, it.epoch, it.replicas) = (listed.addr, listed.epoch, listed.replicas);
            it.run_id = listed.run_id;
            (it.down, it.failing_over) = (false, false);
        })
    }

    /// The same for all reachable sentinels.
    pub(in crate::machine) fn all_name(&mut self, addr: Letter, epoch: Epoch) -> &mut Self {
        for sentinel in self.sentinels.keys().copied().collect::<Vec<_>>() {
            self.names(sentinel, addr, epoch);
        }
        self
    }

    pub(in crate::machine) fn change(
        &mut self,
        sentinel: u8,
        change: impl FnOnce(&mut View),
    ) -> &mut Self {
        let unreachable = self.unreachable.get_mut(&sentinel);
        change(self.sentinels.get_mut(&sentinel).or(unreachable).expect("a sentinel of this rig"));
        self
    }

    /// A sentinel publishes an event.
    pub(in crate::machine) fn publishes(&mut self, sentinel: u8, notice: Notice) -> &mut Self {
        self.step(MachineEvent::Notice { from: Some(id(sentinel)), notice });
        self
    }

    /// An operator orders to follow this node for a minute.
    pub(in crate::machine) fn orders(&mut self, letter: Letter) -> &mut Self {
        self.order(letter, 60_000, false)
    }

    pub(in crate::machine) fn order(
        &mut self,
        letter: Letter,
        millis: u64,
        force: bool,
    ) -> &mut Self {
        let (id, addr) = (self.sequence, node(letter));
        self.step(MachineEvent::Follow(FollowOrder { id, addr, lasts: ms(millis), force }));
        self
    }

    /// A sentinel answers a query sent at this moment. Those after the third are not configured.
    pub(in crate::machine) fn answers(&mut self, sentinel: u8, view: View) -> &mut Self {
        self.step(MachineEvent::View {
            from: id(sentinel),
            view,
            asked_at: self.now,
            configured: sentinel <= 3,
        });
        self
    }

    /// `+selected-slave` of this node.
    pub(in crate::machine) fn selects(&mut self, sentinel: u8, candidate: Letter) -> &mut Self {
        self.leader = Some(sentinel);
        self.publishes(sentinel, Notice::CandidateSelected { candidate: node(candidate) })
    }

    /// An observer's switch: `+config-update-from` if `after` is given, then `+switch-master`, then
    /// its new answers.
    pub(in crate::machine) fn switches(
        &mut self,
        sentinel: u8,
        after: Option<u8>,
        addr: Letter,
        epoch: Epoch,
    ) {
        let leaving = self.sentinels[&sentinel].addr.clone();
        self.names(sentinel, addr, epoch);
        if let Some(peer) = after {
            self.publishes(sentinel, Notice::ConfigUpdateFrom { peer: id(peer), leaving });
        }
        self.publishes(sentinel, Notice::Switched { to: node(addr) });
    }

    /// The sentinel answers that it does not know the master's name.
    pub(in crate::machine) fn forgets_name(&mut self, sentinel: u8) -> &mut Self {
        self.step(MachineEvent::NameUnknown { from: id(sentinel) });
        self
    }

    /// The sentinel's process ends: it does not answer, and its connection is closed.
    pub(in crate::machine) fn ends(&mut self, sentinel: u8) -> &mut Self {
        self.disconnects(sentinel);
        self.step(MachineEvent::SentinelLost { id: id(sentinel) });
        self
    }

    /// The sentinel becomes unreachable.
    pub(in crate::machine) fn disconnects(&mut self, sentinel: u8) -> &mut Self {
        if let Some(view) = self.sentinels.remove(&sentinel) {
            self.unreachable.insert(sentinel, view);
        }
        self
    }

    /// It becomes reachable again.
    pub(in crate::machine) fn reconnects(&mut self, sentinel: u8) -> &mut Self {
        if let Some(view) = self.unreachable.remove(&sentinel) {
            self.sentinels.insert(sentinel, view);
        }
        self
    }

    /// The node becomes a master that continues `history-1`.
    pub(in crate::machine) fn promotes(&mut self, letter: Letter) -> &mut Self {
        self.nodes.insert(letter, master(letter, &format!("history-{letter}"), "history-1"));
        if let Some(leader) = self.leader.take() {
            self.change(leader, |view| view.failing_over = true);
        }
        self
    }

    pub(in crate::machine) fn demotes(&mut self, letter: Letter, to: Letter) -> &mut Self {
        self.nodes.insert(letter, replica(letter, to, "history-1"));
        self
    }

    pub(in crate::machine) fn fails(&mut self, letter: Letter, failure: ProbeFailure) -> &mut Self {
        self.nodes.insert(letter, Answer::Failure(failure));
        self
    }

    /// The credentials do not permit INFO, so no lineage is known.
    pub(in crate::machine) fn without_lineage(&mut self) -> &mut Self {
        for answer in self.nodes.values_mut() {
            if let Answer::Report(report) = answer {
                report.lineage = None;
            }
        }
        self
    }
}

pub(in crate::machine) fn master(letter: Letter, replid: &str, replid2: &str) -> Answer {
    let lineage = lineage(&format!("process-{letter}"), replid, replid2);
    Answer::Report(NodeReport {
        dialled: dialled(letter),
        role: Role::Master,
        ping: PingReply::Pong,
        offset: None,
        lineage: Some(lineage),
        replicas: None,
    })
}

pub(in crate::machine) fn replica(letter: Letter, of: Letter, replid: &str) -> Answer {
    let role = Role::Replica { master: node(of), connected: true };
    let lineage = lineage(&format!("process-{letter}"), replid, "");
    Answer::Report(NodeReport {
        dialled: dialled(letter),
        role,
        ping: PingReply::Pong,
        offset: None,
        lineage: Some(lineage),
        replicas: None,
    })
}
