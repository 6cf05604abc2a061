//! One planned failover under writers, with the time and the outcome of every acknowledged write.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::{Client, Cluster, encode, pause};

/// Number of writers, as in `cargo xtask bench failover`.
const WRITERS: u32 = 16;
/// Writes per second of all writers together.
pub(super) const RATE: u32 = 2000;
/// Seconds of writing before the failover is ordered, as shown in the plot.
pub(super) const BEFORE: f64 = 3.0;
pub(super) const AFTER: f64 = 15.0;
/// The longest time for the old master to become a replica in sync.
const SETTLE: Duration = Duration::from_secs(60);
/// The longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(5);
/// Keys per command.
const BATCH: usize = 500;

/// An acknowledged write.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Write {
    /// The time of the acknowledgement, in seconds after the order.
    pub(super) at: f64,
    /// Whether the new master lacks it in the end.
    pub(super) lost: bool,
}

/// The result of one run.
#[derive(Debug)]
pub(super) struct Run {
    /// The proxy's name in the plot.
    pub(super) name: String,
    /// Every acknowledged write, in order.
    pub(super) writes: Vec<Write>,
    /// Failed connections, broken ones, timeouts and error replies.
    pub(super) errors: u64,
}

impl Run {
    /// How many acknowledged writes were lost.
    pub(super) fn lost(&self) -> usize {
        self.writes.iter().filter(|write| write.lost).count()
    }

    /// The title of its panel.
    pub(super) fn sentence(&self) -> String {
        let errors =
            if self.errors == 1 { "1 error".to_owned() } else { format!("{} errors", self.errors) };
        format!(
            "{}: {} of {} acknowledged writes lost, {errors}",
            self.name,
            grouped(self.lost()),
            grouped(self.writes.len())
        )
    }
}

/// A number with commas between groups of digits.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let parts = digits.as_bytes().rchunks(3).rev();
    parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>().join(",")
}

/// The results that the writers share.
#[derive(Debug, Default)]
struct Tally {
    stop: AtomicBool,
    errors: AtomicU64,
    acknowledged: Mutex<Vec<(Instant, String)>>,
}

/// Executes a run: writes, orders the failover, waits until the old master is a replica, looks up
/// every write. `meanwhile` runs at the end, before the writers stop.
///
/// # Errors
/// A message for people: what was missing.
pub(super) fn play(
    name: &str,
    cluster: &Cluster,
    proxy: SocketAddr,
    meanwhile: impl FnOnce() -> Result<(), String>,
) -> Result<Run, String> {
    let (tally, old) = (Tally::default(), cluster.master());
    let ordered = std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let tally = &tally;
            scope.spawn(move || write(writer, proxy, tally));
        }
        let ordered = order(cluster, old, &tally);
        let done = ordered.and_then(|at| meanwhile().map(|()| at));
        tally.stop.store(true, Ordering::Release);
        done
    })?;
    let acknowledged = tally.acknowledged.into_inner().map_err(|_| "a writer panicked")?;
    let master = cluster.current_master_addr()?;
    let keys: Vec<&str> = acknowledged.iter().map(|(_, key)| key.as_str()).collect();
    let missing = missing(master, &keys).map_err(|error| format!("the new master: {error}"))?;
    let seconds = |at: &Instant| match at.checked_duration_since(ordered) {
        Some(after) => after.as_secs_f64(),
        None => -ordered.duration_since(*at).as_secs_f64(),
    };
    let writes = acknowledged
        .iter()
        .map(|(at, key)| Write { at: seconds(at), lost: missing.contains(key.as_str()) });
    Ok(Run {
        name: name.to_owned(),
        writes: writes.collect(),
        errors: tally.errors.load(Ordering::Relaxed),
    })
}

/// Orders the failover after enough writes, and waits for its end. Returns when it was ordered.
fn order(cluster: &Cluster, old: &harness::Node, tally: &Tally) -> Result<Instant, String> {
    let count = || tally.acknowledged.lock().map_or(0, |all| all.len());
    let enough = f64::from(RATE) * (BEFORE + 7.0);
    wait("the first writes", || count() as u64 as f64 > enough)?;
    let ordered = cluster.begin_failover_of(cluster.name());
    let follows = || {
        let says =
            |field: &str, wanted: &str| old.info("replication", field).is_ok_and(|it| it == wanted);
        says("role", "slave") && says("master_link_status", "up")
    };
    wait("the old master to become a replica", follows)?;
    wait("the end of the time axis", || ordered.elapsed().as_secs_f64() > AFTER + 1.0)?;
    Ok(ordered)
}

fn wait(what: &str, mut look: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + SETTLE;
    while !look() {
        if Instant::now() > deadline {
            return Err(format!("waited {} s in vain for {what}", SETTLE.as_secs()));
        }
        pause(Duration::from_millis(20));
    }
    Ok(())
}

/// Writes one key after the other until the end; reconnects after an error, and never writes a key
/// twice.
fn write(writer: u32, proxy: SocketAddr, tally: &Tally) {
    let interval = Duration::from_secs(1) * WRITERS / RATE;
    let (mut number, mut due, mut client) = (0_u64, Instant::now(), None);
    while !tally.stop.load(Ordering::Acquire) {
        pause(due.saturating_duration_since(Instant::now()));
        due = due.max(Instant::now()) + interval;
        number += 1;
        let key = format!("{writer}:{number}");
        match set(&mut client, proxy, &key) {
            Ok(()) => {
                drop(tally.acknowledged.lock().map(|mut all| all.push((Instant::now(), key))));
            }
            Err(_) if tally.stop.load(Ordering::Acquire) => {}
            Err(_) => {
                client = None;
                tally.errors.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn set(client: &mut Option<Client>, proxy: SocketAddr, key: &str) -> io::Result<()> {
    let connected = match client.take() {
        Some(connected) => connected,
        None => Client::connect_as(proxy, None, PATIENCE)?,
    };
    let reply = client.insert(connected).cmd(&["SET", key, "1"])?;
    if reply.is_ok() { Ok(()) } else { Err(io::Error::other(reply.to_string())) }
}

/// The keys that a server does not have.
fn missing<'a>(server: SocketAddr, keys: &[&'a str]) -> io::Result<BTreeSet<&'a str>> {
    let mut client = Client::connect_as(server, None, Duration::from_secs(10))?;
    let mut missing = BTreeSet::new();
    for batch in keys.chunks(BATCH) {
        client.send(&batch.iter().flat_map(|key| encode(&["EXISTS", key])).collect::<Vec<u8>>())?;
        for key in batch {
            if client.read_value()?.int() != Some(1) {
                missing.insert(*key);
            }
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_many_writes_were_lost() {
        let writes = (0..1234).map(|number| Write { at: f64::from(number), lost: number >= 1000 });
        let run = Run { name: "haproxy 2.6".to_owned(), writes: writes.collect(), errors: 1 };
        assert_eq!(run.sentence(), "haproxy 2.6: 234 of 1,234 acknowledged writes lost, 1 error");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_000_000), "1,000,000");
    }
}
