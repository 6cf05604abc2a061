//! The server's life: bind early, serve later, stop within a bound.
//!
//! The caller decides whether a process without probes is worth running.

use std::hash::RandomState;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;

use crate::accept;
use crate::admin_tls::AdminTls;
use crate::connection::ServerState;
use crate::hosts::HostNames;
use crate::listener::AdminListener;
use crate::registry::{Registry, ServerStats};
use crate::report::Reporter;
use crate::routes::{Method, Reply, Request, Routes};
use crate::settings::ServerSettings;
use crate::stop_stage::StopStage;

/// The accept queue; the system may limit it further.
const BACKLOG: i32 = 1024;

/// An address could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The system refused an address.
    #[error("{}", advise(*address, source))]
    Address {
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A listener that was passed to this process cannot be used.
    #[error("inherited admin socket cannot be used; it must be a TCP listener")]
    HandedOver(#[source] io::Error),
}

impl BindError {
    /// Whether another socket listens there.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Address { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }
}

fn advise(address: SocketAddr, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "is already in use by another process; stop that process or listen on another address"
        }
        io::ErrorKind::AddrNotAvailable => {
            "does not belong to this machine; use one that does, or 0.0.0.0 or [::] for all"
        }
        io::ErrorKind::PermissionDenied => {
            "is not permitted to this user; use a port above 1023 or grant CAP_NET_BIND_SERVICE"
        }
        _ => {
            return format!(
                "cannot listen on admin address {address}; check the system's error or choose \
                 another address"
            );
        }
    };
    format!("admin address {address} {advice}")
}

