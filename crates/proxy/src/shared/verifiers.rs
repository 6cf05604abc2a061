//! Connections on which clients were verified, kept for the next client to verify.
//!
//! Each `AUTH`, `HELLO` and `SELECT` of a client goes to the server, on a connection of the
//! session's own. With a new one each time, a client that connects, authenticates and leaves would
//! still cost Redis a connection. So the session leaves the connection here. It is sent `RESET` at
//! once, which takes user, name, database, protocol version and everything else that a client can
//! set back to the start, and is kept only if the server confirms that, and nothing more. So what
//! is kept has nobody's rights, `CLIENT LIST` shows nobody who has left, and the next client to be
//! verified waits for nothing. A server that refuses `RESET`, as before Redis 6.2, costs each
//! client a new connection; one that has closed a kept connection costs one attempt.
//!
//! At `RESET`, the server decides whether a client without credentials is authenticated, as it does
//! for a new connection. An operator may have set a password since, or removed it. So a kept
//! connection is reset once more when it is used, in one packet with the state of the next client.
//!
//! A connection is not kept if its client was told the ID of it, by `HELLO` at the latest: another
//! client would have the same one.
//!
//! `RESET` keeps the name of the client library. The next client may see it in `CLIENT INFO` until
//! it sets its own.
//!
//! A connection is closed when it has not been used for a while, or its target is superseded.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use resp::{Ledger, RESET};
use target::Target;

use crate::context::{ServiceContext, WorkerContext};
use crate::runtime::tasks;
use crate::session::carry::replay::Server;
use crate::session::dial;
use crate::session::upstream::Upstream;

/// Connections that a worker keeps. A verification takes a few round trips.
const MOST: usize = 64;

/// One that was not used for so long is closed.
const UNUSED: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// How long the server may take to confirm `RESET`.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

/// Interval of the search for those.
const SEARCH: Duration = Duration::from_secs(1);

/// The reply to `RESET`.
const WAS_RESET: &[u8] = b"+RESET\r\n";

struct Verifier {
    service: Arc<ServiceContext>,
    target: Arc<Target>,
    upstream: Upstream,
    since: Instant,
}

#[derive(Default)]
struct Verifiers {
    kept: Vec<Verifier>,
    /// One more reference for each connection whose server has not confirmed `RESET`.
    being_reset: Rc<()>,
    /// A task looks for those that are of no use any more.
    is_searched: bool,
}

thread_local! {
    static KEPT: RefCell<Verifiers> = RefCell::default();
}

/// Whether `RESET` takes a connection in this state back to the start, in every version that has
/// it, and its client was not told its ID, which `RESET` keeps: a client that has it
/// can redirect invalidations to the connection and kill it.
pub(crate) fn may_keep(ledger: &Ledger) -> bool {
    !ledger.knows_connection_id() && ledger.shared_state().is_some_and(|state| !state.no_touch)
}

/// Keeps a connection that a session gives up, on which nothing is in flight, if the server takes
/// it back to the start.
pub(crate) fn keep(upstream: Upstream, target: &Arc<Target>, context: &Arc<WorkerContext>) {
    match place() {
        Some(place) => {
            tasks::spawn(reset(upstream, place, Arc::clone(target), Arc::clone(context)));
        }
        None => upstream.close_answered(),
    }
}

/// The place of a connection that is being reset; `None` if there are too many connections.
fn place() -> Option<Rc<()>> {
    KEPT.with_borrow(|all| {
        let taken = all.kept.len() + Rc::strong_count(&all.being_reset) - 1;
        (taken < MOST).then(|| Rc::clone(&all.being_reset))
    })
}

/// Takes a connection back to the start, and keeps it then.
async fn reset(
    mut upstream: Upstream,
    _place: Rc<()>,
    target: Arc<Target>,
    context: Arc<WorkerContext>,
) {
    let deadline = Instant::now() + CONFIRMED_WITHIN;
    let server = Server { target: &target, context: &context, deadline };
    let reply = server.ask(&mut upstream, RESET, WAS_RESET.len()).await;
    if reply.is_ok_and(|reply| reply == WAS_RESET) {
        put_back(upstream, &target, &context);
    }
}

/// Keeps a connection that has been taken back to the start.
pub(crate) fn put_back(upstream: Upstream, target: &Arc<Target>, context: &Arc<WorkerContext>) {
    if !dial::may_be_used(target) {
        return;
    }
    let (service, target) = (Arc::clone(&context.shared), Arc::clone(target));
    let since = Instant::now();
    let begins = KEPT.with_borrow_mut(|all| {
        all.kept.push(Verifier { service, target, upstream, since });
        !std::mem::replace(&mut all.is_searched, true)
    });
    if begins {
        tasks::spawn(search());
    }
}

/// A connection to `target` that was reset, to be [reset](resp::Replay::on_used_connection) again.
/// One on which something has arrived since is closed: it would be taken for the reply to the next
/// client.
pub(crate) fn take(target: &Target, context: &WorkerContext) -> Option<Upstream> {
    let has_tls = context.shared.service.options.now().target_tls.is_some();
    let mut kept = KEPT.with_borrow_mut(|all| {
        let fits = |it: &Verifier| {
            std::ptr::eq(&*it.target, target)
                && Arc::ptr_eq(&it.service, &context.shared)
                && matches!(it.upstream, Upstream::Tls(_)) == has_tls
        };
        // The one that was used last: the others come of age.
        let at = all.kept.iter().rposition(fits)?;
        Some(all.kept.remove(at).upstream)
    })?;
    (!kept.stream().has_unread()).then_some(kept)
}

/// Closes those that are of no use any more, until there are none.
async fn search() {
    loop {
        tokio::time::sleep(SEARCH).await;
        let is_over = KEPT.with_borrow_mut(|all| {
            all.kept.retain(|it| it.since.elapsed() < UNUSED && !dial::is_superseded(&it.target));
            all.is_searched = !all.kept.is_empty();
            all.kept.is_empty()
        });
        if is_over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_places_for_as_many_as_are_kept() {
        let mut places: Vec<Rc<()>> = std::iter::from_fn(place).collect();
        assert_eq!(places.len(), MOST);
        assert!(place().is_none());
        places.pop();
        assert!(place().is_some());
    }
}
