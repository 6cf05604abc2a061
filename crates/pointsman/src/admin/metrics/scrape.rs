//! Collects all metrics for one scrape.
//!
//! It reads atomics, snapshots published by discovery, and a few files of the kernel, on the admin
//! server's thread: no worker waits for it, and nothing of a worker is locked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use admin_http::Format;
use drain::Phase;
use proxy::{Distribution, ServiceSnapshot};
use sentinel::DiscoverySnapshot;

use super::exposition::Exposition;
use super::failovers::FailoverHistograms;
use super::{haproxy, histogram, services};
use crate::admin::effective_config::{EffectiveSettings, ReloadOutcome};
use crate::admin::report::ProcessReport;
use crate::admin::service_registry::{ListenerReport, ReportedService};
use crate::system::cgroup::Cgroup;
use crate::system::cgroup::read;
use crate::system::process_usage::{ProcessUsage, thread_times};

/// With more services than this the output is sparse, so that it stays below 200 kB with fifty:
/// counters of services that are zero and alarms that are off are omitted, and the histograms of
/// failovers and dials cover all services together.
pub const SPARSE_ABOVE: usize = 16;

/// State kept between scrapes.
#[derive(Debug)]
pub(crate) struct Scraper {
    failovers: BTreeMap<String, FailoverHistograms>,
    cpu: Option<Cgroup>,
}

impl Scraper {
    /// Creates the state before the first scrape.
    pub(crate) fn find() -> Self {
        Self { failovers: BTreeMap::new(), cpu: Cgroup::of_cpu(&read) }
    }

    /// Returns the text of one scrape.
    pub(crate) fn scrape(&mut self, report: &ProcessReport, format: Format) -> String {
        let now = Instant::now();
        let services: Vec<ScrapedService> =
            report.services.list().into_iter().map(ScrapedService::new).collect();
        let mut page = Exposition::new(services.len() > SPARSE_ABOVE);
        let settings = report.effective.settings();
        process(&mut page, report, now);
        kernel(&mut page, report, self.cpu.as_ref());
        config(&mut page, report, &settings, now);
        services::sentinels(&mut page, services.iter().map(|it| &*it.seen), now);
        for ScrapedService { service, seen, writers, readers, clients } in &services {
            services::discovery(&mut page, seen, now);
            let (name, limit) = (&service.name, service.settings.max_connections);
            page.flag("pointsman_service_removed", &[("service", name)], service.is_leaving);
            services::tls_faults(&mut page, name, seen);
            services::operations(&mut page, name, &service.discovery.operations_snapshot());
            services::traffic(&mut page, name, None, limit, writers);
            if let (Some(readers), Some(replicas)) = (readers, &seen.replicas) {
                services::replicas(&mut page, name, replicas);
                services::traffic(&mut page, name, Some(services::READERS), limit, readers);
            }
            if let Some(clients) = clients {
                services::traffic(&mut page, name, Some(services::SENTINELS), limit, clients);
            }
        }
        self.failovers(&mut page, &services);
        if page.sparse {
            let mut dials = Distribution::default();
            let all = services
                .iter()
                .flat_map(|it| std::iter::once(&it.writers).chain(&it.readers).chain(&it.clients));
            all.for_each(|traffic| dials.merge(&traffic.dial_time));
            histogram::write(&mut page, "pointsman_dial_duration_seconds", &[], &dials);
        }
        if settings.haproxy_names {
            haproxy_metrics(&mut page, report, &settings, &services);
        }
        page.render(format)
    }

    fn failovers(&mut self, page: &mut Exposition, services: &[ScrapedService]) {
        self.failovers.retain(|name, _| services.iter().any(|it| it.service.name == *name));
        let mut all = FailoverHistograms::default();
        for ScrapedService { service, seen, .. } in services {
            let failovers = self.failovers.entry(service.name.clone()).or_default();
            failovers.add_new(seen);
            if page.sparse {
                all.add(failovers);
            } else {
                failovers.write(page, &[("service", &seen.name)]);
            }
        }
        all.write(page, &[]);
    }
}

