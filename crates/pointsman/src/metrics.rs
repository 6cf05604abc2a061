//! Metrics: what is counted elsewhere, under names by the Prometheus conventions.
//!
//! Nothing here is on a hot path. Workers and discovery count in integers of their own; a scrape takes a picture of them and
//! writes it into a recorder of the `metrics` crate, which renders it. Labels are service names, close reasons and node
//! addresses, all bounded by construction.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics::{Counter, Gauge, Key, KeyName, Label, Level, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use sentinel::{Seen, SeenReplicas, Standing};

/// Upper bounds, in seconds, of the histograms of switches and verifications: finest around the promise of 2 ms.
const SWITCH_BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.000_75, 0.001, 0.001_25, 0.001_5, 0.001_75, 0.002, 0.002_5, 0.003, 0.004, 0.005,
    0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0,
];
/// Upper bounds, in seconds, of the histogram of holds.
const HOLD_BUCKETS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0];

/// Histogram of the time from the notice, or answer, that made a majority to the commit.
const SWITCH: &str = "pointsman_failover_switch_seconds";
/// Histogram of the time from complete evidence to the commit.
const VERIFICATION: &str = "pointsman_failover_verification_seconds";
/// Histogram of the time from the commit to the first session on the new master.
const FIRST_SESSION: &str = "pointsman_failover_first_session_seconds";
/// Histogram of the time traffic was held before a commit.
const HOLD: &str = "pointsman_failover_hold_seconds";

/// Histogram of the time commands take, written by [`histogram`](crate::histogram).
pub const COMMAND: &str = "pointsman_command_duration_seconds";
/// Histogram of the time dials take, written by [`histogram`](crate::histogram).
pub const DIAL: &str = "pointsman_dial_duration_seconds";

/// Which configuration is in force.
pub const CONFIG_INFO: &str = "pointsman_config_info";

