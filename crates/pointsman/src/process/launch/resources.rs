//! What a start needs before anybody is served: sockets, the places where orders and successors
//! come, discovery, masters.
//!
//! Bind early, serve late: every address is bound, or its socket taken from whoever holds it,
//! before anything is started, so that a fault is told at the start and by a person's name for it.
//! A process that takes over from another one looks for the masters first and serves only when it
//! has found them; until then it has changed nothing, and may fail.
//!
//! Whatever touches a folder or waits for another process is done on a thread of its own, and a
//! signal to stop ends the wait.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proxy::{Bound, InheritedSockets, ListenAddr};
use sentinel::{Discovery, Handle};
use tracing::{debug, info, warn};

use crate::admin::control_socket::{ControlSocket, ControlSocketError};
use crate::admin::report::Watched;
use crate::config::Config;
use crate::process::in_force::InForce;
use crate::process::inherit::{self, Allotment};
use crate::process::listener_set::{self, Layout};
use crate::process::run::{self, RunError, workers};
use crate::process::signals::Signals;
use crate::process::takeover::{self, Place, Taken, TakeoverError};
use crate::process::threads;
use crate::process::watch;
use crate::system::unix_sockets::{UnixFiles, UnixSocketError, Wanted};

/// How long a process that takes over looks for a master before it gives up.
const MASTER: Duration = Duration::from_secs(15);
/// How often it looks whether there is one.
const GLANCE: Duration = Duration::from_millis(20);
/// After this time it is said what the start waits for; then each time after twice as long, up to
/// the other one.
const SAY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// How often a start with --takeover looks again for addresses that are taken although nobody can
/// be asked for them: for some five seconds.
const ATTEMPTS: u32 = 250;

/// What is there before the data plane.
pub(super) struct Beginning {
    pub(super) admin: admin_http::Server,
    pub(super) control: Option<ControlSocket>,
    pub(super) unix: UnixFiles,
    pub(super) place: Option<Place>,
    pub(super) taken: Option<Taken>,
}

/// Everything that may fail or take its time before anybody is served. `None` if told to stop
/// meanwhile.
pub(super) async fn begin(
    given: &mut run::StartupInputs<'_>,
) -> Result<Option<(Ground, Beginning)>, RunError> {
    let config = given.config;
    let meeting = config.process.state_dir.as_deref().map(takeover::path);
    let sockets = inherit::from_service_manager()?;
    if !sockets.is_empty() {
        info!(sockets = sockets.len(), "sockets of the service manager are used");
        return prepare(given, meeting, Allotment::activated(config, sockets)?, None).await;
    }
    let Some(path) = meeting.clone().filter(|_| given.takeover) else {
        return prepare(given, meeting, Allotment::none(config), None).await;
    };
    let mut attempts = ATTEMPTS;
    loop {
        let path = path.clone();
        let taken =
            unless_stopped(&mut given.signals, "the takeover", move || takeover::take(&path))
                .await?;
        let Some(taken) = taken.transpose()? else { return Ok(None) };
        attempts = attempts.saturating_sub(1);
        let may_wait = taken.is_none() && attempts > 0;
        let (allotment, taken) = taken_over(config, taken);
        match Box::pin(prepare(given, meeting.clone(), allotment, taken)).await {
            // The addresses of a process that has just died, or of one that is starting beside us
            // and can be taken over from soon.
            Err(error) if may_wait && is_in_use(&error) => {
                debug!("trying again: {error}");
                tokio::time::sleep(GLANCE).await;
            }
            other => return other,
        }
    }
}

fn taken_over(config: &Config, taken: Option<Taken>) -> (Allotment, Option<Taken>) {
    match taken {
        Some(mut taken) => {
            info!(sockets = taken.sockets.len(), "sockets of the running process are used");
            (Allotment::taken_over(config, std::mem::take(&mut taken.sockets)), Some(taken))
        }
        None => (Allotment::none(config), None),
    }
}

