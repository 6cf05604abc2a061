//! Sessions that share connections to a master or replica that hangs or is gone: who ends, who
//! waits, and for how long.

use std::time::Duration;

use harness::{Client, Cluster, Ending, Pointsman, encode, wait_until};

use crate::builder;
use crate::replicas::{closed, readers, replicas, wait_eligible, with_readers};
use crate::shared_load::{assert_synchronous, sharing, value, wait_sharing};

const PATIENCE: Duration = Duration::from_secs(60);

/// Clients that have shared a connection.
fn members(pointsman: &Pointsman, count: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| pointsman.client()).collect();
    for client in &mut clients {
        client.set_timeout(PATIENCE).expect("a timeout");
        assert!(client.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    }
    wait_sharing(pointsman, count);
    clients
}

#[test]
fn ends_members_in_flight_on_a_hung_master_once_superseded() {
    let cluster = Cluster::builder().start();
    let pointsman = sharing(&cluster).start();
    let mut all = members(&pointsman, 4);
    let mut asking = all.split_off(2);
    cluster.master().stop();
    for client in &mut asking {
        client.send(&encode(&["GET", "k"])).expect("sent");
    }
    for client in &mut asking {
        let (said, _) = client.read_to_end().expect("the end");
        assert!(said.is_empty(), "{said:?}");
    }
    for client in &mut all {
        let reply = client.cmd(&["SET", "k", "after"]).expect("an answer of the new master");
        assert!(reply.is_ok(), "{reply:?}");
    }
    assert_synchronous(&pointsman);
}

#[test]
fn refuses_members_at_the_end_of_the_hold_and_keeps_idle_ones() {
    // No replica is promoted while the sentinels wait for the master.
    let cluster = Cluster::builder().down_after(PATIENCE).start();
    let line = "upstream = \"shared\"\nhold_timeout = \"3s\"";
    let pointsman = builder(&cluster).service_line(line).start();
    let mut all = members(&pointsman, 4);
    let mut asking = all.split_off(2);
    cluster.master().kill();
    for client in &mut asking {
        let answer = client.cmd(&["SET", "k", "held"]).expect("an answer");
        assert!(answer.error().is_some_and(|it| it.starts_with("LOADING ")), "{answer:?}");
        assert_eq!(client.read_to_end().expect("an end").1, Ending::Fin);
    }
    let idle = value(&pointsman, "pointsman_sessions_open");
    assert!(idle >= all.len() as f64, "{idle} of {}", all.len());
    // They were not asked to wait, and may ask now.
    for client in &mut all {
        let answer = client.cmd(&["SET", "k", "later"]).expect("an answer");
        assert!(answer.error().is_some_and(|it| it.starts_with("LOADING ")), "{answer:?}");
    }
}

#[test]
fn ends_members_in_flight_on_a_hung_replica_within_the_bound() {
    let cluster = Cluster::builder().down_after(Duration::from_secs(20)).start();
    let lines = ["silent_timeout = \"1s\"", "upstream = \"shared\""];
    let (pointsman, at) = with_readers(&cluster, &lines);
    wait_eligible(&pointsman, 2);
    let hung = replicas(&cluster)[0];
    let port = hung.addr().port();
    let mut on_it = readers(at, 8);
    on_it.retain(|(found, _)| *found == port);
    assert!(on_it.len() > 2, "{}", on_it.len());
    hung.stop();
    let (asking, idle) = on_it.split_at_mut(2);
    for (_, client) in asking.iter_mut() {
        client.send(&encode(&["GET", "k"])).expect("sent");
        client.set_timeout(PATIENCE).expect("a timeout");
    }
    wait_eligible(&pointsman, 1);
    for (_, client) in asking.iter_mut() {
        let (said, _) = client.read_to_end().expect("the end");
        assert!(said.is_empty(), "{said:?}");
    }
    for (_, client) in idle.iter_mut() {
        client.set_timeout(PATIENCE).expect("a timeout");
        let reply = client.cmd(&["GET", "k"]).expect("an answer of the other replica");
        assert!(!reply.is_error(), "{reply:?}");
    }
    wait_until("their ends to be counted", PATIENCE, || {
        closed(&pointsman, "target_unresponsive") >= 2.0
    });
    hung.cont();
}
