//! One failover as reported in four places: metrics, status, history and log. They must agree. (The
//! page shows the status, which `tests/page` checks.)

use std::collections::BTreeMap;
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, wait_until};
use serde_json::Value;

use crate::builder;
use crate::schema::faults;

const PATIENCE: Duration = Duration::from_secs(30);
/// Clients without a request in flight.
const QUIET: u64 = 6;
/// The status has microseconds, the log whole milliseconds, and a sum of seconds the precision of
/// an `f64`.
const ROUNDING_MS: f64 = 0.002;

/// The published JSON schema.
fn schema() -> Value {
    let text = include_str!("../../deploy/status.schema.json");
    serde_json::from_str(text).expect("the schema is JSON")
}

/// The four reports, taken while nothing changes.
struct Accounts {
    status: Value,
    history: Value,
    metrics: BTreeMap<String, f64>,
    log: Vec<Value>,
}

fn json(pointsman: &Pointsman, path: &str) -> Value {
    let (code, body) = pointsman.get(path).expect("the admin server");
    assert_eq!(code, 200, "{path}: {body}");
    serde_json::from_str(&body).expect("JSON")
}

impl Accounts {
    fn of(pointsman: &Pointsman) -> Self {
        let metrics = pointsman.get("/metrics").expect("metrics").1;
        let series = metrics.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        let log = pointsman.process().log();
        Self {
            status: json(pointsman, "/status"),
            history: json(pointsman, "/history"),
            metrics: series.collect(),
            log: log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
        }
    }

    fn service(&self) -> &Value {
        &self.status["services"][0]
    }

    fn moves(&self) -> &[Value] {
        self.service()["failovers"].as_array().map_or(&[], Vec::as_slice)
    }

    /// A metric of the service.
    #[track_caller]
    fn metric(&self, name: &str) -> f64 {
        self.metrics
            .get(&format!("{name}{{service=\"mymaster\"}}"))
            .copied()
            .unwrap_or_else(|| panic!("no {name}"))
    }

    /// The fields of the only line with this message and generation.
    #[track_caller]
    fn line(&self, message: &str, generation: &Value) -> &Value {
        let ours = |line: &&Value| line["message"] == message && line["generation"] == *generation;
        let found: Vec<&Value> = self.log.iter().filter(ours).collect();
        assert_eq!(found.len(), 1, "{message:?} of generation {generation}: {found:?}");
        found[0]
    }

    /// Whether all counters of sessions are stable and equal in every place.
    fn sessions_agree(&self) -> Result<(), String> {
        let traffic = &self.service()["traffic"];
        for (key, metric) in [
            ("sessions_open", "pointsman_sessions_open"),
            ("sessions_waiting", "pointsman_sessions_waiting"),
            ("sessions_total", "pointsman_sessions_total"),
            ("sessions_carried", "pointsman_sessions_carried_total"),
            ("commands", "pointsman_commands_total"),
            ("dials", "pointsman_dials_total"),
        ] {
            if traffic[key].as_f64() != Some(self.metric(metric)) {
                return Err(format!("{key} is {}, {metric} {}", traffic[key], self.metric(metric)));
            }
        }
        let (mut by_status, mut by_metrics, mut by_log) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (reason, count) in traffic["sessions_closed"].as_object().into_iter().flatten() {
            by_status.insert(reason.clone(), count.as_u64().unwrap_or(0));
        }
        for (name, value) in self.metrics.iter().filter(|(_, value)| **value > 0.0) {
            let reason =
                name.strip_prefix("pointsman_sessions_closed_total{service=\"mymaster\",reason=\"");
            if let Some(reason) = reason.and_then(|rest| rest.strip_suffix("\"}")) {
                by_metrics.insert(reason.to_owned(), format!("{value:.0}").parse().unwrap_or(0));
            }
        }
        for line in self.log.iter().filter(|line| line["message"] == "session ended") {
            *by_log.entry(line["reason"].as_str().unwrap_or("?").to_owned()).or_insert(0) += 1;
        }
        if by_status == by_metrics && by_metrics == by_log {
            Ok(())
        } else {
            Err(format!(
                "sessions ended by status {by_status:?}, by metrics {by_metrics:?}, by log {by_log:?}"
            ))
        }
    }

