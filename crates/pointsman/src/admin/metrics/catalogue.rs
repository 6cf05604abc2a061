//! The catalogue of metrics: name, kind, labels and help of each, defined once.
//!
//! `/metrics`, the manual page and `docs/metrics.md` are generated from it; a test compares the
//! latter. Names follow the conventions of Prometheus: base units, `_total` on counters.
//!
//! Labels are bounded by construction: services and listeners come from the configuration, workers
//! from the process, reasons, limits, phases and states from enums, and nodes and sentinels are
//! those that discovery currently watches.

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MetricKind {
    /// Increases until the process ends.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// A distribution in buckets.
    Histogram,
}

impl MetricKind {
    /// Returns the name used in the exposition format.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// The labels that its series may have.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: MetricKind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Gauge, labels, help }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: MetricKind::Histogram, labels, help }
}

const SERVICE: &[&str] = &["service"];
/// Series of a listener for readers have `listener="replica"` in addition.
const TRAFFIC: &[&str] = &["service", "listener"];

/// Pointsman's own metrics, in the order of `/metrics`.
pub const CATALOGUE: &[Metric] = &[
    gauge(
        "pointsman_build_info",
        &["version", "target", "profile"],
        "Build information in the labels; always 1.",
    ),
    gauge("pointsman_uptime_seconds", &[], "Time since the start of the process, in seconds."),
    gauge(
        "process_start_time_seconds",
        &[],
        "Start time of the process, in seconds since the Unix epoch.",
    ),
    counter(
        "process_cpu_seconds_total",
        &[],
        "CPU time of all threads in user and kernel mode, in seconds.",
    ),
    gauge("process_resident_memory_bytes", &[], "Resident memory of the process, in bytes."),
    gauge("process_virtual_memory_bytes", &[], "Virtual memory of the process, in bytes."),
    gauge("process_threads", &[], "Threads of the process."),
    gauge("process_open_fds", &[], "Open file descriptors."),
    gauge("process_max_fds", &[], "Limit on open file descriptors."),
    gauge(
        "pointsman_cgroup_memory_limit_bytes",
        &[],
        "Memory limit of the cgroup, in bytes; absent without a limit.",
    ),
    gauge(
        "pointsman_cgroup_memory_used_bytes",
        &[],
        "Memory use of the cgroup that is not reclaimable at once, in bytes.",
    ),
    gauge(
        "pointsman_cgroup_cpu_limit_cores",
        &[],
        "CPU limit of the cgroup, in cores; absent without a limit.",
    ),
    counter(
        "pointsman_cgroup_cpu_periods_total",
        &[],
        "Periods in which the CPU limit of the cgroup was enforced.",
    ),
    counter(
        "pointsman_cgroup_cpu_throttled_periods_total",
        &[],
        "Periods in which the cgroup was throttled.",
    ),
    counter(
        "pointsman_cgroup_cpu_throttled_seconds_total",
        &[],
        "Total time for which CPUs of the cgroup were throttled, in seconds.",
    ),
    counter(
        "pointsman_worker_cpu_seconds_total",
        &["worker"],
        "CPU time of a worker, in seconds; its rate is the utilisation, at most 1.",
    ),
    counter(
        "pointsman_worker_wait_seconds_total",
        &["worker"],
        "Time for which a worker was runnable without a CPU, in seconds.",
    ),
    counter(
        "pointsman_worker_stalls_total",
        &["worker"],
        "Periods of more than 0.25 s without a beat of a worker's event loop.",
    ),
    counter(
        "pointsman_worker_stalled_seconds_total",
        &["worker"],
        "Total time of a worker's stalls, in seconds.",
    ),
    gauge("pointsman_worker_sessions", &["worker"], "Open client connections of a worker."),
    gauge(
        "pointsman_worker_tasks",
        &["worker"],
        "Tasks of a worker: one per session, and a constant number of others.",
    ),
    gauge(
        "pointsman_loop_age_seconds",
        &["loop"],
        "Time since the last iteration of an event loop, in seconds; liveness fails above 5.",
    ),
    gauge(
        "pointsman_config_info",
        &["hash"],
        "Hash of the effective configuration in the label; always 1.",
    ),
    counter("pointsman_config_reloads_total", &["result"], "Configuration reloads, by result."),
    gauge(
        "pointsman_config_last_reload_successful",
        &[],
        "Success of the last reload: 0 if it was refused, else 1.",
    ),
    gauge(
        "pointsman_config_last_reload_age_seconds",
        &[],
        "Time since the last reload or the start, in seconds.",
    ),
    gauge(
        "pointsman_config_read_pending_seconds",
        &[],
        "Age of the oldest unfinished file read, in seconds.",
    ),
    gauge(
        "pointsman_config_secrets_unread",
        &[],
        "Secret files that the last reload could not read; their former secrets stay in use.",
    ),
    gauge(
        "pointsman_tls_certificate_not_after_seconds",
        &["service", "side", "file"],
        "End of the validity of a certificate in use, in seconds since 1970; of our own towards \
         servers with side redis or sentinel.",
    ),
    gauge(
        "pointsman_config_pending_restart",
        &[],
        "Changed configuration keys that need a restart to take effect.",
    ),
    gauge(
        "pointsman_drain_phase",
        &["phase"],
        "Phase of the shutdown: 1 for the current one, else 0.",
    ),
    gauge(
        "pointsman_connections_limit",
        &[],
        "Maximum client connections of all services together.",
    ),
    gauge(
        "pointsman_memory_pressure",
        &[],
        "Memory pressure: 1 while new clients are refused because memory is about to run out, \
         else 0.",
    ),
    counter(
        "pointsman_log_lines_dropped_total",
        &[],
        "Log lines dropped because their reader was too slow or a write failed.",
    ),
    counter(
        "pointsman_log_lines_suppressed_total",
        &[],
        "Log lines suppressed by the rate limit per call site.",
    ),
    gauge("pointsman_admin_connections", &[], "Open connections to the admin server."),
    counter("pointsman_admin_requests_total", &[], "Requests answered by the admin server."),
    counter(
        "pointsman_admin_tokens_refused_total",
        &["reason"],
        "Tokens refused by the admin server, by reason: wrong, or throttled (wrong as well, \
         from a source that had presented too many).",
    ),
    counter(
        "pointsman_admin_foreign_hosts_total",
        &[],
        "Requests refused by the admin server because they named a foreign host.",
    ),
    counter(
        "pointsman_admin_tls_handshakes_total",
        &["result"],
        "TLS handshakes with clients of the admin server, by result: completed or failed.",
    ),
    counter(
        "pointsman_admin_requests_refused_total",
        &["reason"],
        "Requests refused by the admin server, by reason: plaintext (TLS is required), or \
         client_certificate (a valid one is required).",
    ),
    counter(
        "pointsman_admin_closed_total",
        &["reason"],
        "Connections closed by the admin server, by reason: evicted, refused or timed_out.",
    ),
    gauge(
        "pointsman_sentinel_up",
        &["sentinel"],
        "Connection to a sentinel: 1 if it is established, else 0.",
    ),
    gauge(
        "pointsman_sentinel_events",
        &["sentinel"],
        "Event subscription at a sentinel: 1 if it is active, else 0; without it switches are \
         found by polling only.",
    ),
    gauge(
        "pointsman_tls_faults",
        &["service", "servers", "fault"],
        "Redis nodes or sentinels to which a connection over TLS fails, by the kind of the fault.",
    ),
    gauge(
        "pointsman_sentinel_view_age_seconds",
        &["sentinel"],
        "Maximum age of a sentinel's view of a master among all services, in seconds.",
    ),
    gauge(
        "pointsman_sentinel_disagreeing_services",
        &["sentinel"],
        "Services for which a sentinel names another master or epoch than the one in force.",
    ),
    gauge(
        "pointsman_target_info",
        &["service", "target"],
        "Address of the master in force in the label; always 1.",
    ),
    gauge(
        "pointsman_target_generation",
        SERVICE,
        "Generation of the commit in force; 0 without one.",
    ),
    gauge("pointsman_target_epoch", SERVICE, "Sentinel's config-epoch of the commit in force."),
    gauge(
        "pointsman_target_current_outage_seconds",
        SERVICE,
        "Duration of the current outage, in which no request can be sent to a master, in \
         seconds; 0 while traffic flows.",
    ),
    counter(
        "pointsman_target_outage_seconds_total",
        SERVICE,
        "Total time without a usable master since the first one was found, in seconds.",
    ),
    gauge(
        "pointsman_service_removed",
        SERVICE,
        "State of the service: 1 while the sessions of a service that was removed by a reload leave, \
         else 0.",
    ),
    gauge("pointsman_gate_closed", SERVICE, "State of the gate: 1 while traffic is held, else 0."),
    gauge(
        "pointsman_switchover_changed_priorities",
        SERVICE,
        "Nodes whose replica-priority was changed for a switchover and is not restored yet.",
    ),
    gauge("pointsman_sentinels", SERVICE, "Known sentinels."),
    gauge("pointsman_sentinels_up", SERVICE, "Connected sentinels."),
    gauge("pointsman_sentinel_voters", SERVICE, "Sentinels with a vote, reachable or not."),
    gauge(
        "pointsman_sentinel_disagreement",
        SERVICE,
        "Disagreement: 1 while voting or configured sentinels name different masters or epochs, \
         else 0.",
    ),
    gauge(
        "pointsman_sentinel_minority",
        SERVICE,
        "Minority: 1 while the reachable sentinels are a minority by their own account, or, unless \
         minority = \"keep\", because too few are reachable, else 0.",
    ),
    gauge(
        "pointsman_durability_spare_replicas",
        SERVICE,
        "Replicas of the master beyond those that have to confirm a write, with \
         durability.replicas. Below 0 writes are refused.",
    ),
    gauge(
        "pointsman_credentials_refused",
        &["service", "servers"],
        "Servers that refuse the configured credentials.",
    ),
    gauge(
        "pointsman_credentials_outdated",
        &["service", "servers"],
        "Servers on which credentials from before the last change are in use.",
    ),
    gauge(
        "pointsman_override_active",
        SERVICE,
        "Override: 1 while a master is followed by an operator's order instead of the sentinels, \
         else 0.",
    ),
    gauge(
        "pointsman_sentinels_without_vote",
        SERVICE,
        "Configured sentinels without a vote, because they and the electorate do not know each \
         other.",
    ),
    gauge(
        "pointsman_alarm",
        &["service", "alarm"],
        "Servers that an alarm is about, by alarm: name_unknown, unlisted, ghosts, outside_nodes, \
         followed_by_replica or lacks_confirmed; 0 while it is off.",
    ),
    counter("pointsman_master_switches_total", SERVICE, "Committed master changes."),
    counter("pointsman_holds_total", SERVICE, "Holds of traffic."),
    counter("pointsman_holds_expired_total", SERVICE, "Holds that ended without a master change."),
    counter("pointsman_target_cleared_total", SERVICE, "Removals of a master without a successor."),
    counter(
        "pointsman_sentinel_stale_views_total",
        SERVICE,
        "Ignored sentinel answers with an older epoch than the one in force.",
    ),
    counter(
        "pointsman_sentinel_failed_polls_total",
        SERVICE,
        "Sentinel polls with incomplete, refused or malformed answers.",
    ),
    counter(
        "pointsman_sentinel_unknown_name_total",
        SERVICE,
        "Answers of sentinels that do not monitor the master's name.",
    ),
    counter(
        "pointsman_sentinel_splits_total",
        SERVICE,
        "Occasions on which sentinels named different masters at one epoch.",
    ),
    counter(
        "pointsman_sentinel_unverified_regressions_total",
        SERVICE,
        "Occasions on which a majority of sentinels named a node at an older epoch that is not a \
         master.",
    ),
    counter(
        "pointsman_lineage_broken_total",
        SERVICE,
        "Master changes to a node that does not continue its predecessor's replication history.",
    ),
    counter(
        "pointsman_process_stalls_total",
        SERVICE,
        "Detected stops or delays of the process beyond half a second, for example by SIGSTOP, a \
         suspend or lack of CPU time.",
    ),
    histogram(
        "pointsman_failover_duration_seconds",
        SERVICE,
        "Time from the first sign of failure to the master change, in seconds.",
    ),
    histogram(
        "pointsman_failover_hold_seconds",
        SERVICE,
        "Time for which traffic was held before the master change, in seconds.",
    ),
    histogram(
        "pointsman_failover_switch_seconds",
        SERVICE,
        "Time from the +switch-master, or answer, that completed a majority to the master \
         change, in seconds.",
    ),
    histogram(
        "pointsman_failover_verification_seconds",
        SERVICE,
        "Time from complete evidence to the master change, with retried verification, in seconds.",
    ),
    histogram(
        "pointsman_failover_first_session_seconds",
        SERVICE,
        "Time from the master change to the first session on the new master, in seconds.",
    ),
    counter(
        "pointsman_failover_lost_bytes_total",
        SERVICE,
        "Estimated replication bytes that former masters had and their successors lack.",
    ),
    gauge("pointsman_replicas_eligible", SERVICE, "Replicas that serve readers."),
    gauge(
        "pointsman_replicas",
        &["service", "state"],
        "Replicas by eligibility for readers, or by the reason against it.",
    ),
    gauge(
        "pointsman_replica_lag_bytes",
        SERVICE,
        "Maximum replication lag among serving replicas, in bytes.",
    ),
    gauge(
        "pointsman_replica_lag_seconds",
        SERVICE,
        "Maximum replication lag among serving replicas, in seconds.",
    ),
    counter(
        "pointsman_replica_ejections_total",
        SERVICE,
        "Ejections of replicas from those that serve readers.",
    ),
    counter("pointsman_replica_readmissions_total", SERVICE, "Readmissions of ejected replicas."),
    gauge("pointsman_sessions_open", TRAFFIC, "Open client connections."),
    gauge("pointsman_sessions_limit", TRAFFIC, "Maximum client connections."),
    gauge("pointsman_sessions_waiting", TRAFFIC, "Client connections that wait for a master."),
    counter("pointsman_sessions_total", TRAFFIC, "Client connections accepted and served."),
    counter("pointsman_sessions_held_total", TRAFFIC, "Waits of client connections for a master."),
    counter(
        "pointsman_sessions_refused_total",
        &["service", "listener", "limit"],
        "Client connections refused, by the limit that was reached.",
    ),
    counter(
        "pointsman_clients_rejected_total",
        &["service", "listener", "reason"],
        "Client connections rejected because of where they came from, by reason: not_allowed, or \
         what was wrong with the PROXY protocol header.",
    ),
    counter("pointsman_proxy_headers_total", TRAFFIC, "PROXY protocol headers received."),
    counter(
        "pointsman_tls_handshakes_total",
        &["service", "listener", "kind"],
        "TLS handshakes completed with clients: full, or resumed with a ticket.",
    ),
    counter(
        "pointsman_tls_handshake_failures_total",
        &["service", "listener", "reason"],
        "TLS handshakes with clients that failed, by reason; evicted: too many waited.",
    ),
    gauge("pointsman_tls_handshakes_running", TRAFFIC, "TLS handshakes with clients under way."),
    counter(
        "pointsman_sessions_closed_total",
        &["service", "listener", "reason"],
        "Client connections ended, by reason.",
    ),
    counter("pointsman_accept_errors_total", TRAFFIC, "Failures to accept a connection."),
    counter(
        "pointsman_sessions_reassigned_total",
        TRAFFIC,
        "Client connections reassigned to a less loaded worker.",
    ),
    counter(
        "pointsman_sessions_delayed_total",
        TRAFFIC,
        "New clients delayed because their first bytes were not a request, as were those of many.",
    ),
    counter(
        "pointsman_client_bytes_total",
        &["service", "listener", "direction"],
        "Forwarded bytes, by direction: in from clients, out to clients.",
    ),
    counter(
        "pointsman_spliced_bytes_total",
        TRAFFIC,
        "Bytes of both directions moved inside the kernel with splice.",
    ),
    counter("pointsman_commands_total", TRAFFIC, "Commands forwarded and answered."),
    counter("pointsman_dials_total", TRAFFIC, "Connections to Redis opened."),
    counter(
        "pointsman_dial_errors_total",
        &["service", "listener", "reason"],
        "Failed connections to Redis, by reason.",
    ),
    counter(
        "pointsman_target_tls_handshakes_total",
        &["service", "listener", "kind"],
        "TLS handshakes of sessions with Redis, by kind: full, or resumed.",
    ),
    counter(
        "pointsman_target_tls_errors_total",
        &["service", "listener", "reason"],
        "TLS sessions with Redis that could not be opened or broke, by reason.",
    ),
    gauge("pointsman_shared_sessions", TRAFFIC, "Sessions that share connections to Redis."),
    gauge(
        "pointsman_dedicated_sessions",
        TRAFFIC,
        "Sessions that have a connection to Redis of their own.",
    ),
    gauge("pointsman_shared_connections", TRAFFIC, "Shared connections to Redis."),
    gauge(
        "pointsman_shared_connections_by_table",
        &["service", "listener", "table"],
        "Shared connections to Redis by the table of commands in force: that of the server, or \
         built_in where the server does not show its own; absent before the first one.",
    ),
    counter(
        "pointsman_shared_connections_opened_total",
        TRAFFIC,
        "Shared connections to Redis opened.",
    ),
    counter(
        "pointsman_shared_connection_errors_total",
        TRAFFIC,
        "Shared connections to Redis that could not be opened.",
    ),
    counter(
        "pointsman_shared_desyncs_total",
        TRAFFIC,
        "Shared connections closed because a reply did not match the requests.",
    ),
    counter(
        "pointsman_shared_sessions_lost_total",
        TRAFFIC,
        "Sessions with a request in flight on a shared connection that was lost.",
    ),
    counter(
        "pointsman_shared_returns_total",
        TRAFFIC,
        "Sessions that gave up their own connection and share again.",
    ),
    counter(
        "pointsman_shared_writes_total",
        TRAFFIC,
        "Writes of new requests to shared connections.",
    ),
    counter("pointsman_shared_requests_total", TRAFFIC, "Requests sent on shared connections."),
    counter(
        "pointsman_shared_access_checks_total",
        &["service", "listener", "result"],
        "Times that Redis was asked whether it admits clients without credentials, by result: \
         admitted, refused or failed; absent before the first shared connection.",
    ),
    counter(
        "pointsman_shared_promotions_total",
        &["service", "listener", "reason"],
        "Sessions that got a connection of their own, by reason.",
    ),
    histogram(
        "pointsman_command_duration_seconds",
        TRAFFIC,
        "Time from writing a request to Redis to reading its complete reply, in seconds; \
         sampled, without blocking commands.",
    ),
    histogram(
        "pointsman_dial_duration_seconds",
        TRAFFIC,
        "Time to open a connection to Redis, in seconds; successful ones only.",
    ),
    counter(
        "pointsman_sessions_carried_total",
        TRAFFIC,
        "Sessions carried over to another connection without their client noticing.",
    ),
    counter(
        "pointsman_sessions_names_dropped_total",
        TRAFFIC,
        "Sessions that were carried without their client or library name, because their user may \
         not set it.",
    ),
    counter(
        "pointsman_sessions_rebalanced_total",
        TRAFFIC,
        "Sessions moved to a less loaded replica.",
    ),
    gauge(
        "pointsman_sessions_by_state",
        &["service", "listener", "state"],
        "Open sessions by state; ordinary ones would be carried over at a failover, all others \
         closed.",
    ),
    counter(
        "pointsman_sessions_not_carried_total",
        &["service", "listener", "reason"],
        "Sessions closed instead of carried over after the loss of their server, by reason.",
    ),
    counter(
        "pointsman_unconfirmed_writes_total",
        TRAFFIC,
        "Writes that too few replicas confirmed in time, with durability.replicas.",
    ),
    counter(
        "pointsman_refused_commands_total",
        &["service", "listener", "command"],
        "Requests refused because of their command, see the key refuse, by command.",
    ),
    counter(
        "pointsman_maintenance_handshakes_total",
        TRAFFIC,
        "Client requests for maintenance notifications that were answered.",
    ),
    counter(
        "pointsman_maintenance_notifications_total",
        &["service", "listener", "kind"],
        "Maintenance notifications sent to clients, by kind.",
    ),
    counter(
        "pointsman_discovery_hints_total",
        TRAFFIC,
        "Hints from sessions that made discovery check the master.",
    ),
];

