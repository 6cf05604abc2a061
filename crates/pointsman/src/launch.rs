//! The start: from a checked configuration to everything running.
//!
//! Bind early, serve late: every address is bound, or its socket taken from whoever holds it, before anything is started, so
//! that a fault is told at the start and by a person's name for it. A process that takes over from another one looks for the
//! masters first and serves only when it has found them; until then it has changed nothing, and may fail.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use proxy::{Bound, Sockets};
use sentinel::{Discovery, Handle};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use crate::config::{Config, Splice};
use crate::control::Control;
use crate::control_socket::ControlSocket;
use crate::history::History;
use crate::in_force::{Facts, InForce};
use crate::inherit::{self, ADMIN, Allotment, Inherited};
use crate::metrics::Scraper;
use crate::planes::{self, Layout};
use crate::reload::{self, Reloader};
use crate::report::{Report, Watched};
use crate::run::{Given, Process, RunError, shutdown, watch_memory, workers};
use crate::signals::Signals;
use crate::supervisor::Supervisor;
use crate::takeover::{self, Closer, Offer, Place, Taken, TakeoverError};
use crate::watch;

/// How long a process that takes over looks for a master before it gives up.
const MASTER: Duration = Duration::from_secs(15);
/// How often it looks whether there is one.
const GLANCE: Duration = Duration::from_millis(20);

/// Sockets that this process did not bind itself, and the process that some of them came from.
fn allot(config: &Config, takeover: Option<&Path>) -> Result<(Allotment, Option<Taken>), RunError> {
    let given = inherit::from_service_manager()?;
    if !given.is_empty() {
        info!(sockets = given.len(), "sockets of the service manager are used");
        return Ok((Allotment::activated(config, given)?, None));
    }
    let taken = takeover.map(takeover::take).transpose()?.flatten();
    Ok(match taken {
        Some(mut taken) => {
            info!(sockets = taken.sockets.len(), "sockets of the running process are used");
            (Allotment::taken_over(config, std::mem::take(&mut taken.sockets)), Some(taken))
        }
        None => (Allotment::none(config), None),
    })
}

fn bind_admin(config: &Config, given: Vec<std::net::TcpListener>) -> Result<probe::Server, probe::BindError> {
    let settings = probe::Settings { max_connections: config.admin.max_connections, ..probe::Settings::default() };
    if given.is_empty() {
        probe::Server::bind(&config.admin.listen, settings)
    } else {
        probe::Server::from_listeners(given, settings)
    }
}

/// Takes orders from now on, then tells the process that the sockets came from that we serve by now, and waits until it leaves and takes
/// its own socket for orders away.
async fn relieve(taken: Option<Taken>, control: Option<&ControlSocket>) -> Result<(), RunError> {
    control.map(ControlSocket::publish).transpose()?;
    let Some(taken) = taken else { return Ok(()) };
    // On a thread that may block.
    match tokio::task::spawn_blocking(|| taken.serving()).await {
        Ok(Ok(())) => info!("taken over: the old process leaves"),
        Ok(Err(error)) => warn!("the old process did not say that it leaves: {error}"),
        Err(_) => return Err(RunError::Lost("the hand-over")),
    }
    Ok(())
}

/// Waits until there is a master to send clients to. `false` if told to stop meanwhile.
async fn masters(handles: &[Handle], signals: &mut Signals) -> Result<bool, TakeoverError> {
    let have = || handles.iter().filter(|handle| handle.seen().master.is_some()).count();
    let deadline = Instant::now() + MASTER;
    while have() < handles.len() {
        if Instant::now() >= deadline {
            return if have() > 0 { Ok(true) } else { Err(TakeoverError::NoMaster(MASTER)) };
        }
        tokio::select! {
            () = tokio::time::sleep(GLANCE) => {}
            (name, asked) = signals.next() => if let crate::signals::Asked::Stop(_) = asked {
                info!(signal = name, "told to stop before anything was taken over");
                return Ok(false);
            },
        }
    }
    Ok(true)
}

/// Niceness of the thread that runs discovery, where the system allows it.
const HURRY: i32 = -10;

/// Asks the system to let this thread go first. It does little, but in a planned failover Sentinel leaves 50 to 90 ms between
/// naming a candidate and promoting it, and traffic has to be held by then. On a machine with a load of five on two cores it was
/// seen to wait for 70 ms. All other threads are there by now, and stay as nice as they are; for those that come later see
/// [`at_ease`].
fn hurry() {
    if let Err(error) = rustix::process::setpriority_process(None, HURRY) {
        // In most containers. It works as well, if there is CPU.
        debug!(%error, "discovery gets no priority");
    }
}

