//! The connections to sentinels, each made once for everybody who needs it.
//!
//! A sentinel is shared by every service that names it, or learns of it, with the same credentials. Which connections are
//! wanted is computed anew whenever something changes, and the difference is carried out; nothing else opens or closes one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::auth::Credentials;
use crate::discovery::{Incoming, Timeouts};
use crate::link::{self, LinkId, Spec};
use crate::resolve::Resolver;
use crate::{MyId, NodeAddr};

/// The most sentinel connections of one process.
const MAX_LINKS: usize = 512;

/// What makes two wishes for a connection the same one: the address, and the number of the credentials.
pub(crate) type Key = (NodeAddr, usize);

/// A wish for a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wish {
    /// The services that want it, by their number.
    pub(crate) groups: Vec<usize>,
    /// Set if it is wanted only as this very sentinel.
    pub(crate) expect: Option<MyId>,
}

/// One connection's handle.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) addr: NodeAddr,
    pub(crate) groups: Vec<usize>,
    /// Who answered, at which address; `None` while it is down.
    pub(crate) up: Option<(MyId, SocketAddr)>,
    pub(crate) events: bool,
    /// Why it is down, for people.
    pub(crate) problem: Option<String>,
    masters: watch::Sender<Vec<Arc<str>>>,
    ask: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
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
    out: mpsc::Sender<Incoming>,
}

impl Links {
    /// `names` are the services' names by number; `own` our listeners, which no link may lead back to.
    pub(crate) fn new(
        names: Vec<Arc<str>>,
        timeouts: Timeouts,
        own: &[SocketAddr],
        resolver: &Resolver,
        out: mpsc::Sender<Incoming>,
    ) -> Self {
        let (by_key, credentials, own, resolver) = (BTreeMap::new(), Vec::new(), own.into(), resolver.clone());
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

    /// Opens what is wished for and not there, closes what is there and not wished for.
    pub(crate) fn reconcile(&mut self, wishes: &BTreeMap<Key, Wish>) {
        self.by_key.retain(|key, _| wishes.contains_key(key));
        for (key, wish) in wishes {
            let masters: Vec<Arc<str>> = wish.groups.iter().filter_map(|at| self.names.get(*at).cloned()).collect();
            if let Some(link) = self.by_key.get_mut(key) {
                if link.groups != wish.groups {
                    link.groups.clone_from(&wish.groups);
                    link.masters.send_replace(masters);
                    link.ask.notify_one();
                }
            } else if self.by_key.len() < MAX_LINKS {
                let link = self.open(key, wish, masters);
                self.by_key.insert(key.clone(), link);
            }
        }
    }

    fn open(&mut self, key: &Key, wish: &Wish, masters: Vec<Arc<str>>) -> Link {
        self.made += 1;
        let id = LinkId(self.made);
        let ask = Arc::new(Notify::new());
        let (masters, watch) = watch::channel(masters);
        let spec = Spec {
            id,
            sentinel: key.0.clone(),
            credentials: self.credentials.get(key.1).cloned().flatten(),
            expect: wish.expect.clone(),
            masters: watch,
            ask: Arc::clone(&ask),
            timeouts: self.timeouts,
            resolver: self.resolver.clone(),
            own: Arc::clone(&self.own),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(link::run(spec, self.out.clone())));
        let (addr, groups) = (key.0.clone(), wish.groups.clone());
        Link { id, addr, groups, up: None, events: false, problem: None, masters, ask, _task: task }
    }

    pub(crate) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.by_key.values_mut().find(|link| link.id == id)
    }

    /// The links that serve this service.
    pub(crate) fn of(&self, group: usize) -> impl Iterator<Item = &Link> {
        self.by_key.values().filter(move |link| link.groups.contains(&group))
    }

    /// Asks every sentinel of this service now.
    pub(crate) fn ask(&self, group: usize) {
        for link in self.of(group) {
            link.ask.notify_one();
        }
    }

    /// Whether this sentinel is reached already, at whatever address.
    pub(crate) fn reaches(&self, group: usize, id: &MyId) -> bool {
        self.of(group).any(|link| link.up.as_ref().is_some_and(|(up, _)| up == id))
    }
}
