//! Every metric there is: name, kind, labels and meaning, defined once.
//!
//! `/metrics` takes its help texts and types from here, and so do the manual page and the reference
//! in `docs/metrics.md`, which a test compares. Names follow the conventions of Prometheus: base
//! units, `_total` on counters.
//!
//! Labels are bounded by construction: services and listeners are those of the configuration,
//! workers those of the process, reasons, limits, phases and states are enums, and nodes and
//! sentinels are those that discovery watches now.

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Grows, until the process ends.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution in buckets.
    Histogram,
}

impl Kind {
    /// As the text of metrics spells it.
    #[must_use]
    pub const fn word(self) -> &'static str {
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
    /// Its kind.
    pub kind: Kind,
    /// The labels its series may have.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, help }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Histogram, labels, help }
}

const SERVICE: &[&str] = &["service"];
/// What stands on the listener for readers has `listener="replica"` besides.
const TRAFFIC: &[&str] = &["service", "listener"];

/// Ours, in the order of `/metrics`.
pub const CATALOGUE: &[Metric] = &[
    gauge(
        "pointsman_build_info",
        &["version", "target", "profile"],
        "Always 1; what was built is in the labels.",
    ),
    gauge("pointsman_uptime_seconds", &[], "Time since the process started."),
    gauge(
        "process_start_time_seconds",
        &[],
        "When the process started, since the epoch of Unix, by the kernel.",
    ),
    counter(
        "process_cpu_seconds_total",
        &[],
        "CPU time of all threads, in user space and in the kernel.",
    ),
    gauge("process_resident_memory_bytes", &[], "Memory of the process that is in RAM."),
    gauge("process_virtual_memory_bytes", &[], "Addresses that the process has mapped."),
    gauge("process_threads", &[], "Threads of the process."),
    gauge("process_open_fds", &[], "Open file descriptors."),
    gauge("process_max_fds", &[], "Limit on open file descriptors that is in force."),
    gauge(
        "pointsman_cgroup_memory_limit_bytes",
        &[],
        "Memory that the cgroup allows; absent where it allows any.",
    ),
    gauge(
        "pointsman_cgroup_memory_used_bytes",
        &[],
        "Memory that counts against that limit and cannot be taken back at once.",
    ),
    gauge(
        "pointsman_cgroup_cpu_limit_cores",
        &[],
        "CPUs that the cgroup allows; absent where it allows any.",
    ),
    counter(
        "pointsman_cgroup_cpu_periods_total",
        &[],
        "Periods in which the cgroup ran and its limit on CPU was enforced.",
    ),
    counter(
        "pointsman_cgroup_cpu_throttled_periods_total",
        &[],
        "Periods in which the cgroup was held back for the rest of the period.",
    ),
    counter(
        "pointsman_cgroup_cpu_throttled_seconds_total",
        &[],
        "Time for which the CPUs of the cgroup were held back, all of them added up.",
    ),
    counter(
        "pointsman_worker_cpu_seconds_total",
        &["worker"],
        "CPU time of a worker; its rate is its utilisation, 1 at the most.",
    ),
    counter(
        "pointsman_worker_wait_seconds_total",
        &["worker"],
        "Time for which a worker had something to do and no CPU to do it on.",
    ),
    counter(
        "pointsman_worker_stalls_total",
        &["worker"],
        "Times a worker did not turn for more than a quarter of a second.",
    ),
    counter("pointsman_worker_stalled_seconds_total", &["worker"], "Time of these, added up."),
    gauge("pointsman_worker_sessions", &["worker"], "Client connections open now on a worker."),
    gauge(
        "pointsman_loop_age_seconds",
        &["loop"],
        "Time since an event loop last turned; liveness fails above 5 s.",
    ),
    gauge(
        "pointsman_config_info",
        &["hash"],
        "Always 1; the hash of the effective configuration is in the label.",
    ),
    counter(
        "pointsman_config_reloads_total",
        &["result"],
        "Reloads of the configuration, by result.",
    ),
    gauge(
        "pointsman_config_last_reload_successful",
        &[],
        "0 if the last reload was refused, else 1.",
    ),
    gauge(
        "pointsman_config_last_reload_age_seconds",
        &[],
        "Time since the last reload, or since the start.",
    ),
    gauge(
        "pointsman_config_read_pending_seconds",
        &[],
        "Age of the oldest unfinished file read, in seconds.",
    ),
    gauge(
        "pointsman_config_pending_restart",
        &[],
        "Keys written otherwise than in force, which need a restart.",
    ),
    gauge(
        "pointsman_drain_phase",
        &["phase"],
        "1 for the phase of the shutdown the process is in, 0 for the others.",
    ),
    gauge(
        "pointsman_connections_limit",
        &[],
        "Client connections allowed in all services together.",
    ),
    gauge(
        "pointsman_memory_scarce",
        &[],
        "1 while new clients are refused because memory is about to run out.",
    ),
    counter(
        "pointsman_log_lines_dropped_total",
        &[],
        "Log lines dropped because the reader of the output was too slow.",
    ),
    counter(
        "pointsman_log_lines_suppressed_total",
        &[],
        "Log lines left out because one place of the program had too many in a second.",
    ),
    gauge("pointsman_admin_connections", &[], "Connections to the admin server open now."),
    counter("pointsman_admin_requests_total", &[], "Requests that the admin server has answered."),
    counter(
        "pointsman_admin_closed_total",
        &["reason"],
        "Connections that the admin server closed: to make room, for want of room, or for slowness.",
    ),
    gauge(
        "pointsman_sentinel_up",
        &["sentinel"],
        "1 if there is a connection to this sentinel, else 0.",
    ),
    gauge(
        "pointsman_sentinel_events",
        &["sentinel"],
        "1 if this sentinel pushes its events to us; without them a switch is found by polling only.",
    ),
    gauge(
        "pointsman_sentinel_view_age_seconds",
        &["sentinel"],
        "Time since this sentinel last named a master, of the service for which that is longest ago.",
    ),
    gauge(
        "pointsman_sentinel_disagrees",
        &["sentinel"],
        "Services for which this sentinel names another master or epoch than the one in force.",
    ),
    gauge(
        "pointsman_target_info",
        &["service", "target"],
        "1 for the master in force; its address is in the label.",
    ),
    gauge(
        "pointsman_target_generation",
        SERVICE,
        "Number of the commit in force; 0 while there is none.",
    ),
    gauge("pointsman_target_epoch", SERVICE, "Sentinel's config-epoch of the commit in force."),
    gauge(
        "pointsman_target_stopped_seconds",
        SERVICE,
        "For how long nothing could be sent to a master; 0 while all flows.",
    ),
    counter(
        "pointsman_target_outage_seconds_total",
        SERVICE,
        "Time for which nothing could be sent to a master, added up, since there was one for the first time.",
    ),
    gauge("pointsman_gate_shut", SERVICE, "1 while traffic is held."),
    gauge("pointsman_sentinels", SERVICE, "Sentinels with a connection wanted."),
    gauge("pointsman_sentinels_up", SERVICE, "Sentinels that are connected."),
    gauge("pointsman_sentinel_voters", SERVICE, "Members of the electorate, heard or not."),
    gauge(
        "pointsman_sentinel_disagreement",
        SERVICE,
        "1 while sentinels that vote, or that the configuration leads to, name different masters or epochs.",
    ),
    gauge(
        "pointsman_sentinel_minority",
        SERVICE,
        "1 while the sentinels that can be heard are a minority: by what they say of their peers, or, unless \
         minority = \"keep\", because too few are heard.",
    ),
    gauge(
        "pointsman_sentinel_strangers",
        SERVICE,
        "Configured sentinels without a vote: no member of the electorate knows them, and they know none.",
    ),
    counter("pointsman_commits_total", SERVICE, "Times the points moved."),
    counter("pointsman_holds_total", SERVICE, "Times traffic was held."),
    counter(
        "pointsman_holds_expired_total",
        SERVICE,
        "Holds that ended without a move of the points.",
    ),
    counter(
        "pointsman_target_cleared_total",
        SERVICE,
        "Times a master was taken away without another.",
    ),
    counter(
        "pointsman_sentinel_stale_views_total",
        SERVICE,
        "Answers of sentinels at an older epoch than the one in force; ignored.",
    ),
    counter(
        "pointsman_sentinel_bad_rounds_total",
        SERVICE,
        "Rounds of questions with torn, refused or malformed answers.",
    ),
    counter(
        "pointsman_sentinel_unknown_name_total",
        SERVICE,
        "Answers of sentinels that do not watch the master's name.",
    ),
    counter(
        "pointsman_sentinel_splits_total",
        SERVICE,
        "Times sentinels named different masters at one epoch.",
    ),
    counter(
        "pointsman_sentinel_unverified_regressions_total",
        SERVICE,
        "Times a majority of sentinels insisted on an older epoch and on a node that is no master.",
    ),
    counter(
        "pointsman_lineage_broken_total",
        SERVICE,
        "Commits whose master does not continue the history of the one before.",
    ),
    counter("pointsman_stalls_total", SERVICE, "Times the process found that it had been stopped."),
    histogram(
        "pointsman_failover_suspicion_seconds",
        SERVICE,
        "From the first sign of trouble to the move of the points.",
    ),
    histogram(
        "pointsman_failover_hold_seconds",
        SERVICE,
        "Time traffic was held before the points moved.",
    ),
    histogram(
        "pointsman_failover_switch_seconds",
        SERVICE,
        "From the arrival of the +switch-master, or answer, that made a majority to the move of the points.",
    ),
    histogram(
        "pointsman_failover_verification_seconds",
        SERVICE,
        "From the arrival of the evidence's last answer to the move of the points.",
    ),
    histogram(
        "pointsman_failover_first_session_seconds",
        SERVICE,
        "From the move of the points to the first session on the new master.",
    ),
    counter(
        "pointsman_failover_lost_bytes_total",
        SERVICE,
        "Bytes of masters' histories lost, where estimated.",
    ),
    gauge("pointsman_replicas_eligible", SERVICE, "Replicas that readers may be sent to."),
    gauge(
        "pointsman_replicas",
        &["service", "state"],
        "Replicas by whether readers may be sent there, and if not, why.",
    ),
    gauge(
        "pointsman_replica_lag_bytes",
        SERVICE,
        "The most bytes that a replica lacked when it last answered, of those that serve readers.",
    ),
    gauge(
        "pointsman_replica_lag_seconds",
        SERVICE,
        "For how long the master had had the first of them, at the most.",
    ),
    counter(
        "pointsman_replica_ejections_total",
        SERVICE,
        "Times a replica was put out of those that serve readers.",
    ),
    counter(
        "pointsman_replica_readmissions_total",
        SERVICE,
        "Times a replica that had been put out came back.",
    ),
    gauge("pointsman_sessions_open", TRAFFIC, "Client connections open now."),
    gauge("pointsman_sessions_limit", TRAFFIC, "Client connections allowed."),
    gauge("pointsman_sessions_waiting", TRAFFIC, "Client connections that wait for a master."),
    counter("pointsman_sessions_total", TRAFFIC, "Client connections accepted and served."),
    counter(
        "pointsman_sessions_held_total",
        TRAFFIC,
        "Times a client connection had to wait for a master.",
    ),
    counter(
        "pointsman_sessions_refused_total",
        &["service", "listener", "limit"],
        "Client connections refused, by the limit that was reached.",
    ),
    counter(
        "pointsman_sessions_closed_total",
        &["service", "listener", "reason"],
        "Client connections ended, by reason.",
    ),
    counter("pointsman_accept_errors_total", TRAFFIC, "Failures to accept a connection."),
    counter(
        "pointsman_sessions_passed_on_total",
        TRAFFIC,
        "Client connections given to a worker that had clearly fewer.",
    ),
    counter(
        "pointsman_client_bytes_total",
        &["service", "listener", "direction"],
        "Bytes forwarded, by direction: in from clients, out to clients.",
    ),
    counter(
        "pointsman_spliced_bytes_total",
        TRAFFIC,
        "Bytes of both directions that were moved inside the kernel.",
    ),
    counter("pointsman_commands_total", TRAFFIC, "Commands forwarded and answered."),
    counter("pointsman_dials_total", TRAFFIC, "Connections to masters opened."),
    counter(
        "pointsman_dial_errors_total",
        &["service", "listener", "reason"],
        "Connections to masters that failed, by reason.",
    ),
    histogram(
        "pointsman_command_duration_seconds",
        TRAFFIC,
        "Time from a request written to the master to its whole reply read from it; a sample, without blocking commands.",
    ),
    histogram(
        "pointsman_dial_duration_seconds",
        TRAFFIC,
        "Time to open a connection to a master, where that succeeded.",
    ),
    counter(
        "pointsman_sessions_carried_total",
        TRAFFIC,
        "Times a session was carried over to another connection, unnoticed by its client.",
    ),
    counter(
        "pointsman_sessions_rebalanced_total",
        TRAFFIC,
        "Sessions moved to a replica that had fewer.",
    ),
    gauge(
        "pointsman_sessions",
        &["service", "listener", "state"],
        "Open client sessions by what would close them at a failover; ordinary ones would be carried over.",
    ),
    counter(
        "pointsman_sessions_not_carried_total",
        &["service", "listener", "reason"],
        "Sessions closed instead of carried over after they lost their server, by reason.",
    ),
    counter(
        "pointsman_maintenance_handshakes_total",
        TRAFFIC,
        "Times a client asked to be told of maintenance and was answered in the master's place.",
    ),
    counter(
        "pointsman_maintenance_pushes_total",
        &["service", "listener", "kind"],
        "Pushes that told a client of maintenance, by kind.",
    ),
    counter(
        "pointsman_hints_total",
        TRAFFIC,
        "Times a session saw something that made discovery look again.",
    ),
];

