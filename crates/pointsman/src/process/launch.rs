//! The start: from a checked configuration to everything running.
//!
//! `resources` has what a start needs before clients are served; here the workers and the admin
//! server begin, and the rest is wired.

mod resources;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use proxy::Sockets;
use sentinel::Handle;
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use self::resources::{Beginning, begin};
use crate::admin::control::Control;
use crate::admin::control_socket::ControlSocket;
use crate::admin::history::History;
use crate::admin::metrics::Scraper;
use crate::admin::report::Report;
use crate::config::{Config, Splice};
use crate::process::in_force::{Facts, InForce};
use crate::process::inherit::{ADMIN, Inherited, OF_MANAGER};
use crate::process::listener_set;
use crate::process::reload::{self, Reloader};
use crate::process::run::{Process, RunError, StartupInputs, shutdown, watch_room};
use crate::process::supervisor::Supervisor;
use crate::process::takeover::{self, Closer, Offer, Place, Taken};
use crate::process::threads;
use crate::system::descriptors;
use crate::system::unix_sockets::UnixFiles;

impl Process {
    /// Starts everything; `None` if it was told to stop before that.
    pub(crate) async fn start(mut given: StartupInputs<'_>) -> Result<Option<Self>, RunError> {
        let start = Instant::now();
        let Some((ground, Beginning { admin, control, unix, place, taken })) =
            begin(&mut given).await?
        else {
            return Ok(None);
        };
        let StartupInputs { config, signals, reader, .. } = given;
        let sockets = Arc::new(Mutex::new(ground.bound.sockets()?));
        let doors =
            Doors { sockets: Arc::clone(&sockets), admin: Arc::new(Mutex::new(admin.handles()?)) };

        let (drain, controller) = drain::new(shutdown(config));
        let controller = tokio::spawn(controller.run());
        let in_force = InForce::new(Facts::of(config, given.connections, Vec::new()));
        let services = ground.watched(config, &in_force);
        let workers = ground.bound.serve(&drain)?;
        publish_unix(&unix).await?;
        tell_of_splicing(config, workers.splices());
        let files = descriptors::Watch::new(given.files);
        let memory = watch_room(
            given.memory.clone(),
            files,
            in_force.clone(),
            workers.resource_shortage().clone(),
        );
        let memory = tokio::spawn(memory);
        let admin = remember(
            config,
            &ground.handles,
            workers.stats(),
            take_orders(config, &ground.handles, admin),
        );
        let report = Arc::new(Report {
            start,
            in_force: in_force.clone(),
            files: reader.files(),
            services,
            drain: drain.clone(),
            stats: workers.stats().clone(),
            scarcity: workers.resource_shortage().clone(),
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
        let watch = reload::watch(reader.source().clone(), reader.look(), Arc::clone(&changed));
        let watch = tokio::spawn(watch);
        publish(control.as_ref()).await?;
        let log = given.telemetry.switch();
        let (running, memory_bound) = (given.settings.clone(), given.memory);
        let reloader = Reloader { running, in_force, sockets, memory: memory_bound, log };
        let meeting =
            place.map(|place| doors.meet(config, place, taken, unix.paths())).transpose()?;
        // After the last thread that is made here.
        threads::hurry();
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
            unix,
            probe: Some(probe),
            report,
            reader,
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

    /// Attends the place where a later process may ask for them, once the one that they were taken
    /// from has left.
    /// `own` are the files of Unix sockets that are this process's.
    fn meet(
        &self,
        config: &Config,
        place: Place,
        taken: Option<Taken>,
        own: Vec<PathBuf>,
    ) -> Result<(Closer, HandedOver), RunError> {
        let names: Vec<String> =
            listener_set::of(config).into_iter().map(|plane| plane.name).collect();
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
                let is_managed =
                    socket.addr.unix().is_some_and(|path| !own.iter().any(|own| own == path));
                let name = if is_managed {
                    Some(OF_MANAGER.to_owned())
                } else {
                    names.get(socket.service).cloned()
                };
                let name = name.unwrap_or_default();
                offered.push(Inherited {
                    name,
                    addr: socket.addr.clone(),
                    listener: socket.listener.try_clone()?,
                });
            }
            for listener in admin.iter() {
                let (name, addr) = (ADMIN.to_owned(), listener.local_addr()?.into());
                offered.push(Inherited { name, addr, listener: listener.try_clone()?.into() });
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
        Ok((place.attend(taken, offer, agreed)?, told))
    }
}

/// Keeps the last minutes for the page.
fn remember(
    config: &Config,
    handles: &[Handle],
    stats: &proxy::Stats,
    admin: admin_http::Server,
) -> admin_http::Server {
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
fn take_orders(
    config: &Config,
    handles: &[Handle],
    admin: admin_http::Server,
) -> admin_http::Server {
    if !config.admin.control {
        return admin;
    }
    let names = config.services.iter().map(|service| service.name.clone());
    Control::new(config.admin.control_token.0.clone(), names.zip(handles.iter().cloned()).collect())
        .add_to(admin)
}

/// Clients find the Unix sockets from now on. Bounded, since the others are served by now.
async fn publish_unix(files: &UnixFiles) -> Result<(), RunError> {
    if files.is_empty() {
        return Ok(());
    }
    match tokio::time::timeout(takeover::STEP, threads::aside("start", files.publisher())?).await {
        Ok(Ok(done)) => Ok(done?),
        _ => {
            warn!("clients cannot connect to unix sockets yet: a folder does not answer");
            Ok(())
        }
    }
}

/// Takes orders from now on. Bounded, since clients are served by now, and need no orders.
async fn publish(control: Option<&ControlSocket>) -> Result<(), RunError> {
    let Some(control) = control.map(ControlSocket::publisher) else { return Ok(()) };
    match tokio::time::timeout(takeover::STEP, threads::aside("start", control)?).await {
        Ok(Ok(done)) => Ok(done?),
        _ => {
            warn!("orders cannot be given yet: the folder of admin.control_socket does not answer");
            Ok(())
        }
    }
}
