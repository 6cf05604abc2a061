//! Duplicates of the listening sockets, to pass them to another process or another service and to
//! change their options.
//!
//! A listening socket exists, together with its queue, as long as any process has it open. So these
//! duplicates must be closed before the workers empty their queues for the last time: connections
//! that arrive later in a socket that is not accepted from would be reset when the last duplicate
//! is closed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use socket2::SockRef;

use crate::address::{ListenAddr, ListenerId};
use crate::io::socket_options;
use crate::listener::NewListener;
use crate::options::Options;

/// One listening socket.
#[derive(Debug)]
pub struct Socket {
    /// The listener that it belongs to.
    pub id: ListenerId,
    /// The name of its service.
    pub service: Arc<str>,
    /// Its address.
    pub addr: ListenAddr,
    /// The duplicate.
    pub listener: OwnedFd,
    /// The index of its worker.
    worker: usize,
}

/// All listening sockets of the data plane.
#[derive(Debug, Default)]
pub struct Sockets(Vec<Socket>);

impl Sockets {
    /// All sockets. One that several workers share occurs several times.
    #[must_use]
    pub fn all(&self) -> &[Socket] {
        &self.0
    }

    /// Duplicates of the sockets of a new listener, not kept yet: the step that may fail.
    ///
    /// # Errors
    ///
    /// If there are no file descriptors for them.
    pub fn duplicate_new(listener: &NewListener) -> io::Result<Self> {
        let of = |(worker, socket): &(usize, OwnedFd)| {
            let (id, service) = (ListenerId::default(), Arc::from(""));
            let (addr, listener) = (listener.addr.clone(), socket.try_clone()?);
            Ok(Socket { id, service, addr, listener, worker: *worker })
        };
        listener.sockets.iter().map(of).collect::<io::Result<_>>().map(Self)
    }

    /// Duplicates of the sockets of an existing listener, to serve them under another service.
    ///
    /// # Errors
    ///
    /// If there are no file descriptors for them.
    pub fn duplicate(&self, id: ListenerId) -> io::Result<Vec<NewListener>> {
        let mut listeners: Vec<NewListener> = Vec::new();
        for socket in self.0.iter().filter(|socket| socket.id == id) {
            let duplicate = (socket.worker, socket.listener.try_clone()?);
            match listeners.iter_mut().find(|it| it.addr == socket.addr) {
                Some(listener) => listener.sockets.push(duplicate),
                None => listeners
                    .push(NewListener { addr: socket.addr.clone(), sockets: vec![duplicate] }),
            }
        }
        Ok(listeners)
    }

    /// Keeps the duplicates of a listener that now has this number and service.
    pub fn add(&mut self, new: Self, id: ListenerId, service: &Arc<str>) {
        let own = |socket| Socket { id, service: Arc::clone(service), ..socket };
        self.0.extend(new.0.into_iter().map(own));
    }

    /// Closes the duplicates of one listener. To be called before it is closed.
    pub fn remove(&mut self, id: ListenerId) {
        self.0.retain(|socket| socket.id != id);
    }

    /// Sets the options that accepted connections inherit from the sockets of a service: keepalive
    /// and user timeout.
    ///
    /// # Errors
    ///
    /// If the system rejects a value.
    pub fn retune(&self, service: &str, options: &Options) -> io::Result<()> {
        let mut own = self
            .0
            .iter()
            .filter(|socket| *socket.service == *service && socket.addr.tcp().is_some());
        own.try_for_each(|socket| socket_options::set(&SockRef::from(&socket.listener), options))
    }

    /// Closes all of them.
    pub fn release(&mut self) {
        self.0.clear();
    }
}
