//! One proxy: links to sentinels, probe connections, the machine, and the clients it serves.
//!
//! The loop models `sentinel/src/discovery/mod.rs`: it passes every event to the machine, executes
//! the machine's actions, and several times per second reconciles the links with the resolved names
//! and the learned sentinels.

pub(crate) mod driver;
mod links;
mod prober;
mod seeds;
mod sessions;
mod switchover;

use std::collections::{BTreeMap, BTreeSet};

use sentinel::simulation::{AddressMap, LearnedAddresses, PollOutcome, parse_notice};
use sentinel::{Minority, MyId, NodeAddr};

use driver::{MachineDriver, Request};
use links::{LinkEvent, Links};
use prober::{ProbeEvent, ProberSet};
use seeds::Seed;
use sessions::Sessions;
use switchover::Switchover;

use crate::net::{Net, Observation, ProcessInput, RouteEvent};
use crate::sentinel::NAME;
use crate::wire::{Addr, MS, Message, Micros, Pid};

const RECONCILE_INTERVAL: Micros = 250 * MS;
/// A process that did not run for longer than this must not trust its state. Longer than the limit
/// of the product by the time between two looks.
const TRUSTED: Micros = 650 * MS;

/// After a longer stop this holds even if the sentinels were silent before.
const LONG: Micros = 3500 * MS;

/// The loop iterates at least this often.
const RENEW_EVERY: Micros = sentinel::simulation::RENEW_EVERY.as_micros() as Micros;

/// The key of the loop's only timer.
const WAKE: u64 = 1;

/// The configuration of a proxy.
#[derive(Debug, Clone)]
pub(crate) struct ProxyConfig {
    pub(crate) minority: Minority,
    /// How many names resolve to sentinels: one for all of them, or one per sentinel.
    pub(crate) names: usize,
    pub(crate) clients: usize,
    pub(crate) think: Micros,
    /// What the sentinels report as their number of connections.
    pub(crate) connections: u32,
}

/// A proxy. See the module's header.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) pid: Pid,
    pub(crate) config: ProxyConfig,
    pub(crate) driver: MachineDriver,
    links: Links,
    probers: ProberSet,
    learned: LearnedAddresses,
    seeds: Vec<Seed>,
    pub(crate) sessions: Sessions,
    pub(crate) switchover: Switchover,
    reconcile_at: Option<Micros>,
    reconciled_at: Option<Micros>,
    renew_at: Micros,
    wake_at: Micros,
    starts: u64,
    expected: usize,
    shown: &'static str,
}

impl Proxy {
    pub(crate) fn new(pid: Pid, config: ProxyConfig, starts: u64, net: &mut Net) -> Self {
        let now = mono(pid, net);
        let base = starts << 30;
        let seeds = (0..config.names).map(|_| Seed::new(now)).collect();
        let sessions = Sessions::new(pid, config.clients, config.think, starts << 20, net);
        let mut proxy = Self {
            pid,
            driver: MachineDriver::new(now, &config),
            links: Links::new(pid, base),
            probers: ProberSet::new(pid, base),
            learned: LearnedAddresses::default(),
            seeds,
            sessions,
            switchover: Switchover::default(),
            reconcile_at: None,
            reconciled_at: None,
            renew_at: now,
            wake_at: Micros::MAX,
            starts,
            expected: config.names,
            shown: "",
            config,
        };
        proxy.plan_wake(net);
        proxy
    }

    /// An operator's order to follow a node.
    pub(crate) fn follow(&mut self, node: Addr, lasts: Micros, force: bool, net: &mut Net) {
        let now = mono(self.pid, net);
        net.trace_line(self.pid, || format!("ORDERED to follow {node}, by force: {force}"));
        let done = self.driver.follow(now, node.node(), lasts, force);
        self.perform(done, now, net);
        self.turn(now, net);
    }

    pub(crate) fn restart(&mut self, net: &mut Net) {
        *self = Self::new(self.pid, self.config.clone(), self.starts + 1, net);
    }

