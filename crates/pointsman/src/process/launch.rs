//! Starts all parts of the process from a checked configuration.
//!
//! `resources` acquires what a start needs before any part runs. This module then starts the
//! workers, discovery and the admin server, and wires everything together. A process that takes
//! over from another one looks for the masters first and serves only when it has found them; until
//! then it has changed nothing and may fail.

mod resources;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use admin_http::{HostNames, Method};
use drain::{Drain, Summary};
use proxy::Running;
use sentinel::{Discovery, Resolver};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use self::resources::{Acquired, acquire, run_unless_stopped};
use crate::admin::certificates::ServedCertificate;
use crate::admin::control::{CommandLog, Control, ControlAccess};
use crate::admin::effective_config::{EffectiveConfig, EffectiveSettings};
use crate::admin::history::History;
use crate::admin::metrics::Scraper;
use crate::admin::report::ProcessReport;
use crate::admin::service_registry::ServiceRegistry;
use crate::admin::sessions::SessionsApi;
use crate::config::Config;
use crate::logging;
use crate::process::config_reader::ConfigReader;
use crate::process::error::RunError;
use crate::process::reload::Reloader;
use crate::process::secret_watch::SecretWatch;
use crate::process::service_manager::ServiceManager;
use crate::process::service_set::{BoundListener, ServiceSet};
use crate::process::signals::Signals;
use crate::process::takeover::{
    self, HandedOver, OfferedSockets, TakenSockets, TakeoverError, TakeoverThread,
};
use crate::process::tls_servers::TlsServers;
use crate::process::{capacity, config_source, settings};
use crate::system::threads;
use crate::system::unix_sockets::UnixFiles;

pub(crate) use self::resources::StartupInputs;

/// The name of this host.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// How long a process that takes over looks for a master before it gives up.
const MASTER_DEADLINE: Duration = Duration::from_secs(15);
/// How often it checks whether there is one.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// All running parts of the process.
pub(crate) struct RunningProcess {
    pub(crate) signals: Signals,
    pub(crate) plane: DataPlane,
    pub(crate) memory: tokio::task::JoinHandle<()>,
    /// The file of the control socket.
    pub(crate) control: Option<UnixFiles>,
    /// The files of the Unix sockets that clients connect to.
    pub(crate) unix: UnixFiles,
    pub(crate) probe: admin_http::Handle,
    pub(crate) report: Arc<ProcessReport>,
    pub(crate) reader: ConfigReader,
    pub(crate) reloader: Reloader,
    /// Receives the reasons for reloads: changed files.
    pub(crate) changed: mpsc::Receiver<&'static str>,
    pub(crate) secret_watch: SecretWatch,
    pub(crate) watch: tokio::task::JoinHandle<()>,
    pub(crate) service_manager: ServiceManager,
    pub(crate) offered_sockets: OfferedSockets,
    /// The socket by which another process may take over, and reports of one that has.
    pub(crate) takeover_server: Option<(TakeoverThread, HandedOver)>,
    /// The conversation with the process that has taken over. Without open sessions this process
    /// would otherwise exit before its last message is sent.
    pub(crate) last_conversation: Option<JoinHandle<()>>,
}

