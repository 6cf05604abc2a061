//! Compares deploy/ with the program: the dashboard and the alerts use existing metrics, every
//! alert has unit tests and an entry in the runbook, and duplicate numbers are equal. Checks that
//! need tools of other projects are in `cargo xtask deploy-check`.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests report by a clear panic"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use pointsman::reference::{
    CATALOGUE, ConfigSection, SECTIONS, SESSION_BYTES, TLS_BYTES, ValueKind,
};
use serde_json::{Value as Json, json};

const ALERTS: &str = "deploy/helm/pointsman/files/alerts.yaml";
const DASHBOARD: &str = "deploy/helm/pointsman/files/dashboard.json";
const ALERT_TESTS: &str = "deploy/prometheus/alerts_test.yaml";

fn read(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every metric of pointsman in a text, without the suffixes of histograms.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = words.filter(|word| word.starts_with("pointsman_"));
    ours.map(|word| word.strip_suffix("_bucket").unwrap_or(word)).collect()
}

fn alerts() -> Vec<String> {
    let text = read(ALERTS);
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let names: Vec<String> = names.map(str::to_owned).collect();
    assert!(names.len() > 15, "only {} alerts were found", names.len());
    names
}

#[test]
fn uses_only_existing_metrics_in_deploy() {
    let known: BTreeSet<&str> = CATALOGUE.iter().map(|it| it.name).collect();
    let documents = [("docs/operations.md", 6), ("docs/migrating-from-haproxy.md", 12)];
    for (file, least) in
        [(ALERTS, 15), (DASHBOARD, 30), (ALERT_TESTS, 15)].into_iter().chain(documents)
    {
        let text = read(file);
        let named = metrics_in(&text);
        assert!(named.len() >= least, "{file} names only {} metrics", named.len());
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{file} names metrics that do not exist: {unknown:?}");
    }
}

/// Metrics that need no panel: they are shown in another form, or queried when something is
/// investigated.
const LOOKED_UP: &[&str] = &[
    "pointsman_uptime_seconds",
    "process_start_time_seconds",
    "pointsman_sessions_names_dropped_total",
    "process_cpu_seconds_total",
    "process_virtual_memory_bytes",
    "process_threads",
    "process_open_fds",
    "process_max_fds",
    "pointsman_cgroup_cpu_limit_cores",
    "pointsman_cgroup_cpu_throttled_seconds_total",
    "pointsman_worker_stalls_total",
    // While an operator's command runs, which reports its end itself.
    // A read that does not end becomes a refused reload, for which there is an alert.
    "pointsman_config_read_pending_seconds",
    // For both there is an alert on what follows: a partial reload, and refused credentials.
    "pointsman_config_secrets_unread",
    "pointsman_credentials_outdated",
    "pointsman_worker_stalled_seconds_total",
    "pointsman_worker_sessions",
    "pointsman_worker_tasks",
    "pointsman_config_reloads_total",
    "pointsman_config_last_reload_age_seconds",
    "pointsman_connections_limit",
    "pointsman_admin_connections",
    "pointsman_admin_requests_total",
    // Attacks and misconfigured clients; the log names their addresses.
    "pointsman_admin_tokens_refused_total",
    "pointsman_admin_foreign_hosts_total",
    // The log names the client and the reason; a scrape that is refused fails itself.
    "pointsman_admin_tls_handshakes_total",
    "pointsman_admin_requests_refused_total",
    "pointsman_proxy_headers_total",
    // Each failure is a session closed with tls_handshake_failed, and the log names the client.
    "pointsman_tls_handshakes_total",
    "pointsman_tls_handshake_failures_total",
    "pointsman_tls_handshakes_running",
    "pointsman_target_generation",
    "pointsman_target_tls_handshakes_total",
    "pointsman_holds_total",
    "pointsman_service_removed",
    "pointsman_replica_lag_bytes",
    "pointsman_sessions_delayed_total",
    "pointsman_sessions_reassigned_total",
    "pointsman_spliced_bytes_total",
    "pointsman_discovery_hints_total",
    // Above zero only while a switchover runs.
    "pointsman_switchover_changed_priorities",
    // Clients that are refused show it as errors of their own.
    "pointsman_refused_commands_total",
    "pointsman_shared_access_checks_total",
];

