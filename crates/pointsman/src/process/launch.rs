//! Starts all parts of the process from a checked configuration.
//!
//! `resources` acquires what a start needs before clients are served. This module then starts the
//! workers and the admin server, and wires everything together.

mod addresses;
mod resources;

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use admin_http::HostNames;
use drain::{Drain, Summary};
use proxy::Running;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use self::resources::{BoundResources, acquire};
use crate::admin::certificates::ServedCertificate;
use crate::admin::control::{CommandLog, Control, ControlAccess, TokenRefusals};
use crate::admin::control_socket::ControlSocket;
use crate::admin::effective_config::{EffectiveConfig, EffectiveSettings};
use crate::admin::history::History;
use crate::admin::metrics::Scraper;
use crate::admin::report::ProcessReport;
use crate::admin::service_registry::ServiceRegistry;
use crate::admin::sessions::SessionsApi;
use crate::config::Config;
use crate::logging;
use crate::process::admin_tls::AdminCertificates;
use crate::process::config_reader::ConfigReader;
use crate::process::error::RunError;
use crate::process::reload::Reloader;
use crate::process::secret_watch::SecretWatch;
use crate::process::service_manager::ServiceManager;
use crate::process::service_set::{ServiceSet, ServiceSetParts};
use crate::process::signals::Signals;
use crate::process::takeover::{self, HandedOver, OfferedSockets, TakeoverThread};
use crate::process::tls_servers::TlsServers;
use crate::process::{capacity, config_source, settings};
use crate::system::threads;
use crate::system::unix_sockets::UnixFiles;

pub(crate) use self::resources::StartupInputs;