impl RunningProcess {
    /// Starts all parts. Returns `None` if a signal to stop arrived before that.
    pub(crate) async fn start(mut inputs: StartupInputs<'_>) -> Result<Option<Self>, RunError> {
        let start = Instant::now();
        let Some(acquired) = acquire(&mut inputs).await? else { return Ok(None) };
        let Acquired { admin, tls, listeners, control, unix, takeover_socket, taken } = acquired;
        let config = inputs.config;

        let effective = effective_config(&inputs, &tls);
        let mut plane = DataPlane::start(&inputs, &listeners, &admin, tls)?;
        let registry = plane.services.registry.clone();
        if let Some(taken) = &taken
            && !wait_for_masters(&registry, taken, &mut inputs.signals).await?
        {
            return Ok(None);
        }
        plane.services.serve(listeners, &mut plane.workers);
        let late = "unix sockets are not published yet: a folder does not respond";
        publish((!unix.paths().is_empty()).then(|| unix.publisher()), late).await?;
        warn_of_copying(config, &plane.workers.splices);
        let shortage = plane.workers.shortage.clone();
        let memory = capacity::watch(inputs.memory.clone(), effective.clone(), shortage);
        let memory = tokio::spawn(memory);

        let (access, hosts) = (ControlAccess::of(config), HostNames::new(admin_hosts(config)));
        let offered_sockets = OfferedSockets::new(&plane.services.sockets, admin.handles()?);
        let admin = admin.hosts(hosts.clone());
        let reading = access.clone();
        let admin = admin.guard(move |request| reading.authorize_reader(request));
        let admin = add_routes(admin, &access, &registry, &plane.workers.sessions);
        let report = Arc::new(report(start, &inputs, &plane, &effective, &admin, &access));
        log_start(&admin, config);
        let probe = admin.serve(report.clone())?;
        let late = "the control socket is not published yet: its folder does not respond";
        publish(control.as_ref().map(UnixFiles::publisher), late).await?;

        let (changed, watch, secret_watch) = watch_config(&inputs);
        let reloader = Reloader {
            running: inputs.settings.clone(),
            leaving: Vec::new(),
            effective,
            memory: inputs.memory,
            log: inputs.logging.handle.clone(),
            control: access,
            hosts,
        };
        let takeover_server = takeover_socket
            .map(|socket| offered_sockets.serve_takeover(socket, taken, unix.paths(), registry))
            .transpose()?;
        // After the last thread that is started here: threads inherit the priority.
        threads::raise_priority();
        let mut service_manager = ServiceManager::find();
        service_manager.ready();
        Ok(Some(Self {
            signals: inputs.signals,
            plane,
            memory,
            control,
            unix,
            probe,
            report,
            reader: inputs.reader,
            reloader,
            changed,
            watch,
            secret_watch,
            service_manager,
            offered_sockets,
            takeover_server,
            last_conversation: None,
        }))
    }
}

/// The workers and discovery, with the services of the configuration.
pub(crate) struct DataPlane {
    pub(crate) drain: Drain,
    pub(crate) controller: tokio::task::JoinHandle<Summary>,
    pub(crate) workers: Running,
    pub(crate) discovery: tokio::task::JoinHandle<()>,
    heartbeat: sentinel::Heartbeat,
    pub(crate) services: ServiceSet,
}

impl DataPlane {
    /// Starts it without listeners: `listeners` are only announced to discovery, which must not
    /// connect to them.
    fn start(
        inputs: &StartupInputs<'_>,
        listeners: &[BoundListener],
        admin: &admin_http::Server,
        tls: TlsServers,
    ) -> Result<Self, RunError> {
        let (config, limits) = (inputs.config, inputs.connections);
        let (drain, controller) = drain::new(settings::drain(config));
        let controller = tokio::spawn(controller.run());
        let mut workers = Running::start(settings::workers(config), limits.total, &drain)?;
        let admin = admin.addresses.clone();
        let own = listeners.iter().filter_map(|it| it.listener.addr.tcp());
        let own: Vec<_> = own.chain(admin.iter().copied()).collect();
        let timeouts = settings::sentinel_timeouts(&config.services);
        let (discovery, control) = Discovery::new(timeouts, &own, &Resolver::default());
        let heartbeat = discovery.heartbeat();
        let discovery = tokio::spawn(discovery.run());
        let mut services = ServiceSet::new(config, control, tls, admin);
        services.begin(config, &limits.services, &mut workers);
        Ok(Self { drain, controller, workers, discovery, heartbeat, services })
    }
}

/// Waits until there is a master to send clients to, or until no other process can serve them.
/// Returns `false` if a signal to stop arrived first. A service that has a master also has a
/// sentinel for `sentinel_listen`: discovery publishes it before its vote counts.
async fn wait_for_masters(
    services: &ServiceRegistry,
    taken: &TakenSockets,
    signals: &mut Signals,
) -> Result<bool, RunError> {
    let services = services.list();
    let have = || services.iter().filter(|it| it.discovery.snapshot().master.is_some()).count();
    // Counted and not timed: a process that was stopped meanwhile has not looked.
    let mut checks = MASTER_DEADLINE.as_millis() / CHECK_INTERVAL.as_millis();
    while have() < services.len() {
        checks = checks.saturating_sub(1);
        if taken.is_abandoned() {
            let path = taken.path.clone();
            let is_unused = move || takeover::is_unused(&path);
            match run_unless_stopped(signals, "the state folder", is_unused).await? {
                None => return Ok(false),
                Some(true) => {
                    warn!("the old process has ended, serving without waiting for a master");
                    return Ok(true);
                }
                Some(false) => {}
            }
        }
        if checks == 0 {
            return if have() > 0 {
                Ok(true)
            } else {
                Err(TakeoverError::NoMaster(MASTER_DEADLINE).into())
            };
        }
        tokio::select! {
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
            (name, _) = signals.stop() => {
                info!(signal = name, "received {name} before the takeover");
                return Ok(false);
            },
        }
    }
    Ok(true)
}