    /// Compares the status with the log for one failover.
    fn check_move(&self, told: &Value) {
        let line = self.line("switched to new master", &told["generation"]);
        assert_eq!(
            (&line["to"], &line["from"], &line["epoch"]),
            (&told["to"], &told["from"], &told["epoch"])
        );
        assert_eq!(
            (&line["decided_by"], &line["lost_bytes"]),
            (&told["decided_by"], &told["lost_bytes"]),
            "{line} {told}"
        );
        let mut pairs = vec![
            ("duration_ms", &line["duration_ms"], 1.0),
            ("held_ms", &line["held_ms"], 1.0),
            ("switched_ms", &line["switched_us"], 0.001),
            ("verified_ms", &line["verified_us"], 0.001),
        ];
        if told["first_session_ms"].is_number() {
            let first = self.line("first session reached the new master", &told["generation"]);
            assert_eq!(first["master"], told["to"]);
            pairs.push(("first_session_ms", &first["after_ms"], 1.0));
        }
        for (key, logged, unit) in pairs {
            match (told[key].as_f64(), logged.as_f64()) {
                // The log truncates to its unit.
                (Some(status), Some(log)) => {
                    let rest = status - log * unit;
                    assert!(
                        rest > -ROUNDING_MS && rest < unit + ROUNDING_MS,
                        "{key}: {status} and {log} times {unit}"
                    );
                }
                (None, None) => {}
                differing => panic!("{key}: {differing:?} in status and log, {told}"),
            }
        }
    }

    /// Parsers read a line with a duplicate key differently.
    fn check_lines(pointsman: &Pointsman) {
        let log = pointsman.process().log();
        let twice: Vec<&str> =
            log.lines().filter(|line| line.matches("\"target\":").count() > 1).collect();
        assert!(twice.is_empty(), "{twice:?}");
        assert!(log.contains("session ended"), "{log}");
    }

    /// Compares all failovers with the metrics, and the current target in every place.
    fn check(&self) {
        let (service, moves) = (self.service(), self.moves());
        moves.iter().for_each(|told| self.check_move(told));
        for (key, phase) in [
            ("duration_ms", "duration"),
            ("held_ms", "hold"),
            ("switched_ms", "switch"),
            ("verified_ms", "verification"),
            ("first_session_ms", "first_session"),
        ] {
            let known: Vec<f64> = moves.iter().filter_map(|told| told[key].as_f64()).collect();
            let [count, sum] = ["count", "sum"]
                .map(|it| self.metric(&format!("pointsman_failover_{phase}_seconds_{it}")));
            let (number, whole) = (known.len() as f64, known.iter().sum::<f64>());
            assert!(
                (count - number).abs() < 0.1,
                "{phase}: {count} in the metrics, {known:?} in the status"
            );
            assert!(
                (sum * 1000.0 - whole).abs() < ROUNDING_MS * number,
                "{phase}: {sum} s and {whole} ms"
            );
        }
        let lost: f64 = moves.iter().filter_map(|told| told["lost_bytes"].as_f64()).sum();
        assert!(
            (self.metric("pointsman_failover_lost_bytes_total") - lost).abs() < 0.1,
            "{lost} bytes in the status"
        );
        assert!((self.metric("pointsman_master_switches_total") - moves.len() as f64).abs() < 0.1);
        let last = moves.last().expect("a move");
        let target = &service["target"];
        assert_eq!((&target["name"], &target["epoch"]), (&last["to"], &last["epoch"]));
        assert_eq!(service["generation"], last["generation"]);
        for (key, metric) in
            [("generation", "pointsman_target_generation"), ("epoch", "pointsman_target_epoch")]
        {
            assert_eq!(last[key].as_f64(), Some(self.metric(metric)), "{key}");
        }
        let leads: Vec<&String> = self
            .metrics
            .iter()
            .filter(|(name, on)| name.starts_with("pointsman_target_info{") && **on > 0.0)
            .map(|(name, _)| name)
            .collect();
        let to = last["to"].as_str().expect("an address");
        assert!(
            leads.len() == 1 && leads[0].contains(&format!("target=\"{to}\"")),
            "{leads:?}, and {to}"
        );
        assert_eq!(
            self.history["services"][0]["generation"].as_array().and_then(|all| all.last()),
            Some(&last["generation"])
        );
        assert_eq!(faults(&schema(), &schema(), &self.status, ""), Vec::<String>::new());
    }
}