async fn prepare(
    given: &mut run::StartupInputs<'_>,
    meeting: Option<PathBuf>,
    mut allotment: Allotment,
    mut taken: Option<Taken>,
) -> Result<Option<(Ground, Beginning)>, RunError> {
    let config = given.config;
    let instead = taken.is_some();
    let control = config.admin.control_socket.clone().filter(|_| config.admin.control);
    let (wanted, adopted, unwanted) = unix_sockets(config, &mut allotment, instead);
    let files = move || -> Result<_, RunError> {
        let place = meeting.map(|path| Place::open(&path, instead)).transpose()?;
        let control =
            control.map(|path| ControlSocket::make(Path::new(&path), instead)).transpose()?;
        let mut unix = UnixFiles::default();
        let made = wanted.into_iter().map(|(plane, wanted)| {
            let given = InheritedSockets {
                sockets: vec![unix.make(&wanted)?],
                addr: ListenAddr::Unix(wanted.path),
            };
            Ok((plane, given))
        });
        let made = made.collect::<Result<Vec<_>, UnixSocketError>>()?;
        let theirs = unix.adopt(&adopted, &unwanted);
        Ok((place, control, unix, made, theirs))
    };
    let Some(files) = unless_stopped(&mut given.signals, "its sockets' folders", files).await?
    else {
        return Ok(None);
    };
    let (place, control, unix, made, theirs) = files?;
    for (plane, given) in made {
        if let Some((_, all)) = allotment.planes.get_mut(plane) {
            all.push(given);
        }
    }
    if let Some(taken) = &mut taken {
        taken.files = theirs;
    }
    let admin = bind_admin(config, std::mem::take(&mut allotment.admin))?;
    let (admin, control) = match control {
        Some((file, listener)) => {
            (admin.unix_socket(listener, ControlSocket::users())?, Some(file))
        }
        None => (admin, None),
    };
    let ground = Ground::prepare(given, allotment, &admin)?;
    if let Some(taken) = &taken
        && !masters(&ground.handles, taken, &mut given.signals).await?
    {
        return Ok(None);
    }
    Ok(Some((ground, Beginning { admin, control, unix, place, taken })))
}

/// The Unix sockets to make, each with the number of its plane; those that were given and whose
/// files are to be adopted from an older process; and that process's other ones.
fn unix_sockets(
    config: &Config,
    allotment: &mut Allotment,
    instead: bool,
) -> (Vec<(usize, Wanted)>, Vec<Wanted>, Vec<PathBuf>) {
    let planes = listener_set::of(config);
    let of = |plane: usize, addr: &ListenAddr| {
        let mode = planes.get(plane)?.mode;
        Some(Wanted { path: addr.unix()?.to_owned(), mode })
    };
    let (mut wanted, mut adopted) = (Vec::new(), Vec::new());
    for (plane, (listen, given)) in allotment.planes.iter_mut().enumerate() {
        wanted.extend(listen.iter().filter_map(|addr| Some((plane, of(plane, addr)?))));
        listen.retain(|addr| addr.tcp().is_some());
        if instead {
            // Sockets of a service manager have files that are the manager's.
            let own = given.iter().filter_map(|given| of(plane, &given.addr));
            adopted.extend(own.filter(|it| !allotment.managed.contains(&it.path)));
        }
    }
    (wanted, adopted, std::mem::take(&mut allotment.unwanted))
}

/// Whether another process has the address, or the place where to ask for it.
fn is_in_use(error: &RunError) -> bool {
    matches!(
        error,
        RunError::Admin(admin_http::BindError::InUse { .. })
            | RunError::Listen(proxy::BindError::InUse { .. })
            | RunError::Takeover(TakeoverError::Occupied(_))
            | RunError::ControlSocket(ControlSocketError::Occupied(_))
            | RunError::Unix(UnixSocketError::InUse(_))
    )
}

/// Does what may block on a thread of its own; `None` if told to stop before it has ended.
async fn unless_stopped<T: Send + 'static>(
    signals: &mut Signals,
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, RunError> {
    let mut done = threads::aside("start", work)?;
    let mut pause = SAY.0;
    loop {
        tokio::select! {
            biased;
            done = &mut done => return done.map(Some).map_err(|_| RunError::Lost("a thread of the start")),
            (name, _) = signals.stop() => {
                info!(signal = name, "told to stop while waiting for {what}");
                return Ok(None);
            }
            () = tokio::time::sleep(pause) => {
                warn!("the start waits for {what}");
                pause = (pause * 2).min(SAY.1);
            }
        }
    }
}