/// Every metric with its kind's unit and its help text, in the order of the documentation.
pub const CATALOGUE: &[(&str, &str)] = &[
    ("pointsman_build_info", "Always 1; the version is in the label."),
    ("pointsman_uptime_seconds", "Time since the process started."),
    (CONFIG_INFO, "Always 1; the hash of the effective configuration is in the label."),
    ("pointsman_config_reloads_total", "Reloads of the configuration, by result."),
    ("pointsman_config_last_reload_successful", "0 if the last reload was refused, else 1."),
    ("pointsman_config_last_reload_age_seconds", "Time since the last reload, or since the start."),
    ("pointsman_config_pending_restart", "Keys written otherwise than in force, which need a restart."),
    ("pointsman_drain_phase", "1 for the phase of the shutdown the process is in, 0 for the others."),
    ("pointsman_connections_limit", "Client connections allowed in all services together."),
    ("pointsman_memory_scarce", "1 while new clients are refused because memory is about to run out."),
    ("pointsman_log_lines_dropped_total", "Log lines dropped because the reader of the output was too slow."),
    ("pointsman_loop_age_seconds", "Time since an event loop last turned; liveness fails above 5 s."),
    ("pointsman_target_info", "1 for the master in force, 0 for those before it; the address is in the label."),
    ("pointsman_target_generation", "Number of the commit in force; 0 while there is none."),
    ("pointsman_target_epoch", "Sentinel's config-epoch of the commit in force."),
    ("pointsman_target_stopped_seconds", "For how long nothing could be sent to a master; 0 while all flows."),
    ("pointsman_gate_shut", "1 while traffic is held."),
    ("pointsman_sentinels", "Sentinels with a connection wanted."),
    ("pointsman_sentinels_up", "Sentinels that are connected."),
    ("pointsman_sentinel_voters", "Members of the electorate, heard or not."),
    ("pointsman_sentinel_disagreement", "1 while sentinels with a vote name different masters or epochs."),
    ("pointsman_sentinel_minority", "1 while the sentinels that can be heard are provably a minority of theirs."),
    ("pointsman_commits_total", "Times the points moved."),
    ("pointsman_holds_total", "Times traffic was held."),
    ("pointsman_holds_expired_total", "Holds that ended without a move of the points."),
    ("pointsman_target_cleared_total", "Times a master was taken away without another."),
    ("pointsman_sentinel_stale_views_total", "Answers of sentinels at an older epoch than the one in force; ignored."),
    ("pointsman_sentinel_bad_rounds_total", "Rounds of questions with torn, refused or malformed answers."),
    ("pointsman_sentinel_unknown_name_total", "Answers of sentinels that do not watch the master's name."),
    ("pointsman_sentinel_splits_total", "Times sentinels named different masters at one epoch."),
    ("pointsman_lineage_broken_total", "Commits whose master does not continue the history of the one before."),
    ("pointsman_stalls_total", "Times the process found that it had been stopped."),
    (SWITCH, "From the arrival of the +switch-master, or answer, that made a majority to the move of the points."),
    (VERIFICATION, "From the arrival of the evidence's last answer to the move of the points."),
    (HOLD, "Time traffic was held before the points moved."),
    (FIRST_SESSION, "From the move of the points to the first session on the new master."),
    ("pointsman_replicas_eligible", "Replicas that readers may be sent to."),
    ("pointsman_replicas", "Replicas by whether readers may be sent there, and if not, why."),
    (
        "pointsman_replica_lag_bytes",
        "The most bytes that a replica lacked when it last answered, of those that serve readers.",
    ),
    ("pointsman_replica_lag_seconds", "For how long the master had had the first of them, at the most."),
    ("pointsman_replica_ejections_total", "Times a replica was put out of those that serve readers."),
    ("pointsman_replica_readmissions_total", "Times a replica that had been put out came back."),
    ("pointsman_sessions_open", "Client connections open now."),
    ("pointsman_sessions_limit", "Client connections allowed."),
    ("pointsman_sessions_waiting", "Client connections that wait for a master."),
    ("pointsman_sessions_total", "Client connections accepted and served."),
    ("pointsman_sessions_refused_total", "Client connections refused, by the limit that was reached."),
    ("pointsman_sessions_closed_total", "Client connections ended, by reason."),
    ("pointsman_accept_errors_total", "Failures to accept a connection."),
    ("pointsman_sessions_passed_on_total", "Client connections given to a worker that had clearly fewer."),
    ("pointsman_client_bytes_total", "Bytes forwarded, by direction: in from clients, out to clients."),
    ("pointsman_spliced_bytes_total", "Bytes of both directions that were moved inside the kernel."),
    ("pointsman_commands_total", "Commands forwarded and answered."),
    ("pointsman_dials_total", "Connections to masters opened."),
    ("pointsman_dial_errors_total", "Connections to masters that failed, by reason."),
    (
        COMMAND,
        "Time from a request written to the master to its whole reply read from it; a sample, without blocking commands.",
    ),
    (DIAL, "Time to open a connection to a master, where that succeeded."),
    (
        "pointsman_sessions_carried_total",
        "Times a session was carried over to another connection, unnoticed by its client.",
    ),
    (
        "pointsman_maintenance_handshakes_total",
        "Times a client asked to be told of maintenance and was answered in the master's place.",
    ),
    ("pointsman_maintenance_pushes_total", "Pushes that told a client of maintenance, by kind."),
    ("pointsman_hints_total", "Times a session saw something that made discovery look again."),
];

/// The help text of a metric of the catalogue.
#[must_use]
pub fn help(name: &str) -> &'static str {
    CATALOGUE.iter().find(|(it, _)| *it == name).map_or("", |(_, help)| help)
}

const METADATA: Metadata<'static> = Metadata::new("pointsman", Level::INFO, None);

/// The recorder of one process.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

/// The label of what a listener for readers counts. That of a master's listener has none, so that nobody's queries change.
pub const READERS: Pair<'static> = ("listener", "replica");

/// A label's name and value.
pub type Pair<'a> = (&'static str, &'a str);

