//! The discovery driver: one task with one loop that owns the state of all services and needs no
//! lock.
//!
//! Links and node probers send messages through one bounded channel. The loop passes each to the
//! machine of its service and executes the resulting actions. It wakes up for messages and for the
//! machines' deadlines only.
//!
//! Configured sentinels are dialled as soon as their addresses are known. Sentinels learned from
//! others are dialled a few times per second at most.

pub(crate) mod absence_limit;
pub(crate) mod alarms;
pub(crate) mod changes;
pub(crate) mod clock_jumps;
pub(crate) mod clock_watch;
pub(crate) mod config;
mod credential_log;
pub(crate) mod failover_history;
pub(crate) mod handle;
pub(crate) mod learned_addresses;
pub(crate) mod majority_clock;
mod no_master;
pub(crate) mod seeds;
pub(crate) mod sentinel_pool;
pub(crate) mod service_runtime;
pub(crate) mod snapshot;

#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, mpsc};

use crate::clock;
use crate::discovery::changes::{Changes, DiscoveryControl};
use crate::discovery::clock_watch::ClockWatch;
use crate::discovery::handle::{DiscoveryHandle, Heartbeat};
use crate::discovery::seeds::Seed;
use crate::discovery::service_runtime::ServiceRuntime;
use crate::link::Environment;
use crate::link::links::{ANONYMOUS, LinkKey, LinkRequest, Links};
use crate::link::messages::{DriverMessage, LinkEvent, LinkId, ProbeEvent, Timeouts};
use crate::link::renewal::RenewalPermit;
use crate::net::loop_guard::OwnAddresses;
use crate::net::resolve::Resolver;
use crate::{MachineEvent, MyId, NodeAddr, Notice};

/// The capacity of the message channel. A peer that floods fills it, and is then no longer read.
const QUEUE_LENGTH: usize = 1024;

/// How long an answer may wait inside this process before it is processed.
const PROCESSING_SLACK: Duration = Duration::from_millis(250);

/// A snapshot is published in the first iteration after this time, at most [`RENEW_EVERY`] later.
const PUBLISH_EVERY: Duration = Duration::from_millis(150);

/// The loop iterates at least this often, and thereby renews the leases. The smallest absence limit
/// is five times as long, so that a thread that is scheduled late does not close the gate.
pub(crate) const RENEW_EVERY: Duration = Duration::from_millis(100);

/// The minimum interval between two updates of the connections to learned sentinels: a peer that
/// announces other ones each time must not make this process dial without end.
const RECONCILE_EVERY: Duration = Duration::from_millis(250);

/// One service.
struct ServiceEntry {
    runtime: ServiceRuntime,
    handle: DiscoveryHandle,
    /// The number of its credentials for sentinels; see [`Links::login`].
    auth: usize,
}

/// The discovery driver. Must be created and run inside a tokio runtime.
pub struct Discovery {
    /// By number.
    services: BTreeMap<usize, ServiceEntry>,
    links: Links,
    seeds: BTreeMap<usize, Seed>,
    next_seed: usize,
    wake: Arc<Notify>,
    heartbeat: Heartbeat,
    /// When the connections have to be updated next; `None` while they are up to date.
    reconcile_at: Option<Instant>,
    reconciled_at: Option<Instant>,
    /// The sentinels that answer, and whether they vote: a listed one is dialled once it does.
    heard: Vec<(MyId, bool)>,
    incoming: mpsc::Receiver<DriverMessage>,
    changes: mpsc::UnboundedReceiver<Changes>,
    clocks: ClockWatch,
}

