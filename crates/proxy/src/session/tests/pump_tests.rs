//! The pump between two fake streams: what must happen without a round of the event loop, and the
//! memory of a session.

use std::sync::Arc;

use target::TargetWriter;

use crate::context::WorkerContext;
use crate::io::stream::SocketStream;
use crate::session::connect::Why;
use crate::session::pump::{Pump, Stop, Stopped};
use crate::session::states::{Pumping, connecting, resting};
use crate::testing::{FakeStream, context, session_base};
use crate::{EndReason, Options, Sessions};

async fn pump(
    context: &Arc<WorkerContext>,
    fence_first: Option<&mut TargetWriter>,
    client: &mut FakeStream,
    upstream: &mut FakeStream,
) -> Stopped {
    let target = context.shared.service.route.usable_target().unwrap();
    if let Some(publisher) = fence_first {
        publisher.clear();
    }
    let base = session_base(context);
    Pump::new(client, upstream, context, &target, Vec::new()).run(&base).await
}

#[tokio::test]
async fn sends_waiting_requests_in_the_first_poll() {
    let (_publisher, context) = context();
    let (mut client, mut upstream) =
        (FakeStream::sending(&[b"PING\r\n"]), FakeStream::sending(&[]));
    let target = context.shared.service.route.usable_target().unwrap();
    let base = session_base(&context);
    {
        let pump = Pump::new(&mut client, &mut upstream, &context, &target, b"INFO\r\n".to_vec());
        let running = pump.run(&base);
        let mut running = std::pin::pin!(running);
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(running.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
    }
    assert_eq!(upstream.written, b"INFO\r\nPING\r\n");
}

#[tokio::test]
async fn delivers_replies_and_sends_nothing_after_the_fence() {
    let (mut publisher, context) = context();
    let (mut client, mut upstream) =
        (FakeStream::sending(&[b"SET k v\r\n"]), FakeStream::sending(&[b"+OK\r\n"]));
    let stopped = pump(&context, Some(&mut publisher), &mut client, &mut upstream).await;
    assert_eq!(stopped.stop, Stop::End(EndReason::Fenced));
    assert_eq!(
        (client.written.as_slice(), upstream.written.len(), upstream.ended),
        (&b"+OK\r\n"[..], 0, false)
    );
    assert_eq!((stopped.bytes, client.incoming.len()), ((0, 5), 1));
}

#[tokio::test]
async fn hands_over_what_a_slow_client_has_not_taken() {
    let (mut publisher, context) = context();
    let (mut client, mut upstream) =
        (FakeStream { capacity: 2, ..FakeStream::default() }, FakeStream::sending(&[b"+OK\r\n"]));
    let stopped = pump(&context, Some(&mut publisher), &mut client, &mut upstream).await;
    assert_eq!(
        (stopped.stop, stopped.undelivered.as_slice()),
        (Stop::End(EndReason::Fenced), &b"K\r\n"[..])
    );
}

#[tokio::test]
async fn ends_when_both_sides_have_ended() {
    let (_publisher, context) = context();
    context.shared.service.options.set(Options { sessions: Sessions::Close, ..Options::default() });
    let (mut client, mut upstream) =
        (FakeStream::sending(&[b"QUIT\r\n", b""]), FakeStream::sending(&[b"+OK\r\n", b""]));
    let stopped = pump(&context, None, &mut client, &mut upstream).await;
    assert_eq!((stopped.stop, upstream.ended), (Stop::End(EndReason::ClientClosed), true));
    assert_eq!(stopped.bytes, (6, 5));
}

#[tokio::test]
async fn ends_sessions_whose_streams_overstate_bytes() {
    let (_publisher, context) = context();
    for (client_lies, upstream_lies, from_client) in
        [(1, 0, true), (0, 1, true), (1, 0, false), (0, 1, false)]
    {
        let (says, silent): (&[&[u8]], &[&[u8]]) = (&[b"PING\r\n"], &[]);
        let push: &[&[u8]] = &[b">2\r\n+invalidate\r\n_\r\n"];
        let (mut client, mut upstream) = match from_client {
            true => (FakeStream::sending(says), FakeStream::sending(silent)),
            false => (FakeStream::sending(silent), FakeStream::sending(push)),
        };
        (client.overstated, upstream.overstated) = (client_lies, upstream_lies);
        let stopped = pump(&context, None, &mut client, &mut upstream).await;
        assert_eq!(
            stopped.stop,
            Stop::End(EndReason::InternalError),
            "{client_lies} {upstream_lies} {from_client}"
        );
        assert!(stopped.left.is_none() && stopped.undelivered.is_empty());
        // Nothing that is not known to have been sent was forwarded.
        let went = if from_client {
            (&upstream.written, upstream_lies)
        } else {
            (&client.written, client_lies)
        };
        assert_eq!(went.0.is_empty(), went.1 == 0);
    }
}

/// The size of the future that is a state of a session.
fn size_of_state<A, F>(_: impl FnOnce(A) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn keeps_the_states_of_a_session_small() {
    let pumping = size_of::<Pumping<SocketStream, SocketStream>>();
    // Of it, 288 are the ledger.
    assert!(pumping <= 656, "{pumping} bytes");
    // What is kept of the pump and the ledger is in a box of its own.
    let rest = |(session, client, rest): (_, SocketStream, _)| resting(session, client, rest);
    let resting = size_of_state(rest);
    assert!(resting <= 200, "{resting} bytes");
    let connect =
        |(session, client, why): (_, SocketStream, Box<Why>)| connecting(session, client, why);
    let connecting = size_of_state(connect);
    assert!(connecting <= 280, "{connecting} bytes");
}
