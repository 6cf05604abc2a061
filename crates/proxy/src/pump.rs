//! The pump: both directions of one session, from the dial to the end.
//!
//! One poll function turns everything that is ready: replies first, since they free the server, then requests. Before every
//! write to the master it looks at the fence and the gate, one atomic load each. While the gate is shut no client is read and
//! nothing is forwarded, but replies are delivered; when the fence falls the session is over. The ledger is shown requests as
//! they are *written* and replies as they are read, so it knows exactly what the master was given.
//!
//! Deliberately absent: dialling and waiting for a master (`session`), and the way a client is let go (`linger`).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use drain::Ticket;
use resp::{Ledger, Standing};
use route::{Route, Target};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, Sleep};

use crate::close::Reason;
use crate::flow::{Fault, Flow, Turn};
use crate::options::{Hints, Options};
use crate::stats::Counters;

/// What the pump looks at and reports to; it owns none of it.
pub(crate) struct Around<'a> {
    pub(crate) target: &'a Target,
    pub(crate) route: &'a Route,
    pub(crate) ticket: &'a Ticket,
    pub(crate) drain: &'a drain::Drain,
    pub(crate) options: &'a Options,
    pub(crate) counters: &'a Counters,
    pub(crate) hints: &'a dyn Hints,
}

/// Whether bytes may go to the master now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Open,
    Shut,
    Fallen,
}

impl Around<'_> {
    #[inline]
    fn pass(&self) -> Pass {
        if self.target.fence().has_fallen() {
            Pass::Fallen
        } else if self.route.is_shut() {
            Pass::Shut
        } else {
            Pass::Open
        }
    }
}

/// Waits that exist only while they are needed: none of them takes room in an idle session.
#[derive(Default)]
struct Waits<'a> {
    moved: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    cut: Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>,
    half_close: Option<Pin<Box<Sleep>>>,
    idle: Option<Pin<Box<Sleep>>>,
}

/// One session between its two ends.
pub(crate) struct Pump<'a, C, U> {
    client: C,
    upstream: U,
    ledger: Ledger,
    up: Flow,
    down: Flow,
    arrived: bool,
    last_in: Option<Instant>,
    error: Option<io::Error>,
    waits: Waits<'a>,
    around: Around<'a>,
}

/// What is left of a session when its pump has ended.
pub(crate) struct Ended<C> {
    pub(crate) client: C,
    pub(crate) reason: Reason,
    /// What the system said, if it was an error.
    pub(crate) error: Option<io::Error>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

impl<'a, C, U> Pump<'a, C, U>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    /// `ahead` are the client's bytes that were read before the master was there; none of them has been forwarded.
    pub(crate) fn new(client: C, upstream: U, ahead: Vec<u8>, ledger: Ledger, around: Around<'a>) -> Self {
        let last_in = (!around.options.client_idle_timeout.is_zero()).then(Instant::now);
        let arrived = !ahead.is_empty();
        let (up, down) = (Flow::with_ahead(ahead), Flow::default());
        Self { client, upstream, ledger, up, down, arrived, last_in, error: None, waits: Waits::default(), around }
    }

    /// Runs to the end.
    pub(crate) async fn run(mut self) -> Ended<C> {
        let reason = {
            let mut fallen = std::pin::pin!(self.around.target.fence().fallen());
            let mut asked = std::pin::pin!(self.around.ticket.asked());
            let (mut registered, mut was_asked) = (false, false);
            std::future::poll_fn(|cx| {
                // The two waits wake this task, whose waker never changes; once they are registered a look at the atomics is
                // enough. Only when the drain has begun does the turn to leave need a timer.
                if !registered {
                    registered = true;
                    let _ = fallen.as_mut().poll(cx);
                    was_asked = asked.as_mut().poll(cx).is_ready();
                } else if !was_asked && self.around.drain.phase() != drain::Phase::Serving {
                    was_asked = asked.as_mut().poll(cx).is_ready();
                }
                self.poll(cx, was_asked)
            })
            .await
        };
        Ended { client: self.client, reason, error: self.error, bytes_in: self.up.moved, bytes_out: self.down.moved }
    }

    fn poll(&mut self, cx: &mut Context<'_>, asked: bool) -> Poll<Reason> {
        if self.around.ticket.is_cut() {
            return Poll::Ready(Reason::Cut);
        }
        if self.around.pass() == Pass::Fallen {
            // What the old master answered before it was superseded is the client's.
            let _ = self.poll_down(cx);
            return Poll::Ready(Reason::Superseded);
        }
        if let Poll::Ready(end) = self.poll_down(cx) {
            // Redis closes both directions at once, so that nothing can be answered any more.
            return Poll::Ready(end.err().unwrap_or(Reason::ServerClosed));
        }
        match self.poll_up(cx) {
            Poll::Ready(Err(reason)) => return Poll::Ready(reason),
            Poll::Ready(Ok(())) => {
                if let Poll::Ready(reason) = self.poll_half_closed(cx) {
                    return Poll::Ready(reason);
                }
            }
            Poll::Pending => {}
        }
        if asked && self.may_leave() {
            return Poll::Ready(Reason::Drained);
        }
        if asked && self.poll_cut(cx).is_ready() {
            return Poll::Ready(Reason::Cut);
        }
        self.poll_idle(cx)
    }

