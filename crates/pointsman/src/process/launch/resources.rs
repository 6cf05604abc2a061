//! Acquires what a start needs before any part runs: certificates, the sockets of clients and of
//! the admin server, and the control and takeover sockets.
//!
//! Bind early, serve late: every address is bound, or its socket is taken over, before anything is
//! started. A fault is therefore reported at the start, with the name of the address or key.
//!
//! Everything that touches a folder or waits for another process runs on a thread of its own, and a
//! signal to stop ends the wait.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proxy::{AddressPlan, InheritedSockets, ListenAddr};
use rustix::process::geteuid;
use tracing::{info, warn};

use crate::config::{Config, ConnectionLimits, Settings};
use crate::logging::Logging;
use crate::process::config_reader::ConfigReader;
use crate::process::error::RunError;
use crate::process::inherit::{self, AssignedSet, SocketAssignment};
use crate::process::listener_set;
use crate::process::service_set::BoundListener;
use crate::process::settings;
use crate::process::signals::Signals;
use crate::process::takeover::{self, TakenSockets, TakeoverError, TakeoverSocket};
use crate::process::tls_servers::TlsServers;
use crate::system::descriptors::Files;
use crate::system::memory::Memory;
use crate::system::threads;
use crate::system::unix_sockets::{SocketSpec, UnixFiles, UnixSocketError};

/// The pause before addresses that are in use are tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// When the start first reports what it waits for. The interval then doubles up to the second
/// value.
const REPORT_AFTER: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// How much longer than a stop takes a start with --takeover retries addresses that are in use
/// although no process answers on the takeover socket.
const STOP_MARGIN: Duration = Duration::from_secs(5);

/// The inputs of a start.
pub(crate) struct StartupInputs<'a> {
    pub(crate) config: &'a Config,
    pub(crate) settings: &'a Settings,
    pub(crate) signals: Signals,
    pub(crate) reader: ConfigReader,
    pub(crate) connections: &'a ConnectionLimits,
    pub(crate) files: Files,
    pub(crate) memory: Option<Memory>,
    pub(crate) logging: &'a Logging,
    /// Take over the sockets of a running process, if there is one.
    pub(crate) takeover: bool,
}

/// What a start has acquired before any part runs.
pub(super) struct Acquired {
    pub(super) admin: admin_http::Server,
    pub(super) tls: TlsServers,
    pub(super) listeners: Vec<BoundListener>,
    pub(super) control: Option<UnixFiles>,
    pub(super) unix: UnixFiles,
    pub(super) takeover_socket: Option<TakeoverSocket>,
    pub(super) taken: Option<TakenSockets>,
}

