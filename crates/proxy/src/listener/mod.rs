//! Listening sockets: bound at the start or by a reload, served later.
//!
//! All addresses of a start or a reload are bound in the caller's thread before any of them is
//! served, so an address in use is an error with no other effect, and not a later log line. Each
//! worker gets a socket of its own for each address (`SO_REUSEPORT`): the kernel distributes the
//! clients, and a session never changes its worker. The first socket of an address is bound
//! *without* `SO_REUSEPORT` and joins the group afterwards: otherwise, a second process of the same
//! user would silently share our clients.
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
//!
//! An address of a reload may overlap one that this process still has, for example when
//! `0.0.0.0:6379` becomes `127.0.0.1:6379`. Its sockets then join the group of the older one, which
//! is closed only afterwards, so no client is refused in between.
//!
//! Unix sockets are always inherited. They have no `SO_REUSEPORT`, so all workers share one.

pub(crate) mod accept_errors;
pub(crate) mod accept_loop;
pub(crate) mod inbox;
pub(crate) mod listen_socket;
pub(crate) mod sockets;

#[cfg(test)]
mod accept_loop_tests;
#[cfg(test)]
mod listener_tests;
#[cfg(test)]
mod screening_tests;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::address::ListenAddr;
use crate::io::socket_options;
use crate::options::Options;

