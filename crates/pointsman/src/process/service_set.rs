//! The services that run: applies a reload to the listeners, the data plane and discovery.
//!
//! A reload is [prepared](prepare) first, which may fail; applying it cannot. Each listening
//! address is closed by itself, with the sessions that came through it, by the plan of a shutdown
//! (`drain`); other addresses and services are not touched. A service that was removed keeps its
//! discovery, its metrics and its place in the status until its last session has left. If it is
//! added again meanwhile, it continues with them.
//!
//! Addresses of a service manager's sockets are configured there; a reload keeps them.

mod closing;
mod options;
mod prepare;
mod report;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use drain::Summary;
use proxy::{ListenAddr, ListenerId, NewListener, Running, Sockets};
use sentinel::{DiscoveryControl, DiscoveryHandle};
use tokio::task::JoinSet;
use tracing::info;

use crate::admin::effective_config::{EffectiveConfig, ServiceSettings};
use crate::admin::service_registry::ServiceRegistry;
use crate::config::{Config, ServiceConfig};
use crate::process::listener_set::{
    self, Destinations, ListenerSet, ServiceRoute, SetPublisher, WiredService,
};
use crate::process::service_set::prepare::PreparedReload;
use crate::process::service_set::report::log_serving;
use crate::process::{settings, tls_servers::TlsServers};

/// An address that is served.
#[derive(Debug, Clone)]
pub(crate) struct ServedAddress {
    pub(crate) id: ListenerId,
    /// As configured: the port may be 0.
    pub(crate) configured: ListenAddr,
    pub(crate) addr: ListenAddr,
    /// Its socket belongs to a service manager.
    pub(crate) is_managed: bool,
    /// Its clients speak TLS.
    pub(crate) tls: bool,
}

/// A listener set that runs.
struct RunningSet {
    to: Destinations,
    name: Arc<str>,
    /// Its number in the data plane.
    number: usize,
    counters: proxy::ServiceCounters,
    addresses: Vec<ServedAddress>,
    /// Its listeners that are being closed.
    closing: usize,
}

/// A service that runs, or that was removed and still has sessions.
struct RunningService {
    name: String,
    /// Its number in discovery.
    discovery: usize,
    handle: DiscoveryHandle,
    route: ServiceRoute,
    sets: Vec<RunningSet>,
    /// The counters of its writers, also after they have left.
    writers: proxy::ServiceCounters,
    was_added: bool,
    is_leaving: bool,
    settings: ServiceSettings,
}

/// All services, and what changes them.
pub(crate) struct ServiceSet {
    services: Vec<RunningService>,
    control: DiscoveryControl,
    sockets: Arc<Mutex<Sockets>>,
    registry: ServiceRegistry,
    effective: EffectiveConfig,
    tls: TlsServers,
    /// The addresses of the admin server.
    admin: Vec<SocketAddr>,
    workers: NonZeroUsize,
    /// Listeners that are being closed, with their sets' numbers.
    closing: BTreeMap<ListenerId, usize>,
    drains: JoinSet<(ListenerId, Summary)>,
}

/// The parts of a service at the start.
pub(crate) struct StartedService {
    pub(crate) handle: DiscoveryHandle,
    pub(crate) route: ServiceRoute,
    /// Its listener sets: where they lead to, their number in the data plane, their addresses.
    pub(crate) sets: Vec<(Destinations, usize, Vec<ServedAddress>)>,
}

/// The parts of the process that the services need.
pub(crate) struct ServiceSetParts {
    pub(crate) control: DiscoveryControl,
    pub(crate) sockets: Arc<Mutex<Sockets>>,
    pub(crate) effective: EffectiveConfig,
    pub(crate) tls: TlsServers,
    pub(crate) admin: Vec<SocketAddr>,
}

