//! Connections to sentinels, as `sentinel/src/link/mod.rs` and `sentinel/src/link/links.rs` keep them: asked
//! in rounds, listened to in between, and redialled with growing pauses.

use std::collections::{BTreeMap, BTreeSet};

use sentinel::simulation::{Reply, Round, read_round};
use sentinel::{MyId, NodeAddr};

use crate::net::{ConnId, Net};
use crate::wire::{Addr, Body, MS, Pid, SECOND, Us, hex};

const CONNECT: Us = 300 * MS;
const COMMAND: Us = 500 * MS;
const PATIENCE: Us = 2 * COMMAND;
/// A round that took longer is about a past that this process slept through.
const STALE_AFTER: Us = 2 * COMMAND + 250 * MS;
const RECONNECT_MIN: Us = 50 * MS;
const RECONNECT_MAX: Us = SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Down { until: Us },
    Dialling { token: u64 },
    Greeting { until: Us },
    Up,
}

#[derive(Debug)]
pub(crate) struct Link {
    number: u64,
    pub(crate) addr: NodeAddr,
    /// Set for a link to a sentinel that others told of.
    expect: Option<BTreeSet<MyId>>,
    phase: Phase,
    conn: Option<ConnId>,
    pub(crate) id: Option<MyId>,
    round: Option<(u64, Us)>,
    again: bool,
    bound: Us,
    began: Us,
}

/// What a link has to tell.
#[derive(Debug)]
pub(crate) enum What {
    /// Up or down: who is to be connected has to be looked at.
    Changed,
    /// A whole round.
    Round { link: u64, from: MyId, asked: Us, round: Round },
    /// An event.
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

    /// Opens and closes until exactly the wanted ones are there; a set of MYIDs means that only
    /// these count.
    pub(crate) fn reconcile(
        &mut self,
        wishes: &BTreeMap<NodeAddr, Option<BTreeSet<MyId>>>,
        now: Us,
        net: &mut Net,
    ) {
        let pid = self.pid;
        self.all.retain(|link| {
            let kept = wishes.get(&link.addr).is_some_and(|wish| match (wish, &link.id) {
                (Some(expected), Some(id)) => expected.contains(id),
                _ => true,
            });
            if !kept {
                link.conn.into_iter().for_each(|conn| net.close(conn, pid));
            }
            kept
        });
        let (configured, learnt): (Vec<_>, Vec<_>) =
            wishes.iter().partition(|(_, wish)| wish.is_none());
        for (addr, wish) in configured.into_iter().chain(learnt) {
            if let Some(link) = self.all.iter_mut().find(|it| it.addr == *addr) {
                link.expect.clone_from(wish);
                continue;
            }
            self.made += 1;
            let (number, phase) = (self.made, Phase::Down { until: now });
            let (addr, expect) = (addr.clone(), wish.clone());
            let bound = RECONNECT_MIN;
            let (conn, id, round) = (None, None, None);
            self.all.push(Link {
                number,
                addr,
                expect,
                phase,
                conn,
                id,
                round,
                again: false,
                bound,
                began: now,
            });
        }
    }

    pub(crate) fn ask(&mut self, now: Us, net: &mut Net) {
        self.all.iter_mut().for_each(|link| link.again = true);
        self.begin_rounds(now, net);
    }

    fn begin_rounds(&mut self, now: Us, net: &mut Net) {
        for link in
            self.all.iter_mut().filter(|it| it.phase == Phase::Up && it.again && it.round.is_none())
        {
            let Some(conn) = link.conn else { continue };
            self.rounds += 1;
            link.again = false;
            link.round = Some((self.rounds, now));
            net.send(conn, self.pid, Body::Ask { round: self.rounds });
        }
    }

    pub(crate) fn next_due(&self) -> Us {
        let due = self.all.iter().filter_map(|it| match it.phase {
            Phase::Down { until } | Phase::Greeting { until } => Some(until),
            Phase::Up => it.round.map(|(_, asked)| asked + PATIENCE),
            Phase::Dialling { .. } => None,
        });
        due.min().unwrap_or(Us::MAX)
    }

    pub(crate) fn tick(&mut self, now: Us, net: &mut Net) -> Vec<What> {
        let mut told = Vec::new();
        for at in 0..self.all.len() {
            let link = &mut self.all[at];
            match link.phase {
                Phase::Down { until } if now >= until => {
                    self.tokens += 1;
                    link.phase = Phase::Dialling { token: self.tokens };
                    link.began = now;
                    if let Some(addr) = Addr::of(&link.addr) {
                        net.dial(self.pid, addr, CONNECT, self.tokens);
                    }
                }
                Phase::Greeting { until } if now >= until => told.push(self.down(at, now, net)),
                Phase::Up if link.round.is_some_and(|(_, asked)| now >= asked + PATIENCE) => {
                    told.push(self.down(at, now, net));
                }
                _ => {}
            }
        }
        told
    }