    pub(crate) fn handle(&mut self, input: ProcessInput, net: &mut Net) {
        let now = mono(self.pid, net);
        match input {
            ProcessInput::Timer(WAKE) => {
                if net.now >= self.wake_at {
                    self.wake_at = Micros::MAX;
                }
            }
            ProcessInput::Timer(key) if key >= sessions::TIMERS => {
                self.sessions.timer(key, &self.driver, now, net);
            }
            ProcessInput::Dialled(token, connection) if token >= switchover::TOKENS => {
                self.switchover.dialled(self.pid, token, connection, net);
            }
            ProcessInput::Dialled(token, connection) if token >= sessions::TOKENS => {
                self.sessions.dialled(token, connection, &self.driver, now, net);
            }
            ProcessInput::Dialled(token, connection) if token >= prober::TOKENS => {
                let events = self.probers.dialled(token, connection, now, net);
                self.handle_probe_events(events, now, net);
            }
            ProcessInput::Dialled(token, connection) => {
                let events = self.links.dialled(token, connection, now, net);
                self.handle_link_events(events, now, net);
            }
            ProcessInput::Closed(connection) => self.closed(connection, now, net),
            ProcessInput::Message(connection, body) => {
                if let Message::FailoverTaken(taken) = body {
                    self.switchover.failover_taken(connection, taken);
                }
                if let Some(events) = self.links.message(connection, &body, now, net) {
                    self.handle_link_events(events, now, net);
                } else if let Some(events) = self.probers.message(connection, &body, now, net) {
                    self.handle_probe_events(events, now, net);
                } else if !self.sessions.message(connection, &body, &self.driver, net) {
                    self.switchover.message(connection, &body, now);
                }
            }
            ProcessInput::Continued => {
                // Input that waited in the stopped process is read before its timers.
                let away = net.now - net.process(self.pid).stopped_at;
                if away > TRUSTED && (away > LONG || self.driver.was_answered(now - away)) {
                    self.driver.resumed(now, net.now);
                }
                self.driver.expire_lease(now, away);
                self.sessions.continue_first(&self.driver, now, net);
                // The clocks detect a stop and a suspend alike, before anything that arrived is
                // trusted.
                let done = self.driver.absent((now, net.now), away);
                self.perform(done, now, net);
                self.wake_at = net.now + 1;
                return net.timer(self.pid, net.now + 1, WAKE);
            }
            ProcessInput::Accepted(_) | ProcessInput::Timer(_) => {}
        }
        self.turn(now, net);
    }

    fn closed(&mut self, connection: usize, now: Micros, net: &mut Net) {
        if let Some(events) = self.links.closed(connection, now, net) {
            self.handle_link_events(events, now, net);
        } else if let Some(events) = self.probers.closed(connection, now, net) {
            self.handle_probe_events(events, now, net);
        } else if !self.sessions.closed(connection, net) {
            self.switchover.closed(connection);
        }
    }

    /// Does everything that is due.
    fn turn(&mut self, now: Micros, net: &mut Net) {
        if std::mem::take(&mut self.sessions.hint) {
            let done = self.driver.hint(now);
            self.perform(done, now, net);
        }
        self.look_up(now, net);
        let events = self.links.tick(now, net);
        self.handle_link_events(events, now, net);
        let events = self.probers.tick(now, net);
        self.handle_probe_events(events, now, net);
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
        if now >= self.renew_at {
            self.renew_at = now + RENEW_EVERY;
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
            net.trace_line(self.pid, || {
                format!("{state}, gate shut: {shut}, majority {electorate}{minority}")
            });
        }
    }

    fn plan_wake(&mut self, net: &mut Net) {
        let now = mono(self.pid, net);
        let seeds = self.seeds.iter().map(Seed::due).min().unwrap_or(Micros::MAX);
        let parts = [
            seeds,
            self.links.next_due(),
            self.probers.next_due(),
            self.driver.next_deadline(),
            self.switchover.next_due(),
            self.reconcile_at.unwrap_or(Micros::MAX),
            self.renew_at,
        ];
        let due = parts.into_iter().min().unwrap_or(Micros::MAX).max(now + 1);
        let at = net.now + (due - now);
        if at < self.wake_at {
            self.wake_at = at;
            net.timer(self.pid, at, WAKE);
        }
    }