/// Performs every step that may fail or block before any part runs. Returns `None` if a signal
/// to stop arrived meanwhile.
pub(super) async fn acquire(inputs: &mut StartupInputs<'_>) -> Result<Option<Acquired>, RunError> {
    let config = inputs.config;
    let takeover_path = config.process.state_dir.as_deref().map(takeover::path);
    let sockets = inherit::from_service_manager()?;
    if !sockets.is_empty() {
        info!(sockets = sockets.len(), "using sockets of the service manager");
        return prepare(inputs, takeover_path, SocketAssignment::activated(config, sockets)?, None)
            .await;
    }
    let Some(path) = takeover_path.clone().filter(|_| inputs.takeover) else {
        return prepare(inputs, takeover_path, SocketAssignment::none(config), None).await;
    };
    let began = Instant::now();
    let (limit, mut report) = (settings::drain(config).max_total() + STOP_MARGIN, REPORT_AFTER.0);
    loop {
        let path = path.clone();
        let taken =
            run_unless_stopped(&mut inputs.signals, "the takeover", move || takeover::take(&path))
                .await?;
        let Some(taken) = taken.transpose()? else { return Ok(None) };
        let may_wait = taken.is_none() && began.elapsed() < limit;
        let (assignment, taken) = taken_over(config, taken);
        match Box::pin(prepare(inputs, takeover_path.clone(), assignment, taken)).await {
            // The addresses belong to a process that has just died, to one that is stopping and
            // hands nothing over any more, or to one that is starting and can be taken over from
            // soon.
            Err(error) if may_wait && is_in_use(&error) => {
                if began.elapsed() >= report {
                    info!(%error, "waiting for the process that stops");
                    report *= 2;
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            other => return other,
        }
    }
}

fn taken_over(
    config: &Config,
    taken: Option<TakenSockets>,
) -> (SocketAssignment, Option<TakenSockets>) {
    match taken {
        Some(mut taken) => {
            info!(sockets = taken.sockets.len(), "using sockets of the running process");
            (SocketAssignment::taken_over(config, std::mem::take(&mut taken.sockets)), Some(taken))
        }
        None => (SocketAssignment::none(config), None),
    }
}

async fn prepare(
    inputs: &mut StartupInputs<'_>,
    takeover_path: Option<PathBuf>,
    mut assignment: SocketAssignment,
    mut taken: Option<TakenSockets>,
) -> Result<Option<Acquired>, RunError> {
    let config = inputs.config;
    let replaces = taken.is_some();
    let control = config.admin.control_socket.clone().filter(|_| config.admin.control);
    let (mut to_create, to_adopt, unconfigured) = unix_sockets(&mut assignment, replaces);
    let files = move || -> Result<_, RunError> {
        let socket = takeover_path.map(|path| TakeoverSocket::open(&path, replaces)).transpose();
        let takeover_socket = match socket {
            Err(TakeoverError::Socket(path, error)) if !replaces && is_unwritable(&error) => {
                warn!(%error, ?path, "takeover is disabled: make process.state_dir writable");
                None
            }
            other => other?,
        };
        let control = control.map(|path| create_control(path.into(), replaces)).transpose()?;
        let mut unix = UnixFiles::default();
        // Nobody can connect to a socket whose file was removed: it is replaced.
        let is_lost = |it: &SetSocket| !it.1.path.exists();
        let (lost, to_adopt): (Vec<_>, Vec<_>) = to_adopt.into_iter().partition(is_lost);
        to_create.extend(lost);
        let created = to_create.into_iter().map(|(set, to_create)| {
            let inherited = InheritedSockets {
                sockets: vec![unix.create(&to_create)?],
                addr: ListenAddr::Unix(to_create.path),
            };
            Ok((set, inherited))
        });
        let created = created.collect::<Result<Vec<_>, UnixSocketError>>()?;
        let to_adopt: Vec<_> = to_adopt.into_iter().map(|(_, wanted)| wanted).collect();
        let taken_files = unix.adopt(&to_adopt, &unconfigured);
        Ok((takeover_socket, control, unix, created, taken_files))
    };
    let Some(files) =
        run_unless_stopped(&mut inputs.signals, "the folders of its sockets", files).await?
    else {
        return Ok(None);
    };
    let (takeover_socket, control, unix, created, taken_files) = files?;
    for (set, inherited) in created {
        if let Some(AssignedSet { inherited: all, .. }) = assignment.sets.get_mut(set) {
            all.retain(|it| it.addr != inherited.addr);
            all.push(inherited);
        }
    }
    if let Some(taken) = &mut taken {
        taken.files = taken_files;
    }
    let tls = TlsServers::new(config).map_err(RunError::Tls)?;
    let admin = bind_admin(config, std::mem::take(&mut assignment.admin), assignment.is_activated)?;
    let admin = match &tls.admin {
        Some(rules) => admin.tls(rules.clone()),
        None => admin,
    };
    let (admin, control) = match control {
        Some((file, listener)) => {
            (admin.unix_socket(listener, vec![geteuid().as_raw(), 0])?, Some(file))
        }
        None => (admin, None),
    };
    let limits = &inputs.connections.services;
    let listeners = bind_listeners(config, limits, &tls, assignment, &admin.addresses)?;
    Ok(Some(Acquired { admin, tls, listeners, control, unix, takeover_socket, taken }))
}

/// Binds the addresses of the listener sets that have no inherited socket. `admin` are the
/// addresses of the admin server.
fn bind_listeners(
    config: &Config,
    limits: &[usize],
    tls: &TlsServers,
    assignment: SocketAssignment,
    admin: &[SocketAddr],
) -> Result<Vec<BoundListener>, RunError> {
    let options = listener_set::options_of(config, limits, tls);
    let SocketAssignment { mut sets, is_activated, .. } = assignment;
    let inherited = sets.iter().flat_map(|it| &it.inherited).map(|it| &it.addr);
    let all = sets.iter().flat_map(|it| &it.set.listen).chain(inherited);
    let all: Vec<_> = all.filter_map(ListenAddr::tcp).chain(admin.iter().copied()).collect();
    let mut plan = AddressPlan::new(settings::workers(config), &all, Vec::new());
    let mut taken = Vec::new();
    for (it, (_, options)) in sets.iter_mut().zip(&options) {
        let sockets = it.inherited.drain(..).map(|sockets| plan.take(sockets, options));
        taken.push(sockets.collect::<Result<Vec<_>, _>>()?);
    }
    let mut bound = Vec::new();
    for ((AssignedSet { set, .. }, taken), (_, options)) in sets.iter().zip(taken).zip(&options) {
        for tcp in set.listen.iter().filter_map(ListenAddr::tcp) {
            bound.push(BoundListener::new(set, tcp.into(), false, plan.bind(tcp, options)?)?);
        }
        for listener in taken {
            let addr = listener.addr.clone();
            bound.push(BoundListener::new(set, addr, is_activated, listener)?);
        }
    }
    Ok(bound)
}

/// Creates the socket of control commands, which only this user may use. In addition to the file's
/// mode, the kernel reports the peer's user id, which must be ours or root.
fn create_control(
    path: PathBuf,
    replaces: bool,
) -> Result<(UnixFiles, UnixListener), UnixSocketError> {
    let (mut files, wanted) = (UnixFiles::default(), SocketSpec { path, mode: 0o600 });
    let socket = if replaces { files.replace(&wanted) } else { files.create(&wanted) }?;
    Ok((files, socket.into()))
}

/// A Unix socket with the number of its listener set.
type SetSocket = (usize, SocketSpec);

/// Returns the Unix sockets to make, and the given ones whose files are adopted from an older
/// process, each with the number of its listener set; and the remaining files of that process.
fn unix_sockets(
    assignment: &mut SocketAssignment,
    replaces: bool,
) -> (Vec<SetSocket>, Vec<SetSocket>, Vec<PathBuf>) {
    let (mut to_create, mut to_adopt) = (Vec::new(), Vec::new());
    for (number, AssignedSet { set, inherited }) in assignment.sets.iter_mut().enumerate() {
        let mode = set.mode;
        let of =
            |addr: &ListenAddr| Some((number, SocketSpec { path: addr.unix()?.to_owned(), mode }));
        to_create.extend(set.listen.iter().filter_map(of));
        set.listen.retain(|addr| addr.tcp().is_some());
        if replaces {
            // The files of a service manager's sockets belong to the manager.
            let own = inherited.iter().filter_map(|it| of(&it.addr));
            to_adopt.extend(own.filter(|(_, it)| !assignment.managed.contains(&it.path)));
        }
    }
    (to_create, to_adopt, std::mem::take(&mut assignment.unconfigured))
}

/// Whether another process has the address, or the socket on which it would hand it over.
fn is_in_use(error: &RunError) -> bool {
    match error {
        RunError::Admin(error) => error.is_in_use(),
        RunError::Listen(error) => error.is_in_use(),
        RunError::Takeover(TakeoverError::Occupied(_))
        | RunError::Unix(UnixSocketError::InUse(_)) => true,
        _ => false,
    }
}

/// Whether a folder that may be the right one takes no files at present.
fn is_unwritable(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), QuotaExceeded | ReadOnlyFilesystem | StorageFull)
}

