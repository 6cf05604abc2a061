//! The driver: one task, one loop, everything that is known in one place and no lock.
//!
//! Links and canaries tell what they hear through one bounded channel; the loop hands it to the
//! machine of the service it is about and carries out what the machine wants. It wakes for events
//! and for the machines' own deadlines, and for nothing else.
//!
//! The sentinels of the configuration are dialled as soon as their addresses are known; those that
//! others tell of a few times a second.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use target::{ClockReading, TargetWriter};
use tokio::sync::{Notify, mpsc};
use tracing::info;

use crate::discovery::clock_watch::ClockWatch;
use crate::discovery::handle::{Handle, Heartbeat, Reach};
use crate::discovery::learned_addresses::usable;
use crate::discovery::resolve::Resolver;
use crate::discovery::seeds::Seed;
use crate::discovery::service_runtime::ServiceRuntime;
use crate::link::auth::Credentials;
use crate::link::links::{Links, describe};
use crate::link::poll::{Round, trouble_of};
use crate::link::{LinkId, What};
use crate::prober::{ProbeEvent, ProberFactory};
use crate::replicas::publisher::Replicas;
use crate::{Event, MyId, NodeAddr, Rules};

/// Messages on their way to the loop. A peer that floods waits here, and so stops being read.
const BACKLOG: usize = 1024;

/// How long an answer may lie about in this process before it is taken note of.
const SLACK: Duration = Duration::from_millis(250);

/// What is seen is published at least this often.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);

/// Connections are brought in line with what peers tell this often at most: one that tells
/// something else each time must not make this process dial without end.
const RECONCILE_EVERY: Duration = Duration::from_millis(250);

/// Configuration of one service's discovery.
#[derive(Debug)]
pub struct Watch {
    /// Sentinel's name of the master.
    pub name: Arc<str>,
    /// Where to begin: names may give several addresses.
    pub sentinels: Vec<NodeAddr>,
    /// For the sentinels.
    pub sentinel_auth: Option<Credentials>,
    /// For the redis nodes.
    pub auth: Option<Credentials>,
    /// The rules.
    pub rules: Rules,
    /// How long one probe of a redis node waits.
    pub probe_timeout: Duration,
    /// Whether sentinels that others tell of are asked too.
    pub learn: bool,
    /// Announced address to the address to dial.
    pub address_map: BTreeMap<NodeAddr, NodeAddr>,
    /// What is moved.
    pub points: TargetWriter,
    /// The replicas for readers, if there are readers.
    pub replicas: Option<Replicas>,
}

/// Timeouts of the sentinel connections.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Of a dial.
    pub connect: Duration,
    /// Of a command.
    pub command: Duration,
    /// The shortest pause before a lost sentinel is dialled again.
    pub reconnect_min: Duration,
    /// The longest one; pauses double in between, with jitter.
    pub reconnect_max: Duration,
    /// How long sent bytes may stay unacknowledged.
    pub user: Duration,
}

/// What is wrong with a sentinel that has another one's identity.
const TWIN: &str =
    "another connection leads to a sentinel with this MYID: its word is not counted twice";

/// What links, canaries and look-ups tell the loop.
#[derive(Debug)]
pub(crate) enum Incoming {
    Link(LinkId, What),
    NodeProber(usize, NodeAddr, ProbeEvent),
    /// The seed of this number now has these addresses.
    Seed(usize, Vec<SocketAddr>),
}

/// The loop and all that it owns. Must be made and run inside a tokio runtime.
pub struct Discovery {
    groups: Vec<ServiceRuntime>,
    links: Links,
    seeds: Vec<Seed>,
    learn: Vec<(bool, usize)>,
    handles: Vec<Handle>,
    bell: Arc<Notify>,
    heartbeat: Heartbeat,
    /// An answer that comes later than this after its question, is about a past that this process
    /// slept through.
    stale_after: Duration,
    /// When the connections have to be brought in line next; `None` while they are.
    reconcile_at: Option<Instant>,
    reconciled_at: Option<Instant>,
    incoming: mpsc::Receiver<Incoming>,
    clocks: ClockWatch,
}

impl Discovery {
    /// Sets everything up; the handles are in the order of `watches`. `own` are this process's own
    /// listeners, which no connection may lead back to.
    #[must_use]
    pub fn new(watches: Vec<Watch>, timeouts: Timeouts, own: &[SocketAddr]) -> (Self, Vec<Handle>) {
        Self::with_resolver(watches, timeouts, own, &Resolver::default())
    }

