//! The services that run: applies a reload to the listeners, the data plane and discovery.
//!
//! The start begins all services, and serves them when everything is ready. A reload is
//! [prepared](prepare) first, which may fail; applying it cannot. Each listening address is closed
//! by itself, with the sessions that came through it, by the plan of a shutdown (`drain`); other
//! addresses and services are not touched. A service that was removed keeps its discovery, its
//! metrics and its place in the status until its last session has left. If it is added again
//! meanwhile, it continues with them.
//!
//! Addresses of a service manager's sockets are configured there; a reload keeps them.

mod prepare;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use drain::Summary;
use proxy::{ListenAddr, ListenerId, NewListener, Running, ServerCommands, Sockets};
use sentinel::DiscoveryControl;
use target::TargetWriter;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::admin::effective_config::ServiceSettings;
use crate::admin::service_registry::{ListenerReport, ReportedService, ServiceRegistry};
use crate::config::{Config, ServiceConfig};
use crate::logging;
use crate::process::listener_set::{self, Destinations, ListenerSet, ServiceRoute, SetPublisher};
use crate::process::service_set::prepare::PreparedReload;
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
    /// The sockets of all listeners.
    pub(crate) sockets: Arc<Mutex<Sockets>>,
    pub(crate) registry: ServiceRegistry,
    pub(crate) tls: TlsServers,
    /// The addresses of the admin server.
    admin: Vec<SocketAddr>,
    workers: NonZeroUsize,
    /// Listeners that are being closed, with their sets' numbers.
    closing: BTreeMap<ListenerId, usize>,
    drains: JoinSet<(ListenerId, Summary)>,
}

/// An address with its sockets, which no service uses yet.
pub(crate) struct BoundListener {
    pub(crate) set: ListenerSet,
    /// As configured: the port may be 0.
    pub(crate) configured: ListenAddr,
    pub(crate) is_managed: bool,
    pub(crate) listener: NewListener,
    /// The duplicates for another process and for later reloads.
    pub(crate) duplicates: Sockets,
}

impl BoundListener {
    /// Duplicates the sockets of a new listener.
    ///
    /// # Errors
    ///
    /// If the process has no more files.
    pub(crate) fn new(
        set: &ListenerSet,
        configured: ListenAddr,
        is_managed: bool,
        listener: NewListener,
    ) -> io::Result<Self> {
        let duplicates = Sockets::duplicate_new(&listener)?;
        Ok(Self { set: set.clone(), configured, is_managed, listener, duplicates })
    }
}

impl ServiceSet {
    /// No services yet.
    pub(crate) fn new(
        config: &Config,
        control: DiscoveryControl,
        tls: TlsServers,
        admin: Vec<SocketAddr>,
    ) -> Self {
        Self {
            services: Vec::new(),
            control,
            sockets: Arc::default(),
            registry: ServiceRegistry::default(),
            tls,
            admin,
            workers: settings::workers(config),
            closing: BTreeMap::new(),
            drains: JoinSet::new(),
        }
    }

    /// Begins the discovery of the services with which the process starts, in the order of the
    /// configuration. They have no listeners yet.
    pub(crate) fn begin(&mut self, config: &Config, limits: &[usize], workers: &mut Running) {
        for (service, limit) in config.services.iter().zip(limits) {
            self.update_service(service, None, *limit, config, false, workers);
        }
        self.control.apply();
        self.report();
    }

    /// Serves clients on the addresses of the start.
    pub(crate) fn serve(&mut self, listeners: Vec<BoundListener>, workers: &mut Running) {
        for listener in listeners {
            self.open(listener, workers);
        }
        self.report();
        for service in self.registry.list() {
            log_serving(&service);
        }
    }