/// What is there with `[metrics] haproxy_names = true`, for dashboards and alerts made for haproxy.
pub const HAPROXY: &[Metric] = &[
    gauge(
        "haproxy_process_build_info",
        &["version"],
        "Always 1; pointsman's version is in the label.",
    ),
    gauge("haproxy_process_uptime_seconds", &[], "Time since the process started."),
    gauge(
        "haproxy_process_max_connections",
        &[],
        "Client connections allowed in all services together.",
    ),
    gauge("haproxy_process_current_connections", &[], "Client connections open now."),
    counter(
        "haproxy_process_connections_total",
        &[],
        "Client connections accepted, the refused ones included.",
    ),
    gauge("haproxy_process_stopping", &[], "1 from the order to stop on, else 0."),
    gauge(
        "haproxy_frontend_status",
        &["proxy", "state"],
        "UP while clients are accepted, else DOWN.",
    ),
    gauge("haproxy_frontend_current_sessions", &["proxy"], "Client connections open now."),
    gauge("haproxy_frontend_limit_sessions", &["proxy"], "Client connections allowed."),
    counter(
        "haproxy_frontend_sessions_total",
        &["proxy"],
        "Client connections accepted and served.",
    ),
    counter(
        "haproxy_frontend_connections_total",
        &["proxy"],
        "Client connections accepted, the refused ones included.",
    ),
    counter("haproxy_frontend_bytes_in_total", &["proxy"], "Bytes from clients."),
    counter("haproxy_frontend_bytes_out_total", &["proxy"], "Bytes to clients."),
    gauge(
        "haproxy_backend_status",
        &["proxy", "state"],
        "UP while traffic flows to a server, else DOWN.",
    ),
    gauge(
        "haproxy_backend_active_servers",
        &["proxy"],
        "Servers that are UP: the master or none; the replicas in service for a listener for readers.",
    ),
    gauge(
        "haproxy_backend_current_sessions",
        &["proxy"],
        "Client connections that do not wait for a server.",
    ),
    counter(
        "haproxy_backend_connection_errors_total",
        &["proxy"],
        "Connections to servers that failed.",
    ),
    counter(
        "haproxy_backend_connection_attempts_total",
        &["proxy"],
        "Attempts to connect to servers.",
    ),
    counter(
        "haproxy_backend_server_aborts_total",
        &["proxy"],
        "Sessions that the server broke off, or that could not be had from it.",
    ),
    counter(
        "haproxy_backend_client_aborts_total",
        &["proxy"],
        "Sessions that the client broke off.",
    ),
    gauge(
        "haproxy_backend_connect_time_average_seconds",
        &["proxy"],
        "Average time to connect to servers, since the start.",
    ),
    counter(
        "haproxy_backend_downtime_seconds_total",
        &["proxy"],
        "Time spent DOWN since the first master; not for readers.",
    ),
    counter(
        "haproxy_backend_check_up_down_total",
        &["proxy"],
        "Times the servers were found to be gone: holds, and masters taken away; for readers, replicas put out.",
    ),
    gauge(
        "haproxy_server_status",
        &["proxy", "server", "state"],
        "UP for the master in force (for readers: a replica in service), else DOWN.",
    ),
    gauge(
        "haproxy_server_check_status",
        &["proxy", "server", "state"],
        "How the last question to the node ended: L7OK, L7STS (another role), L7TOUT, L4CON, L7RSP, or HANA before the first.",
    ),
    counter(
        "haproxy_server_check_failures_total",
        &["proxy", "server"],
        "Questions to the node that were not answered as they should be.",
    ),
    gauge(
        "haproxy_server_check_duration_seconds",
        &["proxy", "server"],
        "Time the last answer took.",
    ),
    gauge(
        "haproxy_server_current_sessions",
        &["proxy", "server"],
        "Client connections on the node now.",
    ),
    counter(
        "haproxy_server_bytes_in_total",
        &["proxy", "server"],
        "Bytes to the node, while scrapes found it to be the master; not for readers.",
    ),
    counter(
        "haproxy_server_bytes_out_total",
        &["proxy", "server"],
        "Bytes from the node, likewise.",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_metric_has_a_conventional_name_and_a_help_text() {
        for Metric { name, kind, labels, help } in CATALOGUE.iter().chain(HAPROXY) {
            assert!(
                ["pointsman_", "process_", "haproxy_"].iter().any(|start| name.starts_with(start)),
                "{name}"
            );
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(help.ends_with('.') && !help.contains(['\\', '\n']), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert!(labels.iter().all(|label| *label != "le"), "{name}");
        }
        let names: BTreeSet<&str> = CATALOGUE.iter().chain(HAPROXY).map(|it| it.name).collect();
        assert_eq!(names.len(), CATALOGUE.len() + HAPROXY.len());
        assert!(HAPROXY.iter().all(|it| it.name.starts_with("haproxy_")));
    }
}