impl ServiceSet {
    /// The services with which the process starts, in the order of the configuration.
    pub(crate) fn new(
        config: &Config,
        started: Vec<StartedService>,
        workers: &Running,
        parts: ServiceSetParts,
    ) -> Self {
        let ServiceSetParts { control, sockets, effective, tls, admin } = parts;
        let mut services = Vec::new();
        for (number, (service, started)) in config.services.iter().zip(started).enumerate() {
            let StartedService { handle, route, sets } = started;
            let sets: Vec<RunningSet> = sets
                .into_iter()
                .filter_map(|(to, number, addresses)| {
                    let counters = workers.counters(number)?;
                    let name = Arc::from(counters.name());
                    Some(RunningSet { to, name, number, counters, addresses, closing: 0 })
                })
                .collect();
            let Some(writers) = sets.first().map(|set| set.counters.clone()) else { continue };
            services.push(RunningService {
                name: service.name.clone(),
                discovery: number,
                handle,
                route,
                sets,
                writers,
                was_added: false,
                is_leaving: false,
                settings: ServiceSettings::of(service, 0),
            });
        }
        let set = Self {
            services,
            control,
            sockets,
            registry: ServiceRegistry::default(),
            effective,
            tls,
            admin,
            workers: settings::workers(config),
            closing: BTreeMap::new(),
            drains: JoinSet::new(),
        };
        set.report();
        for service in set.registry.list() {
            log_serving(&service);
        }
        set
    }

    /// The services as reports see them.
    pub(crate) fn registry(&self) -> &ServiceRegistry {
        &self.registry
    }

    /// The rules for clients with TLS.
    pub(crate) fn tls(&self) -> &TlsServers {
        &self.tls
    }

