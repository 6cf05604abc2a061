//! Links to sentinels, modelled on `sentinel/src/link/mod.rs` and `sentinel/src/link/links.rs`:
//! polls, events, and reconnects with growing pauses.

use std::collections::{BTreeMap, BTreeSet};

use sentinel::simulation::{PollOutcome, Reply, read_poll};
use sentinel::{MyId, NodeAddr};

use crate::net::{ConnId, Net};
use crate::wire::{Addr, MS, Message, Micros, Pid, SECOND, hex};

const CONNECT: Micros = 300 * MS;
const COMMAND: Micros = 500 * MS;
const TIMEOUT: Micros = 2 * COMMAND;
/// A poll that took longer is outdated: this process was stopped meanwhile.
const STALE_AFTER: Micros = 2 * COMMAND + 250 * MS;
const RECONNECT_MIN: Micros = 50 * MS;
const RECONNECT_MAX: Micros = SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkPhase {
    Down { until: Micros },
    Dialling { token: u64 },
    Greeting { until: Micros },
    Up,
}

#[derive(Debug)]
pub(crate) struct Link {
    number: u64,
    pub(crate) addr: NodeAddr,
    /// Set for a link to a learned sentinel.
    expect: Option<BTreeSet<MyId>>,
    phase: LinkPhase,
    connection: Option<ConnId>,
    pub(crate) id: Option<MyId>,
    round: Option<(u64, Micros)>,
    queued: bool,
    bound: Micros,
    began: Micros,
}

/// An event of a link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// It went up: the set of links has to be reconciled.
    Changed,
    /// It is down, and led to this sentinel before.
    Down { lost: Option<MyId> },
    /// A poll was answered.
    Polled { link: u64, from: MyId, asked: Micros, outcome: PollOutcome },
    /// An event was published.
    Event { link: u64, from: MyId, channel: &'static str, payload: std::rc::Rc<str> },
}

/// The links of one proxy.
#[derive(Debug)]
pub(crate) struct Links {
    pid: Pid,
    pub(crate) all: Vec<Link>,
    made: u64,
    rounds: u64,
    tokens: u64,
}

impl Links {
    pub(crate) fn new(pid: Pid, base: u64) -> Self {
        Self { pid, all: Vec::new(), made: 0, rounds: base, tokens: base }
    }

    /// Opens and closes links until exactly the requested ones exist; a set of MYIDs means that
    /// only these count.
    pub(crate) fn reconcile(
        &mut self,
        requests: &BTreeMap<NodeAddr, Option<BTreeSet<MyId>>>,
        now: Micros,
        net: &mut Net,
    ) {
        let pid = self.pid;
        self.all.retain(|link| {
            let kept = requests.get(&link.addr).is_some_and(|expected_ids| {
                match (expected_ids, &link.id) {
                    (Some(expected), Some(id)) => expected.contains(id),
                    _ => true,
                }
            });
            if !kept {
                link.connection.into_iter().for_each(|connection| net.close(connection, pid));
            }
            kept
        });
        let (configured, learned): (Vec<_>, Vec<_>) =
            requests.iter().partition(|(_, expected_ids)| expected_ids.is_none());
        for (addr, expected_ids) in configured.into_iter().chain(learned) {
            if let Some(link) = self.all.iter_mut().find(|it| it.addr == *addr) {
                link.expect.clone_from(expected_ids);
                continue;
            }
            self.made += 1;
            let (number, phase) = (self.made, LinkPhase::Down { until: now });
            let (addr, expect) = (addr.clone(), expected_ids.clone());
            let bound = RECONNECT_MIN;
            let (connection, id, round) = (None, None, None);
            self.all.push(Link {
                number,
                addr,
                expect,
                phase,
                connection,
                id,
                round,
                queued: false,
                bound,
                began: now,
            });
        }
    }

    pub(crate) fn ask(&mut self, now: Micros, net: &mut Net) {
        self.all.iter_mut().for_each(|link| link.queued = true);
        self.begin_polls(now, net);
    }

    fn begin_polls(&mut self, now: Micros, net: &mut Net) {
        for link in self
            .all
            .iter_mut()
            .filter(|it| it.phase == LinkPhase::Up && it.queued && it.round.is_none())
        {
            let Some(connection) = link.connection else { continue };
            self.rounds += 1;
            link.queued = false;
            link.round = Some((self.rounds, now));
            net.send(connection, self.pid, Message::Ask { round: self.rounds });
        }
    }

    pub(crate) fn next_due(&self) -> Micros {
        let due = self.all.iter().filter_map(|it| match it.phase {
            LinkPhase::Down { until } | LinkPhase::Greeting { until } => Some(until),
            LinkPhase::Up => it.round.map(|(_, asked)| asked + TIMEOUT),
            LinkPhase::Dialling { .. } => None,
        });
        due.min().unwrap_or(Micros::MAX)
    }

