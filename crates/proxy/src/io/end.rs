//! The narrow interface through which the pump meets its two ends.
//!
//! A few verbs are all that forwarding needs. A TCP socket is one such end; a TLS session over one
//! will be another, and the pump will not notice.

use std::io;
use std::task::{Context, Poll};

use crate::io::pipe::Pipe;

/// One end of a session. Whoever gets `Pending` is woken when it is worth another try.
pub(crate) trait End {
    /// Takes in what the event loop has noted. Whoever looks is woken when there is more to know.
    fn look(&mut self, cx: &mut Context<'_>);

    /// Whether a read is worth an attempt, as of the last look.
    fn is_readable(&self) -> bool;

    /// Reads what is there into `buffer` and returns how much; 0 when the peer has ended its
    /// direction.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Writes as much of `bytes` as goes without waiting, and returns how much.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Ends our direction: the peer reads an end behind the last byte written.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether the peer has ended its direction or broken off, as of the last look, even if unread
    /// bytes stand before it.
    fn has_gone(&self) -> bool;

    /// Whether bytes are waiting to be read at this very moment, whatever the event loop has noted.
    /// Asks the system.
    fn has_unread(&self) -> bool;

    /// Whether bytes may go from and to it through a pipe. An end that has to look at every byte
    /// leaves it at that.
    fn splices(&self) -> bool {
        false
    }

    /// Moves up to `most` bytes into `pipe`, which is empty, and returns how many; 0 when the peer
    /// has ended its direction.
    fn poll_fill(
        &mut self,
        _cx: &mut Context<'_>,
        _pipe: &mut Pipe,
        _most: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Moves as much out of `pipe`, which is not empty, as goes without waiting, and returns how
    /// much.
    fn poll_drain(&mut self, _cx: &mut Context<'_>, _pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
