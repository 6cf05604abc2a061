//! Commands over the admin port: planned switchover, pause and resume.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use harness::{Cluster, Load, Pointsman, PointsmanBuilder, Signal, pause, wait_until};

use crate::{PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const TOKEN: &str = "a-token-of-more-than-16";

/// A pointsman with control, which has seen every node: before that, a switchover is refused. It
/// has heard every sentinel, too.
pub(crate) fn controlled(cluster: &Cluster) -> Pointsman {
    controlled_by(cluster, builder(cluster))
}

/// Like [`controlled`], with further options.
pub(crate) fn controlled_by(cluster: &Cluster, builder: PointsmanBuilder<'_>) -> Pointsman {
    let pointsman = builder
        .arg("--set=admin.control=true")
        .arg("--set=admin.control_token_env=E2E_TOKEN")
        .env("E2E_TOKEN", TOKEN)
        .start();
    wait_until("every node to tell where it stands", PATIENCE, || {
        let (_, status) = pointsman.get("/status").expect("status");
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let nodes = status["services"][0]["nodes"].as_array().expect("nodes");
        // Two proxies order the same sentinel, and thus one failover, if both know all of them.
        let sentinels = status["services"][0]["sentinels"].as_array().expect("sentinels");
        let heard = sentinels.iter().filter(|it| it["up"] == true && it["master"].is_string());
        let all = nodes.len() == cluster.nodes().len()
            && nodes.iter().all(|node| node["offset"].is_u64())
            && heard.count() == cluster.sentinels().len();
        if all { Ok(()) } else { Err(status.to_string()) }
    });
    pointsman
}

/// Runs a command as an operator types it.
pub(crate) fn order(pointsman: &Pointsman, words: &[&str], token: &str) -> Output {
    let admin = pointsman.admin().to_string();
    let mut command = Command::new(PROGRAM);
    command.args(words).args(["--admin", &admin]).env_clear().env("POINTSMAN_CONTROL_TOKEN", token);
    command.output().expect("the order runs")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn generation(pointsman: &Pointsman) -> f64 {
    metric(pointsman, "pointsman_target_generation{service=\"mymaster\"}").unwrap_or(0.0)
}

#[test]
fn loses_nothing_in_a_switchover_under_load() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let old = cluster.master().addr();
    let mut load = Load::to(pointsman.addr()).writers(16).rate(2000).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 500);
    let done = order(&pointsman, &["switchover"], TOKEN);
    let shown = stdout(&done);
    assert!(done.status.success(), "{shown}{}", stderr(&done));
    for step in ["check", "hold", "catch-up", "order", "select", "promote", "commit"] {
        assert!(
            shown.lines().any(|line| line.contains(&format!("s  {step} "))),
            "no {step} in\n{shown}"
        );
    }
    assert!((generation(&pointsman) - 2.0).abs() < 0.1);
    let seen = load.counts().acknowledged;
    wait_until("writes to go on", PATIENCE, || load.counts().acknowledged > seen + 500);
    load.stop();
    assert_ne!(cluster.master().addr(), old);
    let verdict = load.verify(cluster.master().addr()).expect("a look at the new master");
    assert_eq!(verdict.missing, 0, "{verdict:?}; {:?}", load.counts());
    // The timeline of the hold begins with the command.
    let held = metric(&pointsman, "pointsman_failover_hold_seconds_sum{service=\"mymaster\"}");
    assert!(held.is_none_or(|held| held > 0.0), "{held:?}");
}

#[test]
fn cancels_switchover_that_would_lose_writes() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let stopped = cluster
        .nodes()
        .iter()
        .find(|node| node.addr() != cluster.master().addr())
        .expect("a replica");
    // It does not answer the next probe; until that is detected, and after, a switchover is
    // refused.
    stopped.stop();
    let asked = Instant::now();
    let done = order(&pointsman, &["switchover", "mymaster"], TOKEN);
    stopped.cont();
    let told = stderr(&done);
    assert!(!done.status.success(), "{}", stdout(&done));
    assert!(told.contains(&stopped.addr().to_string()), "{told}");
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    assert!((generation(&pointsman) - 1.0).abs() < 0.1);
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "after", "1"]).expect("traffic continues").is_ok());
}

