//! Out of file descriptors, probes are still answered. A process of its own, because it takes all
//! of them.

// The lints know helpers of a test only inside a test module.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin_http::{Format, Handle, Reporter, Server, Settings, Verdict};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

struct Well;

impl Reporter for Well {
    fn alive(&self) -> Verdict {
        Verdict::yes()
    }

    fn ready(&self) -> Verdict {
        Verdict::yes()
    }

    fn started(&self) -> Verdict {
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

/// Opens whatever can still be opened.
fn take_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

fn connect(handle: &Handle, socket: &Socket) {
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.connect(&handle.addresses()[0].into()).unwrap();
}

/// Whether a probe gets its answer. The socket stays the caller's, so that its descriptor does not
/// become free.
fn is_answered(handle: &Handle, mut socket: &Socket) -> bool {
    connect(handle, socket);
    socket.write_all(b"GET /alive HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
}

#[test]
fn probes_are_answered_without_a_free_file_descriptor() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), maximum: limit.maximum }).unwrap();
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], Settings::default()).unwrap();
    let handle = server.serve(Arc::new(Well)).unwrap();
    // The clients live in this process too, so their sockets are made before the descriptors run
    // out.
    let sockets: Vec<Socket> =
        (0..24).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()).collect();
    let (first, rest) = sockets.split_first().unwrap();
    let (last, rest) = rest.split_last().unwrap();
    let (alone, rest) = rest.split_at(8);
    let (silent, beside) = rest.split_at(8);
    assert!(is_answered(&handle, first));

    let taken = take_all();
    assert!(taken.len() > 10);
    // One after the other, each with a descriptor from the reserve, which gets it back afterwards.
    for socket in alone {
        assert!(is_answered(&handle, socket));
    }
    // Clients that say nothing use up the reserve; from then on the first of them has to go.
    for socket in silent {
        connect(&handle, socket);
    }
    for socket in beside {
        assert!(is_answered(&handle, socket));
    }
    let counted = handle.stats().counted();
    assert!(
        counted.accept_errors >= 8 && counted.accept_errors < 1000,
        "no lack, or a spin: {counted:?}"
    );

    // And when there are some again, nothing is left of it.
    drop(taken);
    let begin = Instant::now();
    assert!(is_answered(&handle, last));
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "still backing off after {:?}",
        begin.elapsed()
    );
}