impl Metrics {
    /// An empty recorder with every help text in place.
    #[must_use]
    pub fn new() -> Self {
        let buckets = [
            (SWITCH, SWITCH_BUCKETS),
            (VERIFICATION, SWITCH_BUCKETS),
            (HOLD, HOLD_BUCKETS),
            (FIRST_SESSION, HOLD_BUCKETS),
        ];
        let builder = buckets.into_iter().try_fold(PrometheusBuilder::new(), |builder, (name, buckets)| {
            builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)
        });
        // Only an empty list of buckets is refused.
        let recorder = builder.unwrap_or_default().build_recorder();
        let handle = recorder.handle();
        for (name, help) in CATALOGUE {
            let (name, help) = (KeyName::from_const_str(name), SharedString::const_str(help));
            if name.as_str().ends_with("_total") {
                recorder.describe_counter(name, None::<Unit>, help);
            } else if buckets.iter().any(|(histogram, _)| name.as_str() == *histogram) {
                recorder.describe_histogram(name, None::<Unit>, help);
            } else if name.as_str() != COMMAND && name.as_str() != DIAL {
                recorder.describe_gauge(name, None::<Unit>, help);
            }
        }
        Self { recorder, handle }
    }

    /// Sets a counter to its value, counted elsewhere.
    pub fn counter(&self, name: &'static str, labels: &[Pair<'_>], value: u64) {
        let counter: Counter = self.recorder.register_counter(&key(name, labels), &METADATA);
        counter.absolute(value);
    }

    /// Sets a gauge.
    pub fn gauge(&self, name: &'static str, labels: &[Pair<'_>], value: f64) {
        let gauge: Gauge = self.recorder.register_gauge(&key(name, labels), &METADATA);
        gauge.set(value);
    }

    fn observe(&self, name: &'static str, labels: &[Pair<'_>], value: Duration) {
        self.recorder.register_histogram(&key(name, labels), &METADATA).record(value.as_secs_f64());
    }

    /// Everything in Prometheus's text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }

    /// Which replicas of one service serve readers. Without their addresses: pods come and go, and the recorder forgets nobody.
    pub fn replicas(&self, service: &str, seen: &SeenReplicas) {
        let of = [("service", service)];
        self.gauge("pointsman_replicas_eligible", &of, precise(seen.eligible.unwrap_or(0) as u64));
        for standing in Standing::ALL {
            let count = seen.replicas.iter().filter(|it| it.standing == standing).count();
            self.gauge("pointsman_replicas", &[of[0], ("state", standing.label())], precise(count as u64));
        }
        let serving = || seen.replicas.iter().filter(|it| it.standing == Standing::Eligible).map(|it| it.lag);
        let bytes = serving().map(|lag| lag.bytes).max().unwrap_or(0);
        let time = serving().map(|lag| lag.time).max().unwrap_or_default();
        self.gauge("pointsman_replica_lag_bytes", &of, precise(bytes));
        self.gauge("pointsman_replica_lag_seconds", &of, time.as_secs_f64());
        self.counter("pointsman_replica_ejections_total", &of, seen.ejections);
        self.counter("pointsman_replica_readmissions_total", &of, seen.readmissions);
    }

    /// What discovery sees of one service. `told` is what of its failovers was put into the histograms already.
    pub fn discovery(&self, seen: &Seen, told: &mut Told) {
        let service = [("service", &*seen.name)];
        let gauge = |name, value: f64| self.gauge(name, &service, value);
        let flag = |yes: bool| f64::from(u8::from(yes));
        let stopped = seen.stopped_since.map_or(Duration::ZERO, |at| at.elapsed());
        gauge("pointsman_target_generation", precise(seen.master.as_ref().map_or(0, |master| master.generation)));
        gauge("pointsman_target_epoch", precise(seen.master.as_ref().map_or(0, |master| master.epoch)));
        gauge("pointsman_target_stopped_seconds", stopped.as_secs_f64());
        gauge("pointsman_gate_shut", flag(seen.holding));
        gauge("pointsman_sentinel_disagreement", flag(seen.disagreement));
        gauge("pointsman_sentinel_minority", flag(seen.minority));
        gauge("pointsman_sentinels", precise(seen.sentinels.len() as u64));
        gauge("pointsman_sentinels_up", precise(seen.sentinels.iter().filter(|it| it.up).count() as u64));
        gauge("pointsman_sentinel_voters", precise(seen.quorum.0 as u64));
        let current = seen.master.as_ref().map(|master| master.addr.to_string());
        for addr in seen.failovers.iter().map(|it| it.to.to_string()).collect::<std::collections::BTreeSet<_>>() {
            let labels = [("service", &*seen.name), ("target", addr.as_str())];
            self.gauge("pointsman_target_info", &labels, flag(current.as_ref() == Some(&addr)));
        }
        let counts = &seen.counts;
        for (name, value) in [
            ("pointsman_commits_total", counts.commits),
            ("pointsman_holds_total", counts.holds),
            ("pointsman_holds_expired_total", counts.holds_expired),
            ("pointsman_target_cleared_total", counts.clears),
            ("pointsman_sentinel_stale_views_total", counts.stale_views),
            ("pointsman_sentinel_bad_rounds_total", counts.bad_rounds),
            ("pointsman_sentinel_unknown_name_total", counts.unknown_names),
            ("pointsman_sentinel_splits_total", counts.splits),
            ("pointsman_lineage_broken_total", counts.lineage_broken),
            ("pointsman_stalls_total", counts.stalls),
        ] {
            self.counter(name, &service, value);
        }
        self.failovers(seen, told);
    }

    /// Observes each failover once, and its first session once there was one.
    fn failovers(&self, seen: &Seen, told: &mut Told) {
        let service = [("service", &*seen.name)];
        let observe =
            |name, took: Option<Duration>| took.into_iter().for_each(|took| self.observe(name, &service, took));
        let before = *told;
        for failover in seen.failovers.iter().filter(|it| it.generation > before.commit) {
            observe(SWITCH, failover.swap());
            observe(VERIFICATION, failover.verification());
            observe(HOLD, failover.story.hold());
            told.commit = failover.generation;
        }
        // A failover gets its first session before the next one comes, or never.
        for failover in seen.failovers.iter().filter(|it| it.generation > before.first_session) {
            if let Some(took) = failover.first_session() {
                self.observe(FIRST_SESSION, &service, took);
                told.first_session = failover.generation;
            }
        }
    }
}

