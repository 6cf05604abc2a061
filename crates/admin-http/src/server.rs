//! Bind early, serve later, stop within a bound.
//!
//! Deliberately absent: where the addresses come from, and what happens when the server cannot be
//! started; the caller knows whether a process without probes is worth running.

use std::borrow::Cow;
use std::hash::RandomState;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::accept;
use crate::connection::Shared;
use crate::door::ConnectionLimit;
use crate::registry::{Registry, Stats};
use crate::report::Reporter;
use crate::routes::{Handler, Routes, Streams};

/// Connections that may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 1024;

/// The bounds of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Connections at a time, over all addresses. One more is let in at the cost of the one whose
    /// client has kept us waiting longest; if nobody keeps us waiting, the newcomer is closed at
    /// once.
    pub max_connections: usize,
    /// Answers without an end at a time. Should be well below `max_connections`; one more is
    /// answered with 503.
    pub max_streams: usize,
    /// From a new connection, or from the first byte of a later request, to the end of the
    /// request's header.
    pub header_timeout: Duration,
    /// From the end of a request's header to the end of its answer, and the longest time a client
    /// may leave unread what we want to write.
    pub request_timeout: Duration,
    /// From the end of an answer to the first byte of the next request.
    pub idle_timeout: Duration,
    /// Bytes of a request's line and header. More is answered with 431.
    pub max_header_bytes: usize,
    /// Bytes of a request's body, which is read away and ignored. More is answered with 413.
    pub max_body_bytes: usize,
    /// How long a stop waits for answers under way.
    pub stop_grace: Duration,
    /// Ports for which the process has IPv4 addresses of its own, for other purposes.
    pub ipv4_ports: Vec<u16>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_connections: 64,
            max_streams: 8,
            header_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            max_header_bytes: 16 * 1024,
            max_body_bytes: 64 * 1024,
            stop_grace: Duration::from_secs(1),
            ipv4_ports: Vec::new(),
        }
    }
}

/// An address could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else listens there.
    #[error(
        "admin address {address} is already in use by another process; stop that process or listen on another address"
    )]
    InUse {
        /// The address as it was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// It is not an address of this machine.
    #[error(
        "admin address {address} does not belong to this machine; use one that does, or 0.0.0.0 or [::] for all"
    )]
    NotHere {
        /// The address as it was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system does not allow it.
    #[error(
        "admin address {address} is not permitted to this user; use a port above 1023 or grant CAP_NET_BIND_SERVICE"
    )]
    Forbidden {
        /// The address as it was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Anything else.
    #[error(
        "cannot listen on admin address {address}; see the system's reason and choose another address if need be"
    )]
    Other {
        /// The address as it was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A listener that was handed over cannot be used.
    #[error(
        "a listening socket that was handed over for the admin server cannot be used; it must be a TCP listener"
    )]
    HandedOver(#[source] io::Error),
}

impl BindError {
    fn new(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { address, source },
            io::ErrorKind::AddrNotAvailable => Self::NotHere { address, source },
            io::ErrorKind::PermissionDenied => Self::Forbidden { address, source },
            _ => Self::Other { address, source },
        }
    }
}

