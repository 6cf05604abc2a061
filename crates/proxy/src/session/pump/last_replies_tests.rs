//! Replies at the fence: the reply under way arrives completely, a reply that might acknowledge a
//! lost write does not, and every wait is bounded.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use target::{EmptyPool, TargetWriter};

use crate::churn_tests::Dice;
use crate::io::buffer;
use crate::io::stream::ByteStream;
use crate::session::pump::{Pump, Stopped};
use crate::testing::{
    Backend, FakeStream, SOON, TestProxy, context, destination, expect, rest, session, session_base,
};
use crate::{EndReason, Options, Sessions};

const MIB: usize = 1 << 20;

fn bulk(body: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat()
}

/// A session has sent `requests`, and `first` was received of their replies. Then the fence is
/// raised, and `later` arrives, one entry per read.
async fn fenced(
    requests: &[u8],
    first: &[u8],
    later: &[&[u8]],
    client: FakeStream,
) -> (Stopped, FakeStream, FakeStream, Duration) {
    let (mut publisher, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    let base = session_base(&context);
    let (mut client, mut upstream) = (client, FakeStream::sending(&[first]));
    client.incoming.push_back(requests.to_vec());
    let (stopped, took) = {
        let mut pump = Pump::new(&mut client, &mut upstream, &context, &target, Vec::new());
        let waker = Waker::noop();
        while pump.upstream.written.is_empty()
            || (pump.upstream.has_unread() && pump.replies.is_clear())
        {
            let polled = buffer::with_scratch(|scratch| {
                pump.poll(&mut Context::from_waker(waker), waker, scratch)
            });
            assert_eq!(polled, Poll::Pending);
        }
        pump.upstream.incoming.extend(later.iter().map(|word| word.to_vec()));
        pump.client.incoming.push_back(b"SET late v\r\n".to_vec());
        move_on(&mut publisher);
        let begin = Instant::now();
        (pump.run(&base).await, begin.elapsed())
    };
    assert_eq!(upstream.written, requests, "bytes were sent to a superseded master");
    (stopped, client, upstream, took)
}

fn move_on(publisher: &mut TargetWriter) {
    publisher.commit(destination("127.0.0.1:2".parse().unwrap()));
}

fn fast_client() -> FakeStream {
    FakeStream::sending(&[])
}

#[tokio::test]
async fn delivers_the_rest_of_a_large_reply_at_the_fence() {
    let whole = bulk(&vec![b'x'; 5 * MIB]);
    let (first, later) = whole.split_at(MIB);
    let later: Vec<&[u8]> = later.chunks(60_000).collect();
    let (stopped, client, _, _) = fenced(b"GET k\r\n", first, &later, fast_client()).await;
    assert_eq!(
        (stopped.stop.reason(), client.written.len(), stopped.undelivered.len()),
        (EndReason::Fenced, whole.len(), 0)
    );
    assert!(client.written == whole);
    // No further reply is owed, so the session can continue on the next master.
    assert!(stopped.left.is_some());
}

#[tokio::test]
async fn drops_the_reply_after_the_one_under_way() {
    let whole = bulk(&vec![b'x'; MIB]);
    let (first, later) = whole.split_at(100);
    let (body, tail) = later.split_at(MIB - 1000);
    let tail = [tail, b"+OK\r\n"].concat();
    let (stopped, client, ..) =
        fenced(b"GET k\r\nSET k v\r\n", first, &[body, &tail, b"+OK\r\n"], fast_client()).await;
    let received = [client.written, stopped.undelivered].concat();
    assert!(received == whole, "{} of {} bytes", received.len(), whole.len());
    assert!(stopped.left.is_none(), "carried with a request in flight");
}

/// In RESP3, what follows a dropped reply may begin like a push message: the confirmation of a
/// later subscription, or the rest of a value.
#[tokio::test]
async fn delivers_nothing_after_a_dropped_reply() {
    const HELLO: &[u8] = b"%1\r\n+proto\r\n:3\r\n";
    const CONFIRMATION: &[u8] = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
    let requests = b"HELLO 3\r\nGET k\r\nSUBSCRIBE c\r\n";
    let dropped: [&[&[u8]]; 2] =
        [&[b"$1\r\nv\r\n", CONFIRMATION], &[b"$9\r\n<p", b">1\r\n+x\r\n", CONFIRMATION]];
    for later in dropped {
        let (stopped, client, ..) = fenced(requests, HELLO, later, fast_client()).await;
        assert_eq!(
            (
                stopped.stop.reason(),
                String::from_utf8_lossy(&client.written),
                stopped.undelivered.len()
            ),
            (EndReason::Fenced, String::from_utf8_lossy(HELLO), 0)
        );
        assert!(stopped.left.is_none(), "carried with a request in flight");
    }
}

#[tokio::test]
async fn waits_a_bounded_time_for_the_rest_of_a_reply() {
    let (stopped, client, _, took) = fenced(b"GET k\r\n", b"$10\r\nabc", &[], fast_client()).await;
    assert_eq!(
        (stopped.stop.reason(), client.written.as_slice()),
        (EndReason::Fenced, &b"$10\r\nabc"[..])
    );
    assert!(took >= Duration::from_millis(900) && took < SOON, "{took:?}");
}

#[tokio::test]
async fn waits_for_no_reply_that_has_not_begun() {
    let (mut publisher, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    let base = session_base(&context);
    let (mut client, mut upstream) =
        (FakeStream::sending(&[b"SET k v\r\n"]), FakeStream::sending(&[]));
    let pump = Pump::new(&mut client, &mut upstream, &context, &target, Vec::new());
    let mut running = std::pin::pin!(pump.run(&base));
    let mut poll = async || poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx))).await;
    assert!(poll().await.is_pending());
    move_on(&mut publisher);
    // One poll notices the fence, and the next one comes after a round of the event loop.
    assert!(poll().await.is_pending());
    let Poll::Ready(stopped) = poll().await else { panic!("it waits for a reply") };
    assert_eq!(stopped.stop.reason(), EndReason::Fenced);
}

