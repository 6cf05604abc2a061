//! Probes are answered even without free file descriptors. A process of its own, because it uses up
//! all of them.

// Clippy recognizes test helpers only inside a test module.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin_http::{Format, Handle, Reporter, Server, ServerSettings, Verdict};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

struct HealthyReporter;

impl Reporter for HealthyReporter {
    fn alive(&self) -> Verdict {
        Verdict::yes()
    }

    fn ready(&self) -> Verdict {
        Verdict::yes()
    }

    fn metrics(&self, _format: Format) -> String {
        String::new()
    }

    fn status(&self) -> String {
        "{}".to_owned()
    }

    fn page(&self) -> Cow<'static, str> {
        Cow::Borrowed("")
    }
}

/// Opens files until no descriptor is left.
fn take_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn connect(handle: &Handle, socket: &Socket) {
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.connect(&handle.addresses[0].into()).unwrap();
}

/// Whether a probe is answered. The caller keeps the socket, so its descriptor does not become
/// free.
fn is_answered(handle: &Handle, mut socket: &Socket) -> bool {
    connect(handle, socket);
    socket.write_all(b"GET /alive HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
}

#[test]
fn answers_probes_without_free_file_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), maximum: limit.maximum }).unwrap();
    let server =
        Server::bind(&["127.0.0.1:0".parse().unwrap()], ServerSettings::default()).unwrap();
    let handle = server.serve(Arc::new(HealthyReporter)).unwrap();
    // The clients live in this process too, so their sockets are created before the descriptors run
    // out.
    let sockets: Vec<Socket> =
        (0..24).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()).collect();
    let (first, rest) = sockets.split_first().unwrap();
    let (last, rest) = rest.split_last().unwrap();
    let (sequential, rest) = rest.split_at(8);
    let (silent, probing) = rest.split_at(8);
    assert!(is_answered(&handle, first));

    let taken = take_all();
    assert!(taken.len() > 10);
    // One after the other, each with a descriptor from the reserve, which gets it back afterwards.
    for socket in sequential {
        assert!(is_answered(&handle, socket));
    }
    // Silent clients use up the reserve; from then on the oldest of them is evicted.
    for socket in silent {
        connect(&handle, socket);
    }
    for socket in probing {
        assert!(is_answered(&handle, socket));
    }
    let counts = handle.stats.counts();
    assert!(
        counts.accept_errors >= 8 && counts.accept_errors < 1000,
        "no shortage, or a busy loop: {counts:?}"
    );

    // When descriptors are free again, nothing of this remains.
    drop(taken);
    let begin = Instant::now();
    assert!(is_answered(&handle, last));
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "still backing off after {:?}",
        begin.elapsed()
    );
}
