//! The narrow interface through which the pump meets its two ends.
//!
//! A few verbs are all that forwarding needs. A TCP socket is one such end; a TLS session over one will be another, and the
//! pump will not notice.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;

/// One end of a session. Whoever gets `Pending` is woken when it is worth another try.
pub(crate) trait End {
    /// Reads what is there into `buffer` and returns how much; 0 when the peer has ended its direction.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Writes as much of `bytes` as goes without waiting, and returns how much.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Ends our direction: the peer reads an end behind the last byte written.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether the peer has ended its direction or broken off, as far as is known, even if unread bytes stand before it.
    fn has_gone(&self) -> bool;

    /// Whether bytes are waiting to be read at this very moment, whatever the event loop has noted. Asks the system.
    fn has_unread(&self) -> bool;
}

impl End for TcpStream {
    // A read or write that comes out short has also told the event loop that there is nothing more for now, so the next
    // try costs no system call. That is why these are tokio's poll functions and not `try_read` in a loop.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        AsyncRead::poll_read(Pin::new(self), cx, &mut buffer).map_ok(|()| buffer.filled().len())
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match AsyncWrite::poll_write(Pin::new(self), cx, bytes) {
            Poll::Ready(Ok(0)) if !bytes.is_empty() => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            result => result,
        }
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(self), cx)
    }

    fn has_gone(&self) -> bool {
        // Asked of what the event loop has noted; nothing is waited for.
        let mut ready = pin!(self.ready(Interest::READABLE));
        match ready.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ready) => ready.is_ok_and(Ready::is_read_closed),
            Poll::Pending => false,
        }
    }

    fn has_unread(&self) -> bool {
        let mut byte = [0];
        let peeked = recv(self, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Ok((1.., _)))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write as _;

    use super::*;

    #[tokio::test]
    async fn what_the_event_loop_has_not_told_of_is_seen() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 8];
        // The first read finds nothing, so that the next one waits for the event loop, which gets no turn here.
        let silent = poll_fn(|cx| Poll::Ready(stream.poll_read(cx, &mut buffer).is_pending())).await;
        assert!(silent && !stream.has_unread());
        peer.write_all(b"PING\r\n").unwrap();
        let unheard = poll_fn(|cx| Poll::Ready(stream.poll_read(cx, &mut buffer).is_pending())).await;
        assert!(unheard && stream.has_unread());
        let read = poll_fn(|cx| stream.poll_read(cx, &mut buffer)).await.unwrap();
        assert_eq!((read, stream.has_unread()), (6, false));
    }
}