    fn look_up(&mut self, now: Micros, net: &mut Net) {
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

    fn handle_link_events(&mut self, events: Vec<LinkEvent>, now: Micros, net: &mut Net) {
        for event in events {
            match event {
                LinkEvent::Changed => self.reconcile_soon(now),
                LinkEvent::Down { lost } => {
                    if let Some(id) = lost.filter(|id| self.links.voting_link(id).is_none()) {
                        let done = self.driver.sentinel_lost(now, id);
                        self.perform(done, now, net);
                    }
                    self.reconcile_soon(now);
                }
                LinkEvent::Event { link, from, channel, payload } => {
                    let Some((master, notice)) = parse_notice(channel, &payload) else { continue };
                    if self.links.is_voting_link(link, &from) && master.is_none_or(|it| it == NAME)
                    {
                        let done = self.driver.notice(now, Some(from), notice);
                        self.perform(done, now, net);
                    }
                }
                LinkEvent::Polled { link, from, asked, outcome } => {
                    let PollOutcome::View { view, peers } = outcome else { continue };
                    if !self.links.is_voting_link(link, &from) {
                        continue;
                    }
                    let configured = self.links.is_configured(link);
                    let done = self.driver.view((now, asked), &from, (&view, &peers), configured);
                    self.perform(done, now, net);
                    let links = &self.links;
                    let reached = |id: &MyId| links.voting_link(id).is_some();
                    let from = (from, configured);
                    if self.learned.record(from, peers, &AddressMap::new(), reached) {
                        self.reconcile_soon(now);
                    }
                }
            }
        }
    }

    fn handle_probe_events(&mut self, events: Vec<ProbeEvent>, now: Micros, net: &mut Net) {
        for event in events {
            let done = match event {
                ProbeEvent::Probed(node, asked, outcome) => {
                    self.driver.probed(now, &node, asked, outcome)
                }
                ProbeEvent::ConnectionLost(node) => self.driver.probe_connection_lost(now, node),
            };
            self.perform(done, now, net);
        }
    }

    fn perform(
        &mut self,
        (requests, route_events): (Vec<Request>, Vec<RouteEvent>),
        now: Micros,
        net: &mut Net,
    ) {
        for it in route_events {
            if let RouteEvent::Opened { to, how, .. } = &it {
                net.trace_line(self.pid, || format!("GATE OPEN to {to}: {how}"));
            }
            net.observe(Observation::RouteEvent(self.pid, it));
        }
        for want in requests {
            match want {
                Request::PollSentinels => self.links.ask(now, net),
                Request::Probe(node, urgent, password) => {
                    self.probers.ask(&node, (urgent, password), now, net);
                }
            }
        }
        let driver = &self.driver;
        self.probers.keep(|node| driver.is_watched(node), net);
        self.sessions.pump(&self.driver, now, net);
    }

    fn reconcile_soon(&mut self, now: Micros) {
        let at = self.reconciled_at.map_or(now, |last| (last + RECONCILE_INTERVAL).max(now));
        self.reconcile_at.get_or_insert(at);
    }

    fn reconcile(&mut self, now: Micros, net: &mut Net) {
        (self.reconcile_at, self.reconciled_at) = (None, Some(now));
        let mut requests: BTreeMap<NodeAddr, Option<BTreeSet<MyId>>> = BTreeMap::new();
        for seed in &mut self.seeds {
            for addr in seed.wanted(now, |addr: Addr| self.links.is_up(&addr.node())) {
                requests.insert(addr.node(), None);
            }
        }
        let mut learned = self.learned.candidates();
        for (id, addr) in self.links.learned() {
            learned.entry(id).or_default().insert(addr);
        }
        learned.retain(|id, _| self.driver.machine.is_member(id));
        for (id, addrs) in learned {
            let reached = self.links.voting_link(id).map(|link| &link.addr);
            for addr in addrs.into_iter().filter(|addr| reached.is_none_or(|there| there == *addr))
            {
                match requests.entry(addr.clone()) {
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
        self.links.reconcile(&requests, now, net);
    }
}

/// This process's monotonic clock, which stands still while its host is suspended.
pub(crate) fn mono(pid: Pid, net: &Net) -> Micros {
    net.now - net.process(pid).suspended
}
