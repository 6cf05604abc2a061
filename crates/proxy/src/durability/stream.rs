//! A connection to a target on which writes are confirmed by replicas before their replies pass.
//!
//! It takes the place of the connection in a pump, or of the connection that several clients share.
//! What is confirmed, and where a `WAIT` is sent, is decided by [`Confirmations`].

use std::collections::VecDeque;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use resp::Ledger;
use target::Target;
use tokio::time::{Instant, Sleep};

use crate::context::WorkerContext;
use crate::durability::confirmations::{Confirmations, Fault};
use crate::invariant;
use crate::io::buffer::{self, KeptCount};
use crate::io::stream::ByteStream;
use crate::options::Durability;
use crate::session_row::TlsFacts;

/// A `WAIT` leaves in one write with requests of at most this many bytes. More are not copied.
const JOINED: usize = 16 * 1024;

/// A blocking command that is not answered for this long lets its client wait.
const BLOCKED_AFTER: Duration = Duration::from_millis(100);

/// A connection that holds more bytes than this is closed if its worker keeps too much.
const LARGE: usize = 256 * 1024;

/// A connection whose writes are confirmed.
#[derive(Debug)]
pub(crate) struct ConfirmedStream<S> {
    stream: S,
    context: Arc<WorkerContext>,
    target: Arc<Target>,
    confirmations: Box<Confirmations>,
    /// How long after the target was first used its replicas may still have to connect.
    patience: Duration,
    /// A write, or the end of our direction, waits for the answer to a `WAIT`.
    is_write_held: bool,
    /// Bytes of a `WAIT` that are not written yet.
    unwritten: usize,
    /// Replies that may pass.
    ready: VecDeque<u8>,
    /// Counts what is held as kept by the worker, which reads less from all then.
    kept: KeptCount,
    /// There was something to read in the last poll, and whether any of it was read.
    was_readable: bool,
    was_read: bool,
    /// Nothing is read, because the client has not read yet: it may send all of its requests first.
    /// They are not held then, since the answer that ends this would not be read.
    is_reader_behind: bool,
    /// The blocking command that is the oldest without a reply, as [`Confirmations::blocked_on`]
    /// tells it, and since when it is.
    blocked: Option<(u64, Instant)>,
    /// The end of our direction passes that command when this is over.
    end_passes: Option<Pin<Box<Sleep>>>,
}

impl<S: ByteStream> ConfirmedStream<S> {
    /// Confirms the writes on a connection on which nothing is in flight, and whose state `ledger`
    /// has.
    pub(crate) fn new(
        stream: S,
        rule: Durability,
        ledger: Ledger,
        context: &Arc<WorkerContext>,
        target: &Arc<Target>,
    ) -> Self {
        let options = context.shared.service.options.peek();
        let patience = options.hold_timeout;
        let commands = options.stateless_commands.server().cloned().unwrap_or_default();
        Self {
            stream,
            context: Arc::clone(context),
            target: Arc::clone(target),
            confirmations: Box::new(Confirmations::new(rule, patience, commands, ledger)),
            patience,
            is_write_held: false,
            unwritten: 0,
            ready: VecDeque::new(),
            kept: KeptCount::default(),
            was_readable: false,
            was_read: false,
            is_reader_behind: false,
            blocked: None,
            end_passes: None,
        }
    }

    /// The connection. Nothing may be in flight on it if it is used further.
    pub(crate) fn into_inner(self) -> S {
        self.stream
    }

    /// Writes the rest of a `WAIT`, if there is one and the target may be sent anything.
    fn poll_write_wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unwritten == 0 && self.confirmations.takes_wait() {
            self.unwritten = self.confirmations.request().len();
        }
        while self.unwritten > 0 {
            if !self.target.accepts_requests() {
                return Poll::Pending;
            }
            let request = self.confirmations.request();
            let rest =
                request.get(request.len().saturating_sub(self.unwritten)..).unwrap_or_default();
            let written = ready!(self.stream.poll_write(cx, rest))?;
            invariant::rest_after(rest, written)?;
            self.unwritten -= written;
        }
        Poll::Ready(Ok(()))
    }

    /// Counts what is held, and what may pass and is not read by the client.
    fn count_kept(&mut self) {
        self.kept.set(self.confirmations.held.len() + self.ready.len());
    }

    /// Notes since when a blocking command has been the oldest without a reply.
    fn note_blocked(&mut self) {
        let on = self.confirmations.blocked_on();
        if self.blocked.map(|(on, _)| on) != on {
            self.blocked = on.map(|on| (on, Instant::now()));
            self.end_passes = None;
        }
    }

    /// Takes bytes that were read from the server. Whether they pass as they are.
    fn receive(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if self.confirmations.is_idle() {
            self.confirmations.pass(bytes);
            self.note_blocked();
            return Ok(true);
        }
        let mut ready = Vec::from(std::mem::take(&mut self.ready));
        let received = self.confirmations.receive(bytes, &mut ready);
        self.ready = ready.into();
        let not_confirmed = self.confirmations.take_not_confirmed();
        if not_confirmed > 0 {
            self.context.counters.not_confirmed.add(not_confirmed.into());
        }
        received?;
        self.note_blocked();
        self.count_kept();
        if self.confirmations.held.len() > LARGE && buffer::keeps_too_much() {
            return Err(Fault::TooMuchHeld.into());
        }
        Ok(false)
    }
}