/// The name of this host.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// All running parts of the process.
pub(crate) struct RunningProcess {
    pub(crate) signals: Signals,
    pub(crate) drain: Drain,
    pub(crate) controller: tokio::task::JoinHandle<Summary>,
    pub(crate) discovery: tokio::task::JoinHandle<()>,
    pub(crate) memory: tokio::task::JoinHandle<()>,
    pub(crate) workers: Running,
    /// The file of the control socket.
    pub(crate) control: Option<ControlSocket>,
    /// The files of the Unix sockets that clients connect to.
    pub(crate) unix: UnixFiles,
    /// `None` once another process has taken over.
    pub(crate) probe: Option<admin_http::Handle>,
    pub(crate) report: Arc<ProcessReport>,
    pub(crate) reader: ConfigReader,
    pub(crate) reloader: Reloader,
    pub(crate) services: ServiceSet,
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
        let Some((running, bound)) = acquire(&mut inputs).await? else { return Ok(None) };
        let BoundResources { admin, admin_tls, control, unix, takeover_socket, taken } = bound;
        let config = inputs.config;
        let sockets = Arc::new(Mutex::new(running.bound.sockets()?));
        let offered_sockets = OfferedSockets::new(&sockets, admin.handles()?);
        let (drain, controller) = drain::new(settings::drain(config));
        let controller = tokio::spawn(controller.run());
        let effective = effective_config(&inputs, &running.tls, &admin_tls);
        let workers = running.bound.serve(&drain)?;
        let parts = ServiceSetParts {
            control: running.control,
            sockets,
            effective: effective.clone(),
            tls: running.tls,
            admin: admin.addresses().to_vec(),
        };
        let services = ServiceSet::new(config, running.started, &workers, parts);
        let registry = services.registry().clone();
        publish_unix(&unix).await?;
        warn_of_copying(config, workers.splices());
        let memory = watch_capacity(&inputs, &effective, &workers);
        let (access, hosts) = (ControlAccess::of(config), HostNames::new(admin_hosts(config)));
        let with_api = add_control_api((&access, &hosts), (&registry, workers.sessions()), admin);
        let admin = record_history(&registry, with_api);
        let parts = (start, registry, effective.clone(), drain.clone());
        let admin_parts = (running.heartbeat, (&admin, access.refused()));
        let report = Arc::new(report(&inputs, parts, &workers, admin_parts));
        log_start(&admin, config);
        let probe = admin.serve(report.clone())?;
        let (changed, watch, secret_watch) = watch_config(&inputs);
        publish_control(control.as_ref()).await?;
        let reloader = make_reloader(&inputs, effective, (access, hosts), admin_tls);
        let takeover_server = takeover_socket
            .map(|socket| {
                let registry = services.registry().clone();
                offered_sockets.serve_takeover(socket, taken, unix.paths(), registry)
            })
            .transpose()?;
        // After the last thread that is started here: threads inherit the priority.
        threads::raise_priority();
        let service_manager = report_ready();
        Ok(Some(Self {
            signals: inputs.signals,
            drain,
            controller,
            discovery: running.discovery,
            memory,
            workers,
            control,
            unix,
            probe: Some(probe),
            report,
            reader: inputs.reader,
            reloader,
            services,
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

/// The settings that reports show.
fn effective_config(
    inputs: &StartupInputs<'_>,
    tls: &TlsServers,
    admin: &AdminCertificates,
) -> EffectiveConfig {
    let settings =
        EffectiveSettings::of(inputs.config, inputs.connections, inputs.files, Vec::new());
    let (clients, admin) = (tls.certificates(), admin.certificates());
    let certificates = ServedCertificate::list(clients, admin, inputs.config);
    EffectiveConfig::new(EffectiveSettings { certificates, ..settings })
}

/// The names by which clients may address the admin server: those of the configuration, and that of
/// this host.
pub(crate) fn admin_hosts(config: &Config) -> Vec<String> {
    let host = std::fs::read_to_string(HOST_NAME).ok().map(|name| name.trim().to_owned());
    config.admin.hosts.iter().cloned().chain(host.filter(|name| !name.is_empty())).collect()
}

/// Collects what a reload changes.
fn make_reloader(
    inputs: &StartupInputs<'_>,
    effective: EffectiveConfig,
    (control, hosts): (ControlAccess, HostNames),
    admin_tls: AdminCertificates,
) -> Reloader {
    Reloader {
        running: inputs.settings.clone(),
        leaving: Vec::new(),
        effective,
        memory: inputs.memory.clone(),
        log: inputs.logging.settings(),
        control,
        hosts,
        admin_tls,
    }
}

/// What the admin server reports.
fn report(
    inputs: &StartupInputs<'_>,
    (start, services, effective, drain): (Instant, ServiceRegistry, EffectiveConfig, Drain),
    workers: &Running,
    (discovery, (admin, tokens)): (sentinel::Heartbeat, (&admin_http::Server, Arc<TokenRefusals>)),
) -> ProcessReport {
    ProcessReport {
        start,
        effective,
        files: inputs.reader.files(),
        services,
        drain,
        stats: workers.stats().clone(),
        scarcity: workers.resource_shortage().clone(),
        workers: workers.heartbeats().to_vec(),
        discovery,
        lost_lines: inputs.logging.lost_lines(),
        memory: inputs.memory.clone(),
        admin: admin.stats(),
        tokens,
        scraper: Mutex::new(Scraper::find()),
    }
}

fn report_ready() -> ServiceManager {
    let mut service_manager = ServiceManager::find();
    service_manager.ready();
    service_manager
}

/// Starts to limit new clients to the memory and the open files that are available.
fn watch_capacity(
    inputs: &StartupInputs<'_>,
    effective: &EffectiveConfig,
    workers: &Running,
) -> tokio::task::JoinHandle<()> {
    let (memory, shortage) = (inputs.memory.clone(), workers.resource_shortage().clone());
    tokio::spawn(capacity::watch(memory, effective.clone(), shortage))
}

/// Starts to watch the configuration file and the secret files. The first value receives the reason
/// for a reload.
fn watch_config(
    inputs: &StartupInputs<'_>,
) -> (mpsc::Receiver<&'static str>, tokio::task::JoinHandle<()>, SecretWatch) {
    let (sender, changed) = mpsc::channel(1);
    let reader = &inputs.reader;
    reader.files().report_late_reads(sender.clone());
    let (source, stamp) = (reader.source().clone(), reader.stamp());
    let watch = tokio::spawn(config_source::watch(source, stamp, sender.clone()));
    let mut secrets = SecretWatch::new(sender);
    secrets.watch(reader.secret_files());
    (changed, watch, secrets)
}

/// Records the last minutes for the status page.
fn record_history(
    services: &ServiceRegistry,
    (admin, orders): (admin_http::Server, CommandLog),
) -> admin_http::Server {
    let history = History::new(services.clone(), orders);
    // The task ends with the runtime. Without it the page has no plots.
    tokio::spawn(Arc::clone(&history).record());
    admin.route("/history", history)
}

/// Warns if large values are copied although `splice = "on"` is configured.
fn warn_of_copying(config: &Config, splices: Result<(), &std::io::Error>) {
    match splices {
        Ok(()) => debug!("large values are moved with splice"),
        Err(error) if config.services.iter().any(|service| service.splice == proxy::Splice::On) => {
            warn!(%error, "splice is not available, copying large values");
        }
        Err(_) => {}
    }
}

/// Logs that the process has started.
fn log_start(admin: &admin_http::Server, config: &Config) {
    let (admin, version) = (logging::list(admin.addresses()), env!("CARGO_PKG_VERSION"));
    info!(admin, version, config = %config.hash, "started");
}

/// Adds the control API to the admin server, with the log of its commands and the rules of who may
/// read. It answers only while it is enabled.
fn add_control_api(
    (access, hosts): (&ControlAccess, &HostNames),
    (services, sessions): (&ServiceRegistry, &proxy::SessionVisits),
    admin: admin_http::Server,
) -> (admin_http::Server, CommandLog) {
    let admin = admin.hosts(hosts.clone()).guard(Arc::new(access.clone()));
    let sessions = SessionsApi::new(sessions.clone());
    let admin = sessions.add_to(admin);
    let log = CommandLog::default();
    let control = Control::new(access.clone(), services.clone(), log.clone());
    (sessions.add_control_to(&control, control.add_to(admin)), log)
}

/// Publishes the Unix sockets. Bounded, since TCP clients are served by now.
async fn publish_unix(files: &UnixFiles) -> Result<(), RunError> {
    if files.is_empty() {
        return Ok(());
    }
    match tokio::time::timeout(takeover::STEP, threads::spawn("start", files.publisher())?).await {
        Ok(Ok(done)) => Ok(done?),
        _ => {
            warn!("unix sockets are not published yet: a folder does not respond");
            Ok(())
        }
    }
}

/// Publishes the control socket. Bounded, since clients are served by now and do not need it.
async fn publish_control(control: Option<&ControlSocket>) -> Result<(), RunError> {
    let Some(control) = control.map(ControlSocket::publisher) else { return Ok(()) };
    match tokio::time::timeout(takeover::STEP, threads::spawn("start", control)?).await {
        Ok(Ok(done)) => Ok(done?),
        _ => {
            warn!("the control socket is not published yet: its folder does not respond");
            Ok(())
        }
    }
}
