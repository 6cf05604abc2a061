//! The driver: one task, one loop, everything that is known in one place and no lock.
//!
//! Links and canaries tell what they hear through one bounded channel; the loop hands it to the
//! machine of the service it is about and carries out what the machine wants. It wakes for events
//! and for the machines' own deadlines, and for nothing else.
//!
//! The sentinels of the configuration are dialled as soon as their addresses are known; those that
//! others tell of a few times a second.

pub(crate) mod clock_jumps;
pub(crate) mod clock_watch;
pub(crate) mod failover_history;
pub(crate) mod handle;
pub(crate) mod learned_addresses;
pub(crate) mod majority_clock;
pub(crate) mod messages;
mod reconcile;
pub(crate) mod seeds;
pub(crate) mod service_runtime;
pub(crate) mod snapshot;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use target::{Moment, TargetWriter};
use tokio::sync::{Notify, mpsc};
use tracing::info;

use crate::discovery::clock_watch::ClockWatch;
use crate::discovery::handle::{ConnectionSettings, DiscoveryHandle, Heartbeat};
use crate::discovery::learned_addresses::usable;
use crate::discovery::messages::{DriverMessage, Timeouts};
use crate::discovery::seeds::Seed;
use crate::discovery::service_runtime::ServiceRuntime;
use crate::link::auth::Credentials;
use crate::link::links::{Links, describe};
use crate::link::poll::{Round, trouble_of};
use crate::link::{LinkId, What};
use crate::net::resolve::Resolver;
use crate::prober::{ProbeEvent, ProberFactory};
use crate::replicas::publisher::Replicas;
use crate::{MachineEvent, MachineRules, MyId, NodeAddr};

/// Messages on their way to the loop. A peer that floods waits here, and so stops being read.
const QUEUE_LENGTH: usize = 1024;

/// How long an answer may lie about in this process before it is taken note of.
const PROCESSING_SLACK: Duration = Duration::from_millis(250);

/// What is seen is published at least this often.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);

/// Connections are brought in line with what peers tell this often at most: one that tells
/// something else each time must not make this process dial without end.
const RECONCILE_EVERY: Duration = Duration::from_millis(250);

/// Configuration of one service's discovery.
#[derive(Debug)]
pub struct DiscoveryConfig {
    /// Sentinel's name of the master.
    pub name: Arc<str>,
    /// Where to begin: names may give several addresses.
    pub sentinels: Vec<NodeAddr>,
    /// For the sentinels.
    pub sentinel_auth: Option<Credentials>,
    /// For the redis nodes.
    pub auth: Option<Credentials>,
    /// The rules.
    pub rules: MachineRules,
    /// How long one probe of a redis node waits.
    pub probe_timeout: Duration,
    /// Whether sentinels that others tell of are asked too.
    pub learn: bool,
    /// Announced address to the address to dial.
    pub address_map: BTreeMap<NodeAddr, NodeAddr>,
    /// What is moved.
    pub target_writer: TargetWriter,
    /// The replicas for readers, if there are readers.
    pub replicas: Option<Replicas>,
}

/// What is wrong with a sentinel that has another one's identity.
const DUPLICATE_ID: &str =
    "another connection leads to a sentinel with this MYID: its word is not counted twice";

/// The loop and all that it owns. Must be made and run inside a tokio runtime.
pub struct Discovery {
    services: Vec<ServiceRuntime>,
    links: Links,
    seeds: Vec<Seed>,
    learn: Vec<(bool, usize)>,
    handles: Vec<DiscoveryHandle>,
    wake: Arc<Notify>,
    heartbeat: Heartbeat,
    /// An answer that comes later than this after its question, is about a past that this process
    /// slept through.
    stale_after: Duration,
    /// When the connections have to be brought in line next; `None` while they are.
    reconcile_at: Option<Instant>,
    reconciled_at: Option<Instant>,
    incoming: mpsc::Receiver<DriverMessage>,
    clocks: ClockWatch,
}

impl Discovery {
    /// Sets everything up; the handles are in the order of `watches`. `own` are this process's own
    /// listeners, which no connection may lead back to.
    #[must_use]
    pub fn new(
        watches: Vec<DiscoveryConfig>,
        timeouts: Timeouts,
        own: &[SocketAddr],
    ) -> (Self, Vec<DiscoveryHandle>) {
        Self::with_resolver(watches, timeouts, own, &Resolver::default())
    }

