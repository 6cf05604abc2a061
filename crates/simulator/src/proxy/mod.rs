//! One proxy: links to sentinels, probe connections, the machine, and the clients it serves.
//!
//! The loop imitates `sentinel/src/discovery/mod.rs`: whatever comes is handed to the machine, what the
//! machine wants is done, and the connections are brought in line with the names, and with what
//! peers tell, a few times a second.

mod canary;
pub(crate) mod driver;
mod links;
mod seeds;
mod sessions;
mod switchover;

use std::collections::{BTreeMap, BTreeSet};

use sentinel::simulation::{AddressMap, LearnedAddresses, Round, parse_notice};
use sentinel::{Minority, MyId, NodeAddr};

use canary::{Canaries, ProbeEvent};
use driver::{Driver, Happened, Want};
use links::{Links, What};
use seeds::Seed;
use sessions::Sessions;
use switchover::Switchover;

use crate::net::{Fact, Input, Net};
use crate::sentinel::NAME;
use crate::wire::{Addr, MS, Pid, Us};

const RECONCILE_EVERY: Us = 250 * MS;
/// A process that did not run for longer than this must not trust what it knew.
const STALL: Us = 3500 * MS;

const PUBLISH_EVERY: Us = 250 * MS;

/// The key of the one timer of the loop.
const WAKE: u64 = 1;

/// How a proxy is configured.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) minority: Minority,
    /// How many names lead to sentinels: one for all of them, or one for each.
    pub(crate) names: usize,
    pub(crate) clients: usize,
    pub(crate) think: Us,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) pid: Pid,
    pub(crate) settings: Settings,
    pub(crate) driver: Driver,
    links: Links,
    canaries: Canaries,
    learnt: LearnedAddresses,
    seeds: Vec<Seed>,
    pub(crate) sessions: Sessions,
    pub(crate) switchover: Switchover,
    reconcile_at: Option<Us>,
    reconciled_at: Option<Us>,
    publish_at: Us,
    wake_at: Us,
    starts: u64,
    expected: usize,
    shown: &'static str,
}

impl Proxy {
    pub(crate) fn new(pid: Pid, settings: Settings, starts: u64, net: &mut Net) -> Self {
        let now = mono(pid, net);
        let base = starts << 30;
        let seeds = (0..settings.names).map(|_| Seed::new(now)).collect();
        let sessions = Sessions::new(pid, settings.clients, settings.think, starts << 20, net);
        let mut proxy = Self {
            pid,
            driver: Driver::new(now, settings.minority, settings.names),
            links: Links::new(pid, base),
            canaries: Canaries::new(pid, base),
            learnt: LearnedAddresses::default(),
            seeds,
            sessions,
            switchover: Switchover::default(),
            reconcile_at: None,
            reconciled_at: None,
            publish_at: now,
            wake_at: Us::MAX,
            starts,
            expected: settings.names,
            shown: "",
            settings,
        };
        proxy.plan_wake(net);
        proxy
    }

    pub(crate) fn restart(&mut self, net: &mut Net) {
        *self = Self::new(self.pid, self.settings.clone(), self.starts + 1, net);
    }

