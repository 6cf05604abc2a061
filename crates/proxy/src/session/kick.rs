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
use target::{CloseCause, TargetRef};

use crate::context::WorkerContext;
use crate::io::stream::SocketStream;
use crate::service::DialFailure;
use crate::session::carry::is_overtaken;
use crate::session::end_reason::EndReason;
use crate::session::hold;
use crate::session::resume;
use crate::session::resume::Failed;

/// How long to wait for discovery, which asks within a round trip.
const PATIENCE: Duration = Duration::from_secs(3);

/// A session that has lost its connection to a replica.
pub(crate) struct Kicked<'a> {
    pub(crate) context: &'a WorkerContext,
    pub(crate) ticket: &'a Ticket,
    pub(crate) client: &'a mut SocketStream,
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
        let Self { context, ticket, client, unsent, from } = self;
        let ended = Instant::now();
        let turn = hold::turn(client, unsent, &context.dial_permits, ticket, until).await?;
        let meant = async {
            if is_overtaken(from) || cause(from, ended) == CloseCause::Failover {
                return false;
            }
            let options = &context.shared.service.options;
            match resume::answers(from, options, until).await {
                // One answer is enough for all sessions, so none needs to wait for another here.
                Ok(()) => turn.arrived(),
                // It must not be asked now, since a failover is believed to be under way.
                Err(Failed::Superseded) => drop(turn),
                Err(failed) => {
                    if failed != Failed::Dial(DialFailure::Exhausted) {
                        // Others are tried first.
                        from.defer();
                    }
                    return false;
                }
            }
            learn(context, from, ended).await != CloseCause::Failover
        };
        tokio::select! {
            biased;
            () = ticket.cut() => Err(EndReason::Cut),
            gone = hold::gone(client, unsent) => Err(gone),
            meant = meant => if meant { Err(reason) } else { Ok(()) },
        }
    }
}

fn cause(from: &TargetRef, ended: Instant) -> CloseCause {
    from.replica_status().map_or(CloseCause::Other, |look| look.cause(from.since(), ended))
}

/// Waits until it is known why. A session that is asked to leave its replica, or must not be there
/// any more, was not meant either.
async fn learn(context: &WorkerContext, from: &TargetRef, ended: Instant) -> CloseCause {
    let learned = async {
        loop {
            let (moved, looked) =
                (context.shared.service.route.changed(), from.replica_status_changed());
            match cause(from, ended) {
                _ if is_overtaken(from) => return CloseCause::Failover,
                CloseCause::NotKnown => {}
                known => return known,
            }
            tokio::select! {
                () = moved => {}
                () = looked => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, learned).await.unwrap_or(CloseCause::NotKnown)
}
