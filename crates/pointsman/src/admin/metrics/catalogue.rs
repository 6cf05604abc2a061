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

/// A list of metrics. As with the options of the configuration, the comment on a metric is its help
/// text, on one line.
macro_rules! metrics {
    (
        $(#[doc = $about:literal])*
        $list:ident {
            $( $(#[doc = $help:literal])* $name:ident: $kind:ident [$($label:ident),*]; )*
        }
    ) => {
        $(#[doc = $about])*
        pub const $list: &[Metric] = &[ $(
            Metric {
                name: stringify!($name),
                kind: MetricKind::$kind,
                labels: &[$(stringify!($label)),*],
                // Each line of the comment begins with a space, which separates it from the last.
                help: concat!($($help),*).trim_ascii_start(),
            },
        )* ];
    };
}

metrics! {
    /// Pointsman's own metrics, in the order of `/metrics`. Series of a listener for readers have
    /// `listener="replica"` in addition to the labels of a service.
    CATALOGUE {
        /// Build information in the labels; always 1.
        pointsman_build_info: Gauge [version, target, profile];
        /// Time since the start of the process, in seconds.
        pointsman_uptime_seconds: Gauge [];
        /// Start time of the process, in seconds since the Unix epoch.
        process_start_time_seconds: Gauge [];
        /// CPU time of all threads in user and kernel mode, in seconds.
        process_cpu_seconds_total: Counter [];
        /// Resident memory of the process, in bytes.
        process_resident_memory_bytes: Gauge [];
        /// Virtual memory of the process, in bytes.
        process_virtual_memory_bytes: Gauge [];
        /// Threads of the process.
        process_threads: Gauge [];
        /// Open file descriptors.
        process_open_fds: Gauge [];
        /// Limit on open file descriptors.
        process_max_fds: Gauge [];
        /// Memory limit of the cgroup, in bytes; absent without a limit.
        pointsman_cgroup_memory_limit_bytes: Gauge [];
        /// Memory use of the cgroup that is not reclaimable at once, in bytes.
        pointsman_cgroup_memory_used_bytes: Gauge [];
        /// CPU limit of the cgroup, in cores; absent without a limit.
        pointsman_cgroup_cpu_limit_cores: Gauge [];
        /// Periods in which the CPU limit of the cgroup was enforced.
        pointsman_cgroup_cpu_periods_total: Counter [];
        /// Periods in which the cgroup was throttled.
        pointsman_cgroup_cpu_throttled_periods_total: Counter [];
        /// Total time for which CPUs of the cgroup were throttled, in seconds.
        pointsman_cgroup_cpu_throttled_seconds_total: Counter [];
        /// CPU time of a worker, in seconds; its rate is the utilisation, at most 1.
        pointsman_worker_cpu_seconds_total: Counter [worker];
        /// Time for which a worker was runnable without a CPU, in seconds.
        pointsman_worker_wait_seconds_total: Counter [worker];
        /// Periods of more than 0.25 s without a beat of a worker's event loop.
        pointsman_worker_stalls_total: Counter [worker];
        /// Total time of a worker's stalls, in seconds.
        pointsman_worker_stalled_seconds_total: Counter [worker];
        /// Open client connections of a worker.
        pointsman_worker_sessions: Gauge [worker];
        /// Tasks of a worker: one per session, and a constant number of others.
        pointsman_worker_tasks: Gauge [worker];
        /// Time since the last iteration of an event loop, in seconds; liveness fails above 5.
        pointsman_loop_age_seconds: Gauge [loop];
        /// Hash of the effective configuration in the label; always 1.
        pointsman_config_info: Gauge [hash];
        /// Configuration reloads, by result.
        pointsman_config_reloads_total: Counter [result];
        /// Success of the last reload: 0 if it was refused, else 1.
        pointsman_config_last_reload_successful: Gauge [];
        /// Time since the last reload or the start, in seconds.
        pointsman_config_last_reload_age_seconds: Gauge [];
        /// Age of the oldest unfinished file read, in seconds.
        pointsman_config_read_pending_seconds: Gauge [];
        /// Secret files that the last reload could not read; their former secrets stay in use.
        pointsman_config_secrets_unread: Gauge [];
        /// End of the validity of a certificate in use, in seconds since 1970; of our own towards
        /// servers with side redis or sentinel.
        pointsman_tls_certificate_not_after_seconds: Gauge [service, side, file];
        /// Changed configuration keys that need a restart to take effect.
        pointsman_config_pending_restart: Gauge [];
        /// Phase of the shutdown: 1 for the current one, else 0.
        pointsman_drain_phase: Gauge [phase];
        /// Maximum client connections of all services together.
        pointsman_connections_limit: Gauge [];
        /// Memory pressure: 1 while new clients are refused because memory is about to run out,
        /// else 0.
        pointsman_memory_pressure: Gauge [];
        /// Log lines dropped because their reader was too slow or a write failed.
        pointsman_log_lines_dropped_total: Counter [];
        /// Log lines suppressed by the rate limit per call site.
        pointsman_log_lines_suppressed_total: Counter [];
        /// Open connections to the admin server.
        pointsman_admin_connections: Gauge [];
        /// Requests answered by the admin server.
        pointsman_admin_requests_total: Counter [];
        /// Tokens refused by the admin server, by reason: wrong, or throttled (wrong as well, from
        /// a source that had presented too many).
        pointsman_admin_tokens_refused_total: Counter [reason];
        /// Requests refused by the admin server because they named a foreign host.
        pointsman_admin_foreign_hosts_total: Counter [];
        /// TLS handshakes with clients of the admin server, by result: completed or failed.
        pointsman_admin_tls_handshakes_total: Counter [result];
        /// Requests refused by the admin server, by reason: plaintext (TLS is required), or
        /// client_certificate (a valid one is required).
        pointsman_admin_requests_refused_total: Counter [reason];
        /// Connections closed by the admin server, by reason: evicted, refused or timed_out.
        pointsman_admin_closed_total: Counter [reason];
        /// Connection to a sentinel: 1 if it is established, else 0.
        pointsman_sentinel_up: Gauge [sentinel];
        /// Event subscription at a sentinel: 1 if it is active, else 0; without it switches are
        /// found by polling only.
        pointsman_sentinel_events: Gauge [sentinel];
        /// Redis nodes or sentinels to which a connection over TLS fails, by the kind of the fault.
        pointsman_tls_faults: Gauge [service, servers, fault];
        /// Maximum age of a sentinel's view of a master among all services, in seconds.
        pointsman_sentinel_view_age_seconds: Gauge [sentinel];
        /// Services for which a sentinel names another master or epoch than the one in force.
        pointsman_sentinel_disagreeing_services: Gauge [sentinel];
        /// Address of the master in force in the label; always 1.
        pointsman_target_info: Gauge [service, target];
        /// Generation of the commit in force; 0 without one.
        pointsman_target_generation: Gauge [service];
        /// Sentinel's config-epoch of the commit in force.
        pointsman_target_epoch: Gauge [service];
        /// Duration of the current outage, in which no request can be sent to a master, in seconds;
        /// 0 while traffic flows.
        pointsman_target_current_outage_seconds: Gauge [service];
        /// Total time without a usable master since the first one was found, in seconds.
        pointsman_target_outage_seconds_total: Counter [service];
        /// State of the service: 1 while the sessions of a service that was removed by a reload
        /// leave, else 0.
        pointsman_service_removed: Gauge [service];
        /// State of the gate: 1 while traffic is held, else 0.
        pointsman_gate_closed: Gauge [service];
        /// Nodes whose replica-priority was changed for a switchover and is not restored yet.
        pointsman_switchover_changed_priorities: Gauge [service];
        /// Known sentinels.
        pointsman_sentinels: Gauge [service];
        /// Connected sentinels.
        pointsman_sentinels_up: Gauge [service];
        /// Sentinels with a vote, reachable or not.
        pointsman_sentinel_voters: Gauge [service];
        /// Disagreement: 1 while voting or configured sentinels name different masters or epochs,
        /// else 0.
        pointsman_sentinel_disagreement: Gauge [service];
        /// Minority: 1 while the reachable sentinels are a minority by their own account, or,
        /// unless minority = "keep", because too few are reachable, else 0.
        pointsman_sentinel_minority: Gauge [service];
        /// Replicas of the master beyond those that have to confirm a write, with
        /// durability.replicas. Below 0 writes are refused.
        pointsman_durability_spare_replicas: Gauge [service];
        /// Servers that refuse the configured credentials.
        pointsman_credentials_refused: Gauge [service, servers];
        /// Servers on which credentials from before the last change are in use.
        pointsman_credentials_outdated: Gauge [service, servers];
        /// Override: 1 while a master is followed by an operator's order instead of the sentinels,
        /// else 0.
        pointsman_override_active: Gauge [service];
        /// Configured sentinels without a vote, because they and the electorate do not know each
        /// other.
        pointsman_sentinels_without_vote: Gauge [service];
        /// Servers that an alarm is about, by alarm: name_unknown, unlisted, ghosts, outside_nodes,
        /// followed_by_replica or lacks_confirmed; 0 while it is off.
        pointsman_alarm: Gauge [service, alarm];
        /// Committed master changes.
        pointsman_master_switches_total: Counter [service];
        /// Holds of traffic.
        pointsman_holds_total: Counter [service];
        /// Holds that ended without a master change.
        pointsman_holds_expired_total: Counter [service];
        /// Removals of a master without a successor.
        pointsman_target_cleared_total: Counter [service];
        /// Ignored sentinel answers with an older epoch than the one in force.
        pointsman_sentinel_stale_views_total: Counter [service];
        /// Sentinel polls with incomplete, refused or malformed answers.
        pointsman_sentinel_failed_polls_total: Counter [service];
        /// Answers of sentinels that do not monitor the master's name.
        pointsman_sentinel_unknown_name_total: Counter [service];
        /// Occasions on which sentinels named different masters at one epoch.
        pointsman_sentinel_splits_total: Counter [service];
        /// Occasions on which a majority of sentinels named a node at an older epoch that is not a
        /// master.
        pointsman_sentinel_unverified_regressions_total: Counter [service];
        /// Master changes to a node that does not continue its predecessor's replication history.
        pointsman_lineage_broken_total: Counter [service];
        /// Detected stops or delays of the process beyond half a second, for example by SIGSTOP, a
        /// suspend or lack of CPU time.
        pointsman_process_stalls_total: Counter [service];
        /// Time from the first sign of failure to the master change, in seconds.
        pointsman_failover_duration_seconds: Histogram [service];
        /// Time for which traffic was held before the master change, in seconds.
        pointsman_failover_hold_seconds: Histogram [service];
        /// Time from the +switch-master, or answer, that completed a majority to the master change,
        /// in seconds.
        pointsman_failover_switch_seconds: Histogram [service];
        /// Time from complete evidence to the master change, with retried verification, in seconds.
        pointsman_failover_verification_seconds: Histogram [service];
        /// Time from the master change to the first session on the new master, in seconds.
        pointsman_failover_first_session_seconds: Histogram [service];
        /// Estimated replication bytes that former masters had and their successors lack.
        pointsman_failover_lost_bytes_total: Counter [service];
        /// Replicas that serve readers.
        pointsman_replicas_eligible: Gauge [service];
        /// Replicas by eligibility for readers, or by the reason against it.
        pointsman_replicas: Gauge [service, state];
        /// Maximum replication lag among serving replicas, in bytes.
        pointsman_replica_lag_bytes: Gauge [service];
        /// Maximum replication lag among serving replicas, in seconds.
        pointsman_replica_lag_seconds: Gauge [service];
        /// Ejections of replicas from those that serve readers.
        pointsman_replica_ejections_total: Counter [service];
        /// Readmissions of ejected replicas.
        pointsman_replica_readmissions_total: Counter [service];
        /// Open client connections.
        pointsman_sessions_open: Gauge [service, listener];
        /// Maximum client connections.
        pointsman_sessions_limit: Gauge [service, listener];
        /// Client connections that wait for a master.
        pointsman_sessions_waiting: Gauge [service, listener];
        /// Client connections accepted and served.
        pointsman_sessions_total: Counter [service, listener];
        /// Waits of client connections for a master.
        pointsman_sessions_held_total: Counter [service, listener];
        /// Client connections refused, by the limit that was reached.
        pointsman_sessions_refused_total: Counter [service, listener, limit];
        /// Client connections rejected because of where they came from, by reason: not_allowed, or
        /// what was wrong with the PROXY protocol header.
        pointsman_clients_rejected_total: Counter [service, listener, reason];
        /// PROXY protocol headers received.
        pointsman_proxy_headers_total: Counter [service, listener];
        /// TLS handshakes completed with clients: full, or resumed with a ticket.
        pointsman_tls_handshakes_total: Counter [service, listener, kind];
        /// TLS handshakes with clients that failed, by reason; evicted: too many waited.
        pointsman_tls_handshake_failures_total: Counter [service, listener, reason];
        /// TLS handshakes with clients under way.
        pointsman_tls_handshakes_running: Gauge [service, listener];
        /// Client connections ended, by reason.
        pointsman_sessions_closed_total: Counter [service, listener, reason];
        /// Failures to accept a connection.
        pointsman_accept_errors_total: Counter [service, listener];
        /// Client connections reassigned to a less loaded worker.
        pointsman_sessions_reassigned_total: Counter [service, listener];
        /// New clients delayed because their first bytes were not a request, as were those of many.
        pointsman_sessions_delayed_total: Counter [service, listener];
        /// Forwarded bytes, by direction: in from clients, out to clients.
        pointsman_client_bytes_total: Counter [service, listener, direction];
        /// Bytes of both directions moved inside the kernel with splice.
        pointsman_spliced_bytes_total: Counter [service, listener];
        /// Commands forwarded and answered.
        pointsman_commands_total: Counter [service, listener];
        /// Connections to Redis opened.
        pointsman_dials_total: Counter [service, listener];
        /// Failed connections to Redis, by reason.
        pointsman_dial_errors_total: Counter [service, listener, reason];
        /// TLS handshakes of sessions with Redis, by kind: full, or resumed.
        pointsman_target_tls_handshakes_total: Counter [service, listener, kind];
        /// TLS sessions with Redis that could not be opened or broke, by reason.
        pointsman_target_tls_errors_total: Counter [service, listener, reason];
        /// Sessions that share connections to Redis.
        pointsman_shared_sessions: Gauge [service, listener];
        /// Sessions that have a connection to Redis of their own.
        pointsman_dedicated_sessions: Gauge [service, listener];
        /// Shared connections to Redis.
        pointsman_shared_connections: Gauge [service, listener];
        /// Shared connections to Redis by the table of commands in force: that of the server, or
        /// built_in where the server does not show its own; absent before the first one.
        pointsman_shared_connections_by_table: Gauge [service, listener, table];
        /// Shared connections to Redis opened.
        pointsman_shared_connections_opened_total: Counter [service, listener];
        /// Shared connections to Redis that could not be opened.
        pointsman_shared_connection_errors_total: Counter [service, listener];
        /// Shared connections closed because a reply did not match the requests.
        pointsman_shared_desyncs_total: Counter [service, listener];
        /// Sessions with a request in flight on a shared connection that was lost.
        pointsman_shared_sessions_lost_total: Counter [service, listener];
        /// Sessions that gave up their own connection and share again.
        pointsman_shared_returns_total: Counter [service, listener];
        /// Writes of new requests to shared connections.
        pointsman_shared_writes_total: Counter [service, listener];
        /// Requests sent on shared connections.
        pointsman_shared_requests_total: Counter [service, listener];
        /// Times that Redis was asked whether it admits clients without credentials, by result:
        /// admitted, refused or failed; absent before the first shared connection.
        pointsman_shared_access_checks_total: Counter [service, listener, result];
        /// Sessions that got a connection of their own, by reason.
        pointsman_shared_promotions_total: Counter [service, listener, reason];
        /// Time from writing a request to Redis to reading its complete reply, in seconds; sampled,
        /// without blocking commands.
        pointsman_command_duration_seconds: Histogram [service, listener];
        /// Time to open a connection to Redis, in seconds; successful ones only.
        pointsman_dial_duration_seconds: Histogram [service, listener];
        /// Sessions carried over to another connection without their client noticing.
        pointsman_sessions_carried_total: Counter [service, listener];
        /// Sessions that were carried without their client or library name, because their user may
        /// not set it.
        pointsman_sessions_names_dropped_total: Counter [service, listener];
        /// Sessions moved to a less loaded replica.
        pointsman_sessions_rebalanced_total: Counter [service, listener];
        /// Open sessions by state; ordinary ones would be carried over at a failover, all others
        /// closed.
        pointsman_sessions_by_state: Gauge [service, listener, state];
        /// Sessions closed instead of carried over after the loss of their server, by reason.
        pointsman_sessions_not_carried_total: Counter [service, listener, reason];
        /// Writes that too few replicas confirmed in time, with durability.replicas.
        pointsman_unconfirmed_writes_total: Counter [service, listener];
        /// Requests refused because of their command, see the key refuse, by command.
        pointsman_refused_commands_total: Counter [service, listener, command];
        /// Client requests for maintenance notifications that were answered.
        pointsman_maintenance_handshakes_total: Counter [service, listener];
        /// Maintenance notifications sent to clients, by kind.
        pointsman_maintenance_notifications_total: Counter [service, listener, kind];
        /// Hints from sessions that made discovery check the master.
        pointsman_discovery_hints_total: Counter [service, listener];
    }
}

metrics! {
    /// Additional metrics with `[metrics] haproxy_names = true`, for dashboards and alerts made for
    /// haproxy.
    HAPROXY {
        /// Version of pointsman in the label; always 1.
        haproxy_process_build_info: Gauge [version];
        /// Time since the start of the process, in seconds.
        haproxy_process_uptime_seconds: Gauge [];
        /// Maximum client connections of all services together.
        haproxy_process_max_connections: Gauge [];
        /// Open client connections.
        haproxy_process_current_connections: Gauge [];
        /// Client connections accepted, including refused ones.
        haproxy_process_connections_total: Counter [];
        /// Shutdown: 1 once it has begun, else 0.
        haproxy_process_stopping: Gauge [];
        /// State of the listener: UP while clients are accepted, else DOWN.
        haproxy_frontend_status: Gauge [proxy, state];
        /// Open client connections.
        haproxy_frontend_current_sessions: Gauge [proxy];
        /// Maximum client connections.
        haproxy_frontend_limit_sessions: Gauge [proxy];
        /// Client connections accepted and served.
        haproxy_frontend_sessions_total: Counter [proxy];
        /// Client connections accepted, including refused ones.
        haproxy_frontend_connections_total: Counter [proxy];
        /// Bytes from clients.
        haproxy_frontend_bytes_in_total: Counter [proxy];
        /// Bytes to clients.
        haproxy_frontend_bytes_out_total: Counter [proxy];
        /// State of the servers: UP while traffic flows to one, else DOWN.
        haproxy_backend_status: Gauge [proxy, state];
        /// Servers that are UP: the master; for readers, the serving replicas.
        haproxy_backend_active_servers: Gauge [proxy];
        /// Client connections that are not waiting for a server.
        haproxy_backend_current_sessions: Gauge [proxy];
        /// Failed connections to servers.
        haproxy_backend_connection_errors_total: Counter [proxy];
        /// Attempts to connect to servers.
        haproxy_backend_connection_attempts_total: Counter [proxy];
        /// Sessions aborted by the server, or without a connection to it.
        haproxy_backend_server_aborts_total: Counter [proxy];
        /// Sessions aborted by the client.
        haproxy_backend_client_aborts_total: Counter [proxy];
        /// Average time to connect to servers since the start, in seconds.
        haproxy_backend_connect_time_average_seconds: Gauge [proxy];
        /// Time spent DOWN since the first master, in seconds; not for readers.
        haproxy_backend_downtime_seconds_total: Counter [proxy];
        /// Transitions to DOWN: holds and removals of a master; for readers, ejections of replicas.
        haproxy_backend_check_up_down_total: Counter [proxy];
        /// State of the server: UP for the master in force (for readers: a serving replica), else
        /// DOWN.
        haproxy_server_status: Gauge [proxy, server, state];
        /// Result of the last probe: L7OK, L7STS (another role), L7TOUT, L4CON, L7RSP, or HANA
        /// before the first.
        haproxy_server_check_status: Gauge [proxy, server, state];
        /// Failed probes of the node.
        haproxy_server_check_failures_total: Counter [proxy, server];
        /// Duration of the last probe, in seconds.
        haproxy_server_check_duration_seconds: Gauge [proxy, server];
        /// Open client connections of the node.
        haproxy_server_current_sessions: Gauge [proxy, server];
    }
}

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
