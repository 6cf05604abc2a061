//! Failovers of sessions that depend on state of the old master only: they are closed, and no reply
//! is wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::{Client, Cluster, Ending, Pointsman, encode, wait_until};

use crate::{builder, metric, pointsman};

const PATIENCE: Duration = Duration::from_secs(40);
const KEYS: usize = 20_000;

/// A client that has sent these commands and read the replies.
fn client(pointsman: &Pointsman, commands: &[&[&str]]) -> Client {
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a timeout");
    commands.iter().for_each(|command| drop(client.cmd(command).expect("an answer")));
    client
}

/// One page of an iteration; returns the next cursor, or nothing if the session ends.
fn scan(client: &mut Client, cursor: &str, found: &mut BTreeSet<String>) -> Option<String> {
    let page = client.cmd(&["SCAN", cursor, "COUNT", "100"]).ok().filter(|it| !it.is_error())?;
    let [next, keys] = page.items() else { panic!("no page: {page}") };
    found.extend(keys.items().iter().filter_map(|key| key.text().map(str::to_owned)));
    next.text().map(str::to_owned)
}

#[test]
fn ends_a_connection_that_iterates_at_a_failover() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    let mut writer = pointsman.client();
    for batch in 0..KEYS / 1000 {
        let commands = (0..1000)
            .map(|key| vec!["SET".to_owned(), format!("key:{batch}:{key}"), "v".to_owned()]);
        let answers = writer.pipeline(&commands.collect::<Vec<_>>()).expect("answers");
        assert!(answers.iter().all(harness::Value::is_ok));
    }
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a timeout");
    let (mut found, mut cursor) = (BTreeSet::new(), "0".to_owned());
    while found.len() < KEYS / 2 {
        cursor = scan(&mut client, &cursor, &mut found).expect("a page");
        assert_ne!(cursor, "0", "the iteration ended early");
    }
    // Another session, whose iteration is complete, is carried.
    let mut finished = pointsman.client();
    finished.set_timeout(PATIENCE).expect("a timeout");
    let (mut all, mut at) = (BTreeSet::new(), "0".to_owned());
    loop {
        at = scan(&mut finished, &at, &mut all).expect("a page");
        if at == "0" {
            break;
        }
    }
    assert_eq!(all.len(), KEYS);
    let failover = cluster.failover();
    assert_ne!(failover.from, failover.to);
    let mut ended = false;
    while !ended {
        match scan(&mut client, &cursor, &mut found) {
            Some(next) if next == "0" => break,
            Some(next) => cursor = next,
            None => ended = true,
        }
    }
    assert!(ended, "the iteration ended with {} of {KEYS} keys, and no error", found.len());
    assert!(finished.cmd(&["PING"]).is_ok(), "a session without an open cursor was closed");
}

#[test]
fn ends_connections_that_know_ids_or_scripts_at_a_failover() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    let absent: &[&str] = &["EVALSHA", "0123456789012345678901234567890123456789", "0"];
    let bound: [&[&[&str]]; 3] = [
        &[&["CLIENT", "ID"]],
        &[&["SCRIPT", "LOAD", "return 1"]],
        &[&["MULTI"], &["EVAL", "return 2", "0"], &["EXEC"]],
    ];
    let mut bound = bound.map(|commands| (client(&pointsman, commands), commands));
    let mut falls_back = client(&pointsman, &[absent, &["SCRIPT", "LOAD", "return 3"]]);
    // Of a refused HELLO without credentials and a name nothing takes effect.
    let mut refused = client(&pointsman, &[&["HELLO", "3", "NOSUCH"]]);
    cluster.failover();
    for (client, commands) in &mut bound {
        let (bytes, _) = client.read_to_end().expect("the end of the connection");
        assert_eq!(bytes, b"", "{commands:?}");
    }
    assert!(refused.cmd(&["PING"]).is_ok(), "a session was closed for a refused option");
    let answer = falls_back.cmd(absent).expect("an answer");
    assert!(answer.error().is_some_and(|error| error.starts_with("NOSCRIPT")), "{answer}");
}

