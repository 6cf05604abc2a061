//! The listening sockets that this process offers to a successor.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use crate::admin::service_registry::{ReportedService, ServiceRegistry};
use proxy::Sockets;
use tokio::sync::mpsc::Receiver;

use super::{Offer, STEP, TakenSockets, TakeoverSocket, TakeoverThread};
use crate::process::error::RunError;
use crate::process::inherit::{ADMIN, NamedSocket, OF_MANAGER};

/// Duplicates of every listening socket of the process, kept for as long as they may be handed
/// over.
pub(crate) struct OfferedSockets {
    sockets: Arc<Mutex<Sockets>>,
    admin: Arc<Mutex<Vec<TcpListener>>>,
}

/// Reports a process that serves on our sockets, with a channel to confirm that we leave.
pub(crate) type HandedOver = Receiver<SyncSender<()>>;

impl OfferedSockets {
    pub(crate) fn new(sockets: &Arc<Mutex<Sockets>>, admin: Vec<TcpListener>) -> Self {
        Self { sockets: Arc::clone(sockets), admin: Arc::new(Mutex::new(admin)) }
    }

    /// Closes the duplicates when a stop begins. See [`Sockets`] for why this comes before the
    /// stop.
    pub(crate) fn release(&self) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).release();
        self.admin.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Serves takeover requests of later processes, once the process that our sockets were taken
    /// from has left. `own` are the files of the Unix sockets that belong to this process.
    pub(crate) fn serve_takeover(
        &self,
        takeover_socket: TakeoverSocket,
        taken: Option<TakenSockets>,
        own: Vec<PathBuf>,
        services: ServiceRegistry,
    ) -> Result<(TakeoverThread, HandedOver), RunError> {
        let (sockets, admin) = (Arc::clone(&self.sockets), Arc::clone(&self.admin));
        let offer: Offer = Box::new(move || {
            let (sockets, admin) = (
                sockets.lock().unwrap_or_else(PoisonError::into_inner),
                admin.lock().unwrap_or_else(PoisonError::into_inner),
            );
            // From now on no order is accepted of which the other process would not know.
            let mark = services.offer();
            if let Some(order) = services.list().iter().find_map(order_in_force) {
                return Err(std::io::Error::other(order));
            }
            if sockets.all().is_empty() {
                return Err(std::io::Error::other("this process is stopping"));
            }
            let mut offered = Vec::new();
            for socket in sockets.all() {
                let is_managed =
                    socket.addr.unix().is_some_and(|path| !own.iter().any(|own| own == path));
                let name = if is_managed { OF_MANAGER } else { &*socket.service }.to_owned();
                offered.push(NamedSocket {
                    name,
                    addr: socket.addr.clone(),
                    listener: socket.listener.try_clone()?,
                });
            }
            for listener in admin.iter() {
                let (name, addr) = (ADMIN.to_owned(), listener.local_addr()?.into());
                offered.push(NamedSocket { name, addr, listener: listener.try_clone()?.into() });
            }
            Ok((offered, mark))
        });
        let (handed_over, handovers) = tokio::sync::mpsc::channel(1);
        let on_handover = move || {
            let (done, wait) = std::sync::mpsc::sync_channel(1);
            // If the loop has ended, the process is about to end, too.
            if handed_over.blocking_send(done).is_ok() {
                let _confirmed = wait.recv_timeout(STEP);
            }
        };
        Ok((takeover_socket.start(taken, offer, on_handover)?, handovers))
    }
}

/// The operator's order that a successor would not know of, if there is one: without an override
/// it would follow the few sentinels that it finds, to another master, and without a pause it would
/// send what waits.
fn order_in_force(service: &Arc<ReportedService>) -> Option<&'static str> {
    let seen = service.discovery.snapshot();
    if seen.overrides.in_force.is_some() {
        return Some("an override is in force: end it with `pointsman unfollow` first");
    }
    // A switchover ends at a takeover by itself.
    let is_paused = seen.pause.is_some_and(|pause| !pause.ends_with_commit);
    is_paused.then_some("traffic is paused: end that with `pointsman resume` first")
}
