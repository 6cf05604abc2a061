//! An upgrade of the servers behind a running proxy, in the order in which it is done: replicas,
//! a switchover, the former master, sentinels.
//!
//! The environment names the version to upgrade to ([`harness::Binary::newer_variable`]), as `cargo
//! xtask test --servers` does for pairs of versions. Without it both versions are the same.

use std::time::Duration;

use harness::{Binary, Client, Cluster, Load, Node, Pointsman, wait_until};

use crate::switchover::{TOKEN, controlled_by, generation, order, stderr, stdout};
use crate::{builder, metric};

/// An upgraded node loads all data, and sentinels look at it every ten seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// An election that is lost on a busy machine is repeated after twelve seconds.
const LONG_HOLD: &str = "hold_timeout = \"60s\"";

/// A client that selected a database and has a name.
fn known_client(pointsman: &Pointsman) -> Client {
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a timeout");
    assert!(client.cmd(&["SELECT", "3"]).expect("SELECT").is_ok());
    assert!(client.cmd(&["CLIENT", "SETNAME", "kept"]).expect("a name").is_ok());
    client
}

/// Whether it still has the database and the name.
fn is_known(client: &mut Client) -> bool {
    let info = client.cmd(&["CLIENT", "INFO"]).expect("CLIENT INFO");
    let text = info.text().unwrap_or_default();
    text.contains(" db=3 ") && text.contains(" name=kept ")
}

fn carried(pointsman: &Pointsman) -> f64 {
    metric(pointsman, "pointsman_sessions_carried_total{service=\"mymaster\"}").unwrap_or(0.0)
}

fn version(node: &Node) -> String {
    ["valkey_version", "redis_version"]
        .iter()
        .find_map(|field| node.info("server", field).ok())
        .expect("a version")
}

/// Upgrades a replica, or a former master, and waits until it follows the master again.
fn upgrade_server(cluster: &Cluster, node: &Node) {
    let master = cluster.master().addr();
    assert_ne!(node.addr(), master, "a master is never upgraded in place");
    node.upgrade(Binary::Server);
    wait_until(&format!("{} to follow the master", node.name()), PATIENCE, || {
        let field = |name| node.info("replication", name).map_err(|error| error.to_string());
        let (port, link) = (field("master_port")?, field("master_link_status")?);
        let follows = port == master.port().to_string() && link == "up";
        if follows { Ok(()) } else { Err(format!("{port} {link}")) }
    });
}

#[test]
fn upgrades_servers_and_sentinels_without_lost_write() {
    // The replicas and one sentinel were upgraded already.
    let cluster = Cluster::builder().newer(2, 1).start();
    let pointsman = controlled_by(&cluster, builder(&cluster).service_line(LONG_HOLD));
    let mut client = known_client(&pointsman);
    let mut load = Load::to(pointsman.addr()).writers(8).rate(800).timeout(PATIENCE).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 300);
    let done = order(&pointsman, &["switchover"], TOKEN);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    let former = &cluster.nodes()[0];
    assert_ne!(cluster.master().addr(), former.addr());
    assert!((generation(&pointsman) - 2.0).abs() < 0.1);
    assert!(is_known(&mut client), "the session was not carried with its state");
    assert!(carried(&pointsman) >= 1.0);

    upgrade_server(&cluster, former);
    assert_eq!(version(former), version(cluster.master()));
    for sentinel in &cluster.sentinels()[..2] {
        sentinel.upgrade(Binary::Sentinel);
        cluster.wait_whole();
    }
    let seen = load.counts().acknowledged;
    wait_until("writes with every part upgraded", PATIENCE, || {
        load.counts().acknowledged > seen + 300
    });
    load.stop();
    let verdict = load.verify(cluster.master().addr()).expect("a look at the new master");
    assert_eq!((verdict.missing, load.counts().errors), (0, 0), "{verdict:?} {:?}", load.errors());

    // The upgraded sentinels agree on a crash, and the upgraded former master may succeed.
    let crashed = cluster.master();
    crashed.kill();
    wait_until("the next master", PATIENCE, || generation(&pointsman) > 2.9);
    assert!(is_known(&mut client), "the session was not carried with its state");
    assert_ne!(cluster.master().addr(), crashed.addr());
}

/// The sentinels first, which is possible as well: newer sentinels watch older servers.
#[test]
fn follows_failover_of_older_servers_by_newer_sentinels() {
    let cluster = Cluster::builder().newer(0, 3).start();
    let pointsman = controlled_by(&cluster, builder(&cluster).service_line(LONG_HOLD));
    let mut client = known_client(&pointsman);
    cluster.failover();
    wait_until("the switch", PATIENCE, || generation(&pointsman) > 1.9);
    assert!(is_known(&mut client), "the session was not carried with its state");
    cluster.wait_whole();
    let done = order(&pointsman, &["switchover"], TOKEN);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    assert!((generation(&pointsman) - 3.0).abs() < 0.1);
    assert!(is_known(&mut client), "the session was not carried with its state");
}
