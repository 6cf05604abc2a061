//! The log of a real process: the line at a session's end, its rate limit, and that no thread waits
//! for a reader.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, wait_until};
use serde_json::Value as Json;

use crate::{PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

/// The lines about the ends of sessions.
fn ends(pointsman: &Pointsman) -> Vec<Json> {
    let log = pointsman.process().log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Json>(line).ok());
    lines.filter(|line| line["message"] == "session ended").collect()
}

#[test]
fn logs_each_session_at_its_end() {
    let cluster = small();
    let pointsman =
        builder(&cluster).lines("[log]\nsessions = \"all\"\nsessions_level = \"warn\"").start();
    let mut client = pointsman.client();
    let name = client.local_addr().expect("an address").to_string();
    for _ in 0..3 {
        assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    }
    drop(client);
    wait_until("the line", PATIENCE, || ends(&pointsman).len() == 1);
    let line = &ends(&pointsman)[0];
    let said = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    assert_eq!((said("level").as_str(), said("service").as_str()), ("WARN", "mymaster"), "{line}");
    assert_eq!(
        (said("client"), said("upstream")),
        (name, cluster.master().addr().to_string()),
        "{line}"
    );
    assert_eq!(
        (said("reason").as_str(), line["commands"].as_u64()),
        ("client_closed", Some(3)),
        "{line}"
    );
    // PING as an array of one, and +PONG.
    assert_eq!(
        (line["bytes_in"].as_u64(), line["bytes_out"].as_u64()),
        (Some(3 * 14), Some(3 * 7)),
        "{line}"
    );
    assert!(line["duration_ms"].as_u64().is_some_and(|ms| ms < 30_000), "{line}");
}

#[test]
fn logs_only_failures_at_a_bounded_rate() {
    let cluster = small();
    let lines = "[log]\nlines_per_second = 1\n[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"";
    let pointsman = builder(&cluster).service_line("hold_timeout = \"50ms\"").lines(lines).start();
    let mut quick = pointsman.client();
    assert_eq!(quick.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    drop(quick);
    wait_until("the end of that session", PATIENCE, || {
        let closed =
            "pointsman_sessions_closed_total{service=\"mymaster\",reason=\"client_closed\"}";
        metric(&pointsman, closed) == Some(1.0)
    });
    assert_eq!(ends(&pointsman).len(), 0, "it ended well");
    // A session that cannot connect to the target has failed; of many per second, some are not
    // logged.
    cluster.master().kill();
    let mut sent = 0;
    wait_until("logged sessions, and others that are left out", PATIENCE, || {
        let mut client = Client::connect(pointsman.addr()).expect("a connection");
        let _refused = client.cmd(&["PING"]);
        sent += 1;
        let left_out = metric(&pointsman, "pointsman_log_lines_suppressed_total");
        let told = ends(&pointsman).len();
        told > 0 && told < sent - 1 && left_out > Some(0.0)
    });
    let told = ends(&pointsman);
    assert!(told.iter().all(|line| line["reason"] != "client_closed"), "{told:?}");
}

#[test]
fn counts_lines_of_an_unread_log() {
    let cluster = small();
    let (listen, admin) = (cluster.address().port(), cluster.address().port());
    let sentinel = cluster.sentinel_addrs()[0].to_string();
    let set = ["log.sessions=all", "log.lines_per_second=0", "log.level=trace"];
    let mut command = Command::new(PROGRAM);
    command.args([
        "run",
        "--sentinel",
        &sentinel,
        "--listen",
        &listen.to_string(),
        "--admin",
        &admin.to_string(),
    ]);
    command.args(set.iter().flat_map(|it| ["--set", *it])).stdin(Stdio::null());
    // The other end of this pipe is held and never read.
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a pointsman");
    let get = |path: &str| {
        harness::http_get(admin, path).ok().filter(|(code, _)| *code == 200).map(|(_, text)| text)
    };
    wait_until("it to be ready", PATIENCE, || get("/ready").is_some());
    let dropped = || {
        let text = get("/metrics")?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("pointsman_log_lines_dropped_total "))?
            .to_owned();
        line.parse::<u64>().ok()
    };
    wait_until("lines to be dropped", 2 * PATIENCE, || {
        for _ in 0..200 {
            let mut client = Client::connect(listen).expect("a connection");
            assert_eq!(client.cmd(&["PING"]).expect("an answer").text(), Some("PONG"));
        }
        dropped() > Some(0)
    });
    child.kill().expect("a signal");
    child.wait().expect("its end");
}

/// The output of a start on a terminal, which `script` provides.
fn on_a_terminal(no_colour: Option<&str>) -> String {
    // With `exec`, because a shell in between (dash; `$SHELL` decides) would be ended by Ctrl-C and
    // report it.
    let run = format!(
        "exec {PROGRAM} run --sentinel 127.0.0.1:1 --listen 127.0.0.1:0 --admin 127.0.0.1:0"
    );
    let mut command = Command::new("script");
    command.args(["-qefc", &run, "/dev/null"]).env_remove("NO_COLOR");
    command.envs(no_colour.map(|value| ("NO_COLOR", value)));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script, of util-linux");
    let (mut said, mut buffer) = (String::new(), [0; 4096]);
    let mut out = child.stdout.take().expect("its output");
    while !said.contains("version") {
        let read = out.read(&mut buffer).expect("output");
        assert!(read > 0, "it ended: {said}");
        said.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    child.stdin.take().expect("its keyboard").write_all(b"\x03").expect("Ctrl-C");
    out.read_to_string(&mut said).expect("the rest");
    assert!(child.wait().expect("its end").success(), "{said}");
    said
}

#[test]
fn respects_no_color_on_a_terminal() {
    let coloured = on_a_terminal(None);
    assert!(
        coloured.contains("\u{1b}[32m INFO") && !coloured.contains("{\"timestamp\""),
        "{coloured}"
    );
    let plain = on_a_terminal(Some("1"));
    assert!(
        plain.contains(" INFO ") && plain.contains("stopped") && !plain.contains('\u{1b}'),
        "{plain}"
    );
    // Without clients nobody has to learn that it leaves.
    assert!(plain.contains("leaving_ms=0"), "{plain}");
    for debug in ["Tcp(", "Some(", "[\"", "Resp"] {
        assert!(!plain.contains(debug), "a value in the form of Rust: {plain}");
    }
}
