//! The driver: one task, one loop, everything that is known in one place and no lock.
//!
//! Links and canaries tell what they hear through one bounded channel; the loop hands it to the machine of the service it is
//! about and carries out what the machine wants. It wakes for events and for the machines' own deadlines, and for nothing else.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use route::{Moment, Points};
use tokio::sync::{Notify, mpsc};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use crate::auth::Credentials;
use crate::canary::{Keeper, Song};
use crate::group::Group;
use crate::link::{LinkId, What};
use crate::links::{Key, Links, Wish};
use crate::questions::Round;
use crate::resolve::{Lookup, Resolver, leads_back};
use crate::seen::Seen;
use crate::{Event, MyId, NodeAddr, Rules};

/// Messages on their way to the loop. A peer that floods waits here, and so stops being read.
const BACKLOG: usize = 1024;

/// What is seen is published at least this often.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);

/// Names are looked up again this often.
const LOOKUP_EVERY: Duration = Duration::from_secs(5);

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
    pub points: Points,
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

/// What the rest of the process holds of one service's discovery.
#[derive(Debug, Clone)]
pub struct Handle {
    seen: Arc<ArcSwap<Seen>>,
    hinted: Arc<AtomicBool>,
    bell: Arc<Notify>,
}

impl Handle {
    /// The latest picture, at most a quarter of a second old.
    #[must_use]
    pub fn seen(&self) -> Arc<Seen> {
        self.seen.load_full()
    }

    /// The data plane saw something that makes a look worth while. Cheap, and any number of times.
    pub fn hint(&self) {
        if !self.hinted.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
        }
    }
}

/// Beats as long as the loop turns.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    start: Instant,
    beat_ms: Arc<AtomicU64>,
}

impl Heartbeat {
    fn new() -> Self {
        Self { start: Instant::now(), beat_ms: Arc::new(AtomicU64::new(0)) }
    }

    fn beat(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beat_ms.store(ms, Ordering::Relaxed);
    }

    /// How long ago the loop last turned. It turns every second at least.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.beat_ms.load(Ordering::Relaxed)))
    }
}

/// What links, canaries and look-ups tell the loop.
#[derive(Debug)]
pub(crate) enum Incoming {
    Link(LinkId, What),
    Canary(usize, NodeAddr, Song),
    /// The seed of this number now has these addresses.
    Seed(usize, Vec<SocketAddr>),
}

struct Seed {
    group: usize,
    key_auth: usize,
    found: Vec<SocketAddr>,
    _task: AbortOnDropHandle<()>,
}

/// The loop and all that it owns. Must be made and run inside a tokio runtime.
pub struct Discovery {
    groups: Vec<Group>,
    links: Links,
    seeds: Vec<Seed>,
    learn: Vec<(bool, usize)>,
    own: Vec<SocketAddr>,
    hints: Vec<Arc<AtomicBool>>,
    bell: Arc<Notify>,
    heartbeat: Heartbeat,
    incoming: mpsc::Receiver<Incoming>,
}

