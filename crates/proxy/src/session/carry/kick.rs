//! Whether a replica ended a session's connection on purpose.
//!
//! Sentinel ends all connections of a replica that it points to another master, and the replica
//! answers all the while. So an answer proves nothing here, unlike a [master's](crate::session::carry): the
//! session waits for discovery, which asks the replica whom it follows. Decision 83 says why that
//! answer is certain.
//!
//! A replica that does not answer a new connection has not ended this session on purpose, and need
//! not be asked anything else. All of it is bounded. Without evidence of a failover the end was
//! meant for this session, and its client gets it, too.
//!
//! Deliberately absent: what becomes of a session that may continue.

use std::time::{Duration, Instant};

use drain::Ticket;
use target::{Cause, TargetRef};

use crate::end_reason::EndReason;
use crate::io::connection::Line;
use crate::runtime::worker::WorkerContext;
use crate::service::DialFailure;
use crate::session::carry::replay::{self, Failed};
use crate::session::dial::is_superseded;
use crate::session::hold;

/// How long to wait for discovery, which asks within a round trip.
const PATIENCE: Duration = Duration::from_secs(3);

/// A session that has lost its connection to a replica.
pub(crate) struct Kicked<'a> {
    pub(crate) seat: &'a WorkerContext,
    pub(crate) ticket: &'a Ticket,
    pub(crate) client: &'a mut Line,
    /// What the client has sent meanwhile is added here.
    pub(crate) unsent: &'a mut Vec<u8>,
    /// Where it was.
    pub(crate) from: &'a TargetRef,
}

impl Kicked<'_> {
    /// Returns when the session may continue with another connection.
    ///
    /// # Errors
    ///
    /// Why its client's connection has to end: `reason` if the replica meant this session.
    pub(crate) async fn judge(self, reason: EndReason, until: Instant) -> Result<(), EndReason> {
        let Self { seat, ticket, client, unsent, from } = self;
        let ended = Instant::now();
        let permit = hold::permit(client, unsent, &seat.turns, ticket, until).await?;
        let meant = async {
            if is_superseded(from) || cause(from, ended) == Cause::Failover {
                return false;
            }
            let options = &seat.shared.service.options;
            match replay::answers(from, options, until).await {
                // One answer is enough for all sessions, so none needs to wait for another here.
                Ok(()) => permit.succeeded(),
                // It must not be asked now, since a failover is believed to be under way.
                Err(Failed::Superseded) => drop(permit),
                Err(failed) => {
                    if failed != Failed::Dial(DialFailure::Exhausted) {
                        // Others are tried first.
                        from.shun();
                    }
                    return false;
                }
            }
            learn(seat, from, ended).await != Cause::Failover
        };
        tokio::select! {
            biased;
            () = ticket.cut() => Err(EndReason::Cut),
            gone = hold::client_gone(client, unsent) => Err(gone),
            meant = meant => if meant { Err(reason) } else { Ok(()) },
        }
    }
}

fn cause(from: &TargetRef, ended: Instant) -> Cause {
    from.look().map_or(Cause::Other, |look| look.cause(from.since(), ended))
}

/// Waits until it is known why. A session that is asked to leave its replica, or must not be there
/// any more, was not meant either.
async fn learn(seat: &WorkerContext, from: &TargetRef, ended: Instant) -> Cause {
    let learned = async {
        loop {
            let (moved, looked) = (seat.shared.service.route.moved(), from.looked());
            match cause(from, ended) {
                _ if is_superseded(from) => return Cause::Failover,
                Cause::NotKnown => {}
                known => return known,
            }
            tokio::select! {
                () = moved => {}
                () = looked => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, learned).await.unwrap_or(Cause::NotKnown)
}
