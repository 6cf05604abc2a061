//! The pump between two puppets: what must happen without a turn of the event loop, and how small a
//! session is.

use std::sync::Arc;

use target::TargetWriter;

use crate::context::WorkerContext;
use crate::io::stream::SocketStream;
use crate::runtime::reactor::{self, Reactor};
use crate::session::Session;
use crate::session::pump::{Pump, Stopped};
use crate::testing::{Puppet, context};
use crate::{EndReason, Options, Sessions};

async fn pump(
    context: &WorkerContext,
    fence_first: Option<&mut TargetWriter>,
    client: &mut Puppet,
    upstream: &mut Puppet,
) -> Stopped {
    let target = context.shared.service.route.usable_target().unwrap();
    if let Some(points) = fence_first {
        points.clear();
    }
    let ticket = context.drain.ticket();
    Pump::new((client, upstream), context, &target, Vec::new()).run(&ticket).await
}

#[tokio::test]
async fn a_waiting_request_goes_out_in_the_first_poll() {
    let (_points, context) = context();
    let (mut client, mut upstream) = (Puppet::saying(&[b"PING\r\n"]), Puppet::saying(&[]));
    let target = context.shared.service.route.usable_target().unwrap();
    let ticket = context.drain.ticket();
    {
        let mut pump =
            Pump::new((&mut client, &mut upstream), &context, &target, b"INFO\r\n".to_vec());
        let running = pump.run(&ticket);
        let mut running = std::pin::pin!(running);
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(running.as_mut().poll(cx))).await;
        assert!(polled.is_pending());
    }
    assert_eq!(upstream.heard, b"INFO\r\nPING\r\n");
}

#[tokio::test]
async fn after_the_fence_what_was_said_is_delivered_and_nothing_more_is_sent() {
    let (mut points, context) = context();
    let (mut client, mut upstream) =
        (Puppet::saying(&[b"SET k v\r\n"]), Puppet::saying(&[b"+OK\r\n"]));
    let stopped = pump(&context, Some(&mut points), &mut client, &mut upstream).await;
    assert_eq!(stopped.reason, EndReason::Fenced);
    assert_eq!(
        (client.heard.as_slice(), upstream.heard.len(), upstream.told),
        (&b"+OK\r\n"[..], 0, false)
    );
    assert_eq!((stopped.bytes, client.says.len()), ((0, 5), 1));
}

#[tokio::test]
async fn what_a_slow_client_has_not_taken_is_handed_over_at_the_end() {
    let (mut points, context) = context();
    let (mut client, mut upstream) =
        (Puppet { takes: 2, ..Puppet::default() }, Puppet::saying(&[b"+OK\r\n"]));
    let stopped = pump(&context, Some(&mut points), &mut client, &mut upstream).await;
    assert_eq!(
        (stopped.reason, stopped.undelivered.as_slice()),
        (EndReason::Fenced, &b"K\r\n"[..])
    );
}

#[tokio::test]
async fn both_ends_end_it() {
    let (_points, context) = context();
    context.shared.service.options.set(Options { sessions: Sessions::Close, ..Options::default() });
    let (mut client, mut upstream) =
        (Puppet::saying(&[b"QUIT\r\n", b""]), Puppet::saying(&[b"+OK\r\n", b""]));
    let stopped = pump(&context, None, &mut client, &mut upstream).await;
    assert_eq!((stopped.reason, upstream.told), (EndReason::ClientClosed, true));
    assert_eq!(stopped.bytes, (6, 5));
}

#[tokio::test]
async fn ends_sessions_whose_ends_overstate_what_they_moved() {
    let (_points, context) = context();
    for (client_lies, upstream_lies, from_client) in
        [(1, 0, true), (0, 1, true), (1, 0, false), (0, 1, false)]
    {
        let (says, silent): (&[&[u8]], &[&[u8]]) = (&[b"PING\r\n"], &[]);
        let push: &[&[u8]] = &[b">2\r\n+invalidate\r\n_\r\n"];
        let (mut client, mut upstream) = match from_client {
            true => (Puppet::saying(says), Puppet::saying(silent)),
            false => (Puppet::saying(silent), Puppet::saying(push)),
        };
        (client.overstates, upstream.overstates) = (client_lies, upstream_lies);
        let stopped = pump(&context, None, &mut client, &mut upstream).await;
        assert_eq!(
            stopped.reason,
            EndReason::InternalError,
            "{client_lies} {upstream_lies} {from_client}"
        );
        assert!(stopped.after.is_none() && stopped.undelivered.is_empty());
        // Nothing that is not known to have been said went on.
        let went = if from_client {
            (&upstream.heard, upstream_lies)
        } else {
            (&client.heard, client_lies)
        };
        assert_eq!(went.0.is_empty(), went.1 == 0);
    }
}

#[tokio::test]
async fn a_session_is_small() {
    let (_points, context) = context();
    let peer: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
    let admission = context.shared.limits.admit(Some(peer.ip())).unwrap();
    let session = Session::new(peer.into(), Arc::new(context), admission);
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let _reactor = reactor::install(Reactor::new(&bell).unwrap());
    let (client, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let size = size_of_val(&session.run(SocketStream::accepted(client.into(), false).unwrap()));
    // Of it, 264 are the ledger and 64 the place in the bell's waiting list. 24 are tokio's test
    // clock, which a build of the whole workspace has in it because another crate's tests want it,
    // and which the program has not.
    assert!(size <= 840 + 24, "{size} bytes");
}
