//! A TLS connection over a socket, for the pump and everything else that uses a [`ByteStream`].
//!
//! **Reading.** Ciphertext is received into the worker's second scratch buffer, and plaintext goes
//! straight into the buffer of the caller. Only an incomplete record stays in memory, and plaintext
//! for which the caller's buffer was too small. Both make the stream readable, or a request under
//! way, although the socket has nothing to read.
//!
//! **Writing.** A record cannot be taken back: its number is used up, and what follows can be read
//! only after it. So ciphertext that the socket does not accept is kept here. Its plaintext counts
//! as written when its whole record was sent: a peer cannot read a part of a record, and an upper
//! layer that counts bytes as sent too early, or too late, would lose a request or send it twice.
//! Until then the upper layer offers the same bytes again.
//!
//! **The end.** A clean end is a message of the protocol (`close_notify`), which closes one
//! direction like a FIN. Many Redis clients close the socket without it. That is an end as well,
//! as it is without TLS: commands and replies have lengths of their own, so nothing that is cut off
//! is taken for complete.
//!
//! It never splices, because every byte has to be processed.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::task::{Context, Poll, ready};

use tls::{MAX_RECORD, RECORD_OVERHEAD, TlsConnection, TlsSide};

use crate::invariant;
use crate::io::buffer::{self, KeptCount, SCRATCH_SIZE};
use crate::io::stream::{ByteStream, ClientStream, SocketFacts, SocketStream};
use crate::session_row::TlsFacts;

/// Records encrypted before they are sent: 64 KiB with one system call.
const RECORDS_PER_WRITE: usize = 4;

/// Reads in a row that may bring no plaintext before other sessions run: parts of a record, or
/// messages of the protocol.
const FRUITLESS_READS: usize = 4;

/// The minimum that is received at once: most callers with a smaller buffer expect a request.
const MIN_RECEIVED: usize = 4096;

/// A TLS connection.
#[derive(Debug)]
pub(crate) struct TlsStream<S: TlsSide> {
    socket: SocketStream,
    // In a box, because the future of a session is as large as its streams.
    state: Box<State<S>>,
}

#[derive(Debug)]
struct State<S: TlsSide> {
    connection: TlsConnection<S>,
    /// Decrypted, and not read yet.
    plaintext: Vec<u8>,
    /// Encrypted, and not sent yet: from `sent` on.
    ciphertext: Vec<u8>,
    sent: usize,
    /// The records with plaintext that are not sent in full: where each ends in `ciphertext`, and
    /// the length of its plaintext.
    records: VecDeque<(usize, usize)>,
    /// Plaintext whose records were sent, which the upper layer does not know yet.
    written: usize,
    kept: KeptCount,
    /// Nothing more can be received.
    is_broken: bool,
    /// The plaintext that has to be offered again.
    #[cfg(debug_assertions)]
    expected: Vec<u8>,
}

/// What comes next in a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeStep {
    /// Something has to be received.
    Receive,
    /// Application data can be exchanged.
    Complete,
}

/// Receives for the next step of a handshake. Returns how much; 0 at the end.
pub(crate) fn poll_receive(
    socket: &mut SocketStream,
    cx: &mut Context<'_>,
    received: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    buffer::with_tls_scratch(|scratch| {
        let Some(part) = scratch.get_mut(..MAX_RECORD) else { return Poll::Pending };
        let read = ready!(socket.poll_read(cx, part))?;
        received.extend_from_slice(invariant::first_bytes(part, read)?);
        Poll::Ready(Ok(read))
    })
}

impl<S: TlsSide> TlsStream<S> {
    /// A connection whose handshake is yet to come.
    pub(crate) fn new(socket: SocketStream, connection: TlsConnection<S>) -> Self {
        let state = State {
            connection,
            plaintext: Vec::new(),
            ciphertext: Vec::new(),
            sent: 0,
            records: VecDeque::new(),
            written: 0,
            kept: KeptCount::default(),
            is_broken: false,
            #[cfg(debug_assertions)]
            expected: Vec::new(),
        };
        Self { socket, state: Box::new(state) }
    }

    /// The negotiated parameters.
    pub(crate) fn connection(&self) -> &TlsConnection<S> {
        &self.state.connection
    }

