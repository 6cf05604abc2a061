//! The connections to sentinels, each made once for everybody who needs it.
//!
//! A sentinel is shared by every service that names it, or learns of it, with the same credentials.
//! Which connections are wanted is computed anew whenever something changes, and the difference is
//! carried out; nothing else opens or closes one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::discovery::messages::{DriverMessage, Timeouts};
use crate::link::auth::Credentials;
use crate::link::wanted::Wanted;
use crate::link::{self, LinkId, Spec};
use crate::net::resolve::Resolver;
use crate::rate_limiter::Voice;
use crate::{MyId, NodeAddr};

/// The most sentinel connections of one process.
const MAX_LINKS: usize = 512;

/// What makes two wishes for a connection the same one: the address, and the number of the
/// credentials.
pub(crate) type Key = (NodeAddr, usize);

/// A wish for a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wish {
    /// The services that want it, by their number.
    pub(crate) groups: Vec<usize>,
    /// Set if it is wanted only as one of these sentinels.
    pub(crate) expect: Option<BTreeSet<MyId>>,
}

impl Wish {
    /// This service wants it too.
    pub(crate) fn want(&mut self, group: usize) {
        if !self.groups.contains(&group) {
            self.groups.push(group);
        }
    }
}

/// One connection's handle.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    /// Where it is dialled.
    pub(crate) addr: NodeAddr,
    pub(crate) groups: Vec<usize>,
    /// Who answered, at which address; `None` while it is down.
    pub(crate) up: Option<(MyId, SocketAddr)>,
    pub(crate) events: bool,
    /// Why it is down, for people.
    pub(crate) problem: Option<String>,
    /// What is wrong with its answers about one service, by the service's number.
    pub(crate) troubles: BTreeMap<usize, String>,
    /// Bounds what is logged about it.
    pub(crate) voice: Voice,
    masters: watch::Sender<Vec<Arc<str>>>,
    expect: watch::Sender<Option<BTreeSet<MyId>>>,
    ask: Arc<Wanted>,
    _task: AbortOnDropHandle<()>,
}

impl Link {
    /// Who answers.
    pub(crate) fn id(&self) -> Option<&MyId> {
        self.up.as_ref().map(|(id, _)| id)
    }

    /// Whether whoever answers counts for this service only under its announced identity.
    pub(crate) fn is_learnt(&self) -> bool {
        self.expect.borrow().is_some()
    }

    /// Says in the log that it is of no use, if it does not say so all the time.
    pub(crate) fn warn(&mut self, problem: &str) {
        let (sentinel, problem) = (self.addr.clone(), problem.to_owned());
        self.voice.say(
            Instant::now(),
            move |unsaid| warn!(%sentinel, unsaid, "sentinel of no use: {problem}"),
        );
    }

    /// Takes note of what is wrong with its answers about one service.
    pub(crate) fn is_troubled(&mut self, group: usize, trouble: Option<String>) {
        if self.troubles.get(&group) == trouble.as_ref() {
            return;
        }
        match trouble {
            None => drop(self.troubles.remove(&group)),
            Some(trouble) => {
                self.warn(&trouble);
                self.troubles.insert(group, trouble);
            }
        }
    }

    /// What is wrong with it as far as this service is concerned, for people.
    pub(crate) fn problem_for(&self, group: usize) -> Option<String> {
        let deaf = (self.up.is_some() && !self.events).then(|| {
            "its ACL does not allow SUBSCRIBE: switches are found by polling only".to_owned()
        });
        self.problem.clone().or_else(|| self.troubles.get(&group).cloned()).or(deaf)
    }

