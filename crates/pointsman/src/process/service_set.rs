//! The services that run: applies a reload to the listeners, the data plane and discovery.
//!
//! A reload is prepared first: every new address is bound and every duplicate of a socket is made,
//! and a failure leaves everything as it was. Applying cannot fail. Each listening address is closed
//! by itself, with the sessions that came through it, by the plan of a shutdown (`drain`); other
//! addresses and services are not touched. A service that was removed keeps its discovery, its
//! metrics and its place in the status until its last session has left, and if it is added again
//! meanwhile it continues with them.
//!
//! Addresses of a service manager's sockets are configured there: a reload keeps them as long as
//! their service exists.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drain::Summary;
use proxy::{AddressPlan, ListenAddr, ListenerId, NewListener, Options, Running, Sockets};
use sentinel::{DiscoveryControl, DiscoveryHandle};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::admin::effective_config::EffectiveConfig;
use crate::admin::service_registry::{ReportedService, ServiceRegistry};
use crate::config::{Config, ServiceConfig};
use crate::process::inherit;
use crate::process::listener_plan::{self, ListenerPlan, ListenerStep, SetAddress};
use crate::process::listener_set::{
    self, Destinations, ListenerSet, ServiceRoute, SetPublisher, WiredService,
};
use crate::process::settings;

/// How long a reload waits for addresses that an earlier one is closing.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it looks.
const CLOSING_INTERVAL: Duration = Duration::from_millis(2);
/// The maximum number of services that are being removed. A reload that removes more is refused
/// until some of them have ended.
const MAX_LEAVING: usize = 256;

/// An address that is served.
#[derive(Debug, Clone)]
pub(crate) struct ServedAddress {
    pub(crate) id: ListenerId,
    /// As configured: the port may be 0.
    pub(crate) configured: ListenAddr,
    pub(crate) addr: ListenAddr,
    /// Its socket belongs to a service manager.
    pub(crate) is_managed: bool,
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
    limits: (usize, Duration),
}

/// What a reload has acquired. Dropping it leaves everything as it was.
pub(crate) struct PreparedReload {
    wanted: Vec<(ListenerSet, ListenAddr)>,
    plan: ListenerPlan,
    /// For each wanted address that is opened or moved: its sockets, and their duplicates.
    sockets: BTreeMap<usize, (NewListener, Sockets)>,
}

