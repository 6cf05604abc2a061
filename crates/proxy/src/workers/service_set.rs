//! The services and listeners of the running workers, which change with reloads.
//!
//! A service has any number of listeners, one per address. A listener is a group of the drain: it
//! is closed together with the sessions that came through it, while the service's other listeners
//! and all other services are not affected. Workers learn of changes by
//! [commands](crate::listener::inbox::WorkerCommand), which cannot fail except for a socket that
//! the kernel refuses to poll.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use drain::{Controller, Drain, ShutdownSettings};
use tokio::sync::Notify;

use crate::address::ListenAddr;
use crate::address::ListenerId;
use crate::context::{ListenerContext, ServiceContext, SessionEvents, WorkerContext};
use crate::dial_permits::DialPermits;
use crate::limits::{Limits, Slots};
use crate::listener::WorkerListener;
use crate::listener::inbox::{Inboxes, WorkerCommand};
use crate::listener::reload::NewListener;
use crate::listener::screening::MAX_AWAITING_HEADER;
use crate::options::Options;
use crate::refused_replays::{LimitedClients, RefusedReplays};
use crate::rejection::RejectionLog;
use crate::service::Service;
use crate::silent_clients::SilentClients;
use crate::stats::ServiceCounters;
use crate::target_tls::TargetTlsLog;
use crate::workers::Running;

/// A service that workers run.
#[derive(Debug)]
struct RunningService {
    shared: Arc<ServiceContext>,
    counters: ServiceCounters,
    /// One per worker.
    dial_permits: Vec<Arc<DialPermits>>,
}

/// The services and listeners of all workers.
#[derive(Debug)]
pub(super) struct ServiceSet {
    services: BTreeMap<usize, RunningService>,
    listeners: BTreeMap<ListenerId, Arc<ListenerContext>>,
    next_service: usize,
    next_listener: usize,
    workers: usize,
    drain: Drain,
    inboxes: Inboxes,
}

impl ServiceSet {
    pub(super) fn new(workers: usize, drain: Drain, inboxes: Inboxes) -> Self {
        let (services, listeners) = (BTreeMap::new(), BTreeMap::new());
        let (next_service, next_listener) = (0, 0);
        Self { services, listeners, next_service, next_listener, workers, drain, inboxes }
    }

    fn add(&mut self, service: RunningService) -> usize {
        let number = self.next_service;
        self.next_service += 1;
        self.services.insert(number, service);
        number
    }

    /// The commands with which each worker begins: the listeners that were bound at the start.
    pub(super) fn first(
        &mut self,
        bound: Vec<Vec<WorkerListener>>,
        tls: &BTreeSet<ListenerId>,
    ) -> Vec<Vec<WorkerCommand>> {
        let mut commands: Vec<Vec<WorkerCommand>> = bound.iter().map(|_| Vec::new()).collect();
        for (worker, listeners) in bound.into_iter().enumerate() {
            for WorkerListener { id, service, socket, addr } in listeners {
                if !self.listeners.contains_key(&id) {
                    for (command, commands) in
                        self.attach(id, service, tls.contains(&id)).into_iter().zip(&mut commands)
                    {
                        commands.push(command);
                    }
                    self.next_listener += 1;
                }
                if let Some(commands) = commands.get_mut(worker) {
                    commands.extend(self.listen(id, socket, addr));
                }
            }
        }
        commands
    }

    /// Creates a listener, and a command for each worker.
    fn attach(&mut self, id: ListenerId, service: usize, tls: bool) -> Vec<WorkerCommand> {
        let listener = ListenerContext::new(id, &self.drain, tls);
        self.listeners.insert(id, Arc::clone(&listener));
        let Some(service) = self.services.get(&service) else { return Vec::new() };
        let on_worker = |(worker, permits): (usize, &Arc<DialPermits>)| {
            Some(WorkerCommand::Attach(Arc::new(WorkerContext {
                shared: Arc::clone(&service.shared),
                counters: service.counters.of_worker(worker)?,
                listener: Arc::clone(&listener),
                drain: listener.drain.clone(),
                session_notify: Notify::new(),
                events: SessionEvents::default(),
                dial_permits: Arc::clone(permits),
                silent_clients: SilentClients::default(),
            })))
        };
        service.dial_permits.iter().enumerate().filter_map(on_worker).collect()
    }

