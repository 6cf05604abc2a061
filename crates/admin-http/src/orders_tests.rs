//! What is executed and what is answered: always both, or neither.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::testing::{ask, connect, fake, loopback, wait_for};
use crate::{Handler, Method, Reply, Request, Server, Settings};

const LIVE: &str = "GET /live HTTP/1.1\r\nHost: a\r\n\r\n";
const ORDER: &str = "POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";

/// A stream that lasts until the test ends it.
struct Live(Mutex<Option<mpsc::Receiver<Bytes>>>);

impl Handler for Live {
    fn answer(&self, request: &Request<'_>) -> Reply {
        let events = self.0.lock().unwrap().take();
        match request.reserve_stream().zip(events) {
            Some((permit, events)) => Reply::stream("text/event-stream", events, permit),
            None => Reply::no_stream(),
        }
    }
}

/// Counts what it executes, and tells of it as a stream.
struct Orders(AtomicUsize);

impl Handler for Orders {
    fn methods(&self) -> &'static [Method] {
        &[Method::Post]
    }

    fn answer(&self, request: &Request<'_>) -> Reply {
        let Some(permit) = request.reserve_stream() else { return Reply::no_stream() };
        self.0.fetch_add(1, Ordering::SeqCst);
        Reply::stream("application/x-ndjson", mpsc::channel(1).1, permit)
    }
}

#[test]
fn executes_no_order_that_it_answers_with_503() {
    let (orders, (events, live)) = (Arc::new(Orders(AtomicUsize::new(0))), mpsc::channel(1));
    let settings = Settings { max_streams: 1, ..Settings::default() };
    let server = Server::bind(&loopback(), settings).unwrap();
    let server = server
        .route("/live", Arc::new(Live(Mutex::new(Some(live)))))
        .route("/order", orders.clone());
    let handle = server.serve(fake()).unwrap();
    let mut streaming = connect(&handle);
    assert_eq!(ask(&mut streaming, LIVE).status, 200);
    for _ in 0..3 {
        assert_eq!(ask(&mut connect(&handle), ORDER).status, 503);
    }
    assert_eq!(
        orders.0.load(Ordering::SeqCst),
        0,
        "orders that were answered with 503 were executed"
    );
    // With a place, each one that is answered was executed, once.
    drop(events);
    wait_for("a place", || ask(&mut connect(&handle), ORDER).status == 200);
    assert_eq!(orders.0.load(Ordering::SeqCst), 1);
    // The client that leaves a stream gives its place back, too.
    for number in 2..=4 {
        wait_for("a place", || ask(&mut connect(&handle), ORDER).status == 200);
        assert_eq!(orders.0.load(Ordering::SeqCst), number);
    }
}

#[test]
fn executes_no_order_that_has_no_whole_request() {
    let orders = Arc::new(Orders(AtomicUsize::new(0)));
    let settings = Settings { max_body_bytes: 10, ..Settings::default() };
    let server = Server::bind(&loopback(), settings).unwrap().route("/order", orders.clone());
    let handle = server.serve(fake()).unwrap();
    let long = "POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n";
    assert_eq!(ask(&mut connect(&handle), long).status, 413);
    // One whose end never comes.
    let part = "POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc";
    let mut stream = connect(&handle);
    std::io::Write::write_all(&mut stream, part.as_bytes()).unwrap();
    drop(stream);
    wait_for("the connection to be gone", || handle.stats().counted().open == 0);
    assert_eq!(orders.0.load(Ordering::SeqCst), 0);
}