impl Discovery {
    /// Sets everything up, without a service. `own` are this process's listeners, to which no
    /// connection may lead back.
    #[must_use]
    pub fn new(
        timeouts: Timeouts,
        own: &[SocketAddr],
        resolver: &Resolver,
    ) -> (Self, DiscoveryControl) {
        let (out, incoming) = mpsc::channel(QUEUE_LENGTH);
        let (changes, changes_received) = mpsc::unbounded_channel();
        let env = Environment {
            resolver: resolver.clone(),
            own: OwnAddresses::new(own),
            permit: RenewalPermit::default(),
            timeouts: Arc::new(ArcSwap::from_pointee(timeouts)),
            out,
        };
        let wake = Arc::new(Notify::new());
        let discovery = Self {
            services: BTreeMap::new(),
            links: Links::new(env.clone()),
            seeds: BTreeMap::new(),
            next_seed: 0,
            wake: Arc::clone(&wake),
            heartbeat: Heartbeat::new(),
            reconcile_at: None,
            reconciled_at: None,
            heard: Vec::new(),
            incoming,
            changes: changes_received,
            clocks: ClockWatch::new(resolver.host()),
        };
        let collected = Changes::default();
        (discovery, DiscoveryControl { next: 0, collected, changes, env, wake })
    }

    /// The heartbeat of the loop.
    #[must_use]
    pub fn heartbeat(&self) -> Heartbeat {
        self.heartbeat.clone()
    }

    /// Runs until dropped.
    pub async fn run(mut self) {
        let mut publish_at = tokio::time::Instant::now();
        loop {
            self.heartbeat.beat();
            let deadline = self
                .services
                .values()
                .map(|it| it.runtime.next_deadline())
                .chain(self.reconcile_at)
                .min();
            let latest = tokio::time::Instant::now() + RENEW_EVERY;
            let deadline =
                deadline.map_or(latest, |at| latest.min(tokio::time::Instant::from_std(at)));
            let mut changes = None;
            let incoming = tokio::select! {
                biased;
                () = self.clocks.jumped() => None,
                Some(received) = self.changes.recv() => {
                    changes = Some(received);
                    None
                }
                Some(incoming) = self.incoming.recv() => Some(incoming),
                () = self.wake.notified() => None,
                () = tokio::time::sleep_until(deadline) => None,
            };
            // Before the message or the changes are processed: they may have waited while the host
            // was suspended, and after a step with the present time the views would look expired.
            self.clocks.notice_absence(|away| {
                self.services
                    .values_mut()
                    .map(|it| it.runtime.check_absence(away, &self.links))
                    .filter(|long| *long)
                    .count()
            });
            changes.into_iter().for_each(|changes| self.apply_changes(changes));
            incoming.into_iter().for_each(|message| self.handle_message(message));
            // In every iteration: however many messages wait, a hint waits for at most one of them.
            self.handle_requests();
            // Read before the check: if the process is suspended between the check and the renewal,
            // the lease is renewed only up to this time.
            let checked_at = self.clocks.lease_clocks();
            let now = clock::now();
            for service in self.services.values_mut().map(|it| &mut it.runtime) {
                if service.next_deadline() <= now {
                    service.step(MachineEvent::Tick, &self.links);
                }
                service.renew(checked_at);
            }
            if self.reconcile_at.is_some_and(|at| at <= now) {
                self.reconcile(now);
            }
            if tokio::time::Instant::now() >= publish_at {
                publish_at = tokio::time::Instant::now() + PUBLISH_EVERY;
                self.links.flush_logs(now);
                let heard = self.services.values().flat_map(|it| it.runtime.machine.views());
                let heard = heard.map(|(id, is_member, ..)| (id.clone(), is_member)).collect();
                if self.heard != heard {
                    self.heard = heard;
                    self.reconcile_soon();
                }
                for service in self.services.values_mut() {
                    service.runtime.refresh(&self.links);
                }
            }
        }
    }

    fn handle_requests(&mut self) {
        for ServiceEntry { runtime: service, handle, .. } in self.services.values_mut() {
            if handle.take_hint() {
                service.step(MachineEvent::Hint, &self.links);
            }
            if handle.take_reader_hint() {
                service.handle_reader_hint();
            }
            while let Some((command, event)) = handle.next_command() {
                service.step(event, &self.links);
                // The sender of the command waits to see it in the snapshot.
                service.publish(&self.links);
                handle.mark_executed(command);
            }
        }
    }

