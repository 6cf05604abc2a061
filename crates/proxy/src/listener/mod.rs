//! Listening sockets: bound at the start or by a [reload], served later.
//!
//! Binding happens in the caller's thread before anything else starts, so an address in use is an
//! error at the start and not a later log line. Each worker gets a socket of its own for each
//! address (`SO_REUSEPORT`): the kernel distributes the clients, and a session never changes its
//! worker. The first socket of an address is bound *without* `SO_REUSEPORT` and joins the group
//! afterwards: otherwise, a second process of the same user would silently share our clients.
//!
//! Options that every accepted connection needs (no delay, keepalive, user timeout) are set once
//! here: Linux lets accepted sockets inherit them from their listener, which saves five system
//! calls per connection.
//!
//! Sockets bound by another process (systemd, or an older process) are used as they are, together
//! with their queues, so clients in them notice nothing. A worker without one of its own shares one
//! with another worker.
//!
//! `[::]` also accepts IPv4 clients if the system is configured that way (`net.ipv6.bindv6only`),
//! unless an IPv4 address of this process has the same port: then that one serves them. A socket
//! bound by an older process keeps its mode, so an IPv4 address may coincide with an inherited
//! `[::]` that accepts IPv4 already. It joins that one's group, and Linux prefers it.
//! Unix sockets are always inherited. They have no `SO_REUSEPORT`, so all workers share one.

pub(crate) mod accept_errors;
pub(crate) mod accept_loop;
pub(crate) mod inbox;
pub(crate) mod listen_socket;
pub(crate) mod reload;
pub(crate) mod screening;
pub(crate) mod sockets;

#[cfg(test)]
mod accept_loop_tests;
#[cfg(test)]
mod listener_tests;
#[cfg(test)]
mod screening_tests;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::address::{ListenAddr, ListenerId};
use crate::io::socket_options;
use crate::listener::sockets::Sockets;
use crate::options::Options;
use crate::service::Service;

/// The accept queue of each socket. The kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Why listening on an address failed. Its source is the system's error.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another socket listens there.
    #[error(
        "listen address {addr} is already in use by another process{}; \
         stop that process or choose another port",
        dual_stack_hint(addr)
    )]
    InUse {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The process may not bind it.
    #[error(
        "listen address {addr} is not permitted; \
         a port below 1024 needs the capability NET_BIND_SERVICE"
    )]
    Denied {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// No interface has this address.
    #[error(
        "listen address {addr} does not exist on this machine; \
         use 0.0.0.0 or [::], or an address of an interface"
    )]
    NotHere {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Anything else, for example a lack of file descriptors.
    #[error("cannot listen on {addr}")]
    Other {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// An inherited listening socket cannot be used.
    #[error("an inherited listening socket cannot be used")]
    InheritedSockets(#[source] io::Error),
}

/// `[::]` is also in use if another process has the port for IPv4 only.
fn dual_stack_hint(addr: &SocketAddr) -> &'static str {
    if is_any_v6(*addr) { " (it takes IPv4 as well as IPv6)" } else { "" }
}

impl BindError {
    fn new(addr: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { addr, source },
            io::ErrorKind::PermissionDenied => Self::Denied { addr, source },
            io::ErrorKind::AddrNotAvailable => Self::NotHere { addr, source },
            _ => Self::Other { addr, source },
        }
    }
}

/// One listening socket of one worker.
#[derive(Debug)]
pub(crate) struct WorkerListener {
    pub(crate) id: ListenerId,
    /// The index of its service.
    pub(crate) service: usize,
    pub(crate) socket: OwnedFd,
    pub(crate) addr: ListenAddr,
}

/// Inherited listening sockets of one address.
#[derive(Debug)]
pub struct InheritedSockets {
    /// Their address.
    pub addr: ListenAddr,
    /// The sockets.
    pub sockets: Vec<OwnedFd>,
}

/// Listening sockets of all addresses, not served yet: clients that connect now wait in the
/// kernel's queue.
#[derive(Debug)]
pub struct Bound {
    pub(crate) services: Vec<Arc<Service>>,
    /// One list per worker.
    pub(crate) listeners: Vec<Vec<WorkerListener>>,
    pub(crate) max_connections: usize,
    addrs: Vec<Vec<ListenAddr>>,
    ids: Vec<Vec<ListenerId>>,
    /// The listeners whose clients speak TLS.
    pub(crate) tls: BTreeSet<ListenerId>,
}

