//! Servers whose tables of commands differ: after a restart and after a failover the table is asked
//! again, before a request is shared.

use std::time::Duration;

use harness::{Cluster, Node, Pointsman, wait_until};

use crate::doctor_cures::restart_with;
use crate::metric;
use crate::shared_load::{assert_synchronous, sharing, value};
use crate::switchover::generation;

const PATIENCE: Duration = Duration::from_secs(40);

/// Gives the name of an ordinary command to one that a connection cannot share.
fn rename(cluster: &Cluster, node: &Node, from: &str, to: &str) {
    let lines = format!("\nrename-command {to} \"\"\nrename-command {from} {to}\n");
    restart_with(cluster, node, |text| text + &lines);
}

fn promoted(pointsman: &Pointsman) -> f64 {
    let series = "pointsman_shared_promotions_total{service=\"mymaster\",reason=\"server_table\"}";
    metric(pointsman, series).expect("the counter")
}

/// Connections on which the server's own table is in force.
fn informed(pointsman: &Pointsman) -> f64 {
    let series = "pointsman_shared_connections_by_table{service=\"mymaster\",table=\"server\"}";
    metric(pointsman, series).expect("the gauge")
}

#[test]
fn asks_for_the_table_again_after_a_restart() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = sharing(&cluster).lines("[process]\nworkers = 1").start();
    let connect = || {
        let client = pointsman.client();
        client.set_timeout(PATIENCE).expect("a timeout");
        client
    };
    let mut before = connect();
    assert_eq!(before.cmd(&["TOUCH", "k"]).expect("TOUCH").int(), Some(0));
    assert_eq!((promoted(&pointsman), informed(&pointsman)), (0.0, 1.0));
    rename(&cluster, cluster.master(), "MULTI", "TOUCH");
    // It comes back without its data, so no session is carried there.
    assert_eq!(before.read_to_end().expect("an end").0, b"");
    let (mut one, mut two) = (connect(), connect());
    assert!(two.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    assert!(one.cmd(&["TOUCH"]).expect("MULTI").is_ok());
    assert_eq!(two.cmd(&["GET", "k"]).expect("GET").text(), Some("v"), "no part of a transaction");
    assert_eq!(one.cmd(&["INCR", "n"]).expect("INCR").text(), Some("QUEUED"));
    assert_eq!(one.cmd(&["EXEC"]).expect("EXEC").items()[0].int(), Some(1));
    assert_eq!((promoted(&pointsman), informed(&pointsman)), (1.0, 1.0));
    assert_synchronous(&pointsman);
}

/// Replicas with another table than their master: what is shared changes with the master.
#[test]
fn asks_for_the_table_again_after_a_failover() {
    let cluster = Cluster::builder().start();
    // Sentinel and replication use neither name.
    cluster.replicas().into_iter().for_each(|node| rename(&cluster, node, "BLPOP", "TOUCH"));
    cluster.wait_in_sync();
    cluster.wait_whole();
    let pointsman = sharing(&cluster).lines("[process]\nworkers = 1").start();
    let (mut one, mut two) = (pointsman.client(), pointsman.client());
    for client in [&mut one, &mut two] {
        client.set_timeout(PATIENCE).expect("a timeout");
        assert_eq!(client.cmd(&["TOUCH", "list"]).expect("TOUCH").int(), Some(0));
    }
    assert_eq!((promoted(&pointsman), informed(&pointsman)), (0.0, 1.0));
    cluster.failover();
    wait_until("the switch", PATIENCE, || generation(&pointsman) >= 2.0);
    // On a shared connection it would block the other client.
    one.send(&harness::encode(&["TOUCH", "list", "0"])).expect("sent");
    wait_until("the pop to block", PATIENCE, || {
        cluster.master().info("clients", "blocked_clients").is_ok_and(|it| it == "1")
    });
    assert!(two.cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    assert_eq!(two.cmd(&["LPUSH", "list", "a"]).expect("LPUSH").int(), Some(1));
    assert_eq!(one.read_value().expect("the item").items()[1].text(), Some("a"));
    assert_eq!((promoted(&pointsman), informed(&pointsman)), (1.0, 1.0));
    assert!(value(&pointsman, "pointsman_shared_requests_total") >= 4.0);
    assert_synchronous(&pointsman);
}
