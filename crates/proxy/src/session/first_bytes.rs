//! New sessions where clients often leave without a request: health checks, port scans, floods.
//!
//! Normally a session connects to its target at once, so that the connection is ready when the
//! first request arrives. For a client that sends no request, that costs the target an accepted and
//! a closed connection, which takes as long as several requests: a flood of such clients is a flood
//! at Redis, whose one thread then serves nobody else. So once such clients are frequent, a session
//! awaits the first bytes, for a moment, before it connects. If these are neither RESP nor the name
//! of a command, and many came with such bytes, it waits longer: most scanners have left by then,
//! and the others reach Redis one by one.
//!
//! After that, and again when it has connected, it lets the sessions go first that are established,
//! as a TLS handshake does, so that many strangers at once delay these by a part of a connection
//! and not by all of them.
//!
//! Nothing is refused here. Redis refuses what is not RESP, and a command that is not known here
//! may be known there: it is delayed while strangers are frequent, then forwarded as usual. Only a
//! client that ends its direction in that time is closed without the error.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use resp::{NextRequest, PromotionReason, Sharing, WholeRequests};

use crate::end_reason::EndReason;
use crate::io::stream::ClientStream;
use crate::runtime::{run_queue, tasks};
use crate::session::report::{SessionBase, Stage};

/// How long the first bytes are awaited. A client that keeps an idle connection is connected then,
/// so its first request after a pause is as fast as ever.
const AWAITED_FOR: Duration = Duration::from_secs(1);

/// How long a client waits whose first bytes no client of Redis sends: longer than most scanners
/// stay. While others like it are connecting, it waits again.
const DOUBTED_FOR: Duration = Duration::from_secs(3);

/// How often it waits at most: half a minute in total.
const DOUBTS: usize = if cfg!(test) { 2 } else { 10 };

/// First bytes that are examined: more than the first line of any request and its command's name.
const EXAMINED: usize = 64;

/// Longer than the names of all commands that are known.
const LONGEST_NAME: usize = 32;

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
            | EndReason::TlsHandshakeFailed
            | EndReason::FirstByteTimeout
            | EndReason::HoldAbandoned
    );
    // Redis closes a connection at bytes that are not RESP, some of which pass for a command.
    let refused = matches!(base.reason, EndReason::UpstreamClosed | EndReason::UpstreamReset);
    let no_request = base.commands == 0 || (refused && base.commands == 1);
    if by_client || !silent {
        base.context.silent_clients.record(no_request);
    }
}

/// Awaits the first bytes of a new client, if many send no request.
///
/// # Errors
///
/// The client has left, or the session is cut.
pub(super) async fn await_if_rare(
    base: &SessionBase,
    client: &mut impl ClientStream,
) -> Result<(), EndReason> {
    let silent_clients = &base.context.silent_clients;
    if !silent_clients.are_frequent() {
        return Ok(());
    }
    base.stage.set(Stage::Connecting);
    let spoke = tokio::select! {
        biased;
        () = base.ticket.cut() => return Err(EndReason::Cut),
        first = poll_fn(|cx| poll_first(cx, client)) => first.map(|()| true)?,
        () = tokio::time::sleep(AWAITED_FOR) => false,
    };
    if begins_request(client.peek(&mut [0; EXAMINED])) {
        // Before its session ends, so that many clients that come back at once, as after the loss
        // of another proxy, are not taken for a flood for long.
        if spoke {
            silent_clients.record(false);
        }
    } else {
        doubt(base, client).await?;
    }
    tasks::record_bytes(CONNECT_BYTES);
    tasks::yield_now().await;
    Ok(())
}