/// Waits until the switch is complete, the first session is on the new master, and nothing changes;
/// then reads everything again and compares. What was read while waiting may be from before and
/// after the first session.
#[track_caller]
fn settled(pointsman: &Pointsman, generation: u64, carried: u64) -> Accounts {
    wait_until("the same numbers everywhere", PATIENCE, || {
        let accounts = Accounts::of(pointsman);
        let last = accounts.moves().last().cloned().unwrap_or_default();
        let sampled = &accounts.history["services"][0]["generation"];
        let there = last["generation"] == generation && last["first_session_ms"].is_number();
        if !there || sampled.as_array().and_then(|all| all.last()) != Some(&last["generation"]) {
            return Err(format!("{last}, {sampled}"));
        }
        let traffic = &accounts.service()["traffic"];
        if traffic["sessions_carried"].as_u64() < Some(carried) {
            return Err(format!("{traffic}"));
        }
        let said = accounts
            .log
            .iter()
            .any(|line| line["generation"] == generation && line["after_ms"].is_number());
        if !said {
            return Err("the log does not tell of the first session yet".to_owned());
        }
        accounts.sessions_agree()
    });
    let accounts = Accounts::of(pointsman);
    assert_eq!(accounts.sessions_agree(), Ok(()));
    accounts.check();
    Accounts::check_lines(pointsman);
    accounts
}

/// Clients that have written once and are idle.
fn quiet(pointsman: &Pointsman) -> Vec<Client> {
    let all = (0..QUIET).map(|number| {
        let mut client = pointsman.client();
        assert!(client.cmd(&["SET", &format!("k{number}"), "1"]).expect("a write").is_ok());
        client
    });
    all.collect()
}

/// A client that cannot be carried.
fn pinned(pointsman: &Pointsman) -> Client {
    let mut client = pointsman.client();
    assert!(client.cmd(&["MULTI"]).expect("MULTI").is_ok());
    client
}

#[test]
fn reports_failovers_equally_everywhere() {
    let cluster = Cluster::builder().start();
    // A lost election is repeated after twelve seconds.
    let pointsman = builder(&cluster)
        .service_line("hold_timeout = \"30s\"")
        .lines("[log]\nlevel = \"debug\"\nformat = \"json\"")
        .start();
    let crowd = quiet(&pointsman);
    drop(pointsman.client());

    let planned = pinned(&pointsman);
    let failover = cluster.failover();
    let accounts = settled(&pointsman, 2, QUIET);
    let told = &accounts.moves()[1];
    assert_eq!(
        (told["from"].as_str(), told["to"].as_str()),
        (Some(&*failover.from.to_string()), Some(&*failover.to.to_string()))
    );
    assert!(told["held_ms"].as_f64() > Some(1.0), "{told}");
    drop(planned);

    // The failover needs a replica in sync.
    cluster.wait_whole();
    let dying = pinned(&pointsman);
    let master = cluster.master();
    master.kill();
    let accounts = settled(&pointsman, 3, 2 * QUIET);
    let told = &accounts.moves()[2];
    assert_eq!(told["from"].as_str(), Some(&*master.addr().to_string()));
    assert!(told["duration_ms"].as_f64() >= told["held_ms"].as_f64(), "{told}");
    let closed = accounts.service()["traffic"]["sessions_closed"].as_object().expect("reasons");
    assert!(closed.values().filter_map(Value::as_u64).sum::<u64>() >= 3, "{closed:?}");
    assert_eq!(accounts.metrics.get("pointsman_log_lines_dropped_total"), Some(&0.0));
    drop((dying, crowd));
}

#[test]
fn matches_status_schema_in_every_state() {
    let cluster = Cluster::builder().start();
    let readers = cluster.address().port();
    let pointsman = builder(&cluster)
        .service_line(&format!("replica_listen = [\"{readers}\"]"))
        .lines("[shutdown]\ndrain_timeout = \"20s\"")
        .start();
    let schema = schema();
    let keeps = |what: &str, holds: &dyn Fn(&Value) -> bool| {
        wait_until(what, PATIENCE, || {
            let status = json(&pointsman, "/status");
            let found = faults(&schema, &schema, &status, "");
            assert!(found.is_empty(), "{what}: {found:?}");
            if holds(&status) { Ok(()) } else { Err(status.to_string()) }
        });
    };
    keeps("replicas for readers", &|status| status["services"][0]["readers"]["eligible"] == 2);
    let mut stays = pointsman.client();
    assert!(stays.cmd(&["MULTI"]).expect("MULTI").is_ok());
    cluster.nodes().iter().for_each(harness::Node::kill);
    keeps("nodes that cannot be reached", &|status| {
        status["services"][0]["nodes"]
            .as_array()
            .is_some_and(|all| all.iter().all(|it| it["role"] == "unreachable"))
    });
    cluster.sentinels().iter().for_each(harness::Node::kill);
    keeps("sentinels that cannot be heard", &|status| {
        status["services"][0]["sentinels"]
            .as_array()
            .is_some_and(|all| all.iter().all(|it| it["up"] == false))
    });
    pointsman.sigterm();
    keeps("the shutdown", &|status| status["phase"] != "serving");
}
