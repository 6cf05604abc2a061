//! SIGTERM: accepted clients are served, idle sessions are closed, remaining ones are cut, and the
//! exit code is 0.

use std::time::{Duration, Instant};

use harness::{Client, Cluster, Ending, Pointsman, encode, wait_until};

use crate::builder;

/// Longer than every bound that a test checks for the shutdown.
const PATIENCE: Duration = Duration::from_secs(60);

fn started(cluster: &Cluster, shutdown: &str) -> Pointsman {
    builder(cluster).lines(&format!("[shutdown]\n{shutdown}")).start()
}

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

#[test]
fn stops_when_quiet_without_clients() {
    let cluster = small();
    let pointsman =
        started(&cluster, "accept_min = \"0s\"\naccept_quiet = \"100ms\"\naccept_max = \"60s\"");
    let told = Instant::now();
    pointsman.sigterm();
    let exit = pointsman.wait_exit(PATIENCE);
    assert_eq!(exit.code(), Some(0));
    assert!(
        told.elapsed() < Duration::from_secs(30),
        "it took {:?}: not the quiet ended it",
        told.elapsed()
    );
}

#[test]
fn turns_unready_and_accepts_until_quiet() {
    let cluster = small();
    let pointsman =
        started(&cluster, "accept_min = \"6s\"\naccept_quiet = \"1s\"\naccept_max = \"10s\"");
    pointsman.sigterm();
    wait_until("it to be unready", PATIENCE, || {
        pointsman.get("/ready").is_ok_and(|(status, _)| status == 503)
    });
    let mut late = pointsman.client();
    late.set_timeout(PATIENCE).expect("a timeout");
    assert_eq!(late.cmd(&["PING"]).expect("a late client is served").text(), Some("PONG"));
    assert_eq!(pointsman.get("/alive").expect("alive").0, 200);
    let (bytes, ending) = late.read_to_end().expect("its end");
    assert_eq!((bytes.as_slice(), ending), (&b""[..], Ending::Fin));
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn answers_request_before_session_leaves() {
    let cluster = small();
    let pointsman = started(
        &cluster,
        "accept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\ndrain_spread = \"0s\"\ndrain_timeout = \"20s\"",
    );
    let mut busy = pointsman.client();
    let mut idle = pointsman.client();
    assert!(idle.cmd(&["PING"]).is_ok() && busy.cmd(&["PING"]).is_ok());
    busy.send(&encode(&["BLPOP", "later", "0"])).expect("send");
    let blocked =
        || cluster.nodes()[0].info("clients", "blocked_clients").is_ok_and(|it| it == "1");
    wait_until("the pop to block", PATIENCE, blocked);
    pointsman.sigterm();
    let (bytes, ending) = idle.read_to_end().expect("the idle one's end");
    assert_eq!((bytes.as_slice(), ending), (&b""[..], Ending::Fin));
    assert!(pointsman.process().is_running(), "it did not wait for the blocked client");
    cluster.nodes()[0].ask(&["LPUSH", "later", "item"]).expect("LPUSH");
    let answer = busy.read_value().expect("the answer to what was under way");
    assert_eq!(answer.items()[1].text(), Some("item"));
    assert_eq!(busy.read_to_end().expect("its end").1, Ending::Fin);
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn cuts_remaining_sessions_and_exits_cleanly() {
    let cluster = small();
    let pointsman = started(
        &cluster,
        "accept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\ndrain_spread = \"0s\"\ndrain_timeout = \"1s\"",
    );
    let mut stuck = subscribed(&pointsman);
    let told = Instant::now();
    pointsman.sigterm();
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    let took = told.elapsed();
    // The default is twenty seconds.
    assert!(
        took >= Duration::from_millis(900) && took < Duration::from_secs(15),
        "it took {took:?}"
    );
    assert!(stuck.read_to_end().is_ok());
    assert!(pointsman.process().log().contains("\"cut\":1"), "{}", pointsman.process().log());
}

#[test]
fn stops_at_once_on_second_signal() {
    let cluster = small();
    let pointsman = started(&cluster, "accept_min = \"30s\"\naccept_max = \"30s\"");
    let _stuck = subscribed(&pointsman);
    pointsman.sigterm();
    wait_until("it to be unready", PATIENCE, || {
        pointsman.get("/ready").is_ok_and(|(status, _)| status == 503)
    });
    // The same signal within a second counts as the same request, sent twice.
    let first = Instant::now();
    wait_until("a second to pass", PATIENCE, || first.elapsed() > Duration::from_millis(1100));
    let told = Instant::now();
    pointsman.sigterm();
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    assert!(
        told.elapsed() < Duration::from_secs(20),
        "it took {:?}, of the thirty seconds to go",
        told.elapsed()
    );
}

#[test]
fn stops_cleanly_during_start() {
    let cluster = small();
    cluster.sentinels()[0].kill();
    let pointsman = builder(&cluster)
        .lines("[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"")
        .without_waiting()
        .start();
    wait_until("the admin server to answer", PATIENCE, || pointsman.get("/alive").is_ok());
    pointsman.sigterm();
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
}

fn subscribed(pointsman: &Pointsman) -> Client {
    let mut client = pointsman.client();
    let confirmed = client.cmd(&["SUBSCRIBE", "for ever"]).expect("SUBSCRIBE");
    assert_eq!(confirmed.items().len(), 3);
    client
}
