//! Writes the metrics of one service: discovery's snapshot and the counters of the data plane.

use std::collections::BTreeMap;
use std::time::Instant;

use proxy::{
    DialFailure, EndReason, Limit, MaintenanceKind, NotCarried, Pin, RefusedCommand, Rejection,
    ServiceSnapshot, SharedSnapshot, TargetTlsSnapshot, TlsFailure,
};
use sentinel::{Alarm, DiscoverySnapshot, OperationsSnapshot, ReplicaPoolSnapshot, ReplicaState};

use super::exposition::{Exposition, LabelPair};
use super::histogram;
use crate::admin::status::ORDINARY;

/// The label of a listener for readers. The master's listener has none, so that queries are the
/// same with and without readers.
pub(super) const READERS: &str = "replica";
/// The label value of a listener that leads to the sentinels.
pub(super) const SENTINELS: &str = "sentinel";

/// Writes discovery's snapshot.
pub(super) fn discovery(page: &mut Exposition, seen: &DiscoverySnapshot, now: Instant) {
    let service = &[("service", &*seen.name)];
    let master = seen.master.as_ref();
    if let Some(master) = master {
        page.gauge("pointsman_target_info", &[service[0], ("target", &master.addr.to_string())], 1);
    }
    let outage =
        seen.stopped_since.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
    page.gauge(
        "pointsman_target_generation",
        service,
        master.map_or(0, |master| master.generation),
    );
    page.gauge("pointsman_target_epoch", service, master.map_or(0, |master| master.epoch));
    page.gauge("pointsman_target_current_outage_seconds", service, outage);
    page.seconds("pointsman_target_outage_seconds_total", service, seen.outage(now));
    page.flag("pointsman_gate_closed", service, seen.holding);
    page.gauge("pointsman_sentinels", service, seen.sentinels.len());
    page.gauge("pointsman_sentinels_up", service, seen.sentinels.iter().filter(|it| it.up).count());
    page.gauge("pointsman_sentinel_voters", service, seen.quorum.0);
    page.flag("pointsman_sentinel_disagreement", service, seen.disagreement);
    page.flag("pointsman_sentinel_minority", service, seen.minority);
    if let Some(spare) = seen.spare_replicas {
        page.gauge("pointsman_durability_spare_replicas", service, spare);
    }
    for (servers, status) in [("redis", &seen.auth), ("sentinel", &seen.sentinel_auth)] {
        let labels = &[service[0], ("servers", servers)];
        page.gauge("pointsman_credentials_refused", labels, status.refused.len());
        page.gauge("pointsman_credentials_outdated", labels, status.outdated);
    }
    page.flag("pointsman_override_active", service, seen.overrides.in_force.is_some());
    page.gauge(
        "pointsman_sentinels_without_vote",
        service,
        seen.sentinels.iter().filter(|it| it.stranger).count(),
    );
    for alarm in Alarm::ALL {
        let on = seen.alarms.iter().filter(|it| it.alarm == alarm && it.ended_at.is_none());
        let concerned: usize = on.map(|it| it.sentinels.len()).sum();
        if concerned > 0 || !page.sparse {
            page.gauge("pointsman_alarm", &[service[0], ("alarm", alarm.label())], concerned);
        }
    }
    let counts = &seen.counts;
    for (name, value) in [
        ("pointsman_master_switches_total", counts.commits),
        ("pointsman_holds_total", counts.holds),
        ("pointsman_holds_expired_total", counts.holds_expired),
        ("pointsman_target_cleared_total", counts.clears),
        ("pointsman_sentinel_stale_views_total", counts.stale_views),
        ("pointsman_sentinel_failed_polls_total", counts.bad_rounds),
        ("pointsman_sentinel_unknown_name_total", counts.unknown_names),
        ("pointsman_sentinel_splits_total", counts.splits),
        ("pointsman_sentinel_unverified_regressions_total", counts.unverified_regressions),
        ("pointsman_lineage_broken_total", counts.lineage_broken),
        ("pointsman_process_stalls_total", counts.stalls),
    ] {
        page.count(name, service, value);
    }
}

/// Writes how many servers cannot be reached because of TLS. Nothing if there is none.
pub(super) fn tls_faults(page: &mut Exposition, service: &str, seen: &DiscoverySnapshot) {
    let nodes = seen.nodes.iter().filter_map(|it| Some(("redis", it.tls_fault?)));
    let sentinels = seen.sentinels.iter().filter_map(|it| Some(("sentinel", it.tls_fault?)));
    let mut faults: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (servers, fault) in nodes.chain(sentinels) {
        *faults.entry((servers, fault.as_str())).or_default() += 1;
    }
    for ((servers, fault), count) in faults {
        let of = &[("service", service), ("servers", servers), ("fault", fault)];
        page.gauge("pointsman_tls_faults", of, count);
    }
}