/// Which failovers of one service were put into the histograms, by their generation: all up to and including this one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Told {
    commit: u64,
    first_session: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// A family with one series that is always 1 and says what it has to say in its label.
#[must_use]
pub fn info(name: &str, label: &str, value: &str) -> String {
    let help = CATALOGUE.iter().find(|(known, _)| *known == name).map_or("", |(_, help)| help);
    format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{{label}=\"{value}\"}} 1\n")
}

/// Counters and gauges of the data plane, by name without labels.
pub type Plain = BTreeMap<&'static str, u64>;

fn key(name: &'static str, labels: &[Pair<'_>]) -> Key {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}

/// Counts as Prometheus holds them; exact up to 2^53.
#[must_use]
pub fn precise(count: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "Prometheus has no other number")]
    {
        count as f64
    }
}

/// The same text as OpenMetrics: counters' families lose their suffix, and the end is marked.
#[must_use]
pub fn to_open_metrics(prometheus: &str) -> String {
    let mut out = String::with_capacity(prometheus.len() + 8);
    let counters: std::collections::BTreeSet<&str> = prometheus
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .filter(|name| name.ends_with("_total"))
        .collect();
    for line in prometheus.lines().filter(|line| !line.is_empty()) {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind @ ("HELP" | "TYPE")), Some(name), Some(rest)) if counters.contains(name) => {
                let family = name.strip_suffix("_total").unwrap_or(name);
                out.push_str(&format!("# {kind} {family} {rest}\n"));
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out.push_str("# EOF\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_names_families_and_marks_the_end() {
        let text = "# HELP a_total Things.\n# TYPE a_total counter\na_total{x=\"1\"} 3\n\n# TYPE b gauge\nb 1\n";
        let open = to_open_metrics(text);
        assert_eq!(open, "# HELP a Things.\n# TYPE a counter\na_total{x=\"1\"} 3\n# TYPE b gauge\nb 1\n# EOF\n");
    }

    #[test]
    fn every_metric_has_a_conventional_name_and_a_help_text() {
        for (name, help) in CATALOGUE {
            assert!(name.starts_with("pointsman_") && help.ends_with('.'), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        }
    }

    #[test]
    fn a_counter_is_rendered_with_its_help_and_labels() {
        let metrics = Metrics::new();
        metrics.counter("pointsman_commits_total", &[("service", "m")], 7);
        let text = metrics.render();
        assert!(text.contains("# TYPE pointsman_commits_total counter"), "{text}");
        assert!(text.contains("pointsman_commits_total{service=\"m\"} 7"), "{text}");
    }
}