impl Discovery {
    /// Sets everything up; the handles are in the order of `watches`. `own` are this process's own listeners, which no
    /// connection may lead back to.
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
        for (number, watch) in watches.into_iter().enumerate() {
            let key_auth = links.number(watch.sentinel_auth.as_ref());
            for seed in &watch.sentinels {
                let lookup = Lookup::new(resolver, &seed.host, seed.port);
                let task = tokio::spawn(look_up_forever(seeds.len(), lookup, timeouts.command, out.clone()));
                seeds.push(Seed { group: number, key_auth, found: Vec::new(), _task: AbortOnDropHandle::new(task) });
            }
            learn.push((watch.learn, key_auth));
            let keeper = Keeper {
                credentials: watch.auth,
                verify: watch.rules.verify,
                patience: watch.probe_timeout,
                address_map: watch.address_map,
                own: own.to_vec(),
                resolver: resolver.clone(),
            };
            let rules = (watch.rules, watch.sentinels.len());
            groups.push(Group::new(number, &watch.name, watch.points, rules, keeper, out.clone()));
        }
        let bell = Arc::new(Notify::new());
        let handle = |group: &Group| Handle {
            seen: group.seen(),
            hinted: Arc::new(AtomicBool::new(false)),
            bell: Arc::clone(&bell),
        };
        let handles: Vec<Handle> = groups.iter().map(handle).collect();
        let hints = handles.iter().map(|handle| Arc::clone(&handle.hinted)).collect();
        let (own, heartbeat) = (own.to_vec(), Heartbeat::new());
        (Self { groups, links, seeds, learn, own, hints, bell, heartbeat, incoming }, handles)
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
            let deadline = self.groups.iter().map(Group::next_deadline).min();
            let deadline = deadline.map_or(publish_at, |at| publish_at.min(tokio::time::Instant::from_std(at)));
            tokio::select! {
                biased;
                Some(incoming) = self.incoming.recv() => self.take(incoming),
                () = self.bell.notified() => self.take_hints(),
                () = tokio::time::sleep_until(deadline) => {}
            }
            // Before the look, so that a stop of the process between the look and the word leaves the word as it was.
            let looked = Moment::now();
            let now = Instant::now();
            for group in &mut self.groups {
                if group.next_deadline() <= now {
                    group.step(Event::Tick, &self.links);
                }
                group.vouch(looked);
            }
            if tokio::time::Instant::now() >= publish_at {
                publish_at = tokio::time::Instant::now() + PUBLISH_EVERY;
                for group in &self.groups {
                    group.publish(&self.links);
                }
            }
        }
    }

    fn take_hints(&mut self) {
        for (group, hint) in self.groups.iter_mut().zip(&self.hints) {
            if hint.swap(false, Ordering::AcqRel) {
                group.step(Event::Hint, &self.links);
            }
        }
    }

    fn take(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Link(id, what) => self.take_link(id, what),
            Incoming::Canary(number, node, song) => {
                let Some(group) = self.groups.get_mut(number) else { return };
                match song {
                    Song::Probed { probe, denied } => group.probed(node, probe, denied, &self.links),
                    Song::Ended => group.step(Event::CanaryLost { node }, &self.links),
                }
            }
            Incoming::Seed(number, found) => {
                let own = &self.own;
                let usable = found.into_iter().filter(|addr| !leads_back(*addr, own)).collect();
                if let Some(seed) = self.seeds.get_mut(number) {
                    seed.found = usable;
                }
                self.reconcile();
            }
        }
    }

    fn take_link(&mut self, id: LinkId, what: What) {
        // Messages of a link that was closed meanwhile are about nothing that is still wanted.
        let Some(link) = self.links.get_mut(id) else { return };
        match what {
            What::Up { id, addr, protocol, events } => {
                info!(sentinel = %link.addr, id = id.short(), protocol = ?protocol, events, "sentinel connected");
                link.up = Some((id, addr));
                link.events = events;
                link.problem = (!events)
                    .then(|| "its ACL does not allow SUBSCRIBE: switches are found by polling only".to_owned());
            }
            What::Down(error) => {
                let problem = describe(&error);
                if link.up.is_some() || link.problem.as_ref() != Some(&problem) {
                    warn!(sentinel = %link.addr, "sentinel lost: {problem}");
                }
                link.up = None;
                link.problem = Some(problem);
            }
            What::Notice { master, notice } => {
                let from = link.up.as_ref().map(|(id, _)| id.clone());
                let groups = link.groups.clone();
                for number in groups {
                    let Some(group) = self.groups.get_mut(number) else { continue };
                    if master.as_ref().is_none_or(|master| **master == *group.name) {
                        group.step(Event::Notice { from: from.clone(), notice: notice.clone() }, &self.links);
                    }
                }
            }
            What::Round { master, round } => {
                let (from, groups) = (link.up.as_ref().map(|(id, _)| id.clone()), link.groups.clone());
                link.problem = problem_of(&round, &master);
                let Some(from) = from else { return };
                for number in groups {
                    if self.groups.get(number).is_some_and(|group| group.name == master) {
                        self.take_round(number, from.clone(), round.clone());
                    }
                }
            }
        }
    }

    fn take_round(&mut self, number: usize, from: MyId, round: Round) {
        let Some(group) = self.groups.get_mut(number) else { return };
        match round {
            Round::View { view, peers } => {
                group.step(Event::View { from: from.clone(), view }, &self.links);
                let told: BTreeMap<MyId, NodeAddr> = peers.into_iter().map(|peer| (peer.id, peer.addr)).collect();
                let learns = self.learn.get(number).is_some_and(|(learn, _)| *learn);
                if learns && group.learn(from, told, &self.links) {
                    self.reconcile();
                }
            }
            Round::UnknownName => group.count(|counts| counts.unknown_names += 1),
            Round::Torn => {
                group.count(|counts| counts.bad_rounds += 1);
                self.links.ask(number);
            }
            Round::Malformed(_) | Round::Denied(_) => group.count(|counts| counts.bad_rounds += 1),
        }
    }

    /// Brings the connections in line with the seeds and with what was learnt.
    fn reconcile(&mut self) {
        let mut wishes: BTreeMap<Key, Wish> = BTreeMap::new();
        let mut wish = |key: Key, group: usize, expect: Option<MyId>| {
            let wish = wishes.entry(key).or_insert_with(|| Wish { groups: Vec::new(), expect });
            if !wish.groups.contains(&group) {
                wish.groups.push(group);
            }
        };
        for seed in &self.seeds {
            for addr in &seed.found {
                wish((NodeAddr::from(*addr), seed.key_auth), seed.group, None);
            }
        }
        for (group, (_, key_auth)) in self.groups.iter().zip(&self.learn) {
            for (id, addr) in group.learnt() {
                let here = self.links.of(group.number).any(|link| link.addr == addr);
                if here || !self.links.reaches(group.number, &id) {
                    wish((addr, *key_auth), group.number, Some(id));
                }
            }
        }
        self.links.reconcile(&wishes);
    }
}

async fn look_up_forever(number: usize, mut lookup: Lookup, patience: Duration, out: mpsc::Sender<Incoming>) {
    let mut last: Option<Vec<SocketAddr>> = None;
    loop {
        let found = lookup.addresses(patience).await;
        if let Err(error) = &found {
            if last.is_none() {
                warn!(seed = number, "a sentinel's name has no address yet: {error}");
            }
        }
        let found = found.unwrap_or_default();
        let empty = found.is_empty();
        if !empty && last.as_ref() != Some(&found) {
            last = Some(found.clone());
            if out.send(Incoming::Seed(number, found)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(if empty { Duration::from_millis(500) } else { LOOKUP_EVERY }).await;
    }
}

fn problem_of(round: &Round, master: &str) -> Option<String> {
    match round {
        Round::View { .. } | Round::Torn => None,
        Round::UnknownName => {
            Some(format!("it watches no master named {master}: check `name`, or that sentinel's configuration"))
        }
        Round::Denied(denied) => Some(denied.to_string()),
        Round::Malformed(what) => Some((*what).to_owned()),
    }
}

/// The error with its causes, on one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
