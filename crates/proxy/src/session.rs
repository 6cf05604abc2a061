//! A session's life: eager first read, the gate, the dial, the pump, the end.
//!
//! There is one way out, [`finish`]: one counter, one log line, one ticket given back.

use std::net::SocketAddr;
use std::sync::Arc;

use drain::Ticket;
use resp::{Ledger, Limits};
use route::Target;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tracing::debug;

use crate::close::Reason;
use crate::dial::{self, Dialled};
use crate::flow;
use crate::gate;
use crate::linger;
use crate::listener::{Places, Post};
use crate::pump::{Around, Ended, Pump};

/// What the last line about a session says.
struct Account {
    peer: SocketAddr,
    began: Instant,
    target: Option<SocketAddr>,
    error: Option<std::io::Error>,
    bytes_in: u64,
    bytes_out: u64,
}

/// Serves one client. The places are given back when it has ended.
pub(crate) async fn run(client: TcpStream, peer: SocketAddr, post: Arc<Post>, ticket: Ticket, places: Places) {
    post.counters.opened.add(1);
    post.counters.open.add(1);
    let mut account = Account { peer, began: Instant::now(), target: None, error: None, bytes_in: 0, bytes_out: 0 };
    let reason = serve(client, &post, &ticket, &mut account).await;
    finish(&post, ticket, reason, &account);
    drop(places);
}

fn finish(post: &Post, ticket: Ticket, reason: Reason, account: &Account) {
    post.counters.open.sub(1);
    post.counters.closed(reason);
    if reason.hints_at_trouble() {
        post.service.hints.look_again();
    }
    debug!(
        service = %post.service.name, client = %account.peer, target = account.target.map(tracing::field::display),
        bytes_in = account.bytes_in, bytes_out = account.bytes_out,
        lasted_ms = account.began.elapsed().as_millis(), reason = reason.label(),
        error = account.error.as_ref().map(tracing::field::display), "session closed"
    );
    ticket.close(reason.exit());
}

async fn serve(client: TcpStream, post: &Post, ticket: &Ticket, account: &mut Account) -> Reason {
    let service = &post.service;
    if dial::tune(&client, &service.options).is_err() {
        return Reason::ClientError;
    }
    let mut ahead = Vec::new();
    flow::read_now(&client, &mut ahead);
    if !ahead.is_empty() {
        post.drain.arrival();
    }
    // In a box: what is only needed on the way to the master takes no room in the session that has one.
    let found = Box::pin(find_master(&client, post, ticket, &mut ahead)).await;
    let (target, upstream) = match found {
        Ok(found) => found,
        Err(reason) => {
            Box::pin(linger::close(client)).await;
            return reason;
        }
    };
    account.target = Some(target.addr());
    let around = Around {
        target: &target,
        route: &service.route,
        ticket,
        drain: &post.drain,
        options: &service.options,
        counters: &post.counters,
        hints: &*service.hints,
    };
    let ledger = Ledger::new(&Limits::default());
    let ended: Ended<TcpStream> = Pump::new(client, upstream, ahead, ledger, around).run().await;
    account.error = ended.error;
    account.bytes_in = ended.bytes_in;
    account.bytes_out = ended.bytes_out;
    if !matches!(ended.reason, Reason::ClientError | Reason::Cut) {
        Box::pin(linger::close(ended.client)).await;
    }
    ended.reason
}

/// Waits at the gate and dials, again and again if the points move meanwhile, for as long as a client may be held.
async fn find_master(
    client: &TcpStream,
    post: &Post,
    ticket: &Ticket,
    ahead: &mut Vec<u8>,
) -> Result<(Arc<Target>, TcpStream), Reason> {
    let (route, options) = (&post.service.route, &post.service.options);
    let until = Instant::now() + options.hold_timeout;
    loop {
        let target = match route.open_target() {
            Some(target) => target,
            None => {
                let patience = until.saturating_duration_since(Instant::now());
                let _waiting = Waiting::enter(post);
                gate::wait(client, route, ticket, patience, ahead).await?
            }
        };
        match dial::dial(&target, route, options, &post.counters).await {
            Dialled::Connected(upstream) => return Ok((target, upstream)),
            Dialled::Moved if Instant::now() < until => {}
            Dialled::Moved => return Err(Reason::HoldTimeout),
            // A master that does not answer is about to be replaced, or to come back: its client waits like any other.
            Dialled::Failed if Instant::now() < until => post.service.hints.look_again(),
            Dialled::Failed => return Err(Reason::DialFailed),
        }
    }
}

/// Counts a session among the waiting, as long as it is.
struct Waiting<'a>(&'a Post);

impl<'a> Waiting<'a> {
    fn enter(post: &'a Post) -> Self {
        post.counters.waiting.add(1);
        Self(post)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.counters.waiting.sub(1);
    }
}
