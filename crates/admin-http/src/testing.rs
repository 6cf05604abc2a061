//! Test utilities: a reporter with preset answers, and a client on a plain socket.

use std::borrow::Cow;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Format, Handle, NONCE, Reporter, Server, ServerSettings, Verdict};

/// Longer than anything here may take; a test that waits for this long has failed.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct FakeReporter {
    pub(crate) verdict: Verdict,
    pub(crate) metrics: usize,
}

impl Reporter for FakeReporter {
    fn alive(&self) -> Verdict {
        self.verdict.clone()
    }

    fn ready(&self) -> Verdict {
        Verdict::unless(vec!["no master".to_owned(), "two\nlines".to_owned()])
    }

    fn metrics(&self, format: Format) -> String {
        format!("# {format:?}\n{}", "x".repeat(self.metrics))
    }

    fn status(&self) -> String {
        assert!(self.verdict.ok, "the reporter panics if it is unhealthy");
        "{\"ok\":true}".to_owned()
    }

    fn page(&self) -> Cow<'static, str> {
        Cow::Owned(format!("<!doctype html><title>t</title><script nonce=\"{NONCE}\">1</script>"))
    }
}

pub(crate) fn fake_reporter() -> Arc<FakeReporter> {
    Arc::new(FakeReporter { verdict: Verdict::yes(), metrics: 0 })
}

pub(crate) fn loopback() -> Vec<SocketAddr> {
    vec!["127.0.0.1:0".parse().unwrap()]
}

pub(crate) fn serve(settings: ServerSettings, reporter: Arc<FakeReporter>) -> Handle {
    Server::bind(&loopback(), settings).unwrap().serve(reporter).unwrap()
}

pub(crate) fn connect(handle: &Handle) -> TcpStream {
    let stream = TcpStream::connect(handle.addresses[0]).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

/// A received response: status, head (lower case), body.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Reads one response, with its body if it has a length, unless `bodyless` is set.
pub(crate) fn receive(stream: &mut TcpStream, bodyless: bool) -> Response {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(
            stream.read(&mut byte).unwrap(),
            1,
            "closed after {:?}",
            String::from_utf8_lossy(&head)
        );
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let mut response = Response { status: head[9..12].parse().unwrap(), head, body: String::new() };
    let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
    if !bodyless {
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        response.body = String::from_utf8(body).unwrap();
    }
    response
}

pub(crate) fn ask(stream: &mut TcpStream, request: &str) -> Response {
    stream.write_all(request.as_bytes()).unwrap();
    receive(stream, request.starts_with("HEAD"))
}

pub(crate) fn get(handle: &Handle, path: &str) -> Response {
    ask(&mut connect(handle), &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
}

/// Waits for the end of the connection, orderly or not, and returns how long that took.
pub(crate) fn until_closed(stream: &mut TcpStream) -> Duration {
    let begin = Instant::now();
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
    assert!(begin.elapsed() < TEST_TIMEOUT, "not closed");
    begin.elapsed()
}

pub(crate) fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < TEST_TIMEOUT, "timed out waiting for {what}");
        std::thread::yield_now();
    }
}

pub(crate) fn stop(handle: Handle) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(handle.stop())
}
