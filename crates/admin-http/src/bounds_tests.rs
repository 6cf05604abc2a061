//! The server against clients that are slow, many, silent or wrong, and its end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::testing::{
    Fake, PATIENCE, ask, connect, fake, get, loopback, serve, stop, until_closed, wait_for,
};
use crate::{Handle, Handler, Reply, Request, Server, Settings, Verdict};

#[test]
fn a_body_is_ignored_up_to_its_limit_and_a_header_has_one_too() {
    let settings = Settings { max_body_bytes: 1000, ..Settings::default() };
    let handle = serve(settings, fake());
    let mut stream = connect(&handle);
    let body = "b".repeat(1000);
    let fits = format!("GET /alive HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{body}");
    assert_eq!(ask(&mut stream, &fits).status, 200);
    let chunked =
        "GET /alive HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    assert_eq!(ask(&mut stream, chunked).status, 200);
    let got = ask(&mut stream, "GET /alive HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n");
    assert_eq!((got.status, got.header("connection")), (413, Some("close")));
    until_closed(&mut stream);
    let mut stream = connect(&handle);
    let endless = format!("GET /alive HTTP/1.1\r\nHost: a\r\nX: {}", "y".repeat(20_000));
    assert_eq!(ask(&mut stream, &endless).status, 431);
    until_closed(&mut stream);
    assert_eq!(get(&handle, "/alive").status, 200);
}

#[test]
fn garbage_is_refused_and_harms_nobody_else() {
    let handle = serve(Settings::default(), fake());
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
    assert_eq!(handle.stats().counted().timed_out, 0);
}

