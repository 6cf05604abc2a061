//! Changes of the services while discovery runs, ordered by reloads.
//!
//! [`DiscoveryControl`] prepares whatever can be prepared outside of the loop and sends the result;
//! the loop only stores it. Nothing here can fail, so a reload that has come this far is complete.
//! Numbers of services and of names are never used again: a message of a removed one finds nothing.
//!
//! A changed list of sentinels keeps the target and what is known of the nodes. If no configured
//! sentinel remains, the electorate begins anew with the new ones, and what the old ones listed is
//! forgotten. Otherwise the remaining sentinels say which of the new ones belong to them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use target::PoolWriter;
use tokio::sync::{Notify, mpsc};
use tracing::info;

use super::Discovery;
use crate::discovery::config::{DiscoveryConfig, prober_factory};
use crate::discovery::handle::{ConnectionSettings, DiscoveryHandle};
use crate::discovery::seeds::Seed;
use crate::discovery::service_runtime::ServiceRuntime;
use crate::link::auth::Credentials;
use crate::link::messages::{DriverMessage, Timeouts};
use crate::net::own_addresses::OwnAddresses;
use crate::net::resolve::Resolver;
use crate::{MachineEvent, NodeAddr, Replicas};

/// A change of the services.
pub(super) enum Change {
    Add(Box<NewService>),
    Remove(usize),
    Sentinels(usize, Vec<NodeAddr>),
    Learn(usize, bool),
    Replicas(usize, Option<Replicas>),
    SentinelPool(usize, Option<PoolWriter>),
    Timeouts(Timeouts),
}

/// A service that the loop has yet to begin.
pub(super) struct NewService {
    number: usize,
    name: Arc<str>,
    sentinels: Vec<NodeAddr>,
    sentinel_auth: Option<Credentials>,
    learn: bool,
    handle: DiscoveryHandle,
    runtime: ServiceRuntime,
}

/// Changes the services of a running [`Discovery`].
#[derive(Debug)]
pub struct DiscoveryControl {
    next: usize,
    changes: mpsc::UnboundedSender<Change>,
    out: mpsc::Sender<DriverMessage>,
    own: OwnAddresses,
    resolver: Resolver,
    wake: Arc<Notify>,
}

impl DiscoveryControl {
    pub(super) fn new(
        changes: mpsc::UnboundedSender<Change>,
        out: mpsc::Sender<DriverMessage>,
        own: OwnAddresses,
        resolver: Resolver,
        wake: Arc<Notify>,
    ) -> Self {
        Self { next: 0, changes, out, own, resolver, wake }
    }

    /// Begins the discovery of a service, and returns its number and handle. Numbers count from 0,
    /// those given to [`Discovery::new`] included.
    pub fn add(&mut self, config: DiscoveryConfig) -> (usize, DiscoveryHandle) {
        let service = self.prepare(config);
        let (number, handle) = (service.number, service.handle.clone());
        self.send(Change::Add(Box::new(service)));
        (number, handle)
    }

    pub(super) fn prepare(&mut self, config: DiscoveryConfig) -> NewService {
        let number = self.next;
        self.next += 1;
        let prober_factory = prober_factory(&config, &self.own, &self.resolver);
        let settings = ConnectionSettings {
            name: Arc::clone(&config.name),
            auth: prober_factory.credentials.clone(),
            sentinel_auth: config.sentinel_auth.clone(),
            resolver: self.resolver.clone(),
        };
        let DiscoveryConfig { name, sentinels, sentinel_auth, rules, learn, .. } = config;
        let runtime = ServiceRuntime::new(
            number,
            &name,
            (config.target_writer, config.replicas, config.sentinel_pool),
            (rules, sentinels.len()),
            prober_factory,
            self.out.clone(),
        );
        let handle = DiscoveryHandle::new(runtime.snapshot(), settings, Arc::clone(&self.wake));
        NewService { number, name, sentinels, sentinel_auth, learn, handle, runtime }
    }

    /// Ends the discovery of a service: its target is not renewed any more, and its connections
    /// are closed.
    pub fn remove(&self, number: usize) {
        self.send(Change::Remove(number));
    }

    /// Replaces the configured sentinels of a service.
    pub fn set_sentinels(&self, number: usize, sentinels: Vec<NodeAddr>) {
        self.send(Change::Sentinels(number, sentinels));
    }