    pub(crate) fn tick(&mut self, now: Micros, net: &mut Net) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        for at in 0..self.all.len() {
            let link = &mut self.all[at];
            match link.phase {
                LinkPhase::Down { until } if now >= until => {
                    self.tokens += 1;
                    link.phase = LinkPhase::Dialling { token: self.tokens };
                    link.began = now;
                    if let Some(addr) = Addr::of(&link.addr) {
                        net.dial(self.pid, addr, CONNECT, self.tokens);
                    }
                }
                LinkPhase::Greeting { until } if now >= until => {
                    events.push(self.down(at, now, net));
                }
                LinkPhase::Up if link.round.is_some_and(|(_, asked)| now >= asked + TIMEOUT) => {
                    events.push(self.down(at, now, net));
                }
                _ => {}
            }
        }
        events
    }

    fn down(&mut self, at: usize, now: Micros, net: &mut Net) -> LinkEvent {
        let pid = self.pid;
        let link = &mut self.all[at];
        link.connection.take().into_iter().for_each(|connection| net.close(connection, pid));
        let lost = link.id.take();
        (link.round, link.queued) = (None, false);
        if now - link.began > 5 * SECOND {
            link.bound = RECONNECT_MIN;
        }
        let pause = (RECONNECT_MIN / 2).max(net.rng.range(0, link.bound));
        link.bound = (link.bound * 2).min(RECONNECT_MAX);
        link.phase = LinkPhase::Down { until: now + pause };
        LinkEvent::Down { lost }
    }

    pub(crate) fn dialled(
        &mut self,
        token: u64,
        connection: Option<ConnId>,
        now: Micros,
        net: &mut Net,
    ) -> Vec<LinkEvent> {
        let Some(at) = self.all.iter().position(|it| it.phase == LinkPhase::Dialling { token })
        else {
            connection.into_iter().for_each(|connection| net.close(connection, self.pid));
            return Vec::new();
        };
        let Some(connection) = connection else { return vec![self.down(at, now, net)] };
        let link = &mut self.all[at];
        (link.connection, link.phase) =
            (Some(connection), LinkPhase::Greeting { until: now + TIMEOUT });
        net.send(connection, self.pid, Message::Greet);
        Vec::new()
    }

    /// `None`: not one of these connections.
    pub(crate) fn closed(
        &mut self,
        connection: ConnId,
        now: Micros,
        net: &mut Net,
    ) -> Option<Vec<LinkEvent>> {
        let at = self.all.iter().position(|it| it.connection == Some(connection))?;
        self.all[at].connection = None;
        Some(vec![self.down(at, now, net)])
    }

    pub(crate) fn message(
        &mut self,
        connection: ConnId,
        body: &Message,
        now: Micros,
        net: &mut Net,
    ) -> Option<Vec<LinkEvent>> {
        let at = self.all.iter().position(|it| it.connection == Some(connection))?;
        let mut events = Vec::new();
        let link = &mut self.all[at];
        match body {
            Message::Greeted { id } => {
                let Some(id) = MyId::parse(&hex(*id)) else { return Some(events) };
                if link.expect.as_ref().is_some_and(|expected| !expected.contains(&id)) {
                    return Some(vec![self.down(at, now, net)]);
                }
                (link.id, link.phase, link.queued) = (Some(id), LinkPhase::Up, true);
                events.push(LinkEvent::Changed);
            }
            Message::Event { channel, payload } => {
                if let Some(from) = link.id.clone() {
                    let payload = std::rc::Rc::clone(payload);
                    events.push(LinkEvent::Event { link: link.number, from, channel, payload });
                }
            }
            Message::Round { round, tilt, replies } => {
                events.extend(link.poll_completed(*round, *tilt, replies, now));
            }
            _ => {}
        }
        self.begin_polls(now, net);
        Some(events)
    }

    /// Whether the answers of this link count as the vote of its sentinel: a configured link takes
    /// precedence over a learned one, then the oldest.
    pub(crate) fn is_voting_link(&self, number: u64, id: &MyId) -> bool {
        self.voting_link(id).is_some_and(|link| link.number == number)
    }

    pub(crate) fn voting_link(&self, id: &MyId) -> Option<&Link> {
        let candidates = self.all.iter().filter(|it| it.id.as_ref() == Some(id));
        candidates.min_by_key(|it| (it.expect.is_some(), it.number))
    }

    pub(crate) fn is_configured(&self, number: u64) -> bool {
        self.all.iter().any(|it| it.number == number && it.expect.is_none())
    }

    /// The learned sentinels that are connected.
    pub(crate) fn learned(&self) -> impl Iterator<Item = (&MyId, &NodeAddr)> {
        let learned = self.all.iter().filter(|it| it.expect.is_some());
        learned.filter_map(|it| Some((it.id.as_ref()?, &it.addr)))
    }

    pub(crate) fn is_up(&self, addr: &NodeAddr) -> bool {
        self.all.iter().any(|it| it.addr == *addr && it.id.is_some())
    }

    /// A connected sentinel to send a failover command to.
    pub(crate) fn any_up(&self) -> Option<ConnId> {
        self.all.iter().filter(|it| it.phase == LinkPhase::Up).find_map(|it| it.connection)
    }
}

impl Link {
    fn poll_completed(
        &mut self,
        round: u64,
        tilt: bool,
        replies: &[Reply],
        now: Micros,
    ) -> Option<LinkEvent> {
        let (_, asked) = self.round.take_if(|(open, _)| *open == round)?;
        if now - asked > STALE_AFTER {
            self.queued = true;
            return None;
        }
        Some(LinkEvent::Polled {
            link: self.number,
            from: self.id.clone()?,
            asked,
            outcome: read_poll(replies, tilt),
        })
    }
}