/// Runs blocking work on a thread of its own. Returns `None` if a signal to stop arrived first.
pub(super) async fn run_unless_stopped<T: Send + 'static>(
    signals: &mut Signals,
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, RunError> {
    let mut done = threads::spawn("start", work)?;
    let mut pause = REPORT_AFTER.0;
    loop {
        tokio::select! {
            biased;
            done = &mut done => {
                return done.map(Some).map_err(|_| RunError::Lost("a thread of the start"));
            }
            (name, _) = signals.stop() => {
                info!(signal = name, "received {name} while waiting for {what}");
                return Ok(None);
            }
            () = tokio::time::sleep(pause) => {
                warn!("still starting: waiting for {what}");
                pause = (pause * 2).min(REPORT_AFTER.1);
            }
        }
    }
}

fn bind_admin(
    config: &Config,
    inherited: Vec<std::net::TcpListener>,
    is_activated: bool,
) -> Result<admin_http::Server, admin_http::BindError> {
    let listen = listener_set::all(config).into_iter().flat_map(|set| set.listen);
    let v4 = listen.filter_map(|addr| addr.tcp()).filter(SocketAddr::is_ipv4);
    let settings = admin_http::ServerSettings {
        max_connections: config.admin.max_connections,
        ipv4_ports: v4.map(|addr| addr.port()).collect(),
        ..admin_http::ServerSettings::default()
    };
    let (all, read_only) = (&config.admin.listen, &config.admin.read_only_listen);
    if inherited.is_empty() || !is_activated {
        let addresses: Vec<SocketAddr> = all.iter().chain(read_only).copied().collect();
        let server = admin_http::Server::bind_beside(&addresses, inherited, settings)?;
        // With their actual ports, in the same order.
        let read_only = server.addresses.get(all.len()..).unwrap_or_default().to_vec();
        Ok(server.read_only(read_only))
    } else {
        let server = admin_http::Server::from_listeners(inherited, settings)?;
        Ok(server.read_only(read_only.iter().copied()))
    }
}
