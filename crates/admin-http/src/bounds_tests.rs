//! The server with clients that are slow, numerous, silent or malformed, and its shutdown.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::testing::{
    FakeReporter, TEST_TIMEOUT, ask, connect, fake_reporter, get, loopback, receive, serve, stop,
    until_closed, wait_for,
};
use crate::{Handle, Method, Reply, Request, Server, ServerSettings, Verdict};

#[test]
fn limits_body_and_header_size() {
    let settings = ServerSettings { max_body_bytes: 1000, ..ServerSettings::default() };
    let handle = serve(settings, fake_reporter());
    let mut stream = connect(&handle);
    let body = "b".repeat(1000);
    let fits = format!("GET /alive HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{body}");
    assert_eq!(ask(&mut stream, &fits).status, 200);
    let chunked =
        "GET /alive HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    assert_eq!(ask(&mut stream, chunked).status, 200);
    let response =
        ask(&mut stream, "GET /alive HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n");
    assert_eq!((response.status, response.header("connection")), (413, Some("close")));
    until_closed(&mut stream);
    let mut stream = connect(&handle);
    let endless = format!("GET /alive HTTP/1.1\r\nHost: a\r\nX: {}", "y".repeat(20_000));
    assert_eq!(ask(&mut stream, &endless).status, 431);
    until_closed(&mut stream);
    assert_eq!(get(&handle, "/alive").status, 200);
}

#[test]
fn rejects_garbage_without_affecting_other_clients() {
    let handle = serve(ServerSettings::default(), fake_reporter());
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..],
        b"*1\r\n$4\r\nPING\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
    ] {
        let mut stream = connect(&handle);
        stream.write_all(garbage).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        until_closed(&mut stream);
        assert_eq!(get(&handle, "/alive").status, 200);
    }
    assert_eq!(handle.stats.counts().timed_out, 0);
}

#[test]
fn closes_slow_header_at_header_timeout() {
    let settings =
        ServerSettings { header_timeout: Duration::from_millis(300), ..ServerSettings::default() };
    let handle = serve(settings, fake_reporter());
    let begin = Instant::now();
    let mut stream = connect(&handle);
    let mut pieces = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let (_keep, never) = std::sync::mpsc::channel::<()>();
        for _ in 0..1000 {
            if pieces.write_all(b"G").is_err() {
                return;
            }
            let _ = never.recv_timeout(Duration::from_millis(20));
        }
    });
    let mut silent = connect(&handle);
    until_closed(&mut stream);
    until_closed(&mut silent);
    assert!(
        (Duration::from_millis(300)..Duration::from_secs(10)).contains(&begin.elapsed()),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(handle.stats.counts().timed_out, 2);
    sender.join().unwrap();
}