    fn handle_message(&mut self, message: DriverMessage) {
        match message {
            DriverMessage::Link(id, event) => self.handle_link_event(id, event),
            DriverMessage::NodeProber(number, node, event) => {
                let Some(service) = self.services.get_mut(&number).map(|it| &mut it.runtime) else {
                    return;
                };
                match event {
                    ProbeEvent::Probed { probe, problem, tls } => {
                        service.probed(node, *probe, problem, tls, &self.links);
                    }
                    ProbeEvent::ConnectionLost => {
                        service.step(MachineEvent::ProbeConnectionLost { node }, &self.links);
                    }
                }
            }
            DriverMessage::Seed(number, found) => {
                if let Some(seed) = self.seeds.get_mut(&number) {
                    seed.update(found);
                }
                // Seeds are not rate limited: they are reported only when they change, and a
                // majority must not wait for the interval that the first one started.
                self.reconcile_at = Some(clock::now());
            }
        }
    }

    /// Hands the event to those of the services that have no other connection to this sentinel.
    fn handle_unreached(
        &mut self,
        id: Option<MyId>,
        services: &BTreeSet<usize>,
        event: impl Fn(MyId) -> MachineEvent,
    ) {
        let Some(id) = id else { return };
        for number in services.iter().filter(|number| !self.links.is_reached(**number, &id)) {
            if let Some(service) = self.services.get_mut(number) {
                service.runtime.step(event(id.clone()), &self.links);
            }
        }
    }

    fn handle_link_event(&mut self, id: LinkId, event: LinkEvent) {
        // Messages of a link that was closed meanwhile are ignored.
        let stale_after = self.links.env.timeouts().command * 2 + PROCESSING_SLACK;
        let Some(link) = self.links.get_mut(id) else { return };
        match event {
            LinkEvent::Up { id, addr, protocol, events, tls } => {
                let displaced = link.on_up(id, addr, protocol, events, tls);
                let services = link.services.clone();
                self.handle_unreached(displaced, &services, |id| MachineEvent::Displaced { id });
                self.reconcile_soon();
            }
            LinkEvent::Down(error) => {
                let (lost, services) = (link.on_down(&error), link.services.clone());
                let addr = link.addr.clone();
                let is_former = self.seeds.values().any(|seed| seed.is_former(&addr));
                if lost.is_some() {
                    self.seeds.values().for_each(|seed| seed.lost(&addr));
                }
                self.handle_unreached(lost, &services, |id| MachineEvent::SentinelLost { id });
                if is_former {
                    // Before it is dialled again.
                    self.reconcile_at = Some(clock::now());
                }
                self.reconcile_soon();
            }
            LinkEvent::Unrenewed(error) => link.on_unrenewed(&error),
            LinkEvent::Connections(count) => {
                link.connections = count;
                for number in link.services.clone() {
                    let event = MachineEvent::SentinelConnections(self.links.connections(number));
                    if let Some(service) = self.services.get_mut(&number) {
                        service.runtime.step(event, &self.links);
                    }
                }
            }
            LinkEvent::Notice { master, notice, received_at: heard_at } => {
                self.handle_notice(id, master.as_deref(), &notice, heard_at);
            }
            LinkEvent::Polled { master, asked_at, .. }
                if self.clocks.is_old(asked_at, stale_after) =>
            {
                link.ask(&master);
            }
            LinkEvent::Polled { master, asked_at, received_at: read_at, outcome: round } => {
                let asked_at = asked_at.into_std();
                let mut is_news = false;
                for number in link.services.clone() {
                    if let Some(ServiceEntry { runtime, .. }) = self.services.get_mut(&number)
                        && runtime.master_name == master
                    {
                        let (links, round) = (&mut self.links, round.clone());
                        is_news |= runtime.handle_round(id, asked_at, read_at, round, links);
                    }
                }
                if is_news {
                    self.reconcile_soon();
                }
            }
        }
    }

