//! A connection of a session, over TCP or a Unix socket, as its worker's event loop knows it.
//!
//! Twelve bytes: a descriptor, the number of a slot in the [reactor](crate::runtime::reactor), what is known
//! of it, a flag. Receiving stops at the first read that comes out short, because that one has told
//! that there is nothing more for now: no second read a message only to be told to wait.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use socket2::{SockAddr, SockRef, Socket};

use crate::io::end::End;
use crate::io::pipe::Pipe;
use crate::listener::accept_loop::Accept;
use crate::listener::address::{ListenAddr, Peer};
use crate::runtime::reactor::{Place, Ready};

/// Descriptors that have to be free before a client is let in again after a lack of them: two for
/// it, and as many as probes and discovery take at a time.
const ROOM: usize = 8;

/// One connection. Belongs to the thread that made it.
#[derive(Debug)]
pub(crate) struct Line {
    // Before the socket, so that an event of it never finds a slot that is somebody else's.
    place: Place,
    socket: OwnedFd,
}

impl Line {
    /// A connection that was just accepted; it must not block. It is taken to be readable, since
    /// most clients have said something by now.
    pub(crate) fn accepted(socket: OwnedFd, splices: bool) -> io::Result<Self> {
        Ok(Self { place: Place::new(&socket, Ready::BOTH, splices)?, socket })
    }

    /// Begins to connect `socket`, which must not block, to `addr`. [`connected`](Self::connected)
    /// tells how that ends.
    pub(crate) fn dial(socket: Socket, addr: SocketAddr, splices: bool) -> io::Result<Self> {
        match socket.connect(&SockAddr::from(addr)) {
            Ok(()) => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        // Within one host the handshake is over before connect(2) returns, although it says that it
        // is not.
        let ready = if socket.peer_addr().is_ok() { Ready::WRITE } else { Ready::NONE };
        let socket = OwnedFd::from(socket);
        Ok(Self { place: Place::new(&socket, ready, splices)?, socket })
    }

    /// Whether the connection stood as soon as it was asked for, as it does within one host.
    pub(crate) fn stands(&self) -> bool {
        self.place.seen().has(Ready::WRITE)
    }

    /// Returns when the connection stands, or why it does not.
    pub(crate) fn poll_connected(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        while self.place.is_ready(cx, Ready::WRITE) {
            let socket = SockRef::from(&self.socket);
            if let Some(error) = socket.take_error()? {
                return Poll::Ready(Err(error));
            }
            match socket.peer_addr() {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
                    self.place.would_block(Ready::WRITE);
                }
                result => return Poll::Ready(result.map(drop)),
            }
        }
        Poll::Pending
    }

    /// Waits until the peer breaks off. That it ends its direction is not enough.
    pub(crate) fn poll_broken(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.place.is_ready(cx, Ready::BROKEN) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether the peer has ended its direction or broken off, as far as the event loop knows, even
    /// if unread bytes stand before it.
    pub(crate) fn is_gone(&self) -> bool {
        self.place.ready().has(Ready::ENDED)
    }

    /// Makes the close throw away what the kernel still holds for this connection, by a reset
    /// instead of a FIN.
    pub(crate) fn forget_unsent(&self) {
        // Only a socket that is no more can refuse this, and that one sends nothing.
        drop(SockRef::from(&self.socket).set_linger(Some(Duration::ZERO)));
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl End for Line {
    #[inline]
    fn look(&mut self, cx: &mut Context<'_>) {
        self.place.look(cx);
    }

    #[inline]
    fn is_readable(&self) -> bool {
        self.place.seen().has(Ready::READ)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let room = buffer.len();
        let attempt = || {
            rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty())
                .map(|(n, _)| (n, n == room))
        };
        self.place.attempt(cx, Ready::READ, attempt).map_err(io::Error::from)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let attempt = || match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
            Ok(0) if !bytes.is_empty() => Err(Errno::PIPE),
            result => result.map(|n| (n, n == bytes.len())),
        };
        self.place.attempt(cx, Ready::WRITE, attempt).map_err(io::Error::from)
    }

    fn poll_end(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&self.socket, Shutdown::Write).map_err(io::Error::from))
    }

    fn has_gone(&self) -> bool {
        self.place.seen().has(Ready::ENDED)
    }

    fn has_unread(&self) -> bool {
        let peeked =
            rustix::net::recv(&self.socket, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Ok((1.., _)))
    }

    fn splices(&self) -> bool {
        self.place.mark()
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        // One that comes out short says nothing: a pipe may be full of pieces long before it is
        // full of bytes.
        let attempt = || pipe.fill(&self.socket, most).map(|n| (n, true));
        self.place.attempt(cx, Ready::READ, attempt).map_err(io::Error::from)
    }

    // Into a connection that was broken off, splice(2) raises SIGPIPE, which Rust's runtime has set
    // to be ignored.
    fn poll_drain(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let attempt = || match pipe.drain(&self.socket) {
            Ok(0) => Err(Errno::PIPE),
            result => result.map(|n| (n, true)),
        };
        self.place.attempt(cx, Ready::WRITE, attempt).map_err(io::Error::from)
    }
}

/// A listening socket, which others may hold too.
#[derive(Debug)]
pub(crate) struct Queue {
    place: Place,
    socket: OwnedFd,
    /// A Unix socket, whose clients have no addresses.
    is_unix: bool,
}

impl Queue {
    /// A listening socket at `addr`, which must not block.
    pub(crate) fn new(socket: OwnedFd, addr: &ListenAddr) -> io::Result<Self> {
        Ok(Self {
            place: Place::new(&socket, Ready::READ, false)?,
            socket,
            is_unix: addr.unix().is_some(),
        })
    }
}

impl Accept for Queue {
    fn poll_accept(&mut self, cx: &Context<'_>) -> Poll<Result<(OwnedFd, Peer), Errno>> {
        self.place.attempt(cx, Ready::READ, || self.accept().map(|client| (client, true)))
    }

    fn accept(&self) -> Result<(OwnedFd, Peer), Errno> {
        use rustix::net::SocketFlags;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        if self.is_unix {
            return Ok((rustix::net::accept_with(&self.socket, flags)?, Peer::UNIX));
        }
        let (stream, peer) = rustix::net::acceptfrom_with(&self.socket, flags)?;
        // A peer without an address is one that has gone already.
        let peer =
            peer.and_then(|peer| SocketAddr::try_from(peer).ok()).ok_or(Errno::CONNABORTED)?;
        Ok((stream, peer.into()))
    }

    fn has_room(&self) -> Result<(), Errno> {
        let mut room = Vec::with_capacity(ROOM);
        for _ in 0..ROOM {
            room.push(rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)?);
        }
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Others may hold the same socket, so closing it would not make the kernel forget it here.
        self.place.withdraw(&self.socket);
    }
}
