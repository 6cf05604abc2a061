//! A listener of either kind: TCP, open to every peer that can reach the address, or a Unix socket
//! that is reserved for certain users.
//!
//! The mode of its file restricts the use of a Unix socket. In addition, the kernel is asked for
//! the user of each peer, since a mode can be changed and a socket can be passed on.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// A connection of either kind.
pub(crate) type Stream = Either<TcpStream, UnixStream>;

/// A listener of either kind.
#[derive(Debug)]
pub(crate) enum AdminListener {
    /// For every peer, and whether it accepts no commands.
    Network(TcpListener, bool),
    /// For these users only.
    Owner(UnixListener, Vec<u32>),
}

impl AdminListener {
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        match self {
            Self::Network(listener, _) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| Either::Left(stream))
            }
            Self::Owner(listener, _) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| Either::Right(stream))
            }
        }
    }

    /// Whether it accepts no commands.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self, Self::Network(_, true))
    }

    /// Whether this peer may use the server.
    pub(crate) fn is_allowed(&self, stream: &Stream) -> bool {
        match (self, stream) {
            (Self::Owner(_, users), Either::Right(stream)) => {
                stream.peer_cred().is_ok_and(|peer| users.contains(&peer.uid()))
            }
            (Self::Network(..), Either::Left(_)) => true,
            _ => false,
        }
    }
}

impl AsFd for AdminListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Network(listener, _) => listener.as_fd(),
            Self::Owner(listener, _) => listener.as_fd(),
        }
    }
}