impl<S: ByteStream> ByteStream for ConfirmedStream<S> {
    fn update_readiness(&mut self, cx: &mut Context<'_>) {
        self.is_reader_behind = self.was_readable && !self.was_read;
        self.stream.update_readiness(cx);
        (self.was_readable, self.was_read) = (self.is_readable(), false);
        // Nothing else may be written while an answer is awaited. The next read finds a failure,
        // too.
        let _later = self.poll_write_wait(cx);
    }

    fn is_readable(&self) -> bool {
        !self.ready.is_empty() || self.stream.is_readable()
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.was_read = true;
        while self.ready.is_empty() {
            let read = ready!(self.stream.poll_read(cx, buffer))?;
            if read == 0 {
                // What is held stays held: its outcome is unknown.
                return Poll::Ready(Ok(0));
            }
            let bytes = invariant::first_bytes(buffer, read)?;
            if self.receive(bytes)? {
                return Poll::Ready(Ok(read));
            }
            let _later = self.poll_write_wait(cx)?;
            if self.is_write_held && !self.holds_writes() {
                cx.waker().wake_by_ref();
            }
        }
        let len = self.ready.read(buffer).unwrap_or_default();
        if self.ready.is_empty() {
            self.ready = VecDeque::new();
            self.count_kept();
        }
        Poll::Ready(Ok(len))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_write_wait(cx))?;
        self.is_write_held = self.holds_writes() && !self.is_reader_behind;
        if self.is_write_held {
            if self.is_readable() {
                // Whether it is read is known in the next poll.
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        if self.confirmations.is_patient
            && self.target.first_use().is_some_and(|since| since.elapsed() >= self.patience)
        {
            self.confirmations.end_patience();
        }
        let (most, wait_follows) = self.confirmations.next_write(bytes)?;
        let own = bytes.get(..most).unwrap_or(bytes);
        let written = if wait_follows && own.len() <= JOINED {
            let joined = [own, self.confirmations.request()].concat();
            ready!(self.stream.poll_write(cx, &joined))?
        } else {
            ready!(self.stream.poll_write(cx, own))?
        };
        let of_wait = written.saturating_sub(own.len());
        let written = written.min(own.len());
        if self.confirmations.written(written) {
            self.unwritten = self.confirmations.request().len().saturating_sub(of_wait);
            let _later = self.poll_write_wait(cx)?;
        }
        self.note_blocked();
        Poll::Ready(Ok(written))
    }

    fn holds_writes(&self) -> bool {
        self.confirmations.gathers()
    }

    fn begun_write(&self) -> usize {
        // The session does not know of a `WAIT`.
        if self.unwritten > 0 { 0 } else { self.confirmations.clamp(self.stream.begun_write()) }
    }

    fn has_begun_write(&self) -> bool {
        self.confirmations.has_examined()
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.stream.peer_closed() {
            ready!(self.poll_write_wait(cx))?;
            // A server that reads an end drops a client that waits, with its replies. That is for
            // the best if it waits for something that nobody may give it any more.
            self.is_write_held = self.confirmations.is_awaiting();
            if self.is_write_held {
                let Some((_, since)) = self.blocked else { return Poll::Pending };
                let over = || Box::pin(tokio::time::sleep_until(since + BLOCKED_AFTER));
                ready!(self.end_passes.get_or_insert_with(over).as_mut().poll(cx));
            }
        }
        self.stream.poll_shutdown(cx)
    }

    fn peer_closed(&self) -> bool {
        self.stream.peer_closed() && self.ready.is_empty()
    }

    fn has_unread(&self) -> bool {
        !self.ready.is_empty() || self.stream.has_unread()
    }

    fn tls_facts(&self) -> Option<TlsFacts> {
        self.stream.tls_facts()
    }
}