impl Bound {
    /// Binds every address of every service for `workers` workers. With port 0 the kernel selects
    /// one port, which all workers share. `max_connections` limits the client connections of all
    /// services together. Does not block, apart from the system calls.
    ///
    /// # Errors
    ///
    /// The first address that cannot be bound, and why.
    pub fn bind(
        workers: NonZeroUsize,
        max_connections: usize,
        services: impl IntoIterator<Item = (Service, Vec<SocketAddr>)>,
    ) -> Result<Self, BindError> {
        let no_inherited =
            services.into_iter().map(|(service, addrs)| (service, addrs, Vec::new()));
        Self::bind_or_take(workers, max_connections, &[], no_inherited)
    }

    /// Like [`bind`](Self::bind), and each service also listens on its inherited sockets. Another
    /// process may use them at the same time and then shares the clients. `other_addrs` are
    /// addresses that this process uses for other purposes.
    ///
    /// # Errors
    ///
    /// The first address that cannot be bound, or inherited socket that cannot be used, and why.
    pub fn bind_or_take(
        workers: NonZeroUsize,
        max_connections: usize,
        other_addrs: &[SocketAddr],
        services: impl IntoIterator<Item = (Service, Vec<SocketAddr>, Vec<InheritedSockets>)>,
    ) -> Result<Self, BindError> {
        let services: Vec<_> = services.into_iter().collect();
        let families = AddressFamilies::of(other_addrs, &services);
        let mut bound = Self {
            services: Vec::new(),
            listeners: (0..workers.get()).map(|_| Vec::new()).collect(),
            max_connections,
            addrs: Vec::new(),
            ids: Vec::new(),
            tls: BTreeSet::new(),
        };
        let mut next = 0;
        for (number, (service, addrs, inherited)) in services.into_iter().enumerate() {
            let options = service.options.now();
            let mut actual = Vec::with_capacity(addrs.len() + inherited.len());
            let mut ids = Vec::new();
            for addr in addrs {
                let id = ListenerId::nth(next);
                let at = |source| BindError::new(addr, source);
                let of = (id, number);
                actual.push(bound.bind_addr(of, addr, &families, &options).map_err(at)?.into());
                ids.push(id);
                next += 1;
            }
            for inherited in inherited {
                let id = ListenerId::nth(next);
                let taken = bound
                    .take((id, number), inherited, &options)
                    .map_err(BindError::InheritedSockets)?;
                if let Some(addr) = taken {
                    actual.push(addr);
                    ids.push(id);
                    next += 1;
                }
            }
            bound.addrs.push(actual);
            bound.ids.push(ids);
            bound.services.push(Arc::new(service));
        }
        Ok(bound)
    }

    /// Binds one address for each worker and returns it with its actual port.
    fn bind_addr(
        &mut self,
        (id, service): (ListenerId, usize),
        addr: SocketAddr,
        families: &AddressFamilies,
        options: &Options,
    ) -> io::Result<SocketAddr> {
        let mode = (families.joins(addr), families.only_v6(addr));
        let (actual, sockets) = bind_one(self.listeners.len(), addr, mode, options)?;
        for (socket, listeners) in sockets.into_iter().zip(&mut self.listeners) {
            listeners.push(WorkerListener { id, service, socket, addr: actual.into() });
        }
        Ok(actual)
    }

    /// Distributes the sockets of one address and returns the address; `None` if there are no
    /// sockets. Every socket gets a worker, since nothing else would empty its queue, and every
    /// worker gets a socket.
    fn take(
        &mut self,
        (id, service): (ListenerId, usize),
        inherited: InheritedSockets,
        options: &Options,
    ) -> io::Result<Option<ListenAddr>> {
        let InheritedSockets { addr, sockets } = inherited;
        if sockets.is_empty() {
            return Ok(None);
        }
        for socket in &sockets {
            let socket = SockRef::from(socket);
            socket.set_nonblocking(true)?;
            if addr.tcp().is_some() {
                socket_options::set(&socket, options)?;
            }
            // Also sets the length of the queue if the socket listens already.
            socket.listen(BACKLOG)?;
        }
        let missing = self.listeners.len().saturating_sub(sockets.len());
        let shared = sockets
            .iter()
            .cycle()
            .take(missing)
            .map(OwnedFd::try_clone)
            .collect::<io::Result<Vec<_>>>()?;
        let workers = self.listeners.len().max(1);
        for (number, socket) in sockets.into_iter().chain(shared).enumerate() {
            if let Some(listeners) = self.listeners.get_mut(number % workers) {
                listeners.push(WorkerListener { id, service, socket, addr: addr.clone() });
            }
        }
        Ok(Some(addr))
    }