/// The accept queue of each socket. The kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Why listening on an address failed. Its source is the system's error.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An address.
    #[error("{}", why_not(*addr, source.kind()))]
    Address {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// An inherited listening socket cannot be used.
    #[error("an inherited listening socket cannot be used")]
    InheritedSockets(#[source] io::Error),
}

impl BindError {
    /// Whether another process has the address.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Address { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }
}

fn why_not(addr: SocketAddr, kind: io::ErrorKind) -> String {
    let why = match kind {
        // Also if the process has the port for IPv4 only.
        io::ErrorKind::AddrInUse if is_any_v6(addr) => {
            "is already in use by another process (it takes IPv4 as well as IPv6); \
             stop that process or choose another port"
        }
        io::ErrorKind::AddrInUse => {
            "is already in use by another process; stop that process or choose another port"
        }
        io::ErrorKind::PermissionDenied => {
            "is not permitted; a port below 1024 needs the capability NET_BIND_SERVICE"
        }
        io::ErrorKind::AddrNotAvailable => {
            "does not exist on this machine; use 0.0.0.0 or [::], or an address of an interface"
        }
        _ => return format!("cannot listen on {addr}"),
    };
    format!("listen address {addr} {why}")
}

/// Inherited listening sockets of one address.
#[derive(Debug)]
pub struct InheritedSockets {
    /// Their address.
    pub addr: ListenAddr,
    /// The sockets.
    pub sockets: Vec<OwnedFd>,
}

/// Listening sockets of one address that no service uses yet, each with the index of its worker.
#[derive(Debug)]
pub struct NewListener {
    /// The address, with its actual port.
    pub addr: ListenAddr,
    pub(crate) sockets: Vec<(usize, OwnedFd)>,
}

/// The addresses of the process, from which the mode of a new socket follows.
#[derive(Debug, Clone, Default)]
pub struct AddressPlan {
    /// The number of workers.
    workers: usize,
    /// Ports that have an IPv4 address of their own.
    v4: Vec<u16>,
    /// The addresses that the process listens on now.
    bound: Vec<SocketAddr>,
}

impl AddressPlan {
    /// `after` are all addresses that the process will have, those of the admin server included;
    /// `bound` those of the data plane that are open now.
    #[must_use]
    pub fn new(workers: NonZeroUsize, after: &[SocketAddr], bound: Vec<SocketAddr>) -> Self {
        let v4 = after.iter().filter(|addr| addr.is_ipv4()).map(SocketAddr::port).collect();
        Self { workers: workers.get(), v4, bound }
    }

    /// Binds one address for each worker. Clients that connect wait in the kernel's queue until it
    /// is served. With port 0 the kernel selects one port, which all workers share.
    ///
    /// # Errors
    ///
    /// Why it cannot be bound.
    pub fn bind(&self, addr: SocketAddr, options: &Options) -> Result<NewListener, BindError> {
        let only_v6 = addr.is_ipv6()
            && (!is_any_v6(addr) || addr.port() != 0 && self.v4.contains(&addr.port()));
        let joins = self.bound.iter().any(|own| overlaps(addr, only_v6, *own));
        self.bind_all(addr, joins, only_v6, options)
            .map_err(|source| BindError::Address { addr, source })
    }

    fn bind_all(
        &self,
        mut addr: SocketAddr,
        mut joins: bool,
        only_v6: bool,
        options: &Options,
    ) -> io::Result<NewListener> {
        // All are bound before the first one listens, so that no client arrives at an incomplete
        // group.
        let mut sockets = Vec::with_capacity(self.workers);
        for _ in 0..self.workers {
            let socket = open(addr, joins, only_v6, options)?;
            addr = socket.local_addr()?.as_socket().unwrap_or(addr);
            joins = true;
            sockets.push(socket);
        }
        for socket in &sockets {
            socket.listen(BACKLOG)?;
        }
        let sockets = sockets.into_iter().map(OwnedFd::from).enumerate().collect();
        Ok(NewListener { addr: addr.into(), sockets })
    }

    /// Distributes the inherited sockets of one address. Every socket gets a worker, since nothing
    /// else would empty its queue, and every worker gets a socket. To be called for all of them
    /// before other addresses are bound, which may have to join their groups.
    ///
    /// # Errors
    ///
    /// Why they cannot be used.
    pub fn take(
        &mut self,
        inherited: InheritedSockets,
        options: &Options,
    ) -> Result<NewListener, BindError> {
        let InheritedSockets { addr, sockets } = inherited;
        let only_v6 = |it| SockRef::from(it).only_v6().is_ok_and(|only| only);
        let tcp = addr.tcp().filter(|addr| !is_any_v6(*addr) || !sockets.iter().all(only_v6));
        self.bound.extend(tcp);
        let sockets = distribute(self.workers, &addr, sockets, options)
            .map_err(BindError::InheritedSockets)?;
        Ok(NewListener { addr, sockets })
    }
}

fn distribute(
    workers: usize,
    addr: &ListenAddr,
    mut sockets: Vec<OwnedFd>,
    options: &Options,
) -> io::Result<Vec<(usize, OwnedFd)>> {
    for socket in &sockets {
        let socket = SockRef::from(socket);
        socket.set_nonblocking(true)?;
        if addr.tcp().is_some() {
            socket_options::set(&socket, options)?;
        }
        // Also sets the length of the queue if the socket listens already.
        socket.listen(BACKLOG)?;
    }
    let missing = workers.saturating_sub(sockets.len());
    let shared = sockets.iter().cycle().take(missing).map(OwnedFd::try_clone);
    let shared = shared.collect::<io::Result<Vec<_>>>()?;
    sockets.extend(shared);
    let on_worker = |(number, socket): (usize, OwnedFd)| (number % workers.max(1), socket);
    Ok(sockets.into_iter().enumerate().map(on_worker).collect())
}

/// Whether this is the unspecified IPv6 address, which may accept IPv4 too.
fn is_any_v6(addr: SocketAddr) -> bool {
    addr.is_ipv6() && addr.ip().is_unspecified()
}

/// Whether the kernel would call `addr` in use because of our own socket.
fn overlaps(addr: SocketAddr, only_v6: bool, own: SocketAddr) -> bool {
    let any = addr.ip().is_unspecified() || own.ip().is_unspecified();
    let dual = is_any_v6(addr) && !only_v6 || is_any_v6(own);
    addr.port() != 0
        && addr.port() == own.port()
        && (addr.ip() == own.ip() || any && (addr.is_ipv4() == own.is_ipv4() || dual))
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