    /// A sentinel published an event about this master; `None`: about itself.
    fn handle_notice(
        &mut self,
        id: LinkId,
        master: Option<&str>,
        notice: &Notice,
        heard_at: Instant,
    ) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (from, services) = (link.id().cloned(), link.services.clone());
        for number in services {
            let Some(service) = self.services.get_mut(&number) else { continue };
            let service = &mut service.runtime;
            let may_vote =
                from.as_ref().is_some_and(|from| self.links.is_voting_link(number, id, from));
            if may_vote && master.is_none_or(|master| *master == *service.master_name) {
                let event = MachineEvent::Notice { from: from.clone(), notice: notice.clone() };
                service.handle_event(event, heard_at, &self.links);
            }
        }
    }

    /// A peer announced a change: updates the connections now, or as soon as the rate limit
    /// permits.
    fn reconcile_soon(&mut self) {
        let now = clock::now();
        let at = self.reconciled_at.map_or(now, |last| (last + RECONCILE_EVERY).max(now));
        self.reconcile_at.get_or_insert(at);
    }

    /// Updates the connections for the current seeds and learned addresses.
    fn reconcile(&mut self, now: Instant) {
        (self.reconcile_at, self.reconciled_at) = (None, Some(now));
        let mut requests: BTreeMap<LinkKey, LinkRequest> = BTreeMap::new();
        for seed in self.seeds.values() {
            let login = self.links.login(seed.auth);
            for addr in &seed.found {
                login.transport().set_name(*addr, &seed.name.host);
                let request = requests.entry((NodeAddr::from(*addr), seed.auth)).or_default();
                request.services.insert(seed.service);
            }
        }
        for seed in self.seeds.values_mut() {
            let (group, auth) = (seed.service, seed.auth);
            let sentinel_at = |addr| self.links.sentinel_at(&(NodeAddr::from(addr), auth));
            let machine = self.services.get(&group).map(|it| &it.runtime.machine);
            let is_member = |id: &MyId| machine.is_some_and(|machine| machine.is_member(id));
            let member_at = |addr| sentinel_at(addr).filter(|id| is_member(id)).cloned();
            for (addr, id) in seed.former(member_at) {
                let request = requests.entry((NodeAddr::from(addr), auth));
                let former = LinkRequest { expect: Some([id].into()), ..LinkRequest::default() };
                request.or_insert(former).services.insert(group);
            }
        }
        for entry in self.services.values().filter(|it| it.runtime.learns) {
            let (service, own_auth) = (&entry.runtime, entry.auth);
            let group = service.number;
            let shares = self.links.login(own_auth).transport().is_tls()
                || service.machine.depends_on_learned();
            let learned_auth = if shares { own_auth } else { ANONYMOUS };
            for (id, addrs) in service.learned_sentinels(&self.links) {
                // A sentinel that is reached needs no second connection. Until then, each of its
                // announced addresses is tried.
                let reached = self.links.voting_link(group, &id).map(|link| &link.addr);
                for addr in
                    addrs.into_iter().filter(|addr| reached.is_none_or(|reached| reached == addr))
                {
                    // A configured one among them keeps its connection.
                    let known = requests.contains_key(&(addr.clone(), own_auth));
                    let auth = if known { own_auth } else { learned_auth };
                    match requests.entry((addr.clone(), auth)) {
                        Entry::Occupied(mut known) => {
                            known.get_mut().services.insert(group);
                            if let Some(expected) = &mut known.get_mut().expect {
                                expected.insert(id.clone());
                            }
                        }
                        Entry::Vacant(vacant) => {
                            let expect = Some(BTreeSet::from([id.clone()]));
                            vacant.insert(LinkRequest { services: [group].into(), expect });
                        }
                    }
                }
            }
        }
        self.links.reconcile(&requests);
        for service in self.services.values_mut().map(|it| &mut it.runtime) {
            let seeds = || self.seeds.values().filter(|seed| seed.service == service.number);
            let found = seeds().map(|seed| &*seed.found);
            let expected = seeds::expected(found, |addr| {
                let auth = seeds().find(|seed| seed.found.contains(&addr))?.auth;
                self.links.sentinel_at(&(NodeAddr::from(addr), auth)).cloned()
            });
            service.expect(expected, &self.links);
        }
    }
}
