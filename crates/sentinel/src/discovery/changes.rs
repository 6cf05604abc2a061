//! Changes of the services while discovery runs, ordered by reloads.
//!
//! [`DiscoveryControl`] prepares whatever can be prepared outside of the loop, collects the changes
//! of one reload and sends them together; the loop stores them in one iteration. Nothing here can
//! fail, so a reload that has come this far is complete. Numbers of services and of names are never
//! used again: a message of a removed one finds nothing.
//!
//! Changed settings, credentials among them, come before new services and new sentinels, which
//! share the credentials and the connections of the present ones. Services share the connections to
//! sentinels, by their credentials. The changes of all services are therefore applied together: if
//! every service with the same credentials changes them alike, the connections stay and log in
//! anew, one after another. Otherwise those that change get credentials of their own, and keep the
//! connections that no other service uses.
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

use super::{Discovery, ServiceEntry};
use crate::clock;
use crate::discovery::config::{DiscoveryConfig, DiscoverySettings};
use crate::discovery::handle::{ConnectionSettings, DiscoveryHandle};
use crate::discovery::seeds::Seed;
use crate::discovery::service_runtime::ServiceRuntime;
use crate::link::Environment;
use crate::link::links::Links;
use crate::link::login::{Access, Login};
use crate::link::messages::Timeouts;
use crate::prober::ProberFactory;
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
    pub(super) next: usize,
    /// Changes that [`Self::apply`] sends.
    pub(super) collected: Changes,
    pub(super) changes: mpsc::UnboundedSender<Changes>,
    pub(super) env: Environment,
    pub(super) wake: Arc<Notify>,
}

impl fmt::Debug for DiscoveryControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiscoveryControl").field("next", &self.next).finish_non_exhaustive()
    }
}

impl DiscoveryControl {
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

    /// Begins the discovery of a service, and returns its number and handle. Numbers count from 0.
    pub fn add(&mut self, config: DiscoveryConfig) -> (usize, DiscoveryHandle) {
        let number = self.next;
        self.next += 1;
        let (settings, host) = (config.settings.clone(), self.env.resolver.host());
        let prober_factory = ProberFactory {
            login: Login::new(settings.node_access(), host),
            env: self.env.clone(),
            settings: ArcSwap::from_pointee(settings.probe_settings()),
            commands: config.commands.clone(),
        };
        let connections = ConnectionSettings {
            name: Arc::clone(&config.name),
            master_name: Arc::clone(&config.master_name),
            auth: prober_factory.login.clone(),
            // Replaced by the credentials that it shares with other services as soon as it begins.
            sentinel_auth: ArcSwap::from_pointee(Login::new(settings.sentinel_access(), host)),
            resolver: self.env.resolver.clone(),
        };
        let sentinels = config.sentinels.clone();
        let runtime = ServiceRuntime::new(number, config, prober_factory);
        let (snapshot, wake) = (Arc::clone(&runtime.snapshot), Arc::clone(&self.wake));
        let handle = DiscoveryHandle::new(snapshot, connections, wake);
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
        let known = Arc::clone(&self.env.timeouts);
        self.collected.first.push(Box::new(move |_| known.store(Arc::new(timeouts))));
    }

    /// Sets this process's listeners, to which no connection may lead back. Applies at once.
    pub fn set_own(&self, own: Vec<SocketAddr>) {
        self.env.own.set(own);
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
        self.links.names.insert(number, Arc::clone(&runtime.master_name));
        handle.connection_settings().sentinel_auth.store(Arc::new(self.links.login(auth)));
        self.services.insert(number, ServiceEntry { runtime, handle, auth });
        sentinels.iter().for_each(|sentinel| self.add_seed(number, auth, sentinel));
    }

    fn add_seed(&mut self, service: usize, auth: usize, name: &NodeAddr) {
        let number = self.next_seed;
        self.next_seed += 1;
        self.seeds.insert(number, Seed::new(number, service, auth, name, &self.links.env));
    }

    /// Applies the changes of one reload.
    pub(super) fn apply_changes(&mut self, changes: Changes) {
        changes.first.into_iter().for_each(|step| step(self));
        self.change_settings(changes.settings);
        changes.then.into_iter().for_each(|step| step(self));
        // Closes and opens the connections.
        self.reconcile(clock::now());
        let used: BTreeSet<usize> = self.services.values().map(|it| it.auth).collect();
        // No service uses the other ones any more.
        self.links.logins.retain(|number, _| used.contains(number));
    }

    fn end(&mut self, number: usize) {
        self.services.remove(&number);
        self.seeds.retain(|_, seed| seed.service != number);
        self.links.names.remove(&number);
    }

    fn change_sentinels(&mut self, number: usize, sentinels: Vec<NodeAddr>) {
        let Some(auth) = self.services.get(&number).map(|it| it.auth) else { return };
        let before = self.seeds.len();
        self.seeds.retain(|_, seed| seed.service != number || sentinels.contains(&seed.name));
        let kept: Vec<NodeAddr> = self
            .seeds
            .values()
            .filter(|it| it.service == number)
            .map(|it| it.name.clone())
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

    /// Applies changed settings, by the number of their service.
    fn change_settings(&mut self, changes: BTreeMap<usize, DiscoverySettings>) {
        self.change_sentinel_auth(&changes);
        for (number, change) in changes {
            let Some(service) = self.services.get_mut(&number) else { continue };
            service.runtime.change(change, &self.links);
        }
    }

    fn change_sentinel_auth(&mut self, changes: &BTreeMap<usize, DiscoverySettings>) {
        let users: BTreeMap<usize, usize> =
            self.services.iter().map(|(service, it)| (*service, it.auth)).collect();
        for (number, movers, access) in regroup(&users, changes) {
            let login = self.links.login(number);
            if login.is(access) {
                continue;
            }
            let users = self.services.iter().filter(|(_, it)| it.auth == number);
            let all: BTreeSet<usize> = users.map(|(service, _)| *service).collect();
            if all == movers {
                login.replace(access);
                continue;
            }
            let branch = self.links.branch(number, &movers, access);
            for seed in self.seeds.values_mut().filter(|seed| movers.contains(&seed.service)) {
                seed.auth = branch;
            }
            for service in movers {
                if let Some(service) = self.services.get_mut(&service) {
                    service.auth = branch;
                    let settings = service.handle.connection_settings();
                    settings.sentinel_auth.store(Arc::new(self.links.login(branch)));
                }
            }
        }
    }
}

/// The changes by the number of the present credentials and by the new credentials, each with the
/// services that change.
fn regroup<'a>(
    users: &BTreeMap<usize, usize>,
    changes: &'a BTreeMap<usize, DiscoverySettings>,
) -> Vec<(usize, BTreeSet<usize>, Access<'a>)> {
    let mut groups: Vec<(usize, BTreeSet<usize>, Access<'_>)> = Vec::new();
    for (service, change) in changes {
        let Some(number) = users.get(service).copied() else { continue };
        let access = change.sentinel_access();
        match groups.iter_mut().find(|it| it.0 == number && it.2 == access) {
            Some(group) => drop(group.1.insert(*service)),
            None => groups.push((number, BTreeSet::from([*service]), access)),
        }
    }
    groups
}
