//! Which clients are connected: a list of sessions, an order to end one, and totals by network.
//!
//! | Path | Who may use it |
//! |---|---|
//! | `GET /control/sessions` | as control commands: the owner of the control socket, or with the token |
//! | `POST /control/kill` | the same |
//! | `GET /networks` | every client of the admin port, as the status page |
//!
//! The list has addresses of clients and names of users, which those who only scrape metrics need
//! not learn. Nothing is kept between requests, except for the totals, for [a moment](FRESH).
//!
//! All of it runs on the admin server's thread, between its other requests. One list is made at a
//! time: sessions are visited by the workers, and several lists would visit them several times.

mod collect;
mod document;
mod networks;
mod query;
#[cfg(test)]
pub(super) mod testing;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use admin_http::{Method, Reply, Request, Server, StreamPermit};
use bytes::Bytes;
use proxy::{KillError, SessionId, SessionVisits};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::info;

use self::document::Listing;
use self::networks::Networks;
use self::query::Query;
use crate::admin::control::{Control, parameter};

/// How long totals by network are served again.
const FRESH: Duration = Duration::from_secs(5);
/// How long a worker may take to end a session.
const KILL_DEADLINE: Duration = Duration::from_secs(2);
/// Seconds after which a refused client may ask again.
const RETRY: u32 = 1;

/// The sessions, as the admin server offers them.
pub(crate) struct SessionsApi {
    sessions: SessionVisits,
    /// Decides who may list and end sessions.
    control: Arc<Control>,
    /// One list at a time.
    turn: Arc<Semaphore>,
    networks: Mutex<Option<(Instant, Bytes)>>,
}

impl SessionsApi {
    pub(crate) fn new(sessions: SessionVisits, control: Arc<Control>) -> Arc<Self> {
        let turn = Arc::new(Semaphore::new(1));
        Arc::new(Self { sessions, control, turn, networks: Mutex::default() })
    }

    /// Adds the paths.
    pub(crate) fn add_to(self: &Arc<Self>, server: Server) -> Server {
        let [networks, list, kill] = [(); 3].map(|()| Arc::clone(self));
        server
            .route("/networks", Method::Get, move |request| networks.answer_networks(request))
            .route("/control/sessions", Method::Get, move |request| list.answer_list(request))
            .route("/control/kill", Method::Post, move |request| kill.answer_kill(request))
    }

    /// The permits that a list needs.
    fn permits(
        &self,
        request: &Request<'_>,
    ) -> Result<(OwnedSemaphorePermit, StreamPermit), Reply> {
        let busy =
            || Reply::text(429, "another list is being made; try again\n").retry_after(RETRY);
        let turn = Arc::clone(&self.turn).try_acquire_owned().map_err(|_| busy())?;
        let stream = request.reserve_stream().ok_or_else(|| Reply::no_stream().retry_after(RETRY));
        Ok((turn, stream?))
    }

    /// The last totals by network, if they are fresh.
    fn fresh_networks(&self) -> Option<Bytes> {
        let last = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| at.elapsed() < FRESH).map(|(_, body)| body.clone())
    }

    fn answer_list(&self, request: &Request<'_>) -> Result<Reply, Reply> {
        self.control.access.authorize_command(request)?;
        let refusal = |status| move |problem: String| Reply::text(status, problem + "\n");
        let query = Query::parse(request.query()).map_err(refusal(400))?;
        if let Some(name) = &query.service {
            self.control.service(Some(name)).map_err(refusal(404))?;
        }
        let (turn, stream) = self.permits(request)?;
        let (pieces, body) = mpsc::channel(1);
        let sessions = self.sessions.clone();
        tokio::spawn(async move {
            let mut listing = Listing::new(query);
            let silent = collect::all(&sessions, |row| listing.add(row)).await;
            for piece in listing.document(&silent) {
                if pieces.send(piece.into()).await.is_err() {
                    break;
                }
            }
            // Not before, so that the rows of one list at most are in memory.
            drop(turn);
        });
        Ok(Reply::stream("application/json", body, stream))
    }

    fn answer_networks(self: &Arc<Self>, request: &Request<'_>) -> Result<Reply, Reply> {
        if let Some(body) = self.fresh_networks() {
            return Ok(Reply::json(200, body));
        }
        let (turn, stream) = self.permits(request)?;
        let (pieces, body) = mpsc::channel(1);
        let api = Arc::clone(self);
        tokio::spawn(async move {
            let mut networks = Networks::default();
            let silent = collect::all(&api.sessions, |row| networks.add(&row)).await;
            let document = Bytes::from(networks.document(&silent).to_string() + "\n");
            let last = Some((Instant::now(), document.clone()));
            *api.networks.lock().unwrap_or_else(PoisonError::into_inner) = last;
            drop(turn);
            // The client may be gone.
            let _ = pieces.send(document).await;
        });
        Ok(Reply::stream("application/json", body, stream))
    }

    fn answer_kill(&self, request: &Request<'_>) -> Result<Reply, Reply> {
        self.control.access.authorize_command(request)?;
        let Some(id) = parameter(request, "id").and_then(SessionId::parse) else {
            let problem = "id must be the ID of a session, as `pointsman sessions` prints it\n";
            return Err(Reply::text(400, problem));
        };
        let by = if request.origin.is_owner { "control socket" } else { "token" };
        let permit = request.reserve_stream().ok_or_else(Reply::no_stream)?;
        let (lines, body) = mpsc::channel(1);
        let sessions = self.sessions.clone();
        tokio::spawn(async move {
            // A worker that has not answered in time finds nobody who waits, and ends nothing.
            let killed = tokio::time::timeout(KILL_DEADLINE, sessions.kill(id)).await;
            let line = match killed {
                Ok(Ok(())) => {
                    info!(session = %id, by, "session killed by command");
                    json!({ "ok": true, "session": id.to_string() })
                }
                Ok(Err(KillError::NoAnswer(_))) | Err(_) => {
                    let error = "the worker of this session does not respond, the command was \
                                 withdrawn; see /alive";
                    json!({ "ok": false, "error": error })
                }
                Ok(Err(error)) => json!({ "ok": false, "error": error.to_string() }),
            };
            // The client may be gone; the session has ended anyway.
            let _ = lines.send(format!("{line}\n").into()).await;
        });
        Ok(Reply::stream("application/x-ndjson", body, permit))
    }
}
