//! Runs the process from a checked configuration to its exit code.
//!
//! Three kinds of threads share the work and never wait for each other: this one runs signals,
//! discovery, reloads and the drain; the workers run the sessions; the admin server answers probes
//! and people. No file is read or written on this thread, because a file system can hang: see
//! `threads` and `config_reader`.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use admin_http::Reporter as _;
use drain::{Phase, StopRequest, Summary};
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use crate::config::{Config, Settings};
use crate::logging::Logging;
use crate::process::capacity;
use crate::process::config_reader::ConfigRead;
use crate::process::error::RunError;
use crate::process::launch::{RunningProcess, StartupInputs};
use crate::process::signals::SignalRequest;
use crate::process::startup::Startup;
use crate::process::takeover::{self, HandedOver, TakeoverError, TakeoverThread};
use crate::system::cgroup;
use crate::system::memory::Memory;
use crate::system::threads;

/// How long a process that stops waits until an operator's command is undone. Nothing is waited for
/// without one.
const UNDO_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs until a signal to stop. `settings` are the values that `config` was made from, as `startup`
/// has read them.
///
/// # Errors
///
/// The reason why the process did not start, or ended early.
pub(crate) fn run(
    startup: Startup,
    config: &Config,
    settings: &Settings,
    takeover: bool,
) -> Result<ExitCode, RunError> {
    if takeover && config.process.state_dir.is_none() {
        return Err(TakeoverError::NoFolder.into());
    }
    let logging = Logging::start(&config.log)?;
    for warning in &config.warnings {
        warn!("{warning}");
    }
    let memory = Memory::find(&cgroup::read);
    let (connections, files) = &capacity::reserve(config, memory.as_ref())?;
    let Startup { runtime, signals, reader } = startup;
    let files = *files;
    let inputs = StartupInputs {
        config,
        settings,
        signals,
        reader,
        connections,
        files,
        memory,
        logging: &logging,
        takeover,
    };
    let outcome = runtime.block_on(async {
        match RunningProcess::start(inputs).await? {
            Some(process) => process.serve().await.map(Some),
            None => Ok(None),
        }
    });
    // A name lookup that hangs in the system's resolver must not delay the exit.
    runtime.shutdown_background();
    if let Err(error) = &outcome {
        error!("{error}");
    }
    outcome.map(|summary| {
        if let Some(summary) = summary {
            log_summary(&summary);
        }
        ExitCode::SUCCESS
    })
}

fn log_summary(summary: &Summary) {
    let ended = &summary.since_stop_request;
    // The JSON writer renders 128-bit integers as strings.
    let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    info!(
        completed = ended.left,
        drained = ended.asked,
        cut = ended.cut,
        open = ended.open,
        clean = summary.is_clean(),
        total_ms = ms(summary.total),
        leaving_ms = ms(summary.leaving),
        draining_ms = ms(summary.draining),
        "stopped"
    );
}

impl RunningProcess {
    /// Runs until the drain has ended.
    async fn serve(mut self) -> Result<Summary, RunError> {
        let mut workers_ended = false;
        let mut timer = tokio::time::interval(self.service_manager.interval);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let summary = loop {
            tokio::select! {
                (name, asked) = self.signals.next() => match asked {
                    SignalRequest::Stop(request) => {
                        let phase = self.plane.drain.phase().name();
                        info!(signal = name, phase, "received {name}");
                        self.stop(if self.is_left_alone(name) {
                            StopRequest::DrainAtOnce
                        } else {
                            request
                        });
                    }
                    SignalRequest::Reload => self.reload(name),
                },
                Some(why) = self.changed.recv() => self.reload(why),
                read = self.reader.next() => self.reloaded(read).await,
                (id, summary) = self.plane.services.next_closed() => {
                    self.plane.services.closed(id, &summary, &mut self.plane.workers);
                    self.reloader.forget_ended(&self.plane.services);
                }
                Some(done) = handed_over(&mut self.takeover_server) => {
                    self.leave_to_another().await;
                    // The receiver stops waiting for this after a while.
                    let _waits = done.try_send(());
                }
                _ = timer.tick() => {
                    if self.plane.services.has_unused() {
                        self.plane.services.collect(&mut self.plane.workers);
                        self.reloader.forget_ended(&self.plane.services);
                    }
                    let line = self.report.summary();
                    let (alive, phase) = (self.report.alive().ok, self.plane.drain.phase());
                    self.service_manager.tick(alive, phase, line);
                }
                summary = &mut self.plane.controller => {
                    break summary.map_err(|_| RunError::Lost("the drain controller"))?;
                }
                _ = &mut self.plane.discovery => return Err(RunError::Lost("discovery")),
                _ = &mut self.memory => return Err(RunError::Lost("the memory watch")),
                _ = &mut self.watch => {
                    return Err(RunError::Lost("the watch of the configuration file"));
                }
                // Ends without an error only once the drain is over, which the controller is about
                // to report.
                ended = self.plane.workers.ended(), if !workers_ended => {
                    ended?;
                    workers_ended = true;
                }
            }
        };
        if !workers_ended {
            self.plane.workers.ended().await?;
        }
        // Before the admin server ends: an operator's command reports its result by it.
        self.undo_operations().await;
        self.probe.stop().await;
        if let Some(last_conversation) = self.last_conversation
            && let Ok(ended) = threads::spawn("handover", || last_conversation.join())
        {
            let _in_time = tokio::time::timeout(takeover::STEP, ended).await;
        }
        Ok(summary)
    }