/// One service at the moment of the scrape.
struct ScrapedService {
    service: Arc<ReportedService>,
    seen: Arc<DiscoverySnapshot>,
    writers: ServiceSnapshot,
    readers: Option<ServiceSnapshot>,
    clients: Option<ServiceSnapshot>,
}

impl ScrapedService {
    fn new(service: Arc<ReportedService>) -> Self {
        let of = |listener: &Option<ListenerReport>| listener.as_ref().map(|it| it.0.snapshot());
        Self {
            seen: service.discovery.snapshot(),
            writers: service.writers.0.snapshot(),
            readers: of(&service.readers),
            clients: of(&service.sentinels),
            service,
        }
    }
}

fn process(page: &mut Exposition, report: &ProcessReport, now: Instant) {
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let labels =
        [("version", env!("CARGO_PKG_VERSION")), ("target", &target), ("profile", profile)];
    page.gauge("pointsman_build_info", &labels, 1);
    let uptime = now.saturating_duration_since(report.start);
    page.gauge("pointsman_uptime_seconds", &[], uptime.as_secs_f64());
    let phase = report.drain.phase();
    for it in Phase::ALL {
        page.flag("pointsman_drain_phase", &[("phase", it.name())], it == phase);
    }
    page.flag("pointsman_memory_pressure", &[], report.scarcity.is_memory_low());
    page.count("pointsman_log_lines_dropped_total", &[], report.log.dropped());
    page.count("pointsman_log_lines_suppressed_total", &[], report.log.suppressed());
    let admin = report.admin.counts();
    page.gauge("pointsman_admin_connections", &[], admin.open);
    page.count("pointsman_admin_requests_total", &[], admin.requests);
    page.count("pointsman_admin_foreign_hosts_total", &[], admin.foreign_hosts);
    let tokens = [("wrong", &report.tokens.wrong), ("throttled", &report.tokens.throttled)];
    let tokens = tokens.map(|(reason, count)| (reason, count.load(Ordering::Relaxed)));
    page.counts("pointsman_admin_tokens_refused_total", &[], "reason", tokens);
    let handshakes = [("completed", admin.handshakes), ("failed", admin.failed_handshakes)];
    page.counts("pointsman_admin_tls_handshakes_total", &[], "result", handshakes);
    let refused = [("plaintext", admin.plaintext), ("client_certificate", admin.uncertified)];
    page.counts("pointsman_admin_requests_refused_total", &[], "reason", refused);
    let closed =
        [("evicted", admin.evicted), ("refused", admin.refused), ("timed_out", admin.timed_out)];
    page.counts("pointsman_admin_closed_total", &[], "reason", closed);
    for it in report.loops() {
        page.gauge("pointsman_loop_age_seconds", &[("loop", &it.name)], it.age.as_secs_f64());
    }
    for ((number, worker), sessions) in
        report.workers.iter().enumerate().zip(report.stats.open_on_workers())
    {
        let number = number.to_string();
        let of = [("worker", &*number)];
        if let Some((cpu, wait)) = worker.thread().and_then(|id| thread_times(id, &read)) {
            page.seconds("pointsman_worker_cpu_seconds_total", &of, cpu);
            page.seconds("pointsman_worker_wait_seconds_total", &of, wait);
        }
        let stalls = worker.stalls();
        page.count("pointsman_worker_stalls_total", &of, stalls.count);
        page.seconds("pointsman_worker_stalled_seconds_total", &of, stalls.time);
        page.gauge("pointsman_worker_sessions", &of, sessions);
        page.gauge("pointsman_worker_tasks", &of, worker.tasks());
    }
}

