//! The two ways in: the network, where whoever reaches the address may ask, and a Unix socket,
//! which belongs to somebody.
//!
//! Who may open the file of a Unix socket is a question of its mode; that the peer is one of the
//! users it is meant for is asked of the kernel for each connection, since a mode can be changed
//! and a socket be passed on.
//!
//! Deliberately absent: making the file and removing it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// A connection of either kind.
pub(crate) type Visitor = Either<TcpStream, UnixStream>;

/// A listener of either kind.
#[derive(Debug)]
pub(crate) enum ConnectionLimit {
    /// For everybody.
    Network(TcpListener),
    /// For these users only.
    Owner(UnixListener, Vec<u32>),
}

impl ConnectionLimit {
    pub(crate) async fn accept(&self) -> io::Result<Visitor> {
        match self {
            Self::Network(listener) => {
                listener.accept().await.map(|(stream, _)| Either::Left(stream))
            }
            Self::Owner(listener, _) => {
                listener.accept().await.map(|(stream, _)| Either::Right(stream))
            }
        }
    }

    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Visitor>> {
        match self {
            Self::Network(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| Either::Left(stream))
            }
            Self::Owner(listener, _) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| Either::Right(stream))
            }
        }
    }

    /// Whether the connection may stay.
    pub(crate) fn lets_in(&self, visitor: &Visitor) -> bool {
        match (self, visitor) {
            (Self::Owner(_, users), Either::Right(stream)) => {
                stream.peer_cred().is_ok_and(|peer| users.contains(&peer.uid()))
            }
            (Self::Network(_), Either::Left(_)) => true,
            _ => false,
        }
    }
}

impl AsFd for ConnectionLimit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Network(listener) => listener.as_fd(),
            Self::Owner(listener, _) => listener.as_fd(),
        }
    }
}