    fn down(&mut self, at: usize, now: Us, net: &mut Net) -> What {
        let pid = self.pid;
        let link = &mut self.all[at];
        link.conn.take().into_iter().for_each(|conn| net.close(conn, pid));
        (link.id, link.round, link.again) = (None, None, false);
        if now - link.began > 5 * SECOND {
            link.bound = RECONNECT_MIN;
        }
        let pause = (RECONNECT_MIN / 2).max(net.rng.range(0, link.bound));
        link.bound = (link.bound * 2).min(RECONNECT_MAX);
        link.phase = Phase::Down { until: now + pause };
        What::Changed
    }

    pub(crate) fn dialled(
        &mut self,
        token: u64,
        conn: Option<ConnId>,
        now: Us,
        net: &mut Net,
    ) -> Vec<What> {
        let Some(at) = self.all.iter().position(|it| it.phase == Phase::Dialling { token }) else {
            conn.into_iter().for_each(|conn| net.close(conn, self.pid));
            return Vec::new();
        };
        let Some(conn) = conn else { return vec![self.down(at, now, net)] };
        let link = &mut self.all[at];
        (link.conn, link.phase) = (Some(conn), Phase::Greeting { until: now + PATIENCE });
        net.send(conn, self.pid, Body::Greet);
        Vec::new()
    }

    /// `None`: not one of these connections.
    pub(crate) fn closed(&mut self, conn: ConnId, now: Us, net: &mut Net) -> Option<Vec<What>> {
        let at = self.all.iter().position(|it| it.conn == Some(conn))?;
        self.all[at].conn = None;
        Some(vec![self.down(at, now, net)])
    }

    pub(crate) fn message(
        &mut self,
        conn: ConnId,
        body: &Body,
        now: Us,
        net: &mut Net,
    ) -> Option<Vec<What>> {
        let at = self.all.iter().position(|it| it.conn == Some(conn))?;
        let mut told = Vec::new();
        let link = &mut self.all[at];
        match body {
            Body::Greeted { id } => {
                let Some(id) = MyId::parse(&hex(*id)) else { return Some(told) };
                if link.expect.as_ref().is_some_and(|expected| !expected.contains(&id)) {
                    return Some(vec![self.down(at, now, net)]);
                }
                (link.id, link.phase, link.again) = (Some(id), Phase::Up, true);
                told.push(What::Changed);
            }
            Body::Event { channel, payload } => {
                if let Some(from) = link.id.clone() {
                    let payload = std::rc::Rc::clone(payload);
                    told.push(What::Event { link: link.number, from, channel, payload });
                }
            }
            Body::Round { round, tilt, replies } => {
                told.extend(link.round_came(*round, *tilt, replies, now));
            }
            _ => {}
        }
        self.begin_rounds(now, net);
        Some(told)
    }

    /// Whether this link is the one that speaks for its sentinel: one of the configuration before
    /// one that was learnt, then the oldest.
    pub(crate) fn speaks(&self, number: u64, id: &MyId) -> bool {
        self.speaker(id).is_some_and(|link| link.number == number)
    }

    pub(crate) fn speaker(&self, id: &MyId) -> Option<&Link> {
        let candidates = self.all.iter().filter(|it| it.id.as_ref() == Some(id));
        candidates.min_by_key(|it| (it.expect.is_some(), it.number))
    }

    pub(crate) fn is_configured(&self, number: u64) -> bool {
        self.all.iter().any(|it| it.number == number && it.expect.is_none())
    }

    pub(crate) fn is_up(&self, addr: &NodeAddr) -> bool {
        self.all.iter().any(|it| it.addr == *addr && it.id.is_some())
    }

    /// A connected sentinel to give an order to.
    pub(crate) fn any_up(&self) -> Option<ConnId> {
        self.all.iter().filter(|it| it.phase == Phase::Up).find_map(|it| it.conn)
    }
}

impl Link {
    fn round_came(&mut self, round: u64, tilt: bool, replies: &[Reply], now: Us) -> Option<What> {
        let (_, asked) = self.round.take_if(|(open, _)| *open == round)?;
        if now - asked > STALE_AFTER {
            self.again = true;
            return None;
        }
        Some(What::Round {
            link: self.number,
            from: self.id.clone()?,
            asked,
            round: read_round(replies, tilt),
        })
    }
}