    /// The socket, for what has to be said without TLS.
    pub(crate) fn socket(&mut self) -> &mut SocketStream {
        &mut self.socket
    }

    /// As [`poll_receive`].
    pub(crate) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        received: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        poll_receive(&mut self.socket, cx, received)
    }

    /// One step of the handshake: processes `received`, which is emptied, and sends what is to be
    /// sent.
    ///
    /// # Errors
    ///
    /// The handshake has failed. If the peer does not keep to the protocol or the two sides do not
    /// agree, that is its [cause](cause_of), and an alert was sent if the socket took it.
    pub(crate) fn poll_handshake(
        &mut self,
        cx: &mut Context<'_>,
        received: &mut Vec<u8>,
    ) -> Poll<io::Result<HandshakeStep>> {
        let State { connection, plaintext, is_broken, .. } = &mut *self.state;
        // The side that opens a connection begins, with nothing received.
        let is_new = connection.version().is_none() && connection.waiting().is_empty();
        if is_new || !received.is_empty() {
            let mut incoming = [connection.waiting(), received.as_slice()].concat();
            *received = Vec::new();
            let processed =
                connection.process(&mut incoming, |bytes| plaintext.extend_from_slice(bytes));
            // Servers are trusted: their certificates may be as long as they are.
            let most = if S::OPENS { usize::MAX } else { buffer::max_held() };
            let processed = match connection.waiting().len().saturating_sub(RECORD_OVERHEAD) {
                waiting if waiting > most => Err(tls::rustls::Error::PeerSentOversizedRecord),
                _ => processed,
            };
            if let Err(error) = processed {
                *is_broken = true;
                let _alerted = self.poll_flush(cx);
                return Poll::Ready(Err(invalid(error)));
            }
            self.state.count();
        }
        ready!(self.poll_flush(cx))?;
        Poll::Ready(Ok(match self.state.connection.is_handshaking() {
            true => HandshakeStep::Receive,
            false => HandshakeStep::Complete,
        }))
    }

    /// Sends what was encrypted. Ready when all of it is.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, state } = self;
        if !state.connection.outgoing().is_empty() {
            let mut outgoing = std::mem::take(state.connection.outgoing());
            state.ciphertext.append(&mut outgoing);
        }
        while let rest @ [_, ..] = state.ciphertext.get(state.sent..).unwrap_or_default() {
            let Poll::Ready(sent) = socket.poll_write(cx, rest) else {
                state.count();
                return Poll::Pending;
            };
            state.sent += sent?;
            while let Some((end, length)) = state.records.front().copied()
                && end <= state.sent
            {
                state.records.pop_front();
                state.written += length;
            }
        }
        if !state.ciphertext.is_empty() {
            // An idle session holds no buffer.
            (state.ciphertext, state.sent) = (Vec::new(), 0);
            state.records = VecDeque::new();
            state.count();
        }
        Poll::Ready(Ok(()))
    }

    /// Encrypts a part of `bytes` and sends it, when nothing else is to be sent. What the socket
    /// does not accept is kept. Returns how much plaintext was sent in whole records.
    fn encrypt_and_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        let Self { socket, state } = self;
        buffer::with_tls_scratch(|scratch| {
            let (mut records, mut end, mut taken) = ([(0, 0); RECORDS_PER_WRITE], 0, 0);
            for (piece, record) in bytes.chunks(MAX_RECORD).zip(&mut records) {
                let part = scratch.get_mut(end..).unwrap_or_default();
                end += state.connection.encrypt(piece, part).map_err(invalid)?;
                taken += piece.len();
                *record = (end, piece.len());
            }
            let ciphertext = invariant::first_bytes(scratch, end)?;
            let sent = match socket.poll_write(cx, ciphertext) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            if sent == end {
                return Ok(taken);
            }
            let unsent = records.iter().filter(|(end, _)| *end > sent);
            state.records.extend(unsent);
            let kept = state.unsent();
            #[cfg(debug_assertions)]
            bytes.get(..taken).unwrap_or_default().clone_into(&mut state.expected);
            // From the first byte, because the ends of records are counted from there.
            (state.ciphertext, state.sent) = (ciphertext.to_vec(), sent);
            state.count();
            Ok(taken.saturating_sub(kept))
        })
    }

    /// Receives and decrypts once. Returns how much plaintext went into `buffer`; `None` at the end
    /// of what the socket has.
    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<Option<usize>>> {
        let Self { socket, state } = self;
        let State { connection, plaintext, is_broken, .. } = &mut **state;
        let filled = buffer::with_tls_scratch(|scratch| {
            let before = connection.waiting().len();
            let most = buffer.len().clamp(MIN_RECEIVED, SCRATCH_SIZE);
            let whole = invariant::first_bytes_mut(scratch, before.saturating_add(most))?;
            let (waiting, new) = whole.split_at_mut(before);
            waiting.copy_from_slice(connection.waiting());
            let read = ready!(socket.poll_read(cx, new))?;
            if read == 0 {
                return Poll::Ready(Ok(None));
            }
            let incoming = invariant::first_bytes_mut(scratch, before.saturating_add(read))?;
            let mut filled = 0;
            let processed = connection.process(incoming, |bytes| {
                let (free, mut rest) = (buffer.get_mut(filled..).unwrap_or_default(), bytes);
                filled += rest.read(free).unwrap_or_default();
                plaintext.extend_from_slice(rest);
            });
            match processed {
                Ok(()) => Poll::Ready(Ok(Some(filled))),
                Err(error) => {
                    *is_broken = true;
                    // What came before the fault was sent by the peer.
                    if filled > 0 {
                        Poll::Ready(Ok(Some(filled)))
                    } else {
                        Poll::Ready(Err(invalid(error)))
                    }
                }
            }
        });
        self.state.count();
        if self.state.ciphertext.is_empty() && !self.state.connection.outgoing().is_empty() {
            // What the socket does not take goes with the next bytes.
            let _sent = self.poll_flush(cx);
        }
        filled
    }
}

