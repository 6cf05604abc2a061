//! Ends of a session behind a pointer: a TLS connection in a box, and the streams of tests.

use std::io;
use std::task::{Context, Poll};

use tls::ClientSide;

use crate::io::pipe::Pipe;
use crate::io::socket_facts::SocketFacts;
use crate::io::stream::ByteStream;
use crate::io::tls_stream::TlsStream;
use crate::runtime::reactor::Registration;
use crate::session::upstream::TargetTls;
use crate::session_row::TlsFacts;

/// Implements a stream by the one that a pointer leads to. A generic implementation for all
/// pointers would be found for every reference to a stream.
macro_rules! by_pointer {
    ([$($generics:tt)*] $pointer:ty, $stream:ty) => {
        impl<$($generics)*> ByteStream for $pointer {
            const SAYS_END: bool = <$stream>::SAYS_END;

            #[inline]
            fn update_readiness(&mut self, cx: &mut Context<'_>) {
                <$stream>::update_readiness(self, cx);
            }

            #[inline]
            fn registration(&self) -> Option<&Registration> {
                <$stream>::registration(self)
            }

            #[inline]
            fn is_readable(&self) -> bool {
                <$stream>::is_readable(self)
            }

            #[inline]
            fn poll_read(
                &mut self,
                cx: &mut Context<'_>,
                buffer: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                <$stream>::poll_read(self, cx, buffer)
            }

            #[inline]
            fn poll_write(
                &mut self,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                <$stream>::poll_write(self, cx, bytes)
            }

            #[inline]
            fn begun_write(&self) -> usize {
                <$stream>::begun_write(self)
            }

            #[inline]
            fn has_begun_write(&self) -> bool {
                <$stream>::has_begun_write(self)
            }

            fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                <$stream>::poll_shutdown(self, cx)
            }

            fn say_end(&mut self, cx: &mut Context<'_>) {
                <$stream>::say_end(self, cx);
            }

            #[inline]
            fn peer_closed(&self) -> bool {
                <$stream>::peer_closed(self)
            }

            fn has_unread(&self) -> bool {
                <$stream>::has_unread(self)
            }

            fn peek<'a>(&self, buffer: &'a mut [u8]) -> &'a [u8] {
                <$stream>::peek(self, buffer)
            }

            fn tls_facts(&self) -> Option<TlsFacts> {
                <$stream>::tls_facts(self)
            }

            fn socket_facts(&self) -> SocketFacts {
                <$stream>::socket_facts(self)
            }

            #[inline]
            fn can_splice(&self) -> bool {
                <$stream>::can_splice(self)
            }

            fn poll_fill(
                &mut self,
                cx: &mut Context<'_>,
                pipe: &mut Pipe,
                most: usize,
            ) -> Poll<io::Result<usize>> {
                <$stream>::poll_fill(self, cx, pipe, most)
            }

            fn poll_drain(
                &mut self,
                cx: &mut Context<'_>,
                pipe: &mut Pipe,
            ) -> Poll<io::Result<usize>> {
                <$stream>::poll_drain(self, cx, pipe)
            }
        }
    };
}

by_pointer!([] TargetTls, TlsStream<ClientSide>);
#[cfg(test)]
by_pointer!([S: ByteStream] &mut S, S);
