//! Workers: threads that each drive one event loop, and the handle on all of them.
//!
//! The loop is ours and small: poll the [tasks](crate::runtime::tasks) that have something to do, then ask
//! the [reactor](crate::runtime::reactor) which sockets have become ready. Timers are the
//! [clock](crate::runtime::timer_thread)'s.
//!
//! A worker ends when the drain is over, however many sessions it still has. Nothing else ends it;
//! a worker that does end early has failed, and whoever holds [`Running`] learns of it, because a
//! proxy with a worker less would refuse a part of its clients.
//!
//! Deliberately absent: work stealing, and pinning to cores, which the operator's tools do better.

use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use drain::{Drain, Phase};
use tokio::sync::{Notify, mpsc};

use crate::io::connection::Queue;
use crate::io::pipe;
use crate::listener::accept_loop;
use crate::listener::inbox::Inboxes;
use crate::listener::limits::{Limits, Places, ResourceShortage};
use crate::listener::{AcceptLoop, Bound};
use crate::options::Options;
use crate::runtime::heartbeat::{self, Heartbeat};
use crate::runtime::reactor::{self, Reactor};
use crate::runtime::tasks::{self, Home, Panicked, Tasks};
use crate::runtime::timer_thread::Clock;
use crate::service::Service;
use crate::session::dial_permits::DialPermits;
use crate::stats::{Block, Stats};