    /// Duplicates of all sockets.
    ///
    /// # Errors
    ///
    /// If there are no file descriptors for them.
    pub fn sockets(&self) -> io::Result<Sockets> {
        let workers = self.listeners.iter().enumerate();
        Sockets::of(workers.flat_map(|(worker, listeners)| {
            let named = move |it| {
                let it: &WorkerListener = it;
                let service = self.services.get(it.service)?;
                Some((worker, Arc::clone(&service.name), it))
            };
            listeners.iter().filter_map(named)
        }))
    }

    /// The listeners of each service, in the order of [`local_addrs`](Self::local_addrs).
    #[must_use]
    pub fn listener_ids(&self) -> &[Vec<ListenerId>] {
        &self.ids
    }

    /// The addresses of each service in the order given, with their actual ports.
    #[must_use]
    pub fn local_addrs(&self) -> &[Vec<ListenAddr>] {
        &self.addrs
    }
}

/// Whether this is the unspecified IPv6 address, which may accept IPv4 too.
fn is_any_v6(addr: SocketAddr) -> bool {
    addr.is_ipv6() && addr.ip().is_unspecified()
}

/// The ports of the process by address family.
#[derive(Debug, Default)]
struct AddressFamilies {
    /// Ports that have an IPv4 address of their own.
    v4: Vec<u16>,
    /// Ports of inherited sockets that accept both families.
    dual: Vec<u16>,
}

impl AddressFamilies {
    fn of(
        other_addrs: &[SocketAddr],
        services: &[(Service, Vec<SocketAddr>, Vec<InheritedSockets>)],
    ) -> Self {
        let mut families = Self::default();
        let bound = services.iter().flat_map(|(_, addrs, _)| addrs).chain(other_addrs);
        families.v4.extend(bound.filter(|addr| addr.is_ipv4()).map(SocketAddr::port));
        for inherited in services.iter().flat_map(|(_, _, inherited)| inherited) {
            let Some(addr) = inherited.addr.tcp() else { continue };
            if addr.is_ipv4() {
                families.v4.push(addr.port());
            } else if is_any_v6(addr)
                && inherited
                    .sockets
                    .iter()
                    .any(|it| SockRef::from(it).only_v6().is_ok_and(|it| !it))
            {
                families.dual.push(addr.port());
            }
        }
        families
    }

    /// Whether this address must leave IPv4 clients to another socket of this process.
    fn only_v6(&self, addr: SocketAddr) -> bool {
        addr.is_ipv6() && (!is_any_v6(addr) || addr.port() != 0 && self.v4.contains(&addr.port()))
    }

    /// Whether a socket of this process already has the address.
    fn joins(&self, addr: SocketAddr) -> bool {
        addr.is_ipv4() && self.dual.contains(&addr.port())
    }
}

/// Binds one address for each worker and returns it with its actual port, and the sockets, which
/// listen.
fn bind_one(
    workers: usize,
    addr: SocketAddr,
    (joins, only_v6): (bool, bool),
    options: &Options,
) -> io::Result<(SocketAddr, Vec<OwnedFd>)> {
    let mut actual = None;
    // All are bound before the first one listens, so that no client arrives at an incomplete
    // group.
    let mut sockets = Vec::with_capacity(workers);
    for _ in 0..workers {
        let joins = actual.is_some() || joins;
        let socket = open(actual.unwrap_or(addr), joins, only_v6, options)?;
        actual = socket.local_addr()?.as_socket();
        sockets.push(socket);
    }
    for socket in &sockets {
        socket.listen(BACKLOG)?;
    }
    Ok((actual.unwrap_or(addr), sockets.into_iter().map(OwnedFd::from).collect()))
}

/// A bound socket; with `joins` it joins a group that already has the address.
fn open(addr: SocketAddr, joins: bool, only_v6: bool, options: &Options) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if only_v6 {
        socket.set_only_v6(true)?;
    }
    // Connections of an earlier process may still be in TIME_WAIT on this port.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(joins)?;
    socket_options::set(&socket, options)?;
    socket.bind(&addr.into())?;
    socket.set_reuse_port(true)?;
    Ok(socket)
}