    /// The names of the services that are being removed.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = &str> {
        self.services.iter().filter(|it| it.is_leaving).map(|it| it.name.as_str())
    }

    /// Applies a prepared reload. `before` is the configuration in force until now.
    pub(crate) fn apply(
        &mut self,
        prepared: PreparedReload,
        before: &Config,
        config: &Config,
        limits: &[usize],
        workers: &mut Running,
    ) {
        let PreparedReload { wanted, plan, opened } = prepared;
        // Named before the sets change: the plan counts these.
        let running: Vec<(Arc<str>, ListenerId)> = self
            .services
            .iter()
            .flat_map(|service| &service.sets)
            .flat_map(|set| set.addresses.iter().map(|it| (Arc::clone(&set.name), it.id)))
            .collect();
        self.announce_own(&wanted, &opened);
        for (service, limit) in config.services.iter().zip(limits) {
            let old = before.services.iter().find(|it| it.name == service.name);
            self.update_service(service, old, *limit, config, true, workers);
        }
        for service in &mut self.services {
            let is_configured = config.services.iter().any(|it| it.name == service.name);
            if !is_configured && !std::mem::replace(&mut service.is_leaving, true) {
                info!(service = service.name, "service removed, its sessions leave");
                service.route.discovery.set_service_removed(true);
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
        for listener in opened {
            info!(listener = %listener.set.name, addr = %listener.listener.addr, "listening");
            self.open(listener, workers);
        }
        for (set, id, moved) in closing.iter().filter(|(.., moved)| !*moved) {
            self.close(set, *id, *moved, config, workers);
        }
        self.sort_by(config);
        self.collect_unused(workers);
    }

    fn announce_own(&self, wanted: &[(ListenerSet, ListenAddr)], opened: &[BoundListener]) {
        let new = opened.iter().filter_map(|it| it.listener.addr.tcp());
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
        is_reload: bool,
        workers: &mut Running,
    ) {
        let position = self.services.iter().position(|it| it.name == service.name);
        let position = position.unwrap_or_else(|| {
            if is_reload {
                info!(service = service.name, "service added");
            }
            let begun = RunningService::begin(service, limit, &mut self.control, is_reload);
            self.services.push(begun);
            self.services.len() - 1
        });
        let Some(running) = self.services.get_mut(position) else { return };
        let returns = std::mem::replace(&mut running.is_leaving, false);
        if returns {
            running.route.discovery.set_service_removed(false);
        }
        if returns || old.is_some_and(|old| old.sentinels != service.sentinels) {
            self.control.set_sentinels(running.discovery, service.sentinels.clone());
        }
        for to in listener_set::destinations(service) {
            if running.sets.iter().any(|set| set.to == to) {
                continue;
            }
            let (set, publisher) = running.route.set(to, service, limit, &config.log, &self.tls);
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

    /// Changes the options of all sessions and the settings of discovery, which applies these
    /// together with everything that [`Self::apply`] has changed.
    pub(crate) fn tune(&mut self, config: &Config, limits: &[usize], workers: &Running) {
        for (name, options) in listener_set::options_of(config, limits, &self.tls) {
            let mut sets = self.services.iter().flat_map(|service| &service.sets);
            if let Some(set) = sets.find(|set| *set.name == *name) {
                workers.tune(set.number, options);
            }
        }
        self.control.set_timeouts(settings::sentinel_timeouts(&config.services));
        for (service, limit) in config.services.iter().zip(limits) {
            let mut all = self.services.iter_mut();
            let Some(running) = all.find(|it| it.name == service.name) else { continue };
            running.settings = ServiceSettings::of(service, *limit);
            let (rules, empty) = (listener_set::rules(service), service.replicas.empty);
            self.control.set_replica_rules(running.discovery, rules, empty);
            self.control.change(running.discovery, settings::discovery_settings(service));
        }
        self.control.apply();
        self.report();
    }

    /// Sets the options of the listening sockets that exist before a reload, or those of the
    /// configuration `before` again if the system refuses one.
    ///
    /// # Errors
    ///
    /// The listener set concerned, and why.
    pub(crate) fn retune(
        &self,
        config: &Config,
        limits: &[usize],
        before: &Config,
    ) -> Result<(), String> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let set = |config: &Config, limits: &[usize]| {
            let mut all = listener_set::options_of(config, limits, &self.tls).into_iter();
            all.try_for_each(|(name, options)| {
                sockets.retune(&name, &options).map_err(|error| {
                    format!("cannot change the listening sockets of {name}: {error}")
                })
            })
        };
        let result = set(config, limits);
        if result.is_err() {
            // These were accepted once. The limits do not concern the listening sockets.
            let _ = set(before, &vec![0; before.services.len()]);
        }
        result
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
        self.collect_unused(workers);
        self.control.apply();
    }

    /// As [`Self::collect`], except that discovery applies it with the rest of a reload.
    fn collect_unused(&mut self, workers: &mut Running) {
        let control = &mut self.control;
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
            let is_over = service.is_leaving
                && service.sets.is_empty()
                && !service.route.discovery.is_switching();
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
                discovery: service.route.discovery.clone(),
                was_added: service.was_added,
                is_leaving: service.is_leaving,
                settings: service.settings,
            }
        };
        self.registry.set(self.services.iter().map(reported).collect());
    }

    /// The listener set of this name.
    fn set_mut(&mut self, name: &str) -> Option<&mut RunningSet> {
        let mut sets = self.services.iter_mut().flat_map(|service| &mut service.sets);
        sets.find(|set| *set.name == *name)
    }

    /// Serves an address.
    fn open(&mut self, bound: BoundListener, workers: &mut Running) {
        let BoundListener { set: into, configured, is_managed, listener, duplicates } = bound;
        let kept = Arc::clone(&self.sockets);
        let Some(set) = self.set_mut(&into.set) else { return };
        let (addr, tls) = (listener.addr.clone(), into.tls);
        let id = workers.open(set.number, listener, tls);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.add(duplicates, id, &set.name);
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

impl RunningService {
    /// Begins the discovery of a service.
    fn begin(
        service: &ServiceConfig,
        limit: usize,
        control: &mut DiscoveryControl,
        was_added: bool,
    ) -> Self {
        let (writer, target) = TargetWriter::new();
        let commands = ServerCommands::default();
        let (number, handle) = control.add(settings::discovery(service, writer, commands.clone()));
        Self {
            name: service.name.clone(),
            discovery: number,
            route: ServiceRoute { target, discovery: handle, commands },
            sets: Vec::new(),
            writers: proxy::ServiceCounters::default(),
            was_added,
            is_leaving: false,
            settings: ServiceSettings::of(service, limit),
        }
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

fn log_serving(service: &ReportedService) {
    let listen = |(_, listen): &ListenerReport| logging::list(listen);
    let (replica_listen, sentinel_listen) =
        (service.readers.as_ref().map(listen), service.sentinels.as_ref().map(listen));
    let listen = listen(&service.writers);
    info!(service = %service.name, listen, replica_listen, sentinel_listen, "serving");
}
