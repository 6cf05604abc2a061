//! Sends one request of a session whose state the server refuses, ahead of that state.
//!
//! A session that shares connections needs one of its own for `SCRIPT KILL`. In a database other
//! than 0 it would not get one: the server refuses `SELECT` until the script ends. What ends a
//! script needs no database, only the user. So it is sent on the connection that could be opened.
//! Nothing else ever is: the connection is closed after the reply, or without it. The client gets
//! the reply, and its session shares connections as before. What the client has sent after that
//! request is executed in its own database, or waits.
//!
//! After the secret of a user was changed, the server refuses the one that such a session has, and
//! its client may authenticate with the next one, as it may on a connection of its own. That
//! request needs no state either. If the server accepts it, the session shares connections with
//! the clients that have the same secret from then on; if not, with those as before.
//!
//! The request is sent once. Without a reply its outcome is unknown, and the session ends, as one
//! with a request in flight does.

use std::time::Instant;

use drain::Ticket;

use crate::end_reason::EndReason;
use crate::session::carry::replay::{Failed, Server};
use crate::session::carry::{Migration, Opened};
use crate::session::upstream::Upstream;
use crate::session::{Ready, Session};

/// Maximum length of the reply: one line, or the modules that `HELLO` lists.
const MAX_REPLY: usize = 64 * 1024;

impl Migration<'_> {
    /// Sends the first of the `unsent` requests on `upstream`, which has the user of the session
    /// and not all of its state, and takes the reply. Only if that request ends a script, since the
    /// server runs one.
    pub(super) async fn interrupt(
        &mut self,
        upstream: Upstream,
        server: Server<'_>,
        unsent: &mut Vec<u8>,
    ) -> Opened {
        let Some((request, rest)) = resp::split_interrupt(unsent) else {
            return Err(Failed::Unavailable);
        };
        let (request, rest) = (request.to_vec(), rest.to_vec());
        *unsent = rest;
        self.send_ahead(upstream, server, request).await
    }

    /// Sends the first of the `unsent` requests on a new connection, and takes the reply, if it
    /// authenticates: the server refuses the state of the session.
    pub(super) async fn authenticate(
        &mut self,
        server: Server<'_>,
        unsent: &mut Vec<u8>,
    ) -> Opened {
        let Some((request, rest)) = resp::split_authentication(unsent) else {
            return Err(Failed::Refused);
        };
        let (request, rest) = (request.to_vec(), rest.to_vec());
        let upstream = server.connect().await?;
        *unsent = rest;
        self.send_ahead(upstream, server, request).await
    }

    /// Sends a request that was taken from those unsent, and takes the reply.
    async fn send_ahead(
        &mut self,
        mut upstream: Upstream,
        server: Server<'_>,
        request: Vec<u8>,
    ) -> Opened {
        // First of all: whatever happens from here on, it is not sent a second time.
        self.is_interrupt = true;
        // The kernel would send it again to a partitioned server that comes back.
        upstream.reset_on_close();
        let reply = server.ask(&mut upstream, &request, MAX_REPLY).await?;
        let counters = &server.context.counters;
        counters.dials.increment();
        counters.bytes_in.add(request.len() as u64);
        let mut replayed = self.take_ledger(server.target);
        replayed.ledger.request(&request);
        replayed.ledger.reply(&reply);
        // Anything but one reply would be taken for the reply to another request.
        if replayed.ledger.shared_state().is_none() {
            return Err(Failed::Broken);
        }
        replayed.messages = reply;
        Ok((Upstream::sharing(), Some(replayed)))
    }
}

impl Session {
    /// The session continues. If a request of it was answered ahead of its state, its promotion has
    /// ended, and it shares as before.
    pub(in crate::session) fn continued(&mut self, mut ready: Ready) -> Ready {
        let (_, upstream, start) = &mut ready;
        if !upstream.is_shared() || self.base.promotion.take().is_none() {
            return ready;
        }
        start.returns_after = None;
        if let Some(replayed) = &mut start.replayed {
            let (counts, counters) = (replayed.ledger.take_counts(), &self.base.context.counters);
            counters.commands.add(counts.requests.into());
            counters.replies.add(counts.replies.into());
            self.base.add(0, 0, counts.requests);
        }
        self.base.context.counters.shared.returned.increment();
        self.linger.get_or_insert_default().returned = Some(Instant::now());
        ready
    }
}

/// Why the session ends if its interrupt was sent and not answered.
pub(crate) fn end_reason(failed: Failed, ticket: &Ticket) -> EndReason {
    match failed {
        _ if ticket.is_cut() => EndReason::Cut,
        Failed::Superseded => EndReason::Fenced,
        _ => EndReason::UpstreamClosed,
    }
}
