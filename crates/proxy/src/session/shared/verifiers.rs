//! Connections on which clients were verified, kept for the next client to verify.
//!
//! Each `AUTH`, `HELLO` and `SELECT` of a client goes to the server, on a connection of the
//! session's own. With a new one each time, a client that connects, authenticates and leaves would
//! still cost Redis a connection. So the session leaves the connection here, and the next one that
//! has to be verified begins on it with `RESET`, which takes user, database, protocol version and
//! everything else that a client can set back to the start. Nothing else is sent before the server
//! has confirmed that. A server that refuses `RESET`, as before Redis 6.2, or that has closed the
//! connection, costs one attempt: a new connection is opened.
//!
//! `RESET` keeps the name of the client library. The next client may see it in `CLIENT INFO` until
//! it sets its own.
//!
//! A connection is closed when it has not been used for a while, or its target is superseded.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use resp::Ledger;
use target::Target;

use crate::context::{ServiceContext, WorkerContext};
use crate::io::upstream::Upstream;
use crate::runtime::tasks;
use crate::session::carry::replay;
use crate::session::dial;

/// Connections that a worker keeps. A verification takes a few round trips.
const MOST: usize = 64;

/// One that was not used for so long is closed.
const UNUSED: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

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
    /// A task looks for those that are of no use any more.
    is_searched: bool,
}

thread_local! {
    static KEPT: RefCell<Verifiers> = RefCell::default();
}

/// Whether `RESET` takes a connection in this state back to the start, in every version that has
/// it.
pub(crate) fn may_keep(ledger: &Ledger) -> bool {
    ledger.shared_state().is_some_and(|state| !state.no_touch)
}

/// Keeps a connection that a session gives up, on which nothing is in flight.
pub(crate) fn keep(upstream: Upstream, target: &Arc<Target>, context: &WorkerContext) {
    let verifier = Verifier {
        service: Arc::clone(&context.shared),
        target: Arc::clone(target),
        upstream,
        since: Instant::now(),
    };
    let begins = KEPT.with_borrow_mut(|all| {
        // Otherwise it is closed here.
        if all.kept.len() < MOST && dial::may_be_used(target) {
            all.kept.push(verifier);
        }
        !all.kept.is_empty() && !std::mem::replace(&mut all.is_searched, true)
    });
    if begins {
        tasks::spawn(search());
    }
}

/// A connection to `target` that is in the state of a new one.
pub(crate) async fn take(
    target: &Target,
    context: &WorkerContext,
    until: Instant,
) -> Option<Upstream> {
    let kept = KEPT.with_borrow_mut(|all| {
        let fits = |it: &Verifier| {
            std::ptr::eq(&*it.target, target) && Arc::ptr_eq(&it.service, &context.shared)
        };
        // The one that was used last: the others come of age.
        let at = all.kept.iter().rposition(fits)?;
        Some(all.kept.remove(at))
    });
    let mut upstream = kept?.upstream;
    let reset = (RESET, WAS_RESET.len());
    let reply = replay::ask(&mut upstream, (target, context), reset, until).await;
    reply.is_ok_and(|reply| reply == WAS_RESET).then_some(upstream)
}

/// The request.
const RESET: &[u8] = b"*1\r\n$5\r\nRESET\r\n";

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
