//! Listening sockets: bound early, in the caller's thread, where a failure can be told; served later.
//!
//! Each worker has a socket of its own on every address (SO_REUSEPORT), so that accepting needs no lock and a connection is
//! born on the worker that will keep it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};

use crate::Service;

/// Connections that may wait to be accepted, on each socket; the kernel's own bound (`somaxconn`) may be lower.
const BACKLOG: i32 = 4096;

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has it.
    #[error(
        "listen address {0} of service {1} is already in use by another process; stop that one, or choose another address"
    )]
    InUse(SocketAddr, Arc<str>),
    /// A port below 1024 without the right to it.
    #[error("no permission to listen on {0} of service {1}; use a port above 1023, or grant CAP_NET_BIND_SERVICE")]
    Forbidden(SocketAddr, Arc<str>),
    /// No interface has it.
    #[error("listen address {0} of service {1} is no address of this machine")]
    NotLocal(SocketAddr, Arc<str>),
    /// Anything else.
    #[error("cannot listen on {0} of service {1}")]
    Other(SocketAddr, Arc<str>, #[source] io::Error),
}

/// One service with its sockets: one for each worker on each address.
pub(crate) struct BoundService {
    pub(crate) service: Service,
    pub(crate) addrs: Vec<SocketAddr>,
    /// By worker.
    pub(crate) sockets: Vec<Vec<TcpListener>>,
}

/// Everything bound, nothing served yet.
pub struct Bound {
    pub(crate) services: Vec<BoundService>,
    pub(crate) workers: usize,
}

impl Bound {
    /// Binds every address of every service for `workers` workers, or none. With port 0 the kernel chooses one port, which all
    /// workers share.
    ///
    /// # Errors
    ///
    /// [`BindError`] for the first address that cannot be bound.
    pub fn bind(workers: usize, services: Vec<(Service, Vec<SocketAddr>)>) -> Result<Self, BindError> {
        let workers = workers.max(1);
        let mut bound = Vec::with_capacity(services.len());
        for (service, wanted) in services {
            let mut addrs = Vec::with_capacity(wanted.len());
            let mut sockets: Vec<Vec<TcpListener>> = (0..workers).map(|_| Vec::new()).collect();
            for addr in wanted {
                let fail = |error| explain(addr, &service.name, error);
                probe_free(addr).map_err(fail)?;
                let mut actual = addr;
                for of_worker in &mut sockets {
                    let socket = listen(actual).map_err(fail)?;
                    actual = socket.local_addr().map_err(fail)?;
                    of_worker.push(socket);
                }
                addrs.push(actual);
            }
            bound.push(BoundService { service, addrs, sockets });
        }
        Ok(Self { services: bound, workers })
    }

    /// The addresses of each service, in order, with the ports they really have.
    #[must_use]
    pub fn addrs(&self) -> Vec<Vec<SocketAddr>> {
        self.services.iter().map(|service| service.addrs.clone()).collect()
    }
}

/// SO_REUSEPORT would let us share a port with another process of the same user, each taking half of the clients; a
/// socket without it finds out.
fn probe_free(addr: SocketAddr) -> io::Result<()> {
    if addr.port() == 0 {
        return Ok(());
    }
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn explain(addr: SocketAddr, service: &Arc<str>, error: io::Error) -> BindError {
    match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse(addr, Arc::clone(service)),
        io::ErrorKind::PermissionDenied => BindError::Forbidden(addr, Arc::clone(service)),
        io::ErrorKind::AddrNotAvailable => BindError::NotLocal(addr, Arc::clone(service)),
        _ => BindError::Other(addr, Arc::clone(service), error),
    }
}
