//! What is listed of sessions in each state, in what slices, and how one is ended.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use target::EmptyPool;

use crate::testing::{Backend, SOON, TestProxy, closed_port, expect, rest, session};
use crate::{
    EndReason, KillError, ListedState, NotCarried, Options, SessionId, SessionRow, WaitsFor,
};

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(SOON, future).await.unwrap() })
}

/// All sessions of all workers, in batches of `most`.
fn list(proxy: &TestProxy, most: usize) -> Vec<SessionRow> {
    let sessions = &proxy.running().sessions;
    let mut rows = Vec::new();
    for worker in 0..sessions.workers() {
        let mut from = Some(0);
        while let Some(slot) = from {
            let (batch, next) = block_on(sessions.list(worker, slot, most)).unwrap();
            assert!(batch.len() <= most, "{}", batch.len());
            rows.extend(batch);
            from = next;
        }
    }
    rows
}

/// The only session, once it satisfies `condition`.
#[track_caller]
pub(crate) fn wait_for(
    proxy: &TestProxy,
    what: &str,
    condition: impl Fn(&SessionRow) -> bool,
) -> SessionRow {
    let begin = Instant::now();
    loop {
        let rows = list(proxy, 100);
        if let [row] = rows.as_slice()
            && condition(row)
        {
            return row.clone();
        }
        assert!(begin.elapsed() < SOON, "not in time: {what}; {rows:?}");
        std::thread::yield_now();
    }
}

/// Sends a request, and plays the server's reply.
#[track_caller]
fn say(client: &mut TcpStream, upstream: &mut TcpStream, request: &[u8], reply: &[u8]) {
    client.write_all(request).unwrap();
    expect(upstream, request);
    upstream.write_all(reply).unwrap();
    expect(client, reply);
}

#[test]
fn lists_a_session_with_what_its_client_said() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    say(&mut client, &mut upstream, b"AUTH alice hunter2\r\n", b"+OK\r\n");
    say(&mut client, &mut upstream, b"CLIENT SETNAME shop\r\n", b"+OK\r\n");
    say(&mut client, &mut upstream, b"SELECT 3\r\n", b"+OK\r\n");
    let row = wait_for(&proxy, "an idle session", |row| row.state == ListedState::Idle);
    assert_eq!(row.client_name(), client.local_addr().unwrap().to_string());
    assert_eq!(row.listener.as_ref().unwrap().tcp(), Some(proxy.addr()));
    assert_eq!(row.upstream, Some((backend.addr(), 1)));
    assert_eq!(
        (row.said.user.as_deref(), row.said.name.as_deref(), row.said.database),
        (Some("alice"), Some("shop"), Some(3))
    );
    assert_eq!((row.said.protocol, row.commands, row.in_flight), (Some(2), 4, Some(0)));
    assert_eq!((row.bytes, row.not_carried), ((6 + 20 + 21 + 10, 7 + 3 * 5), None));
    assert_eq!(row.waits_for, WaitsFor::Request);
    let idle = row.idle.unwrap();
    assert!(idle <= row.age && row.age < SOON, "{row:?}");
    assert!(!format!("{row:?}").contains("hunter2"));
    // Silence is measured, and ends with the next byte.
    wait_for(&proxy, "silence", |row| row.idle.unwrap() >= Duration::from_millis(300));
    say(&mut client, &mut upstream, b"PING\r\n", b"+PONG\r\n");
    let after = wait_for(&proxy, "the next request", |row| row.commands == 5);
    assert!(after.id == row.id && after.idle.unwrap() < after.age, "{after:?}");
}

