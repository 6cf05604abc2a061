//! Duplicates of the listening sockets, to pass them to another process and to change their
//! options.
//!
//! A listening socket exists, together with its queue, as long as any process has it open. So these
//! duplicates must be closed before the workers empty their queues for the last time: connections
//! that arrive later in a socket that is not accepted from would be reset when the last duplicate
//! is closed.

use std::io;
use std::os::fd::OwnedFd;

use socket2::SockRef;

use crate::address::ListenAddr;
use crate::io::stream;
use crate::listener::WorkerListener;
use crate::options::Options;

/// One listening socket.
#[derive(Debug)]
pub struct Socket {
    /// The index of its service.
    pub service: usize,
    /// Its address.
    pub addr: ListenAddr,
    /// The duplicate.
    pub listener: OwnedFd,
}

/// All listening sockets of the data plane.
#[derive(Debug, Default)]
pub struct Sockets(Vec<Socket>);

impl Sockets {
    pub(crate) fn of<'a>(listeners: impl Iterator<Item = &'a WorkerListener>) -> io::Result<Self> {
        let handle = |from: &WorkerListener| {
            let listener = from.socket.try_clone()?;
            Ok(Socket { service: from.service, addr: from.addr.clone(), listener })
        };
        listeners.map(handle).collect::<io::Result<_>>().map(Self)
    }

    /// All sockets. One that several workers share occurs several times.
    #[must_use]
    pub fn all(&self) -> &[Socket] {
        &self.0
    }

    /// Sets the options that accepted connections inherit from the sockets of a service: keepalive
    /// and user timeout.
    ///
    /// # Errors
    ///
    /// If the system rejects a value.
    pub fn retune(&self, service: usize, options: &Options) -> io::Result<()> {
        let mut own =
            self.0.iter().filter(|socket| socket.service == service && socket.addr.tcp().is_some());
        own.try_for_each(|socket| {
            stream::set_socket_options(&SockRef::from(&socket.listener), options)
        })
    }

    /// Closes all of them.
    pub fn release(&mut self) {
        self.0.clear();
    }
}
