//! The process itself, from a checked configuration to its exit code.
//!
//! Bind early, serve late: every address is bound before anything is started, so that a fault is told at the start and by a
//! person's name for it. Then three kinds of threads share the work and never wait for each other: this one for signals,
//! discovery and the drain; the workers for the sessions; the probe server for whoever asks.
//!
//! Deliberately absent: reading flags and files (that is `cli` and `config`), and printing.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drain::{Drain, Summary};
use proxy::{Bound, Options, Running, Scarcity};
use route::Points;
use sentinel::{Discovery, Handle};
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use crate::config::{Config, Connections};
use crate::control::Control;
use crate::descriptors::{Files, TooFewFiles};
use crate::memory::{self, Memory};
use crate::metrics::Metrics;
use crate::report::{Report, Watched};
use crate::room;
use crate::signals::{Asked, Signals};
use crate::telemetry::Telemetry;
use crate::watch;

/// Threads that may wait for name servers at a time.
const LOOKUP_THREADS: usize = 8;

/// How often the memory in use is looked at. A flood of clients that each cost some KiB does not eat a tenth of it meanwhile.
const MEMORY_LOOK: Duration = Duration::from_millis(100);

/// Why a run did not start, or ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Too few open files are allowed.
    #[error(transparent)]
    Files(#[from] TooFewFiles),
    /// An address for clients cannot be bound.
    #[error(transparent)]
    Listen(#[from] proxy::BindError),
    /// An address of the admin server cannot be bound.
    #[error(transparent)]
    Admin(#[from] probe::BindError),
    /// The system gives no thread, runtime or signal handler.
    #[error("the system does not let the process start its parts")]
    System(#[from] std::io::Error),
    /// A worker cannot be started.
    #[error(transparent)]
    Workers(#[from] proxy::StartError),
    /// A worker ended before its time.
    #[error(transparent)]
    Worker(#[from] proxy::WorkerError),
    /// The admin server cannot be started.
    #[error(transparent)]
    Probe(#[from] probe::StartError),
    /// A part without which the process is of no use has ended.
    #[error("{0} has ended unexpectedly; see the log")]
    Lost(&'static str),
}

/// Discovery's ear for the data plane.
struct Ear(Handle);

/// Runs until told to stop.
///
/// # Errors
///
/// What kept the process from starting, or made it end early.
pub fn run(config: &Config) -> Result<ExitCode, RunError> {
    let telemetry = Telemetry::start(&config.log);
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let memory = Memory::find(&memory::read);
    let connections = make_room(config, memory.as_ref())?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(LOOKUP_THREADS).build()?;
    let outcome = runtime.block_on(async { Process::start(config, &connections, memory, &telemetry)?.serve().await });
    // A look-up that hangs in the system's resolver must not hold up the end.
    runtime.shutdown_background();
    if let Err(error) = &outcome {
        error!("{error}");
    }
    outcome.map(|summary| {
        tell(&summary);
        ExitCode::SUCCESS
    })
}

/// Decides how many connections there may be, and asks the system for the open files they need.
fn make_room(config: &Config, memory: Option<&Memory>) -> Result<Connections, TooFewFiles> {
    let files = Files::allowed(config, workers(config).get());
    let room = room::plan(config, memory, files)?;
    for warning in &room.warnings {
        warn!("{warning}");
    }
    files.raise(room.connections.total)?;
    if let Some(memory) = memory {
        info!(max_connections = room.connections.total, %memory, "room for connections");
    }
    Ok(room.connections)
}

fn workers(config: &Config) -> NonZeroUsize {
    NonZeroUsize::new(config.process.workers).unwrap_or_else(proxy::worker_count)
}

/// Keeps new clients out while memory is about to run out. Never returns.
async fn watch_memory(memory: Option<Memory>, scarcity: Scarcity) {
    let Some(memory) = memory.filter(Memory::is_enforced) else { return std::future::pending().await };
    let mut timer = tokio::time::interval(MEMORY_LOOK);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let was = scarcity.is_up();
        let is = memory.is_scarce(&memory::read, was);
        if is != was {
            scarcity.set(is);
            if is {
                warn!(%memory, "memory is about to run out: new clients are refused");
            } else {
                info!("there is memory again: clients are let in");
            }
        }
    }
}

fn tell(summary: &Summary) {
    let ended = &summary.since_order;
    info!(
        left = ended.left,
        asked = ended.asked,
        cut = ended.cut,
        open = ended.open,
        clean = summary.is_clean(),
        total_ms = summary.total.as_millis(),
        leaving_ms = summary.leaving.as_millis(),
        draining_ms = summary.draining.as_millis(),
        "stopped"
    );
}

/// Everything that runs.
struct Process {
    signals: Signals,
    drain: Drain,
    controller: tokio::task::JoinHandle<Summary>,
    discovery: tokio::task::JoinHandle<()>,
    memory: tokio::task::JoinHandle<()>,
    workers: Running,
    probe: probe::Handle,
}

impl Process {
    fn start(
        config: &Config,
        connections: &Connections,
        memory: Option<Memory>,
        telemetry: &Telemetry,
    ) -> Result<Self, RunError> {
        let (limits, total) = (&connections.services, connections.total);
        let signals = Signals::listen()?;
        let start = Instant::now();
        let probe_settings =
            probe::Settings { max_connections: config.admin.max_connections, ..probe::Settings::default() };
        let admin = probe::Server::bind(&config.admin.listen, probe_settings)?;

        let points: Vec<Points> = config.services.iter().map(|_| Points::new().0).collect();
        let routes: Vec<_> = points.iter().map(|points| Arc::clone(points.route())).collect();
        // Discovery has to know our own addresses before it starts, and the services have to know discovery before they are
        // bound: so sockets are bound with an ear that is filled in between.
        let ears: Vec<Arc<std::sync::OnceLock<Ear>>> = config.services.iter().map(|_| Arc::default()).collect();
        let services = config.services.iter().zip(limits).zip(routes.iter().zip(&ears));
        let services = services.map(|((service, limit), (route, ear))| {
            let plane = proxy::Service {
                name: Arc::from(service.name.as_str()),
                route: Arc::clone(route).into(),
                options: options(service, *limit).into(),
                hints: Arc::new(LateEar(Arc::clone(ear))),
            };
            (plane, service.listen.clone())
        });
        let bound = Bound::bind(workers(config), total, services)?;
        let listening = bound.local_addrs().to_vec();

        let own: Vec<_> = listening.iter().flatten().chain(admin.addresses()).copied().collect();
        let watches = config.services.iter().zip(points).map(|(service, points)| watch::watch(service, points));
        let (discovery, handles) = Discovery::new(watches.collect(), watch::timeouts(&config.services), &own);
        for (ear, handle) in ears.iter().zip(&handles) {
            let _first = ear.set(Ear(handle.clone()));
        }
        let heartbeat = discovery.heartbeat();
        let discovery = tokio::spawn(discovery.run());

        let (drain, controller) = drain::new(shutdown(config));
        let controller = tokio::spawn(controller.run());
        let workers = bound.serve(&drain)?;
        let memory = tokio::spawn(watch_memory(memory, workers.scarcity().clone()));
        let admin = take_orders(config, &handles, admin);
        let services = config.services.iter().zip(limits).zip(listening.iter().zip(handles));
        let services = services.map(|((service, limit), (listen, discovery))| {
            info!(service = %service.name, listen = ?listen, "serving");
            Watched {
                name: service.name.clone(),
                listen: listen.clone(),
                limit: *limit,
                hold_timeout: service.hold_timeout,
                discovery,
            }
        });
        let report = Report {
            start,
            config_hash: config.hash.clone(),
            services: services.collect(),
            drain: drain.clone(),
            ready_while_leaving: config.shutdown.ready_while_leaving,
            stats: workers.stats().clone(),
            max_connections: total as u64,
            scarcity: workers.scarcity().clone(),
            workers: workers.heartbeats().to_vec(),
            discovery: heartbeat,
            dropped_lines: telemetry.dropped_lines(),
            metrics: Mutex::new((Metrics::new(), Vec::new())),
        };
        info!(admin = ?admin.addresses(), version = env!("CARGO_PKG_VERSION"), config = %config.hash, "started");
        let probe = admin.serve(Arc::new(report))?;
        Ok(Self { signals, drain, controller, discovery, memory, workers, probe })
    }

    /// Until the drain is over.
    async fn serve(mut self) -> Result<Summary, RunError> {
        let mut workers_ended = false;
        let summary = loop {
            tokio::select! {
                (name, asked) = self.signals.next() => match asked {
                    Asked::Stop(order) => {
                        info!(signal = name, phase = self.drain.phase().name(), "told to stop");
                        self.drain.order(order);
                    }
                    Asked::Reload => warn!(signal = name, "this version reads its configuration at the start only"),
                },
                summary = &mut self.controller => break summary.map_err(|_| RunError::Lost("the drain controller"))?,
                _ = &mut self.discovery => return Err(RunError::Lost("discovery")),
                _ = &mut self.memory => return Err(RunError::Lost("the watch over memory")),
                // Without an error only when the drain is over, which the controller is about to say.
                ended = self.workers.ended(), if !workers_ended => {
                    ended?;
                    workers_ended = true;
                }
            }
        };
        if !workers_ended {
            self.workers.ended().await?;
        }
        self.probe.stop().await;
        Ok(summary)
    }
}

/// An [`Ear`] that is filled in before any session exists.
struct LateEar(Arc<std::sync::OnceLock<Ear>>);

impl proxy::Hints for LateEar {
    fn hint(&self, _target: &route::Target, _hint: proxy::Hint) {
        // Whatever it was, and whichever target it was about: the machine looks for itself, and backs off.
        if let Some(Ear(handle)) = self.0.get() {
            handle.hint();
        }
    }
}

/// Lets the admin server take orders, where that is on.
fn take_orders(config: &Config, handles: &[Handle], admin: probe::Server) -> probe::Server {
    match &config.admin.control_token.0 {
        Some(token) if config.admin.control => {
            let names = config.services.iter().map(|service| service.name.clone());
            Control::new(token.clone(), names.zip(handles.iter().cloned()).collect()).add_to(admin)
        }
        _ => admin,
    }
}

fn options(service: &crate::config::Service, max_connections: usize) -> Options {
    Options {
        connect_timeout: service.connect_timeout,
        hold_timeout: service.hold_timeout,
        client_idle_timeout: service.client_idle_timeout,
        first_byte_timeout: service.first_byte_timeout,
        half_close_timeout: service.half_close_timeout,
        keepalive: service.tcp_keepalive,
        user_timeout: service.tcp_user_timeout,
        max_held: max_connections,
        max_connections,
        max_connections_per_source: service.max_connections_per_source,
    }
}

fn shutdown(config: &Config) -> drain::Settings {
    let shutdown = &config.shutdown;
    drain::Settings {
        accept_min: shutdown.accept_min,
        accept_quiet: shutdown.accept_quiet,
        accept_max: shutdown.accept_max,
        drain_spread: shutdown.drain_spread,
        drain_timeout: shutdown.drain_timeout,
    }
}