/// The server's thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start the admin server's thread; \
     check the limits on threads, memory and file descriptors"
)]
pub struct StartError(#[from] io::Error);

/// A server that is bound and does not answer yet.
pub struct Server {
    listeners: Vec<TcpListener>,
    /// The addresses in the order given, with their actual ports.
    pub addresses: Vec<SocketAddr>,
    /// Addresses that accept no commands.
    read_only: Vec<SocketAddr>,
    owners: Option<(UnixListener, Vec<u32>)>,
    settings: ServerSettings,
    routes: Routes,
    tls: Option<AdminTls>,
    /// The server's own statistics.
    pub stats: ServerStats,
}

impl Server {
    /// Binds every address, or none. Port 0 selects a free port, see [`Server::addresses`]. `[::]`
    /// also accepts IPv4 if the system is configured that way, unless an IPv4 address of the
    /// process has the same port.
    ///
    /// # Errors
    ///
    /// [`BindError`] for the first address that cannot be bound.
    pub fn bind(addresses: &[SocketAddr], settings: ServerSettings) -> Result<Self, BindError> {
        Self::bind_beside(addresses, Vec::new(), settings)
    }

    /// The same, with the sockets of another process for those of the addresses that it has bound.
    ///
    /// # Errors
    ///
    /// [`BindError`] for the first address that cannot be bound.
    pub fn bind_beside(
        addresses: &[SocketAddr],
        mut bound: Vec<TcpListener>,
        settings: ServerSettings,
    ) -> Result<Self, BindError> {
        let mut listeners = Vec::with_capacity(addresses.len());
        for address in addresses {
            let is_this = |it: &TcpListener| it.local_addr().is_ok_and(|it| it == *address);
            if let Some(at) = bound.iter().position(is_this) {
                listeners.push(bound.swap_remove(at));
                continue;
            }
            let mut v4_ports =
                addresses.iter().filter(|other| other.is_ipv4()).map(SocketAddr::port);
            let beside_v4 = address.is_ipv6()
                && (settings.ipv4_ports.contains(&address.port())
                    || v4_ports.any(|port| port == address.port()));
            let refused = |source| BindError::Address { address: *address, source };
            let listener = listen(*address, beside_v4).map_err(refused)?;
            listeners.push(listener);
        }
        Self::from_listeners(listeners, settings)
    }

    /// Uses listening sockets bound by another process, for example by a service manager.
    ///
    /// # Errors
    ///
    /// [`BindError::HandedOver`] if one cannot be used.
    pub fn from_listeners(
        listeners: Vec<TcpListener>,
        settings: ServerSettings,
    ) -> Result<Self, BindError> {
        let mut addresses = Vec::with_capacity(listeners.len());
        for listener in &listeners {
            listener.set_nonblocking(true).map_err(BindError::HandedOver)?;
            addresses.push(listener.local_addr().map_err(BindError::HandedOver)?);
        }
        Ok(Self {
            listeners,
            addresses,
            read_only: Vec::new(),
            owners: None,
            settings,
            routes: Routes::default(),
            tls: None,
            stats: ServerStats::default(),
        })
    }

    /// Duplicates of the listening sockets, for a process that takes over. While one of them is
    /// open, stopping the server does not close its port.
    ///
    /// # Errors
    ///
    /// If there are no file descriptors for them.
    pub fn handles(&self) -> io::Result<Vec<TcpListener>> {
        self.listeners.iter().map(TcpListener::try_clone).collect()
    }

    /// Adds a handler for `path`, which is compared byte by byte. It returns the reply, or a
    /// refusal; all other methods are answered with 405. If a path is added twice or built in, the
    /// handler added last answers it.
    ///
    /// Everything that a handler executes is answered, and nothing is executed that is answered
    /// with an error: the request is complete by then, and the only resource that an answer may
    /// lack, a stream, is reserved first ([`Request::reserve_stream`]). It is called on the admin
    /// thread, so it must not block or wait, like [`Reporter`].
    #[must_use]
    pub fn route(
        mut self,
        path: &'static str,
        method: Method,
        handler: impl Fn(&Request<'_>) -> Result<Reply, Reply> + Send + Sync + 'static,
    ) -> Self {
        self.routes.added.insert(path, (method, Arc::new(handler)));
        self
    }

    /// Makes the listeners at these addresses, among [`addresses`](Self::addresses), read-only:
    /// they refuse every POST.
    #[must_use]
    pub fn read_only(mut self, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.read_only.extend(addresses);
        self
    }

    /// The names by which clients may address the server, in addition to those that are always
    /// permitted.
    #[must_use]
    pub fn hosts(mut self, names: HostNames) -> Self {
        self.routes.hosts = names;
        self
    }

    /// Asks `guard` before every answer except those to probes and through the Unix socket. It
    /// refuses a request without permission, and must not block.
    #[must_use]
    pub fn guard(
        mut self,
        guard: impl Fn(&Request<'_>) -> Result<(), Reply> + Send + Sync + 'static,
    ) -> Self {
        self.routes.guard = Some(Arc::new(guard));
        self
    }

    /// Serves the network addresses over TLS. The Unix socket stays plain.
    #[must_use]
    pub fn tls(mut self, tls: AdminTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Serves the same on a Unix socket, within the same limits, to peers that run as one of these
    /// users. Connections of other users are closed.
    ///
    /// # Errors
    ///
    /// If the socket cannot be used.
    pub fn unix_socket(mut self, listener: UnixListener, users: Vec<u32>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        self.owners = Some((listener, users));
        Ok(self)
    }

    /// Starts to answer, on a thread of its own.
    ///
    /// # Errors
    ///
    /// [`StartError`] if the thread or its runtime cannot be created.
    pub fn serve(self, reporter: Arc<dyn Reporter>) -> Result<Handle, StartError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = watch::channel(StopStage::Serving);
        let (ended, end) = oneshot::channel();
        let grace = self.settings.stop_grace;
        let registry = Registry::new(self.stats.clone(), self.settings.max_connections);
        let shared = Arc::new(ServerState {
            streams: Arc::new(Semaphore::new(self.settings.max_streams)),
            settings: self.settings,
            routes: self.routes,
            tls: self.tls,
            handshake_log: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            reporter,
            registry,
            keys: [RandomState::new(), RandomState::new()],
        });
        let listeners = {
            // Registering with the runtime can fail and should do so here.
            let _entered = runtime.enter();
            let network = |(listener, address)| {
                let is_read_only = self.read_only.contains(&address);
                let listener = tokio::net::TcpListener::from_std(listener)?;
                Ok(AdminListener::Network(listener, is_read_only))
            };
            let owners = |(listener, users)| {
                Ok(AdminListener::Owner(tokio::net::UnixListener::from_std(listener)?, users))
            };
            let registered = self
                .listeners
                .into_iter()
                .zip(self.addresses.iter().copied())
                .map(network)
                .chain(self.owners.map(owners));
            registered.collect::<io::Result<Vec<_>>>()?
        };
        std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
            runtime.block_on(run(shared, listeners, stopped, grace));
            drop(runtime);
            // The receiver may be gone.
            let _ = ended.send(());
        })?;
        Ok(Handle { addresses: self.addresses, stats: self.stats, stop, end, grace })
    }
}

/// Serves until the stop, then lets responses in progress finish.
async fn run(
    shared: Arc<ServerState>,
    listeners: Vec<AdminListener>,
    mut stop: watch::Receiver<StopStage>,
    grace: Duration,
) {
    let mut loops = JoinSet::new();
    for listener in listeners {
        loops.spawn(accept::run(Arc::clone(&shared), listener, stop.clone()));
    }
    // An error means that the handle was dropped, which also stops the server.
    let _ = stop.wait_for(|stage| *stage == StopStage::Stopping).await;
    let all_closed = async {
        while loops.join_next().await.is_some() {}
        loop {
            let freed = shared.registry.freed.notified();
            if shared.registry.is_empty() {
                return;
            }
            freed.await;
        }
    };
    // Connections that are still open then end with the runtime.
    let _ = tokio::time::timeout(grace, all_closed).await;
}

fn listen(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not have to wait for old connections in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if only_v6 {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A running server. Dropping it stops the server without waiting.
#[derive(Debug)]
pub struct Handle {
    /// The addresses in the order given, with their actual ports.
    pub addresses: Vec<SocketAddr>,
    /// The server's own statistics.
    pub stats: ServerStats,
    stop: watch::Sender<StopStage>,
    end: oneshot::Receiver<()>,
    grace: Duration,
}

impl Handle {
    /// Closes the listeners and the connections that wait for a request. Responses in progress go
    /// on until [`stop`](Self::stop).
    pub fn leave(&self) {
        self.stop.send_replace(StopStage::Leaving);
    }

    /// Closes the listeners, lets responses in progress finish for at most `stop_grace`, and
    /// returns `true` when the thread has ended. A reporter that blocks can keep the thread for
    /// longer; then this returns `false` one second after the grace. Needs a runtime with timers.
    pub async fn stop(self) -> bool {
        self.stop.send_replace(StopStage::Stopping);
        let bound = self.grace.saturating_add(Duration::from_secs(1));
        matches!(tokio::time::timeout(bound, self.end).await, Ok(Ok(())))
    }
}