/// Delays a client that has begun as no client of Redis does.
async fn doubt(base: &SessionBase, client: &mut impl ClientStream) -> Result<(), EndReason> {
    let context = &base.context;
    let admitted = || context.silent_clients.admits_doubtful(context.counters.elapsed());
    for doubts in 0..DOUBTS {
        if admitted() {
            return Ok(());
        }
        if doubts == 0 {
            context.counters.delayed.increment();
        }
        tokio::select! {
            biased;
            () = base.ticket.cut() => return Err(EndReason::Cut),
            gone = poll_fn(|cx| poll_gone(cx, client)) => return Err(gone),
            // A drain ends when all sessions have: this one has to get what it waits for.
            () = base.ticket.asked() => return Ok(()),
            () = tokio::time::sleep(DOUBTED_FOR) => {}
        }
    }
    Ok(())
}

/// Whether a client of Redis may begin with these bytes: an array of strings, or the name of a
/// command, after empty requests or blanks.
fn begins_request(first: &[u8]) -> bool {
    match WholeRequests::new(EXAMINED).next(first) {
        NextRequest::Empty(length) => {
            first.get(length..).is_some_and(|rest| !rest.is_empty() && begins_request(rest))
        }
        NextRequest::Promotes(PromotionReason::Inline) => {
            first.first() != Some(&b'*') && begins_inline_command(first)
        }
        NextRequest::Incomplete | NextRequest::Whole { .. } | NextRequest::Promotes(_) => true,
    }
}

fn begins_inline_command(first: &[u8]) -> bool {
    let first = first.trim_ascii_start();
    let word = first.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    let is_whole = word.len() < first.len();
    let is_known =
        |word| !matches!(resp::sharing_of(word), Sharing::Promotes(PromotionReason::Unknown));
    !first.is_empty()
        && str::from_utf8(word).is_ok_and(|name| {
            if is_whole {
                is_known(name)
            } else {
                word.len() < LONGEST_NAME && word.iter().all(u8::is_ascii_alphabetic)
            }
        })
}

fn poll_gone(cx: &mut Context<'_>, client: &mut impl ClientStream) -> Poll<EndReason> {
    client.update_readiness(cx);
    if client.peer_closed_now() { Poll::Ready(EndReason::ClientClosed) } else { Poll::Pending }
}

