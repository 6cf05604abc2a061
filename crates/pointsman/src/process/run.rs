//! The process itself, from a checked configuration to its exit code.
//!
//! Three kinds of threads share the work and never wait for each other: this one for signals,
//! discovery, reloads and the drain; the workers for the sessions; the probe server for probes and
//! people. No file is read or written on this thread, because a file system can hang: see
//! `threads` and `reader`.
//!
//! Deliberately absent: the start (`startup`, `launch`), reading flags and files (`cli` and
//! `config`), and printing.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use admin_http::Reporter as _;
use drain::{Drain, Phase, StopRequest, Summary};
use proxy::{ResourceShortage, Running};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use crate::admin::control_socket::{ControlSocket, ControlSocketError};
use crate::admin::report::Report;
use crate::config::{Config, ConnectionLimits, Settings};
use crate::process::config_reader::{Read, Reader};
use crate::process::in_force::InForce;
use crate::process::inherit::InheritError;
use crate::process::launch::{Doors, HandedOver};
use crate::process::reload::Reloader;
use crate::process::signals::{Asked, Signals};
use crate::process::startup::Startup;
use crate::process::supervisor::Supervisor;
use crate::process::takeover::{self, Closer, TakeoverError};
use crate::process::threads;
use crate::system::cgroup;
use crate::system::connection_capacity;
use crate::system::descriptors::{self, Files, TooFewFiles};
use crate::system::memory::{self, Memory};
use crate::system::unix_sockets::{UnixFiles, UnixSocketError};
use crate::telemetry::Telemetry;