#[test]
fn cancels_switchover_if_client_disconnects() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    // Replicas whose link is down are awaited for as long as the switchover allows.
    let master = cluster.master();
    master.ask(&["ACL", "SETUSER", "default", "-psync", "-sync"]).expect("a rule");
    master.ask(&["CLIENT", "KILL", "TYPE", "replica"]).expect("the links are cut");
    let admin = pointsman.admin().to_string();
    let mut command = Command::new(PROGRAM);
    command
        .args(["switchover", "--admin", &admin])
        .env_clear()
        .env("POINTSMAN_CONTROL_TOKEN", TOKEN);
    let mut order = command.stdout(Stdio::null()).spawn().expect("the order runs");
    let shut = || metric(&pointsman, "pointsman_gate_closed{service=\"mymaster\"}");
    wait_until("the gate to shut", PATIENCE, || shut() == Some(1.0));
    order.kill().expect("the one that ordered it goes");
    order.wait().expect("it is gone");
    wait_until("the gate to open", PATIENCE, || shut() == Some(0.0));
    // A separate thread writes the log.
    wait_until("the log to tell of it", PATIENCE, || {
        let log = pointsman.process().log();
        if log.contains("requester disconnected") { Ok(()) } else { Err(log) }
    });
    assert!((generation(&pointsman) - 1.0).abs() < 0.1);
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "after", "1"]).expect("traffic continues").is_ok());
}

/// The process was stopped when the order came, and its operator has given up since.
#[test]
fn cancels_pause_if_client_disconnects() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    pointsman.process().signal(Signal::STOP);
    let request = format!(
        "POST /control/pause?service=mymaster&for=600s HTTP/1.1\r\nHost: {}\r\n\
         Authorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n\r\n",
        pointsman.admin()
    );
    let mut operator = TcpStream::connect(pointsman.admin()).expect("a connection");
    operator.write_all(request.as_bytes()).expect("the order");
    drop(operator);
    pointsman.process().signal(Signal::CONT);
    wait_until("the log to tell of it", PATIENCE, || {
        let log = pointsman.process().log();
        if log.contains("requester disconnected") { Ok(()) } else { Err(log) }
    });
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "after", "1"]).expect("traffic continues").is_ok());
    assert_eq!(metric(&pointsman, "pointsman_gate_closed{service=\"mymaster\"}"), Some(0.0));
}

#[test]
fn holds_traffic_during_a_pause() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a patient client");
    assert!(client.cmd(&["SET", "before", "1"]).expect("a write").is_ok());
    let held = || metric(&pointsman, "pointsman_gate_closed{service=\"mymaster\"}");

    assert!(order(&pointsman, &["pause", "--for", "60s"], TOKEN).status.success());
    wait_until("the gate to shut", PATIENCE, || held() == Some(1.0));
    let asked = Instant::now();
    let writer = std::thread::spawn(move || {
        (client.cmd(&["SET", "during", "1"]).is_ok_and(|it| it.is_ok()), client)
    });
    wait_until("time for a write to pass, if it could", PATIENCE, || {
        asked.elapsed() > Duration::from_millis(300)
    });
    let direct = cluster.master().client().cmd(&["EXISTS", "during"]).expect("an answer");
    assert_eq!(direct.int(), Some(0), "a write passed the pause");
    // A switchover that is refused meanwhile does not end the pause.
    assert!(!order(&pointsman, &["switchover"], TOKEN).status.success());
    pause(Duration::from_millis(200));
    assert!(!writer.is_finished() && held() == Some(1.0));
    assert!(order(&pointsman, &["resume"], TOKEN).status.success());
    let (written, mut client) = writer.join().expect("the writer");
    assert!(written, "the held write is done when the pause is over");

    let asked = Instant::now();
    assert!(order(&pointsman, &["pause", "--for", "700ms"], TOKEN).status.success());
    assert!(client.cmd(&["SET", "later", "1"]).expect("a write after the pause").is_ok());
    assert!(
        asked.elapsed() >= Duration::from_millis(600),
        "{:?}; held {:?}",
        asked.elapsed(),
        held()
    );
}

#[test]
fn requires_control_and_token() {
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let wrong = order(&pointsman, &["pause"], "some-other-token-of-16");
    assert!(!wrong.status.success() && stderr(&wrong).contains("token"), "{}", stderr(&wrong));
    let nobody = order(&pointsman, &["pause", "othermaster"], TOKEN);
    assert!(
        !nobody.status.success() && stderr(&nobody).contains("mymaster"),
        "{}",
        stderr(&nobody)
    );
    let long = order(&pointsman, &["pause", "--for", "3h"], TOKEN);
    assert!(!long.status.success() && stderr(&long).contains("10m"), "{}", stderr(&long));
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "still", "flows"]).expect("a write").is_ok());

    let plain = crate::pointsman(&cluster);
    let off = order(&plain, &["switchover"], TOKEN);
    assert!(!off.status.success() && stderr(&off).contains("control = true"), "{}", stderr(&off));
    let (_, status) = pointsman.get("/status").expect("status");
    assert!(!status.contains(TOKEN));
}
