//! An end of a session that is borrowed, for what pumps between connections that it does not own.

use std::io;
use std::task::{Context, Poll};

use crate::io::pipe::Pipe;
use crate::io::shared::Member;
use crate::io::socket_facts::SocketFacts;
use crate::io::stream::ByteStream;
use crate::options::Options;
use crate::runtime::reactor::Registration;
use crate::session_row::TlsFacts;

impl<S: ByteStream> ByteStream for &mut S {
    const SHARED: bool = S::SHARED;
    const SAYS_END: bool = S::SAYS_END;

    #[inline]
    fn update_readiness(&mut self, cx: &mut Context<'_>) {
        S::update_readiness(self, cx);
    }

    fn awaits_late_options(&self) -> bool {
        S::awaits_late_options(self)
    }

    fn set_late_options(&mut self, options: &Options) {
        S::set_late_options(self, options);
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
    fn as_member(&mut self) -> Option<&mut Member> {
        S::as_member(self)
    }

    #[inline]
    fn member(&self) -> Option<&Member> {
        S::member(self)
    }

    #[inline]
    fn has_begun_write(&self) -> bool {
        S::has_begun_write(self)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        S::poll_shutdown(self, cx)
    }

    fn say_end(&mut self, cx: &mut Context<'_>) {
        S::say_end(self, cx);
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