/// Writes what operators' commands have changed on the servers.
pub(super) fn operations(page: &mut Exposition, service: &str, seen: &OperationsSnapshot) {
    let of = &[("service", service)];
    page.gauge("pointsman_switchover_changed_priorities", of, seen.changed_priorities.len());
}

/// Writes each sentinel once: services with the same sentinels share the connections to them.
pub(super) fn sentinels<'a>(
    page: &mut Exposition,
    services: impl Iterator<Item = &'a DiscoverySnapshot>,
    now: Instant,
) {
    #[derive(Default)]
    struct Health {
        up: bool,
        events: bool,
        oldest: Option<f64>,
        disagrees: u64,
    }
    let mut all: BTreeMap<String, Health> = BTreeMap::new();
    for it in services.flat_map(|seen| &seen.sentinels) {
        let health = all.entry(it.addr.to_string()).or_default();
        let age =
            it.view.as_ref().map(|(_, _, at)| now.saturating_duration_since(*at).as_secs_f64());
        health.up |= it.up;
        health.events |= it.events;
        health.oldest = [health.oldest, age].into_iter().flatten().reduce(f64::max);
        health.disagrees += u64::from(it.disagrees);
    }
    for (addr, health) in &all {
        let of: &[LabelPair<'_>] = &[("sentinel", addr)];
        page.flag("pointsman_sentinel_up", of, health.up);
        page.flag("pointsman_sentinel_events", of, health.events);
        page.gauge("pointsman_sentinel_disagreeing_services", of, health.disagrees);
        if let Some(age) = health.oldest {
            page.gauge("pointsman_sentinel_view_age_seconds", of, age);
        }
    }
}

/// Writes the eligibility of replicas, without their addresses: pods come and go.
pub(super) fn replicas(page: &mut Exposition, service: &str, seen: &ReplicaPoolSnapshot) {
    let of = [("service", service)];
    page.gauge("pointsman_replicas_eligible", &of, seen.eligible.unwrap_or(0));
    for state in ReplicaState::ALL {
        let count = seen.replicas.iter().filter(|it| it.state == state).count();
        page.gauge("pointsman_replicas", &[of[0], ("state", state.label())], count);
    }
    let serving =
        || seen.replicas.iter().filter(|it| it.state == ReplicaState::Eligible).map(|it| it.lag);
    page.gauge(
        "pointsman_replica_lag_bytes",
        &of,
        serving().map(|lag| lag.bytes).max().unwrap_or(0),
    );
    let time = serving().map(|lag| lag.time).max().unwrap_or_default();
    page.gauge("pointsman_replica_lag_seconds", &of, time.as_secs_f64());
    page.count("pointsman_replica_ejections_total", &of, seen.ejections);
    page.count("pointsman_replica_readmissions_total", &of, seen.readmissions);
}

/// Writes how TLS sessions begin: those of clients, and those with targets.
fn tls_handshakes(page: &mut Exposition, of: &[LabelPair<'_>], traffic: &ServiceSnapshot) {
    page.gauge("pointsman_tls_handshakes_running", of, traffic.tls_running);
    let kinds = [("full", traffic.tls_full), ("resumed", traffic.tls_resumed)];
    page.counts("pointsman_tls_handshakes_total", of, "kind", kinds);
    let failures = TlsFailure::ALL.iter().map(|it| it.label()).zip(traffic.tls_failures);
    page.counts("pointsman_tls_handshake_failures_total", of, "reason", failures);
    let target = &traffic.target_tls;
    let kinds = [("full", target.full), ("resumed", target.resumed)];
    page.counts("pointsman_target_tls_handshakes_total", of, "kind", kinds);
    let faults = TargetTlsSnapshot::FAULTS.into_iter();
    let faults = faults.map(|fault| (fault.as_str(), target.failed(fault)));
    page.counts("pointsman_target_tls_errors_total", of, "reason", faults);
}

/// Writes what sessions share.
fn shared(page: &mut Exposition, of: &[LabelPair<'_>], traffic: &ServiceSnapshot) {
    let shared = &traffic.shared;
    page.gauge("pointsman_shared_sessions", of, shared.sessions);
    page.gauge("pointsman_dedicated_sessions", of, shared.dedicated);
    page.gauge("pointsman_shared_connections", of, shared.connections);
    page.count("pointsman_shared_connections_opened_total", of, shared.opened);
    page.count("pointsman_shared_connection_errors_total", of, shared.not_opened);
    page.count("pointsman_shared_desyncs_total", of, shared.desyncs);
    page.count("pointsman_shared_sessions_lost_total", of, shared.members_lost);
    page.count("pointsman_shared_returns_total", of, shared.returned);
    page.count("pointsman_shared_writes_total", of, shared.writes);
    page.count("pointsman_shared_requests_total", of, shared.requests);
    // Most services share nothing, and two series of each would be a good part of the page.
    let tables = SharedSnapshot::tables().into_iter().zip(shared.by_table);
    for (table, count) in tables.filter(|_| shared.opened > 0) {
        let labels = [of, &[("table", table)]].concat();
        page.gauge("pointsman_shared_connections_by_table", &labels, count);
    }
    let checks = SharedSnapshot::answers().into_iter().zip(shared.access_checks);
    let checks = checks.filter(|_| shared.opened > 0);
    page.counts("pointsman_shared_access_checks_total", of, "result", checks);
    let promotions = SharedSnapshot::reasons().zip(shared.promoted);
    page.counts("pointsman_shared_promotions_total", of, "reason", promotions);
}

/// Clients and requests that were refused.
fn refusals(page: &mut Exposition, of: &[LabelPair<'_>], traffic: &ServiceSnapshot) {
    let limits = Limit::ALL.iter().map(|it| it.label()).zip(traffic.refused);
    page.counts("pointsman_sessions_refused_total", of, "limit", limits);
    let reasons = Rejection::ALL.iter().map(|it| it.label()).zip(traffic.rejected);
    page.counts("pointsman_clients_rejected_total", of, "reason", reasons);
    let commands = RefusedCommand::labels().zip(traffic.refused_commands);
    page.counts("pointsman_refused_commands_total", of, "command", commands);
}

/// Writes the counters of one listener; `listener` is its label; the listener of the master
/// has none.
pub(super) fn traffic(
    page: &mut Exposition,
    service: &str,
    listener: Option<&'static str>,
    limit: usize,
    traffic: &ServiceSnapshot,
) {
    let both = [("service", service), ("listener", listener.unwrap_or_default())];
    let of = if listener.is_some() { &both[..] } else { &both[..1] };
    page.gauge("pointsman_sessions_open", of, traffic.open());
    page.gauge("pointsman_sessions_waiting", of, traffic.held);
    page.gauge("pointsman_sessions_limit", of, limit);
    for (name, value) in [
        ("pointsman_sessions_total", traffic.accepted),
        ("pointsman_sessions_held_total", traffic.waits),
        ("pointsman_proxy_headers_total", traffic.proxy_headers),
        ("pointsman_accept_errors_total", traffic.accept_errors),
        ("pointsman_sessions_reassigned_total", traffic.handed_over),
        ("pointsman_sessions_delayed_total", traffic.delayed),
        ("pointsman_spliced_bytes_total", traffic.bytes_spliced),
        ("pointsman_commands_total", traffic.commands),
        ("pointsman_dials_total", traffic.dials),
        ("pointsman_sessions_carried_total", traffic.carried),
        ("pointsman_sessions_names_dropped_total", traffic.names_dropped),
        ("pointsman_maintenance_handshakes_total", traffic.maintenance_handshakes),
        ("pointsman_discovery_hints_total", traffic.hints),
    ] {
        page.count(name, of, value);
    }
    if listener == Some(READERS) {
        page.count("pointsman_sessions_rebalanced_total", of, traffic.rebalanced);
    } else {
        page.count("pointsman_unconfirmed_writes_total", of, traffic.not_confirmed);
    }
    refusals(page, of, traffic);
    tls_handshakes(page, of, traffic);
    shared(page, of, traffic);
    let failures = DialFailure::ALL.iter().map(|it| it.label()).zip(traffic.dial_failures);
    page.counts("pointsman_dial_errors_total", of, "reason", failures);
    let bytes = [("in", traffic.bytes_in), ("out", traffic.bytes_out)];
    page.counts("pointsman_client_bytes_total", of, "direction", bytes);
    let notices = MaintenanceKind::ALL.iter().map(|it| it.label()).zip(traffic.notices);
    page.counts("pointsman_maintenance_notifications_total", of, "kind", notices);
    let ordinary = std::iter::once((ORDINARY, traffic.ordinary()));
    for (state, count) in ordinary.chain(Pin::ALL.iter().map(|it| it.label()).zip(traffic.pinned)) {
        if !page.sparse || count > 0 {
            let labels = [of, &[("state", state)]].concat();
            page.gauge("pointsman_sessions_by_state", &labels, count);
        }
    }
    let reasons = NotCarried::all().map(NotCarried::label).zip(traffic.not_carried);
    page.counts("pointsman_sessions_not_carried_total", of, "reason", reasons);
    let reasons = EndReason::ALL.iter().map(|it| it.label()).zip(traffic.closed.iter().copied());
    page.counts("pointsman_sessions_closed_total", of, "reason", reasons);
    if !page.sparse || traffic.command_time.count() > 0 {
        histogram::write(page, "pointsman_command_duration_seconds", of, &traffic.command_time);
    }
    if !page.sparse {
        histogram::write(page, "pointsman_dial_duration_seconds", of, &traffic.dial_time);
    }
}