impl<S: TlsSide> State<S> {
    /// Counts what is kept.
    fn count(&mut self) {
        let buffers = self.plaintext.capacity() + self.ciphertext.capacity();
        self.kept.set(buffers + self.connection.kept());
    }

    /// Moves plaintext into `buffer`, and returns how much.
    fn take_plaintext(&mut self, buffer: &mut [u8]) -> usize {
        let length = self.plaintext.as_slice().read(buffer).unwrap_or_default();
        self.plaintext.drain(..length);
        if self.plaintext.is_empty() {
            self.plaintext = Vec::new();
        }
        self.count();
        length
    }

    /// Plaintext that was encrypted, and whose records are not sent.
    fn unsent(&self) -> usize {
        self.records.iter().map(|(_, length)| length).sum()
    }
}

/// The result of a write after which this much more was sent in whole records. `None` if there were
/// only messages of the protocol. After an error, what was sent still counts: the peer may have
/// read these records, and their bytes must not be sent again elsewhere. The next attempt fails.
fn written_by(written: usize, flushed: Poll<io::Result<()>>) -> Option<Poll<io::Result<usize>>> {
    match (written, flushed) {
        (0, Poll::Pending) => Some(Poll::Pending),
        (0, Poll::Ready(Ok(()))) => None,
        (0, Poll::Ready(Err(error))) => Some(Poll::Ready(Err(error))),
        (written, _) => Some(Poll::Ready(Ok(written))),
    }
}

impl<S: TlsSide> TlsStream<S> {
    /// Makes close discard everything that was written and has not left this host.
    pub(crate) fn reset_on_close(&mut self) {
        self.discard();
        self.socket.reset_on_close();
    }

    /// Drops what was encrypted and not sent. Nothing can be sent any more.
    fn discard(&mut self) {
        let state = &mut *self.state;
        (state.ciphertext, state.sent, state.is_broken) = (Vec::new(), 0, true);
        state.records = VecDeque::new();
        state.count();
    }
}

impl<S: TlsSide> Drop for TlsStream<S> {
    /// The end of a session is announced to its client where the session ends.
    fn drop(&mut self) {
        if S::OPENS {
            self.announce_end();
        }
    }
}

