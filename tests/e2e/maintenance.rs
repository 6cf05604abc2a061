//! Clients that request maintenance notifications: what they receive in front of a real Redis,
//! which does not support them, and from a process that stops.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::{Client, Cluster, Launch, Pointsman, Process, Value};

use crate::{PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);
/// Stops without an accepting phase and asks all sessions at once.
const SHUTDOWN: &str = "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\ndrain_spread = \"0s\"\n\
                        drain_timeout = \"30s\"\n";

fn handshake(client: &mut Client, kind: &str) -> Value {
    client.set_timeout(PATIENCE).expect("a timeout");
    assert!(matches!(client.cmd(&["HELLO", "3"]).expect("HELLO"), Value::Map(_)));
    client
        .cmd(&["CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", kind])
        .expect("an answer")
}

/// Reads the next message, which must be a push with this name; returns the arguments after its
/// number.
#[track_caller]
fn push(client: &mut Client, name: &str) -> Vec<Value> {
    match client.read_value().expect("a push") {
        Value::Push(all) => {
            assert_eq!(all[0].text(), Some(name), "{all:?}");
            assert!(matches!(all[1], Value::Int(number) if number > 0), "{all:?}");
            all[2..].to_vec()
        }
        other => panic!("{other:?} and not {name}"),
    }
}

/// The address in a `MOVING`, which must leave time to move.
#[track_caller]
fn moving(client: &mut Client) -> Value {
    let all = push(client, "MOVING");
    assert!(matches!(all[0], Value::Int(1..=10)), "{all:?}");
    all[1].clone()
}

fn told(pointsman: &Pointsman, kind: &str) -> Option<f64> {
    let series = format!(
        "pointsman_maintenance_notifications_total{{service=\"mymaster\",kind=\"{kind}\"}}"
    );
    metric(pointsman, &series)
}

#[test]
fn notifies_clients_of_a_failover() {
    let cluster = Cluster::builder().start();
    let pointsman = builder(&cluster).service_line("hold_timeout = \"30s\"").start();
    let (mut told_client, mut old) = (pointsman.client(), pointsman.client());
    assert!(handshake(&mut told_client, "internal-ip").is_ok());
    // RESP2 has no pushes, so the server's own reply is returned.
    let refused = old.cmd(&["CLIENT", "MAINT_NOTIFICATIONS", "ON"]).expect("an answer");
    assert!(
        refused.error().is_some_and(|error| error.contains("MAINT_NOTIFICATIONS")),
        "{refused:?}"
    );
    assert!(told_client.cmd(&["SET", "k", "v"]).expect("a write").is_ok());
    cluster.master().kill();
    assert_eq!(push(&mut told_client, "FAILING_OVER")[0], Value::Int(30));
    // A request sent in between waits for the new master, and is answered after the push that
    // announces the new master.
    told_client.send(&harness::encode(&["SET", "l", "v"])).expect("send");
    push(&mut told_client, "FAILED_OVER");
    assert!(told_client.read_value().expect("an answer").is_ok());
    old.set_timeout(PATIENCE).expect("a timeout");
    assert!(old.cmd(&["SET", "m", "v"]).expect("an answer, and no push before it").is_ok());
    assert_eq!(
        (told(&pointsman, "failing_over"), told(&pointsman, "failed_over")),
        (Some(1.0), Some(1.0))
    );
    assert_eq!(
        metric(&pointsman, "pointsman_maintenance_handshakes_total{service=\"mymaster\"}"),
        Some(1.0)
    );
}

fn taking_over(config: &Path, folder: &Path) -> Process {
    let args =
        ["run".into(), "--takeover".into(), "--config".into(), config.as_os_str().to_owned()];
    Process::start(&Launch {
        name: "takeover".to_owned(),
        program: PathBuf::from(PROGRAM),
        args: Vec::<OsString>::from(args),
        env: Vec::new(),
        folder: folder.to_owned(),
    })
}

#[test]
fn moves_notified_client_to_next_process() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let folder = cluster.folder().to_owned();
    let lines = format!("{SHUTDOWN}[process]\nstate_dir = {folder:?}");
    let old =
        builder(&cluster).service_line("moving_to = \"redis.example:6379\"").lines(&lines).start();
    let config = old.process().log_path().with_file_name("pointsman.toml");
    let (mut here, mut there) = (old.client(), old.client());
    assert!(handshake(&mut here, "none").is_ok() && handshake(&mut there, "external-fqdn").is_ok());
    let new = taking_over(&config, &folder);
    assert_eq!(moving(&mut here), Value::Nil);
    assert_eq!(moving(&mut there).text(), Some("redis.example:6379"));
    drop(there);
    // It reconnects to the same address, and both processes serve it.
    let mut moved = Client::connect_within(old.addr(), PATIENCE).expect("the same address");
    assert!(handshake(&mut moved, "none").is_ok());
    assert_eq!(moved.cmd(&["INCR", "n"]).expect("an answer").int(), Some(1));
    assert_eq!(here.cmd(&["INCR", "n"]).expect("an answer").int(), Some(2));
    assert!(old.process().is_running());
    drop(here);
    assert_eq!(old.wait_exit(PATIENCE).code(), Some(0));
    assert!(old.process().log().contains("\"drained\":0,\"cut\":0"), "{}", old.process().tail());
    assert_eq!(moved.cmd(&["INCR", "n"]).expect("an answer").int(), Some(3));
    // A plain SIGTERM makes that process send a `MOVING` in turn.
    new.signal(harness::Signal::TERM);
    assert_eq!(moving(&mut moved), Value::Nil);
    drop(moved);
    assert_eq!(new.wait_exit(PATIENCE).code(), Some(0));
}
