//! A client that asks for much and reads slowly.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{Client, pause};

/// The length of one value.
pub(super) const VALUE: usize = 1 << 20;

/// What became of it.
#[derive(Debug)]
pub(super) struct SlowRead {
    pub(super) received: usize,
    pub(super) expected: usize,
    pub(super) took: Duration,
    /// Whether what it received is what it asked for.
    pub(super) right: bool,
    pub(super) end: Option<String>,
}

/// Asks for `count` values at once and reads `rate` bytes per second.
///
/// # Errors
/// It cannot connect, or cannot write the value.
pub(super) fn read(to: SocketAddr, count: usize, rate: usize) -> Result<SlowRead, String> {
    let words = |error: std::io::Error| format!("the slow reader: {error}");
    let mut client = Client::connect(to).map_err(words)?;
    let value = "v".repeat(VALUE);
    let stored = client.cmd(&["SET", "large", &value]).map_err(words)?;
    if !stored.is_ok() {
        return Err(format!("the slow reader: {stored:?}"));
    }
    let begin = Instant::now();
    let reply = format!("${VALUE}\r\n{value}\r\n").into_bytes();
    let mut stream = client.stream();
    stream.write_all(&harness::encode(&["GET", "large"]).repeat(count)).map_err(words)?;
    let expected = reply.len() * count;
    let (mut received, mut right, mut end) = (0, true, None);
    let mut piece = vec![0; rate / 100];
    stream.set_read_timeout(Some(Duration::from_secs(30))).map_err(words)?;
    while received < expected {
        match stream.read(&mut piece) {
            Ok(0) => {
                end = Some("closed".to_owned());
                break;
            }
            Ok(len) => {
                let from = received % reply.len();
                let same = reply.iter().cycle().skip(from).zip(piece.iter().take(len));
                right &= same.into_iter().all(|(expected, found)| expected == found);
                received += len;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                end = Some(error.to_string());
                break;
            }
        }
        pause(Duration::from_millis(10));
    }
    Ok(SlowRead { received, expected, took: begin.elapsed(), right, end })
}
