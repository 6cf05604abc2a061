//! A connection of a session, over TCP or a Unix socket, and the interface through which the pump
//! uses it.
//!
//! Twelve bytes: a descriptor, the number of a slot in the [reactor](crate::runtime::reactor), its
//! cached readiness, a flag. Receiving stops at the first incomplete read, which has shown that
//! there is nothing more for now. So there is no second read per message that would only return
//! `EAGAIN`.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use socket2::{SockAddr, SockRef, Socket};

use crate::address::{ListenAddr, Peer};
use crate::invariant;
use crate::io::buffer;
use crate::io::pipe::Pipe;
use crate::runtime::reactor::{self, Readiness, Registration};
use crate::session_row::TlsFacts;

/// One end of a session: the few operations that forwarding needs. A TCP socket implements it, and
/// a TLS session over one could. After `Pending`, the task of `cx` is woken when another attempt
/// may succeed.
pub(crate) trait ByteStream: Unpin {
    /// Takes over the readiness recorded by the event loop. The task of `cx` is woken when it
    /// changes.
    fn update_readiness(&mut self, cx: &mut Context<'_>);

    /// Its registration, if [updating](Self::update_readiness) that is all that it has to do.
    fn registration(&self) -> Option<&Registration> {
        None
    }

    /// Whether a read may succeed, as of the last update.
    fn is_readable(&self) -> bool;

    /// Reads available bytes into `buffer` and returns how many; 0 when the peer has closed its
    /// direction.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Writes as much of `bytes` as possible without waiting, and returns how much. After `Pending`
    /// with [a write begun](Self::has_begun_write), the next write has to begin with the same
    /// bytes.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// How many bytes of a write that was pending cannot be taken back one by one: the peer can
    /// read none of them yet, and gets all of them or none. A stream that sends bytes as they are
    /// has always returned how many it has sent.
    fn begun_write(&self) -> usize {
        0
    }

    /// Whether the next write has to begin with the same bytes.
    fn has_begun_write(&self) -> bool {
        self.begun_write() > 0
    }

    /// Whether it takes bytes now. Asked before each read for it, so that nothing is read that has
    /// to be kept.
    #[inline(always)]
    fn has_room(&mut self) -> bool {
        true
    }

    /// Whether a write would be pending until something is read.
    fn holds_writes(&self) -> bool {
        false
    }

    /// Closes our direction: the peer reads an end after the last byte written.
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether the peer has closed its direction or the connection, as of the last update, even if
    /// unread bytes precede that.
    fn peer_closed(&self) -> bool;

    /// Whether bytes are waiting to be read now, whatever the event loop has recorded. A system
    /// call.
    fn has_unread(&self) -> bool;

    /// The first bytes that wait to be read, left where they are. A system call. Empty if they are
    /// encrypted.
    fn peek<'a>(&self, _buffer: &'a mut [u8]) -> &'a [u8] {
        &[]
    }

    /// The negotiated parameters of TLS, for an operator.
    fn tls_facts(&self) -> Option<TlsFacts> {
        None
    }

    /// What the kernel knows of it, for an operator. System calls.
    fn socket_facts(&self) -> SocketFacts {
        SocketFacts::default()
    }

    /// Whether its bytes may go through a pipe. An end that has to process every byte keeps the
    /// default.
    fn can_splice(&self) -> bool {
        false
    }

    /// Moves up to `most` bytes into `pipe`, which is empty, and returns how many; 0 when the peer
    /// has closed its direction.
    fn poll_fill(
        &mut self,
        _cx: &mut Context<'_>,
        _pipe: &mut Pipe,
        _most: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Moves as much as possible out of `pipe`, which is not empty, without waiting, and returns
    /// how much.
    fn poll_drain(&mut self, _cx: &mut Context<'_>, _pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

/// As [`ByteStream::update_readiness`] of both ends of a session.
#[inline(always)]
pub(crate) fn update_readiness_of_both(
    first: &mut impl ByteStream,
    second: &mut impl ByteStream,
    cx: &mut Context<'_>,
) {
    match (first.registration(), second.registration()) {
        // A closure of this function is one for each kind of session, and becomes part of its poll.
        (Some(first), Some(second)) => reactor::update_readiness(cx, |update| {
            update.take(first);
            update.take(second);
        }),
        _ => {
            first.update_readiness(cx);
            second.update_readiness(cx);
        }
    }
}

/// Reads once, at most `most` bytes, which `parse` is given; none at the end of the stream.
pub(crate) fn poll_parse<T>(
    stream: &mut (impl ByteStream + ?Sized),
    cx: &mut Context<'_>,
    most: usize,
    parse: impl FnOnce(io::Result<&[u8]>) -> T,
) -> Poll<T> {
    buffer::with_scratch(|scratch| {
        let size = scratch.len().min(most);
        let Some(buffer) = scratch.get_mut(..size) else { return Poll::Pending };
        let read = ready!(stream.poll_read(cx, buffer));
        Poll::Ready(parse(read.and_then(|read| invariant::first_bytes(buffer, read))))
    })
}

/// Writes all of `bytes`.
pub(crate) async fn write_all(stream: &mut impl ByteStream, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = poll_fn(|cx| stream.poll_write(cx, rest)).await?;
        rest = invariant::rest_after(rest, written)?;
    }
    Ok(())
}

/// The connection of a client, while its session does not pump. A TLS session over a socket is one,
/// too.
pub(crate) trait ClientStream: ByteStream + 'static {
    /// Whether the peer has closed its direction or the connection, as far as the event loop knows,
    /// even if unread bytes precede that.
    fn peer_closed_now(&self) -> bool;

    /// Waits until the connection breaks. That the peer closes its direction is not enough.
    fn poll_broken(&mut self, cx: &Context<'_>) -> Poll<()>;

    /// Announces that the connection is about to be closed, if the protocol has a word for that.
    /// Does not wait.
    fn announce_end(&mut self) {}
}

/// A connection. Belongs to the thread that created it.
#[derive(Debug)]
pub(crate) struct SocketStream {
    // Before the socket, so that an event of it never finds a slot of another socket.
    registration: Registration,
    socket: OwnedFd,
}

impl SocketStream {
    /// A connection that was just accepted, in non-blocking mode. It is assumed to be readable,
    /// since most clients have sent something by now.
    pub(crate) fn accepted(socket: OwnedFd, can_splice: bool) -> io::Result<Self> {
        Ok(Self { registration: Registration::new(&socket, Readiness::BOTH, can_splice)?, socket })
    }

    /// Starts to connect `socket`, in non-blocking mode, to `addr`.
    /// [`poll_connected`](Self::poll_connected) returns the result.
    pub(crate) fn connect(socket: Socket, addr: SocketAddr, can_splice: bool) -> io::Result<Self> {
        match socket.connect(&SockAddr::from(addr)) {
            Ok(()) => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        // Within one host the handshake is complete before connect(2) returns, although it returns
        // EINPROGRESS.
        let ready = if socket.peer_addr().is_ok() { Readiness::WRITE } else { Readiness::NONE };
        let socket = OwnedFd::from(socket);
        let registration = Registration::new(&socket, ready, can_splice)?;
        Ok(Self { registration, socket })
    }

    /// Whether the connection was established immediately, as happens within one host.
    pub(crate) fn is_connected(&self) -> bool {
        self.registration.cached().has(Readiness::WRITE)
    }

    /// Returns when the connection is established, or the error.
    pub(crate) fn poll_connected(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        while self.registration.is_ready(cx, Readiness::WRITE) {
            let socket = SockRef::from(&self.socket);
            if let Some(error) = socket.take_error()? {
                return Poll::Ready(Err(error));
            }
            match socket.peer_addr() {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
                    self.registration.set_not_ready(Readiness::WRITE);
                }
                result => return Poll::Ready(result.map(drop)),
            }
        }
        Poll::Pending
    }

    /// Sends what the kernel takes of `bytes` at this moment, without waiting and without the event
    /// loop: for the last message before the connection is closed.
    pub(crate) fn send_last(&self, bytes: &[u8]) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // A peer that is gone needs no message.
        let _sent = rustix::net::send(&self.socket, bytes, flags);
    }

    /// Makes close discard what the kernel still holds for this connection, with a reset instead of
    /// a FIN.
    pub(crate) fn reset_on_close(&self) {
        // Only a broken socket can refuse this, and it sends nothing.
        drop(SockRef::from(&self.socket).set_linger(Some(Duration::ZERO)));
    }
}