#[test]
fn lists_what_pins_a_session_and_what_it_waits_for() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    let expected = |state, pin| {
        move |row: &SessionRow| {
            (row.state, row.not_carried) == (state, Some(NotCarried::Pinned(pin)))
        }
    };
    say(&mut client, &mut upstream, b"WATCH k\r\n", b"+OK\r\n");
    wait_for(&proxy, "WATCH", expected(ListedState::Pinned, resp::Pin::Watch));
    say(&mut client, &mut upstream, b"MULTI\r\n", b"+OK\r\n");
    wait_for(&proxy, "MULTI", expected(ListedState::Pinned, resp::Pin::Transaction));
    say(&mut client, &mut upstream, b"DISCARD\r\n", b"+OK\r\n");
    client.write_all(b"BLPOP k 0\r\n").unwrap();
    let row = wait_for(&proxy, "BLPOP", expected(ListedState::Blocked, resp::Pin::Blocking));
    assert_eq!((row.in_flight, row.waits_for), (Some(1), WaitsFor::Reply));
    expect(&mut upstream, b"BLPOP k 0\r\n");
    upstream.write_all(b"*-1\r\n").unwrap();
    expect(&mut client, b"*-1\r\n");
    client.write_all(b"GET k\r\nGET k\r\n").unwrap();
    let row = wait_for(&proxy, "GET", |row| row.in_flight == Some(2));
    assert_eq!((row.state, row.not_carried), (ListedState::InFlight, Some(NotCarried::InFlight)));
    expect(&mut upstream, b"GET k\r\nGET k\r\n");
    upstream.write_all(b"$-1\r\n$-1\r\n").unwrap();
    expect(&mut client, b"$-1\r\n$-1\r\n");
    say(
        &mut client,
        &mut upstream,
        b"SUBSCRIBE c\r\n",
        b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
    );
    wait_for(&proxy, "SUBSCRIBE", expected(ListedState::Subscribed, resp::Pin::Subscribed));
    drop((client, upstream));
    proxy.wait_for("its end", |stats| stats.open() == 0);

    let (mut client, mut upstream) = session(&proxy, &backend);
    say(&mut client, &mut upstream, b"MONITOR\r\n", b"+OK\r\n");
    let row = wait_for(&proxy, "MONITOR", expected(ListedState::Opaque, resp::Pin::Monitor));
    assert_eq!((row.in_flight, row.said.user), (None, None));
    drop((client, upstream));
    proxy.wait_for("its end", |stats| stats.open() == 0);

    let (mut client, mut upstream) = session(&proxy, &backend);
    say(&mut client, &mut upstream, b"FETCH i\r\n", b"*0\r\n");
    let unknown = expected(ListedState::Pinned, resp::Pin::UnknownCommand);
    let row = wait_for(&proxy, "FETCH", unknown);
    assert_eq!(row.unknown_command.as_deref(), Some("FETCH"));
}

#[test]
fn keeps_the_id_of_a_session_that_is_carried() {
    let (backend, next) = (Backend::new(), Backend::new());
    let mut proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    say(&mut client, &mut upstream, b"CLIENT SETNAME shop\r\n", b"+OK\r\n");
    let before = wait_for(&proxy, "an idle session", |row| row.state == ListedState::Idle);
    proxy.commit(next.addr());
    let mut upstream = next.accept();
    let moving = wait_for(&proxy, "a moving session", |row| row.state == ListedState::Moving);
    assert_eq!((moving.id, moving.waits_for), (before.id, WaitsFor::Connection));
    assert_eq!((moving.commands, moving.bytes), (before.commands, before.bytes));
    let mut request = [0; 1024];
    let mut read = 0;
    while !request[..read].ends_with(b"PING\r\n") {
        read += upstream.read(&mut request[read..]).unwrap();
    }
    upstream.write_all(b"+OK\r\n+PONG\r\n").unwrap();
    let after = wait_for(&proxy, "a carried session", |row| row.state == ListedState::Idle);
    assert_eq!((after.id, after.said.name), (before.id, Some("shop".into())));
    assert_eq!(after.upstream, Some((next.addr(), 2)));
    assert_eq!((after.commands, after.bytes), (before.commands, before.bytes));
}

#[test]
fn lists_every_session_once_in_batches() {
    let backend = Backend::new();
    let mut proxy =
        TestProxy::with(3, 1000, Options { connect_timeout: SOON, ..Options::default() });
    proxy.commit(backend.addr());
    // More than one slice of each worker, and a free slot among them.
    let mut sessions: Vec<_> = (0..150).map(|_| session(&proxy, &backend)).collect();
    drop(sessions.swap_remove(70));
    proxy.wait_for("the end of one", |stats| stats.open() == 149);
    for most in [1, 7, 32, 33, 1000] {
        let rows = list(&proxy, most);
        let ids: BTreeSet<SessionId> = rows.iter().map(|row| row.id).collect();
        let clients: BTreeSet<String> = rows.iter().map(SessionRow::client_name).collect();
        assert_eq!((rows.len(), ids.len(), clients.len()), (149, 149, 149), "{most}");
        let workers: BTreeSet<u32> = rows.iter().map(|row| row.id.worker).collect();
        assert_eq!(workers.len(), 3);
        assert!(rows.iter().all(|row| row.state == ListedState::Idle && row.commands == 1));
    }
    let sessions = &proxy.running().sessions;
    let (rows, next) = block_on(sessions.list(0, u32::MAX, 10)).unwrap();
    assert_eq!((rows.len(), next), (0, None));
    assert_eq!(block_on(sessions.list(3, 0, 10)), Err(crate::NoAnswer::Ended));
}