    /// The same, with names looked up by `resolver`.
    #[must_use]
    pub fn with_resolver(
        watches: Vec<DiscoveryConfig>,
        timeouts: Timeouts,
        own: &[SocketAddr],
        resolver: &Resolver,
    ) -> (Self, Vec<DiscoveryHandle>) {
        let (out, incoming) = mpsc::channel(QUEUE_LENGTH);
        let names = watches.iter().map(|watch| Arc::clone(&watch.name)).collect();
        let mut links = Links::new(names, timeouts, own, resolver, out.clone());
        let (mut services, mut seeds, mut learn) = (Vec::new(), Vec::new(), Vec::new());
        let mut reaches = Vec::new();
        for (number, watch) in watches.into_iter().enumerate() {
            let key_auth = links.number(watch.sentinel_auth.as_ref());
            for seed in &watch.sentinels {
                let whose = (number, key_auth);
                seeds.push(Seed::new(
                    seeds.len(),
                    whose,
                    seed,
                    timeouts.command,
                    resolver,
                    out.clone(),
                ));
            }
            learn.push((watch.learn, key_auth));
            let prober_factory = ProberFactory {
                credentials: watch.auth,
                verify: watch.rules.verify,
                patience: watch.probe_timeout,
                address_map: watch
                    .address_map
                    .into_iter()
                    .map(|(from, to)| (from.normal(), to))
                    .collect(),
                own: own.to_vec(),
                resolver: resolver.clone(),
            };
            let sentinel_auth = watch.sentinel_auth;
            reaches.push(ConnectionSettings {
                name: Arc::clone(&watch.name),
                auth: prober_factory.credentials.clone(),
                sentinel_auth,
                resolver: resolver.clone(),
            });
            let rules = (watch.rules, watch.sentinels.len());
            services.push(ServiceRuntime::new(
                number,
                &watch.name,
                (watch.target_writer, watch.replicas),
                rules,
                prober_factory,
                out.clone(),
            ));
        }
        let wake = Arc::new(Notify::new());
        let handles: Vec<DiscoveryHandle> = services
            .iter()
            .zip(reaches)
            .map(|(service, reach)| {
                DiscoveryHandle::new(service.snapshot(), reach, Arc::clone(&wake))
            })
            .collect();
        let discovery = Self {
            services,
            links,
            seeds,
            learn,
            handles: handles.clone(),
            wake,
            heartbeat: Heartbeat::new(),
            stale_after: timeouts.command * 2 + PROCESSING_SLACK,
            reconcile_at: None,
            reconciled_at: None,
            incoming,
            clocks: ClockWatch::new(),
        };
        (discovery, handles)
    }

