//! Changes of the services while discovery runs, ordered by reloads.
//!
//! [`DiscoveryControl`] prepares whatever can be prepared outside of the loop, collects the changes
//! of one reload and sends them together; the loop stores them in one iteration. Nothing here can
//! fail, so a reload that has come this far is complete. Numbers of services and of names are never
//! used again: a message of a removed one finds nothing.
//!
//! Changed settings, credentials among them, are applied by `reconfigure`. They come before new
//! services and new sentinels, which share the credentials and the connections of the present ones.
//!
//! A changed list of sentinels keeps the target and what is known of the nodes. If no configured
//! sentinel remains, the electorate begins anew with the new ones, and what the old ones listed is
//! forgotten. Otherwise the remaining sentinels say which of the new ones belong to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use target::{EmptyPool, PoolWriter};
use tokio::sync::{Notify, mpsc};
use tracing::info;

use super::{Discovery, ServiceEntry, stale_after};
use crate::clock;
use crate::discovery::config::{DiscoveryConfig, DiscoverySettings, prober_factory};
use crate::discovery::handle::{ConnectionSettings, DiscoveryHandle};
use crate::discovery::seeds::Seed;
use crate::discovery::service_runtime::ServiceRuntime;
use crate::link::links::Links;
use crate::link::login::Login;
use crate::link::messages::{DriverMessage, Timeouts};
use crate::link::renewal::RenewalPermit;
use crate::net::own_addresses::OwnAddresses;
use crate::net::resolve::Resolver;
use crate::{MachineEvent, NodeAddr, ReplicaRules, Replicas};

/// A part of a change, executed by the loop.
type Step = Box<dyn FnOnce(&mut Discovery) + Send>;

/// A change of one service.
fn on(number: usize, change: impl FnOnce(&mut ServiceRuntime, &Links) + Send + 'static) -> Step {
    Box::new(move |discovery| {
        if let Some(service) = discovery.services.get_mut(&number) {
            change(&mut service.runtime, &discovery.links);
        }
    })
}

/// The changes of one reload.
#[derive(Default)]
pub(super) struct Changes {
    /// What comes before the settings.
    first: Vec<Step>,
    settings: BTreeMap<usize, DiscoverySettings>,
    /// What comes after them.
    then: Vec<Step>,
}

/// Changes the services of a running [`Discovery`].
pub struct DiscoveryControl {
    next: usize,
    /// Changes that [`Self::apply`] sends.
    collected: Changes,
    changes: mpsc::UnboundedSender<Changes>,
    out: mpsc::Sender<DriverMessage>,
    own: OwnAddresses,
    resolver: Resolver,
    permit: RenewalPermit,
    wake: Arc<Notify>,
}

impl fmt::Debug for DiscoveryControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiscoveryControl").field("next", &self.next).finish_non_exhaustive()
    }
}

impl DiscoveryControl {
    pub(super) fn new(
        changes: mpsc::UnboundedSender<Changes>,
        out: mpsc::Sender<DriverMessage>,
        own: OwnAddresses,
        resolver: Resolver,
        permit: RenewalPermit,
        wake: Arc<Notify>,
    ) -> Self {
        let (next, collected) = (0, Changes::default());
        Self { next, collected, changes, out, own, resolver, permit, wake }
    }

    /// Applies all changes that were made since the last call, in one iteration of discovery.
    pub fn apply(&mut self) {
        let changes = self.take();
        // The loop is gone only when the process ends.
        let _gone = self.changes.send(changes);
    }

    /// The changes that were made since the last call.
    pub(super) fn take(&mut self) -> Changes {
        std::mem::take(&mut self.collected)
    }

    /// Begins the discovery of a service, and returns its number and handle. Numbers count from 0,
    /// those given to [`Discovery::new`] included.
    pub fn add(&mut self, config: DiscoveryConfig) -> (usize, DiscoveryHandle) {
        let number = self.next;
        self.next += 1;
        let prober_factory = prober_factory(&config, &self.own, &self.resolver, &self.permit);
        let connections = ConnectionSettings {
            name: Arc::clone(&config.name),
            master_name: Arc::clone(&config.master_name),
            auth: prober_factory.login.clone(),
            // Replaced by the credentials that it shares with other services as soon as it begins.
            sentinel_auth: ArcSwap::from_pointee(Login::new(
                config.settings.sentinel_access(),
                self.resolver.host(),
            )),
            resolver: self.resolver.clone(),
        };
        let (sentinels, settings) = (config.sentinels.clone(), config.settings.clone());
        let runtime = ServiceRuntime::new(number, config, prober_factory, self.out.clone());
        let handle = DiscoveryHandle::new(runtime.snapshot(), connections, Arc::clone(&self.wake));
        let its = handle.clone();
        let begin = move |it: &mut Discovery| it.begin(runtime, its, &sentinels, &settings);
        self.collected.then.push(Box::new(begin));
        (number, handle)
    }

