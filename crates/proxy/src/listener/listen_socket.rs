//! The listening socket of one worker, registered with its event loop.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use rustix::io::Errno;

use crate::address::{ListenAddr, Peer};
use crate::runtime::reactor::{Readiness, Registration};

/// Descriptors that have to be free before a client is accepted again after a shortage: two for the
/// client, and as many as probes and discovery use at a time.
const FREE_DESCRIPTORS: usize = 8;

/// A source of clients: a listening socket, or in tests one with rare failures.
pub(crate) trait AcceptSource {
    /// The next client's socket, in non-blocking mode, and its address.
    fn poll_accept(&mut self, cx: &Context<'_>) -> Poll<Result<(OwnedFd, Peer), Errno>>;

    /// The next client without waiting. Asks the socket and not the event loop, which may not have
    /// reported the latest client yet.
    fn accept(&self) -> Result<(OwnedFd, Peer), Errno>;

    /// Whether there are descriptors for one more session and a few other uses; called during a
    /// shortage.
    fn has_free_descriptors(&self) -> Result<(), Errno>;
}

/// A listening socket, which other workers or processes may share.
#[derive(Debug)]
pub(crate) struct ListenSocket {
    registration: Registration,
    socket: OwnedFd,
    /// A Unix socket, whose clients have no addresses.
    is_unix: bool,
}

impl ListenSocket {
    /// Registers a listening socket at `addr`, in non-blocking mode.
    pub(crate) fn new(socket: OwnedFd, addr: &ListenAddr) -> io::Result<Self> {
        Ok(Self {
            registration: Registration::new(&socket, Readiness::READ, false)?,
            socket,
            is_unix: addr.unix().is_some(),
        })
    }
}

impl AcceptSource for ListenSocket {
    fn poll_accept(&mut self, cx: &Context<'_>) -> Poll<Result<(OwnedFd, Peer), Errno>> {
        self.registration
            .attempt(cx, Readiness::READ, || self.accept().map(|client| (client, true)))
    }

    fn accept(&self) -> Result<(OwnedFd, Peer), Errno> {
        use rustix::net::SocketFlags;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        if self.is_unix {
            return Ok((rustix::net::accept_with(&self.socket, flags)?, Peer::UNIX));
        }
        let (stream, peer) = rustix::net::acceptfrom_with(&self.socket, flags)?;
        // A peer without an address has already disconnected.
        let peer =
            peer.and_then(|peer| SocketAddr::try_from(peer).ok()).ok_or(Errno::CONNABORTED)?;
        Ok((stream, peer.into()))
    }

    fn has_free_descriptors(&self) -> Result<(), Errno> {
        let mut duplicates = Vec::with_capacity(FREE_DESCRIPTORS);
        for _ in 0..FREE_DESCRIPTORS {
            duplicates.push(rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)?);
        }
        Ok(())
    }
}

impl Drop for ListenSocket {
    fn drop(&mut self) {
        // The socket may be shared, so closing it would not deregister it.
        self.registration.deregister(&self.socket);
    }
}
