//! Listening sockets: bound early and loudly, served later.
//!
//! Binding happens in the caller's thread before anything else starts, so that an address in use is an error at the start and
//! not a log line later. Each worker gets a socket of its own for each address (`SO_REUSEPORT`): the kernel spreads the clients,
//! and a session never changes its worker. The first socket of an address is bound *without* `SO_REUSEPORT` and joins the group
//! afterwards: with it, a second process of the same user would silently share our clients.
//!
//! What every accepted connection needs (no delay, keepalive, user timeout) is set once here: Linux lets accepted sockets
//! inherit it from their listener, which saves five system calls a connection.
//!
//! Sockets that somebody else has bound (systemd, or an older process) are taken as they are: with them comes their queue, and
//! clients in it notice nothing. A worker without one of its own shares one with another worker.
//!
//! Deliberately absent: where such sockets come from.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::Arc;

use drain::Drain;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::options::Options;
use crate::service::Service;
use crate::sockets::Sockets;
use crate::sockopt;
use crate::worker::{Running, StartError};

/// Connections that may wait for their accept, per socket. The kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Why an address could not be listened on. Its source is the system's error.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else listens there.
    #[error("listen address {addr} is already in use by another process; stop that process or choose another port")]
    InUse {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The process may not.
    #[error("listen address {addr} is not permitted; a port below 1024 needs the capability NET_BIND_SERVICE")]
    Denied {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No interface has this address.
    #[error("listen address {addr} does not exist on this machine; use 0.0.0.0 or [::], or an address of an interface")]
    NotHere {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Anything else, such as no file descriptors left.
    #[error("cannot listen on {addr}")]
    Other {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A listening socket that somebody else has bound cannot be used.
    #[error("a listening socket that was given to this process cannot be used")]
    Given(#[source] io::Error),
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
pub(crate) struct Entrance {
    /// Number of its service.
    pub(crate) service: usize,
    pub(crate) socket: TcpListener,
    pub(crate) addr: SocketAddr,
}

/// Every address bound and listening, nobody served yet: clients that come now wait in the kernel's queue.
#[derive(Debug)]
pub struct Bound {
    pub(crate) services: Vec<Arc<Service>>,
    /// One list a worker.
    pub(crate) entrances: Vec<Vec<Entrance>>,
    pub(crate) max_connections: usize,
    addrs: Vec<Vec<SocketAddr>>,
}

impl Bound {
    /// Binds every address of every service for `workers` workers. Port 0 lets the kernel choose one port, which all workers
    /// share. `max_connections` bounds the client connections of all services together. Blocks for no longer than the system
    /// calls take.
    ///
    /// An IPv6 address stands for IPv6 only, as in Redis, so `[::]` and `0.0.0.0` can be given side by side.
    ///
    /// # Errors
    ///
    /// The first address that cannot be bound, and why.
    pub fn bind(
        workers: NonZeroUsize,
        max_connections: usize,
        services: impl IntoIterator<Item = (Service, Vec<SocketAddr>)>,
    ) -> Result<Self, BindError> {
        let nothing_given = services.into_iter().map(|(service, addrs)| (service, addrs, Vec::new()));
        Self::bind_or_take(workers, max_connections, nothing_given)
    }

    /// As [`bind`](Self::bind), and each service also listens on the sockets that it is given: those of one address in one
    /// list. They may be in use by another process at the same time, which then shares the clients.
    ///
    /// # Errors
    ///
    /// The first address that cannot be bound, or given socket that cannot be used, and why.
    pub fn bind_or_take(
        workers: NonZeroUsize,
        max_connections: usize,
        services: impl IntoIterator<Item = (Service, Vec<SocketAddr>, Vec<Vec<TcpListener>>)>,
    ) -> Result<Self, BindError> {
        let mut bound = Self {
            services: Vec::new(),
            entrances: (0..workers.get()).map(|_| Vec::new()).collect(),
            max_connections,
            addrs: Vec::new(),
        };
        for (number, (service, addrs, given)) in services.into_iter().enumerate() {
            let options = service.options.now();
            let mut real = Vec::with_capacity(addrs.len() + given.len());
            for addr in addrs {
                let at = |source| BindError::new(addr, source);
                real.push(bound.bind_one(number, addr, &options).map_err(at)?);
            }
            for sockets in given {
                real.extend(bound.take(number, sockets, &options).map_err(BindError::Given)?);
            }
            bound.addrs.push(real);
            bound.services.push(Arc::new(service));
        }
        Ok(bound)
    }

    /// Binds one address for each worker and returns it with its real port.
    fn bind_one(&mut self, service: usize, addr: SocketAddr, options: &Options) -> io::Result<SocketAddr> {
        let mut real = None;
        // All are bound before the first one listens, so that no client meets a group that is still growing.
        let mut sockets = Vec::with_capacity(self.entrances.len());
        for _ in 0..self.entrances.len() {
            let socket = open(real.unwrap_or(addr), real.is_some(), options)?;
            real = socket.local_addr()?.as_socket();
            sockets.push(socket);
        }
        let real = real.unwrap_or(addr);
        for (socket, entrances) in sockets.into_iter().zip(&mut self.entrances) {
            socket.listen(BACKLOG)?;
            entrances.push(Entrance { service, socket: socket.into(), addr: real });
        }
        Ok(real)
    }

    /// Shares out the sockets of one address and returns it; `None` if there are none. Every socket gets a worker, since nobody
    /// else would empty its queue, and every worker gets a socket.
    fn take(&mut self, service: usize, sockets: Vec<TcpListener>, options: &Options) -> io::Result<Option<SocketAddr>> {
        let Some(addr) = sockets.first().map(TcpListener::local_addr).transpose()? else { return Ok(None) };
        for socket in &sockets {
            let socket = SockRef::from(socket);
            socket.set_nonblocking(true)?;
            sockopt::prepare(&socket, options)?;
            // Also sets the length of the queue anew, if it listens already.
            socket.listen(BACKLOG)?;
        }
        let missing = self.entrances.len().saturating_sub(sockets.len());
        let shared =
            sockets.iter().cycle().take(missing).map(TcpListener::try_clone).collect::<io::Result<Vec<_>>>()?;
        let workers = self.entrances.len().max(1);
        for (number, socket) in sockets.into_iter().chain(shared).enumerate() {
            if let Some(entrances) = self.entrances.get_mut(number % workers) {
                entrances.push(Entrance { service, socket, addr });
            }
        }
        Ok(Some(addr))
    }

    /// Second handles on all sockets.
    ///
    /// # Errors
    ///
    /// If there are no file descriptors for them.
    pub fn sockets(&self) -> io::Result<Sockets> {
        Sockets::of(self.entrances.iter().flatten())
    }

    /// The addresses of each service, in the order they were given, with the ports that the kernel chose.
    #[must_use]
    pub fn local_addrs(&self) -> &[Vec<SocketAddr>] {
        &self.addrs
    }

    /// Starts the workers and begins to accept.
    ///
    /// # Errors
    ///
    /// A thread or its event loop could not be created.
    pub fn serve(self, drain: &Drain) -> Result<Running, StartError> {
        Running::start(self, drain)
    }
}

/// A bound socket; `joins` says that it joins a group that already holds the address.
fn open(addr: SocketAddr, joins: bool, options: &Options) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Connections of an earlier process may still be in TIME_WAIT on this port.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(joins)?;
    sockopt::prepare(&socket, options)?;
    socket.bind(&addr.into())?;
    socket.set_reuse_port(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use route::Points;

    use super::*;
    use crate::service::NoHints;

    fn service() -> Service {
        let (_, route) = Points::new();
        Service { name: "s".into(), route: route.into(), options: Options::default().into(), hints: Arc::new(NoHints) }
    }

    fn two() -> NonZeroUsize {
        NonZeroUsize::new(2).unwrap()
    }

    #[test]
    fn port_0_gives_one_port_for_all_workers() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let bound = Bound::bind(two(), 10, [(service(), vec![any, any])]).unwrap();
        let [addrs] = bound.local_addrs() else { panic!("one service") };
        assert_ne!(addrs[0], addrs[1]);
        for worker in &bound.entrances {
            let of: Vec<SocketAddr> = worker.iter().map(|entrance| entrance.socket.local_addr().unwrap()).collect();
            assert_eq!(&of, addrs);
        }
    }

    #[test]
    fn an_address_in_use_is_an_error_even_if_the_other_would_share_it() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let first = Bound::bind(two(), 10, [(service(), vec![any])]).unwrap();
        let taken = first.local_addrs()[0][0];
        let error = Bound::bind(two(), 10, [(service(), vec![taken])]).unwrap_err();
        assert!(matches!(&error, BindError::InUse { addr, .. } if *addr == taken), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("listen address {taken} is already in use by another process;")), "{text}");
    }

    #[test]
    fn an_address_of_nobody_is_an_error() {
        let error = Bound::bind(two(), 10, [(service(), vec!["192.0.2.1:0".parse().unwrap()])]).unwrap_err();
        assert!(matches!(error, BindError::NotHere { .. }), "{error:?}");
    }

    #[test]
    fn given_sockets_all_have_a_worker_and_every_worker_has_one() {
        let socket = || TcpListener::bind("127.0.0.1:0").unwrap();
        for count in [1, 2, 3] {
            let first = socket();
            let addr = first.local_addr().unwrap();
            let sockets: Vec<_> = (0..count).map(|_| first.try_clone().unwrap()).collect();
            let bound = Bound::bind_or_take(two(), 10, [(service(), Vec::new(), vec![sockets, Vec::new()])]).unwrap();
            assert_eq!(bound.local_addrs(), [vec![addr]]);
            let shares: Vec<usize> = bound.entrances.iter().map(Vec::len).collect();
            assert_eq!(shares, if count == 3 { [2, 1] } else { [1, 1] }, "{count}");
            assert_eq!(bound.sockets().unwrap().all().len(), shares.iter().sum::<usize>());
        }
    }

    #[test]
    fn accepted_connections_inherit_what_the_listener_was_given() {
        let bound = Bound::bind(two(), 10, [(service(), vec!["127.0.0.1:0".parse().unwrap()])]).unwrap();
        let _client = TcpStream::connect(bound.local_addrs()[0][0]).unwrap();
        let accepted = loop {
            // Which worker's queue it is in is the kernel's choice.
            let found = bound.entrances.iter().find_map(|worker| worker[0].socket.accept().ok());
            if let Some((stream, _)) = found {
                break Socket::from(stream);
            }
            std::thread::yield_now();
        };
        assert!(accepted.tcp_nodelay().unwrap());
        assert!(accepted.keepalive().unwrap());
        assert_eq!(accepted.tcp_user_timeout().unwrap(), Some(Options::default().user_timeout));
        assert_eq!(accepted.tcp_keepalive_time().unwrap(), Options::default().keepalive);
    }
}