/// How often the memory in use and the limit on open files are looked at. A flood of clients that
/// each cost some KiB does not eat a tenth of the memory meanwhile.
const LOOK: Duration = Duration::from_millis(100);

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
    Admin(#[from] admin_http::BindError),
    /// The system gives no thread, runtime or signal handler.
    #[error("the system does not let the process start its parts")]
    System(#[from] std::io::Error),
    /// A worker cannot be started.
    #[error(transparent)]
    Workers(#[from] proxy::StartError),
    /// A worker ended before its time.
    #[error(transparent)]
    Worker(#[from] proxy::WorkerError),
    /// The socket for orders cannot be had.
    #[error(transparent)]
    ControlSocket(#[from] ControlSocketError),
    /// A Unix socket for clients cannot be had.
    #[error(transparent)]
    Unix(#[from] UnixSocketError),
    /// The admin server cannot be started.
    #[error(transparent)]
    Probe(#[from] admin_http::StartError),
    /// A socket of the service manager cannot be used.
    #[error(transparent)]
    Inherited(#[from] InheritError),
    /// Sockets cannot be taken over or handed over.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    /// A part without which the process is of no use has ended.
    #[error("{0} has ended unexpectedly; see the log")]
    Lost(&'static str),
}

/// What a start is made of.
pub(crate) struct StartupInputs<'a> {
    pub(crate) config: &'a Config,
    pub(crate) settings: &'a Settings,
    pub(crate) signals: Signals,
    pub(crate) reader: Reader,
    pub(crate) connections: &'a ConnectionLimits,
    pub(crate) files: Files,
    pub(crate) memory: Option<Memory>,
    pub(crate) telemetry: &'a Telemetry,
    /// Take the sockets of a running process, if there is one.
    pub(crate) takeover: bool,
}

/// Runs until told to stop. `settings` are those that `config` was made of, as `startup` has read
/// them.
///
/// # Errors
///
/// What kept the process from starting, or made it end early.
pub fn run(
    startup: Startup,
    config: &Config,
    settings: &Settings,
    takeover: bool,
) -> Result<ExitCode, RunError> {
    if takeover && config.process.state_dir.is_none() {
        return Err(TakeoverError::NoFolder.into());
    }
    let telemetry = Telemetry::start(&config.log)?;
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let memory = Memory::find(&memory::read);
    let (connections, files) = &make_room(config, memory.as_ref())?;
    let Startup { runtime, signals, reader } = startup;
    let files = *files;
    let given = StartupInputs {
        config,
        settings,
        signals,
        reader,
        connections,
        files,
        memory,
        telemetry: &telemetry,
        takeover,
    };
    let outcome = runtime.block_on(async {
        match Process::start(given).await? {
            Some(process) => process.serve().await.map(Some),
            None => Ok(None),
        }
    });
    // A look-up that hangs in the system's resolver must not hold up the end.
    runtime.shutdown_background();
    if let Err(error) = &outcome {
        error!("{error}");
    }
    outcome.map(|summary| {
        if let Some(summary) = summary {
            tell(&summary);
        }
        ExitCode::SUCCESS
    })
}

/// Decides how many connections there may be, and asks the system for the open files they need.
fn make_room(
    config: &Config,
    memory: Option<&Memory>,
) -> Result<(ConnectionLimits, Files), TooFewFiles> {
    let files = Files::allowed(config, workers(config).get());
    let room = connection_capacity::plan(config, memory, files)?;
    for warning in &room.warnings {
        warn!("{warning}");
    }
    files.raise(room.connections.total)?;
    if let Some(memory) = memory {
        info!(max_connections = room.connections.total, %memory, "room for connections");
    }
    Ok((room.connections, files))
}

pub(crate) fn workers(config: &Config) -> NonZeroUsize {
    let suitable = || cgroup::workers(proxy::worker_count(), cgroup::cores(&memory::read));
    NonZeroUsize::new(config.process.workers).unwrap_or_else(suitable)
}

/// Lets in no more clients than the process can carry, as memory and the limit on open files are
/// now. Never returns.
pub(crate) async fn watch_room(
    memory: Option<Memory>,
    mut files: descriptors::Watch,
    in_force: InForce,
    scarcity: ResourceShortage,
) {
    let files = async {
        let mut timer = tokio::time::interval(LOOK);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            timer.tick().await;
            if let Some((sessions, pipes)) = files.look(in_force.facts().max_connections) {
                scarcity.set_files(sessions, pipes);
            }
        }
    };
    tokio::join!(watch_memory(memory, scarcity.clone()), files);
}

/// Keeps new clients out while memory is about to run out. Never returns.
async fn watch_memory(memory: Option<Memory>, scarcity: ResourceShortage) {
    let Some(memory) = memory.filter(Memory::is_enforced) else {
        return std::future::pending().await;
    };
    let mut timer = tokio::time::interval(LOOK);
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
    // Of 128 bits a line in JSON makes a string.
    let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    info!(
        left = ended.left,
        asked = ended.asked,
        cut = ended.cut,
        open = ended.open,
        clean = summary.is_clean(),
        total_ms = ms(summary.total),
        leaving_ms = ms(summary.leaving),
        draining_ms = ms(summary.draining),
        "stopped"
    );
}

/// Everything that runs.
pub(crate) struct Process {
    pub(crate) signals: Signals,
    pub(crate) drain: Drain,
    pub(crate) controller: tokio::task::JoinHandle<Summary>,
    pub(crate) discovery: tokio::task::JoinHandle<()>,
    pub(crate) memory: tokio::task::JoinHandle<()>,
    pub(crate) workers: Running,
    /// The file of the socket for orders.
    pub(crate) control: Option<ControlSocket>,
    /// The files of the Unix sockets that clients connect to.
    pub(crate) unix: UnixFiles,
    /// Gone once another process has taken over.
    pub(crate) probe: Option<admin_http::Handle>,
    pub(crate) report: Arc<Report>,
    pub(crate) reader: Reader,
    pub(crate) reloader: Reloader,
    /// Rung when the configuration file has changed.
    pub(crate) changed: Arc<Notify>,
    pub(crate) watch: tokio::task::JoinHandle<()>,
    pub(crate) supervisor: Supervisor,
    pub(crate) doors: Doors,
    /// The socket by which another process may take over, and word of one that has.
    pub(crate) meeting: Option<(Closer, HandedOver)>,
    /// The conversation with the one that has taken over. Without sessions we would be gone before
    /// its last word.
    pub(crate) parting: Option<JoinHandle<()>>,
}

impl Process {
    /// Until the drain is over.
    async fn serve(mut self) -> Result<Summary, RunError> {
        let mut workers_ended = false;
        let mut timer = tokio::time::interval(self.supervisor.every());
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let summary = loop {
            tokio::select! {
                (name, asked) = self.signals.next() => match asked {
                    Asked::Stop(order) => {
                        info!(signal = name, phase = self.drain.phase().name(), "told to stop");
                        self.stop(order);
                    }
                    Asked::Reload => self.reload(name),
                },
                () = self.changed.notified() => self.reload("the file has changed"),
                read = self.reader.next() => self.reloaded(read),
                Some(done) = handed_over(&mut self.meeting) => {
                    self.leave_to_another().await;
                    // Whoever waits for this goes on without it after a while.
                    let _waits = done.try_send(());
                }
                _ = timer.tick() => {
                    let line = self.report.line();
                    self.supervisor.tick(self.report.alive().ok, self.drain.phase(), line);
                }
                summary = &mut self.controller => break summary.map_err(|_| RunError::Lost("the drain controller"))?,
                _ = &mut self.discovery => return Err(RunError::Lost("discovery")),
                _ = &mut self.memory => return Err(RunError::Lost("the watch over memory")),
                _ = &mut self.watch => return Err(RunError::Lost("the watch over the configuration file")),
                // Without an error only when the drain is over, which the controller is about to
                // say.
                ended = self.workers.ended(), if !workers_ended => {
                    ended?;
                    workers_ended = true;
                }
            }
        };
        if !workers_ended {
            self.workers.ended().await?;
        }
        if let Some(probe) = self.probe {
            probe.stop().await;
        }
        if let Some(parting) = self.parting
            && let Ok(told) = threads::aside("parting", || parting.join())
        {
            let _in_time = tokio::time::timeout(takeover::STEP, told).await;
        }
        Ok(summary)
    }

    fn stop(&mut self, order: StopRequest) {
        if self.drain.phase() == Phase::Serving {
            self.supervisor.stopping();
        }
        self.doors.release();
        if let Some((closer, _)) = self.meeting.take() {
            // Who is started while we drain binds our addresses, which are free by then.
            closer.close();
        }
        self.drain.order(order);
    }

    /// Asks for a reload; what comes of it is told later.
    fn reload(&mut self, why: &'static str) {
        if self.reader.source().is_stdin() {
            let fault = "the configuration came by the standard input and cannot be read again";
            self.reloader.refuse(why, vec![fault.to_owned()]);
        } else if self.reader.ask(why) && self.drain.phase() == Phase::Serving {
            self.supervisor.reloading();
        }
    }

    /// The configuration was read, or could not be.
    fn reloaded(&mut self, read: Read) {
        match read {
            Read::Done(why, loaded) => self.reloader.take(why, &loaded, &self.drain, &self.workers),
            Read::Overdue(why, fault) | Read::Failed(why, fault) => {
                self.reloader.refuse(why, vec![fault])
            }
        }
        if self.drain.phase() == Phase::Serving {
            // Said of a process that stops, it would be a lie.
            self.supervisor.ready();
        }
    }

    /// Another process accepts from our sockets. Its probes are to be asked from now on, and its
    /// metrics scraped.
    async fn leave_to_another(&mut self) {
        self.parting = self.meeting.take().map(|(closer, _)| closer.thread());
        // The other one has put its own in that place already.
        self.control = None;
        // It has these sockets, and their files with them.
        self.unix.disown();
        if let Some(probe) = self.probe.take() {
            probe.stop().await;
        }
        self.stop(StopRequest::DrainAtOnce);
        self.drain.reached(Phase::Draining).await;
    }
}

/// Word of a process that has taken over. Never returns where nobody can.
async fn handed_over(
    meeting: &mut Option<(Closer, HandedOver)>,
) -> Option<std::sync::mpsc::SyncSender<()>> {
    match meeting {
        Some((_, word)) => match word.recv().await {
            Some(done) => Some(done),
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

pub(crate) fn shutdown(config: &Config) -> drain::Settings {
    let shutdown = &config.shutdown;
    drain::Settings {
        accept_min: shutdown.accept_min,
        accept_quiet: shutdown.accept_quiet,
        accept_max: shutdown.accept_max,
        drain_spread: shutdown.drain_spread,
        drain_timeout: shutdown.drain_timeout,
    }
}