/// The server's thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start the admin server's thread; check the limits on threads, memory and file descriptors"
)]
pub struct StartError(#[from] io::Error);

/// A server that is bound and does not answer yet.
pub struct Server {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    owners: Option<(UnixListener, Vec<u32>)>,
    settings: Settings,
    routes: Routes,
    stats: Stats,
}

impl Server {
    /// Binds every address, or none. Port 0 is a port of the system's choice, see
    /// [`Server::addresses`]. `[::]` takes IPv4 too where the system does so, unless an IPv4
    /// address of the process has the same port.
    ///
    /// # Errors
    ///
    /// [`BindError`] for the first address that cannot be bound.
    pub fn bind(addresses: &[SocketAddr], settings: Settings) -> Result<Self, BindError> {
        let mut listeners = Vec::with_capacity(addresses.len());
        for address in addresses {
            let mut v4_ports =
                addresses.iter().filter(|other| other.is_ipv4()).map(SocketAddr::port);
            let beside_v4 = address.is_ipv6()
                && (settings.ipv4_ports.contains(&address.port())
                    || v4_ports.any(|port| port == address.port()));
            let listener =
                listen(*address, beside_v4).map_err(|source| BindError::new(*address, source))?;
            listeners.push(listener);
        }
        Self::from_listeners(listeners, settings)
    }

    /// Uses sockets that somebody else has bound and that listen already, such as those of a
    /// service manager.
    ///
    /// # Errors
    ///
    /// [`BindError::HandedOver`] if one cannot be used.
    pub fn from_listeners(
        listeners: Vec<TcpListener>,
        settings: Settings,
    ) -> Result<Self, BindError> {
        let mut addresses = Vec::with_capacity(listeners.len());
        for listener in &listeners {
            listener.set_nonblocking(true).map_err(BindError::HandedOver)?;
            addresses.push(listener.local_addr().map_err(BindError::HandedOver)?);
        }
        Ok(Self {
            listeners,
            addresses,
            owners: None,
            settings,
            routes: Routes::default(),
            stats: Stats::default(),
        })
    }

    /// The addresses in the order they were given, with the ports they really have.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What the server counts about itself.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// Second handles on the listening sockets, for another process that takes over. As long as one
    /// is held, a stop of the server does not close its port.
    ///
    /// # Errors
    ///
    /// If there are no file descriptors for them.
    pub fn handles(&self) -> io::Result<Vec<TcpListener>> {
        self.listeners.iter().map(TcpListener::try_clone).collect()
    }

    /// Lets `handler` answer `path`, which is compared byte by byte. A path added twice, or built
    /// in, is answered by the handler added last.
    #[must_use]
    pub fn route(mut self, path: impl Into<Cow<'static, str>>, handler: Arc<dyn Handler>) -> Self {
        self.routes.add(path.into(), handler);
        self
    }

    /// Serves the same on a Unix socket, to peers that belong to one of these users, within the
    /// same bounds. The others' connections are closed.
    ///
    /// # Errors
    ///
    /// If it cannot be used.
    pub fn owners(mut self, listener: UnixListener, users: Vec<u32>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        self.owners = Some((listener, users));
        Ok(self)
    }

    /// Starts to answer, on a thread of its own.
    ///
    /// # Errors
    ///
    /// [`StartError`] if the thread or its runtime cannot be made.
    pub fn serve(self, reporter: Arc<dyn Reporter>) -> Result<Handle, StartError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = watch::channel(false);
        let (ended, end) = oneshot::channel();
        let grace = self.settings.stop_grace;
        let registry = Registry::new(self.stats.clone(), self.settings.max_connections);
        let shared = Arc::new(Shared {
            streams: Streams::new(self.settings.max_streams),
            settings: self.settings,
            routes: self.routes,
            reporter,
            registry,
            keys: [RandomState::new(), RandomState::new()],
        });
        let doors = {
            // Registering with the runtime can fail, and should do so here.
            let _entered = runtime.enter();
            let network = |listener| {
                tokio::net::TcpListener::from_std(listener).map(ConnectionLimit::Network)
            };
            let owners = |(listener, users)| {
                Ok(ConnectionLimit::Owner(tokio::net::UnixListener::from_std(listener)?, users))
            };
            let registered = self.listeners.into_iter().map(network).chain(self.owners.map(owners));
            registered.collect::<io::Result<Vec<_>>>()?
        };
        std::thread::Builder::new().name("probe".to_owned()).spawn(move || {
            runtime.block_on(run(shared, doors, stopped, grace));
            drop(runtime);
            // Whoever waited may have gone.
            let _ = ended.send(());
        })?;
        Ok(Handle { addresses: self.addresses, stats: self.stats, stop, end, grace })
    }
}

/// Serves until told to stop, then lets the answers under way be finished.
async fn run(
    shared: Arc<Shared>,
    doors: Vec<ConnectionLimit>,
    mut stop: watch::Receiver<bool>,
    grace: Duration,
) {
    let mut loops = JoinSet::new();
    for door in doors {
        loops.spawn(accept::run(Arc::clone(&shared), door, stop.clone()));
    }
    // An error means that the handle is gone, which is an order to stop too.
    let _ = stop.wait_for(|stop| *stop).await;
    let everybody_gone = async {
        while loops.join_next().await.is_some() {}
        loop {
            let freed = shared.registry.freed.notified();
            if shared.registry.is_empty() {
                return;
            }
            freed.await;
        }
    };
    // What is not finished by then ends with the runtime.
    let _ = tokio::time::timeout(grace, everybody_gone).await;
}

fn listen(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not have to wait for connections of the last run to be forgotten.
    socket.set_reuse_address(true)?;
    if only_v6 {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A server that answers. Dropping it stops the server without waiting for it.
#[derive(Debug)]
pub struct Handle {
    addresses: Vec<SocketAddr>,
    stats: Stats,
    stop: watch::Sender<bool>,
    end: oneshot::Receiver<()>,
    grace: Duration,
}

impl Handle {
    /// The addresses in the order they were given, with the ports they really have.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What the server counts about itself.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats.clone()
    }

    /// Closes the listeners, lets the answers under way be finished for at most `stop_grace`, and
    /// returns when the thread has ended: `true`. A reporter that blocks can keep the thread for
    /// longer; then this returns `false` a second after the grace. Needs a runtime with timers.
    pub async fn stop(self) -> bool {
        self.stop.send_replace(true);
        let bound = self.grace.saturating_add(Duration::from_secs(1));
        matches!(tokio::time::timeout(bound, self.end).await, Ok(Ok(())))
    }
}
