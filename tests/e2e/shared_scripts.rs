//! Clients that share connections end a script that runs for too long, whatever state their session
//! has. Meanwhile the server refuses nearly everything: `PING`, `SELECT`, names.

use std::time::{Duration, Instant};

use harness::{Client, Cluster, Pointsman, encode, server_version, wait_until};

use crate::carry::USER;
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);
const FUNCTION: &str = "#!lua name=endless\n\
     redis.register_function('spin', function() while true do end end)";

/// How a script is run, and what ends it.
const SCRIPT: [&[&str]; 2] = [&["EVAL", "while true do end", "0"], &["SCRIPT", "KILL"]];
const FUNCTIONS: [&[&str]; 2] = [&["FCALL", "spin", "0"], &["FUNCTION", "KILL"]];

fn start() -> (Cluster, Pointsman) {
    let limit = "lua-time-limit 100";
    let cluster = Cluster::builder().replicas(0).sentinels(1).user(USER).redis_line(limit);
    // Sentinel ends the scripts of a master that is down for it. Longer than `hold_timeout`, after
    // which a client that could not be served gets an error.
    let cluster = cluster.down_after(PATIENCE).start();
    let pointsman = builder(&cluster).service_line("upstream = \"shared\"").start();
    (cluster, pointsman)
}

fn count(pointsman: &Pointsman, name: &str) -> f64 {
    metric(pointsman, &format!("{name}{{service=\"mymaster\"}}")).expect("the metric")
}

fn wait_until_sharing(pointsman: &Pointsman, sessions: f64) {
    let sharing = || count(pointsman, "pointsman_shared_sessions") == sessions;
    wait_until("the number of clients that share", PATIENCE, sharing);
}

/// A client whose script never ends.
fn run_endless(cluster: &Cluster, pointsman: &Pointsman, script: &[&str]) -> Client {
    let mut runner = pointsman.client();
    assert!(runner.cmd(&["GET", "k"]).is_ok());
    runner.send(&encode(script)).unwrap();
    wait_until("the server to be busy", PATIENCE, || {
        let reply = cluster.master().client().cmd(&["PING"]).map_err(|it| it.to_string())?;
        if reply.is_error() { Ok(()) } else { Err(format!("{reply:?}")) }
    });
    runner
}

/// The value of the key in each of the first three databases.
fn values(cluster: &Cluster, key: &str) -> Vec<Option<String>> {
    let mut direct = cluster.master().client();
    let mut value = |db: &str| {
        assert!(direct.cmd(&["SELECT", db]).unwrap().is_ok());
        direct.cmd(&["GET", key]).unwrap().text().map(str::to_owned)
    };
    ["0", "1", "2"].map(&mut value).into()
}

/// Ends a script by a client after `setup`, with requests behind that in the same packet, which are
/// executed in the database of the client or not at all.
fn end_script(
    cluster: &Cluster,
    pointsman: &Pointsman,
    [script, kill]: [&[&str]; 2],
    setup: &[&[&str]],
    db: usize,
) {
    assert!(cluster.master().ask(&["FLUSHALL"]).unwrap().is_ok());
    let mut operator = pointsman.client();
    for request in setup {
        let reply = operator.cmd(request).unwrap();
        assert!(!reply.is_error(), "{request:?}: {reply:?}");
    }
    assert!(operator.cmd(&["GET", "k"]).is_ok());
    wait_until_sharing(pointsman, 1.0);
    let mut runner = run_endless(cluster, pointsman, script);
    let behind = [&["SET", "k", "v"][..], &["GET", "k"], &["INCR", "n"]];
    let pipeline: Vec<u8> = std::iter::once(kill).chain(behind).flat_map(encode).collect();
    operator.send(&pipeline).unwrap();
    let reply = operator.read_value().unwrap();
    assert!(reply.is_ok(), "{setup:?}: {reply:?}");
    assert!(runner.read_value().unwrap().is_error(), "the script was ended");
    // The server may read what follows before it has ended the script.
    let replies = [(); 3].map(|()| operator.read_value().unwrap());
    let busy = |n: usize| replies[n].error().is_some_and(|it| it.starts_with("BUSY"));
    assert!(busy(0) || replies[0].is_ok(), "{setup:?}: {replies:?}");
    assert!(busy(2) || replies[2].int() == Some(1), "{setup:?}: {replies:?}");
    let mut expected = [None, None, None];
    expected[db] = (!busy(0)).then(|| "v".to_owned());
    assert_eq!(values(cluster, "k"), expected, "{setup:?}");
    assert!(operator.cmd(&["SET", "l", "w"]).unwrap().is_ok());
    expected[db] = Some("w".to_owned());
    assert_eq!(values(cluster, "l"), expected, "{setup:?}");
    drop((runner, operator));
    wait_until_sharing(pointsman, 0.0);
}

