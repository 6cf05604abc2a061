//! The samples of the last ten minutes that the status page plots, recorded here because the page
//! is usually opened after the event, and the last commands of operators (`orders`).
//!
//! One sample every two seconds, six numbers each, independent of the traffic. Longer periods are
//! for Prometheus.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use admin_http::Reply;
use proxy::ServiceSnapshot;
use serde_json::{Value, json};

use crate::admin::control::CommandLog;
use crate::admin::service_registry::ServiceRegistry;

/// Interval of samples.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);
/// Number of samples kept.
const CAPACITY: usize = 300;

/// The plotted values of one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
struct HistorySample {
    sessions: u64,
    commands: f64,
    bytes: f64,
    /// Client connections accepted per second.
    new_sessions: f64,
    /// The 99th percentile of command durations, in milliseconds; `None` if none was measured.
    p99: Option<f64>,
    generation: Option<u64>,
}

#[derive(Debug, Default)]
struct ServiceHistory {
    /// The totals of the last sample, from which rates are computed.
    before: Option<(Instant, ServiceSnapshot)>,
    samples: VecDeque<HistorySample>,
}

impl ServiceHistory {
    fn add(&mut self, at: Instant, totals: ServiceSnapshot, generation: Option<u64>) {
        if let Some((then, before)) = &self.before {
            let seconds = at.saturating_duration_since(*then).as_secs_f64().max(0.001);
            let rate = |of: fn(&ServiceSnapshot) -> u64| {
                let count = of(&totals).saturating_sub(of(before));
                (precise(count) / seconds * 10.0).round() / 10.0
            };
            let p99 = totals.command_time.since(&before.command_time).quantile(990);
            if self.samples.len() >= CAPACITY {
                self.samples.pop_front();
            }
            self.samples.push_back(HistorySample {
                sessions: totals.open(),
                commands: rate(|it| it.commands),
                bytes: rate(|it| it.bytes_in + it.bytes_out),
                new_sessions: rate(|it| it.accepted),
                p99: p99.map(|it| it.as_secs_f64() * 1000.0),
                generation,
            });
        }
        self.before = Some((at, totals));
    }

    fn document(&self, name: &str, orders: &Value) -> Value {
        let list =
            |of: &dyn Fn(&HistorySample) -> Value| self.samples.iter().map(of).collect::<Vec<_>>();
        json!({
            "name": name,
            "seconds": self.samples.len() as u64 * INTERVAL.as_secs(),
            "sessions": list(&|it| json!(it.sessions)),
            "commands": list(&|it| json!(it.commands)),
            "new_sessions": list(&|it| json!(it.new_sessions)),
            "bytes": list(&|it| json!(it.bytes)),
            "p99_ms": list(&|it| json!(it.p99)),
            "generation": list(&|it| json!(it.generation)),
            "orders": orders,
        })
    }
}

/// The samples of all services.
pub(crate) struct History {
    services: ServiceRegistry,
    orders: CommandLog,
    histories: Mutex<BTreeMap<String, ServiceHistory>>,
}

impl History {
    /// Creates an empty history.
    pub(crate) fn new(services: ServiceRegistry, orders: CommandLog) -> Arc<Self> {
        Arc::new(Self { services, orders, histories: Mutex::default() })
    }

    fn histories(&self) -> MutexGuard<'_, BTreeMap<String, ServiceHistory>> {
        self.histories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes samples until dropped.
    pub(crate) async fn record(self: Arc<Self>) {
        let mut timer = tokio::time::interval(INTERVAL);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            timer.tick().await;
            let services = self.services.list();
            let mut histories = self.histories();
            histories.retain(|name, _| services.iter().any(|it| it.name == *name));
            for service in services {
                let totals = service.writers.0.snapshot();
                let generation =
                    service.discovery.snapshot().master.as_ref().map(|master| master.generation);
                let history = histories.entry(service.name.clone()).or_default();
                history.add(Instant::now(), totals, generation);
            }
        }
    }

    /// Answers with all samples.
    pub(crate) fn answer(&self) -> Reply {
        let histories = self.histories();
        let empty = ServiceHistory::default();
        let services = self.services.list().into_iter().map(|service| {
            let orders = self.orders.document(&service.name);
            histories.get(&service.name).unwrap_or(&empty).document(&service.name, &orders)
        });
        Reply::json(
            200,
            json!({ "schema": 1, "services": services.collect::<Vec<_>>() }).to_string(),
        )
    }
}

/// Exact up to 2^53.
#[allow(clippy::cast_precision_loss, reason = "sufficient for a plot")]
fn precise(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_rates_and_drops_old_samples() {
        let mut history = ServiceHistory::default();
        let start = Instant::now();
        for number in 0..=u64::try_from(CAPACITY).unwrap() + 5 {
            let at = start + INTERVAL * u32::try_from(number).unwrap();
            let totals = ServiceSnapshot {
                commands: number * 10,
                bytes_in: number * 400,
                bytes_out: number * 600,
                accepted: number * 2,
                closed: vec![number],
                ..ServiceSnapshot::default()
            };
            history.add(at, totals, Some(1));
        }
        assert_eq!(history.samples.len(), CAPACITY);
        let last = HistorySample {
            sessions: 305,
            commands: 5.0,
            bytes: 500.0,
            new_sessions: 1.0,
            p99: None,
            generation: Some(1),
        };
        assert_eq!(history.samples.back(), Some(&last));
        let document = history.document("a", &json!([]));
        assert_eq!(document["seconds"], 600);
        assert_eq!(document["commands"][0], 5.0);
    }

    #[test]
    fn needs_two_samples_for_rate() {
        let mut history = ServiceHistory::default();
        let totals = ServiceSnapshot { commands: 1_000_000, ..ServiceSnapshot::default() };
        history.add(Instant::now(), totals, None);
        assert!(history.samples.is_empty());
    }
}