    /// From the master to the client. Ready when the master has ended and everything is delivered.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Reason>> {
        loop {
            let Self { client, upstream, ledger, down, around, .. } = &mut *self;
            let before = down.moved;
            let turn = match down.poll_flush(cx, client, |_| {}) {
                Poll::Ready(Ok(())) if down.ended => {
                    around.counters.bytes_out.add(down.moved - before);
                    return down.poll_shut(cx, client).map(Ok);
                }
                Poll::Ready(Ok(())) => down.poll_turn(
                    cx,
                    upstream,
                    client,
                    |chunk| {
                        ledger.reply(chunk);
                        true
                    },
                    |_| {},
                ),
                Poll::Ready(Err(fault)) => Poll::Ready(Err(fault)),
                Poll::Pending => Poll::Pending,
            };
            around.counters.bytes_out.add(down.moved - before);
            match turn {
                Poll::Ready(Ok(Turn::Moved(_))) => {
                    around.counters.commands.add(u64::from(ledger.take_counts().replies));
                    if ledger.take_hint().is_some() {
                        around.hints.look_again();
                    }
                }
                Poll::Ready(Ok(Turn::Ended)) => {}
                Poll::Ready(Err(fault)) => {
                    return Poll::Ready(Err(self.failed(fault, Reason::ServerError, Reason::ClientError)));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// From the client to the master. Ready when the client has ended and its FIN was passed on.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Reason>> {
        loop {
            match self.around.pass() {
                Pass::Open => self.waits.moved = None,
                Pass::Fallen => return Poll::Ready(Err(Reason::Superseded)),
                Pass::Shut => {
                    if self.poll_gate(cx).is_pending() {
                        return Poll::Pending;
                    }
                    continue;
                }
            }
            let Self { client, upstream, ledger, up, around, .. } = &mut *self;
            let before = up.moved;
            let turn = match up.poll_flush(cx, upstream, |written| ledger.request(written)) {
                Poll::Ready(Ok(())) if up.ended => {
                    around.counters.bytes_in.add(up.moved - before);
                    return up.poll_shut(cx, upstream).map(Ok);
                }
                Poll::Ready(Ok(())) => up.poll_turn(
                    cx,
                    client,
                    upstream,
                    |_| around.pass() == Pass::Open,
                    |written| ledger.request(written),
                ),
                Poll::Ready(Err(fault)) => Poll::Ready(Err(fault)),
                Poll::Pending => Poll::Pending,
            };
            around.counters.bytes_in.add(up.moved - before);
            match turn {
                Poll::Ready(Ok(Turn::Moved(_))) => self.came(),
                Poll::Ready(Ok(Turn::Ended)) => {}
                Poll::Ready(Err(fault)) => {
                    return Poll::Ready(Err(self.failed(fault, Reason::ClientError, Reason::ServerError)));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn failed(&mut self, fault: Fault, reading: Reason, writing: Reason) -> Reason {
        let (reason, error) = match fault {
            Fault::Reading(error) => (reading, error),
            Fault::Writing(error) => (writing, error),
        };
        self.error = Some(error);
        reason
    }

    /// The client sent something.
    fn came(&mut self) {
        if !self.arrived {
            self.arrived = true;
            self.around.drain.arrival();
        }
        if self.last_in.is_some() {
            self.last_in = Some(Instant::now());
        }
    }

    /// Ready when the gate has moved since the last look, or is open.
    fn poll_gate(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let route = self.around.route;
        let moved = self.waits.moved.get_or_insert_with(|| Box::pin(route.moved()));
        // The wait exists; what moves from here on rings it. So look once more before waiting.
        if !route.is_shut() || moved.as_mut().poll(cx).is_ready() {
            self.waits.moved = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// The client has ended; the master may go on for a while.
    fn poll_half_closed(&mut self, cx: &mut Context<'_>) -> Poll<Reason> {
        let patience = self.around.options.half_close_timeout;
        let timer = self.waits.half_close.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        timer.as_mut().poll(cx).map(|()| Reason::HalfCloseTimeout)
    }

    /// Whether this is a moment at which nobody loses anything: nothing owed, nothing kept, nothing begun, and, since the
    /// client was just read until it had no more, nothing asked.
    fn may_leave(&self) -> bool {
        !self.up.has_kept()
            && !self.down.has_kept()
            && matches!(self.ledger.standing(), Standing::Quiet | Standing::Ended)
    }

    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let ticket = self.around.ticket;
        self.waits.cut.get_or_insert_with(|| Box::pin(ticket.cut())).as_mut().poll(cx)
    }

    /// Ready when the client has been silent for too long while nothing is owed to it.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Reason> {
        let Some(last_in) = self.last_in else { return Poll::Pending };
        let patience: Duration = self.around.options.client_idle_timeout;
        let timer = self.waits.idle.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(last_in + patience)));
        while timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            if now - last_in >= patience && self.ledger.standing() == Standing::Quiet {
                return Poll::Ready(Reason::IdleTimeout);
            }
            // It was not silent, or it waits for something: look again when it could be due next.
            let from = if now - last_in >= patience { now } else { last_in };
            timer.as_mut().reset(from + patience);
        }
        Poll::Pending
    }
}
