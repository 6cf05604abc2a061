//! Replies at the fence: what was under way arrives whole, what might acknowledge a lost write does
//! not, and nothing is waited for without a bound.

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
use crate::testing::{Backend, House, Puppet, SOON, context, destination, expect, rest, session};
use crate::{EndReason, Options, Sessions};

const MIB: usize = 1 << 20;

fn bulk(body: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat()
}

/// A session has sent `requests`, and `first` has come of their replies; then the fence falls, and
/// `later` comes, a read each.
async fn fenced(
    requests: &[u8],
    first: &[u8],
    later: &[&[u8]],
    client: Puppet,
) -> (Stopped, Puppet, Puppet, Duration) {
    let (mut points, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    let ticket = context.drain.ticket();
    let (mut client, mut upstream) = (client, Puppet::saying(&[first]));
    client.says.push_back(requests.to_vec());
    let (stopped, took) = {
        let mut pump = Pump::new((&mut client, &mut upstream), &context, &target, Vec::new());
        let waker = Waker::noop();
        while pump.upstream.heard.is_empty()
            || (pump.upstream.has_unread() && pump.replies.is_clear())
        {
            let polled = buffer::with_scratch(|scratch| {
                pump.poll(&mut Context::from_waker(waker), waker, scratch)
            });
            assert_eq!(polled, Poll::Pending);
        }
        pump.upstream.says.extend(later.iter().map(|word| word.to_vec()));
        pump.client.says.push_back(b"SET late v\r\n".to_vec());
        move_on(&mut points);
        let begin = Instant::now();
        (pump.run(&ticket).await, begin.elapsed())
    };
    assert_eq!(upstream.heard, requests, "something went to a superseded master");
    (stopped, client, upstream, took)
}

fn move_on(points: &mut TargetWriter) {
    points.commit(destination("127.0.0.1:2".parse().unwrap()));
}

fn willing() -> Puppet {
    Puppet::saying(&[])
}

#[tokio::test]
async fn delivers_the_rest_of_a_large_reply_at_the_fence() {
    let whole = bulk(&vec![b'x'; 5 * MIB]);
    let (first, later) = whole.split_at(MIB);
    let later: Vec<&[u8]> = later.chunks(60_000).collect();
    let (stopped, client, _, _) = fenced(b"GET k\r\n", first, &later, willing()).await;
    assert_eq!(
        (stopped.reason, client.heard.len(), stopped.undelivered.len()),
        (EndReason::Fenced, whole.len(), 0)
    );
    assert!(client.heard == whole);
    // It was owed nothing more, so it can move to the next master.
    assert!(stopped.after.is_some());
}

#[tokio::test]
async fn drops_the_reply_after_the_one_under_way() {
    let whole = bulk(&vec![b'x'; MIB]);
    let (first, later) = whole.split_at(100);
    let (body, tail) = later.split_at(MIB - 1000);
    let tail = [tail, b"+OK\r\n"].concat();
    let (stopped, client, ..) =
        fenced(b"GET k\r\nSET k v\r\n", first, &[body, &tail, b"+OK\r\n"], willing()).await;
    let heard = [client.heard, stopped.undelivered].concat();
    assert!(heard == whole, "{} of {} bytes", heard.len(), whole.len());
    assert!(stopped.after.is_none(), "carried over with a request in flight");
}

#[tokio::test]
async fn waits_a_bounded_time_for_the_rest_of_a_reply() {
    let (stopped, client, _, took) = fenced(b"GET k\r\n", b"$10\r\nabc", &[], willing()).await;
    assert_eq!((stopped.reason, client.heard.as_slice()), (EndReason::Fenced, &b"$10\r\nabc"[..]));
    assert!(took >= Duration::from_millis(900) && took < SOON, "{took:?}");
}

#[tokio::test]
async fn waits_for_no_reply_that_has_not_begun() {
    let (mut points, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    let ticket = context.drain.ticket();
    let (mut client, mut upstream) = (Puppet::saying(&[b"SET k v\r\n"]), Puppet::saying(&[]));
    let mut pump = Pump::new((&mut client, &mut upstream), &context, &target, Vec::new());
    let mut running = std::pin::pin!(pump.run(&ticket));
    let mut poll = async || poll_fn(|cx| Poll::Ready(running.as_mut().poll(cx))).await;
    assert!(poll().await.is_pending());
    move_on(&mut points);
    // One poll notices the fence, and the next one comes after a turn of the event loop.
    assert!(poll().await.is_pending());
    let Poll::Ready(stopped) = poll().await else { panic!("it waits") };
    assert_eq!(stopped.reason, EndReason::Fenced);
}

#[tokio::test]
async fn gives_up_on_a_client_that_takes_nothing() {
    let whole = bulk(&vec![b'x'; MIB]);
    let (first, later) = whole.split_at(100);
    let (stopped, client, upstream, took) =
        fenced(b"GET k\r\n", first, &[later], Puppet { takes: 1000, ..Puppet::default() }).await;
    assert_eq!((stopped.reason, client.heard.len()), (EndReason::Fenced, 1000));
    // No more than one read is ever kept for it.
    assert!(!stopped.undelivered.is_empty() && !upstream.says.is_empty());
    assert!(took < SOON);
}

/// Reads all there is and counts, so that the fence can fall in the middle.
fn read_on(
    mut client: TcpStream,
) -> (thread::JoinHandle<Vec<u8>>, std::sync::mpsc::Receiver<usize>) {
    let (said, heard) = std::sync::mpsc::channel();
    let reading = thread::spawn(move || {
        let (mut all, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            match client.read(&mut piece) {
                Ok(0) | Err(_) => return all,
                Ok(n) => all.extend_from_slice(&piece[..n]),
            }
            let _unheard = said.send(all.len());
        }
    });
    (reading, heard)
}

#[test]
fn finishes_a_large_reply_across_a_planned_switch() {
    let backend = Backend::new();
    let mut house = House::new(Options { sessions: Sessions::Close, ..Options::default() });
    house.commit(backend.addr());
    let (mut client, mut upstream) = session(&house, &backend);
    client.write_all(b"GET k\r\nSET k v\r\n").unwrap();
    expect(&mut upstream, b"GET k\r\nSET k v\r\n");
    let whole = bulk(&Dice(5).bytes(5 * MIB));
    let (reading, heard) = read_on(client.try_clone().unwrap());
    let mut writer = upstream.try_clone().unwrap();
    let (first, last) = whole.split_at(2 * MIB);
    writer.write_all(first).unwrap();
    while heard.recv_timeout(SOON).unwrap() < MIB {}
    // The rest leaves the master after the promotion is known, and after the commit.
    house.points.discard_replies();
    let (middle, last) = last.split_at(MIB);
    writer.write_all(middle).unwrap();
    house.commit(Backend::new().addr());
    client.write_all(b"SET late v\r\n").unwrap();
    writer.write_all(&[last, b"+OK\r\n"].concat()).unwrap();
    let back = reading.join().unwrap();
    assert!(back == whole, "{} of {} bytes", back.len(), whole.len());
    house.ended(EndReason::Fenced);
    let mut late = Vec::new();
    // The connection is broken off.
    drop(upstream.read_to_end(&mut late));
    assert!(late.is_empty(), "a superseded master was sent {late:?}");
}

#[test]
fn delivers_whole_replies_of_a_replica_when_it_is_barred() {
    let options = Options { sessions: Sessions::Close, ..Options::default() };
    let (house, mut writer) = House::reading(EmptyPool::Reject, options);
    let replica = Backend::new();
    writer.publish(vec![destination(replica.addr())]);
    let (mut client, mut upstream) = session(&house, &replica);
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
    // All of the first; of the others, what was readable then, which depends on the moment.
    let least = bulk(&vec![0; MIB]).len();
    assert!(
        back.len() >= least && whole.starts_with(&back),
        "{} of {} bytes",
        back.len(),
        whole.len()
    );
    house.ended(EndReason::Fenced);
}
