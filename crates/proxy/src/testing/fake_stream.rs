//! A stream without a socket, of which the test decides what it sends and how much it accepts.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use crate::io::pipe::Pipe;
use crate::io::stream::{ByteStream, SocketFacts};
use crate::runtime::reactor::Registration;
use crate::session::upstream::TargetStream;
use crate::session_row::TlsFacts;

/// One side of a session without a socket.
#[derive(Debug, Default)]
pub(crate) struct FakeStream {
    /// The bytes it sends, one entry per read; an empty entry is its end.
    pub(crate) incoming: VecDeque<Vec<u8>>,
    /// How many bytes it accepts before writes to it are pending.
    pub(crate) capacity: usize,
    /// The bytes written to it.
    pub(crate) written: Vec<u8>,
    /// The other direction was ended towards it.
    pub(crate) ended: bool,
    /// The largest buffer it was read into since this was last set.
    pub(crate) largest_read: usize,
    /// Each read and write reports this many bytes too many, as a buggy implementation would.
    pub(crate) overstated: usize,
}

impl FakeStream {
    pub(crate) fn sending(words: &[&[u8]]) -> Self {
        let incoming = words.iter().map(|word| word.to_vec()).collect();
        Self { incoming, capacity: usize::MAX, ..Self::default() }
    }
}

impl TargetStream for FakeStream {}

impl<S: TargetStream> TargetStream for &mut S {}

// So that a test keeps the ends of its pump.
impl<S: ByteStream> ByteStream for &mut S {
    #[inline]
    fn update_readiness(&mut self, cx: &mut Context<'_>) {
        S::update_readiness(self, cx);
    }

    #[inline]
    fn registration(&self) -> Option<&Registration> {
        S::registration(self)
    }

    #[inline]
    fn is_readable(&self) -> bool {
        S::is_readable(self)
    }

    #[inline]
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        S::poll_read(self, cx, buffer)
    }

    #[inline]
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        S::poll_write(self, cx, bytes)
    }

    #[inline]
    fn begun_write(&self) -> usize {
        S::begun_write(self)
    }

    #[inline]
    fn has_begun_write(&self) -> bool {
        S::has_begun_write(self)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        S::poll_shutdown(self, cx)
    }

    #[inline]
    fn peer_closed(&self) -> bool {
        S::peer_closed(self)
    }

    fn has_unread(&self) -> bool {
        S::has_unread(self)
    }

    fn peek<'a>(&self, buffer: &'a mut [u8]) -> &'a [u8] {
        S::peek(self, buffer)
    }

    fn tls_facts(&self) -> Option<TlsFacts> {
        S::tls_facts(self)
    }

    fn socket_facts(&self) -> SocketFacts {
        S::socket_facts(self)
    }

    #[inline]
    fn can_splice(&self) -> bool {
        S::can_splice(self)
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        S::poll_fill(self, cx, pipe, most)
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        S::poll_drain(self, cx, pipe)
    }
}

impl ByteStream for FakeStream {
    fn update_readiness(&mut self, _cx: &mut Context<'_>) {}

    fn is_readable(&self) -> bool {
        !self.incoming.is_empty()
    }

    fn poll_read(&mut self, _cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.largest_read = self.largest_read.max(buffer.len());
        let Some(mut word) = self.incoming.pop_front() else { return Poll::Pending };
        let n = word.len().min(buffer.len());
        buffer[..n].copy_from_slice(&word[..n]);
        if n < word.len() {
            self.incoming.push_front(word.split_off(n));
        }
        let n = if self.overstated > 0 { buffer.len() + self.overstated } else { n };
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let n = bytes.len().min(self.capacity);
        if n == 0 {
            return Poll::Pending;
        }
        self.capacity -= n;
        self.written.extend_from_slice(&bytes[..n]);
        Poll::Ready(Ok(n + self.overstated))
    }

    fn poll_shutdown(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ended = true;
        Poll::Ready(Ok(()))
    }

    fn peer_closed(&self) -> bool {
        self.incoming.back().is_some_and(Vec::is_empty)
    }

    fn has_unread(&self) -> bool {
        self.incoming.front().is_some_and(|word| !word.is_empty())
    }
}