/// How many CPUs this process may use, by its affinity and its cgroup as the standard library sees
/// them: no more workers than that.
#[must_use]
pub fn worker_count() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Why the workers could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system gave no thread.
    #[error("cannot start the thread of worker {worker}")]
    Thread {
        /// Its number.
        worker: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The system gave no thread for the timers.
    #[error("cannot start the thread of the clock")]
    Clock {
        /// What the system said.
        source: io::Error,
    },
    /// The system gave no event loop.
    #[error("cannot create the event loop of worker {worker}; is the limit on open files too low?")]
    Loop {
        /// Its number.
        worker: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a worker ended before the drain was over.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A listening socket could not be given to the event loop.
    #[error("worker {worker} cannot serve its listening sockets")]
    Listener {
        /// The worker's number.
        worker: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The system does not tell any more what happens on its sockets.
    #[error("the event loop of worker {worker} failed")]
    Loop {
        /// The worker's number.
        worker: usize,
        /// What the system said.
        source: io::Error,
    },
    /// It panicked, or what accepts connections on it did.
    #[error("worker {worker} panicked; this is a bug")]
    Panicked {
        /// The worker's number.
        worker: usize,
    },
}

/// What a worker needs to know of a service.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) service: Arc<Service>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) held: Arc<Places>,
    /// The number of the one drain there can be, for the pushes that tell of it.
    pub(crate) moving: OnceLock<u64>,
}

/// The workers at work.
#[derive(Debug)]
pub struct Running {
    stats: Stats,
    shared: Vec<Arc<Shared>>,
    total: Arc<Places>,
    scarcity: ResourceShortage,
    splices: Result<(), io::Error>,
    heartbeats: Vec<Heartbeat>,
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<Result<(), WorkerError>>,
}

impl Running {
    /// Starts a thread for each worker of `bound`.
    pub(crate) fn start(bound: Bound, drain: &Drain) -> Result<Self, StartError> {
        let Bound { services, entrances, max_connections, .. } = bound;
        let stats =
            Stats::new(entrances.len(), services.iter().map(|service| Arc::clone(&service.name)));
        let (total, scarcity) = (Places::new(max_connections), ResourceShortage::default());
        let shared = |service: Arc<Service>| {
            let options = service.options.now();
            let (most, per_source) = (options.max_connections, options.max_connections_per_source);
            let limits = Limits::new(most, per_source, Arc::clone(&total), scarcity.clone());
            let held = Places::new(options.max_held);
            Arc::new(Shared { service, limits, held, moving: OnceLock::new() })
        };
        let shared: Vec<Arc<Shared>> = services.into_iter().map(shared).collect();
        let (end, ended) = mpsc::channel(entrances.len().max(1));
        let (heartbeats, threads) = (Vec::new(), Vec::new());
        let splices = pipe::refusal().map_or(Ok(()), Err);
        let copies = splices.is_err();
        let all = shared.clone();
        let mut running = Self {
            stats,
            shared: all,
            total: Arc::clone(&total),
            scarcity,
            splices,
            heartbeats,
            threads,
            ended,
        };
        let (clock, thread) = Clock::start().map_err(|source| StartError::Clock { source })?;
        running.threads.push(thread);
        // Every loop before any thread: a failure half-way would leave workers behind that nobody
        // stops.
        let looping = |worker| move |source| StartError::Loop { worker, source };
        let homes = (0..entrances.len()).map(|number| Home::new().map_err(looping(number)));
        let homes = homes.collect::<Result<Vec<_>, _>>()?;
        let rooms = Inboxes::new(homes.iter().map(Arc::clone));
        let mut workers = Vec::with_capacity(entrances.len());
        for ((number, entrances), home) in entrances.into_iter().enumerate().zip(homes) {
            let reactor = Reactor::new(home.bell()).map_err(looping(number))?;
            let heartbeat = Heartbeat::new();
            running.heartbeats.push(heartbeat.clone());
            let seats = shared.iter().enumerate().filter_map(|(index, shared)| {
                let block = running.stats.block(index, number)?;
                Some(WorkerContext {
                    shared: Arc::clone(shared),
                    block,
                    drain: drain.clone(),
                    news: Notify::new(),
                    turns: DialPermits::default(),
                })
            });
            let seats = seats.map(Arc::new).collect();
            let (drain, clock) = (drain.clone(), clock.clone());
            let rooms = rooms.of(number);
            workers.push(Worker {
                number,
                entrances,
                seats,
                heartbeat,
                drain,
                clock,
                home,
                rooms,
                reactor,
                copies,
            });
        }
        for worker in workers {
            let (number, end) = (worker.number, end.clone());
            let thread = std::thread::Builder::new()
                .name(format!("worker-{number}"))
                .spawn(move || {
                    let mut report = Report { worker: number, end, result: None };
                    report.result = Some(worker.run());
                })
                .map_err(|source| StartError::Thread { worker: number, source })?;
            running.threads.push(thread);
        }
        Ok(running)
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// One for each worker, in their order.
    #[must_use]
    pub fn heartbeats(&self) -> &[Heartbeat] {
        &self.heartbeats
    }

    /// The flag that keeps new clients out while memory is about to run out. Nobody raises it by
    /// himself.
    #[must_use]
    pub fn scarcity(&self) -> &ResourceShortage {
        &self.scarcity
    }

    /// Whether large values can be moved inside the kernel, as was tried at the start.
    ///
    /// # Errors
    ///
    /// Why not. They are copied then, whatever the [options](crate::Splice) say.
    pub fn splices(&self) -> Result<(), &io::Error> {
        self.splices.as_ref().copied()
    }

    /// Changes the settings of a service, by its number, while it runs: see
    /// [`LiveOptions`](crate::LiveOptions) for what that means to sessions that are there already.
    /// `max_connections_per_source` stays what it was.
    pub fn tune(&self, service: usize, options: Options) {
        let Some(shared) = self.shared.get(service) else { return };
        shared.limits.set_service(options.max_connections);
        shared.held.set_most(options.max_held);
        shared.service.options.set(options);
    }

    /// Changes the most client connections of all services together.
    pub fn allow(&self, total: usize) {
        self.total.set_most(total);
    }

    /// Client connections of all services now, and the most there may be.
    #[must_use]
    pub fn connections(&self) -> (usize, usize) {
        (self.total.taken(), self.total.most())
    }

    /// Returns when all workers have ended, which is when the drain is over; or when the first one
    /// fails. Safe to drop and to call again.
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
            // Its panic, if any, has been reported by its guard.
            drop(thread.join());
        }
        outcome
    }
}

/// Tells how a worker ended, even if that was by a panic.
struct Report {
    worker: usize,
    end: mpsc::Sender<Result<(), WorkerError>>,
    result: Option<Result<(), WorkerError>>,
}