#[test]
fn ends_a_running_script_by_any_sharing_client() {
    let (cluster, pointsman) = start();
    let hello: &[&str] = &["HELLO", "3"];
    let name: &[&str] = &["CLIENT", "SETNAME", "operator"];
    let auth: &[&str] = &["AUTH", "app", "pw"];
    let [one, two]: [&[&str]; 2] = [&["SELECT", "1"], &["SELECT", "2"]];
    let setups: [(&[&[&str]], usize); 8] = [
        (&[], 0),
        (&[hello], 0),
        (&[hello, name], 0),
        (&[one], 1),
        (&[hello, two], 2),
        (&[auth, one], 1),
        (&[auth, hello, name, two], 2),
        (&[&["HELLO", "3", "AUTH", "app", "pw", "SETNAME", "operator"], one], 1),
    ];
    let functions = server_version() >= (7, 0);
    for (setup, db) in setups {
        end_script(&cluster, &pointsman, SCRIPT, setup, db);
        if functions {
            let load = ["FUNCTION", "LOAD", "REPLACE", FUNCTION];
            assert!(!cluster.master().ask(&load).unwrap().is_error());
            end_script(&cluster, &pointsman, FUNCTIONS, setup, db);
        }
    }
    assert_eq!(count(&pointsman, "pointsman_shared_desyncs_total"), 0.0);
    assert_eq!(count(&pointsman, "pointsman_dedicated_sessions"), 0.0);
}

/// The server refuses the database of a client that connects while the script runs, and ends the
/// script for it.
#[test]
fn ends_a_running_script_by_a_new_client() {
    let (cluster, pointsman) = start();
    let mut runner = run_endless(&cluster, &pointsman, SCRIPT[0]);
    let mut operator = pointsman.client();
    assert!(operator.cmd(&["AUTH", "app", "pw"]).unwrap().is_ok());
    let reply = operator.cmd(&["SELECT", "1"]).unwrap();
    assert!(reply.error().is_some_and(|it| it.starts_with("BUSY")), "{reply:?}");
    assert!(operator.cmd(&["SCRIPT", "KILL"]).unwrap().is_ok());
    assert!(runner.read_value().unwrap().is_error(), "the script was ended");
}

/// What the server replies reaches the client, and its session keeps its database. A script that
/// has written can be ended only together with the server.
#[test]
fn passes_refusals_to_end_a_script() {
    let (cluster, pointsman) = start();
    let mut operator = pointsman.client();
    assert!(operator.cmd(&["SELECT", "1"]).unwrap().is_ok());
    assert!(operator.cmd(&["SET", "k", "v"]).unwrap().is_ok());
    let reply = operator.cmd(&["SCRIPT", "KILL"]).unwrap();
    assert!(reply.error().is_some_and(|it| it.starts_with("NOTBUSY")), "{reply:?}");
    wait_until("its return", PATIENCE, || {
        assert_eq!(operator.cmd(&["GET", "k"]).unwrap().text(), Some("v"));
        count(&pointsman, "pointsman_shared_sessions") == 1.0
    });
    let script = ["EVAL", "redis.call('SET', 'k', 'w') while true do end", "0"];
    let mut runner = run_endless(&cluster, &pointsman, &script);
    for _ in 0..2 {
        let reply = operator.cmd(&["SCRIPT", "KILL"]).unwrap();
        assert!(reply.error().is_some_and(|it| it.starts_with("UNKILLABLE")), "{reply:?}");
    }
    operator.send(&encode(&["SHUTDOWN", "NOSAVE"])).unwrap();
    assert_eq!(operator.read_to_end().unwrap().0, b"", "no reply");
    assert!(runner.read_value().is_err());
    wait_until("the server to be gone", PATIENCE, || {
        std::net::TcpStream::connect(cluster.master().addr()).is_err()
    });
}

