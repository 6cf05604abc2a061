//! Sessions that a failover would close are visible before it, and counted by reason after it.

use std::process::Command;
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, Signal, encode, wait_until};
use serde_json::Value as Json;

use crate::{PROGRAM, builder, metric, pointsman};

const PATIENCE: Duration = Duration::from_secs(40);

/// The commands that put a session into each state; the last one may not be answered.
const STATES: &[(&str, &[&[&str]])] = &[
    ("monitor", &[&["MONITOR"]]),
    ("transaction", &[&["MULTI"], &["SET", "k", "v"]]),
    ("watch", &[&["WATCH", "k"]]),
    ("tracking", &[&["HELLO", "3"], &["CLIENT", "TRACKING", "ON"]]),
    ("reply_off", &[&["CLIENT", "REPLY", "OFF"]]),
    ("subscribed", &[&["SUBSCRIBE", "news"]]),
    ("cursor", &[&["SCAN", "0", "COUNT", "10"]]),
    ("client_id", &[&["CLIENT", "ID"]]),
    ("script", &[&["SCRIPT", "LOAD", "return 1"]]),
    ("unknown_command", &[&["MODULE.X"]]),
    ("wait", &[&["WAIT", "0", "0"]]),
    ("blocking", &[&["BLPOP", "nothing", "0"]]),
];

fn client(pointsman: &Pointsman, commands: &[&[&str]]) -> Client {
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a timeout");
    for command in commands {
        match command[..] {
            ["CLIENT", "REPLY", ..] | ["BLPOP", ..] => client.send(&encode(command)).expect("sent"),
            _ => drop(client.cmd(command).expect("an answer")),
        }
    }
    client
}

fn sessions(pointsman: &Pointsman, state: &str) -> Option<f64> {
    metric(
        pointsman,
        &format!("pointsman_sessions_by_state{{service=\"mymaster\",state=\"{state}\"}}"),
    )
}

fn not_carried(pointsman: &Pointsman, reason: &str) -> Option<f64> {
    metric(
        pointsman,
        &format!(
            "pointsman_sessions_not_carried_total{{service=\"mymaster\",reason=\"{reason}\"}}"
        ),
    )
}

fn traffic(pointsman: &Pointsman) -> Json {
    let (_, document) = pointsman.get("/status").expect("a status");
    serde_json::from_str::<Json>(&document).expect("JSON")["services"][0]["traffic"].take()
}

#[test]
fn shows_pinned_sessions_before_and_after_a_failover() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    let mut ordinary: Vec<Client> =
        (0..3).map(|_| client(&pointsman, &[&["EVAL", "return 1", "0"]])).collect();
    for key in 0..1000 {
        assert!(ordinary[0].cmd(&["SET", &format!("key:{key}"), "v"]).expect("an answer").is_ok());
    }
    let mut pinned: Vec<(&str, Client)> =
        STATES.iter().map(|(state, commands)| (*state, client(&pointsman, commands))).collect();
    for (state, _) in STATES {
        wait_until(&format!("one session in the state {state}"), PATIENCE, || {
            sessions(&pointsman, state) == Some(1.0)
        });
    }
    assert_eq!(sessions(&pointsman, "ordinary"), Some(3.0));
    // Finished commands do not pin the session.
    let over: &[&[&str]] = &[
        &["MULTI"],
        &["EXEC"],
        &["WATCH", "k"],
        &["UNWATCH"],
        &["SUBSCRIBE", "a"],
        &["UNSUBSCRIBE"],
    ];
    let _free = client(&pointsman, over);
    wait_until("four ordinary sessions", PATIENCE, || {
        sessions(&pointsman, "ordinary") == Some(4.0)
    });
    let seen = traffic(&pointsman);
    let states = seen["sessions_by_state"].as_object().expect("an object");
    assert_eq!((states.len(), states["ordinary"].as_u64()), (STATES.len() + 1, Some(4)), "{seen}");
    assert!(
        seen["sessions_not_carried"].as_object().is_some_and(serde_json::Map::is_empty),
        "{seen}"
    );
    let screen =
        Command::new(PROGRAM).args(["status", "--admin", &pointsman.admin().to_string()]).output();
    let screen = String::from_utf8(screen.expect("a status").stdout).expect("text");
    assert!(
        screen.contains("would close at a failover: ") && screen.contains("1 unknown command"),
        "{screen}"
    );

    cluster.failover();
    for (state, client) in &mut pinned {
        // Messages and the server's reply to a blocked client may precede the end.
        client.read_to_end().unwrap_or_else(|error| panic!("{state}: {error}"));
    }
    for client in &mut ordinary {
        assert_eq!(client.cmd(&["PING"]).expect("an answer").text(), Some("PONG"));
    }
    // A server that becomes a replica answers a blocked client before the connection ends.
    for (state, _) in STATES.iter().filter(|(state, _)| *state != "blocking") {
        wait_until(&format!("a session not carried: {state}"), PATIENCE, || {
            not_carried(&pointsman, state) == Some(1.0)
        });
        wait_until(&format!("no session in the state {state}"), PATIENCE, || {
            sessions(&pointsman, state) == Some(0.0)
        });
    }
    assert_eq!(
        (not_carried(&pointsman, "in_flight"), sessions(&pointsman, "ordinary")),
        (Some(0.0), Some(4.0))
    );
}