    /// The names of the services that are being removed.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = &str> {
        self.services.iter().filter(|it| it.is_leaving).map(|it| it.name.as_str())
    }

    /// Applies a prepared reload. `before` is the configuration in force until now.
    pub(crate) fn apply(
        &mut self,
        prepared: PreparedReload,
        (before, config): (&Config, &Config),
        limits: &[usize],
        workers: &mut Running,
    ) {
        let PreparedReload { wanted, plan, mut sockets } = prepared;
        // Named before the sets change: the plan counts these.
        let running: Vec<(Arc<str>, ListenerId)> = self
            .services
            .iter()
            .flat_map(|service| &service.sets)
            .flat_map(|set| set.addresses.iter().map(|it| (Arc::clone(&set.name), it.id)))
            .collect();
        self.announce_own(&wanted, &sockets);
        for (service, limit) in config.services.iter().zip(limits) {
            let old = before.services.iter().find(|it| it.name == service.name);
            self.update_service(service, old, *limit, config, workers);
        }
        for service in &mut self.services {
            let is_configured = config.services.iter().any(|it| it.name == service.name);
            if !is_configured && !std::mem::replace(&mut service.is_leaving, true) {
                info!(service = service.name, "service removed, its sessions leave");
                service.handle.set_service_removed(true);
            }
        }
        let closing: Vec<(Arc<str>, ListenerId, bool)> = plan
            .closed
            .iter()
            .filter_map(|(at, moved)| {
                running.get(*at).map(|(set, id)| (Arc::clone(set), *id, *moved))
            })
            .collect();
        // A moved address is left by its former set before the next one accepts there.
        for (set, id, moved) in closing.iter().filter(|(.., moved)| *moved) {
            self.close(set, *id, *moved, config, workers);
        }
        for (number, (set, configured)) in wanted.into_iter().enumerate() {
            if let Some((listener, duplicates)) = sockets.remove(&number) {
                self.open(&set, configured, (listener, duplicates), workers);
            }
        }
        for (set, id, moved) in closing.iter().filter(|(.., moved)| !*moved) {
            self.close(set, *id, *moved, config, workers);
        }
        self.sort_by(config);
        self.collect_unused(workers);
    }

    fn announce_own(
        &self,
        wanted: &[(ListenerSet, ListenAddr)],
        sockets: &BTreeMap<usize, (NewListener, Sockets)>,
    ) {
        let new = sockets.values().filter_map(|(listener, _)| listener.addr.tcp());
        let running = self.running();
        let kept = running.iter().filter(|(key, _)| {
            wanted.iter().any(|(set, addr)| (&set.name, addr) == (&key.0, &key.1))
        });
        let kept = kept.filter_map(|(_, served)| served.addr.tcp());
        self.control.set_own(new.chain(kept).chain(self.admin.iter().copied()).collect());
    }

    /// Begins a service, or updates its sentinels and listener sets.
    fn update_service(
        &mut self,
        service: &ServiceConfig,
        old: Option<&ServiceConfig>,
        limit: usize,
        config: &Config,
        workers: &mut Running,
    ) {
        let position = self.services.iter().position(|it| it.name == service.name);
        let Some(running) = position.and_then(|at| self.services.get_mut(at)) else {
            self.begin(service, limit, config, workers);
            return;
        };
        running.settings = ServiceSettings::of(service, limit);
        let returns = std::mem::replace(&mut running.is_leaving, false);
        if returns {
            running.handle.set_service_removed(false);
        }
        if returns || old.is_none_or(|old| old.sentinels != service.sentinels) {
            let sentinels = service.sentinels.iter().map(settings::node).collect();
            self.control.set_sentinels(running.discovery, sentinels);
        }
        for to in listener_set::destinations(service) {
            if running.sets.iter().any(|set| set.to == to) {
                continue;
            }
            let (set, publisher) = running.route.set(to, service, limit, (&config.log, &self.tls));
            match publisher {
                SetPublisher::Target => {}
                SetPublisher::Replicas(replicas) => {
                    self.control.set_replicas(running.discovery, Some(replicas));
                }
                SetPublisher::Sentinels(pool) => {
                    self.control.set_sentinel_pool(running.discovery, Some(pool));
                }
            }
            let added = RunningSet::add(to, set, workers);
            if to == Destinations::Master {
                running.writers.clone_from(&added.counters);
                running.sets.insert(0, added);
            } else {
                running.sets.push(added);
            }
        }
    }

    /// Begins a service that is new.
    fn begin(
        &mut self,
        service: &ServiceConfig,
        limit: usize,
        config: &Config,
        workers: &mut Running,
    ) {
        let WiredService { sets, watch, route } =
            WiredService::new(service, limit, (&config.log, &self.tls));
        let (discovery, handle) = self.control.add(watch);
        route.connect(&handle);
        let sets: Vec<RunningSet> =
            sets.into_iter().map(|(to, set)| RunningSet::add(to, set, workers)).collect();
        let Some(writers) = sets.first().map(|set| set.counters.clone()) else { return };
        self.services.push(RunningService {
            name: service.name.clone(),
            discovery,
            handle,
            route,
            sets,
            writers,
            was_added: true,
            is_leaving: false,
            settings: ServiceSettings::of(service, limit),
        });
        info!(service = service.name, "service added");
    }

    /// The listener set of this name.
    fn set_mut(&mut self, name: &str) -> Option<&mut RunningSet> {
        let mut sets = self.services.iter_mut().flat_map(|service| &mut service.sets);
        sets.find(|set| *set.name == *name)
    }

    /// Serves an address.
    fn open(
        &mut self,
        into: &ListenerSet,
        configured: ListenAddr,
        (listener, duplicates): (NewListener, Sockets),
        workers: &mut Running,
    ) {
        let kept = Arc::clone(&self.sockets);
        let Some(set) = self.set_mut(&into.set) else { return };
        let addr = listener.addr.clone();
        let id = workers.open(set.number, listener, into.tls);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.add(duplicates, id, &set.name);
        info!(listener = %into.name, %addr, "listening");
        let (is_managed, tls) = (false, into.tls);
        set.addresses.push(ServedAddress { id, configured, addr, is_managed, tls });
    }

    /// The order of the configuration; services that are being removed come last.
    fn sort_by(&mut self, config: &Config) {
        self.services.sort_by_key(|service| {
            let at = config.services.iter().position(|it| it.name == service.name);
            at.unwrap_or(usize::MAX)
        });
    }
}

impl RunningSet {
    /// The name of its addresses, or of those for TLS, as in [`ListenerSet::name`].
    fn key(&self, tls: bool) -> String {
        format!("{}{}", self.name, if tls { listener_set::TLS } else { "" })
    }

    fn add(to: Destinations, set: proxy::Service, workers: &mut Running) -> Self {
        let name = Arc::clone(&set.name);
        let number = workers.add_service(set);
        let counters = workers.counters(number).unwrap_or_default();
        Self { to, name, number, counters, addresses: Vec::new(), closing: 0 }
    }
}
