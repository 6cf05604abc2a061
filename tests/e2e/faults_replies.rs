//! Replies of a master that hangs, is replaced, and wakes up: they would acknowledge lost writes.

use std::net::SocketAddr;
use std::time::Duration;

use harness::{Client, Cluster, Event, Events, Pointsman, Value, encode, wait_until};

use crate::{DEDICATED, builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);
/// A lost election is repeated after twelve seconds.
const LONG_HOLD: &str = "hold_timeout = \"30s\"";
const WRITERS: usize = 8;
const ROUNDS: u32 = 3;

fn generation(pointsman: &Pointsman) -> f64 {
    metric(pointsman, "pointsman_target_generation{service=\"mymaster\"}").unwrap_or(0.0)
}

/// Sessions that ended because a reply was dropped.
fn dropped(pointsman: &Pointsman) -> f64 {
    metric(
        pointsman,
        "pointsman_sessions_closed_total{service=\"mymaster\",reason=\"reply_dropped\"}",
    )
    .unwrap_or(0.0)
}

/// The address in `slave <name> <ip> <port> @ ...`.
fn candidate(event: &Event) -> SocketAddr {
    let words: Vec<&str> = event.payload.split_whitespace().collect();
    format!("{}:{}", words[2], words[3]).parse().expect("an address in the event")
}

/// Connections whose last write has reached every replica, so that only the next write is tested.
fn writers(pointsman: &Pointsman, round: u32) -> Vec<Client> {
    let connect = |writer: usize| {
        let mut client = pointsman.client();
        client.set_timeout(PATIENCE).expect("a patient client");
        let key = format!("before:{round}:{writer}");
        assert!(client.cmd(&["SET", &key, "1"]).expect("SET").is_ok());
        client
    };
    let mut writers: Vec<Client> = (0..WRITERS).map(connect).collect();
    // A separate connection: a session that sent WAIT is never carried.
    let mut waiter = pointsman.client();
    assert!(waiter.cmd(&["SET", "last", "1"]).expect("SET").is_ok());
    wait_until("the writes to be replicated", PATIENCE, || {
        waiter.cmd(&["WAIT", "2", "1000"]).expect("WAIT").int() == Some(2)
    });
    assert!(writers.iter_mut().all(|it| it.cmd(&["PING"]).is_ok()));
    writers
}

/// Each writer has a request in flight when the master stops. The master wakes at the moment of its
/// successor's promotion, executes all of them and answers; the successor never receives them.
#[test]
#[allow(clippy::print_stderr, reason = "what could not be tested is told")]
fn drops_replies_of_a_superseded_master() {
    let cluster = Cluster::builder().start();
    // The writers send WAIT.
    let pointsman = builder(&cluster).service_line(LONG_HOLD).service_line(DEDICATED).start();
    let (mut before_the_commit, mut lost) = (0, Vec::new());
    for round in 1..=ROUNDS {
        let (old, events) = (cluster.master(), Events::of_all(cluster.sentinels()));
        let before = generation(&pointsman);
        let (mut writers, mut idle) = (writers(&pointsman, round), pointsman.client());
        idle.set_timeout(PATIENCE).expect("a patient client");
        assert!(idle.cmd(&["PING"]).is_ok());

        old.stop();
        let key = |writer: usize| format!("flight:{round}:{writer}");
        for (number, writer) in writers.iter_mut().enumerate() {
            writer.send(&encode(&["SET", &key(number), "1"])).expect("send");
        }
        let promotion = events.wait_for("+failover-state-wait-promotion", PATIENCE);
        old.cont();
        let in_time = generation(&pointsman) <= before;

        let answers: Vec<_> = writers.iter_mut().map(Client::read_value).collect();
        wait_until("the master change", PATIENCE, || generation(&pointsman) > before);
        let new = cluster.node_at(candidate(&promotion)).expect("the new master");
        for (number, answer) in answers.iter().enumerate() {
            let acknowledged = answer.as_ref().is_ok_and(Value::is_ok);
            if acknowledged && new.ask(&["EXISTS", &key(number)]).expect("EXISTS").int() == Some(0)
            {
                lost.push(key(number));
            }
        }
        assert!(
            idle.cmd(&["SET", "idle", "1"])
                .expect("an idle session moves to the new master")
                .is_ok()
        );
        before_the_commit += u32::from(in_time);
        cluster.wait_whole();
    }
    assert!(
        lost.is_empty(),
        "acknowledged and lost, {before_the_commit} of {ROUNDS} rounds in time: {lost:?}"
    );
    if before_the_commit == 0 {
        eprintln!(
            "NOT TESTED: in none of {ROUNDS} rounds was the old master awake before the commit"
        );
        return;
    }
    let (ended, log) = (dropped(&pointsman), pointsman.process().log());
    assert!(ended >= 1.0, "no session ended for it; {before_the_commit} rounds in time");
    assert!(
        log.contains("dropping replies of the old master") && log.contains("reply_dropped"),
        "{log}"
    );
}
