//! Fuzzes requests to the admin server, over its real socket: after each, it answers a probe.

#![no_main]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use admin_http::{Format, Handle, Reporter, Server, ServerSettings, Verdict};
use libfuzzer_sys::fuzz_target;

struct Report;

impl Reporter for Report {
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

static SERVER: OnceLock<Handle> = OnceLock::new();

fn ask(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may close the connection first.
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    let mut response = Vec::new();
    if let Err(error) = stream.read_to_end(&mut response) {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "not closed");
    }
    response
}

fuzz_target!(|data: &[u8]| {
    let server = SERVER.get_or_init(|| {
        let address = "127.0.0.1:0".parse().unwrap();
        let server = Server::bind(&[address], ServerSettings::default()).unwrap();
        server.serve(Arc::new(Report)).unwrap()
    });
    let address = server.addresses[0];
    let response = ask(address, data);
    assert!(response.is_empty() || response.starts_with(b"HTTP/1."));
    let alive = ask(address, b"GET /alive HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(alive.starts_with(b"HTTP/1.1 200"));
});