/// A script chooses how deeply its reply is nested; other clients on its connection notice nothing.
#[test]
fn passes_deeply_nested_replies_of_scripts() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = builder(&cluster).service_line("upstream = \"shared\"");
    let pointsman = pointsman.lines("[process]\nworkers = 1").start();
    let connect = || {
        let mut client = pointsman.client();
        client.set_timeout(PATIENCE).expect("a timeout");
        assert!(!client.cmd(&["GET", "k"]).expect("GET").is_error());
        client
    };
    let (mut one, mut other) = (connect(), connect());
    wait_until_sharing(&pointsman, 2.0);
    for depth in [1, 4, 127, 128, 129, 400] {
        let script = format!("local t = {{7}} for i = 2, {depth} do t = {{t, i}} end return t");
        let direct = cluster.master().ask(&["EVAL", &script, "0"]).expect("EVAL");
        assert_eq!(direct.items().len(), if depth == 1 { 1 } else { 2 });
        one.send(&encode(&["EVAL", &script, "0"]).repeat(3)).expect("sent");
        other.send(&encode(&["ECHO", "x"]).repeat(50)).expect("sent");
        for _ in 0..3 {
            assert_eq!(one.read_value().expect("a reply"), direct, "{depth}");
        }
        for _ in 0..50 {
            assert_eq!(other.read_value().expect("a reply").text(), Some("x"), "{depth}");
        }
    }
    wait_until_sharing(&pointsman, 2.0);
}

/// A service whose clients share one connection, and a server that is soon busy.
fn start_with_one_worker() -> (Cluster, Pointsman) {
    let cluster = Cluster::builder().replicas(0).sentinels(1).redis_line("lua-time-limit 100");
    let cluster = cluster.down_after(PATIENCE).start();
    let pointsman = builder(&cluster).service_line("upstream = \"shared\"");
    let pointsman = pointsman.lines("[process]\nworkers = 1").start();
    (cluster, pointsman)
}