/// A request that only waited at the gate was not forwarded, and its client may repeat it.
#[test]
fn refuses_held_requests_of_sessions_that_end() {
    let states: &[&[&[&str]]] = &[
        &[&["WATCH", "k"]],
        &[&["SCAN", "0", "COUNT", "10"]],
        &[&["CLIENT", "ID"]],
        &[&["SCRIPT", "LOAD", "return 1"]],
        &[&["MODULE.X"]],
        &[&["HELLO", "3"], &["CLIENT", "TRACKING", "ON"]],
        &[&["HELLO", "3"], &["SUBSCRIBE", "c"]],
        &[&["MULTI"]],
    ];
    for mode in ["dedicated", "shared"] {
        let cluster = Cluster::builder().start();
        let pointsman = builder(&cluster).service_line(&format!("upstream = \"{mode}\"")).start();
        let keys =
            (0..1000).map(|key| vec!["SET".to_owned(), format!("key:{key}"), "v".to_owned()]);
        pointsman.client().pipeline(&keys.collect::<Vec<_>>()).expect("answers");
        let mut clients: Vec<_> = states.iter().map(|it| (client(&pointsman, it), it)).collect();
        cluster.begin_failover_of("mymaster");
        wait_until("the hold", PATIENCE, || {
            metric(&pointsman, "pointsman_gate_closed{service=\"mymaster\"}") == Some(1.0)
        });
        for (client, _) in &mut clients {
            client.send(&encode(&["INCR", "held"])).expect("sent");
        }
        for (client, state) in &mut clients {
            let (reply, ending) = client.read_to_end().expect("the end of the connection");
            let reply = String::from_utf8_lossy(&reply);
            assert!(
                reply.starts_with("-LOADING ") && reply.matches("\r\n").count() == 1,
                "{mode} {state:?}: {reply:?}"
            );
            assert_eq!(ending, Ending::Fin, "{mode} {state:?}");
        }
        let ran = pointsman.client().cmd(&["EXISTS", "held"]).expect("an answer");
        assert_eq!(ran.int(), Some(0), "{mode}");
    }
}

#[test]
fn carries_connections_that_sent_eval_over_a_failover() {
    let cluster = Cluster::builder().start();
    let pointsman = pointsman(&cluster);
    let script = "return 'scripted'";
    let mut client = client(&pointsman, &[&["EVAL", script, "0"]]);
    // `SCRIPT LOAD` would return the SHA-1 as well, and Redis 6 replicates it.
    let mut other = pointsman.client();
    let sha = other
        .cmd(&["EVAL", "return redis.sha1hex(ARGV[1])", "0", script])
        .expect("an answer")
        .text()
        .expect("a digest")
        .to_owned();
    assert_eq!(client.cmd(&["EVALSHA", &sha, "0"]).expect("an answer").text(), Some("scripted"));
    let mut queues = self::client(&pointsman, &[&["EVAL", script, "0"]]);
    cluster.failover();
    // A transaction cannot fall back to `EVAL`: the reply is an error, and the client needs a new
    // connection, on which it sends `EVAL` first.
    assert!(queues.cmd(&["MULTI"]).expect("the connection stands").is_ok());
    assert_eq!(queues.cmd(&["EVALSHA", &sha, "0"]).expect("an answer").text(), Some("QUEUED"));
    let answers = queues.cmd(&["EXEC"]).expect("an answer");
    let error = answers.items().first().and_then(harness::Value::error);
    assert!(error.is_some_and(|error| error.starts_with("NOSCRIPT")), "{answers}");
    assert_eq!(queues.read_to_end().expect("the end of the connection").0, b"");
    let answer = client.cmd(&["EVALSHA", &sha, "0"]).expect("the connection stands");
    assert!(answer.error().is_some_and(|error| error.starts_with("NOSCRIPT")), "{answer}");
    assert_eq!(client.cmd(&["EVAL", script, "0"]).expect("an answer").text(), Some("scripted"));
    assert_eq!(client.cmd(&["EVALSHA", &sha, "0"]).expect("an answer").text(), Some("scripted"));
}

#[test]
fn ends_connections_that_sent_renamed_commands_at_a_failover() {
    let cluster = Cluster::builder().redis_line("rename-command GET FETCH").start();
    let pointsman = pointsman(&cluster);
    let [mut renamed, mut plain] = [pointsman.client(), pointsman.client()];
    assert!(plain.cmd(&["SET", "k", "v"]).expect("an answer").is_ok());
    assert_eq!(renamed.cmd(&["FETCH", "k"]).expect("an answer").text(), Some("v"));
    [&renamed, &plain].iter().for_each(|client| client.set_timeout(PATIENCE).expect("a timeout"));
    cluster.failover();
    assert_eq!(renamed.read_to_end().expect("the end of the connection").0, b"");
    assert!(plain.cmd(&["SET", "k", "w"]).expect("an answer").is_ok());
}
