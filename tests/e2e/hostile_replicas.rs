//! Replicas and masters of an attacker: neither readers nor passwords reach them.
//!
//! Redis and three sentinels are real, and the attacker has what no other test gives it: one of the
//! configured sentinels, and the replication history of the true master.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use harness::{Client, Cluster, Node, Pointsman, Value, encode, wait_until};

use crate::attacker::{Attacker, Claim, Shown};
use crate::replicas::{PATIENT, wait_eligible, with_readers};
use crate::{DEDICATED, builder, metric};

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
        offset: Arc::default(),
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

/// A client registers a server of the attacker as a replica of the master, through the proxy: it
/// may, without `refuse`. It receives the history, and every sentinel and the master list it. Only
/// `nodes` tells it from a true replica.
#[test]
fn registered_replica_outside_nodes_serves_no_reader() {
    let cluster = Cluster::builder().password(PASSWORD).start();
    let (master, sentinels) = (cluster.master(), cluster.sentinel_addrs());
    let sentinels: Vec<String> = sentinels.iter().map(ToString::to_string).collect();
    let nodes = format!("nodes = [\"{}\"]", cluster.address().ip());
    let lines = ["refuse = []", "learn_sentinels = false", &nodes];
    let mut proxies = start(&cluster, &sentinels, &lines);
    let attacker = Attacker::new(cluster.address().ip(), 0, None);
    let offset = Arc::<AtomicU64>::default();
    let replica = attacker.redis_at(
        "127.0.0.66".parse().expect("an address"),
        Shown {
            follows: Some(master.addr()),
            run_id: "3".repeat(40),
            replid: master.info("replication", "master_replid").expect("INFO"),
            open: true,
            offset: Arc::clone(&offset),
        },
    );
    let mut client = log_in(proxies[0].pointsman.addr());
    for words in [
        ["REPLCONF", "listening-port", &replica.port().to_string()],
        ["REPLCONF", "ip-address", &replica.ip().to_string()],
        ["REPLCONF", "capa", "psync2"],
    ] {
        assert!(client.cmd(&words).expect("REPLCONF").is_ok());
    }
    client.send(&encode(&["PSYNC", "?", "-1"])).expect("PSYNC");
    let port = replica.port().to_string();
    // It confirms everything that the master has written.
    let keep_up = |client: &mut Client| {
        let written = master.info("replication", "master_repl_offset").expect("INFO");
        offset.store(written.parse().expect("a number"), Ordering::Relaxed);
        client.send(&encode(&["REPLCONF", "ACK", &written])).expect("sent");
    };
    let lists = |node: &Node, words: &[&str]| node.ask(words).is_ok_and(|it| contains(&it, &port));
    wait_until("everyone to list the replica", PATIENCE, || {
        keep_up(&mut client);
        let mut all = cluster.sentinels().iter();
        lists(master, &["ROLE"]) && all.all(|it| lists(it, &["SENTINEL", "REPLICAS", "mymaster"]))
    });
    wait_until("it to be refused", PATIENCE, || {
        keep_up(&mut client);
        proxies.iter().all(|it| {
            let alarm = "pointsman_alarm{service=\"mymaster\",alarm=\"outside_nodes\"}";
            metric(&it.pointsman, alarm) == Some(1.0)
        })
    });
    serves(&cluster, &mut proxies, "registered");
    // The real sentinels connect to it. Only a proxy takes this name and asks for the role.
    let of_proxy = |line: &String| {
        line.contains("pointsman")
            || ["HELLO", "ROLE", "GET", "SET"].contains(&line.split(' ').next().unwrap_or_default())
    };
    let requests = attacker.requests();
    assert!(!requests.iter().any(of_proxy), "{requests:?}");
    // Without `nodes` it would serve readers; those that share ask for a password first.
    let lines = [lines[0], lines[1], PATIENT, DEDICATED];
    let (_pointsman, readers) = with_readers(&cluster, &lines);
    wait_until("a reader to be deceived", PATIENCE, || {
        keep_up(&mut client);
        let mut reader = Client::connect(readers).map_err(|error| error.to_string())?;
        let answer = reader.cmd(&["GET", "key"]).map_err(|error| error.to_string())?;
        if answer.text() == Some("FORGED") { Ok(()) } else { Err(format!("{answer:?}")) }
    });
}

fn contains(value: &Value, text: &str) -> bool {
    value.text() == Some(text) || value.items().iter().any(|it| contains(it, text))
}

fn polled(attacker: &Attacker, proxies: &[Proxy]) {
    attacker.is_polled(POLLS, &proxies.iter().map(|it| &it.pointsman).collect::<Vec<_>>());
}
