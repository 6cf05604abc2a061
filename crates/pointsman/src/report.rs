//! The process's answers to the probe server: health, metrics and status, put together from what everybody counts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use drain::{Drain, Phase};
use probe::{Format, Reporter, Verdict};
use proxy::{DialFailure, Distribution, Limit, Reason, Scarcity, Snapshot};

use crate::health::{self, Full, Loop};
use crate::histogram;
use crate::metrics::{self, Metrics, Told, precise, to_open_metrics};
use crate::status::{self, Status};
use crate::telemetry::DroppedLines;

/// One service, as far as a report needs it.
pub struct Watched {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub listen: Vec<SocketAddr>,
    /// The most connections it may have.
    pub limit: usize,
    /// How long its clients may be held.
    pub hold_timeout: Duration,
    /// What discovery sees.
    pub discovery: sentinel::Handle,
}

/// Everything a report is made of.
pub struct Report {
    /// When the process started.
    pub start: Instant,
    /// The hash of the effective configuration.
    pub config_hash: String,
    /// The services, in the order of the configuration.
    pub services: Vec<Watched>,
    /// The shutdown.
    pub drain: Drain,
    /// Whether a process that leaves stays ready while it accepts.
    pub ready_while_leaving: bool,
    /// The data plane's counters.
    pub stats: proxy::Stats,
    /// The most client connections of all services together.
    pub max_connections: u64,
    /// Up while new clients are refused for want of memory.
    pub scarcity: Scarcity,
    /// The workers' heartbeats.
    pub workers: Vec<proxy::Heartbeat>,
    /// Discovery's heartbeat.
    pub discovery: sentinel::Heartbeat,
    /// Dropped log lines.
    pub dropped_lines: DroppedLines,
    /// The recorder, and what of each service's failovers was put into its histograms. Locked by scrapes only, which the
    /// probe server makes one after the other.
    pub metrics: Mutex<(Metrics, Vec<Told>)>,
}

impl Report {
    fn loops(&self) -> Vec<Loop> {
        let (now, workers) = (Instant::now(), self.workers.iter().enumerate());
        let mut loops: Vec<Loop> =
            workers.map(|(number, it)| Loop { name: format!("worker {number}"), age: it.age(now) }).collect();
        loops.push(Loop { name: "discovery".to_owned(), age: self.discovery.age() });
        loops
    }

    fn services(&self) -> Vec<health::Service> {
        let facts = |watched: &Watched| {
            let seen = watched.discovery.seen();
            health::Service {
                name: watched.name.clone(),
                stopped_for: seen.stopped_since.map(|at| at.elapsed()),
                had_master: seen.counts.commits > 0,
                hold_timeout: watched.hold_timeout,
            }
        };
        self.services.iter().map(facts).collect()
    }

