//! One direction of a session, and the worker's one large buffer.
//!
//! Bytes go from the source into the worker's buffer and from there to the other side, in one turn. Only what the other side
//! does not take is kept by the session, and while something is kept nothing more is read: that is all the back-pressure there
//! has to be, and it bounds a session's memory by the size of the buffer.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Size of the worker's buffer, in bytes. Measured: a large one decides the cost of bulk replies, far more than `splice`.
pub(crate) const SCRATCH: usize = 256 * 1024;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// What one turn of a direction came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This many bytes were read, and some of them written.
    Moved(usize),
    /// The source has ended.
    Ended,
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Read, but not taken by the other side; from `at` on.
    kept: Vec<u8>,
    at: usize,
    /// The source has sent its FIN.
    pub(crate) ended: bool,
    /// The FIN was passed on.
    pub(crate) shut: bool,
    /// Bytes passed on.
    pub(crate) moved: u64,
}

/// Which side an error came from.
#[derive(Debug)]
pub(crate) enum Fault {
    Reading(io::Error),
    Writing(io::Error),
}

impl Flow {
    /// Starts with bytes that were read before the other side was there.
    pub(crate) fn with_ahead(ahead: Vec<u8>) -> Self {
        Self { kept: ahead, ..Self::default() }
    }

    /// Whether something was read that the other side has not taken.
    pub(crate) fn has_kept(&self) -> bool {
        self.at < self.kept.len()
    }

    /// Writes what is kept. `taken` is given the bytes that were written, in order.
    pub(crate) fn poll_flush<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
        mut taken: impl FnMut(&[u8]),
    ) -> Poll<Result<(), Fault>> {
        while let Some(rest) = self.kept.get(self.at..).filter(|rest| !rest.is_empty()) {
            let n = ready!(Pin::new(&mut *to).poll_write(cx, rest)).map_err(Fault::Writing)?;
            if n == 0 {
                return Poll::Ready(Err(Fault::Writing(io::ErrorKind::WriteZero.into())));
            }
            taken(rest.get(..n).unwrap_or_default());
            self.at += n;
            self.moved += n as u64;
        }
        // An idle session keeps no buffer.
        self.kept = Vec::new();
        self.at = 0;
        Poll::Ready(Ok(()))
    }

    /// Reads once and passes on what the other side takes at once. `seen` is given all that was read, and says whether it may be
    /// passed on now; `taken` is given what was written.
    pub(crate) fn poll_turn<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        mut seen: impl FnMut(&[u8]) -> bool,
        mut taken: impl FnMut(&[u8]),
    ) -> Poll<Result<Turn, Fault>> {
        BUFFER.with_borrow_mut(|buffer| {
            let mut read = ReadBuf::new(buffer);
            ready!(Pin::new(from).poll_read(cx, &mut read)).map_err(Fault::Reading)?;
            let chunk = read.filled();
            if chunk.is_empty() {
                self.ended = true;
                return Poll::Ready(Ok(Turn::Ended));
            }
            let mut written = 0;
            if seen(chunk) {
                if let Poll::Ready(wrote) = Pin::new(to).poll_write(cx, chunk) {
                    written = wrote.map_err(Fault::Writing)?;
                }
            }
            let (now, later) = chunk.split_at(written.min(chunk.len()));
            taken(now);
            self.moved += now.len() as u64;
            if !later.is_empty() {
                self.kept = later.to_vec();
                self.at = 0;
            }
            Poll::Ready(Ok(Turn::Moved(chunk.len())))
        })
    }

    /// Passes the FIN on, once.
    pub(crate) fn poll_shut<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, to: &mut W) -> Poll<()> {
        if !self.shut {
            // An error means that the other side is gone already, which reading from it will tell.
            drop(ready!(Pin::new(to).poll_shutdown(cx)));
            self.shut = true;
        }
        Poll::Ready(())
    }
}

/// Reads what is there at this very moment, without waiting for the poller: a new client's first request usually is.
pub(crate) fn read_now(client: &tokio::net::TcpStream, ahead: &mut Vec<u8>) {
    BUFFER.with_borrow_mut(|buffer| {
        // At most what a waiting client may send ahead anyway.
        let Some(space) = buffer.get_mut(..64 * 1024) else { return };
        // An end or an error is found again by whoever reads next.
        if let Ok((n, _)) = rustix::net::recv(client, &mut *space, rustix::net::RecvFlags::DONTWAIT) {
            ahead.extend_from_slice(space.get(..n).unwrap_or_default());
        }
    });
}