/// What a thread does first that the runtime makes when it needs one, for files and names: it inherits the hurry, and gives it up.
pub(crate) fn at_ease() -> impl Fn() + Send + Sync + 'static {
    let usual = rustix::process::getpriority_process(None).unwrap_or(0);
    move || {
        // Everybody may be nicer than he is.
        if let Err(error) = rustix::process::setpriority_process(None, usual) {
            debug!(%error, "a thread keeps discovery's priority");
        }
    }
}

/// The data plane bound, discovery at work.
struct Ground {
    bound: Bound,
    handles: Vec<Handle>,
    heartbeat: sentinel::Heartbeat,
    discovery: tokio::task::JoinHandle<()>,
}

impl Ground {
    fn prepare(given: &Given<'_>, allotment: Allotment, admin: &probe::Server) -> Result<Self, RunError> {
        let (config, limits) = (given.config, &given.connections.services);
        let Layout { services, watches, ears } = Layout::new(config, limits);
        let planes = services.into_iter().zip(allotment.planes);
        let planes = planes.map(|(service, (listen, sockets))| (service, listen, sockets));
        let bound = Bound::bind_or_take(workers(config), given.connections.total, planes)?;
        let own: Vec<_> = bound.local_addrs().iter().flatten().chain(admin.addresses()).copied().collect();
        let (discovery, handles) = Discovery::new(watches, watch::timeouts(&config.services), &own);
        ears.connect(&handles);
        let heartbeat = discovery.heartbeat();
        Ok(Self { bound, handles, heartbeat, discovery: tokio::spawn(discovery.run()) })
    }

