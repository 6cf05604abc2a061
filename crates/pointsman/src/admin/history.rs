//! The last ten minutes in small: what the page draws, kept here because whoever opens it comes
//! after the event.
//!
//! A sample every two seconds and no more of them than fit into ten minutes: five numbers each,
//! whatever the traffic. For anything longer there is Prometheus.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use admin_http::{Handler, Reply, Request};
use proxy::{Distribution, Stats};
use sentinel::DiscoveryHandle;
use serde_json::{Value, json};

/// The time between two samples.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
/// Samples kept.
const KEPT: usize = 300;

/// Totals at a moment, from which rates are made.
#[derive(Debug, Clone)]
struct Totals {
    at: Instant,
    commands: u64,
    bytes: u64,
    times: Distribution,
}

/// What is drawn of one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    sessions: u64,
    commands: f64,
    bytes: f64,
    /// Milliseconds that 99 of 100 commands took less than; `None` where none was measured.
    p99: Option<f64>,
    generation: Option<u64>,
}

#[derive(Debug, Default)]
struct Track {
    before: Option<Totals>,
    samples: VecDeque<Sample>,
}

impl Track {
    fn note(&mut self, totals: Totals, sessions: u64, generation: Option<u64>) {
        let before = self.before.take();
        if let Some(before) = &before {
            let seconds = totals.at.saturating_duration_since(before.at).as_secs_f64().max(0.001);
            let rate = |now: u64, then: u64| {
                (precise(now.saturating_sub(then)) / seconds * 10.0).round() / 10.0
            };
            let (commands, bytes) =
                (rate(totals.commands, before.commands), rate(totals.bytes, before.bytes));
            let p99 =
                totals.times.since(&before.times).quantile(990).map(|it| it.as_secs_f64() * 1000.0);
            if self.samples.len() >= KEPT {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample { sessions, commands, bytes, p99, generation });
        }
        self.before = Some(totals);
    }

    fn document(&self, name: &str) -> Value {
        let list = |of: &dyn Fn(&Sample) -> Value| self.samples.iter().map(of).collect::<Vec<_>>();
        json!({
            "name": name,
            "seconds": self.samples.len() as u64 * EVERY.as_secs(),
            "sessions": list(&|it| json!(it.sessions)),
            "commands": list(&|it| json!(it.commands)),
            "bytes": list(&|it| json!(it.bytes)),
            "p99_ms": list(&|it| json!(it.p99)),
            "generation": list(&|it| json!(it.generation)),
        })
    }
}

/// One service to keep an eye on.
struct Watched {
    name: String,
    discovery: DiscoveryHandle,
    track: Mutex<Track>,
}

/// The history of all services.
pub(crate) struct History {
    services: Vec<Watched>,
    stats: Stats,
}

impl History {
    /// An empty one. The services are in the order of `stats`.
    pub(crate) fn new(
        services: impl Iterator<Item = (String, DiscoveryHandle)>,
        stats: Stats,
    ) -> Arc<Self> {
        let watched = |(name, discovery)| Watched { name, discovery, track: Mutex::default() };
        Arc::new(Self { services: services.map(watched).collect(), stats })
    }

    /// Takes samples until dropped.
    pub(crate) async fn keep(self: Arc<Self>) {
        let mut timer = tokio::time::interval(EVERY);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            timer.tick().await;
            for (watched, (_, traffic)) in self.services.iter().zip(self.stats.services()) {
                let (commands, bytes) = (traffic.commands, traffic.bytes_in + traffic.bytes_out);
                let totals =
                    Totals { at: Instant::now(), commands, bytes, times: traffic.command_time };
                let generation =
                    watched.discovery.snapshot().master.as_ref().map(|master| master.generation);
                let mut track = watched.track.lock().unwrap_or_else(PoisonError::into_inner);
                track.note(totals, traffic.open, generation);
            }
        }
    }
}

impl Handler for History {
    fn answer(&self, _request: &Request<'_>) -> Reply {
        let services = self.services.iter().map(|watched| {
            watched.track.lock().unwrap_or_else(PoisonError::into_inner).document(&watched.name)
        });
        Reply::json(
            200,
            json!({ "schema": 1, "services": services.collect::<Vec<_>>() }).to_string(),
        )
    }
}

/// Exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "a drawing needs no more")]
fn precise(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_made_of_totals_and_old_samples_go() {
        let mut track = Track::default();
        let start = Instant::now();
        for number in 0..=u64::try_from(KEPT).unwrap() + 5 {
            let at = start + EVERY * u32::try_from(number).unwrap();
            let totals = Totals {
                at,
                commands: number * 10,
                bytes: number * 1000,
                times: Distribution::default(),
            };
            track.note(totals, number, Some(1));
        }
        assert_eq!(track.samples.len(), KEPT);
        let last =
            Sample { sessions: 305, commands: 5.0, bytes: 500.0, p99: None, generation: Some(1) };
        assert_eq!(track.samples.back(), Some(&last));
        let document = track.document("a");
        assert_eq!(document["seconds"], 600);
        assert_eq!(document["commands"][0], 5.0);
    }

    #[test]
    fn a_first_look_alone_tells_no_rate() {
        let mut track = Track::default();
        let totals = Totals {
            at: Instant::now(),
            commands: 1_000_000,
            bytes: 0,
            times: Distribution::default(),
        };
        track.note(totals, 3, None);
        assert!(track.samples.is_empty());
    }
}