impl Drop for Report {
    fn drop(&mut self) {
        let result =
            self.result.take().unwrap_or(Err(WorkerError::Panicked { worker: self.worker }));
        // There is a place for each worker; the receiver may be gone, and then nobody wants to
        // know.
        drop(self.end.try_send(result));
    }
}

/// What one worker has of one service: what it shares with the others, and its own counters.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    pub(crate) shared: Arc<Shared>,
    pub(crate) block: Arc<Block>,
    pub(crate) drain: Drain,
    /// Rung for the sessions of this seat when the points have moved, and when a drain asks and
    /// when it cuts. Each session waits in this one list instead of one for each kind of news, and
    /// no list is shared between workers.
    pub(crate) news: Notify,
    /// Who of its sessions may be on the way to a target.
    pub(crate) turns: DialPermits,
}

impl WorkerContext {
    /// Passes the news on. Each kind of news has a future that is created before the bell rings,
    /// and whoever waits for the bell creates his before he looks: so no news is lost on either
    /// step.
    async fn tell_the_news(self: Arc<Self>) {
        let Self { shared, drain, news, turns, .. } = &*self;
        let route = &shared.service.route;
        let mut next = Phase::Draining;
        loop {
            let moved = route.changed();
            let tuned = shared.service.options.changed();
            news.notify_waiters();
            tokio::select! {
                () = moved => turns.start_again(),
                () = tuned => {}
                () = drain.reached(next), if next <= Phase::Cutting => {
                    next = if next == Phase::Draining { Phase::Cutting } else { Phase::Stopped };
                }
            }
        }
    }
}

/// One worker before its thread runs.
struct Worker {
    number: usize,
    entrances: Vec<AcceptLoop>,
    seats: Vec<Arc<WorkerContext>>,
    heartbeat: Heartbeat,
    drain: Drain,
    clock: Clock,
    home: Arc<Home>,
    rooms: Inboxes,
    reactor: Reactor,
    /// Whether it is known that the system moves nothing through pipes.
    copies: bool,
}

impl Worker {
    fn run(self) -> Result<(), WorkerError> {
        let Self {
            number: worker,
            entrances,
            seats,
            heartbeat,
            drain,
            clock,
            home,
            rooms,
            reactor,
            copies,
        } = self;
        // In this order, so that the tasks go first and find what they need when they are dropped.
        let _clock = clock.enter();
        let _reactor = reactor::install(reactor);
        if copies {
            pipe::refuse();
        }
        let mut tasks = Tasks::new(home);
        for seat in &seats {
            tasks::spawn_vital(Arc::clone(seat).tell_the_news());
        }
        for entrance in entrances {
            let Some(seat) = seats.get(entrance.service) else { continue };
            // The door opens here and not in the task, so that a drain that begins at once does not
            // miss it.
            let door = drain.accept_permit();
            let queue = Queue::new(entrance.socket, &entrance.addr);
            let queue = queue.map_err(|source| WorkerError::Listener { worker, source })?;
            tracing::debug!(service = &*seat.shared.service.name, addr = %entrance.addr, worker, "accepting");
            let whither = (entrance.service, rooms.clone());
            tasks::spawn_vital(accept_loop::serve(queue, Arc::clone(seat), whither, door));
        }
        let end = drain.clone();
        tasks::spawn_vital(async move { end.reached(Phase::Stopped).await });
        let mut events = Vec::new();
        heartbeat.begin();
        while drain.phase() < Phase::Stopped {
            #[cfg(debug_assertions)]
            crate::runtime::stall::if_asked(worker);
            tasks.round().map_err(|Panicked| WorkerError::Panicked { worker })?;
            heartbeat.beat();
            let wait = if tasks.is_busy() { Duration::ZERO } else { heartbeat::BEAT };
            if reactor::turn(&mut events, wait)
                .map_err(|source| WorkerError::Loop { worker, source })?
            {
                tasks.answer_the_bell();
                for guest in rooms.guests() {
                    if let Some(seat) = seats.get(guest.service) {
                        accept_loop::welcome(guest, seat);
                    }
                }
            }
        }
        Ok(())
    }
}