impl AsFd for SocketStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ClientStream for SocketStream {
    fn peer_closed_now(&self) -> bool {
        self.registration.ready().has(Readiness::ENDED)
    }

    fn poll_broken(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.registration.is_ready(cx, Readiness::BROKEN) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl ByteStream for SocketStream {
    #[inline]
    fn update_readiness(&mut self, cx: &mut Context<'_>) {
        self.registration.update_readiness(cx);
    }

    #[inline]
    fn registration(&self) -> Option<&Registration> {
        Some(&self.registration)
    }

    #[inline]
    fn is_readable(&self) -> bool {
        self.registration.cached().has(Readiness::READ)
    }

    #[inline(always)]
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let attempt = || {
            let (n, _) = rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty())?;
            Ok((n, n == buffer.len()))
        };
        self.registration.attempt(cx, Readiness::READ, attempt).map_err(io::Error::from)
    }

    #[inline(always)]
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let attempt = || match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL)? {
            0 if !bytes.is_empty() => Err(Errno::PIPE),
            n => Ok((n, n == bytes.len())),
        };
        self.registration.attempt(cx, Readiness::WRITE, attempt).map_err(io::Error::from)
    }

    fn poll_shutdown(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&self.socket, Shutdown::Write).map_err(io::Error::from))
    }

    #[inline]
    fn peer_closed(&self) -> bool {
        self.registration.cached().has(Readiness::ENDED)
    }

    fn has_unread(&self) -> bool {
        !self.peek(&mut [0]).is_empty()
    }

    fn peek<'a>(&self, buffer: &'a mut [u8]) -> &'a [u8] {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.socket, &mut *buffer, flags) {
            Ok((read, _)) => buffer.get(..read).unwrap_or_default(),
            Err(_) => &[],
        }
    }

    fn socket_facts(&self) -> SocketFacts {
        SocketFacts::of(&self.socket)
    }

    fn can_splice(&self) -> bool {
        self.registration.flag()
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        // An incomplete move means nothing: a pipe may be full of fragments long before it is full
        // of bytes.
        let attempt = || pipe.fill(&self.socket, most).map(|n| (n, true));
        self.registration.attempt(cx, Readiness::READ, attempt).map_err(io::Error::from)
    }

    // On a broken connection, splice(2) raises SIGPIPE, which Rust's runtime ignores.
    fn poll_drain(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let attempt = || match pipe.drain(&self.socket) {
            Ok(0) => Err(Errno::PIPE),
            result => result.map(|n| (n, true)),
        };
        self.registration.attempt(cx, Readiness::WRITE, attempt).map_err(io::Error::from)
    }
}

// What the kernel knows of a client's connection and no session keeps: asked when an operator asks
// for the sessions.

nix::getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    libc::tcp_info,
    nix::sys::socket::sockopt::GetStruct<libc::tcp_info>
);

/// The option `TCP_INFO`.
#[derive(Debug, Clone, Copy)]
struct TcpInfo;

/// The facts of one connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SocketFacts {
    /// The address that the client connected to.
    pub(crate) listener: Option<ListenAddr>,
    /// Since the last bytes arrived, or since the connection was opened. Unknown at a Unix socket.
    pub(crate) silent: Option<Duration>,
}

impl SocketFacts {
    pub(crate) fn of(socket: &impl AsFd) -> Self {
        let local = SockRef::from(socket).local_addr().ok();
        let listener = local.and_then(|local| match local.as_socket() {
            Some(addr) => Peer::from(addr).addr().map(ListenAddr::Tcp),
            None => local.as_pathname().map(|path| ListenAddr::Unix(path.to_owned())),
        });
        let silent = getsockopt(socket, TcpInfo).ok();
        let silent = silent.map(|info| Duration::from_millis(info.tcpi_last_data_recv.into()));
        Self { listener, silent }
    }
}
