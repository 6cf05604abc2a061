//! The process's answers to the probe server: health, metrics and status, put together from what everybody counts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use drain::{Drain, Phase};
use probe::{Format, Reporter, Verdict};
use proxy::{DialFailure, Distribution, Limit, NoticeKind, Reason, Scarcity, Snapshot};

use crate::health::{self, Full, Loop};
use crate::histogram;
use crate::in_force::{Facts, InForce, Outcome};
use crate::metrics::{self, CONFIG_INFO, Metrics, Pair, Told, info, precise, to_open_metrics};
use crate::planes;
use crate::status::{self, Status};
use crate::telemetry::DroppedLines;

/// One service, as far as a report needs it.
pub struct Watched {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub listen: Vec<SocketAddr>,
    /// Where its readers are among the data plane's services, and their addresses.
    pub readers: Option<(usize, Vec<SocketAddr>)>,
    /// Its number.
    pub number: usize,
    /// What is in force, for all services.
    pub in_force: InForce,
    /// What discovery sees.
    pub discovery: sentinel::Handle,
}

impl Watched {
    /// The most connections it may have, and how long its clients may be held.
    fn bounds(&self) -> (usize, Duration) {
        self.in_force.facts().services.get(self.number).copied().unwrap_or_default()
    }
}

/// Everything a report is made of.
pub struct Report {
    /// When the process started.
    pub start: Instant,
    /// What a reload can change.
    pub in_force: InForce,
    /// The services, in the order of the configuration.
    pub services: Vec<Watched>,
    /// The shutdown.
    pub drain: Drain,
    /// The data plane's counters.
    pub stats: proxy::Stats,
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

/// One file without anything from elsewhere, so that it works where there is no network.
const PAGE: &str = concat!(
    include_str!("page/head.html"),
    include_str!("page/page.css"),
    include_str!("page/body.html"),
    include_str!("page/tools.js"),
    include_str!("page/words.js"),
    include_str!("page/picture.js"),
    include_str!("page/story.js"),
    include_str!("page/page.js"),
    include_str!("page/foot.html"),
);

impl Report {
    fn loops(&self) -> Vec<Loop> {
        let (now, workers) = (Instant::now(), self.workers.iter().enumerate());
        let mut loops: Vec<Loop> =
            workers.map(|(number, it)| Loop { name: format!("worker {number}"), age: it.age(now) }).collect();
        loops.push(Loop { name: "discovery".to_owned(), age: self.discovery.age() });
        loops
    }

    /// How it stands in one line, for the service manager.
    #[must_use]
    pub fn line(&self) -> String {
        let with_master = self.services.iter().filter(|it| it.discovery.seen().master.is_some()).count();
        let open = self.drain.tally().open;
        let phase = self.drain.phase().name();
        format!("{phase}; {with_master} of {} masters known; {open} sessions", self.services.len())
    }

    fn config(&self, metrics: &Metrics, facts: &Facts) {
        let (counts, last) = self.in_force.reloads();
        for (outcome, count) in Outcome::ALL.into_iter().zip(counts) {
            metrics.counter("pointsman_config_reloads_total", &[("result", outcome.label())], count);
        }
        let refused = last.as_ref().is_some_and(|last| last.outcome == Outcome::Refused);
        metrics.gauge("pointsman_config_last_reload_successful", &[], f64::from(u8::from(!refused)));
        metrics.gauge("pointsman_config_pending_restart", &[], precise(facts.pending.len() as u64));
        let age = last.map_or(self.start, |last| last.at).elapsed();
        metrics.gauge("pointsman_config_last_reload_age_seconds", &[], age.as_secs_f64());
    }

    fn config_status(&self, now: Instant) -> status::Config {
        let ([applied, unchanged, refused], last) = self.in_force.reloads();
        let facts = self.in_force.facts();
        status::Config {
            hash: facts.hash.clone(),
            reloads: BTreeMap::from([("applied", applied), ("unchanged", unchanged), ("refused", refused)]),
            last_reload: last.as_ref().map(|last| last.outcome.label()),
            last_reload_age_s: last.as_ref().map(|last| now.saturating_duration_since(last.at).as_secs_f64()),
            faults: last.map(|last| last.faults).unwrap_or_default(),
            pending_restart: facts.pending.clone(),
        }
    }