fn poll_first(cx: &mut Context<'_>, client: &mut impl ClientStream) -> Poll<Result<(), EndReason>> {
    // Before it is looked at, so that what arrives in between wakes the session.
    client.update_readiness(cx);
    if client.has_unread() { Poll::Ready(Ok(())) } else { poll_gone(cx, client).map(Err) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Instant;

    use drain::StopRequest;

    use super::*;
    use crate::Options;
    use crate::testing::{Backend, TestProxy, expect};

    #[test]
    fn recognises_requests_after_blanks_and_empty_ones() {
        for first in ["PING\r\n", "  ping", "\r\nPING\r\n", "*0\r\n*1\r\n$4\r\nPING\r\n", "*1\r"] {
            assert!(begins_request(first.as_bytes()), "{first:?}");
        }
        for first in ["\r\n\r\n", "*0\r\n", "*0\r\nHELP\r\n", "\r\nHELP x", "\u{16}\u{3}\u{1}"] {
            assert!(!begins_request(first.as_bytes()), "{first:?}");
        }
    }

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
    /// A lower bound on the time: a slow machine takes longer, and never less.
    #[test]
    fn accepts_a_flood_slowly_once_silent_clients_are_frequent() {
        const FLOOD: u32 = 400;
        let backend = Backend::new();
        let mut proxy = TestProxy::new(Options::default());
        proxy.commit(backend.addr());
        leave_silently(&proxy, &backend, 9);
        proxy.wait_for("their ends", |stats| stats.closed_in_all() == 9);
        let begin = Instant::now();
        let _flood: Vec<_> = (0..FLOOD).map(|_| proxy.client()).collect();
        proxy.wait_for("all to be accepted", |stats| stats.accepted == u64::from(9 + FLOOD));
        assert!(begin.elapsed() >= Duration::from_millis(u64::from(FLOOD / 4 - 1)));
    }

    #[test]
    fn knows_how_clients_of_redis_begin() {
        let likely: [&[u8]; 11] = [
            b"",
            b"*",
            b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
            b"*2\r\n$4\r\nAUTH\r\n$",
            b"ping\r\n",
            b"PI",
            b"INFO replication\r\n",
            b"GET / HTTP/1.1\r\n",
            b"set k v\n",
            b"FT.SEARCH i q\r\n",
        ];
        for first in likely {
            assert!(begins_request(first), "{:?}", first.escape_ascii().to_string());
        }
        let doubtful: [&[u8]; 9] = [
            b"\x16\x03\x01\x02\x00\x01",
            b"POST / HTTP/1.1\r\n",
            b"\r\n",
            b"*1\r\n*1\r\n",
            b"*-7\r\n$-5\r\n",
            b"*2\r\n$3\r\nGET\r\n$99999999999\r\n",
            b"PROXY TCP4 1.2.3.4",
            b"\0",
            b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ];
        for first in doubtful {
            assert!(!begins_request(first), "{:?}", first.escape_ascii().to_string());
        }
    }

    /// A proxy at which silent clients are frequent.
    fn crowded(backend: &Backend) -> TestProxy {
        let mut proxy = TestProxy::new(Options::default());
        proxy.commit(backend.addr());
        leave_silently(&proxy, backend, 9);
        proxy.wait_for("their ends", |stats| stats.closed_in_all() == 9);
        proxy
    }

    fn client(proxy: &TestProxy, first: &[u8]) -> TcpStream {
        let mut client = proxy.client();
        client.write_all(first).unwrap();
        client
    }

    fn first_word(backend: &Backend) -> [u8; 4] {
        let mut first = [0; 4];
        backend.accept().read_exact(&mut first).unwrap();
        first
    }

    /// At the rate alone, the last one would connect after half a minute.
    #[test]
    fn connects_many_doubtful_clients_later() {
        const CLIENTS: usize = 40;
        let backend = Backend::new();
        let proxy = crowded(&backend);
        let begin = Instant::now();
        let _doubtful: Vec<_> =
            (0..CLIENTS).map(|_| client(&proxy, b"POST / HTTP/1.1\r\n")).collect();
        let _usual = client(&proxy, b"*1\r\n$4\r\nPING\r\n");
        // Ten are connected at once, and one per second; the others after the usual client.
        let early = (0..=CLIENTS).take_while(|_| first_word(&backend) == *b"POST").count();
        let admitted = 10 + begin.elapsed().as_secs();
        assert!((10..=admitted).contains(&(early as u64)), "{early} of {admitted}");
        (early..CLIENTS).for_each(|_| assert_eq!(first_word(&backend), *b"POST"));
        let took = begin.elapsed();
        let longest = DOUBTED_FOR * u32::try_from(DOUBTS).unwrap();
        assert!(took >= longest && took < Duration::from_secs(30), "{took:?}");
    }

    /// Otherwise the end of the drain would wait for it.
    #[test]
    fn connects_a_doubtful_client_that_has_to_leave() {
        let backend = Backend::new();
        let proxy = crowded(&backend);
        let _first: Vec<_> = (0..10).map(|_| client(&proxy, b"POST / HTTP/1.1\r\n")).collect();
        (0..10).for_each(|_| assert_eq!(first_word(&backend), *b"POST"));
        let _later: Vec<_> = (0..10).map(|_| client(&proxy, b"POST / HTTP/1.1\r\n")).collect();
        proxy.wait_for("doubts", |stats| stats.delayed > 5);
        let begin = Instant::now();
        proxy.drain.request_stop(StopRequest::DrainAtOnce);
        (0..10).for_each(|_| assert_eq!(first_word(&backend), *b"POST"));
        assert!(begin.elapsed() < DOUBTED_FOR, "{:?}", begin.elapsed());
    }
}