/// The log lines about sessions that ended and were not carried.
fn uncarried(pointsman: &Pointsman) -> Vec<(String, String)> {
    let log = pointsman.process().log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Json>(line).ok());
    let said = |line: &Json, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let ends =
        lines.filter(|line| line["message"] == "session ended" && !line["not_carried"].is_null());
    ends.map(|line| (said(&line, "not_carried"), said(&line, "unknown_command"))).collect()
}

#[test]
fn carries_declared_commands_and_names_unknown_ones() {
    let cluster = Cluster::builder().redis_line("rename-command GET FETCH").start();
    let strict = pointsman(&cluster);
    let declared = builder(&cluster).service_line("stateless_commands = [\"fetch\"]").start();
    let setup: &[&[&str]] = &[&["SET", "k", "v"], &["FETCH", "k"]];
    let mut closed = client(&strict, setup);
    let mut carried = client(&declared, setup);
    let mut other = client(&declared, &[&["FETCHED", "k"]]);
    wait_until("one pinned session", PATIENCE, || {
        sessions(&strict, "unknown_command") == Some(1.0)
    });
    wait_until("one pinned session", PATIENCE, || {
        sessions(&declared, "unknown_command") == Some(1.0)
    });
    cluster.failover();
    assert_eq!(closed.read_to_end().expect("the end of the connection").0, b"");
    assert_eq!(other.read_to_end().expect("the end of the connection").0, b"");
    assert_eq!(carried.cmd(&["FETCH", "k"]).expect("the connection stands").text(), Some("v"));
    // Both processes have asked the new master for its commands, and have learned nothing: a
    // renamed command is listed by its former name.
    let is_asked = || {
        let lists = cluster.master().info("commandstats", "cmdstat_command|list");
        lists.is_ok_and(|it| it.starts_with("calls=2,"))
    };
    wait_until("both ask the new master once", PATIENCE, is_asked);
    for (pointsman, name) in [(&strict, "FETCH"), (&declared, "FETCHED")] {
        let expected = [("unknown_command".to_owned(), name.to_owned())];
        wait_until("the line that names the command", PATIENCE, || {
            uncarried(pointsman) == expected
        });
    }
}

#[test]
fn declares_commands_by_a_reload() {
    let cluster =
        Cluster::builder().replicas(0).sentinels(1).redis_line("rename-command GET FETCH").start();
    let pointsman = pointsman(&cluster);
    let _before = client(&pointsman, &[&["FETCH", "k"]]);
    wait_until("one pinned session", PATIENCE, || {
        sessions(&pointsman, "unknown_command") == Some(1.0)
    });
    let file = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&file).expect("the file");
    let key = "stateless_commands = [\"Fetch\", \"X|Y\"]";
    std::fs::write(&file, text.replacen("[[service]]\n", &format!("[[service]]\n{key}\n"), 1))
        .expect("the file");
    pointsman.process().signal(Signal::HUP);
    wait_until("the reload", PATIENCE, || {
        metric(&pointsman, "pointsman_config_reloads_total{result=\"applied\"}") >= Some(1.0)
    });
    assert_eq!(metric(&pointsman, "pointsman_config_pending_restart"), Some(0.0));
    // A new session; the state of the earlier one is unchanged.
    let _after = client(&pointsman, &[&["FETCH", "k"], &["x", "y"]]);
    let _unlike = client(&pointsman, &[&["FETCH", "k"], &["X", "Z"]]);
    wait_until("a second pinned session", PATIENCE, || {
        sessions(&pointsman, "unknown_command") == Some(2.0)
    });
    assert_eq!(sessions(&pointsman, "ordinary"), Some(1.0));
}