    /// Asks it again about this master.
    pub(crate) fn ask(&self, master: &Arc<str>) {
        self.ask.want(master);
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Links {
    by_key: BTreeMap<Key, Link>,
    credentials: Vec<Option<Credentials>>,
    names: Vec<Arc<str>>,
    made: u64,
    timeouts: Timeouts,
    resolver: Resolver,
    own: Arc<[SocketAddr]>,
    out: mpsc::Sender<DriverMessage>,
}

impl Links {
    /// `names` are the services' names by number; `own` our listeners, which no link may lead back
    /// to.
    pub(crate) fn new(
        names: Vec<Arc<str>>,
        timeouts: Timeouts,
        own: &[SocketAddr],
        resolver: &Resolver,
        out: mpsc::Sender<DriverMessage>,
    ) -> Self {
        let (by_key, credentials, own, resolver) =
            (BTreeMap::new(), Vec::new(), own.into(), resolver.clone());
        Self { by_key, credentials, names, made: 0, timeouts, resolver, own, out }
    }

    /// The number that stands for these credentials in a [`Key`].
    pub(crate) fn number(&mut self, credentials: Option<&Credentials>) -> usize {
        let known = self.credentials.iter().position(|it| it.as_ref() == credentials);
        known.unwrap_or_else(|| {
            self.credentials.push(credentials.cloned());
            self.credentials.len() - 1
        })
    }

    /// Opens what is wished for and not there, closes what is there and not wished for. Where there
    /// are too many wishes, those of the configuration come first.
    pub(crate) fn reconcile(&mut self, wishes: &BTreeMap<Key, Wish>) {
        self.by_key.retain(|key, link| {
            let wish = wishes.get(key);
            // Whoever is connected but was never told of has to be dialled anew, or not at all.
            wish.is_some_and(|wish| match (&wish.expect, link.id()) {
                (Some(expected), Some(id)) => expected.contains(id),
                _ => true,
            })
        });
        let (configured, learnt): (Vec<_>, Vec<_>) =
            wishes.iter().partition(|(_, wish)| wish.expect.is_none());
        for (key, wish) in configured.into_iter().chain(learnt) {
            if let Some(link) = self.by_key.get_mut(key) {
                link.expect.send_if_modified(|expect| {
                    let changed = *expect != wish.expect;
                    expect.clone_from(&wish.expect);
                    changed
                });
                if link.groups != wish.groups {
                    link.groups.clone_from(&wish.groups);
                    link.troubles.retain(|group, _| wish.groups.contains(group));
                    let names = names_of(&self.names, wish);
                    names.iter().for_each(|name| link.ask.want(name));
                    link.masters.send_replace(names);
                }
            } else if self.by_key.len() < MAX_LINKS {
                let link = self.open(key, wish);
                self.by_key.insert(key.clone(), link);
            }
        }
    }

    fn open(&mut self, key: &Key, wish: &Wish) -> Link {
        self.made += 1;
        let id = LinkId(self.made);
        let ask = Arc::<Wanted>::default();
        let (masters, watch) = watch::channel(names_of(&self.names, wish));
        let (expect, expected) = watch::channel(wish.expect.clone());
        let spec = Spec {
            id,
            sentinel: key.0.clone(),
            credentials: self.credentials.get(key.1).cloned().flatten(),
            expect: expected,
            masters: watch,
            ask: Arc::clone(&ask),
            timeouts: self.timeouts,
            resolver: self.resolver.clone(),
            own: Arc::clone(&self.own),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(link::run(spec, self.out.clone())));
        let (addr, groups) = (key.0.clone(), wish.groups.clone());
        let (voice, troubles) = (Voice::new(5, Duration::from_secs(10)), BTreeMap::new());
        Link {
            id,
            addr,
            groups,
            up: None,
            events: false,
            problem: None,
            troubles,
            voice,
            masters,
            expect,
            ask,
            _task: task,
        }
    }

    pub(crate) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.by_key.values_mut().find(|link| link.id == id)
    }

    /// The links that serve this service.
    pub(crate) fn of(&self, group: usize) -> impl Iterator<Item = &Link> {
        self.by_key.values().filter(move |link| link.groups.contains(&group))
    }

    /// Lets each link say what it could not say before.
    pub(crate) fn catch_up(&mut self, now: Instant) {
        self.by_key.values_mut().for_each(|link| link.voice.catch_up(now));
    }

    /// Asks every sentinel of this service now, about its master.
    pub(crate) fn ask(&self, group: usize) {
        let Some(name) = self.names.get(group) else { return };
        self.of(group).for_each(|link| link.ask(name));
    }

    /// Whether this sentinel is reached, at whatever address.
    pub(crate) fn reaches(&self, group: usize, id: &MyId) -> bool {
        self.speaker(group, id).is_some()
    }

    /// The one link whose word counts as that of `id`, where several lead to it, or to somebody who
    /// claims to be it: one of the configuration before one that was learnt, then the oldest.
    pub(crate) fn speaker(&self, group: usize, id: &MyId) -> Option<&Link> {
        self.of(group)
            .filter(|link| link.id() == Some(id))
            .min_by_key(|link| (link.is_learnt(), link.id))
    }

    /// Whether this link is the one that speaks for `id`.
    pub(crate) fn speaks(&self, group: usize, link: LinkId, id: &MyId) -> bool {
        self.speaker(group, id).is_some_and(|speaker| speaker.id == link)
    }

    /// The sentinel that answers at this address.
    pub(crate) fn answers_at(&self, key: &Key) -> Option<&MyId> {
        self.by_key.get(key).and_then(Link::id)
    }

    /// Whether a sentinel answers at this address.
    pub(crate) fn is_up(&self, key: &Key) -> bool {
        self.by_key.get(key).is_some_and(|link| link.up.is_some())
    }
}

/// The masters to ask about, each once.
fn names_of(names: &[Arc<str>], wish: &Wish) -> Vec<Arc<str>> {
    let asked: BTreeSet<&Arc<str>> =
        wish.groups.iter().filter_map(|group| names.get(*group)).collect();
    asked.into_iter().map(Arc::clone).collect()
}

/// The error with its causes, on one line.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
