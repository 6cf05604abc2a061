//! Commands are executed if and only if they are answered without an error.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::testing::{ask, connect, fake_reporter, loopback, wait_for};
use crate::{Method, Reply, Request, Server, ServerSettings};

const LIVE: &str = "GET /live HTTP/1.1\r\nHost: a\r\n\r\n";
const COMMAND: &str = "POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";

/// A stream that lasts until the test ends it.
struct SingleStream(Mutex<Option<mpsc::Receiver<Bytes>>>);

impl SingleStream {
    fn answer(&self, request: &Request<'_>) -> Reply {
        let events = self.0.lock().unwrap().take();
        match request.reserve_stream().zip(events) {
            Some((permit, events)) => Reply::stream("text/event-stream", events, permit),
            None => Reply::no_stream(),
        }
    }
}

/// Counts what it executes and answers with a stream.
struct Commands(AtomicUsize);

impl Commands {
    fn answer(&self, request: &Request<'_>) -> Reply {
        let Some(permit) = request.reserve_stream() else { return Reply::no_stream() };
        self.0.fetch_add(1, Ordering::SeqCst);
        Reply::stream("application/x-ndjson", mpsc::channel(1).1, permit)
    }
}

#[test]
fn executes_no_command_that_it_answers_with_503() {
    let (commands, (events, live)) = (Arc::new(Commands(AtomicUsize::new(0))), mpsc::channel(1));
    let (own, live) = (Arc::clone(&commands), SingleStream(Mutex::new(Some(live))));
    let settings = ServerSettings { max_streams: 1, ..ServerSettings::default() };
    let server = Server::bind(&loopback(), settings).unwrap();
    let server = server.route("/live", Method::Get, move |request| Ok(live.answer(request))).route(
        "/order",
        Method::Post,
        move |request| Ok(own.answer(request)),
    );
    let handle = server.serve(fake_reporter()).unwrap();
    let mut streaming = connect(&handle);
    assert_eq!(ask(&mut streaming, LIVE).status, 200);
    for _ in 0..3 {
        assert_eq!(ask(&mut connect(&handle), COMMAND).status, 503);
    }
    assert_eq!(
        commands.0.load(Ordering::SeqCst),
        0,
        "commands that were answered with 503 were executed"
    );
    // With a free stream, each answered command was executed once.
    drop(events);
    wait_for("a slot", || ask(&mut connect(&handle), COMMAND).status == 200);
    assert_eq!(commands.0.load(Ordering::SeqCst), 1);
    // A client that closes a stream releases its permit too.
    for number in 2..=4 {
        wait_for("a slot", || ask(&mut connect(&handle), COMMAND).status == 200);
        assert_eq!(commands.0.load(Ordering::SeqCst), number);
    }
}

#[test]
fn executes_no_command_of_incomplete_request() {
    let commands = Arc::new(Commands(AtomicUsize::new(0)));
    let settings = ServerSettings { max_body_bytes: 10, ..ServerSettings::default() };
    let (server, own) = (Server::bind(&loopback(), settings).unwrap(), Arc::clone(&commands));
    let server = server.route("/order", Method::Post, move |request| Ok(own.answer(request)));
    let handle = server.serve(fake_reporter()).unwrap();
    let long = "POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n";
    assert_eq!(ask(&mut connect(&handle), long).status, 413);
    // A request whose end never arrives.
    let part = "POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc";
    let mut stream = connect(&handle);
    std::io::Write::write_all(&mut stream, part.as_bytes()).unwrap();
    drop(stream);
    wait_for("the connection to be closed", || handle.stats.counts().open == 0);
    assert_eq!(commands.0.load(Ordering::SeqCst), 0);
}