    /// Tells whether the loop turns.
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
                .iter()
                .map(ServiceRuntime::next_deadline)
                .chain(self.reconcile_at)
                .min();
            let deadline = deadline
                .map_or(publish_at, |at| publish_at.min(tokio::time::Instant::from_std(at)));
            let incoming = tokio::select! {
                biased;
                () = self.clocks.jumped() => None,
                Some(incoming) = self.incoming.recv() => Some(incoming),
                () = self.wake.notified() => None,
                () = tokio::time::sleep_until(deadline) => None,
            };
            // Before what has come is believed: it may have lain here while the machine was
            // suspended.
            self.clocks.notice_absence(|away| {
                self.services
                    .iter_mut()
                    .map(|it| it.check_absence(away, &self.links))
                    .filter(|long| *long)
                    .count()
            });
            incoming.into_iter().for_each(|incoming| self.take(incoming));
            // On every turn: however many messages wait, a hint waits for one of them at most.
            self.take_hints();
            // Before the look, so that a stop of the process between the look and the word leaves
            // the word as it was.
            let looked = Moment::now();
            let now = Instant::now();
            for service in &mut self.services {
                if service.next_deadline() <= now {
                    service.step(MachineEvent::Tick, &self.links);
                }
                service.renew(looked);
            }
            if self.reconcile_at.is_some_and(|at| at <= now) {
                self.reconcile(now);
            }
            if tokio::time::Instant::now() >= publish_at {
                publish_at = tokio::time::Instant::now() + PUBLISH_EVERY;
                self.links.catch_up(now);
                for service in &mut self.services {
                    service.refresh(&self.links);
                }
            }
        }
    }

    fn take_hints(&mut self) {
        for (service, handle) in self.services.iter_mut().zip(&self.handles) {
            if handle.take_hint() {
                service.step(MachineEvent::Hint, &self.links);
            }
            if handle.take_reader_hint() {
                service.hinted_by_reader();
            }
            while let Some((command, event)) = handle.next_command() {
                service.step(event, &self.links);
                // Whoever gave it waits to see it.
                service.publish(&self.links);
                handle.mark_executed(command);
            }
        }
    }

    fn take(&mut self, incoming: DriverMessage) {
        match incoming {
            DriverMessage::Link(id, what) => self.take_link(id, what),
            DriverMessage::NodeProber(number, node, event) => {
                let Some(service) = self.services.get_mut(number) else { return };
                match event {
                    ProbeEvent::Probed { probe, denied } => {
                        service.probed(node, *probe, denied, &self.links)
                    }
                    ProbeEvent::Ended => {
                        service.step(MachineEvent::ProbeConnectionLost { node }, &self.links)
                    }
                }
            }
            DriverMessage::Seed(number, found) => {
                if let Some(seed) = self.seeds.get_mut(number) {
                    seed.has(found, Instant::now());
                }
                // No hearsay, and told when it has changed only: a majority is not kept waiting
                // until the first of them had its time.
                self.reconcile_at = Some(Instant::now());
            }
        }
    }

    fn take_link(&mut self, id: LinkId, what: What) {
        // Messages of a link that was closed meanwhile are about nothing that is still wanted.
        let Some(link) = self.links.get_mut(id) else { return };
        match what {
            What::Up { id, addr, protocol, events } => {
                let (sentinel, who) = (link.addr.clone(), id.clone());
                link.voice.say(Instant::now(), move |unsaid| {
                    info!(%sentinel, id = who.short(), ?protocol, events, unsaid, "sentinel connected");
                });
                link.up = Some((id, addr));
                link.events = events;
                link.problem = None;
                self.reconcile_soon();
            }
            What::Down(error) => {
                let problem = describe(&error);
                if link.up.is_some() || link.problem.as_ref() != Some(&problem) {
                    link.warn(&problem);
                }
                link.up = None;
                link.problem = Some(problem);
                link.troubles.clear();
                self.reconcile_soon();
            }
            What::Notice { master, notice, heard_at } => {
                let from = link.id().cloned();
                let services = link.groups.clone();
                for number in services {
                    let Some(service) = self.services.get_mut(number) else { continue };
                    let speaks =
                        from.as_ref().is_some_and(|from| self.links.speaks(number, id, from));
                    if speaks && master.as_ref().is_none_or(|master| **master == *service.name) {
                        service.handle_event(
                            MachineEvent::Notice { from: from.clone(), notice: notice.clone() },
                            heard_at,
                            &self.links,
                        );
                    }
                }
            }
            What::Round { master, asked_at, .. }
                if self.clocks.is_old(asked_at, self.stale_after) =>
            {
                link.ask(&master)
            }
            What::Round { master, asked_at, heard_at, round } => {
                let (up, services) = (link.up.clone(), link.groups.clone());
                let Some((from, addr)) = up else { return };
                for number in services {
                    if self.services.get(number).is_some_and(|service| service.name == master) {
                        self.take_round(
                            number,
                            id,
                            (from.clone(), addr),
                            (asked_at.into_std(), heard_at, round.clone()),
                        );
                    }
                }
            }
        }
    }

    fn take_round(
        &mut self,
        number: usize,
        link: LinkId,
        (from, addr): (MyId, SocketAddr),
        (asked_at, heard_at, round): (Instant, Instant, Round),
    ) {
        let Some(service) = self.services.get_mut(number) else { return };
        let round = usable(round, addr.ip(), service.address_map());
        let speaks = self.links.speaks(number, link, &from);
        let trouble =
            if speaks { trouble_of(&round, &service.name) } else { Some(DUPLICATE_ID.to_owned()) };
        let mut configured = false;
        if let Some(link) = self.links.get_mut(link) {
            link.is_troubled(number, trouble);
            configured = !link.is_learnt();
        }
        if !speaks {
            return;
        }
        match round {
            Round::View { view, peers } => {
                let event = MachineEvent::View { from: from.clone(), view, asked_at, configured };
                service.handle_event(event, heard_at, &self.links);
                let learns = self.learn.get(number).is_some_and(|(learn, _)| *learn);
                if learns && service.learn(from, peers, &self.links) {
                    self.reconcile_soon();
                }
            }
            Round::UnknownName => service.count(|counts| counts.unknown_names += 1),
            // A torn round is asked again by its link.
            Round::Torn | Round::Malformed(_) | Round::Denied(_) => {
                service.count(|counts| counts.bad_rounds += 1)
            }
        }
    }
}
