//! Decides whether a replica closed a session's connection on purpose.
//!
//! Sentinel closes all connections of a replica that it points to another master, and the replica
//! keeps answering. So an answer proves nothing here, unlike a [master's](crate::session::carry):
//! the session waits for discovery, which asks the replica which master it follows. Why that answer
//! is certain: `docs/decisions/readers.md#a-replicas-kick-is-explained-by-whom-it-follows`.
//!
//! A replica that does not answer a new connection has not closed this session on purpose, and
//! needs no further question. All of it is bounded. Without evidence of a failover the replica
//! meant this session, and the client's connection ends, too.

use std::time::{Duration, Instant};

use target::{CloseCause, TargetRef};

use crate::context::WorkerContext;
use crate::end_reason::EndReason;
use crate::io::stream::ClientStream;
use crate::session::carry::replay::{Failed, Server};
use crate::session::dial::is_superseded;
use crate::session::hold::HeldClient;

/// How long to wait for discovery, which asks within one round trip.
const PATIENCE: Duration = Duration::from_secs(3);

/// Returns when a session whose connection the replica `from` has closed may continue over another
/// one. Bytes that the client sends meanwhile are kept.
///
/// # Errors
///
/// Why the session has to end: `reason` if the replica meant this session.
pub(crate) async fn decide(
    held: &mut HeldClient<'_, impl ClientStream>,
    from: &TargetRef,
    reason: EndReason,
) -> Result<(), EndReason> {
    let (base, deadline, ended) = (held.base, held.until, Instant::now());
    let context = &*base.context;
    let permit = held.permit().await?;
    let meant = async {
        if is_superseded(from) || cause(from, ended) == CloseCause::Failover {
            return false;
        }
        match (Server { target: from, context, deadline }).answers().await {
            // One answer is valid for all sessions, so none has to wait for another one here.
            Ok(()) => permit.succeeded(),
            // It must not be sent anything now: a failover is believed to be under way.
            Err(Failed::Superseded) => drop(permit),
            Err(failed) => {
                if !failed.is_local() {
                    // New sessions try other replicas first.
                    from.defer();
                }
                return false;
            }
        }
        learn_cause(context, from, ended).await != CloseCause::Failover
    };
    tokio::select! {
        biased;
        () = base.ticket.cut() => Err(EndReason::Cut),
        gone = held.gone() => Err(gone),
        meant = meant => if meant { Err(reason) } else { Ok(()) },
    }
}

fn cause(from: &TargetRef, ended: Instant) -> CloseCause {
    from.replica_status().map_or(CloseCause::Other, |look| look.cause(from.since(), ended))
}

/// Waits until the cause is known. A session that has to leave its replica, or must not be there
/// any more, was not meant either.
async fn learn_cause(context: &WorkerContext, from: &TargetRef, ended: Instant) -> CloseCause {
    let learned = async {
        loop {
            let (changed, examined) =
                (context.shared.service.route.changed(), from.replica_status_changed());
            match cause(from, ended) {
                _ if is_superseded(from) => return CloseCause::Failover,
                CloseCause::NotKnown => {}
                known => return known,
            }
            tokio::select! {
                () = changed => {}
                () = examined => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, learned).await.unwrap_or(CloseCause::NotKnown)
}