#[tokio::test]
async fn gives_up_on_a_client_that_takes_nothing() {
    let whole = bulk(&vec![b'x'; MIB]);
    let (first, later) = whole.split_at(100);
    let (stopped, client, upstream, took) = fenced(
        b"GET k\r\n",
        first,
        &[later],
        FakeStream { capacity: 1000, ..FakeStream::default() },
    )
    .await;
    assert_eq!((stopped.stop.reason(), client.written.len()), (EndReason::Fenced, 1000));
    // No more than one read is ever kept for it.
    assert!(!stopped.undelivered.is_empty() && !upstream.incoming.is_empty());
    assert!(took < SOON);
}

/// Reads to the end and counts, so that the fence can be raised in the middle.
fn read_in_background(
    mut client: TcpStream,
) -> (thread::JoinHandle<Vec<u8>>, std::sync::mpsc::Receiver<usize>) {
    let (sender, progress) = std::sync::mpsc::channel();
    let reading = thread::spawn(move || {
        let (mut all, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            match client.read(&mut piece) {
                Ok(0) | Err(_) => return all,
                Ok(n) => all.extend_from_slice(&piece[..n]),
            }
            let _unheard = sender.send(all.len());
        }
    });
    (reading, progress)
}

#[test]
fn finishes_a_large_reply_across_a_planned_switch() {
    let backend = Backend::new();
    let mut proxy = TestProxy::new(Options { sessions: Sessions::Close, ..Options::default() });
    proxy.commit(backend.addr());
    let (mut client, mut upstream) = session(&proxy, &backend);
    client.write_all(b"GET k\r\nSET k v\r\n").unwrap();
    expect(&mut upstream, b"GET k\r\nSET k v\r\n");
    let whole = bulk(&Dice(5).bytes(5 * MIB));
    let (reading, progress) = read_in_background(client.try_clone().unwrap());
    let mut writer = upstream.try_clone().unwrap();
    let (first, last) = whole.split_at(2 * MIB);
    writer.write_all(first).unwrap();
    while progress.recv_timeout(SOON).unwrap() < MIB {}
    // The rest leaves the master after the promotion is known, and after the commit.
    proxy.publisher.discard_replies();
    let (middle, last) = last.split_at(MIB);
    writer.write_all(middle).unwrap();
    proxy.commit(Backend::new().addr());
    client.write_all(b"SET late v\r\n").unwrap();
    writer.write_all(&[last, b"+OK\r\n"].concat()).unwrap();
    let back = reading.join().unwrap();
    assert!(back == whole, "{} of {} bytes", back.len(), whole.len());
    proxy.wait_for_end(EndReason::Fenced);
    let mut late = Vec::new();
    // The connection is reset.
    drop(upstream.read_to_end(&mut late));
    assert!(late.is_empty(), "a superseded master was sent {late:?}");
}

#[test]
fn delivers_whole_replies_of_a_fenced_replica() {
    let options = Options { sessions: Sessions::Close, ..Options::default() };
    let (proxy, mut writer) = TestProxy::for_readers(EmptyPool::Reject, options);
    let replica = Backend::new();
    writer.publish(vec![destination(replica.addr())]);
    let (mut client, mut upstream) = session(&proxy, &replica);
    client.write_all(&b"GET k\r\n".repeat(3)).unwrap();
    expect(&mut upstream, &b"GET k\r\n".repeat(3));
    let whole = [bulk(&Dice(6).bytes(MIB)), bulk(&Dice(7).bytes(2 * MIB)), bulk(b"v")].concat();
    let (first, last) = whole.split_at(MIB / 2);
    upstream.write_all(first).unwrap();
    let mut back = vec![0; first.len()];
    client.read_exact(&mut back).unwrap();
    writer.fence(replica.addr());
    upstream.write_all(last).unwrap();
    back.append(&mut rest(&mut client));
    // All of the first reply; of the next ones what was readable at that moment.
    let least = bulk(&vec![0; MIB]).len();
    assert!(
        back.len() >= least && whole.starts_with(&back),
        "{} of {} bytes",
        back.len(),
        whole.len()
    );
    proxy.wait_for_end(EndReason::Fenced);
}
