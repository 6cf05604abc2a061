//! One planned failover under writers, with the time and the outcome of every acknowledged write.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bench::stats::grouped;
use harness::{Cluster, Load, pause, wait_until};

/// Number of writers, as in `cargo xtask bench failover`.
const WRITERS: usize = 16;
/// Writes per second of all writers together.
pub(super) const RATE: u32 = 2000;
/// Seconds of writing before the failover is ordered, as shown in the plot.
pub(super) const BEFORE: f64 = 3.0;
pub(super) const AFTER: f64 = 15.0;
/// The longest time for the old master to become a replica in sync.
const SETTLE: Duration = Duration::from_secs(60);

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
            grouped(self.lost() as u64),
            grouped(self.writes.len() as u64)
        )
    }
}

/// Executes a run: writes, orders the failover, waits until the old master is a replica, looks up
/// every write. `meanwhile` runs at the end, before the writers stop.
///
/// # Errors
/// A message for people: what was missing.
///
/// # Panics
/// If the failover does not end in time.
pub(super) fn play(
    name: &str,
    cluster: &Cluster,
    proxy: SocketAddr,
    meanwhile: impl FnOnce() -> Result<(), String>,
) -> Result<Run, String> {
    let mut load = Load::to(proxy).writers(WRITERS).rate(RATE).journal(0).start();
    let ordered = order(cluster, &load);
    meanwhile()?;
    load.stop();
    let verdict = load.verify(cluster.current_master_addr()?);
    let verdict = verdict.map_err(|error| format!("the new master: {error}"))?;
    let seconds = |at: Instant| match at.checked_duration_since(ordered) {
        Some(after) => after.as_secs_f64(),
        None => -ordered.duration_since(at).as_secs_f64(),
    };
    let writes = load.writes(&verdict).into_iter();
    let writes = writes.map(|(at, lost)| Write { at: seconds(at), lost }).collect();
    Ok(Run { name: name.to_owned(), writes, errors: load.counts().errors })
}

/// Orders the failover after enough writes, and waits for its end. Returns when it was ordered.
fn order(cluster: &Cluster, load: &Load) -> Instant {
    let old = cluster.master();
    let enough = f64::from(RATE) * (BEFORE + 7.0);
    wait_until("the first writes", SETTLE, || load.counts().acknowledged as f64 > enough);
    let ordered = cluster.begin_failover_of(cluster.name());
    wait_until("the old master to become a replica", SETTLE, || {
        let says =
            |field: &str, wanted: &str| old.info("replication", field).is_ok_and(|it| it == wanted);
        says("role", "slave") && says("master_link_status", "up")
    });
    let end = Duration::from_secs_f64(AFTER + 1.0);
    pause(end.saturating_sub(ordered.elapsed()));
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_many_writes_were_lost() {
        let writes = (0..1234).map(|number| Write { at: f64::from(number), lost: number >= 1000 });
        let run = Run { name: "haproxy 2.6".to_owned(), writes: writes.collect(), errors: 1 };
        assert_eq!(run.sentence(), "haproxy 2.6: 234 of 1,234 acknowledged writes lost, 1 error");
    }
}
