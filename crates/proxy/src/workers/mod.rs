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
//! There is no work stealing, and no pinning to cores, which the operator's tools do better.

mod service_set;
mod session_visitor;
#[cfg(test)]
pub(crate) mod session_visitor_tests;
mod worker;

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;

use drain::Drain;
use tokio::sync::mpsc;

use crate::address::ListenerId;
use crate::io::pipe;
use crate::limits::{ResourceShortage, Slots};
use crate::listener::Bound;
use crate::listener::inbox::Inboxes;
use crate::runtime::heartbeat::{BEAT_INTERVAL, Heartbeat};
use crate::runtime::reactor::Reactor;
use crate::runtime::tasks::WorkerHandle;
use crate::runtime::timers::TimerThread;
use crate::stats::Stats;
use crate::workers::service_set::ServiceSet;
use crate::workers::worker::{ExitReport, Worker};

pub use crate::workers::session_visitor::{KillError, NoAnswer, SessionBatch, SessionVisits};

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
    /// A listening socket could not be registered with the event loop.
    #[error("worker {worker} cannot serve its listening sockets")]
    Listener {
        /// The index of the worker.
        worker: usize,
        /// The system's error.
        source: io::Error,
    },
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

impl Bound {
    /// Makes the clients of a listener speak TLS, as the options of its service say.
    pub fn set_tls(&mut self, id: ListenerId) {
        self.tls.insert(id);
    }

    /// Starts the workers and begins to accept.
    ///
    /// # Errors
    ///
    /// A thread or its event loop could not be created.
    pub fn serve(self, drain: &Drain) -> Result<Running, StartError> {
        Running::start(self, drain)
    }
}

/// The running workers.
#[derive(Debug)]
pub struct Running {
    stats: Stats,
    services: ServiceSet,
    total: Arc<Slots>,
    shortage: ResourceShortage,
    splices: Result<(), io::Error>,
    heartbeats: Vec<Heartbeat>,
    sessions: SessionVisits,
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<Result<(), WorkerError>>,
}

impl Running {
    /// Starts a thread for each worker of `bound`.
    pub(crate) fn start(bound: Bound, drain: &Drain) -> Result<Self, StartError> {
        let Bound { services, listeners, max_connections, tls, .. } = bound;
        let (total, shortage) = (Slots::new(max_connections), ResourceShortage::default());
        let (end, ended) = mpsc::channel(listeners.len().max(1));
        // Create every event loop before any thread: after a failure in between, there would be
        // workers that nothing stops.
        let looping = |worker| move |source| StartError::Loop { worker, source };
        let handles =
            (0..listeners.len()).map(|number| WorkerHandle::new().map_err(looping(number)));
        let handles = handles.collect::<Result<Vec<_>, _>>()?;
        let inboxes = Inboxes::new(handles.iter().map(Arc::clone));
        let splices = pipe::unsupported().map_or(Ok(()), Err);
        let splice_disabled = splices.is_err();
        let mut running = Self {
            stats: Stats::default(),
            services: ServiceSet::new(listeners.len(), drain.clone(), inboxes.clone()),
            total,
            shortage,
            splices,
            heartbeats: Vec::new(),
            sessions: SessionVisits::new(handles.iter()),
            threads: Vec::new(),
            ended,
        };
        for service in services {
            running.add_shared(service);
        }
        let (clock, thread) =
            TimerThread::start().map_err(|source| StartError::TimerThread { source })?;
        running.threads.push(thread);
        let commands = running.services.first(listeners, &tls);
        let mut workers = Vec::with_capacity(commands.len());
        for ((number, commands), handle) in commands.into_iter().enumerate().zip(handles) {
            let reactor =
                Reactor::ticking(handle.wake_fd(), BEAT_INTERVAL).map_err(looping(number))?;
            let heartbeat = Heartbeat::new(Arc::clone(&handle));
            running.heartbeats.push(heartbeat.clone());
            let (drain, clock) = (drain.clone(), clock.clone());
            let inboxes = inboxes.of(number);
            workers.push(Worker {
                number,
                commands,
                heartbeat,
                drain,
                clock,
                handle,
                inboxes,
                reactor,
                splice_disabled,
                visitor: running.sessions.visitor(number),
            });
        }
        for worker in workers {
            running.spawn(worker, end.clone())?;
        }
        Ok(running)
    }

    /// Starts the thread of a worker.
    fn spawn(
        &mut self,
        worker: Worker,
        end: mpsc::Sender<Result<(), WorkerError>>,
    ) -> Result<(), StartError> {
        let number = worker.number;
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || {
                let mut report = ExitReport { worker: number, end, result: None };
                report.result = Some(worker.run());
            })
            .map_err(|source| StartError::Thread { worker: number, source })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The heartbeat of each worker, in order.
    #[must_use]
    pub fn heartbeats(&self) -> &[Heartbeat] {
        &self.heartbeats
    }

    /// The sessions.
    #[must_use]
    pub fn sessions(&self) -> &SessionVisits {
        &self.sessions
    }

    /// The flag that rejects new clients while memory is low. The data plane only reads it.
    #[must_use]
    pub fn resource_shortage(&self) -> &ResourceShortage {
        &self.shortage
    }

    /// Whether large values can be spliced, as tested at the start.
    ///
    /// # Errors
    ///
    /// Why not. They are copied then, whatever the [options](crate::Splice) say.
    pub fn splices(&self) -> Result<(), &io::Error> {
        self.splices.as_ref().copied()
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
            // Its panic, if any, has been reported by `ExitReport`.
            drop(thread.join());
        }
        outcome
    }
}
