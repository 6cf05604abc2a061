//! One failover, told in four places: metrics, status, history, log. Whoever compares them after a
//! bad night must not find that they differ. (The page shows the status, which `tests/page` holds
//! it to.)

use std::collections::BTreeMap;
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, wait_until};
use serde_json::Value;

use crate::builder;
use crate::schema::faults;

const PATIENCE: Duration = Duration::from_secs(30);
/// Clients without a request under way.
const QUIET: u64 = 6;
/// The status has microseconds, the log whole milliseconds, a sum of seconds what an `f64` holds.
const ROUNDING_MS: f64 = 0.002;

/// The schema that people get.
fn schema() -> Value {
    let text = include_str!("../../deploy/status.schema.json");
    serde_json::from_str(text).expect("the schema is JSON")
}

/// What all four say, at a moment when nothing changes.
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

    /// The fields of the one line with this message and generation.
    #[track_caller]
    fn line(&self, message: &str, generation: &Value) -> &Value {
        let ours = |line: &&Value| line["message"] == message && line["generation"] == *generation;
        let found: Vec<&Value> = self.log.iter().filter(ours).collect();
        assert_eq!(found.len(), 1, "{message:?} of generation {generation}: {found:?}");
        found[0]
    }

    /// Whether all counters of sessions have come to rest: every place says the same.
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

    /// Status against log, for one move.
    fn check_move(&self, told: &Value) {
        let line = self.line("the points lead to a new master", &told["generation"]);
        assert_eq!(
            (&line["master"], &line["from"], &line["epoch"]),
            (&told["to"], &told["from"], &told["epoch"])
        );
        assert_eq!(
            (&line["basis"], &line["lost_bytes"]),
            (&told["decided_by"], &told["lost_bytes"]),
            "{line} {told}"
        );
        let mut pairs = vec![
            ("duration_ms", &line["suspected_ms"], 1.0),
            ("held_ms", &line["held_ms"], 1.0),
            ("switched_ms", &line["switched_us"], 0.001),
            ("verified_ms", &line["verified_us"], 0.001),
        ];
        if told["first_session_ms"].is_number() {
            let first =
                self.line("the first session has reached the new master", &told["generation"]);
            assert_eq!(first["master"], told["to"]);
            pairs.push(("first_session_ms", &first["after_ms"], 1.0));
        }
        for (key, logged, unit) in pairs {
            match (told[key].as_f64(), logged.as_f64()) {
                // The log cuts off what is less than its unit.
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

    /// A line that has a key twice is read differently by everybody.
    fn check_lines(pointsman: &Pointsman) {
        let log = pointsman.process().log();
        let twice: Vec<&str> =
            log.lines().filter(|line| line.matches("\"target\":").count() > 1).collect();
        assert!(twice.is_empty(), "{twice:?}");
        assert!(log.contains("session ended"), "{log}");
    }

    /// All moves together against the metrics, and the one in force in every place.
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

/// Waits until a move was made, its first session was there, and nothing changes any more; then
/// everything is read anew and compared: of what was read on the way, the first part may be from
/// before the first session and the last from after it.
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

/// Clients that have written once and are quiet since.
fn quiet(pointsman: &Pointsman) -> Vec<Client> {
    let all = (0..QUIET).map(|number| {
        let mut client = pointsman.client();
        assert!(client.cmd(&["SET", &format!("k{number}"), "1"]).expect("a write").is_ok());
        client
    });
    all.collect()
}

/// A client that cannot be carried over.
fn pinned(pointsman: &Pointsman) -> Client {
    let mut client = pointsman.client();
    assert!(client.cmd(&["MULTI"]).expect("MULTI").is_ok());
    client
}

#[test]
fn metrics_status_history_and_log_tell_the_same_of_a_planned_failover_and_of_a_death() {
    let cluster = Cluster::builder().start();
    // An election that was lost is held again after twelve seconds.
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

    // The new master needs a replica in sync.
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
fn the_status_keeps_to_its_schema_without_a_master_with_readers_and_while_it_drains() {
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