    /// Sets whether sentinels learned from other sentinels are queried too.
    pub fn set_learn(&self, number: usize, learn: bool) {
        self.send(Change::Learn(number, learn));
    }

    /// Begins or ends to publish the replicas for readers.
    pub fn set_replicas(&self, number: usize, replicas: Option<Replicas>) {
        self.send(Change::Replicas(number, replicas));
    }

    /// Begins or ends to publish the live sentinels.
    pub fn set_sentinel_pool(&self, number: usize, pool: Option<PoolWriter>) {
        self.send(Change::SentinelPool(number, pool));
    }

    /// Sets the timeouts of connections to sentinels opened from now on.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.send(Change::Timeouts(timeouts));
    }

    /// Sets this process's listeners, to which no connection may lead back.
    pub fn set_own(&self, own: Vec<SocketAddr>) {
        self.own.set(own);
    }

    fn send(&self, change: Change) {
        // The loop is gone only when the process ends.
        let _gone = self.changes.send(change);
    }
}

impl Discovery {
    /// Begins a service.
    pub(super) fn begin(&mut self, service: NewService) {
        let NewService { number, name, sentinels, sentinel_auth, learn, handle, runtime } = service;
        let auth = self.links.number(sentinel_auth.as_ref());
        self.links.set_name(number, Some(name));
        self.learn.insert(number, (learn, auth));
        self.handles.insert(number, handle);
        self.services.insert(number, runtime);
        for sentinel in sentinels {
            self.add_seed((number, auth), &sentinel);
        }
    }

    fn add_seed(&mut self, of: (usize, usize), name: &NodeAddr) {
        let (number, out) = (self.next_seed, self.out.clone());
        self.next_seed += 1;
        let seed = Seed::new(number, of, name, self.timeouts.command, &self.resolver, out);
        self.seeds.insert(number, seed);
    }

    pub(super) fn change(&mut self, change: Change) {
        match change {
            Change::Add(service) => self.begin(*service),
            Change::Remove(number) => {
                self.services.remove(&number);
                self.handles.remove(&number);
                self.learn.remove(&number);
                self.seeds.retain(|_, seed| seed.service != number);
                self.links.set_name(number, None);
            }
            Change::Sentinels(number, sentinels) => self.change_sentinels(number, sentinels),
            Change::Learn(number, learn) => {
                if let Some((known, _)) = self.learn.get_mut(&number) {
                    *known = learn;
                }
                if let Some(service) = self.services.get_mut(&number).filter(|_| !learn) {
                    service.forget_learned();
                }
            }
            Change::Replicas(number, replicas) => {
                if let Some(service) = self.services.get_mut(&number) {
                    service.set_replicas(replicas, &self.links);
                }
            }
            Change::SentinelPool(number, pool) => {
                if let Some(service) = self.services.get_mut(&number) {
                    service.set_sentinel_pool(pool, &self.links);
                }
            }
            Change::Timeouts(timeouts) => self.set_timeouts(timeouts),
        }
        // Closes and opens the connections.
        self.reconcile(Instant::now());
    }

    fn change_sentinels(&mut self, number: usize, sentinels: Vec<NodeAddr>) {
        let Some((_, auth)) = self.learn.get(&number).copied() else { return };
        let before = self.seeds.len();
        self.seeds.retain(|_, seed| seed.service != number || sentinels.contains(seed.name()));
        let kept: Vec<NodeAddr> = self
            .seeds
            .values()
            .filter(|it| it.service == number)
            .map(|it| it.name().clone())
            .collect();
        let (removed, count) = (before - self.seeds.len(), sentinels.len());
        for sentinel in sentinels.into_iter().filter(|it| !kept.contains(it)) {
            self.add_seed((number, auth), &sentinel);
        }
        let Some(service) = self.services.get_mut(&number) else { return };
        info!(
            service = %service.name, kept = kept.len(), removed, configured = count,
            "sentinels changed"
        );
        if kept.is_empty() {
            service.forget_learned();
            service.step(MachineEvent::SentinelsReplaced(count), &self.links);
        }
    }

    fn set_timeouts(&mut self, timeouts: Timeouts) {
        self.timeouts = timeouts;
        self.stale_after = super::stale_after(&timeouts);
        self.links.set_timeouts(timeouts);
    }
}
