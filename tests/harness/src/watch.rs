//! Watches which writes a server executes: its MONITOR, from an address that no [`Cut`](crate::Cut)
//! separates. What its own master sends it does not count.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::client::{Client, encode};
use crate::cluster::{HARNESS, PROXY};
use crate::wait::pause;

/// The longest wait for a line; then the end is looked for.
const PATIENCE: Duration = Duration::from_millis(300);
/// The pause before a new connection: the server closes it when it is demoted.
const AGAIN: Duration = Duration::from_millis(20);
/// Lines kept at most.
const MOST: usize = 1_000_000;

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Watch {
    seen: Arc<Mutex<Vec<(Instant, String)>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to watch a member of a cluster whose members have addresses of their own.
    #[must_use]
    pub fn start(server: SocketAddr) -> Self {
        let (seen, stop) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        let (sink, is_over) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                // Connections to this server end with it; the next one shows more.
                let _ended = follow(server, &sink, &is_over);
                pause(AGAIN);
            }
        });
        Self { seen, stop, thread: Some(thread) }
    }

    /// Writes of keys `PREFIX:…` that were executed after the moment.
    #[must_use]
    pub fn after(&self, moment: Instant, prefix: &str) -> u64 {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|(at, of)| *at > moment && of == prefix).count() as u64
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A thread that panicked has printed the reason.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn follow(
    server: SocketAddr,
    seen: &Mutex<Vec<(Instant, String)>>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut client = Client::connect_from(HARNESS, server)?;
    client.set_timeout(PATIENCE)?;
    client.send(&encode(&["MONITOR"]))?;
    while !stop.load(Ordering::Acquire) {
        let value = match client.read_value() {
            Ok(value) => value,
            Err(error) if is_timeout(&error) => continue,
            Err(error) => return Err(error),
        };
        if let Some(prefix) = value.text().and_then(written_by) {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.len() < MOST {
                seen.push((Instant::now(), prefix.to_owned()));
            }
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The prefix of the key that a client wrote according to this line of MONITOR.
fn written_by(line: &str) -> Option<&str> {
    let (from, words) = line.split_once("] ")?;
    let (_, addr) = from.rsplit_once(' ')?;
    let addr: SocketAddr = addr.parse().ok()?;
    let key = words.strip_prefix("\"SET\" \"").or(words.strip_prefix("\"set\" \""))?;
    (addr.ip() == PROXY).then_some(())?;
    key.split(':').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_prefix_of_a_write() {
        let line = |from: &str, words: &str| format!("1764316800.123456 [0 {from}] {words}");
        let set = "\"SET\" \"haproxy-votes:2:17\" \"1\"";
        assert_eq!(written_by(&line("127.0.0.1:40000", set)), Some("haproxy-votes"));
        assert_eq!(
            written_by(&line("127.0.0.1:1", "\"set\" \"ioredis:0:1\" \"1\"")),
            Some("ioredis")
        );
        for other in [
            line("127.0.100.2:6379", set),
            line("127.0.0.1:40000", "\"GET\" \"ioredis:0:1\""),
            line("lua", set),
            "OK".to_owned(),
        ] {
            assert_eq!(written_by(&other), None, "{other}");
        }
    }
}