#[test]
fn closes_idle_connection_at_idle_timeout() {
    let settings =
        ServerSettings { idle_timeout: Duration::from_millis(200), ..ServerSettings::default() };
    let handle = serve(settings, fake_reporter());
    let mut stream = connect(&handle);
    let begin = Instant::now();
    assert_eq!(ask(&mut stream, "GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    until_closed(&mut stream);
    assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
    assert_eq!(handle.stats.counts().timed_out, 1);
}

#[test]
fn closes_client_that_does_not_read_at_timeout() {
    let settings =
        ServerSettings { request_timeout: Duration::from_millis(300), ..ServerSettings::default() };
    let reporter = Arc::new(FakeReporter { verdict: Verdict::yes(), metrics: 64 << 20 });
    let handle = serve(settings, reporter);
    let mut stream = connect(&handle);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    wait_for("the timeout", || handle.stats.counts().timed_out == 1);
    wait_for("its slot to be released", || handle.stats.counts().open == 0);
    until_closed(&mut stream);
}

#[test]
fn answers_probe_despite_too_many_connections() {
    let settings = ServerSettings { max_connections: 8, ..ServerSettings::default() };
    let handle = serve(settings, fake_reporter());
    let mut kept_alive = connect(&handle);
    assert_eq!(ask(&mut kept_alive, "GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    let mut clients = Vec::new();
    for number in 0..200 {
        let mut stream = connect(&handle);
        if number % 2 == 0 {
            // A connection that was already evicted may refuse it.
            let _ = stream.write_all(b"GET /al");
        }
        clients.push(stream);
        if number % 20 == 0 {
            assert_eq!(get(&handle, "/alive").status, 200);
        }
    }
    assert_eq!(get(&handle, "/alive").status, 200);
    // The oldest connections were evicted first.
    until_closed(&mut kept_alive);
    until_closed(&mut clients[0]);
    let counts = handle.stats.counts();
    assert!(counts.open <= 8, "{counts:?}");
    assert!(counts.evicted >= 190 && counts.refused == 0, "{counts:?}");
}

#[test]
fn answers_probe_despite_clients_that_do_not_read() {
    let settings = ServerSettings { max_connections: 4, ..ServerSettings::default() };
    let reporter = Arc::new(FakeReporter { verdict: Verdict::yes(), metrics: 16 << 20 });
    let handle = serve(settings, reporter);
    let mut clients = Vec::new();
    for number in 1..=4 {
        let mut stream = connect(&handle);
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        clients.push(stream);
        wait_for("the request", || handle.stats.counts().requests == number);
    }
    assert_eq!(get(&handle, "/alive").status, 200);
    assert_eq!(handle.stats.counts().evicted, 1);
}

#[test]
fn closes_only_one_connection_on_reporter_panic() {
    let verdict = Verdict::unless(vec!["unhealthy".to_owned()]);
    let reporter = Arc::new(FakeReporter { verdict, metrics: 0 });
    let handle = serve(ServerSettings::default(), reporter);
    let mut stream = connect(&handle);
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until_closed(&mut stream);
    let response = get(&handle, "/alive");
    assert_eq!((response.status, response.body.as_str()), (503, "unhealthy\n"));
    assert!(stop(handle));
}

/// Hands out one of its receivers for each request.
struct LiveStreams(Mutex<Vec<mpsc::Receiver<Bytes>>>);

impl LiveStreams {
    fn answer(&self, request: &Request<'_>) -> Reply {
        let Some(permit) = request.reserve_stream() else { return Reply::no_stream() };
        match self.0.lock().unwrap().pop() {
            Some(events) => Reply::stream("text/event-stream", events, permit),
            None => Reply::text(503, "none left\n"),
        }
    }
}

fn live(count: usize, settings: ServerSettings) -> (Handle, Vec<mpsc::Sender<Bytes>>) {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(4)).unzip();
    let server = Server::bind(&loopback(), settings).unwrap();
    let streams = LiveStreams(Mutex::new(receivers));
    let handle = server
        .route("/live", Method::Get, move |request| Ok(streams.answer(request)))
        .serve(fake_reporter())
        .unwrap();
    (handle, senders)
}

fn read_until(stream: &mut TcpStream, what: &str) {
    let mut seen = String::new();
    let mut buffer = [0; 256];
    while !seen.contains(what) {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "closed after {seen:?}");
        seen.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
}

#[test]
fn streams_without_deadline_up_to_max_streams() {
    let settings = ServerSettings {
        max_streams: 1,
        request_timeout: Duration::from_millis(100),
        ..ServerSettings::default()
    };
    let (handle, senders) = live(2, settings);
    let mut stream = connect(&handle);
    let response = ask(&mut stream, "GET /live HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(
        (response.status, response.header("content-type")),
        (200, Some("text/event-stream"))
    );
    assert_eq!(get(&handle, "/live").status, 503);
    let begin = Instant::now();
    for number in 0..4 {
        // The receiver created last is handed out first.
        senders[1].blocking_send(Bytes::from(format!("data: {number}\n\n"))).unwrap();
        read_until(&mut stream, &format!("data: {number}\n\n"));
        wait_for("the request timeout to pass", || {
            begin.elapsed() > Duration::from_millis(60) * (number + 1)
        });
    }
    drop(senders);
    read_until(&mut stream, "0\r\n\r\n");
    // The response was chunked, and the connection can be used again.
    assert_eq!(ask(&mut stream, "GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    assert_eq!(handle.stats.counts().timed_out, 0);
}

#[test]
fn streams_on_until_the_stop_and_its_grace() {
    let settings =
        ServerSettings { stop_grace: Duration::from_millis(200), ..ServerSettings::default() };
    let (handle, senders) = live(1, settings);
    let address = handle.addresses[0];
    let mut idle = connect(&handle);
    assert_eq!(ask(&mut idle, "GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    let mut streaming = connect(&handle);
    assert_eq!(ask(&mut streaming, "GET /live HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    handle.leave();
    until_closed(&mut idle);
    wait_for("the listener to be closed", || TcpStream::connect(address).is_err());
    let begin = Instant::now();
    wait_for("longer than the grace", || begin.elapsed() > Duration::from_millis(400));
    senders[0].blocking_send(Bytes::from("data: result\n\n")).unwrap();
    read_until(&mut streaming, "data: result\n\n");
    let begin = Instant::now();
    stop(handle);
    assert!(begin.elapsed() < TEST_TIMEOUT / 2, "{:?}", begin.elapsed());
    until_closed(&mut streaming);
    assert!(senders[0].is_closed());
}

#[test]
fn stops_within_grace_if_client_does_not_read() {
    // No deadline but that of the stop applies during the wait.
    let settings = ServerSettings {
        stop_grace: Duration::from_millis(200),
        request_timeout: TEST_TIMEOUT * 2,
        ..ServerSettings::default()
    };
    let reporter = Arc::new(FakeReporter { verdict: Verdict::yes(), metrics: 64 << 20 });
    let handle = serve(settings, reporter);
    let mut stream = connect(&handle);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    wait_for("the request", || handle.stats.counts().requests == 1);
    let stats = handle.stats.clone();
    let begin = Instant::now();
    // Whether the thread needs another second to end depends on the machine.
    stop(handle);
    assert!(
        (Duration::from_millis(200)..TEST_TIMEOUT / 2).contains(&begin.elapsed()),
        "{:?}",
        begin.elapsed()
    );
    wait_for("its connection to be closed", || stats.counts().open == 0);
}

#[test]
fn stops_server_when_handle_is_dropped() {
    let handle = serve(ServerSettings::default(), fake_reporter());
    let address = handle.addresses[0];
    drop(handle);
    wait_for("the listener to be closed", || TcpStream::connect(address).is_err());
}

/// Reports, of which the first takes until it is told to end, and how many there had been at a
/// probe and at the request of an owner.
struct Reports {
    made: AtomicUsize,
    begun: Mutex<std::sync::mpsc::Receiver<()>>,
    at_probe: Mutex<Option<usize>>,
    at_owner: Mutex<Option<usize>>,
}

impl Reports {
    fn answer(&self, request: &Request<'_>) -> Reply {
        if request.path() == "/alive" {
            *self.at_probe.lock().unwrap() = Some(self.made.load(Relaxed));
        } else if request.origin.is_owner {
            *self.at_owner.lock().unwrap() = Some(self.made.load(Relaxed));
        } else if self.made.fetch_add(1, Relaxed) == 0 {
            let _ = self.begun.lock().unwrap().recv_timeout(TEST_TIMEOUT);
        }
        Reply::text(200, "ok\n")
    }
}

#[test]
fn answers_probes_before_reports_that_wait() {
    let settings = ServerSettings { max_connections: 32, ..ServerSettings::default() };
    let (end, begun) = std::sync::mpsc::channel();
    let (made, at_probe, at_owner) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
    let reports = Arc::new(Reports { made, begun: Mutex::new(begun), at_probe, at_owner });
    let name = format!("reports-that-wait-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let owners = UnixListener::bind_addr(&address).unwrap();
    let server = Server::bind(&loopback(), settings).unwrap();
    let server = server.unix_socket(owners, vec![rustix::process::getuid().as_raw()]).unwrap();
    let (at_probe, at_status) = (Arc::clone(&reports), Arc::clone(&reports));
    let server = server
        .route("/alive", Method::Get, move |request| Ok(at_probe.answer(request)))
        .route("/status", Method::Get, move |request| Ok(at_status.answer(request)));
    let handle = server.serve(fake_reporter()).unwrap();
    let asking: Vec<TcpStream> = (0..48)
        .map(|_| {
            let mut stream = connect(&handle);
            stream.write_all(b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    wait_for("the first report", || reports.made.load(Relaxed) == 1);
    let mut probe = connect(&handle);
    probe.write_all(b"GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut owner = UnixStream::connect_addr(&address).unwrap();
    owner.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    owner.write_all(b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    end.send(()).unwrap();
    assert_eq!(receive(&mut probe, false).status, 200);
    assert!(owner.read(&mut [0; 64]).unwrap() > 0);
    for (who, made) in [("a probe", &reports.at_probe), ("an owner", &reports.at_owner)] {
        let made = made.lock().unwrap().unwrap();
        assert!(made <= 4, "{made} reports were made before {who}");
    }
    wait_for("the other reports", || reports.made.load(Relaxed) >= 24);
    drop(asking);
}