    fn watched(&self, config: &Config, in_force: &InForce) -> Vec<Watched> {
        let planes = planes::of(config);
        let services = config.services.iter().zip(self.bound.local_addrs()).zip(&self.handles).enumerate();
        let watched = services.map(|(number, ((service, listen), discovery))| {
            let readers = planes.iter().position(|it| it.reads && it.service == number);
            let readers = readers.and_then(|plane| Some((plane, self.bound.local_addrs().get(plane)?.clone())));
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

impl Process {
    /// Starts everything; `None` if it was told to stop before that.
    pub(crate) async fn start(given: Given<'_>) -> Result<Option<Self>, RunError> {
        let config = given.config;
        let mut signals = Signals::listen()?;
        let start = Instant::now();
        let meeting = config.process.state_dir.as_deref().map(takeover::path);
        let (mut allotment, taken) = allot(config, meeting.as_deref().filter(|_| given.takeover))?;
        let admin = bind_admin(config, std::mem::take(&mut allotment.admin))?;
        let (admin, control) = open_control(config, admin, taken.is_some())?;
        let ground = Ground::prepare(&given, allotment, &admin)?;
        if taken.is_some() && !masters(&ground.handles, &mut signals).await? {
            return Ok(None);
        }
        let sockets = Arc::new(Mutex::new(ground.bound.sockets()?));
        let doors = Doors { sockets: Arc::clone(&sockets), admin: Arc::new(Mutex::new(admin.handles()?)) };

        let (drain, controller) = drain::new(shutdown(config));
        let controller = tokio::spawn(controller.run());
        let in_force = InForce::new(Facts::of(config, given.connections, Vec::new()));
        let services = ground.watched(config, &in_force);
        let workers = ground.bound.serve(&drain)?;
        tell_of_splicing(config, workers.splices());
        let memory = tokio::spawn(watch_memory(given.memory.clone(), workers.scarcity().clone()));
        let admin = remember(config, &ground.handles, workers.stats(), take_orders(config, &ground.handles, admin));
        let report = Arc::new(Report {
            start,
            in_force: in_force.clone(),
            services,
            drain: drain.clone(),
            stats: workers.stats().clone(),
            scarcity: workers.scarcity().clone(),
            workers: workers.heartbeats().to_vec(),
            discovery: ground.heartbeat,
            unread: given.telemetry.unread(),
            memory: given.memory.clone(),
            admin: admin.stats(),
            scraper: Mutex::new(Scraper::new(config.metrics.haproxy_names)),
        });
        info!(admin = ?admin.addresses(), version = env!("CARGO_PKG_VERSION"), config = %config.hash, "started");
        let probe = admin.serve(report.clone())?;
        let changed = Arc::new(Notify::new());
        let watch = tokio::spawn(reload::watch(given.source.clone(), Arc::clone(&changed)));
        relieve(taken, control.as_ref()).await?;
        let log = given.telemetry.switch();
        let (source, running, memory_bound) = (given.source.clone(), given.settings.clone(), given.memory);
        let reloader = Reloader { source, running, in_force, sockets, memory: memory_bound, log };
        let meeting = meeting.map(|path| doors.meet(config, &path)).transpose()?;
        // Behind the last thread that is made here.
        hurry();
        let mut supervisor = Supervisor::find();
        supervisor.ready();
        Ok(Some(Self {
            signals,
            drain,
            controller,
            discovery: ground.discovery,
            memory,
            workers,
            control,
            probe: Some(probe),
            report,
            reloader,
            changed,
            watch,
            supervisor,
            doors,
            meeting,
            parting: None,
        }))
    }
}

/// Second handles on every listening socket of the process, as long as they may be handed over.
pub(crate) struct Doors {
    sockets: Arc<Mutex<Sockets>>,
    admin: Arc<Mutex<Vec<std::net::TcpListener>>>,
}

/// Word of a process that serves our sockets, and a way to tell it that we leave.
pub(crate) type HandedOver = tokio::sync::mpsc::Receiver<std::sync::mpsc::SyncSender<()>>;

impl Doors {
    /// Lets go of them: a stop begins. See [`Sockets`] for why this comes before it.
    pub(crate) fn release(&self) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).release();
        self.admin.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Opens the place where a later process may ask for them.
    fn meet(&self, config: &Config, path: &Path) -> Result<(Closer, HandedOver), RunError> {
        let names: Vec<String> = planes::of(config).into_iter().map(|plane| plane.name).collect();
        let (sockets, admin) = (Arc::clone(&self.sockets), Arc::clone(&self.admin));
        let offer: Offer = Box::new(move || {
            let (sockets, admin) = (
                sockets.lock().unwrap_or_else(PoisonError::into_inner),
                admin.lock().unwrap_or_else(PoisonError::into_inner),
            );
            if sockets.all().is_empty() {
                return Err(std::io::Error::other("this process is stopping"));
            }
            let mut offered = Vec::new();
            for socket in sockets.all() {
                let name = names.get(socket.service).cloned().unwrap_or_default();
                offered.push(Inherited { name, addr: socket.addr, listener: socket.listener.try_clone()? });
            }
            for listener in admin.iter() {
                let (name, addr) = (ADMIN.to_owned(), listener.local_addr()?);
                offered.push(Inherited { name, addr, listener: listener.try_clone()? });
            }
            Ok(offered)
        });
        let (tell, told) = tokio::sync::mpsc::channel(1);
        let agreed = move || {
            let (done, wait) = std::sync::mpsc::sync_channel(1);
            // If the loop is gone, the process is about to be.
            if tell.blocking_send(done).is_ok() {
                let _told = wait.recv_timeout(takeover::STEP);
            }
        };
        Ok((Place::open(path)?.attend(offer, agreed)?, told))
    }
}

/// Keeps the last minutes for the page.
fn remember(config: &Config, handles: &[Handle], stats: &proxy::Stats, admin: probe::Server) -> probe::Server {
    let names = config.services.iter().map(|service| service.name.clone());
    let history = History::new(names.zip(handles.iter().cloned()), stats.clone());
    // Without it the page has no plots; it ends with the runtime.
    tokio::spawn(Arc::clone(&history).keep());
    admin.route("/history", history)
}

/// Warns if large values will cost more than they are meant to.
fn tell_of_splicing(config: &Config, splices: Result<(), &std::io::Error>) {
    match splices {
        Ok(()) => debug!("large values are moved inside the kernel"),
        Err(error) if config.services.iter().any(|service| service.splice == Splice::On) => {
            warn!(%error, "the system does not let bytes be moved inside the kernel (splice): large values are copied");
        }
        Err(_) => {}
    }
}

/// Lets the admin server take orders, where that is on.
fn take_orders(config: &Config, handles: &[Handle], admin: probe::Server) -> probe::Server {
    if !config.admin.control {
        return admin;
    }
    let names = config.services.iter().map(|service| service.name.clone());
    Control::new(config.admin.control_token.0.clone(), names.zip(handles.iter().cloned()).collect()).add_to(admin)
}

/// Opens the socket for orders, where there is to be one. `instead`: of that of a running process.
fn open_control(
    config: &Config,
    admin: probe::Server,
    instead: bool,
) -> Result<(probe::Server, Option<ControlSocket>), RunError> {
    let Some(path) = config.admin.control_socket.as_ref().filter(|_| config.admin.control) else {
        return Ok((admin, None));
    };
    let (file, listener) = ControlSocket::make(Path::new(path), instead)?;
    Ok((admin.owners(listener, ControlSocket::users())?, Some(file)))
}