fn bind_admin(
    config: &Config,
    given: Vec<std::net::TcpListener>,
) -> Result<admin_http::Server, admin_http::BindError> {
    let listen = listener_set::of(config).into_iter().flat_map(|plane| plane.listen);
    let v4 = listen.filter_map(|addr| addr.tcp()).filter(SocketAddr::is_ipv4);
    let settings = admin_http::ServerSettings {
        max_connections: config.admin.max_connections,
        ipv4_ports: v4.map(|addr| addr.port()).collect(),
        ..admin_http::ServerSettings::default()
    };
    if given.is_empty() {
        admin_http::Server::bind(&config.admin.listen, settings)
    } else {
        admin_http::Server::from_listeners(given, settings)
    }
}

/// Waits until there is a master to send clients to, or nobody else who could serve them. `false`
/// if told to stop meanwhile.
async fn masters(
    handles: &[Handle],
    taken: &Taken,
    signals: &mut Signals,
) -> Result<bool, RunError> {
    let have = || handles.iter().filter(|handle| handle.seen().master.is_some()).count();
    // Counted and not timed: a process that was stopped meanwhile has not looked.
    let mut glances = MASTER.as_millis() / GLANCE.as_millis();
    while have() < handles.len() {
        glances = glances.saturating_sub(1);
        if taken.is_left_alone() {
            let path = taken.path().to_owned();
            match unless_stopped(signals, "the state folder", move || takeover::is_deserted(&path))
                .await?
            {
                None => return Ok(false),
                Some(true) => {
                    warn!("the old process has ended: serving without waiting for a master");
                    return Ok(true);
                }
                Some(false) => {}
            }
        }
        if glances == 0 {
            return if have() > 0 { Ok(true) } else { Err(TakeoverError::NoMaster(MASTER).into()) };
        }
        tokio::select! {
            () = tokio::time::sleep(GLANCE) => {}
            (name, _) = signals.stop() => {
                info!(signal = name, "told to stop before anything was taken over");
                return Ok(false);
            },
        }
    }
    Ok(true)
}

/// The data plane bound, discovery at work.
pub(super) struct Ground {
    pub(super) bound: Bound,
    pub(super) handles: Vec<Handle>,
    pub(super) heartbeat: sentinel::Heartbeat,
    pub(super) discovery: tokio::task::JoinHandle<()>,
}

impl Ground {
    fn prepare(
        given: &run::StartupInputs<'_>,
        allotment: Allotment,
        admin: &admin_http::Server,
    ) -> Result<Self, RunError> {
        let (config, limits) = (given.config, &given.connections.services);
        let Layout { services, watches, ears } = Layout::new(config, limits);
        let planes = services.into_iter().zip(allotment.planes);
        let planes = planes.map(|(service, (listen, given))| {
            (service, listen.iter().filter_map(ListenAddr::tcp).collect(), given)
        });
        let bound = Bound::bind_or_take(
            workers(config),
            given.connections.total,
            admin.addresses(),
            planes,
        )?;
        let listen = bound.local_addrs().iter().flatten().filter_map(ListenAddr::tcp);
        let own: Vec<_> = listen.chain(admin.addresses().iter().copied()).collect();
        let (discovery, handles) = Discovery::new(watches, watch::timeouts(&config.services), &own);
        ears.connect(&handles);
        let heartbeat = discovery.heartbeat();
        Ok(Self { bound, handles, heartbeat, discovery: tokio::spawn(discovery.run()) })
    }

    pub(super) fn watched(&self, config: &Config, in_force: &InForce) -> Vec<Watched> {
        let planes = listener_set::of(config);
        let services =
            config.services.iter().zip(self.bound.local_addrs()).zip(&self.handles).enumerate();
        let watched = services.map(|(number, ((service, listen), discovery))| {
            let readers = planes.iter().position(|it| it.reads && it.service == number);
            let readers = readers
                .and_then(|plane| Some((plane, self.bound.local_addrs().get(plane)?.clone())));
            let replica_listen = readers.as_ref().map(|(_, listen)| tracing::field::debug(listen));
            info!(service = %service.name, ?listen, replica_listen, "serving");
            Watched {
                name: service.name.clone(),
                listen: listen.clone(),
                readers: readers.clone(),
                number,
                in_force: in_force.clone(),
                discovery: discovery.clone(),
            }
        });
        watched.collect()
    }
}
