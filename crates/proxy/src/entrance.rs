//! The accept loop of one listening socket on one worker.
//!
//! It takes clients in as long as there are places, refuses the others in Redis's own words, and closes its socket when the
//! drain says so: not before its queue is empty, because the kernel resets what is still in it.
//!
//! Deliberately absent: what to do about errors, which [`accept`](crate::accept) decides.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use drain::{Door, Phase};
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};

use crate::accept::Pace;
use crate::session;
use crate::worker::Seat;

/// What Redis says to a client beyond its own `maxclients` (`redis:src/networking.c`, `acceptCommonHandler`). Clients know it.
const REFUSAL: &[u8] = b"-ERR max number of clients reached\r\n";

/// Most clients taken from the queue after the drain has closed this door. The queue cannot be longer, so this only ends a
/// flood that arrives faster than it is accepted.
const LAST_GUESTS: usize = 8192;

/// Where clients come from: a listening socket, or in tests one that fails as the system rarely does.
pub(crate) trait Accept {
    /// The next client. Safe to drop and to call again.
    fn accept(&self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send;

    /// The bare socket, once nobody is waited for any more.
    fn into_std(self) -> io::Result<std::net::TcpListener>;
}

impl Accept for TcpListener {
    fn accept(&self) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send {
        Self::accept(self)
    }

    fn into_std(self) -> io::Result<std::net::TcpListener> {
        Self::into_std(self)
    }
}

/// Accepts until the drain closes the listeners and the queue is empty.
pub(crate) async fn serve(listener: impl Accept, seat: Arc<Seat>, door: Door) {
    let mut pace = Pace::default();
    let closing = seat.drain.reached(Phase::Draining);
    tokio::pin!(closing);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut closing => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                pace.succeeded();
                admit(stream, peer, &seat);
            }
            Err(error) => {
                let advice = pace.failed(Instant::now(), errno(&error));
                seat.block.accept_errors.one();
                if let Some(errors) = advice.tell {
                    let service = &*seat.shared.service.name;
                    tracing::warn!(service, errors, %error, "cannot accept connections");
                }
                if advice.pause.is_zero() {
                    continue;
                }
                tokio::select! {
                    () = &mut closing => break,
                    () = tokio::time::sleep(advice.pause) => {}
                }
            }
        }
    }
    empty_the_queue(listener, &seat);
    drop(door);
}

/// Asks the socket itself and not the event loop, which may not have heard yet of whoever came last.
fn empty_the_queue(listener: impl Accept, seat: &Arc<Seat>) {
    let Ok(listener) = listener.into_std() else { return };
    for _ in 0..LAST_GUESTS {
        let accepted = listener.accept().and_then(|(stream, peer)| {
            stream.set_nonblocking(true)?;
            Ok((TcpStream::from_std(stream)?, peer))
        });
        match accepted {
            Ok((stream, peer)) => admit(stream, peer, seat),
            Err(error) if crate::accept::sort(errno(&error)) == crate::accept::Fault::Connection => {}
            Err(_) => return,
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Starts a session, or refuses it.
fn admit(stream: TcpStream, peer: SocketAddr, seat: &Arc<Seat>) {
    match seat.shared.limits.admit(peer.ip()) {
        Ok(admission) => {
            let session = session::Session::new(peer, Arc::clone(seat), admission);
            tokio::spawn(session.run(stream));
        }
        Err(limit) => {
            seat.block.refuse(limit);
            refuse(&stream);
        }
    }
}

/// Nothing here waits: in a flood each refused client costs a few system calls and no memory.
fn refuse(stream: &TcpStream) {
    // All of these may fail, and the client is refused all the same. What it has already sent is read, because closing a
    // socket with unread bytes resets it and may take the answer along.
    drop(stream.try_write(REFUSAL));
    drop(stream.try_read(&mut [0; 4096]));
    drop(socket2::SockRef::from(stream).shutdown(std::net::Shutdown::Write));
}