fn invalid(error: tls::rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The error of the library behind an error of a connection; `None` if its socket has failed.
pub(crate) fn cause_of(error: &io::Error) -> Option<&tls::rustls::Error> {
    error.get_ref()?.downcast_ref()
}

impl<S: TlsSide> ClientStream for TlsStream<S> {
    fn peer_closed_now(&self) -> bool {
        self.state.connection.peer_closed() || self.socket.peer_closed_now()
    }

    fn poll_broken(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.socket.poll_broken(cx)
    }

    /// Not after a part of a record: the rest would have to be sent first, and the peer would
    /// execute what it contains.
    fn announce_end(&mut self) {
        let state = &mut *self.state;
        if state.is_broken || !state.records.is_empty() || state.connection.is_handshaking() {
            return;
        }
        // Without keys there is nothing to announce.
        if state.connection.close().is_ok() {
            let mut last = state.ciphertext.split_off(state.sent);
            last.append(state.connection.outgoing());
            self.socket.send_last(&last);
            self.discard();
        }
    }
}

impl<S: TlsSide> ByteStream for TlsStream<S> {
    fn update_readiness(&mut self, cx: &mut Context<'_>) {
        self.socket.update_readiness(cx);
    }

    fn is_readable(&self) -> bool {
        let state = &*self.state;
        self.socket.is_readable()
            || !state.plaintext.is_empty()
            || state.connection.peer_closed()
            || state.is_broken
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        for _ in 0..FRUITLESS_READS {
            if !self.state.plaintext.is_empty() {
                return Poll::Ready(Ok(self.state.take_plaintext(buffer)));
            }
            if self.state.connection.peer_closed() {
                return Poll::Ready(Ok(0));
            }
            if self.state.is_broken {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
            match ready!(self.receive(cx, buffer))? {
                Some(0) => {}
                read => return Poll::Ready(Ok(read.unwrap_or(0))),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let state = &mut *self.state;
            if state.ciphertext.is_empty() && state.connection.outgoing().is_empty() {
                let written = self.encrypt_and_send(cx, bytes)?;
                if self.state.ciphertext.is_empty() {
                    return Poll::Ready(Ok(written));
                }
                self.state.written = written;
            } else if self.begun_write() > bytes.len() {
                // Their records include bytes that must not be sent at present.
                return Poll::Pending;
            }
            #[cfg(debug_assertions)]
            assert!(bytes.starts_with(&self.state.expected), "other bytes than before");
            let flushed = self.poll_flush(cx);
            let written = std::mem::take(&mut self.state.written);
            #[cfg(debug_assertions)]
            self.state.expected.drain(..written.min(self.state.expected.len()));
            if let Some(result) = written_by(written, flushed) {
                return result;
            }
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.state.is_broken {
            // Without keys there is nothing to say.
            let _said = self.state.connection.close();
        }
        ready!(self.poll_flush(cx))?;
        self.socket.poll_shutdown(cx)
    }

    fn begun_write(&self) -> usize {
        self.state.unsent().saturating_add(self.state.written)
    }

    fn peer_closed(&self) -> bool {
        self.state.connection.peer_closed() || self.socket.peer_closed()
    }

    fn has_unread(&self) -> bool {
        let state = &*self.state;
        !state.plaintext.is_empty()
            || !state.connection.waiting().is_empty()
            || self.socket.has_unread()
    }

    fn tls_facts(&self) -> Option<TlsFacts> {
        let connection = &self.state.connection;
        Some(TlsFacts { version: connection.version()?, cipher: connection.cipher()? })
    }

    fn socket_facts(&self) -> SocketFacts {
        self.socket.socket_facts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_records_that_left_before_an_error() {
        let failed = || Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        let counted = |written, flushed| match written_by(written, flushed) {
            Some(Poll::Ready(result)) => result.ok(),
            _ => None,
        };
        assert_eq!(counted(16_384, failed()), Some(16_384));
        assert_eq!(counted(16_384, Poll::Pending), Some(16_384));
        assert!(matches!(written_by(0, failed()), Some(Poll::Ready(Err(_)))));
        assert!(matches!(written_by(0, Poll::Pending), Some(Poll::Pending)));
        assert!(written_by(0, Poll::Ready(Ok(()))).is_none());
    }
}