/// Additional metrics with `[metrics] haproxy_names = true`, for dashboards and alerts made for
/// haproxy.
pub const HAPROXY: &[Metric] = &[
    gauge(
        "haproxy_process_build_info",
        &["version"],
        "Version of pointsman in the label; always 1.",
    ),
    gauge(
        "haproxy_process_uptime_seconds",
        &[],
        "Time since the start of the process, in seconds.",
    ),
    gauge(
        "haproxy_process_max_connections",
        &[],
        "Maximum client connections of all services together.",
    ),
    gauge("haproxy_process_current_connections", &[], "Open client connections."),
    counter(
        "haproxy_process_connections_total",
        &[],
        "Client connections accepted, including refused ones.",
    ),
    gauge("haproxy_process_stopping", &[], "Shutdown: 1 once it has begun, else 0."),
    gauge(
        "haproxy_frontend_status",
        &["proxy", "state"],
        "State of the listener: UP while clients are accepted, else DOWN.",
    ),
    gauge("haproxy_frontend_current_sessions", &["proxy"], "Open client connections."),
    gauge("haproxy_frontend_limit_sessions", &["proxy"], "Maximum client connections."),
    counter(
        "haproxy_frontend_sessions_total",
        &["proxy"],
        "Client connections accepted and served.",
    ),
    counter(
        "haproxy_frontend_connections_total",
        &["proxy"],
        "Client connections accepted, including refused ones.",
    ),
    counter("haproxy_frontend_bytes_in_total", &["proxy"], "Bytes from clients."),
    counter("haproxy_frontend_bytes_out_total", &["proxy"], "Bytes to clients."),
    gauge(
        "haproxy_backend_status",
        &["proxy", "state"],
        "State of the servers: UP while traffic flows to one, else DOWN.",
    ),
    gauge(
        "haproxy_backend_active_servers",
        &["proxy"],
        "Servers that are UP: the master; for readers, the serving replicas.",
    ),
    gauge(
        "haproxy_backend_current_sessions",
        &["proxy"],
        "Client connections that are not waiting for a server.",
    ),
    counter(
        "haproxy_backend_connection_errors_total",
        &["proxy"],
        "Failed connections to servers.",
    ),
    counter(
        "haproxy_backend_connection_attempts_total",
        &["proxy"],
        "Attempts to connect to servers.",
    ),
    counter(
        "haproxy_backend_server_aborts_total",
        &["proxy"],
        "Sessions aborted by the server, or without a connection to it.",
    ),
    counter("haproxy_backend_client_aborts_total", &["proxy"], "Sessions aborted by the client."),
    gauge(
        "haproxy_backend_connect_time_average_seconds",
        &["proxy"],
        "Average time to connect to servers since the start, in seconds.",
    ),
    counter(
        "haproxy_backend_downtime_seconds_total",
        &["proxy"],
        "Time spent DOWN since the first master, in seconds; not for readers.",
    ),
    counter(
        "haproxy_backend_check_up_down_total",
        &["proxy"],
        "Transitions to DOWN: holds and removals of a master; for readers, ejections of replicas.",
    ),
    gauge(
        "haproxy_server_status",
        &["proxy", "server", "state"],
        "State of the server: UP for the master in force (for readers: a serving replica), else \
         DOWN.",
    ),
    gauge(
        "haproxy_server_check_status",
        &["proxy", "server", "state"],
        "Result of the last probe: L7OK, L7STS (another role), L7TOUT, L4CON, L7RSP, or HANA \
         before the first.",
    ),
    counter(
        "haproxy_server_check_failures_total",
        &["proxy", "server"],
        "Failed probes of the node.",
    ),
    gauge(
        "haproxy_server_check_duration_seconds",
        &["proxy", "server"],
        "Duration of the last probe, in seconds.",
    ),
    gauge(
        "haproxy_server_current_sessions",
        &["proxy", "server"],
        "Open client connections of the node.",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_conventions_and_families_are_unique() {
        for Metric { name, kind, labels, help } in CATALOGUE.iter().chain(HAPROXY) {
            assert!(
                ["pointsman_", "process_", "haproxy_"].iter().any(|start| name.starts_with(start)),
                "{name}"
            );
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(help.ends_with('.') && !help.contains(['\\', '\n']), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == MetricKind::Counter, "{name}");
            assert!(labels.iter().all(|label| *label != "le"), "{name}");
        }
        let names: BTreeSet<&str> = CATALOGUE.iter().chain(HAPROXY).map(|it| it.name).collect();
        assert_eq!(names.len(), CATALOGUE.len() + HAPROXY.len());
        assert!(HAPROXY.iter().all(|it| it.name.starts_with("haproxy_")));
        // In OpenMetrics the family of a counter has no `_total`, and families are unique.
        for family in names.iter().filter_map(|name| name.strip_suffix("_total")) {
            assert!(!names.contains(family), "{family} is also the family of a counter");
        }
    }
}
