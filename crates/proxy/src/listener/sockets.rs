//! Second handles on the listening sockets: to hand them to another process, and to change their
//! settings.
//!
//! A listening socket lives as long as anybody holds it, and with it its queue. So whoever has
//! these handles must let go of them before the workers empty their queues for the last time: what
//! arrives after that in a socket that nobody accepts from would be reset when the last handle
//! goes.

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
    /// Number of its service.
    pub service: usize,
    /// Where it listens.
    pub addr: ListenAddr,
    /// The handle.
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

    /// Each of them. A socket that several workers share is there several times.
    #[must_use]
    pub fn all(&self) -> &[Socket] {
        &self.0
    }

    /// Gives the sockets of a service what accepted connections inherit from them: keepalive and
    /// user timeout.
    ///
    /// # Errors
    ///
    /// If the system does not take a value.
    pub fn retune(&self, service: usize, options: &Options) -> io::Result<()> {
        let mut own =
            self.0.iter().filter(|socket| socket.service == service && socket.addr.tcp().is_some());
        own.try_for_each(|socket| {
            stream::set_socket_options(&SockRef::from(&socket.listener), options)
        })
    }

    /// Lets go of them.
    pub fn release(&mut self) {
        self.0.clear();
    }
}