    /// Waits until no change of an operator's command is left on the servers: a priority that was
    /// changed for a switchover, or a pause.
    async fn undo_operations(&self) {
        let limit = tokio::time::Instant::now() + UNDO_TIMEOUT;
        for service in self.report.services.list() {
            let left = limit.saturating_duration_since(tokio::time::Instant::now());
            if !service.discovery.wait_operations_undone(left).await {
                warn!(service = service.name, "stopping with changes of a command left on servers");
            }
        }
    }

    /// Whether the signal is Ctrl-C at a terminal, and there is no client: then no load balancer
    /// has to learn that the process is leaving.
    fn is_left_alone(&self, signal: &str) -> bool {
        signal == "SIGINT"
            && self.plane.drain.session_counts().open == 0
            && std::io::stdin().is_terminal()
    }

    fn stop(&mut self, request: StopRequest) {
        for service in self.report.services.list() {
            service.discovery.stop_operations();
        }
        if self.plane.drain.phase() == Phase::Serving {
            self.service_manager.stopping();
        }
        self.offered_sockets.release();
        if let Some((closer, _)) = &self.takeover_server {
            // A process that is started while we drain binds our addresses, which are free by then.
            // One that has our sockets already still takes over.
            closer.close();
        }
        self.plane.drain.request_stop(request);
    }

    /// Starts a reload. Its result is reported later.
    fn reload(&mut self, why: &'static str) {
        if self.reader.source.is_stdin() {
            let fault = "the configuration was read from standard input and cannot be read again";
            self.reloader.refuse(why, vec![fault.to_owned()]);
        } else if self.reader.request(why) && self.plane.drain.phase() == Phase::Serving {
            self.service_manager.reloading();
        }
    }

    /// Handles the result of a configuration read.
    async fn reloaded(&mut self, read: ConfigRead) {
        match read {
            ConfigRead::Done(why, mut loaded) => {
                self.secret_watch.watch(&loaded.secret_files);
                let (services, workers) = (&mut self.plane.services, &mut self.plane.workers);
                self.reloader.take(why, &mut loaded, &self.plane.drain, services, workers).await;
            }
            ConfigRead::Overdue(why, fault) | ConfigRead::Failed(why, fault) => {
                self.reloader.refuse(why, vec![fault]);
            }
        }
        if self.plane.drain.phase() == Phase::Serving {
            // A process that stops is not ready.
            self.service_manager.ready();
        }
    }

    /// Another process accepts on our sockets. From now on it answers probes and scrapes.
    async fn leave_to_another(&mut self) {
        self.last_conversation = self.takeover_server.take().map(|(closer, _)| closer.thread());
        // The other process has already put its own control socket in that place.
        self.control = None;
        // The other process has these sockets, and their files with them.
        self.unix.disown();
        // An operator's command that is under way still reports its result.
        self.probe.leave();
        self.stop(StopRequest::DrainAtOnce);
        self.plane.drain.reached(Phase::Draining).await;
    }
}

/// Waits for the report of a process that has taken over. Never returns if there is no takeover
/// socket.
async fn handed_over(
    takeover_server: &mut Option<(TakeoverThread, HandedOver)>,
) -> Option<std::sync::mpsc::SyncSender<()>> {
    match takeover_server {
        Some((_, word)) => match word.recv().await {
            Some(done) => Some(done),
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