    fn collect(&self, metrics: &Metrics, told: &mut Vec<Told>) {
        metrics.gauge("pointsman_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        metrics.gauge("pointsman_config_info", &[("hash", &self.config_hash)], 1.0);
        metrics.gauge("pointsman_uptime_seconds", &[], self.start.elapsed().as_secs_f64());
        let phase = self.drain.phase();
        for it in Phase::ALL {
            metrics.gauge("pointsman_drain_phase", &[("phase", it.name())], f64::from(u8::from(it == phase)));
        }
        metrics.gauge("pointsman_connections_limit", &[], precise(self.max_connections));
        metrics.gauge("pointsman_memory_scarce", &[], f64::from(u8::from(self.scarcity.is_up())));
        metrics.counter("pointsman_log_lines_dropped_total", &[], (self.dropped_lines)() as u64);
        for it in self.loops() {
            metrics.gauge("pointsman_loop_age_seconds", &[("loop", &it.name)], it.age.as_secs_f64());
        }
        told.resize(self.services.len(), Told::default());
        for ((watched, told), (_, traffic)) in self.services.iter().zip(told).zip(self.stats.services()) {
            metrics.discovery(&watched.discovery.seen(), told);
            traffic_metrics(metrics, watched, &traffic);
        }
    }
}

/// The distributions, which come already counted.
fn distributions(stats: &proxy::Stats) -> String {
    let services: Vec<_> = stats.services().collect();
    let one = |name, of: fn(&Snapshot) -> &Distribution| {
        let series: Vec<_> = services.iter().map(|(service, traffic)| (*service, of(traffic))).collect();
        histogram::render(name, metrics::help(name), &series)
    };
    one(metrics::COMMAND, |traffic| &traffic.command_time) + &one(metrics::DIAL, |traffic| &traffic.dial_time)
}

/// For the status: microseconds that so many of a thousand values were below.
fn micros(distribution: &Distribution, per_mille: u64) -> u64 {
    distribution.quantile(per_mille).map_or(0, |span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

fn traffic_metrics(metrics: &Metrics, watched: &Watched, traffic: &Snapshot) {
    let name = watched.name.as_str();
    let service = [("service", name)];
    for (name, value) in [
        ("pointsman_sessions_open", traffic.open),
        ("pointsman_sessions_waiting", traffic.held),
        ("pointsman_sessions_limit", watched.limit as u64),
    ] {
        metrics.gauge(name, &service, precise(value));
    }
    for (name, value) in [
        ("pointsman_sessions_total", traffic.accepted),
        ("pointsman_accept_errors_total", traffic.accept_errors),
        ("pointsman_sessions_passed_on_total", traffic.passed_on),
        ("pointsman_commands_total", traffic.commands),
        ("pointsman_dials_total", traffic.dials),
        ("pointsman_hints_total", traffic.hints),
    ] {
        metrics.counter(name, &service, value);
    }
    for (limit, count) in Limit::ALL.into_iter().zip(traffic.refused) {
        let labels = [("service", name), ("limit", limit.label())];
        metrics.counter("pointsman_sessions_refused_total", &labels, count);
    }
    for (failure, count) in DialFailure::ALL.into_iter().zip(traffic.dial_failures) {
        let labels = [("service", name), ("reason", failure.label())];
        metrics.counter("pointsman_dial_errors_total", &labels, count);
    }
    for (direction, bytes) in [("in", traffic.bytes_in), ("out", traffic.bytes_out)] {
        metrics.counter("pointsman_client_bytes_total", &[("service", name), ("direction", direction)], bytes);
    }
    for (reason, count) in Reason::ALL.iter().zip(traffic.closed) {
        metrics.counter("pointsman_sessions_closed_total", &[("service", name), ("reason", reason.label())], count);
    }
}

fn traffic_status(watched: &Watched, traffic: &Snapshot) -> BTreeMap<&'static str, u64> {
    BTreeMap::from([
        ("sessions_open", traffic.open),
        ("sessions_waiting", traffic.held),
        ("sessions_limit", watched.limit as u64),
        ("sessions_total", traffic.accepted),
        ("sessions_refused", traffic.refused_in_all()),
        ("commands", traffic.commands),
        ("bytes_in", traffic.bytes_in),
        ("bytes_out", traffic.bytes_out),
        ("dial_errors", traffic.dial_failures.iter().sum()),
        ("command_p50_us", micros(&traffic.command_time, 500)),
        ("command_p99_us", micros(&traffic.command_time, 990)),
        ("dial_p50_us", micros(&traffic.dial_time, 500)),
        ("dial_p99_us", micros(&traffic.dial_time, 990)),
    ])
}

impl Reporter for Report {
    fn alive(&self) -> Verdict {
        health::alive(&self.loops())
    }

    fn ready(&self) -> Verdict {
        let open: u64 = self.stats.services().map(|(_, traffic)| traffic.open).sum();
        let full = if open >= self.max_connections {
            Some(Full::Connections)
        } else {
            self.scarcity.is_up().then_some(Full::Memory)
        };
        health::ready(self.drain.phase(), self.ready_while_leaving, full, &self.services())
    }

    fn started(&self) -> Verdict {
        // The probe server answers only once the workers serve: there is nothing left to wait for.
        Verdict::yes()
    }

    fn metrics(&self, format: Format) -> String {
        let mut locked = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        let (metrics, told) = &mut *locked;
        self.collect(metrics, told);
        let text = metrics.render() + &distributions(&self.stats);
        match format {
            Format::Prometheus => text,
            Format::OpenMetrics => to_open_metrics(&text),
        }
    }

    fn status(&self) -> String {
        let (now, ready, tally) = (Instant::now(), self.ready(), self.drain.tally());
        let services = self.services.iter().zip(self.stats.services()).map(|(watched, (_, traffic))| {
            let listen = watched.listen.iter().map(ToString::to_string).collect();
            status::service(&watched.discovery.seen(), listen, traffic_status(watched, &traffic), now)
        });
        let status = Status {
            schema: status::SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.start.elapsed().as_secs_f64(),
            phase: self.drain.phase().name(),
            ready: ready.ok,
            not_ready_because: ready.reasons,
            config_hash: self.config_hash.clone(),
            drain: status::Drain { open: tally.open, left: tally.left, asked: tally.asked, cut: tally.cut },
            services: services.collect(),
        };
        serde_json::to_string_pretty(&status).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }

    fn page(&self) -> Cow<'static, str> {
        Cow::Borrowed(include_str!("page.html"))
    }
}