#[test]
fn a_header_in_drops_is_given_up_in_time() {
    let settings = Settings { header_timeout: Duration::from_millis(300), ..Settings::default() };
    let handle = serve(settings, fake());
    let begin = Instant::now();
    let mut stream = connect(&handle);
    let mut drops = stream.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        let (_keep, never) = std::sync::mpsc::channel::<()>();
        for _ in 0..1000 {
            if drops.write_all(b"G").is_err() {
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
    assert_eq!(handle.stats().counted().timed_out, 2);
    dripping.join().unwrap();
}

#[test]
fn an_idle_connection_is_closed_after_its_time() {
    let settings = Settings { idle_timeout: Duration::from_millis(200), ..Settings::default() };
    let handle = serve(settings, fake());
    let mut stream = connect(&handle);
    let begin = Instant::now();
    assert_eq!(ask(&mut stream, "GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    until_closed(&mut stream);
    assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
    assert_eq!(handle.stats().counted().timed_out, 1);
}

#[test]
fn a_client_that_does_not_read_is_given_up_in_time() {
    let settings = Settings { request_timeout: Duration::from_millis(300), ..Settings::default() };
    let reporter = Arc::new(Fake { verdict: Verdict::yes(), metrics: 64 << 20 });
    let handle = serve(settings, reporter);
    let mut stream = connect(&handle);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    wait_for("the timeout", || handle.stats().counted().timed_out == 1);
    wait_for("its place to be free", || handle.stats().counted().open == 0);
    until_closed(&mut stream);
}

#[test]
fn a_crowd_beyond_the_bound_leaves_room_for_a_probe() {
    let settings = Settings { max_connections: 8, ..Settings::default() };
    let handle = serve(settings, fake());
    let mut kept_alive = connect(&handle);
    assert_eq!(ask(&mut kept_alive, "GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    let mut crowd = Vec::new();
    for number in 0..200 {
        let mut stream = connect(&handle);
        if number % 2 == 0 {
            // One that was evicted already may refuse it.
            let _ = stream.write_all(b"GET /al");
        }
        crowd.push(stream);
        if number % 20 == 0 {
            assert_eq!(get(&handle, "/alive").status, 200);
        }
    }
    assert_eq!(get(&handle, "/alive").status, 200);
    // The first to come were the first to go.
    until_closed(&mut kept_alive);
    until_closed(&mut crowd[0]);
    let counted = handle.stats().counted();
    assert!(counted.open <= 8, "{counted:?}");
    assert!(counted.evicted >= 190 && counted.refused == 0, "{counted:?}");
}

#[test]
fn a_crowd_that_does_not_read_leaves_room_too() {
    let settings = Settings { max_connections: 4, ..Settings::default() };
    let reporter = Arc::new(Fake { verdict: Verdict::yes(), metrics: 16 << 20 });
    let handle = serve(settings, reporter);
    let mut crowd = Vec::new();
    for number in 1..=4 {
        let mut stream = connect(&handle);
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        crowd.push(stream);
        wait_for("the request", || handle.stats().counted().requests == number);
    }
    assert_eq!(get(&handle, "/alive").status, 200);
    assert_eq!(handle.stats().counted().evicted, 1);
}

#[test]
fn a_reporter_that_panics_costs_one_connection() {
    let reporter = Arc::new(Fake { verdict: Verdict::no("unwell"), metrics: 0 });
    let handle = serve(Settings::default(), reporter);
    let mut stream = connect(&handle);
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until_closed(&mut stream);
    let got = get(&handle, "/alive");
    assert_eq!((got.status, got.body.as_str()), (503, "unwell\n"));
    assert!(stop(handle));
}

/// Hands out the receiving ends it was given, one for each request.
struct Live(Mutex<Vec<mpsc::Receiver<Bytes>>>);

impl Handler for Live {
    fn answer(&self, request: &Request<'_>) -> Reply {
        let Some(permit) = request.reserve_stream() else { return Reply::no_stream() };
        match self.0.lock().unwrap().pop() {
            Some(events) => Reply::stream("text/event-stream", events, permit),
            None => Reply::text(503, "none left\n"),
        }
    }
}

fn live(count: usize, settings: Settings) -> (Handle, Vec<mpsc::Sender<Bytes>>) {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(4)).unzip();
    let server = Server::bind(&loopback(), settings).unwrap();
    let handle =
        server.route("/live", Arc::new(Live(Mutex::new(receivers)))).serve(fake()).unwrap();
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
fn a_stream_is_live_has_no_deadline_and_is_one_of_few() {
    let settings = Settings {
        max_streams: 1,
        request_timeout: Duration::from_millis(100),
        ..Settings::default()
    };
    let (handle, senders) = live(2, settings);
    let mut stream = connect(&handle);
    let got = ask(&mut stream, "GET /live HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((got.status, got.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(get(&handle, "/live").status, 503);
    let begin = Instant::now();
    for number in 0..4 {
        // The receiver handed out first is the last one made.
        senders[1].blocking_send(Bytes::from(format!("data: {number}\n\n"))).unwrap();
        read_until(&mut stream, &format!("data: {number}\n\n"));
        wait_for("more than the request's time", || {
            begin.elapsed() > Duration::from_millis(60) * (number + 1)
        });
    }
    drop(senders);
    read_until(&mut stream, "0\r\n\r\n");
    // It was a chunked answer, and the connection is good for another one.
    assert_eq!(ask(&mut stream, "GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    assert_eq!(handle.stats().counted().timed_out, 0);
}

#[test]
fn a_stop_is_prompt_with_idle_and_live_connections() {
    let settings = Settings { stop_grace: PATIENCE, ..Settings::default() };
    let (handle, senders) = live(1, settings);
    let address = handle.addresses()[0];
    let mut idle = connect(&handle);
    assert_eq!(ask(&mut idle, "GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    let mut streaming = connect(&handle);
    assert_eq!(ask(&mut streaming, "GET /live HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    let begin = Instant::now();
    assert!(stop(handle));
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    until_closed(&mut idle);
    until_closed(&mut streaming);
    assert!(TcpStream::connect(address).is_err());
    assert!(senders[0].is_closed());
}

#[test]
fn a_stop_is_bounded_with_a_client_that_does_not_read() {
    // No other time than that of the stop ends it while it is waited for.
    let settings = Settings {
        stop_grace: Duration::from_millis(200),
        request_timeout: PATIENCE * 2,
        ..Settings::default()
    };
    let reporter = Arc::new(Fake { verdict: Verdict::yes(), metrics: 64 << 20 });
    let handle = serve(settings, reporter);
    let mut stream = connect(&handle);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    wait_for("the request", || handle.stats().counted().requests == 1);
    let stats = handle.stats();
    let begin = Instant::now();
    // Whether the thread needs another second for its end is the machine's affair.
    stop(handle);
    assert!(
        (Duration::from_millis(200)..PATIENCE / 2).contains(&begin.elapsed()),
        "{:?}",
        begin.elapsed()
    );
    wait_for("its connection to be given up", || stats.counted().open == 0);
}

#[test]
fn dropping_the_handle_stops_the_server() {
    let handle = serve(Settings::default(), fake());
    let address = handle.addresses()[0];
    drop(handle);
    wait_for("the listener to be closed", || TcpStream::connect(address).is_err());
}
