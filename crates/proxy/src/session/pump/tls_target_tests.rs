//! Requests that were encrypted and not sent in full: the target can read none of their bytes, so
//! none counts as written, and none leaves after the fence.

use std::sync::Arc;
use std::task::{Poll, Waker};

use tls::{ClientSide, Version};

use crate::EndReason;
use crate::context::WorkerContext;
use crate::io::buffer;
use crate::io::stream::{ByteStream, ClientStream};
use crate::io::tls_stream::TlsStream;
use crate::session::leave::Leaving;
use crate::session::pump::{Left, Pump, Stop, Stopped};
use crate::testing::tls_target::{FarEnd, noop, record_events};
use crate::testing::{FakeStream, context, destination};

type TestPump<'a> = Pump<&'a mut FakeStream, &'a mut TlsStream<ClientSide>>;

fn set(size: usize) -> Vec<u8> {
    [format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${size}\r\n").as_bytes(), &vec![b'v'; size], b"\r\n"]
        .concat()
}

fn poll(pump: &mut TestPump<'_>) -> Poll<Stop> {
    record_events();
    pump.upstream.update_readiness(&mut noop());
    buffer::with_scratch(|scratch| pump.poll(&mut noop(), Waker::noop(), scratch))
}

/// Polls, and lets the server receive, until nothing more moves.
fn settle(pump: &mut TestPump<'_>, far: &mut FarEnd) {
    loop {
        assert_eq!(poll(pump), Poll::Pending);
        if far.progress() == 0 {
            return;
        }
    }
}

/// A pump towards a server, whose client has sent `requests`.
fn with_pump(
    version: Version,
    requests: &[u8],
    test: impl FnOnce(&Arc<WorkerContext>, &mut target::TargetWriter, TestPump<'_>, &mut FarEnd),
) {
    let (mut publisher, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    let (mut upstream, mut far) = FarEnd::pair(version);
    let mut client = FakeStream::sending(&[requests]);
    let pump = Pump::new(&mut client, &mut upstream, &context, &target, Vec::new());
    test(&context, &mut publisher, pump, &mut far);
}

#[test]
fn drops_a_begun_request_at_the_fence() {
    for version in Version::ALL {
        let request = set(50_000);
        with_pump(version, &request, |_, publisher, mut pump, far| {
            assert_eq!(poll(&mut pump), Poll::Pending);
            assert!(pump.upstream.has_begun_write());
            publisher.commit(destination("127.0.0.1:2".parse().unwrap()));
            // The server takes what is on its way, and there would be room for the rest.
            while far.progress() > 0 {}
            assert_eq!(poll(&mut pump), Poll::Ready(EndReason::Fenced.into()));
            let Stopped { left, bytes, .. } = pump.stop(EndReason::Fenced.into());
            let Some(Left::State(state, None)) = left.map(|left| *left) else {
                panic!("nothing was sent, so the session can continue elsewhere")
            };
            assert!(state.unsent == request && bytes == (0, 0), "{version:?}");
            let received = far.received;
            pump.upstream.reset_on_close();
            pump.upstream.announce_end();
            while far.progress() > 0 {}
            assert_eq!((far.received, far.read.len()), (received, 0));
        });
    }
}

#[test]
fn counts_what_the_server_can_read_at_the_fence() {
    for version in Version::ALL {
        let request = set(3 << 20);
        with_pump(version, &request, |context, publisher, mut pump, far| {
            // A part of it arrives.
            while far.read.len() < 1 << 20 {
                assert_eq!(poll(&mut pump), Poll::Pending);
                far.progress();
            }
            assert_eq!(poll(&mut pump), Poll::Pending);
            assert!(pump.upstream.has_begun_write());
            publisher.clear();
            while far.progress() > 0 {}
            assert_eq!(poll(&mut pump), Poll::Ready(EndReason::Fenced.into()));
            let stopped = pump.stop(EndReason::Fenced.into());
            // A part of the request was executed as far as can be known: nobody sends it again.
            assert!(stopped.left.is_none());
            pump.upstream.reset_on_close();
            pump.upstream.announce_end();
            while far.progress() > 0 {}
            assert_eq!(stopped.bytes.0, far.read.len() as u64, "{version:?}");
            assert_eq!(context.counters.bytes_in.get(), far.read.len() as u64);
            assert!(request.starts_with(&far.read) && far.read.len() < request.len());
        });
    }
}

#[test]
fn keeps_a_begun_request_while_the_gate_is_closed() {
    for version in Version::ALL {
        let request = set(50_000);
        with_pump(version, &request, |_, publisher, mut pump, far| {
            assert_eq!(poll(&mut pump), Poll::Pending);
            assert!(pump.upstream.has_begun_write());
            publisher.hold();
            while far.progress() > 0 {}
            let received = far.received;
            settle(&mut pump, far);
            assert_eq!((far.received, far.read.len()), (received, 0), "sent through a closed gate");
            // The target stays the master: the same record is completed.
            publisher.release();
            settle(&mut pump, far);
            assert!(far.read == request, "{version:?}: {}", far.read.len());
        });
    }
}

#[test]
fn completes_a_begun_request_before_it_leaves() {
    for version in Version::ALL {
        // The rest of one request and two more are in the record that has begun.
        let first = set(15_000);
        let requests = [first.as_slice(), b"PING\r\nPING\r\n", &set(80_000), b"PING\r\n"].concat();
        with_pump(version, &requests, |_, _, mut pump, far| {
            // Its beginning was sent by itself, so the session is within a request.
            let rest = pump.client.incoming[0].split_off(13);
            pump.client.incoming.push_back(rest);
            assert_eq!(poll(&mut pump), Poll::Pending);
            assert!(pump.upstream.has_begun_write());
            assert_eq!(pump.requests.moved, 13);
            pump.leaving = Leaving::AtBoundary;
            settle(&mut pump, far);
            // Everything that was encrypted with it arrived, to the end of the last request of it.
            let at_boundary = pump.ledger.at_boundary(resp::Direction::Request);
            assert!(at_boundary && !pump.upstream.has_begun_write(), "{}", far.read.len());
            assert!(requests.starts_with(&far.read) && far.read.len() > first.len(), "{version:?}");
            assert!(far.read.len() < requests.len(), "a request was sent after the boundary");
            assert_eq!((pump.measured, pump.ledger.owed()), (0, 4));
        });
    }
}

#[test]
fn leaves_without_a_request_that_was_not_sent() {
    with_pump(Version::Tls13, &set(50_000), |_, _, mut pump, far| {
        assert_eq!(poll(&mut pump), Poll::Pending);
        assert!(pump.upstream.has_begun_write());
        pump.leaving = Leaving::AtBoundary;
        record_events();
        pump.upstream.update_readiness(&mut noop());
        let polled = buffer::with_scratch(|scratch| pump.poll(&mut noop(), Waker::noop(), scratch));
        assert_eq!(polled, Poll::Ready(Stop::Leave));
        // No end is announced after half a record, although there would be room for the rest.
        while far.progress() > 0 {}
        let received = far.received;
        pump.upstream.announce_end();
        while far.progress() > 0 {}
        assert_eq!((far.received, far.read.len()), (received, 0));
    });
}