/// Clients that share, each after `setup`.
fn members(pointsman: &Pointsman, setup: &[&str], count: usize) -> Vec<Client> {
    let connect = |_| {
        let mut client = pointsman.client();
        client.set_timeout(PATIENCE).expect("a timeout");
        assert!(setup.is_empty() || !client.cmd(setup).expect("its state").is_error());
        assert!(client.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
        client
    };
    (0..count).map(connect).collect()
}

/// A client that waits for nothing on the connection of the script receives what it would receive
/// directly. One whose request is on that connection is answered when the script has ended.
#[test]
fn answers_busy_to_clients_that_share_with_a_script() {
    let (cluster, pointsman) = start_with_one_worker();
    for setup in [&[][..], &["HELLO", "3"]] {
        let mut others = members(&pointsman, setup, 5);
        let (mut caught, mut operator) = (others.pop().expect("five"), others.pop().expect("four"));
        let mut runner = members(&pointsman, setup, 1).pop().expect("one");
        wait_until_sharing(&pointsman, 6.0);
        runner.send(&encode(SCRIPT[0])).expect("sent");
        harness::pause(Duration::from_millis(300));
        caught.send(&encode(&["INCR", "n"])).expect("sent");
        harness::pause(Duration::from_secs(3));
        let asked = Instant::now();
        for client in &mut others {
            for command in [&["GET", "k"][..], &["SET", "k", "w"], &["PING"]] {
                let reply = client.cmd(command).expect("a reply");
                let is_busy = reply.error().is_some_and(|it| it.starts_with("BUSY"));
                assert!(is_busy, "{setup:?} {command:?}: {reply:?}");
            }
        }
        assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
        // One that has connected since is no exception.
        let reply = pointsman.client().cmd(&["GET", "k"]).expect("a reply");
        assert!(reply.error().is_some_and(|it| it.starts_with("BUSY")), "{reply:?}");
        caught.send(&encode(&["GET", "k"])).expect("sent");
        assert!(operator.cmd(SCRIPT[1]).expect("a reply").is_ok());
        assert!(runner.read_value().expect("a reply").is_error(), "the script was ended");
        assert!(caught.read_value().expect("a reply").int().is_some());
        assert_eq!(caught.read_value().expect("a reply").text(), Some("v"));
        others.extend([runner, caught, operator]);
        for client in &mut others {
            assert_eq!(client.cmd(&["GET", "k"]).expect("a reply").text(), Some("v"));
        }
        wait_until("the number of connections", PATIENCE, || {
            count(&pointsman, "pointsman_shared_connections") == 1.0
        });
        drop(others);
        wait_until_sharing(&pointsman, 0.0);
    }
    assert_eq!(count(&pointsman, "pointsman_shared_desyncs_total"), 0.0);
    assert_eq!(count(&pointsman, "pointsman_shared_sessions_lost_total"), 0.0);
    drop(cluster);
}

/// A server that pauses all clients answers on no other connection either: one connection at a time
/// is opened, nobody is closed, and everything is answered when the pause has ended.
#[test]
fn opens_one_connection_while_clients_are_paused() {
    let (cluster, pointsman) = start_with_one_worker();
    let mut all = members(&pointsman, &[], 40);
    wait_until_sharing(&pointsman, 40.0);
    let received = || {
        let info = cluster.master().ask(&["INFO", "stats"]).expect("INFO");
        let text = info.text().expect("text").to_owned();
        let line = text.lines().find_map(|it| it.strip_prefix("total_connections_received:"));
        line.and_then(|it| it.parse::<u32>().ok()).expect("a number")
    };
    let before = received();
    assert!(cluster.master().ask(&["CLIENT", "PAUSE", "6000", "ALL"]).expect("PAUSE").is_ok());
    let (first, waiting) = all.split_at_mut(1);
    first[0].send(&encode(&["GET", "k"])).expect("sent");
    harness::pause(Duration::from_secs(3));
    let paused = Instant::now();
    waiting.iter_mut().for_each(|it| it.send(&encode(&["GET", "k"])).expect("sent"));
    for client in &mut all {
        assert_eq!(client.read_value().expect("a reply").text(), Some("v"));
    }
    assert!(paused.elapsed() > Duration::from_secs(2), "{:?}", paused.elapsed());
    wait_until_sharing(&pointsman, 40.0);
    assert_eq!(count(&pointsman, "pointsman_dedicated_sessions"), 0.0);
    // Those of the sentinel and the probes included.
    let opened = received() - before;
    assert!(opened < 25, "{opened}");
}

/// A server that pauses writes stops reading a connection at the first one.
#[test]
fn reads_on_while_writes_are_paused() {
    let (cluster, pointsman) = start_with_one_worker();
    let mut all = members(&pointsman, &[], 10);
    wait_until_sharing(&pointsman, 10.0);
    assert!(cluster.master().ask(&["CLIENT", "PAUSE", "8000", "WRITE"]).expect("PAUSE").is_ok());
    let paused = Instant::now();
    let mut writer = all.pop().expect("ten");
    writer.send(&encode(&["INCR", "n"])).expect("sent");
    // It counts as silent after one to two seconds. A request sent before that waits with it.
    harness::pause(Duration::from_secs(3));
    for client in &mut all {
        assert_eq!(client.cmd(&["GET", "k"]).expect("a reply").text(), Some("v"));
    }
    assert!(paused.elapsed() < Duration::from_secs(6), "{:?}", paused.elapsed());
    assert_eq!(writer.read_value().expect("a reply").int(), Some(1));
    assert!(paused.elapsed() > Duration::from_secs(7), "{:?}", paused.elapsed());
}

/// The master is replaced while two connections to it are open: clients with nothing in flight stay
/// connected, whichever of the two they are on.
#[test]
fn follows_a_failover_with_a_silent_connection() {
    let cluster = Cluster::builder().redis_line("lua-time-limit 100");
    let cluster = cluster.down_after(Duration::from_secs(5)).start();
    let pointsman = builder(&cluster).service_line("upstream = \"shared\"");
    let pointsman = pointsman.lines("[process]\nworkers = 1").start();
    let mut others = members(&pointsman, &[], 6);
    let (mut caught, idle) = (others.pop().expect("six"), others.pop().expect("five"));
    let mut runner = members(&pointsman, &[], 1).pop().expect("one");
    let before = crate::switchover::generation(&pointsman);
    // It has written, so Sentinel cannot end it, and fails over.
    let script = "redis.call('SET', 'k', 'w') while true do end";
    runner.send(&encode(&["EVAL", script, "0"])).expect("sent");
    harness::pause(Duration::from_millis(100));
    caught.send(&encode(&["INCR", "n"])).expect("sent");
    harness::pause(Duration::from_secs(3));
    let mut refused = 0;
    wait_until("the switch", PATIENCE, || {
        for client in &mut others {
            let reply = client.cmd(&["GET", "k"]).expect("a reply");
            refused += u32::from(reply.is_error());
            assert!(reply.is_error() || reply.text() == Some("v"), "{reply:?}");
        }
        crate::switchover::generation(&pointsman) > before
    });
    others.push(idle);
    for client in &mut others {
        assert_eq!(client.cmd(&["GET", "k"]).expect("a reply").text(), Some("v"));
    }
    assert!(caught.read_value().is_err() && runner.read_value().is_err(), "its outcome is unknown");
    assert!(refused > 0 && count(&pointsman, "pointsman_shared_desyncs_total") == 0.0);
}
