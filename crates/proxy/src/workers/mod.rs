//! Workers: threads that each run one event loop, and the handle to all of them.
//!
//! The loop is small: poll the [tasks](crate::runtime::tasks) that are ready, then ask the
//! [reactor](crate::runtime::reactor) which sockets have become ready. Timers run on the [timer
//! thread](crate::runtime::timers).
//!
//! A worker ends when the drain is over, whatever sessions it still has. A worker that ends earlier
//! has failed, and [`Running`] reports it, because a proxy with one worker less would refuse a part
//! of its clients.
//!
//! A service has any number of listeners, one per address. A listener is a group of the drain: it
//! is closed together with the sessions that came through it, while the service's other listeners
//! and all other services are not affected. Workers learn of changes by
//! [commands](crate::listener::inbox::WorkerCommand).
//!
//! There is no work stealing, and no pinning to cores, which the operator's tools do better.

mod session_visitor;
#[cfg(test)]
pub(crate) mod session_visitor_tests;

pub use crate::listener::inbox::SessionBatch;
pub use crate::workers::session_visitor::{KillError, NoAnswer, SessionVisits};

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use drain::{Controller, Drain, Phase, ShutdownSettings};
use tokio::sync::mpsc;

use crate::address::ListenerId;
use crate::context::{ListenerContext, ServiceContext, ServiceLogs, WorkerContext};
use crate::counter::Counter;
use crate::dial_permits::DialPermits;
use crate::io::pipe;
use crate::limits::{Limits, ResourceShortage, Slots};
use crate::listener::accept_loop::MAX_AWAITING_HEADER;
use crate::listener::inbox::{Inboxes, WorkerCommand};
use crate::listener::listen_socket::ListenSocket;
use crate::listener::{NewListener, accept_loop};
use crate::options::Options;
use crate::runtime::heartbeat::Heartbeat;
use crate::runtime::reactor::{self, Reactor};
use crate::runtime::tasks::{self, Panicked, Tasks, WorkerHandle};
use crate::runtime::timers::TimerThread;
use crate::service::Service;
use crate::silent_clients::SilentClients;
use crate::stats::{ServiceCounters, Stats};

