//! One session, from accept to close.
//!
//! A session is a task of its worker, and a machine of four states:
//!
//! ```text
//!   accepted, after its TLS handshake
//!       |
//!       v          Next::Pump
//!   Connecting ------------------> Pumping -----+
//!       ^                          ^     |      | Next::Rest, while its client is idle and it
//!       |      Next::Connect       |     |      v shares connections
//!       +--------------------------|-----+   Resting
//!                                  +------------+
//!                    Next::Close, from each: Closing
//! ```
//!
//! Each state is a future of its own, which owns the session and its client's connection, and as
//! which the task [continues](continue_as): so a session has memory for the state that it is in and
//! not for the largest one. Nearly all the time it pumps, or rests.
//!
//! What a pump leaves when it stops is turned into the next state by [`next`]. Every connection
//! comes from [`connect`]: the first one, and those of a session that is carried, promoted,
//! verified or rebalanced. However a session ends, the end is the `Drop` of [`Session`]: there and
//! nowhere else it is counted, logged, and taken out of the drain. So a panic is counted, too.

pub(crate) mod carry;
pub(crate) mod connect;
pub(crate) mod dial;
mod end;
mod first_bytes;
mod handshake;
pub(crate) mod idle;
pub(crate) mod leave;
pub(crate) mod pump;
pub(crate) mod refusals;
pub(crate) mod report;
pub(crate) mod rest;
pub(crate) mod states;
pub(crate) mod upstream;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;

use target::TargetRef;

use crate::address::Peer;
use crate::context::WorkerContext;
use crate::end_reason::EndReason;
use crate::io::stream::{ByteStream, ClientStream, SocketStream};
use crate::limits::Admission;
use crate::not_carried::Uncarried;
use crate::runtime::tasks::continuing::continue_as;
use crate::session::connect::Why;
use crate::session::pump::Start;
use crate::session::refusals::Refused;
use crate::session::report::{SessionBase, while_visited};
use crate::session::rest::Resting;
use crate::session::states::{closing, connecting, resting};
use crate::session::upstream::Upstream;
use crate::shared::linger::Linger;

/// An admitted client connection.
#[derive(Debug)]
pub(crate) struct Session {
    base: SessionBase,
    _admission: Admission,
    target: Option<TargetRef>,
    /// Set if it lost its target and could not continue.
    uncarried: Option<Box<Uncarried>>,
    /// Set if it has had a connection of its own although its service shares connections.
    linger: Option<Box<Linger>>,
    /// When it was carried because something between here and its target reset the connection, in
    /// microseconds of its worker's clock.
    reset_at: Cell<Option<NonZeroU64>>,
}

/// A target, the connection to it, and what is pumped first.
type Ready = (TargetRef, Upstream, Start);

/// Why a session ends, and what its client is still sent, if it can be reached after `reason`.
struct SessionEnd {
    reason: EndReason,
    /// Replies that the client has not taken yet.
    undelivered: Vec<u8>,
    /// Requests that get error replies after those.
    refused: Option<Refused>,
    /// Our last push, after everything else.
    push: Vec<u8>,
}

impl From<EndReason> for SessionEnd {
    fn from(reason: EndReason) -> Self {
        Self { reason, undelivered: Vec::new(), refused: None, push: Vec::new() }
    }
}

impl SessionEnd {
    /// Whether its client is sent anything more. A client that is cut hears that the requests which
    /// it waits for were never forwarded: it may send them again.
    fn reaches_client(&self, client: &impl ByteStream) -> bool {
        let waits = |it: &Refused| !it.unsent.is_empty() || client.has_unread();
        self.reason.reaches_client()
            || (self.reason == EndReason::Cut && self.refused.as_ref().is_some_and(waits))
    }
}

/// What a session does next.
enum Next {
    Connect(Box<Why>),
    Pump(Ready),
    Rest(Box<Resting>),
    Close(SessionEnd),
}

impl Session {
    /// Counts the client in.
    pub(crate) fn new(peer: Peer, context: Arc<WorkerContext>, admission: Admission) -> Self {
        context.counters.accepted.increment();
        let base = SessionBase::new(peer, context);
        let reset_at = Cell::new(None);
        Self { base, _admission: admission, target: None, uncarried: None, linger: None, reset_at }
    }

    /// Serves a client that speaks TLS to its end.
    pub(crate) async fn run_tls(self, socket: SocketStream) {
        let handshake = Box::pin(handshake::accept(&self.base, socket));
        match or_killed(&self.base, handshake).await {
            Ok(client) => self.begin(client),
            Err(reason) => self.end(reason),
        }
    }

    /// Serves a client to its end. Within one host a session is connected at once.
    pub(crate) fn begin<C: ClientStream>(self, client: C) {
        let next = match self.connect_at_once() {
            Ok(ready) => Next::Pump(ready),
            Err(begun) => Next::Connect(Box::new(Why::First(begun))),
        };
        self.enter(client, next);
    }

    /// Enters the next state.
    fn enter<C: ClientStream>(self, mut client: C, next: Next) {
        match next {
            Next::Connect(why) => continue_as(connecting(self, client, why)),
            Next::Pump((target, upstream, start)) => match upstream {
                Upstream::Plain(socket) => self.pump_dedicated(client, socket, target, start),
                Upstream::Tls(stream) => self.pump_dedicated(client, stream, target, start),
                Upstream::Shared(member) => self.pump(client, member, target, start),
            },
            Next::Rest(rest) => continue_as(resting(self, client, rest)),
            // As most sessions end: nothing has to be waited for. It is recorded before its client
            // can see the end.
            Next::Close(end) if !end.reaches_client(&client) => {
                let reason = end.reason;
                self.end(reason);
                // Some libraries wait for the answer when they close a TLS session.
                if reason == EndReason::ClientClosed {
                    client.announce_end();
                }
            }
            Next::Close(end) => continue_as(closing(self, client, end)),
        }
    }

    /// Ends with nothing to say to its client.
    fn end(mut self, reason: EndReason) {
        self.base.reason = reason;
    }
}

/// The result of `future`, unless the session is killed meanwhile.
async fn or_killed<T, E: From<EndReason>>(
    base: &SessionBase,
    future: Pin<Box<impl Future<Output = Result<T, E>> + ?Sized>>,
) -> Result<T, E> {
    while_visited(base, future).await.unwrap_or_else(|| Err(EndReason::Killed.into()))
}

impl Drop for Session {
    fn drop(&mut self) {
        self.base.count_as(None);
        let counters = &self.base.context.counters;
        counters.closed.increment(self.base.reason as usize);
        first_bytes::record(&self.base);
        if let Some(uncarried) = &self.uncarried {
            counters.not_carried.increment(uncarried.why.number());
        }
        report::log(&self.base, self.target.as_deref(), self.uncarried.as_deref());
        self.base.ticket.ends_by(self.base.reason.exit());
    }
}