/// The expressions of dashboard and alerts.
fn expressions() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let asked = targets.filter_map(|target| target["expr"].as_str().map(str::to_owned));
    asked.chain([read(ALERTS)]).collect()
}

#[test]
fn shows_every_metric_or_lists_why_not() {
    let all = expressions().join("\n");
    let asked: BTreeSet<&str> = all
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
        .collect();
    let ours = CATALOGUE.iter().map(|it| it.name).filter(|name| !name.starts_with("haproxy_"));
    let forgotten: Vec<_> =
        ours.filter(|name| asked.contains(name) == LOOKED_UP.contains(name)).collect();
    assert!(forgotten.is_empty(), "neither asked for nor left out, or both: {forgotten:?}");
    assert!(
        LOOKED_UP.iter().all(|name| CATALOGUE.iter().any(|it| it.name == *name)),
        "left out and not there"
    );
}

#[test]
fn selects_only_by_existing_labels() {
    let mut selectors = 0;
    for expression in expressions() {
        for (at, _) in expression.match_indices('{') {
            let (before, behind) = expression.split_at(at);
            let name = before
                .rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                .next()
                .unwrap_or_default();
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            let Some(metric) = CATALOGUE.iter().find(|it| it.name == name) else { continue };
            let inside = behind[1..].split('}').next().unwrap_or_default();
            for matcher in inside.split(", ") {
                let label = matcher.split(['=', '!']).next().unwrap_or_default();
                let known = metric.labels.contains(&label)
                    || ["namespace", "job", "instance"].contains(&label);
                assert!(known, "{name} has no label {label}: {expression}");
                selectors += 1;
            }
        }
    }
    assert!(selectors > 100, "only {selectors} were looked at");
}

#[test]
fn parses_dashboard_with_queries_in_every_panel() {
    let dashboard: serde_json::Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let asking = panels.iter().filter(|panel| panel["type"] != "row");
    let mut count = 0;
    for panel in asking {
        count += 1;
        let targets = panel["targets"].as_array().expect("targets");
        let asks = |target: &serde_json::Value| {
            target["expr"].as_str().is_some_and(|expr| expr.contains("pointsman_"))
        };
        assert!(!targets.is_empty() && targets.iter().all(asks), "{}", panel["title"]);
    }
    assert!(count >= 15, "only {count} panels");
}

#[test]
fn tests_and_documents_every_alert() {
    let (tests, runbook) = (read(ALERT_TESTS), read("docs/operations.md"));
    for alert in alerts() {
        let cases: Vec<&str> = tests
            .split("alertname: ")
            .filter(|case| case.starts_with(&format!("{alert}\n")))
            .collect();
        let quiet = cases.iter().filter(|case| case.contains("exp_alerts: []")).count();
        assert!(
            cases.len() >= 2 && quiet >= 1 && quiet < cases.len(),
            "{alert}: {} tests, {quiet} of them quiet",
            cases.len()
        );
        let heading = format!("\n### {alert}\n");
        let entry = runbook
            .split(&heading)
            .nth(1)
            .unwrap_or_else(|| panic!("the runbook has no entry {alert}"));
        let entry = entry.split("\n#").next().unwrap_or_default().trim();
        assert!(entry.len() > 60, "the runbook says next to nothing of {alert}: {entry:?}");
    }
    let headings = runbook.lines().filter_map(|line| line.strip_prefix("### Pointsman")).count();
    assert_eq!(headings, alerts().len(), "an entry is left of an alert that is gone");
}

#[test]
fn keeps_duplicate_numbers_equal() {
    let chart = read("deploy/helm/pointsman/Chart.yaml");
    assert!(chart.contains(&format!("appVersion: \"{}\"\n", env!("CARGO_PKG_VERSION"))), "{chart}");
    let helpers = read("deploy/helm/pointsman/templates/_helpers.tpl");
    let (each, tls) = (SESSION_BYTES / 1024, TLS_BYTES / 1024);
    for rule in [
        format!("add {each} $most"),
        format!("ternary {tls} 0 (not (empty (or $tls.port"),
        format!("ternary {tls} 0 (not (empty (.redisTls"),
        "3) 4) 24576) $each -".to_owned(),
    ] {
        assert!(helpers.contains(&rule), "the chart counts a connection differently: {rule}");
    }
    let manifest = read("deploy/manifests/pointsman.yaml");
    assert!(
        manifest.contains(&format!(
            "image: registry.example.com/pointsman:{}\n",
            env!("CARGO_PKG_VERSION")
        )),
        "{manifest}"
    );
}

