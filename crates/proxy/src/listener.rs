//! One listening socket on one worker: from accept to a session's task.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use drain::{Door, Drain, Phase};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tracing::{error, warn};

use crate::accept::{Next, Shortage};
use crate::limits::{Limit, Permit};
use crate::options::Service;
use crate::session;
use crate::stats::Counters;

/// What Redis itself answers when its own limit is reached.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

/// Everything the sessions of one service on one worker share.
pub(crate) struct Post {
    pub(crate) service: Arc<Service>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) limit: Arc<Limit>,
    pub(crate) total: Arc<Limit>,
    pub(crate) drain: Drain,
}

/// The places a session takes, in its service and in the process.
pub(crate) type Places = (Permit, Permit);

/// Accepts until the drain closes the doors, then empties the queue and closes the socket.
pub(crate) async fn serve(socket: std::net::TcpListener, post: Arc<Post>, door: Door) {
    let listener = match TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => return error!(service = %post.service.name, "a listener cannot be served: {error}"),
    };
    let mut shortage = Shortage::default();
    let mut log = LogPace::default();
    let closing = post.drain.reached(Phase::Draining);
    tokio::pin!(closing);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut closing => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((client, peer)) => {
                shortage.over();
                admit(client, peer, &post);
            }
            Err(error) => {
                post.counters.accept_errors.add(1);
                if let Next::Pause(pause) = shortage.failed(&error) {
                    if log.may_speak() {
                        warn!(service = %post.service.name, "cannot accept, trying again in {} ms: {error}", pause.as_millis());
                    }
                    tokio::select! {
                        () = &mut closing => break,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
    }
    // Closing a socket resets what its queue still holds, so the queue is emptied first.
    while let Some(Ok((client, peer))) = accept_now(&listener).await {
        admit(client, peer, &post);
    }
    drop(listener);
    drop(door);
}

/// Accepts what is there already; `None` once nothing is.
async fn accept_now(listener: &TcpListener) -> Option<std::io::Result<(TcpStream, SocketAddr)>> {
    std::future::poll_fn(|cx| match listener.poll_accept(cx) {
        std::task::Poll::Ready(accepted) => std::task::Poll::Ready(Some(accepted)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

fn admit(client: TcpStream, peer: SocketAddr, post: &Arc<Post>) {
    let places = post.limit.enter().and_then(|place| Some((place, post.total.enter()?)));
    match places {
        Some(places) => {
            let ticket = post.drain.ticket();
            tokio::spawn(session::run(client, peer, Arc::clone(post), ticket, places));
        }
        None => {
            post.counters.refused.add(1);
            // The socket is new, so its buffer takes a line. If the client has sent something already, closing resets the
            // connection, and the line may be lost; there is no place to wait for it.
            let _sent = client.try_write(TOO_MANY);
        }
    }
}

/// At most one line a second.
#[derive(Default)]
struct LogPace {
    spoke_at: Option<Instant>,
}

impl LogPace {
    fn may_speak(&mut self) -> bool {
        let now = Instant::now();
        let may = self.spoke_at.is_none_or(|at| now - at >= Duration::from_secs(1));
        if may {
            self.spoke_at = Some(now);
        }
        may
    }
}