    /// The permit is taken here and not on the worker, so that a drain that begins immediately
    /// waits for the socket.
    fn listen(&self, id: ListenerId, socket: OwnedFd, addr: ListenAddr) -> Option<WorkerCommand> {
        let permit = self.listeners.get(&id)?.drain.accept_permit();
        Some(WorkerCommand::Listen(id, socket, addr, permit))
    }
}

impl Running {
    /// Adds a service, which has no listeners yet, and returns its number. Numbers are never used
    /// again; those of the services given to `Bound` count from 0 in their order.
    pub fn add_service(&mut self, service: Service) -> usize {
        self.add_shared(Arc::new(service))
    }

    pub(super) fn add_shared(&mut self, service: Arc<Service>) -> usize {
        let workers = self.services.workers;
        let options = service.options.now();
        let (most, per_source) = (options.max_connections, options.max_connections_per_source);
        let limits = Limits::new(most, per_source, Arc::clone(&self.total), self.shortage.clone());
        let held = Slots::new(options.max_held);
        let counters = ServiceCounters::new(Arc::clone(&service.name), workers);
        self.stats.add(counters.clone());
        let shared = Arc::new(ServiceContext {
            service,
            limits,
            held,
            awaiting_header: Slots::new(MAX_AWAITING_HEADER),
            rejection_log: RejectionLog::default(),
            refusal_log: Default::default(),
            target_tls_log: TargetTlsLog::default(),
            refused_replays: RefusedReplays::default(),
            limited_clients: LimitedClients::default(),
        });
        let dial_permits = (0..workers).map(|_| Arc::default()).collect();
        self.services.add(RunningService { shared, counters, dial_permits })
    }

    /// Removes a service with its counters. All its listeners were [removed](Self::remove) before.
    pub fn remove_service(&mut self, number: usize) {
        if let Some(service) = self.services.services.remove(&number) {
            self.stats.remove(&service.counters);
        }
    }

    /// The counters of a service.
    #[must_use]
    pub fn counters(&self, number: usize) -> Option<ServiceCounters> {
        self.services.services.get(&number).map(|service| service.counters.clone())
    }

    /// Changes the options of a service while it runs. [`LiveOptions`](crate::LiveOptions) explains
    /// what that means for existing sessions.
    pub fn tune(&self, number: usize, options: Options) {
        let Some(service) = self.services.services.get(&number) else { return };
        service.shared.limits.set(options.max_connections, options.max_connections_per_source);
        service.shared.held.set_limit(options.max_held);
        service.shared.service.options.set(options);
    }

    /// Serves these sockets under a service. With `tls`, their clients speak TLS, as the options of
    /// the service say.
    pub fn open(&mut self, service: usize, listener: NewListener, tls: bool) -> ListenerId {
        let set = &mut self.services;
        let id = ListenerId::nth(set.next_listener);
        set.next_listener += 1;
        for (worker, command) in set.attach(id, service, tls).into_iter().enumerate() {
            set.inboxes.command(worker, command);
        }
        for (worker, socket) in listener.sockets {
            if let Some(command) = set.listen(id, socket, listener.addr.clone()) {
                set.inboxes.command(worker, command);
            }
        }
        id
    }

    /// Closes a listener: its queue is emptied, and its sessions leave by the plan of a shutdown.
    /// The controller has to be run to its end; then the listener is [removed](Self::remove). With
    /// `moved`, another listener accepts on the same sockets, and the queue is left to it.
    pub fn close(
        &self,
        id: ListenerId,
        moved: bool,
        settings: ShutdownSettings,
    ) -> Option<Controller> {
        let listener = self.services.listeners.get(&id)?;
        if moved {
            listener.leave_queue();
        }
        Some(listener.drain.close_group(settings))
    }

    /// Forgets a listener whose drain is over.
    pub fn remove(&mut self, id: ListenerId) {
        if self.services.listeners.remove(&id).is_some() {
            for worker in 0..self.services.workers {
                self.services.inboxes.command(worker, WorkerCommand::Detach(id));
            }
        }
    }

    /// Whether the sockets of a listener are closed on every worker.
    #[must_use]
    pub fn is_closed(&self, id: ListenerId) -> bool {
        self.services.listeners.get(&id).is_none_or(|it| it.drain.accept_permits() == 0)
    }
}