    pub(crate) fn handle(&mut self, input: Input, net: &mut Net) {
        let now = mono(self.pid, net);
        match input {
            Input::Timer(WAKE) => {
                if net.now >= self.wake_at {
                    self.wake_at = Us::MAX;
                }
            }
            Input::Timer(key) if key >= sessions::TIMERS => {
                self.sessions.timer(key, &self.driver, now, net)
            }
            Input::Dialled(token, conn) if token >= switchover::TOKENS => {
                self.switchover.dialled(self.pid, token, conn, net);
            }
            Input::Dialled(token, conn) if token >= sessions::TOKENS => {
                self.sessions.dialled(token, conn, &self.driver, now, net);
            }
            Input::Dialled(token, conn) if token >= canary::TOKENS => {
                let songs = self.canaries.dialled(token, conn, now, net);
                self.sing(songs, now, net);
            }
            Input::Dialled(token, conn) => {
                let told = self.links.dialled(token, conn, now, net);
                self.tell(told, now, net);
            }
            Input::Closed(conn) => self.closed(conn, now, net),
            Input::Message(conn, body) => {
                if let Some(told) = self.links.message(conn, &body, now, net) {
                    self.tell(told, now, net);
                } else if let Some(songs) = self.canaries.message(conn, &body, now, net) {
                    self.sing(songs, now, net);
                } else if !self.sessions.message(conn, &body, &self.driver, net) {
                    self.switchover.message(conn, &body);
                }
            }
            Input::Continued => {
                // What waited in the stopped process is read before its timers are looked at.
                if net.now - net.process(self.pid).stopped_at > STALL {
                    self.driver.slept(now, net.now);
                    // The clocks tell of a stop and of a suspend alike, before anything that has
                    // come is believed.
                    let done = self.driver.stalled(now);
                    self.perform(done, now, net);
                }
                self.wake_at = net.now + 1;
                return net.timer(self.pid, net.now + 1, WAKE);
            }
            Input::Accepted(_) | Input::Timer(_) => {}
        }
        self.turn(now, net);
    }

    fn closed(&mut self, conn: usize, now: Us, net: &mut Net) {
        if let Some(told) = self.links.closed(conn, now, net) {
            self.tell(told, now, net);
        } else if let Some(songs) = self.canaries.closed(conn, now, net) {
            self.sing(songs, now, net);
        } else if !self.sessions.closed(conn, net) {
            self.switchover.closed(conn);
        }
    }

    /// Everything that is due.
    fn turn(&mut self, now: Us, net: &mut Net) {
        if std::mem::take(&mut self.sessions.hint) {
            let done = self.driver.hint(now);
            self.perform(done, now, net);
        }
        self.look_up(now, net);
        let told = self.links.tick(now, net);
        self.tell(told, now, net);
        let songs = self.canaries.tick(now, net);
        self.sing(songs, now, net);
        let done = self.switchover.tick(&mut self.driver, &self.links, now, self.pid, net);
        done.into_iter().for_each(|done| self.perform(done, now, net));
        if self.driver.next_deadline() <= now {
            let done = self.driver.tick(now);
            self.perform(done, now, net);
        }
        self.driver.renew(now);
        if self.reconcile_at.is_some_and(|at| at <= now) {
            self.reconcile(now, net);
        }
        if now >= self.publish_at {
            self.publish_at = now + PUBLISH_EVERY;
        }
        self.sessions.pump(&self.driver, now, net);
        self.show(net);
        self.plan_wake(net);
    }

    fn show(&mut self, net: &mut Net) {
        let state = self.driver.state();
        if net.trace.is_on() && self.shown != state {
            self.shown = state;
            let (shut, electorate) = (self.driver.route.shut, self.driver.electorate());
            let minority = if self.driver.is_minority() { ", minority" } else { "" };
            net.say(self.pid, || {
                format!("{state}, gate shut: {shut}, majority {electorate}{minority}")
            });
        }
    }

    fn plan_wake(&mut self, net: &mut Net) {
        let now = mono(self.pid, net);
        let seeds = self.seeds.iter().map(Seed::due).min().unwrap_or(Us::MAX);
        let parts = [
            seeds,
            self.links.next_due(),
            self.canaries.next_due(),
            self.driver.next_deadline(),
            self.switchover.next_due(),
            self.reconcile_at.unwrap_or(Us::MAX),
            self.publish_at,
        ];
        let due = parts.into_iter().min().unwrap_or(Us::MAX).max(now + 1);
        let at = net.now + (due - now);
        if at < self.wake_at {
            self.wake_at = at;
            net.timer(self.pid, at, WAKE);
        }
    }

    fn look_up(&mut self, now: Us, net: &mut Net) {
        let count = self.seeds.len();
        for (at, seed) in self.seeds.iter_mut().enumerate() {
            if seed.due() > now {
                continue;
            }
            let Some((_, answer)) = seed.coming.take() else {
                let (late, answer) = net.resolve(at, count);
                seed.coming = Some((now + late, answer));
                continue;
            };
            if seed.answered(now, answer) {
                self.reconcile_at = Some(now);
            }
        }
        let expected = self.seeds.iter().map(Seed::count).sum();
        if expected != self.expected {
            self.expected = expected;
            let done = self.driver.expect(now, expected);
            self.perform(done, now, net);
        }
    }