/// All services, and what changes them.
pub(crate) struct ServiceSet {
    services: Vec<RunningService>,
    control: DiscoveryControl,
    sockets: Arc<Mutex<Sockets>>,
    registry: ServiceRegistry,
    effective: EffectiveConfig,
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
        let ServiceSetParts { control, sockets, effective, admin } = parts;
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
                limits: (0, service.hold_timeout),
            });
        }
        let set = Self {
            services,
            control,
            sockets,
            registry: ServiceRegistry::default(),
            effective,
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

    /// The names of the services that are being removed.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = &str> {
        self.services.iter().filter(|it| it.is_leaving).map(|it| it.name.as_str())
    }

    /// The running addresses, and whether each is kept although it is not configured.
    fn running(&self) -> Vec<(SetAddress, &ServedAddress)> {
        let of = |set: &'_ RunningSet| -> Vec<(SetAddress, ListenerId)> {
            let name = |it: &ServedAddress| ((set.name.to_string(), it.configured.clone()), it.id);
            set.addresses.iter().map(name).collect()
        };
        let sets = || self.services.iter().flat_map(|service| &service.sets);
        let addresses = sets().flat_map(|set| &set.addresses);
        sets().flat_map(of).map(|(key, _)| key).zip(addresses).collect()
    }

    /// The addresses that the configuration wants, each with its set.
    fn wanted(&self, config: &Config) -> Vec<(ListenerSet, ListenAddr)> {
        let mut wanted = Vec::new();
        for set in listener_set::all(config) {
            let running = self
                .services
                .iter()
                .flat_map(|service| &service.sets)
                .find(|running| *running.name == *set.name);
            let managed: Vec<ListenAddr> = running
                .into_iter()
                .flat_map(|running| &running.addresses)
                .filter(|it| it.is_managed)
                .map(|it| it.configured.clone())
                .collect();
            let listen = if managed.is_empty() {
                let taken = running.into_iter().flat_map(|running| &running.addresses);
                let taken = taken.map(|it| &it.configured).filter(|addr| {
                    // An IPv4 socket of an older process, beside ours for IPv6.
                    inherit::both_families(addr).is_some_and(|both| set.listen.contains(&both))
                        && !set.listen.contains(addr)
                });
                let own = set.listen.iter().filter(|addr| self.can_serve(addr));
                own.chain(taken).cloned().collect()
            } else {
                managed
            };
            wanted.extend(listen.into_iter().map(|addr| (set.clone(), addr)));
        }
        wanted
    }

    /// Whether an address can be served without a restart. The file of a Unix socket is only created
    /// at a start, because a file system can hang.
    fn can_serve(&self, addr: &ListenAddr) -> bool {
        addr.tcp().is_some() || self.running().iter().any(|(_, served)| served.addr == *addr)
    }

    /// The configured addresses that a restart would serve and a reload does not, for the list of
    /// pending keys.
    pub(crate) fn unserved(&self, config: &Config) -> Vec<String> {
        let wanted = self.wanted(config);
        let mut unserved = Vec::new();
        for set in listener_set::all(config) {
            let is_wanted = |addr: &ListenAddr| {
                wanted.iter().any(|(other, it)| other.name == set.name && it == addr)
            };
            let key = set.to.key();
            let missing = set.listen.iter().filter(|addr| !is_wanted(addr));
            let service = config.services.get(set.service).map_or("", |it| it.name.as_str());
            unserved.extend(missing.map(|addr| format!("{key} ({service}): {addr}")));
        }
        unserved
    }

    /// Does everything that may fail. `limits` are the maximum numbers of connections of each
    /// service.
    ///
    /// # Errors
    ///
    /// The service and address concerned, and why. Nothing has changed then.
    pub(crate) async fn prepare(
        &self,
        config: &Config,
        limits: &[usize],
        workers: &Running,
    ) -> Result<PreparedReload, String> {
        let leaving = self
            .services
            .iter()
            .filter(|running| config.services.iter().all(|service| service.name != running.name));
        if leaving.count() > MAX_LEAVING {
            return Err(format!(
                "more than {MAX_LEAVING} services would be closing their sessions at the same \
                 time; wait until some have ended, or lower shutdown.drain_timeout"
            ));
        }
        let wanted = self.wanted(config);
        let running: Vec<SetAddress> = self.running().into_iter().map(|(key, _)| key).collect();
        let keys: Vec<SetAddress> =
            wanted.iter().map(|(set, addr)| (set.name.clone(), addr.clone())).collect();
        let plan = listener_plan::plan(&running, &keys);
        self.wait_for_closed(workers).await;
        let options: BTreeMap<String, Options> =
            listener_set::options_of(config, limits).into_iter().collect();
        let sockets = self.bind(&wanted, &plan, &options)?;
        Ok(PreparedReload { wanted, plan, sockets })
    }

    /// Waits until the sockets that an earlier reload closes are closed, since their addresses may
    /// be wanted again.
    async fn wait_for_closed(&self, workers: &Running) {
        let since = Instant::now();
        while self.closing.keys().any(|id| !workers.is_closed(*id))
            && since.elapsed() < CLOSING_TIMEOUT
        {
            tokio::time::sleep(CLOSING_INTERVAL).await;
        }
    }

    fn bind(
        &self,
        wanted: &[(ListenerSet, ListenAddr)],
        plan: &ListenerPlan,
        options: &BTreeMap<String, Options>,
    ) -> Result<BTreeMap<usize, (NewListener, Sockets)>, String> {
        let kept = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let after: Vec<SocketAddr> = wanted.iter().filter_map(|(_, addr)| addr.tcp()).collect();
        let after: Vec<SocketAddr> = after.into_iter().chain(self.admin.iter().copied()).collect();
        let bound = kept.all().iter().filter_map(|socket| socket.addr.tcp()).collect();
        let addresses = AddressPlan::new(self.workers, &after, bound);
        let running = self.running();
        let mut sockets = BTreeMap::new();
        for (number, ((set, addr), step)) in wanted.iter().zip(&plan.steps).enumerate() {
            let at = |what: &dyn std::fmt::Display| format!("service {}: {what}", set.name);
            let unusable =
                |error: std::io::Error| at(&format_args!("cannot listen on {addr}: {error}"));
            let default = Options::default();
            let options = options.get(&set.name).unwrap_or(&default);
            let listener = match step {
                ListenerStep::Keep(_) => continue,
                ListenerStep::Move(from) => {
                    let Some((_, served)) = running.get(*from) else { continue };
                    let duplicates = kept.duplicate(served.id).map_err(unusable)?;
                    let Some(listener) = duplicates.into_iter().next() else { continue };
                    listener
                }
                ListenerStep::Open => {
                    let Some(tcp) = addr.tcp() else { continue };
                    addresses.bind(tcp, options).map_err(|error| {
                        let source = std::error::Error::source(&error);
                        let source = source.map(|it| format!(": {it}")).unwrap_or_default();
                        at(&format_args!("{error}{source}"))
                    })?
                }
            };
            let duplicates = Sockets::duplicate_new(&listener).map_err(unusable)?;
            sockets.insert(number, (listener, duplicates));
        }
        Ok(sockets)
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
        self.control.set_timeouts(settings::sentinel_timeouts(&config.services));
        self.announce_own(&wanted, &sockets);
        for (service, limit) in config.services.iter().zip(limits) {
            let old = before.services.iter().find(|it| it.name == service.name);
            self.update_service(service, old, *limit, config, workers);
        }
        for service in &mut self.services {
            let is_configured = config.services.iter().any(|it| it.name == service.name);
            if !is_configured && !std::mem::replace(&mut service.is_leaving, true) {
                info!(service = service.name, "service removed, its sessions leave");
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
                self.open(&set.name, configured, (listener, duplicates), workers);
            }
        }
        for (set, id, moved) in closing.iter().filter(|(.., moved)| !*moved) {
            self.close(set, *id, *moved, config, workers);
        }
        self.sort_by(config);
        self.collect(workers);
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
            return self.begin(service, limit, config, workers);
        };
        running.limits = (limit, service.hold_timeout);
        let returns = std::mem::replace(&mut running.is_leaving, false);
        if returns || old.is_none_or(|old| old.sentinels != service.sentinels) {
            let sentinels = service.sentinels.iter().map(settings::node).collect();
            self.control.set_sentinels(running.discovery, sentinels);
        }
        if returns || old.is_none_or(|old| old.learn_sentinels != service.learn_sentinels) {
            self.control.set_learn(running.discovery, service.learn_sentinels);
        }
        for to in listener_set::destinations(service) {
            if running.sets.iter().any(|set| set.to == to) {
                continue;
            }
            let (set, publisher) = running.route.set(to, service, limit, &config.log);
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
        let WiredService { sets, watch, route } = WiredService::new(service, limit, &config.log);
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
            limits: (limit, service.hold_timeout),
        });
        info!(service = service.name, "service added");
    }

    fn set_mut(&mut self, name: &str) -> Option<&mut RunningSet> {
        let mut sets = self.services.iter_mut().flat_map(|service| &mut service.sets);
        sets.find(|set| *set.name == *name)
    }

    /// Serves an address.
    fn open(
        &mut self,
        set: &str,
        configured: ListenAddr,
        (listener, duplicates): (NewListener, Sockets),
        workers: &mut Running,
    ) {
        let kept = Arc::clone(&self.sockets);
        let Some(set) = self.set_mut(set) else { return };
        let addr = listener.addr.clone();
        let id = workers.open(set.number, listener);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.add(duplicates, id, &set.name);
        info!(listener = %set.name, %addr, "listening");
        set.addresses.push(ServedAddress { id, configured, addr, is_managed: false });
    }

    /// Begins to close an address.
    fn close(
        &mut self,
        set: &str,
        id: ListenerId,
        moved: bool,
        config: &Config,
        workers: &Running,
    ) {
        // Before the workers empty the queue, see `Sockets`.
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        let Some(set) = self.set_mut(set) else { return };
        let closed = set.addresses.iter().position(|it| it.id == id);
        let Some(closed) = closed.map(|at| set.addresses.remove(at)) else { return };
        info!(listener = %set.name, addr = %closed.addr, moved, "closing listener");
        let Some(controller) = workers.close(id, moved, settings::drain(config)) else { return };
        set.closing += 1;
        let number = set.number;
        self.closing.insert(id, number);
        self.drains.spawn(async move { (id, controller.run().await) });
    }

    /// Waits for the end of the next listener that is being closed. Never returns while there is
    /// none. Cancel-safe.
    pub(crate) async fn next_closed(&mut self) -> (ListenerId, Summary) {
        loop {
            match self.drains.join_next().await {
                Some(Ok(closed)) => return closed,
                Some(Err(error)) => warn!(%error, "the drain of a listener has failed"),
                None => return std::future::pending().await,
            }
        }
    }

    /// The sessions of a listener have left, or were cut.
    pub(crate) fn closed(&mut self, id: ListenerId, summary: &Summary, workers: &mut Running) {
        workers.remove(id);
        let number = self.closing.remove(&id);
        let mut sets = self.services.iter_mut().flat_map(|service| &mut service.sets);
        if let Some(set) = sets.find(|set| Some(set.number) == number) {
            set.closing = set.closing.saturating_sub(1);
            let ended = &summary.session_counts;
            info!(
                listener = %set.name, drained = ended.asked, cut = ended.cut, open = ended.open,
                "listener closed"
            );
        }
        self.collect(workers);
    }

    /// Ends the listener sets and services that are not used any more.
    pub(crate) fn collect(&mut self, workers: &mut Running) {
        let control = &self.control;
        for service in &mut self.services {
            service.sets.retain(|set| {
                let is_used = set.closing > 0 || !set.addresses.is_empty();
                if !is_used {
                    workers.remove_service(set.number);
                    match set.to {
                        Destinations::Master => {}
                        Destinations::Replicas => control.set_replicas(service.discovery, None),
                        Destinations::Sentinels => {
                            control.set_sentinel_pool(service.discovery, None);
                        }
                    }
                }
                is_used
            });
        }
        self.services.retain(|service| {
            // A switchover in progress ends by itself, and its gate with it.
            let is_over =
                service.is_leaving && service.sets.is_empty() && !service.handle.is_switching();
            if is_over {
                control.remove(service.discovery);
                info!(service = service.name, "removed service has ended");
            }
            !is_over
        });
        self.report();
    }

    /// Whether a removed service waits only for its switchover to end.
    pub(crate) fn has_unused(&self) -> bool {
        self.services.iter().any(|service| service.is_leaving && service.sets.is_empty())
    }

    /// Changes the options of all sessions.
    pub(crate) fn tune(&self, config: &Config, limits: &[usize], workers: &Running) {
        for (name, options) in listener_set::options_of(config, limits) {
            let mut sets = self.services.iter().flat_map(|service| &service.sets);
            if let Some(set) = sets.find(|set| *set.name == *name) {
                workers.tune(set.number, options);
            }
        }
    }

    /// Sets the options of the listening sockets that exist before a reload.
    ///
    /// # Errors
    ///
    /// The listener set concerned, and why.
    pub(crate) fn retune(&self, config: &Config, limits: &[usize]) -> Result<(), String> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, options) in listener_set::options_of(config, limits) {
            sockets.retune(&name, &options).map_err(|error| {
                format!("cannot change the listening sockets of {name}: {error}")
            })?;
        }
        Ok(())
    }

    /// The order of the configuration; services that are being removed come last.
    fn sort_by(&mut self, config: &Config) {
        self.services.sort_by_key(|service| {
            let at = config.services.iter().position(|it| it.name == service.name);
            at.unwrap_or(usize::MAX)
        });
    }

    /// Publishes the list of services for reports.
    fn report(&self) {
        let reported = |service: &RunningService| {
            let set = |to| {
                let set = service.sets.iter().find(|set| set.to == to)?;
                let listen = set.addresses.iter().map(|it| it.addr.clone()).collect::<Vec<_>>();
                Some((set.counters.clone(), listen))
            };
            let writers = set(Destinations::Master);
            ReportedService {
                name: service.name.clone(),
                writers: writers.unwrap_or_else(|| (service.writers.clone(), Vec::new())),
                readers: set(Destinations::Replicas),
                sentinels: set(Destinations::Sentinels),
                discovery: service.handle.clone(),
                was_added: service.was_added,
                is_leaving: service.is_leaving,
                last_limits: service.limits,
                effective: self.effective.clone(),
            }
        };
        self.registry.set(self.services.iter().map(reported).collect());
    }
}

impl RunningSet {
    fn add(to: Destinations, set: proxy::Service, workers: &mut Running) -> Self {
        let name = Arc::clone(&set.name);
        let number = workers.add_service(set);
        let counters = workers.counters(number).unwrap_or_default();
        Self { to, name, number, counters, addresses: Vec::new(), closing: 0 }
    }
}

fn log_serving(service: &ReportedService) {
    let listen = |set: &Option<(proxy::ServiceCounters, Vec<ListenAddr>)>| {
        set.as_ref().map(|(_, listen)| format!("{listen:?}"))
    };
    let (replica_listen, sentinel_listen) = (listen(&service.readers), listen(&service.sentinels));
    info!(
        service = %service.name, listen = ?service.writers.1, replica_listen, sentinel_listen,
        "serving"
    );
}
