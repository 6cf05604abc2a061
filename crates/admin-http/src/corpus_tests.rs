//! The requests with which the server is fuzzed, and variations of them.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;

use crate::testing::{connect, fake_reporter, get, serve, wait_for};
use crate::{Handle, ServerSettings};

/// Sends the bytes, ends the connection, and returns what came back.
fn exchange(handle: &Handle, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(handle);
    // The server may close the connection first.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut response = Vec::new();
    if let Err(error) = stream.read_to_end(&mut response) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "not closed");
    }
    response
}

#[test]
fn answers_or_closes_the_fuzz_corpus() {
    let handle = serve(ServerSettings::default(), fake_reporter());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/http");
    let (mut answered, mut random) = (0, fastrand::Rng::with_seed(7));
    for file in std::fs::read_dir(folder).unwrap() {
        let input = std::fs::read(file.unwrap().path()).unwrap();
        for variation in 0..20 {
            let mut bytes = input.clone();
            for _ in 0..variation % 5 {
                if !bytes.is_empty() {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(..);
                }
            }
            let response = exchange(&handle, &bytes);
            let text = String::from_utf8_lossy(&response);
            assert!(response.is_empty() || text.starts_with("HTTP/1."), "{text}");
            answered += usize::from(text.starts_with("HTTP/1.1 200"));
        }
        assert_eq!(get(&handle, "/alive").status, 200);
    }
    assert!(answered > 40, "the corpus is of no use: {answered}");
    wait_for("all connections to be closed", || handle.stats.counts().open == 0);
}
