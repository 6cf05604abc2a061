//! Observes the servers during a run: when a replica became writable, when the first client wrote
//! to it, and what the old master executed meanwhile.
//!
//! One thread per server, each with its own connection. A promotion and a demotion close it
//! (servers disconnect their clients then), and it is reopened at once.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Client, Value, encode, pause};

use super::samples::Sample;

/// The interval of queries to a replica.
const REPLICA: Duration = Duration::from_millis(1);
/// The interval of queries to the old master, and to the new one after its first write.
const MASTER: Duration = Duration::from_millis(5);
/// The longest wait for a reply.
const PATIENCE: Duration = Duration::from_millis(300);
/// Number of samples kept: a few minutes.
const MOST: usize = 100_000;

/// The promotion of a replica.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promotion {
    /// When it first reported the role master.
    pub(super) writable: Instant,
    /// When its count of SETs first rose after that.
    pub(super) first_write: Option<Instant>,
    sets: u64,
}

#[derive(Debug, Default)]
struct Seen {
    old: Vec<Sample>,
    promoted: BTreeMap<SocketAddr, Promotion>,
}

/// Observes until it is dropped.
#[derive(Debug)]
pub(super) struct Observer {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Observer {
    /// Starts to observe a master and its replicas. From the address `inside` the old master can be
    /// reached even when it is cut off, so that its writes are seen as they happen.
    pub(super) fn start(
        old: SocketAddr,
        replicas: &[SocketAddr],
        inside: Option<Ipv4Addr>,
    ) -> Self {
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let watch = |addr: SocketAddr, old: bool| {
            let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    let looked = if old {
                        look_at_old(addr, inside, &seen, &stop)
                    } else {
                        look_at_replica(addr, &seen, &stop)
                    };
                    // Connections to these servers end in a failover; the next one shows more.
                    drop(looked);
                    pause(REPLICA);
                }
            })
        };
        let replicas = replicas.iter().map(|addr| watch(*addr, false));
        let threads = std::iter::once(watch(old, true)).chain(replicas).collect();
        Self { seen, stop, threads }
    }

    /// All samples of the old master.
    pub(super) fn old(&self) -> Vec<Sample> {
        lock(&self.seen).old.clone()
    }

    /// The promotion of a replica, if it happened.
    pub(super) fn promotion(&self, addr: SocketAddr) -> Option<Promotion> {
        lock(&self.seen).promoted.get(&addr).copied()
    }

    /// Whether any replica that became master has been written to.
    pub(super) fn written(&self) -> bool {
        lock(&self.seen).promoted.values().any(|promotion| promotion.first_write.is_some())
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed the reason.
            let _ = thread.join();
        }
    }
}

fn look_at_old(
    addr: SocketAddr,
    inside: Option<Ipv4Addr>,
    seen: &Mutex<Seen>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let connected = inside.map_or_else(
        || Client::connect_within(addr, PATIENCE),
        |it| Client::connect_from(it, addr),
    );
    let mut client = connected?;
    client.set_timeout(PATIENCE)?;
    while !stop.load(Ordering::Acquire) {
        // Both in one write: the server executes them without another client in between.
        client.send(&[encode(&["ROLE"]), encode(&["INFO", "commandstats"])].concat())?;
        let (role, info) = (client.read_value()?, client.read_value()?);
        let sample = Sample { at: Instant::now(), master: is_master(&role), sets: sets(&info) };
        let old = &mut lock(seen).old;
        if old.len() < MOST {
            old.push(sample);
        }
        pause(MASTER);
    }
    Ok(())
}

fn look_at_replica(addr: SocketAddr, seen: &Mutex<Seen>, stop: &AtomicBool) -> io::Result<()> {
    let mut client = Client::connect_within(addr, PATIENCE)?;
    while !stop.load(Ordering::Acquire) {
        let known = lock(seen).promoted.get(&addr).copied();
        match known {
            None => {
                if is_master(&client.cmd(&["ROLE"])?) {
                    let writable = Instant::now();
                    let sets = sets(&client.cmd(&["INFO", "commandstats"])?);
                    lock(seen)
                        .promoted
                        .insert(addr, Promotion { writable, first_write: None, sets });
                }
            }
            Some(promotion) if promotion.first_write.is_none() => {
                let now = sets(&client.cmd(&["INFO", "commandstats"])?);
                if now > promotion.sets {
                    let first_write = Some(Instant::now());
                    lock(seen).promoted.insert(addr, Promotion { first_write, ..promotion });
                }
            }
            Some(_) => pause(MASTER),
        }
        pause(REPLICA);
    }
    Ok(())
}

fn is_master(role: &Value) -> bool {
    role.items().first().and_then(Value::text) == Some("master")
}

/// `calls` of SET in INFO commandstats; zero if it was never called.
fn sets(info: &Value) -> u64 {
    let line = info
        .text()
        .unwrap_or_default()
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_set:calls="));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    // The content is consistent at any time.
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_count_of_sets_from_statistics() {
        let info = |text: &str| Value::Bulk(text.as_bytes().to_vec());
        let text = "# Commandstats\r\ncmdstat_setex:calls=5,usec=1\r\ncmdstat_set:calls=42,usec=81,usec_per_call=2\r\n";
        assert_eq!(sets(&info(text)), 42);
        assert_eq!(sets(&info("# Commandstats\r\n")), 0);
    }

    #[test]
    fn recognizes_only_masters() {
        let role = |word: &str| Value::Array(vec![Value::Bulk(word.as_bytes().to_vec())]);
        assert!(
            is_master(&role("master")) && !is_master(&role("slave")) && !is_master(&Value::Nil)
        );
    }
}