    fn tell(&mut self, told: Vec<What>, now: Us, net: &mut Net) {
        for what in told {
            match what {
                What::Changed => self.reconcile_soon(now),
                What::Event { link, from, channel, payload } => {
                    let Some((master, notice)) = parse_notice(channel, &payload) else { continue };
                    if self.links.speaks(link, &from) && master.is_none_or(|it| it == NAME) {
                        let done = self.driver.notice(now, Some(from), notice);
                        self.perform(done, now, net);
                    }
                }
                What::Round { link, from, asked, round } => {
                    let Round::View { view, peers } = round else { continue };
                    if !self.links.speaks(link, &from) {
                        continue;
                    }
                    let configured = self.links.is_configured(link);
                    let done = self.driver.view((now, asked), &from, (&view, &peers), configured);
                    self.perform(done, now, net);
                    let links = &self.links;
                    let reached = |id: &MyId| links.speaker(id).is_some();
                    if self.learnt.record(from, peers, &AddressMap::new(), reached) {
                        self.reconcile_soon(now);
                    }
                }
            }
        }
    }

    fn sing(&mut self, songs: Vec<ProbeEvent>, now: Us, net: &mut Net) {
        for song in songs {
            let done = match song {
                ProbeEvent::Probed(node, asked, outcome) => {
                    self.driver.probed(now, &node, asked, outcome)
                }
                ProbeEvent::Ended(node) => self.driver.canary_lost(now, node),
            };
            self.perform(done, now, net);
        }
    }

    fn perform(&mut self, (wants, happened): (Vec<Want>, Vec<Happened>), now: Us, net: &mut Net) {
        for it in happened {
            if let Happened::Opened { to, how, .. } = &it {
                net.say(self.pid, || format!("GATE OPEN to {to}: {how}"));
            }
            net.fact(Fact::Happened(self.pid, it));
        }
        for want in wants {
            match want {
                Want::Ask => self.links.ask(now, net),
                Want::Probe(node, sure) => {
                    let songs = self.canaries.ask(&node, sure, now, net);
                    self.sing(songs, now, net);
                }
            }
        }
        let driver = &self.driver;
        self.canaries.keep(|node| driver.is_watched(node), net);
        self.sessions.pump(&self.driver, now, net);
    }

    fn reconcile_soon(&mut self, now: Us) {
        let at = self.reconciled_at.map_or(now, |last| (last + RECONCILE_EVERY).max(now));
        self.reconcile_at.get_or_insert(at);
    }

    fn reconcile(&mut self, now: Us, net: &mut Net) {
        (self.reconcile_at, self.reconciled_at) = (None, Some(now));
        let mut wishes: BTreeMap<NodeAddr, Option<BTreeSet<MyId>>> = BTreeMap::new();
        for seed in &mut self.seeds {
            for addr in seed.wanted(now, |addr: Addr| self.links.is_up(&addr.node())) {
                wishes.insert(addr.node(), None);
            }
        }
        for (id, addrs) in self.learnt.candidates() {
            let reached = self.links.speaker(id).map(|link| &link.addr);
            for addr in addrs.into_iter().filter(|addr| reached.is_none_or(|there| there == *addr))
            {
                match wishes.entry(addr.clone()) {
                    std::collections::btree_map::Entry::Occupied(mut known) => {
                        if let Some(expected) = known.get_mut() {
                            expected.insert(id.clone());
                        }
                    }
                    std::collections::btree_map::Entry::Vacant(vacant) => {
                        vacant.insert(Some(BTreeSet::from([id.clone()])));
                    }
                }
            }
        }
        self.links.reconcile(&wishes, now, net);
    }
}

/// This process's monotonic clock, which does not run while its machine is suspended.
pub(crate) fn mono(pid: Pid, net: &Net) -> Us {
    net.now - net.process(pid).suspended
}