/// The settings that reports show.
fn effective_config(inputs: &StartupInputs<'_>, tls: &TlsServers) -> EffectiveConfig {
    let (config, total) = (inputs.config, inputs.connections.total);
    let certificates = ServedCertificate::list(tls.certificates(), config);
    EffectiveConfig::new(EffectiveSettings::of(config, total, inputs.files, certificates))
}

/// The names by which clients may address the admin server: those of the configuration, and that of
/// this host.
pub(crate) fn admin_hosts(config: &Config) -> Vec<String> {
    let host = std::fs::read_to_string(HOST_NAME).ok().map(|name| name.trim().to_owned());
    config.admin.hosts.iter().cloned().chain(host.filter(|name| !name.is_empty())).collect()
}

/// What the admin server reports.
fn report(
    start: Instant,
    inputs: &StartupInputs<'_>,
    plane: &DataPlane,
    effective: &EffectiveConfig,
    admin: &admin_http::Server,
    access: &ControlAccess,
) -> ProcessReport {
    ProcessReport {
        start,
        effective: effective.clone(),
        files: inputs.reader.files.clone(),
        services: plane.services.registry.clone(),
        drain: plane.drain.clone(),
        stats: plane.workers.stats.clone(),
        scarcity: plane.workers.shortage.clone(),
        workers: plane.workers.heartbeats.clone(),
        discovery: plane.heartbeat.clone(),
        log: inputs.logging.handle.clone(),
        memory: inputs.memory.clone(),
        admin: admin.stats.clone(),
        tokens: Arc::clone(&access.refused),
        scraper: Mutex::new(Scraper::find()),
    }
}

/// Starts to watch the configuration file and the secret files. The first value receives the reason
/// for a reload.
fn watch_config(
    inputs: &StartupInputs<'_>,
) -> (mpsc::Receiver<&'static str>, tokio::task::JoinHandle<()>, SecretWatch) {
    let (sender, changed) = mpsc::channel(1);
    let reader = &inputs.reader;
    reader.files.report_late_reads(sender.clone());
    let (source, stamp) = (reader.source.clone(), reader.stamp);
    let watch = tokio::spawn(config_source::watch(source, stamp, sender.clone()));
    let mut secrets = SecretWatch::new(sender);
    secrets.watch(&reader.secret_files);
    (changed, watch, secrets)
}

/// Warns if large values are copied although `splice = "on"` is configured.
fn warn_of_copying(config: &Config, splices: &Result<(), std::io::Error>) {
    match splices {
        Ok(()) => debug!("large values are moved with splice"),
        Err(error) if config.services.iter().any(|service| service.splice == proxy::Splice::On) => {
            warn!(%error, "splice is not available, copying large values");
        }
        Err(_) => {}
    }
}

/// Adds the lists of sessions, the commands and the history of the last minutes to the admin
/// server. Commands are answered only while they are enabled.
fn add_routes(
    admin: admin_http::Server,
    access: &ControlAccess,
    services: &ServiceRegistry,
    sessions: &proxy::SessionVisits,
) -> admin_http::Server {
    let log = CommandLog::default();
    let control = Control::new(access.clone(), services.clone(), log.clone());
    let admin = control.add_to(admin);
    let admin = SessionsApi::new(sessions.clone(), control).add_to(admin);
    let history = History::new(services.clone(), log);
    // The task ends with the runtime. Without it the page has no plots.
    tokio::spawn(Arc::clone(&history).record());
    admin.route("/history", Method::Get, move |_| Ok(history.answer()))
}

/// Logs that the process has started.
fn log_start(admin: &admin_http::Server, config: &Config) {
    let (admin, version) = (logging::list(&admin.addresses), env!("CARGO_PKG_VERSION"));
    info!(admin, version, config = %config.hash, "started");
}

/// Publishes files of sockets. Bounded, since TCP clients are served by now; `late` is what to log
/// if a folder does not respond.
async fn publish<E: Send + 'static>(
    publisher: Option<impl FnOnce() -> Result<(), E> + Send + 'static>,
    late: &str,
) -> Result<(), RunError>
where
    RunError: From<E>,
{
    let Some(publisher) = publisher else { return Ok(()) };
    match tokio::time::timeout(takeover::STEP, threads::spawn("start", publisher)?).await {
        Ok(Ok(done)) => Ok(done?),
        _ => {
            warn!("{late}");
            Ok(())
        }
    }
}
