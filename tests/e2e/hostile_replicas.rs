//! Replicas and masters of an attacker: neither readers nor passwords reach them.
//!
//! Redis and three sentinels are real, and the attacker has what no other test gives it: one of the
//! configured sentinels, and the replication history of the true master.

use std::net::SocketAddr;
use std::time::Duration;

use harness::{Client, Cluster, Node, Pointsman, wait_until};

use crate::attacker::{Attacker, Claim, Shown};
use crate::replicas::{PATIENT, wait_eligible};
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);
const PASSWORD: &str = "the-password-of-redis";
/// Once every hostile sentinel has been polled this often, the claim has stood for seconds.
const POLLS: usize = 6;
const BOTH: [&str; 2] = ["upstream = \"dedicated\"", "upstream = \"shared\""];

/// A proxy with a listener for readers.
struct Proxy {
    pointsman: Pointsman,
    readers: SocketAddr,
    /// A session whose credentials would be carried.
    idle: Client,
}

fn log_in(addr: SocketAddr) -> Client {
    let mut client = Client::connect(addr).expect("a connection");
    assert!(client.cmd(&["AUTH", PASSWORD]).expect("AUTH").is_ok());
    client
}

fn start(cluster: &Cluster, sentinels: &[String], lines: &[&str]) -> Vec<Proxy> {
    let start = |upstream: &str| {
        let readers = cluster.address().port();
        let mut builder = builder(cluster)
            .sentinels(sentinels)
            .service_line(&format!("replica_listen = [\"{readers}\"]"));
        for line in [upstream, PATIENT].iter().chain(lines) {
            builder = builder.service_line(line);
        }
        let pointsman = builder.start();
        let idle = log_in(pointsman.addr());
        wait_eligible(&pointsman, 2);
        Proxy { pointsman, readers, idle }
    };
    BOTH.map(start).into()
}

/// Every reader is served by a true replica, and every writer by the true master.
#[track_caller]
fn serves(cluster: &Cluster, proxies: &mut [Proxy], value: &str) {
    for proxy in proxies {
        for writer in [&mut proxy.idle, &mut log_in(proxy.pointsman.addr())] {
            assert!(writer.cmd(&["SET", "key", value]).expect("SET").is_ok());
        }
        wait_until("the write at every replica", PATIENCE, || {
            cluster
                .nodes()
                .iter()
                .all(|node| node.ask(&["GET", "key"]).is_ok_and(|it| it.text() == Some(value)))
        });
        for _ in 0..12 {
            let answer = log_in(proxy.readers).cmd(&["GET", "key"]).expect("GET");
            assert_eq!(answer.text(), Some(value));
        }
        wait_eligible(&proxy.pointsman, 2);
    }
}

/// The attacker is one of three configured sentinels, the only one that answers in the end.
#[test]
fn one_sentinel_adds_no_replica_and_collects_no_password() {
    let cluster = Cluster::builder().password(PASSWORD).start();
    let master = cluster.master();
    let attacker = Attacker::new(cluster.address().ip(), 1, None);
    let replica = attacker.redis(Shown {
        follows: Some(master.addr()),
        run_id: "3".repeat(40),
        replid: master.info("replication", "master_replid").expect("INFO"),
        open: true,
    });
    let forged = attacker.redis(Shown::master());
    let mut replicas: Vec<SocketAddr> = cluster.nodes().iter().map(Node::addr).collect();
    replicas.retain(|addr| *addr != master.addr());
    replicas.extend([replica, forged]);
    attacker.says(|claim| {
        *claim = Claim { master: Some(master.addr()), replicas, ..Claim::default() };
    });
    let mut sentinels = cluster.sentinel_addrs();
    sentinels.truncate(2);
    sentinels.extend(attacker.sentinels.values());
    let sentinels: Vec<String> = sentinels.iter().map(ToString::to_string).collect();
    let mut proxies = start(&cluster, &sentinels, &[]);

    // It lists replicas of its own, at the true epoch and far above.
    for (epoch, value) in [(0, "listed"), (900, "above")] {
        attacker.says(|claim| claim.epoch = epoch);
        polled(&attacker, &proxies);
        serves(&cluster, &mut proxies, value);
        attacker.got_no_more_than_probes();
    }
    // It names a master of its own.
    attacker.says(|claim| claim.master = Some(forged));
    polled(&attacker, &proxies);
    serves(&cluster, &mut proxies, "named");
    attacker.got_no_more_than_probes();
    // No other sentinel answers, and then no master does.
    cluster.sentinels().iter().for_each(Node::kill);
    polled(&attacker, &proxies);
    serves(&cluster, &mut proxies, "alone");
    attacker.got_no_more_than_probes();
    master.kill();
    polled(&attacker, &proxies);
    attacker.got_no_more_than_probes();
    for proxy in &proxies {
        let commits = metric(&proxy.pointsman, "pointsman_target_generation{service=\"mymaster\"}");
        assert_eq!(commits, Some(1.0));
    }
}

fn polled(attacker: &Attacker, proxies: &[Proxy]) {
    attacker.is_polled(POLLS, &proxies.iter().map(|it| &it.pointsman).collect::<Vec<_>>());
}
