//! Answers the admin server's requests for health, metrics and status, from the counters and
//! snapshots of all parts.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use admin_http::{Format, Reporter, Verdict};
use drain::Drain;
use proxy::{ListenAddr, ResourceShortage, ServiceCounters};

use crate::admin::control::TokenRefusals;
use crate::admin::effective_config::{EffectiveConfig, ReloadOutcome};
use crate::admin::health::{self, EventLoop};
use crate::admin::metrics::Scraper;
use crate::admin::service_registry::{ReportedService, ServiceRegistry};
use crate::admin::status::{self, Status};
use crate::config::PendingReads;
use crate::logging::LogHandle;
use crate::system::memory::Memory;

/// Everything that reports are made from.
pub(crate) struct ProcessReport {
    /// When the process started.
    pub start: Instant,
    /// The settings that a reload can change.
    pub effective: EffectiveConfig,
    /// The configuration files that are being read.
    pub files: PendingReads,
    /// The services.
    pub services: ServiceRegistry,
    /// The shutdown.
    pub drain: Drain,
    /// The data plane's counters.
    pub stats: proxy::Stats,
    /// Set while new clients are refused for lack of memory or files.
    pub scarcity: ResourceShortage,
    /// The workers' heartbeats.
    pub workers: Vec<proxy::Heartbeat>,
    /// Discovery's heartbeat.
    pub discovery: sentinel::Heartbeat,
    /// The log, for its counters of lost lines.
    pub log: LogHandle,
    /// The memory limit, if known.
    pub memory: Option<Memory>,
    /// Counters of the admin server itself.
    pub admin: admin_http::ServerStats,
    /// Counters of tokens that the admin server refused.
    pub(crate) tokens: Arc<TokenRefusals>,
    /// State kept between scrapes. Only scrapes lock it, and the admin server makes one at a time.
    pub scraper: Mutex<Scraper>,
}

/// A single file without external resources, so that it works without network access.
const PAGE: &str = concat!(
    include_str!("page/head.html"),
    include_str!("page/page.css"),
    include_str!("page/body.html"),
    include_str!("page/tools.js"),
    include_str!("page/topology.js"),
    include_str!("page/failovers.js"),
    include_str!("page/page.js"),
    include_str!("page/networks.js"),
    include_str!("page/foot.html"),
);

impl ProcessReport {
    pub(crate) fn loops(&self) -> Vec<EventLoop> {
        let (now, workers) = (Instant::now(), self.workers.iter().enumerate());
        let mut loops: Vec<EventLoop> = workers
            .map(|(number, it)| EventLoop { name: format!("worker {number}"), age: it.age(now) })
            .collect();
        loops.push(EventLoop { name: "discovery".to_owned(), age: self.discovery.age() });
        loops
    }

    /// Summarises the state in one line, for the service manager.
    pub(crate) fn summary(&self) -> String {
        let services = self.services.list();
        let with_master =
            services.iter().filter(|it| it.discovery.snapshot().master.is_some()).count();
        let open = self.drain.session_counts().open;
        let phase = self.drain.phase().name();
        format!("{phase}; {with_master} of {} masters known; {open} sessions", services.len())
    }

    fn config_status(&self, now: Instant) -> status::ConfigStatus {
        let (counts, last) = self.effective.reloads();
        let settings = self.effective.settings();
        status::ConfigStatus {
            hash: settings.hash.clone(),
            reloads: ReloadOutcome::ALL.map(ReloadOutcome::label).into_iter().zip(counts).collect(),
            last_reload: last.as_ref().map(|last| last.outcome.label()),
            last_reload_age_s: last
                .as_ref()
                .map(|last| now.saturating_duration_since(last.at).as_secs_f64()),
            faults: last.map(|last| last.faults).unwrap_or_default(),
            reading: self.files.oldest().map(|(path, time)| status::FileRead {
                file: path.display().to_string(),
                for_s: time.as_secs_f64(),
            }),
            pending_restart: settings.pending.clone(),
            certificates: settings.certificates.iter().map(status::CertificateStatus::of).collect(),
        }
    }

    fn services(&self) -> Vec<health::ServiceHealth> {
        let settings = |service: &Arc<ReportedService>| {
            let seen = service.discovery.snapshot();
            health::ServiceHealth {
                name: service.name.clone(),
                outage: seen.stopped_since.map(|at| at.elapsed()),
                had_master: seen.counts.commits > 0 || service.was_added,
                hold_timeout: service.settings.hold_timeout,
                replicas: seen.replicas.as_ref().and_then(|it| it.eligible).unwrap_or(0),
            }
        };
        // One that is being removed gets no new clients.
        self.services.list().iter().filter(|it| !it.is_leaving).map(settings).collect()
    }
}

impl Reporter for ProcessReport {
    fn alive(&self) -> Verdict {
        health::alive(&self.loops())
    }

    fn ready(&self) -> Verdict {
        let open: u64 = self.stats.open_on_workers().iter().sum();
        let settings = self.effective.settings();
        let full = if open >= settings.max_connections as u64 {
            Some("max_connections is reached")
        } else if open >= self.scarcity.files() as u64 {
            Some("the limit on open files is reached")
        } else {
            self.scarcity.is_memory_low().then_some("memory is about to run out")
        };
        health::ready(self.drain.phase(), settings.readiness, full, &self.services())
    }

    fn metrics(&self, format: Format) -> String {
        self.scraper.lock().unwrap_or_else(PoisonError::into_inner).scrape(self, format)
    }

    fn status(&self) -> String {
        let (now, ready, tally) = (Instant::now(), self.ready(), self.drain.session_counts());
        let services = self.services.list();
        let services = services.iter().map(|service| {
            let of = |(counters, listen): &(ServiceCounters, Vec<ListenAddr>)| {
                let listen = listen.iter().map(ToString::to_string).collect();
                (listen, status::traffic(&service.settings, &counters.snapshot()))
            };
            let writers = of(&service.writers);
            let readers = service.readers.as_ref().map(of);
            let seen = service.discovery.snapshot();
            let operations = service.discovery.operations_snapshot();
            status::service(&seen, &operations, writers, readers, service.is_leaving, now)
        });
        let mut status = Status {
            schema: status::SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: self.start.elapsed().as_secs_f64(),
            phase: self.drain.phase().name(),
            ready: ready.ok,
            not_ready_because: ready.reasons,
            verdict: status::VerdictStatus::default(),
            notices: Vec::new(),
            config_hash: self.effective.settings().hash.clone(),
            config: self.config_status(now),
            drain: status::DrainStatus {
                open: tally.open,
                completed: tally.left,
                drained: tally.asked,
                cut: tally.cut,
            },
            services: services.collect(),
        };
        status.judge();
        serde_json::to_string_pretty(&status)
            .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }

    fn page(&self) -> Cow<'static, str> {
        Cow::Borrowed(PAGE)
    }
}