    /// The same, with names looked up by `resolver`.
    #[must_use]
    pub fn with_resolver(
        watches: Vec<Watch>,
        timeouts: Timeouts,
        own: &[SocketAddr],
        resolver: &Resolver,
    ) -> (Self, Vec<Handle>) {
        let (out, incoming) = mpsc::channel(BACKLOG);
        let names = watches.iter().map(|watch| Arc::clone(&watch.name)).collect();
        let mut links = Links::new(names, timeouts, own, resolver, out.clone());
        let (mut groups, mut seeds, mut learn) = (Vec::new(), Vec::new(), Vec::new());
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
            let keeper = ProberFactory {
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
            reaches.push(Reach {
                name: Arc::clone(&watch.name),
                auth: keeper.credentials.clone(),
                sentinel_auth,
                resolver: resolver.clone(),
            });
            let rules = (watch.rules, watch.sentinels.len());
            groups.push(ServiceRuntime::new(
                number,
                &watch.name,
                (watch.points, watch.replicas),
                rules,
                keeper,
                out.clone(),
            ));
        }
        let bell = Arc::new(Notify::new());
        let handles: Vec<Handle> = groups
            .iter()
            .zip(reaches)
            .map(|(group, reach)| Handle::new(group.seen(), reach, Arc::clone(&bell)))
            .collect();
        let discovery = Self {
            groups,
            links,
            seeds,
            learn,
            handles: handles.clone(),
            bell,
            heartbeat: Heartbeat::new(),
            stale_after: timeouts.command * 2 + SLACK,
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
                .groups
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
                () = self.bell.notified() => None,
                () = tokio::time::sleep_until(deadline) => None,
            };
            // Before what has come is believed: it may have lain here while the machine was
            // suspended.
            self.clocks.notice_absence(|away| {
                self.groups
                    .iter_mut()
                    .map(|it| it.was_away(away, &self.links))
                    .filter(|long| *long)
                    .count()
            });
            incoming.into_iter().for_each(|incoming| self.take(incoming));
            // On every turn: however many messages wait, a hint waits for one of them at most.
            self.take_hints();
            // Before the look, so that a stop of the process between the look and the word leaves
            // the word as it was.
            let looked = ClockReading::now();
            let now = Instant::now();
            for group in &mut self.groups {
                if group.next_deadline() <= now {
                    group.step(Event::Tick, &self.links);
                }
                group.renew(looked);
            }
            if self.reconcile_at.is_some_and(|at| at <= now) {
                self.reconcile(now);
            }
            if tokio::time::Instant::now() >= publish_at {
                publish_at = tokio::time::Instant::now() + PUBLISH_EVERY;
                self.links.catch_up(now);
                for group in &mut self.groups {
                    group.look(&self.links);
                }
            }
        }
    }

    fn take_hints(&mut self) {
        for (group, handle) in self.groups.iter_mut().zip(&self.handles) {
            if handle.take_hint() {
                group.step(Event::Hint, &self.links);
            }
            if handle.take_readers_hint() {
                group.hinted_by_a_reader();
            }
            while let Some((order, event)) = handle.next_order() {
                group.step(event, &self.links);
                // Whoever gave it waits to see it.
                group.publish(&self.links);
                handle.carried_out(order);
            }
        }
    }

    fn take(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Link(id, what) => self.take_link(id, what),
            Incoming::NodeProber(number, node, song) => {
                let Some(group) = self.groups.get_mut(number) else { return };
                match song {
                    ProbeEvent::Probed { probe, denied } => {
                        group.probed(node, *probe, denied, &self.links)
                    }
                    ProbeEvent::Ended => group.step(Event::CanaryLost { node }, &self.links),
                }
            }
            Incoming::Seed(number, found) => {
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
                let groups = link.groups.clone();
                for number in groups {
                    let Some(group) = self.groups.get_mut(number) else { continue };
                    let speaks =
                        from.as_ref().is_some_and(|from| self.links.speaks(number, id, from));
                    if speaks && master.as_ref().is_none_or(|master| **master == *group.name) {
                        group.heard(
                            Event::Notice { from: from.clone(), notice: notice.clone() },
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
                let (up, groups) = (link.up.clone(), link.groups.clone());
                let Some((from, addr)) = up else { return };
                for number in groups {
                    if self.groups.get(number).is_some_and(|group| group.name == master) {
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
        let Some(group) = self.groups.get_mut(number) else { return };
        let round = usable(round, addr.ip(), group.address_map());
        let speaks = self.links.speaks(number, link, &from);
        let trouble = if speaks { trouble_of(&round, &group.name) } else { Some(TWIN.to_owned()) };
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
                let event = Event::View { from: from.clone(), view, asked_at, configured };
                group.heard(event, heard_at, &self.links);
                let learns = self.learn.get(number).is_some_and(|(learn, _)| *learn);
                if learns && group.learn(from, peers, &self.links) {
                    self.reconcile_soon();
                }
            }
            Round::UnknownName => group.count(|counts| counts.unknown_names += 1),
            // A torn round is asked again by its link.
            Round::Torn | Round::Malformed(_) | Round::Denied(_) => {
                group.count(|counts| counts.bad_rounds += 1)
            }
        }
    }
}

pub(crate) mod clock_jumps;
pub(crate) mod clock_watch;
pub(crate) mod failover_history;
pub(crate) mod handle;
pub(crate) mod learned_addresses;
pub(crate) mod loop_guard;
pub(crate) mod majority_clock;
mod reconcile;
pub(crate) mod resolve;
pub(crate) mod seeds;
pub(crate) mod service_runtime;
pub(crate) mod snapshot;

#[cfg(test)]
mod tests;