/// The number of CPUs that this process may use, by its affinity and its cgroup as reported by the
/// standard library: the maximum number of workers.
#[must_use]
pub fn worker_count() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Why the workers could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system could not create a thread.
    #[error("cannot start the thread of worker {worker}")]
    Thread {
        /// The index of the worker.
        worker: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The system could not create the timer thread.
    #[error("cannot start the timer thread")]
    TimerThread {
        /// The system's error.
        source: io::Error,
    },
    /// The system could not create an event loop.
    #[error("cannot create the event loop of worker {worker}; check the limit on open files")]
    Loop {
        /// The index of the worker.
        worker: usize,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a worker ended before the drain was over.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Polling the sockets failed.
    #[error("the event loop of worker {worker} failed")]
    Loop {
        /// The index of the worker.
        worker: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The worker or one of its accept loops panicked.
    #[error("worker {worker} panicked; this is a bug")]
    Panicked {
        /// The index of the worker.
        worker: usize,
    },
}

/// A service that workers run.
#[derive(Debug)]
struct RunningService {
    shared: Arc<ServiceContext>,
    counters: ServiceCounters,
    /// One per worker.
    dial_permits: Vec<Arc<DialPermits>>,
}

/// The running workers.
#[derive(Debug)]
pub struct Running {
    /// The counters.
    pub stats: Stats,
    drain: Drain,
    inboxes: Inboxes,
    services: BTreeMap<usize, RunningService>,
    listeners: BTreeMap<ListenerId, Arc<ListenerContext>>,
    next_service: usize,
    next_listener: usize,
    total: Arc<Slots>,
    /// The flag that rejects new clients while memory is low. The data plane only reads it.
    pub shortage: ResourceShortage,
    /// Whether large values can be spliced, as tested at the start, or why not: then they are
    /// copied, whatever the [options](crate::Splice) say.
    pub splices: Result<(), io::Error>,
    /// The heartbeat of each worker, in order.
    pub heartbeats: Vec<Heartbeat>,
    /// The sessions.
    pub sessions: SessionVisits,
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<Result<(), WorkerError>>,
}

impl Running {
    /// Starts the workers, which serve nothing yet, for at most `max_connections` client
    /// connections of all services together.
    ///
    /// # Errors
    ///
    /// A thread or its event loop could not be created.
    pub fn start(
        workers: NonZeroUsize,
        max_connections: usize,
        drain: &Drain,
    ) -> Result<Self, StartError> {
        let workers = workers.get();
        let (end, ended) = mpsc::channel(workers);
        // Create every event loop before any thread: after a failure in between, there would be
        // workers that nothing stops.
        let looping = |worker| move |source| StartError::Loop { worker, source };
        let handles = (0..workers).map(|number| WorkerHandle::new().map_err(looping(number)));
        let handles = handles.collect::<Result<Vec<_>, _>>()?;
        let inboxes = Inboxes::new(handles.iter().map(Arc::clone));
        let splices = pipe::unsupported().map_or(Ok(()), Err);
        let splice_disabled = splices.is_err();
        let mut running = Self {
            stats: Stats::default(),
            drain: drain.clone(),
            inboxes: inboxes.clone(),
            services: BTreeMap::new(),
            listeners: BTreeMap::new(),
            next_service: 0,
            next_listener: 0,
            total: Slots::new(max_connections),
            shortage: ResourceShortage::default(),
            splices,
            heartbeats: Vec::new(),
            sessions: SessionVisits::new(inboxes.clone()),
            threads: Vec::new(),
            ended,
        };
        let (clock, thread) = TimerThread::start(handles.clone())
            .map_err(|source| StartError::TimerThread { source })?;
        running.threads.push(thread);
        let mut workers = Vec::with_capacity(handles.len());
        for (number, handle) in handles.into_iter().enumerate() {
            let reactor = Reactor::new(handle.wake_fd()).map_err(looping(number))?;
            let heartbeat = Heartbeat::new(Arc::clone(&handle));
            running.heartbeats.push(heartbeat.clone());
            workers.push(Worker {
                number,
                heartbeat,
                drain: drain.clone(),
                clock: clock.clone(),
                handle,
                inboxes: inboxes.of(number),
                reactor,
                splice_disabled,
                sessions: running.sessions.of(number),
            });
        }
        for worker in workers {
            let (number, end) = (worker.number, end.clone());
            let run = move || {
                let result = catch_unwind(AssertUnwindSafe(|| worker.run()));
                let result = result.unwrap_or(Err(WorkerError::Panicked { worker: number }));
                // The channel has capacity for each worker; the receiver may be gone.
                drop(end.try_send(result));
            };
            let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn(run);
            let thread = thread.map_err(|source| StartError::Thread { worker: number, source })?;
            running.threads.push(thread);
        }
        Ok(running)
    }

    /// Changes the maximum number of client connections of all services together.
    pub fn allow(&self, total: usize) {
        self.total.set_limit(total);
    }

    /// The client connections of all services, and their maximum.
    #[must_use]
    pub fn connections(&self) -> (usize, usize) {
        (self.total.taken(), self.total.limit())
    }

    /// Returns when all workers have ended, which is when the drain is over, or when one fails.
    /// Cancel-safe.
    ///
    /// # Errors
    ///
    /// A worker that ended early, and why.
    pub async fn ended(&mut self) -> Result<(), WorkerError> {
        while let Some(result) = self.ended.recv().await {
            result?;
        }
        Ok(())
    }

    /// Blocks until all workers have ended, which is when the drain is over.
    ///
    /// # Errors
    ///
    /// A worker that ended early, and why.
    pub fn join(mut self) -> Result<(), WorkerError> {
        let mut outcome = Ok(());
        while let Some(result) = self.ended.blocking_recv() {
            outcome = outcome.and(result);
        }
        for thread in self.threads {
            // Its panic, if any, has been reported through the channel.
            drop(thread.join());
        }
        outcome
    }

    /// Adds a service, which has no listeners yet, and returns its number. Numbers are never used
    /// again.
    pub fn add_service(&mut self, service: Service) -> usize {
        let workers = self.heartbeats.len();
        let options = service.options.now();
        let (most, per_source) = (options.max_connections, options.max_connections_per_source);
        let limits = Limits::new(most, per_source, Arc::clone(&self.total), self.shortage.clone());
        let counters = ServiceCounters::new(Arc::clone(&service.name), workers);
        self.stats.add(counters.clone());
        let shared = Arc::new(ServiceContext {
            service: Arc::new(service),
            limits,
            awaiting_header: Slots::new(MAX_AWAITING_HEADER),
            logs: ServiceLogs::default(),
        });
        let dial_permits = (0..workers).map(|_| Arc::default()).collect();
        let number = self.next_service;
        self.next_service += 1;
        self.services.insert(number, RunningService { shared, counters, dial_permits });
        number
    }

    /// Removes a service with its counters. All its listeners were [removed](Self::remove) before.
    pub fn remove_service(&mut self, number: usize) {
        if let Some(service) = self.services.remove(&number) {
            self.stats.remove(&service.counters);
        }
    }

    /// The counters of a service.
    #[must_use]
    pub fn counters(&self, number: usize) -> Option<ServiceCounters> {
        self.services.get(&number).map(|service| service.counters.clone())
    }

    /// Changes the options of a service while it runs. [`LiveOptions`](crate::LiveOptions) explains
    /// what that means for existing sessions.
    pub fn tune(&self, number: usize, options: Options) {
        let Some(service) = self.services.get(&number) else { return };
        service.shared.limits.set(options.max_connections, options.max_connections_per_source);
        service.shared.service.options.set(options);
    }

    /// Serves these sockets under a service. With `tls`, their clients speak TLS, as the options of
    /// the service say.
    pub fn open(&mut self, service: usize, listener: NewListener, tls: bool) -> ListenerId {
        let id = ListenerId::nth(self.next_listener);
        self.next_listener += 1;
        let context = ListenerContext::new(id, &self.drain, tls);
        self.attach(service, &context);
        for (worker, socket) in listener.sockets {
            // The permit is taken here and not on the worker, so that a drain that begins
            // immediately waits for the socket.
            let permit = context.drain.accept_permit();
            let command = WorkerCommand::Listen(id, socket, listener.addr.clone(), permit);
            self.inboxes.command(worker, command);
        }
        self.listeners.insert(id, context);
        id
    }

    /// Makes a listener known to every worker.
    fn attach(&self, service: usize, listener: &Arc<ListenerContext>) {
        let Some(service) = self.services.get(&service) else { return };
        for (worker, permits) in service.dial_permits.iter().enumerate() {
            let Some(counters) = service.counters.of_worker(worker) else { continue };
            let context = WorkerContext {
                shared: Arc::clone(&service.shared),
                counters,
                listener: Arc::clone(listener),
                events: Counter::default(),
                dial_permits: Arc::clone(permits),
                silent_clients: SilentClients::default(),
            };
            self.inboxes.command(worker, WorkerCommand::Attach(Arc::new(context)));
        }
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
        let listener = self.listeners.get(&id)?;
        if moved {
            listener.moved.store(true, Ordering::Release);
        }
        Some(listener.drain.close_group(settings))
    }

    /// Forgets a listener whose drain is over.
    pub fn remove(&mut self, id: ListenerId) {
        if self.listeners.remove(&id).is_some() {
            for worker in 0..self.heartbeats.len() {
                self.inboxes.command(worker, WorkerCommand::Detach(id));
            }
        }
    }

    /// Whether the sockets of a listener are closed on every worker.
    #[must_use]
    pub fn is_closed(&self, id: ListenerId) -> bool {
        self.listeners.get(&id).is_none_or(|it| it.drain.accept_permits() == 0)
    }
}

// The thread of one worker: its tasks, its listeners and its event loop.

/// A worker before its thread runs.
struct Worker {
    pub(super) number: usize,
    pub(super) heartbeat: Heartbeat,
    pub(super) drain: Drain,
    pub(super) clock: TimerThread,
    pub(super) handle: Arc<WorkerHandle>,
    pub(super) inboxes: Inboxes,
    pub(super) reactor: Reactor,
    /// Whether the system is known not to splice.
    pub(super) splice_disabled: bool,
    /// Lists and ends sessions.
    pub(super) sessions: SessionVisits,
}

impl Worker {
    pub(super) fn run(self) -> Result<(), WorkerError> {
        // In this order: the tasks are dropped first and still find what they need.
        let _clock = self.clock.handle.enter();
        reactor::install(self.reactor);
        if self.splice_disabled {
            pipe::disable();
        }
        let (worker, drain) = (self.number, self.drain);
        let mut tasks = Tasks::new(self.handle);
        let mut listeners = Listeners { by_id: BTreeMap::new(), worker, inboxes: self.inboxes };
        let end = drain.clone();
        tasks::spawn_essential(async move { end.reached(Phase::Stopped).await });
        let (mut events, mut visits) = (reactor::no_events(), false);
        self.heartbeat.begin();
        while drain.phase() < Phase::Stopped {
            #[cfg(debug_assertions)]
            crate::runtime::heartbeat::stall_if_asked(worker);
            tasks.run_round().map_err(|Panicked| WorkerError::Panicked { worker })?;
            // Without a limit of its own: the next beat ends it.
            let wait = (visits || tasks.is_busy()).then_some(&reactor::NO_WAIT);
            let is_woken = reactor::poll_events(&mut events, wait, |key| tasks.wake(key))
                .map_err(|source| WorkerError::Loop { worker, source })?;
            if is_woken {
                // Not in every turn, which would read the clock for each event of a calm worker.
                self.heartbeat.beat();
                tasks.collect_remote_wakes();
                for command in listeners.inboxes.commands() {
                    listeners.execute(command);
                }
            }
            if is_woken || visits {
                visits = self.sessions.run(&mut tasks);
            }
        }
        Ok(())
    }
}

/// The listeners of one worker.
struct Listeners {
    by_id: BTreeMap<ListenerId, Arc<WorkerContext>>,
    worker: usize,
    inboxes: Inboxes,
}

impl Listeners {
    /// Does what another thread has sent.
    #[cold]
    fn execute(&mut self, command: WorkerCommand) {
        match command {
            WorkerCommand::Attach(context) => {
                tasks::spawn_essential(Arc::clone(&context).forward_events());
                self.by_id.insert(context.listener.id, context);
            }
            WorkerCommand::Listen(id, socket, addr, permit) => {
                let Some(context) = self.by_id.get(&id) else { return };
                let (service, worker) = (&*context.shared.service.name, self.worker);
                let listen_socket = match ListenSocket::new(socket, &addr) {
                    Ok(listen_socket) => listen_socket,
                    Err(error) => {
                        tracing::error!(
                            worker, %error,
                            "cannot serve a listening socket, other workers accept its clients"
                        );
                        return;
                    }
                };
                tracing::debug!(service, %addr, worker, "accepting connections");
                tasks::spawn_essential(accept_loop::serve(
                    listen_socket,
                    Arc::clone(context),
                    self.inboxes.clone(),
                    permit,
                ));
            }
            WorkerCommand::Detach(id) => drop(self.by_id.remove(&id)),
            WorkerCommand::Serve(id, client, _permit) => {
                if let Some(context) = self.by_id.get(&id)
                    && accept_loop::start_session(client, context).is_err()
                {
                    context.counters.accept_errors.increment();
                }
            }
        }
    }
}