    fn services(&self) -> Vec<health::Service> {
        let facts = |watched: &Watched| {
            let seen = watched.discovery.seen();
            health::Service {
                name: watched.name.clone(),
                stopped_for: seen.stopped_since.map(|at| at.elapsed()),
                had_master: seen.counts.commits > 0,
                hold_timeout: watched.bounds().1,
                replicas: seen.replicas.as_ref().and_then(|it| it.eligible).unwrap_or(0),
            }
        };
        self.services.iter().map(facts).collect()
    }

    fn collect(&self, metrics: &Metrics, told: &mut Vec<Told>) {
        metrics.gauge("pointsman_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        let facts = self.in_force.facts();
        self.config(metrics, &facts);
        metrics.gauge("pointsman_uptime_seconds", &[], self.start.elapsed().as_secs_f64());
        let phase = self.drain.phase();
        for it in Phase::ALL {
            metrics.gauge("pointsman_drain_phase", &[("phase", it.name())], f64::from(u8::from(it == phase)));
        }
        metrics.gauge("pointsman_connections_limit", &[], precise(facts.max_connections as u64));
        metrics.gauge("pointsman_memory_scarce", &[], f64::from(u8::from(self.scarcity.is_up())));
        metrics.counter("pointsman_log_lines_dropped_total", &[], (self.dropped_lines)() as u64);
        for it in self.loops() {
            metrics.gauge("pointsman_loop_age_seconds", &[("loop", &it.name)], it.age.as_secs_f64());
        }
        told.resize(self.services.len(), Told::default());
        let traffic: Vec<(&str, Snapshot)> = self.stats.services().collect();
        for ((watched, told), (_, writers)) in self.services.iter().zip(told).zip(&traffic) {
            let seen = watched.discovery.seen();
            metrics.discovery(&seen, told);
            traffic_metrics(metrics, &[("service", &watched.name)], watched.bounds().0, writers);
            let readers = watched.readers.as_ref().and_then(|(plane, _)| traffic.get(*plane));
            if let (Some((_, readers)), Some(replicas)) = (readers, &seen.replicas) {
                metrics.replicas(&watched.name, replicas);
                let labels = [("service", &*watched.name), metrics::READERS];
                traffic_metrics(metrics, &labels, watched.bounds().0, readers);
            }
        }
    }
}

/// The distributions, which come already counted.
fn distributions(stats: &proxy::Stats) -> String {
    let services: Vec<_> = stats.services().collect();
    let one = |name, of: fn(&Snapshot) -> &Distribution| {
        let labels = |plane: &str| match plane.strip_suffix(planes::READERS) {
            Some(service) => format!("service=\"{service}\",listener=\"replica\""),
            None => format!("service=\"{plane}\""),
        };
        let series: Vec<_> = services.iter().map(|(plane, traffic)| (labels(plane), of(traffic))).collect();
        histogram::render(name, metrics::help(name), &series)
    };
    one(metrics::COMMAND, |traffic| &traffic.command_time) + &one(metrics::DIAL, |traffic| &traffic.dial_time)
}

/// What one listener counts, under the labels that name it.
fn traffic_metrics(metrics: &Metrics, of: &[Pair<'_>], limit: usize, traffic: &Snapshot) {
    let and = |name: &'static str, value: &'static str| -> Vec<Pair<'_>> { [of, &[(name, value)]].concat() };
    for (name, value) in [
        ("pointsman_sessions_open", traffic.open),
        ("pointsman_sessions_waiting", traffic.held),
        ("pointsman_sessions_limit", limit as u64),
    ] {
        metrics.gauge(name, of, precise(value));
    }
    for (name, value) in [
        ("pointsman_sessions_total", traffic.accepted),
        ("pointsman_accept_errors_total", traffic.accept_errors),
        ("pointsman_sessions_passed_on_total", traffic.passed_on),
        ("pointsman_spliced_bytes_total", traffic.bytes_spliced),
        ("pointsman_commands_total", traffic.commands),
        ("pointsman_dials_total", traffic.dials),
        ("pointsman_sessions_carried_total", traffic.carried),
        ("pointsman_maintenance_handshakes_total", traffic.agreements),
        ("pointsman_hints_total", traffic.hints),
    ] {
        metrics.counter(name, of, value);
    }
    for (limit, count) in Limit::ALL.into_iter().zip(traffic.refused) {
        metrics.counter("pointsman_sessions_refused_total", &and("limit", limit.label()), count);
    }
    for (failure, count) in DialFailure::ALL.into_iter().zip(traffic.dial_failures) {
        metrics.counter("pointsman_dial_errors_total", &and("reason", failure.label()), count);
    }
    for (direction, bytes) in [("in", traffic.bytes_in), ("out", traffic.bytes_out)] {
        metrics.counter("pointsman_client_bytes_total", &and("direction", direction), bytes);
    }
    for (kind, count) in NoticeKind::ALL.into_iter().zip(traffic.notices) {
        metrics.counter("pointsman_maintenance_pushes_total", &and("kind", kind.label()), count);
    }
    for (reason, count) in Reason::ALL.iter().zip(traffic.closed) {
        metrics.counter("pointsman_sessions_closed_total", &and("reason", reason.label()), count);
    }
}

impl Reporter for Report {
    fn alive(&self) -> Verdict {
        health::alive(&self.loops())
    }

    fn ready(&self) -> Verdict {
        let open: u64 = self.stats.services().map(|(_, traffic)| traffic.open).sum();
        let full = if open >= self.in_force.facts().max_connections as u64 {
            Some(Full::Connections)
        } else {
            self.scarcity.is_up().then_some(Full::Memory)
        };
        health::ready(self.drain.phase(), self.in_force.facts().ready_while_leaving, full, &self.services())
    }

    fn started(&self) -> Verdict {
        // The probe server answers only once the workers serve: there is nothing left to wait for.
        Verdict::yes()
    }

    fn metrics(&self, format: Format) -> String {
        let mut locked = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        let (metrics, told) = &mut *locked;
        self.collect(metrics, told);
        let mut text = metrics.render() + &distributions(&self.stats);
        // By hand, because a recorder would keep the series of every hash there ever was.
        text.push_str(&info(CONFIG_INFO, "hash", &self.in_force.facts().hash));
        match format {
            Format::Prometheus => text,
            Format::OpenMetrics => to_open_metrics(&text),
        }
    }

    fn status(&self) -> String {
        let (now, ready, tally) = (Instant::now(), self.ready(), self.drain.tally());
        let traffic: Vec<Snapshot> = self.stats.services().map(|(_, traffic)| traffic).collect();
        let services = self.services.iter().zip(&traffic).map(|(watched, writers)| {
            let of = |listen: &[SocketAddr], traffic: &Snapshot| {
                let listen = listen.iter().map(ToString::to_string).collect();
                (listen, status::traffic(watched.bounds().0, traffic))
            };
            let readers = watched.readers.as_ref().and_then(|(plane, listen)| Some(of(listen, traffic.get(*plane)?)));
            status::service(&watched.discovery.seen(), of(&watched.listen, writers), readers, now)
        });
        let status = Status {
            schema: status::SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.start.elapsed().as_secs_f64(),
            phase: self.drain.phase().name(),
            ready: ready.ok,
            not_ready_because: ready.reasons,
            config_hash: self.in_force.facts().hash.clone(),
            config: self.config_status(now),
            drain: status::Drain { open: tally.open, left: tally.left, asked: tally.asked, cut: tally.cut },
            services: services.collect(),
        };
        serde_json::to_string_pretty(&status).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }

    fn page(&self) -> Cow<'static, str> {
        Cow::Borrowed(PAGE)
    }
}