#[test]
fn disturbs_no_session_that_it_lists() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut client, mut upstream) = session(&proxy, &backend);
    let sessions = proxy.running().sessions.clone();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(block_on(sessions.list(0, 0, 10)).unwrap().0.len(), 1);
            }
        });
        for number in 0..2000 {
            let request = format!("ECHO {number}\r\n");
            let reply = format!("+{number}\r\n");
            say(&mut client, &mut upstream, request.as_bytes(), reply.as_bytes());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let row = wait_for(&proxy, "all commands", |row| row.commands == 2001);
    assert_eq!(row.state, ListedState::Idle);
}

#[test]
fn kills_one_session_and_no_other() {
    let backend = Backend::new();
    let proxy = TestProxy::with_target(&backend);
    let (mut one, _one) = session(&proxy, &backend);
    let (mut other, mut other_upstream) = session(&proxy, &backend);
    let sessions = &proxy.running().sessions;
    let row = |client: &TcpStream| {
        let addr = client.local_addr().unwrap().to_string();
        list(&proxy, 100).into_iter().find(|row| row.client_name() == addr).unwrap()
    };
    let id = row(&one).id;
    for wrong in [
        SessionId { process: id.process.wrapping_add(1), ..id },
        SessionId { worker: 9, ..id },
        SessionId { slot: 10_000, ..id },
        SessionId { generation: id.generation + 1, ..id },
        // The visitor's own key.
        SessionId { slot: u32::MAX, generation: u32::MAX, ..id },
        // The first slots belong to essential tasks, which are no sessions.
        SessionId { slot: 0, generation: 0, ..id },
    ] {
        let refused = block_on(sessions.kill(wrong)).unwrap_err();
        let expected = match wrong.process == id.process {
            true => KillError::NoSession,
            false => KillError::OtherProcess,
        };
        assert_eq!(refused, expected, "{wrong}");
    }
    assert_eq!(block_on(sessions.kill(id)), Ok(()));
    assert_eq!(rest(&mut one), b"");
    proxy.wait_for_end(EndReason::Killed);
    assert_eq!(block_on(sessions.kill(id)), Err(KillError::NoSession));
    say(&mut other, &mut other_upstream, b"PING\r\n", b"+PONG\r\n");
}

#[test]
fn kills_sessions_in_flight_held_and_connecting() {
    let backend = Backend::new();
    let mut proxy = TestProxy::with_target(&backend);
    let kill = |proxy: &TestProxy, state| {
        let row = wait_for(proxy, "the state", |row| row.state == state);
        assert_eq!(block_on(proxy.running().sessions.kill(row.id)), Ok(()));
        row
    };
    // A request is in flight, and its client does not read the replies.
    let (mut client, _upstream) = session(&proxy, &backend);
    client.write_all(b"BLPOP k 0\r\n").unwrap();
    kill(&proxy, ListedState::Blocked);
    assert_eq!(rest(&mut client), b"");
    // There is no target.
    proxy.publisher.clear();
    let mut client = proxy.client();
    client.write_all(b"GET k\r\n").unwrap();
    let row = kill(&proxy, ListedState::Held);
    assert_eq!((row.waits_for, row.upstream), (WaitsFor::Target, None));
    assert_eq!(rest(&mut client), b"");
    // Its target refuses connections.
    let (_reserved, refusing) = closed_port();
    proxy.commit(refusing);
    let mut client = proxy.client();
    let row = kill(&proxy, ListedState::Connecting);
    assert_eq!(row.waits_for, WaitsFor::Connection);
    assert_eq!(rest(&mut client), b"");
    let stats = proxy.wait_for("three ends", |stats| stats.closed_in_all() == 3);
    assert_eq!((stats.closed_for(EndReason::Killed), stats.held), (3, 0));
}

#[test]
fn kills_a_session_between_two_targets() {
    let backend = Backend::new();
    let mut proxy = TestProxy::with_target(&backend);
    let (mut client, _upstream) = session(&proxy, &backend);
    proxy.publisher.clear();
    let row = wait_for(&proxy, "a held session", |row| row.state == ListedState::Held);
    assert_eq!(block_on(proxy.running().sessions.kill(row.id)), Ok(()));
    assert_eq!(rest(&mut client), b"");
    let stats = proxy.wait_for("its end", |stats| stats.closed_in_all() == 1);
    assert_eq!((stats.closed_for(EndReason::Killed), stats.held), (1, 0));
}

#[test]
fn lists_readers_with_their_replica() {
    let replica = Backend::new();
    let (proxy, mut pool) = TestProxy::for_readers(EmptyPool::Reject, Options::default());
    pool.publish(vec![crate::testing::destination(replica.addr())]);
    let (_client, _upstream) = session(&proxy, &replica);
    let row = wait_for(&proxy, "a reader", |row| row.state == ListedState::Idle);
    assert_eq!(row.upstream.unwrap().0, replica.addr());
}