const VALUES_SCHEMA: &str = "deploy/helm/pointsman/values.schema.json";

/// What JSON Schema can say of a value of this kind, as helm writes it into the configuration.
fn schema_of(kind: ValueKind) -> Json {
    const DURATION: &str = "([0-9]+(d|h|ms|m|us|s))+";
    match kind {
        ValueKind::Duration => json!({"type": "string", "pattern": format!("^{DURATION}$")}),
        ValueKind::DurationOrOff => {
            json!({"type": "string", "pattern": format!("^({DURATION}|0|off)$")})
        }
        ValueKind::Bool => json!({"type": "boolean"}),
        ValueKind::Count(least, most) if most <= 1 << 50 => {
            json!({"type": "integer", "minimum": least, "maximum": most})
        }
        ValueKind::Count(least, _) => json!({"type": "integer", "minimum": least}),
        ValueKind::Choice(words) => json!({"enum": words}),
        ValueKind::MasterName
        | ValueKind::Text
        | ValueKind::Path
        | ValueKind::EnvName
        | ValueKind::Mode
        | ValueKind::Endpoint
        | ValueKind::Secret => json!({"type": "string", "minLength": 1}),
        ValueKind::AddressMap => {
            json!({"type": "object", "additionalProperties": {"type": "string"}})
        }
        ValueKind::Listen
        | ValueKind::ListenTcp
        | ValueKind::Endpoints
        | ValueKind::Commands
        | ValueKind::Refusals
        | ValueKind::Networks
        | ValueKind::Nodes
        | ValueKind::Paths
        | ValueKind::Ciphers
        | ValueKind::HostNames => json!({"type": "array", "items": {"type": "string"}}),
    }
}

/// The keys of a section and of the tables in it. Of a table that has values of its own in the
/// chart, the template says which.
fn table_schema(section: &ConfigSection) -> Json {
    const BY_VALUES: [&str; 5] = ["auth", "sentinel_auth", "tls", "redis_tls", "sentinel_tls"];
    let mut keys: BTreeMap<String, Json> =
        section.options.iter().map(|it| (it.key.to_owned(), schema_of(it.kind))).collect();
    for inner in SECTIONS {
        let Some(name) = inner.path.strip_prefix(section.path).and_then(|it| it.strip_prefix('.'))
        else {
            continue;
        };
        let is_by_values = section.path == "service" && BY_VALUES.contains(&name);
        let table = if is_by_values { json!({"type": "object"}) } else { table_schema(inner) };
        keys.insert(name.to_owned(), table);
    }
    json!({"type": "object", "properties": keys, "additionalProperties": false})
}

/// A key with a typing error would end every new pod, while helm reports success.
#[test]
fn knows_every_key_of_the_configuration_in_values_schema() {
    let text = read(VALUES_SCHEMA);
    let referred = |path: &str| text.contains(&format!("\"#/definitions/{path}\""));
    let sections = SECTIONS.iter().filter(|it| referred(it.path));
    let definitions: BTreeMap<&str, Json> =
        sections.map(|it| (it.path, table_schema(it))).collect();
    assert_eq!(definitions.len(), 10, "{:?}", definitions.keys());
    let mark = "  \"definitions\": ";
    let at = text.find(mark).expect("definitions, at the end");
    let pretty = serde_json::to_string_pretty(&definitions).expect("JSON").replace('\n', "\n  ");
    let wanted = format!("{}{mark}{pretty}\n}}\n", &text[..at]);
    if wanted != text {
        if std::env::var_os("UPDATE").is_some() {
            let path = format!("{}/{VALUES_SCHEMA}", env!("CARGO_MANIFEST_DIR"));
            return fs::write(path, wanted).expect("the schema is written");
        }
        panic!("{VALUES_SCHEMA} is out of step: UPDATE=1 cargo test --test deploy writes it");
    }
}
