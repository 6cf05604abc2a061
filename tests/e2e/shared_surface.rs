//! What operators see of sessions that share connections: the status document, the list of sessions
//! and the metrics, which must agree.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, wait_until};
use serde_json::{Value, json};

use crate::schema::faults;
use crate::{DEDICATED, PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);

/// The output of a command to the process.
#[track_caller]
fn command(words: &[&str], option: &str, value: &Path) -> String {
    let mut command = Command::new(PROGRAM);
    let output =
        command.args(words).arg(option).arg(value).env_clear().output().expect("a command");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The counters of the listener, after a check of the whole document against its schema.
#[track_caller]
fn traffic(pointsman: &Pointsman) -> Value {
    let (_, body) = pointsman.get("/status").expect("the status");
    let status: Value = serde_json::from_str(&body).expect("JSON");
    let schema = include_str!("../../deploy/status.schema.json");
    let schema: Value = serde_json::from_str(schema).expect("JSON");
    assert_eq!(faults(&schema, &schema, &status, ""), [""; 0]);
    status["services"][0]["traffic"].clone()
}

fn value(pointsman: &Pointsman, name: &str, labels: &str) -> f64 {
    metric(pointsman, &format!("{name}{{service=\"mymaster\"{labels}}}")).expect(name)
}

/// How a client appears in the list: its connection, and why it has one of its own.
#[track_caller]
fn listed(socket: &Path, client: &Client) -> [Value; 2] {
    let list = command(&["sessions", "--json"], "--socket", socket);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let addr = client.local_addr().expect("an address").to_string();
    let row = list["list"].as_array().expect("a list").iter().find(|row| row["client"] == *addr);
    let row = row.unwrap_or_else(|| panic!("{addr} is not in {list}"));
    ["connection", "promotion"].map(|key| row[key].clone())
}

/// The numbers of the document, which are those of the metrics.
#[track_caller]
fn compare(pointsman: &Pointsman, shared: &Value) {
    for (key, name) in [
        ("sessions", "pointsman_shared_sessions"),
        ("sessions_dedicated", "pointsman_dedicated_sessions"),
        ("connections", "pointsman_shared_connections"),
        ("returns", "pointsman_shared_returns_total"),
        ("requests", "pointsman_shared_requests_total"),
        ("writes", "pointsman_shared_writes_total"),
        ("desyncs", "pointsman_shared_desyncs_total"),
        ("sessions_lost", "pointsman_shared_sessions_lost_total"),
    ] {
        assert_eq!(shared[key].as_f64(), Some(value(pointsman, name, "")), "{key}: {shared}");
    }
    for (table, count) in shared["connections_by_table"].as_object().expect("tables") {
        let labels = format!(",table=\"{table}\"");
        let counted = value(pointsman, "pointsman_shared_connections_by_table", &labels);
        assert_eq!(count.as_f64(), Some(counted), "{table}");
    }
    for (reason, count) in shared["promotions"].as_object().expect("reasons") {
        let labels = format!(",reason=\"{reason}\"");
        let counted = value(pointsman, "pointsman_shared_promotions_total", &labels);
        assert_eq!(count.as_f64(), Some(counted), "{reason}");
    }
}

#[test]
fn shows_who_shares_in_status_list_and_metrics() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let socket = cluster.folder().join("control.sock");
    let lines = format!("control = true\ncontrol_socket = {socket:?}\n[process]\nworkers = 1");
    let pointsman = builder(&cluster).service_line("upstream = \"shared\"").lines(&lines).start();
    let [mut plain, mut multi, mut subscriber] = [(); 3].map(|()| pointsman.client());
    for client in [&mut plain, &mut multi, &mut subscriber] {
        assert!(client.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    }
    assert!(multi.cmd(&["MULTI"]).expect("MULTI").is_ok());
    assert_eq!(subscriber.cmd(&["SUBSCRIBE", "c"]).expect("SUBSCRIBE").items().len(), 3);

    let shared = traffic(&pointsman)["shared"].clone();
    let expected = json!({
        "mode": "shared", "sessions": 1, "sessions_dedicated": 2, "connections": 1,
        "connections_by_table": { "server": 1, "built_in": 0 },
        "promotions": { "subscription": 1, "transaction": 1 }, "returns": 0,
        "requests": 3, "writes": 3, "requests_per_write": 1.0, "desyncs": 0, "sessions_lost": 0,
    });
    assert_eq!(shared, expected);
    compare(&pointsman, &shared);
    assert_eq!(listed(&socket, &plain), [json!("shared"), Value::Null]);
    assert_eq!(listed(&socket, &multi), ["dedicated", "transaction"]);
    assert_eq!(listed(&socket, &subscriber), ["dedicated", "subscription"]);
    let table = command(&["sessions"], "--socket", &socket);
    for cell in ["CONNECTION", "dedicated: transaction", "dedicated: subscription"] {
        assert!(table.contains(cell), "{table}");
    }
    let screen = command(&["status"], "--admin", Path::new(&pointsman.admin().to_string()));
    let line = "1 session shares 1 connection, 2 have their own; 1.0 requests per write";
    assert!(screen.contains(line) && screen.contains("1 transaction"), "{screen}");

    // It returns, and nothing is left of its promotion but the count.
    assert_eq!(multi.cmd(&["EXEC"]).expect("EXEC").items().len(), 0);
    wait_until("the return", PATIENCE, || {
        let shared = &traffic(&pointsman)["shared"];
        shared["returns"] == 1 && shared["sessions"] == 2
    });
    let shared = traffic(&pointsman)["shared"].clone();
    assert_eq!(
        (&shared["sessions_dedicated"], &shared["promotions"]["transaction"]),
        (&json!(1), &json!(1))
    );
    compare(&pointsman, &shared);
    assert_eq!(listed(&socket, &multi), [json!("shared"), Value::Null]);
    drop((plain, multi, subscriber));
    wait_until("no session", PATIENCE, || {
        let shared = &traffic(&pointsman)["shared"];
        shared["sessions"] == 0 && shared["sessions_dedicated"] == 0
    });
}

/// A service that does not share has none of it.
#[test]
fn omits_sharing_for_dedicated_services() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let socket = cluster.folder().join("control.sock");
    let lines = format!("control = true\ncontrol_socket = {socket:?}");
    let pointsman = builder(&cluster).service_line(DEDICATED).lines(&lines).start();
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    assert_eq!(traffic(&pointsman).get("shared"), None);
    assert_eq!(listed(&socket, &client), [Value::Null, Value::Null]);
    assert_eq!(value(&pointsman, "pointsman_dedicated_sessions", ""), 1.0);
    assert_eq!(value(&pointsman, "pointsman_shared_sessions", ""), 0.0);
    let table = command(&["sessions"], "--socket", &socket);
    assert!(!table.contains("CONNECTION"), "{table}");
    let screen = command(&["status"], "--admin", Path::new(&pointsman.admin().to_string()));
    assert!(screen.contains("mymaster: stable") && !screen.contains("share"), "{screen}");
}

/// A reload ends sharing for new sessions; those that share are shown until they end.
#[test]
fn shows_sessions_that_share_after_a_reload_ended_it() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = builder(&cluster).service_line("upstream = \"shared\"").start();
    let mut old = pointsman.client();
    assert!(old.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    let file = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&file).expect("the file");
    std::fs::write(&file, text.replace("\"shared\"", "\"dedicated\"")).expect("the file");
    wait_until("the reload", PATIENCE, || traffic(&pointsman)["shared"]["mode"] == "dedicated");
    let mut new = pointsman.client();
    assert_eq!(new.cmd(&["GET", "k"]).expect("GET").text(), Some("v"));
    let shared = traffic(&pointsman)["shared"].clone();
    assert_eq!((&shared["sessions"], &shared["sessions_dedicated"]), (&json!(1), &json!(1)));
    drop(old);
    wait_until("the end of sharing", PATIENCE, || traffic(&pointsman).get("shared").is_none());
}
