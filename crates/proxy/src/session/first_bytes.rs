//! New sessions where clients often leave without a word: health checks, port scans, floods.
//!
//! Normally a session connects to its target at once, so that the connection is ready when the
//! first request arrives. For a client that sends nothing, that costs the target an accepted and a
//! closed connection, which takes as long as several requests: a flood of such clients is a flood
//! at Redis, whose one thread then serves nobody else. So once such clients are frequent, a session
//! awaits the first bytes, for a moment, before it connects.
//!
//! After that it lets the sessions go first that are established, as a TLS handshake does, so that
//! many strangers at once delay these by a few connections and not by all of them.
//!
//! Deliberately absent: a judgement of the bytes. What is not RESP is Redis's to refuse.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::end_reason::EndReason;
use crate::io::stream::ClientStream;
use crate::runtime::{run_queue, tasks};
use crate::session::SessionEnd;
use crate::session::report::{SessionBase, Stage};

/// How long the first bytes are awaited. A client that keeps an idle connection is connected then,
/// so its first request after a pause is as fast as ever.
const AWAITED_FOR: Duration = Duration::from_secs(1);

/// To connect counts as moving that many bytes: it takes longer than a small request.
const CONNECT_BYTES: usize = 4 * run_queue::HEAVY;

/// Records how a session ended, if its client ended it or had sent something.
pub(super) fn record(base: &SessionBase) {
    let silent = base.bytes.0 == 0;
    let by_client = matches!(
        base.reason,
        EndReason::ClientClosed
            | EndReason::ClientReset
            | EndReason::ClientLost
            | EndReason::ClientError
            | EndReason::FirstByteTimeout
            | EndReason::HoldAbandoned
    );
    if by_client || !silent {
        base.context.silent_clients.record(silent);
    }
}

/// Awaits the first bytes of a new client, if many send none.
///
/// # Errors
///
/// The client has left, or the session is cut.
pub(super) async fn await_if_rare(
    base: &SessionBase,
    client: &mut impl ClientStream,
) -> Result<(), SessionEnd> {
    if !base.context.silent_clients.are_frequent() {
        return Ok(());
    }
    base.stage.set(Stage::Connecting);
    tokio::select! {
        biased;
        () = base.ticket.cut() => return Err((EndReason::Cut, Vec::new())),
        first = poll_fn(|cx| poll_first(cx, client)) => first?,
        () = tokio::time::sleep(AWAITED_FOR) => {}
    }
    tasks::record_bytes(CONNECT_BYTES);
    tasks::yield_now().await;
    Ok(())
}

fn poll_first(
    cx: &mut Context<'_>,
    client: &mut impl ClientStream,
) -> Poll<Result<(), SessionEnd>> {
    // Before it is looked at, so that what arrives in between wakes the session.
    client.update_readiness(cx);
    if client.has_unread() {
        Poll::Ready(Ok(()))
    } else if client.peer_closed_now() {
        Poll::Ready(Err((EndReason::ClientClosed, Vec::new())))
    } else {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::*;
    use crate::Options;
    use crate::testing::{Backend, TestProxy, expect};

    fn leave_silently(proxy: &TestProxy, backend: &Backend, count: usize) {
        for _ in 0..count {
            drop(proxy.client());
            drop(backend.accept());
        }
    }

    #[test]
    fn connects_silent_clients_later_once_they_are_frequent() {
        let backend = Backend::new();
        let mut proxy = TestProxy::new(Options::default());
        proxy.commit(backend.addr());
        leave_silently(&proxy, &backend, 9);
        proxy.wait_for("their ends", |stats| stats.closed_in_all() == 9);

        // One that leaves costs the target nothing; one that speaks is connected at once.
        (0..20).for_each(|_| drop(proxy.client()));
        proxy.wait_for("their ends", |stats| stats.closed_in_all() == 29);
        assert!(!backend.has_pending_connection());
        let begin = Instant::now();
        let mut client = proxy.client();
        client.write_all(b"PING\r\n").unwrap();
        let mut upstream = backend.accept();
        expect(&mut upstream, b"PING\r\n");
        assert!(begin.elapsed() < AWAITED_FOR);

        // One that stays is connected after a moment, without a word.
        let begin = Instant::now();
        let _idle = proxy.client();
        let _upstream = backend.accept();
        assert!(begin.elapsed() >= AWAITED_FOR);
    }
}