/// Writes the figures of the kernel.
fn kernel(page: &mut Exposition, report: &ProcessReport, cpu: Option<&Cgroup>) {
    let own = ProcessUsage::read_now(&read);
    page.seconds("process_cpu_seconds_total", &[], own.cpu);
    for (name, value) in [
        ("process_resident_memory_bytes", own.resident),
        ("process_virtual_memory_bytes", own.mapped),
        ("process_threads", own.threads),
        ("process_open_fds", own.files),
        ("process_max_fds", own.max_files),
    ] {
        value.into_iter().for_each(|value| page.gauge(name, &[], value));
    }
    own.started.into_iter().for_each(|at| page.gauge("process_start_time_seconds", &[], at));
    if let Some((limit, used)) = report.memory.as_ref().and_then(|memory| memory.enforced(&read)) {
        page.gauge("pointsman_cgroup_memory_limit_bytes", &[], limit);
        used.into_iter()
            .for_each(|used| page.gauge("pointsman_cgroup_memory_used_bytes", &[], used));
    }
    if let Some(cpu) = cpu.and_then(|cpu| cpu.throttling(&read)) {
        cpu.cores
            .into_iter()
            .for_each(|cores| page.gauge("pointsman_cgroup_cpu_limit_cores", &[], cores));
        page.count("pointsman_cgroup_cpu_periods_total", &[], cpu.periods);
        page.count("pointsman_cgroup_cpu_throttled_periods_total", &[], cpu.throttled);
        page.seconds("pointsman_cgroup_cpu_throttled_seconds_total", &[], cpu.throttled_time);
    }
}

fn config(
    page: &mut Exposition,
    report: &ProcessReport,
    settings: &EffectiveSettings,
    now: Instant,
) {
    let (counts, last) = report.effective.reloads();
    page.gauge("pointsman_config_info", &[("hash", &settings.hash)], 1);
    let outcomes = ReloadOutcome::ALL.map(ReloadOutcome::label).into_iter().zip(counts);
    page.counts("pointsman_config_reloads_total", &[], "result", outcomes);
    let refused = last.as_ref().is_some_and(|last| {
        matches!(last.outcome, ReloadOutcome::Refused | ReloadOutcome::Partial)
    });
    page.flag("pointsman_config_last_reload_successful", &[], !refused);
    let reading = report.files.oldest().map_or(Duration::ZERO, |(_, time)| time);
    page.gauge("pointsman_config_read_pending_seconds", &[], reading.as_secs_f64());
    page.gauge("pointsman_config_secrets_unread", &[], settings.unread_secrets);
    for it in &settings.certificates {
        let labels = [("service", &*it.service), ("side", it.side), ("file", &*it.file())];
        let until = it.facts.not_after.as_secs();
        page.gauge("pointsman_tls_certificate_not_after_seconds", &labels, until);
    }
    page.gauge("pointsman_config_pending_restart", &[], settings.pending.len());
    let age = now.saturating_duration_since(last.map_or(report.start, |last| last.at));
    page.gauge("pointsman_config_last_reload_age_seconds", &[], age.as_secs_f64());
    page.gauge(
        "pointsman_connections_limit",
        &[],
        settings.max_connections.min(report.scarcity.files()),
    );
}

fn haproxy_metrics(
    page: &mut Exposition,
    report: &ProcessReport,
    settings: &EffectiveSettings,
    services: &[ScrapedService],
) {
    let mut listeners = Vec::new();
    for ScrapedService { service, seen, writers, readers, .. } in services {
        let listener = |proxy, traffic, replicas| {
            let limit = service.settings.max_connections;
            haproxy::ListenerMetrics { proxy, traffic, limit, seen, replicas }
        };
        listeners.push(listener(service.writers.0.name(), writers, None));
        if let (Some((counters, _)), Some(readers), Some(replicas)) =
            (&service.readers, readers, &seen.replicas)
        {
            listeners.push(listener(counters.name(), readers, Some(replicas)));
        }
    }
    let phase = report.drain.phase();
    let limit = settings.max_connections.min(report.scarcity.files());
    haproxy::process(page, report.start.elapsed(), limit, phase, &listeners);
    for it in &listeners {
        haproxy::listener(page, phase < Phase::Draining, it);
    }
}