    /// Ends the discovery of a service: its target is not renewed any more, and its connections
    /// are closed.
    pub fn remove(&mut self, number: usize) {
        self.collected.first.push(Box::new(move |it| it.end(number)));
    }

    /// Replaces the configured sentinels of a service.
    pub fn set_sentinels(&mut self, number: usize, sentinels: Vec<NodeAddr>) {
        self.collected.then.push(Box::new(move |it| it.change_sentinels(number, sentinels)));
    }

    /// Changes the settings of a service.
    pub fn change(&mut self, number: usize, settings: DiscoverySettings) {
        self.collected.settings.insert(number, settings);
    }

    /// Changes which replicas are eligible, and what readers get without one.
    pub fn set_replica_rules(&mut self, number: usize, rules: ReplicaRules, empty: EmptyPool) {
        self.collected.first.push(on(number, move |it, _| it.set_replica_rules(rules, empty)));
    }

    /// Begins or ends to publish the replicas for readers.
    pub fn set_replicas(&mut self, number: usize, replicas: Option<Replicas>) {
        self.collected.then.push(on(number, move |it, links| it.set_replicas(replicas, links)));
    }

    /// Begins or ends to publish the live sentinels.
    pub fn set_sentinel_pool(&mut self, number: usize, pool: Option<PoolWriter>) {
        self.collected.then.push(on(number, move |it, links| it.set_sentinel_pool(pool, links)));
    }

    /// Sets the timeouts of the connections to sentinels, which all services share.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) {
        self.collected.first.push(Box::new(move |discovery| {
            discovery.links.set_timeouts(timeouts);
            discovery.stale_after = stale_after(timeouts);
        }));
    }

    /// Sets this process's listeners, to which no connection may lead back. Applies at once.
    pub fn set_own(&self, own: Vec<SocketAddr>) {
        self.own.set(own);
    }
}

impl Discovery {
    fn begin(
        &mut self,
        runtime: ServiceRuntime,
        handle: DiscoveryHandle,
        sentinels: &[NodeAddr],
        settings: &DiscoverySettings,
    ) {
        let (number, auth) = (runtime.number, self.links.number(settings.sentinel_access()));
        self.links.set_name(number, Some(Arc::clone(&runtime.master_name)));
        handle.connection_settings().sentinel_auth.store(Arc::new(self.links.login(auth)));
        self.services
            .insert(number, ServiceEntry { runtime, handle, learns: settings.learn, auth });
        sentinels.iter().for_each(|sentinel| self.add_seed(number, auth, sentinel));
    }

    fn add_seed(&mut self, service: usize, auth: usize, name: &NodeAddr) {
        let (number, out) = (self.next_seed, self.out.clone());
        self.next_seed += 1;
        let timeouts = self.links.timeouts();
        let seed = Seed::new(number, service, auth, name, timeouts, &self.resolver, out);
        self.seeds.insert(number, seed);
    }

    /// Applies changes, without the connections that they need.
    pub(super) fn execute(&mut self, changes: Changes) {
        changes.first.into_iter().for_each(|step| step(self));
        self.change_settings(changes.settings);
        changes.then.into_iter().for_each(|step| step(self));
    }

    /// Applies the changes of one reload.
    pub(super) fn apply_changes(&mut self, changes: Changes) {
        self.execute(changes);
        // Closes and opens the connections.
        self.reconcile(clock::now());
        let used: BTreeSet<usize> = self.services.values().map(|it| it.auth).collect();
        self.links.retain_logins(&used);
    }

    fn end(&mut self, number: usize) {
        self.services.remove(&number);
        self.seeds.retain(|_, seed| seed.service != number);
        self.links.set_name(number, None);
    }

    fn change_sentinels(&mut self, number: usize, sentinels: Vec<NodeAddr>) {
        let Some(auth) = self.services.get(&number).map(|it| it.auth) else { return };
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
            self.add_seed(number, auth, &sentinel);
        }
        let Some(service) = self.services.get_mut(&number) else { return };
        let service = &mut service.runtime;
        info!(
            service = %service.name, kept = kept.len(), removed, configured = count,
            "sentinels changed"
        );
        if kept.is_empty() {
            service.forget_learned();
            service.step(MachineEvent::SentinelsReplaced(count), &self.links);
        }
    }
}
