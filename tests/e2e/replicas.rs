//! The listener for readers: spread over verified replicas in sync, and never on a master unless
//! that was configured.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Ending, Node, Pointsman, wait_until};

use crate::{DEDICATED, builder, metric};

pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// For a failover whose election is lost and repeated.
pub(super) const LONG_PATIENCE: Duration = Duration::from_secs(60);

/// On a busy machine a reply may take long.
pub(super) const PATIENT: &str = "replicas.unanswered = \"10s\"";

/// A pointsman with a listener for readers, and its address.
pub(super) fn with_readers(cluster: &Cluster, lines: &[&str]) -> (Pointsman, SocketAddr) {
    let readers = cluster.address().port();
    let mut builder = builder(cluster).service_line(&format!("replica_listen = [\"{readers}\"]"));
    for line in lines {
        builder = builder.service_line(line);
    }
    (builder.start(), readers)
}

fn eligible(pointsman: &Pointsman) -> f64 {
    metric(pointsman, "pointsman_replicas_eligible{service=\"mymaster\"}").unwrap_or(-1.0)
}

pub(super) fn wait_eligible(pointsman: &Pointsman, count: u32) {
    let what = format!("{count} replicas for readers");
    wait_until(&what, PATIENCE, || {
        if (eligible(pointsman) - f64::from(count)).abs() < 0.5 {
            Ok(())
        } else {
            Err(states(pointsman))
        }
    });
}

/// The state of each replica in the status.
pub(super) fn states(pointsman: &Pointsman) -> String {
    let (_, status) = pointsman.get("/status").expect("status");
    let keep = |line: &&str| {
        ["\"addr\"", "\"state\"", "\"lag", "\"sessions\""].iter().any(|key| line.contains(key))
    };
    status.lines().filter(keep).map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The state of one replica in the status.
fn state_of(pointsman: &Pointsman, replica: &Node) -> String {
    let (_, status) = pointsman.get("/status").expect("status");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let all = status["services"][0]["replicas"].as_array().expect("replicas");
    let it = all.iter().find(|it| it["addr"] == replica.addr().to_string());
    it.and_then(|it| it["state"].as_str())
        .unwrap_or_else(|| panic!("not listed: {status}"))
        .to_owned()
}

pub(super) fn closed(pointsman: &Pointsman, reason: &str) -> f64 {
    let series = format!(
        "pointsman_sessions_closed_total{{service=\"mymaster\",listener=\"replica\",reason=\"{reason}\"}}"
    );
    metric(pointsman, &series).unwrap_or(0.0)
}

pub(super) fn carried(pointsman: &Pointsman) -> f64 {
    let series = "pointsman_sessions_carried_total{service=\"mymaster\",listener=\"replica\"}";
    metric(pointsman, series).unwrap_or(0.0)
}

/// The port of the node that serves a client, if its connection works.
fn try_port_of(client: &mut Client) -> std::io::Result<u16> {
    let info = client.cmd(&["INFO", "server"])?;
    let text = info.text().unwrap_or_else(|| panic!("INFO gave {info:?}"));
    let line = text.lines().find_map(|line| line.strip_prefix("tcp_port:"));
    Ok(line.expect("tcp_port").trim().parse().expect("a port"))
}

/// The port of the node that serves a client.
pub(super) fn port_of(client: &mut Client) -> u16 {
    try_port_of(client).expect("INFO")
}

/// Waits until the target is the new master and the third node replicates from it. Sentinel closes
/// every connection of a node that it reconfigures, in the same transaction, and a reader with a
/// request in flight would notice.
fn wait_moved(pointsman: &Pointsman, cluster: &Cluster, old: SocketAddr) {
    wait_until("the switch", LONG_PATIENCE, || {
        metric(pointsman, "pointsman_target_generation{service=\"mymaster\"}") >= Some(2.0)
    });
    let new = cluster.master().addr();
    let third = cluster
        .nodes()
        .iter()
        .find(|node| ![old, new].contains(&node.addr()))
        .expect("a third node");
    wait_until("the third node to follow the new master", LONG_PATIENCE, || {
        let port = third.info("replication", "master_port").map_err(|error| error.to_string())?;
        if port == new.port().to_string() { Ok(()) } else { Err(port) }
    });
}

/// This many readers, each with the port of its replica.
pub(super) fn readers(at: SocketAddr, count: usize) -> Vec<(u16, Client)> {
    let mut connected = Vec::new();
    for _ in 0..count {
        let mut client = Client::connect(at).expect("a connection");
        connected.push((port_of(&mut client), client));
    }
    connected
}

pub(super) fn spread(readers: &[(u16, Client)]) -> BTreeMap<u16, usize> {
    let mut spread = BTreeMap::new();
    for (port, _) in readers {
        *spread.entry(*port).or_default() += 1;
    }
    spread
}

pub(super) fn replicas(cluster: &Cluster) -> Vec<&Node> {
    let master = cluster.master().addr();
    cluster.nodes().iter().filter(|node| node.addr() != master).collect()
}

#[test]
fn spreads_readers_by_session_count() {
    let cluster = Cluster::builder().start();
    let (pointsman, at) = with_readers(&cluster, &[PATIENT]);
    wait_eligible(&pointsman, 2);
    assert!(pointsman.client().cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    let mut all = readers(at, 20);
    let ports: Vec<u16> = replicas(&cluster).iter().map(|node| node.addr().port()).collect();
    assert_eq!(spread(&all), ports.iter().map(|port| (*port, 10)).collect());
    wait_until("the write to be read", PATIENCE, || {
        all.iter_mut().all(|(_, client)| {
            client.cmd(&["GET", "k"]).is_ok_and(|value| value.text() == Some("v"))
        })
    });
    // Redis refuses a reader's write, and the master is not suspected because of it.
    let refused = all[0].1.cmd(&["SET", "k", "w"]).expect("an answer");
    assert!(refused.error().is_some_and(|text| text.starts_with("READONLY")), "{refused:?}");
    // The readers of one replica leave; the next readers balance that.
    all.retain(|(port, _)| *port == ports[0]);
    wait_until("them to have gone", PATIENCE, || {
        metric(&pointsman, "pointsman_sessions_open{service=\"mymaster\",listener=\"replica\"}")
            == Some(10.0)
    });
    let next = readers(at, 10);
    assert_eq!(spread(&next), BTreeMap::from([(ports[1], 10)]));
    assert_eq!(metric(&pointsman, "pointsman_sessions_open{service=\"mymaster\"}"), Some(0.0));
}

#[test]
fn ejects_and_readmits_hung_replica() {
    let cluster = Cluster::builder().down_after(Duration::from_secs(20)).start();
    let (pointsman, at) = with_readers(&cluster, &[]);
    wait_eligible(&pointsman, 2);
    let nodes = replicas(&cluster);
    let hung = nodes[0].addr().port();
    let mut all = readers(at, 10);
    nodes[0].stop();
    wait_eligible(&pointsman, 1);
    assert!(readers(at, 10).iter().all(|(port, _)| *port != hung));
    // The idle readers of the hung replica move to the other one; no connection ends.
    wait_until("them to be carried over", PATIENCE, || carried(&pointsman) >= 5.0);
    for (_, client) in &mut all {
        client.set_timeout(PATIENCE).expect("a timeout");
        assert_ne!(port_of(client), hung);
    }
    assert!(closed(&pointsman, "replica_ejected") < 0.5);
    nodes[0].cont();
    wait_eligible(&pointsman, 2);
    wait_until("readers on it again", PATIENCE, || {
        readers(at, 4).iter().any(|(port, _)| *port == hung)
    });
}

#[test]
fn ejects_killed_replica_without_errors() {
    let cluster = Cluster::builder().start();
    let (pointsman, at) = with_readers(&cluster, &[PATIENT]);
    wait_eligible(&pointsman, 2);
    let nodes = replicas(&cluster);
    let dead = nodes[0].addr().port();
    nodes[0].kill();
    // From the first moment: a session that the dead replica refuses goes to the other one.
    assert!(readers(at, 30).iter().all(|(port, _)| *port != dead));
    wait_eligible(&pointsman, 1);
    nodes[0].restart();
    wait_eligible(&pointsman, 2);
}

/// Blocks a server for a fifth of a second. A replica that is kept busy by such commands answers
/// probes in between, and reads little of its master's stream. A script that waits for the clock
/// would never end: since Redis 7.2 the time stands still within a script.
const BUSY: [&str; 3] = ["DEBUG", "SLEEP", "0.2"];

/// Keeps a server busy until it is dropped: two clients alternate, so that one request is always in
/// flight.
struct Busy {
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Busy {
    fn keep(server: &Node) -> Self {
        let over = Arc::<AtomicBool>::default();
        let client = |_| {
            let (mut client, over) = (server.client(), Arc::clone(&over));
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    assert!(client.cmd(&BUSY).expect("an answer").is_ok());
                }
            })
        };
        Self { clients: (0..2).map(client).collect(), over }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            let _ = client.join();
        }
    }
}

#[test]
fn moves_readers_of_a_lagging_replica() {
    let cluster = Cluster::builder().down_after(Duration::from_secs(20)).start();
    let (pointsman, at) = with_readers(
        &cluster,
        &["replicas.max_lag_bytes = 4000000", "replicas.max_lag = \"0s\"", PATIENT, DEDICATED],
    );
    wait_eligible(&pointsman, 2);
    let slow = replicas(&cluster)[0];
    let mut on_it = readers(at, 8);
    let slow_port = slow.addr().port();
    on_it.retain(|(port, _)| *port == slow_port);
    let (_, mut reader) = on_it.pop().expect("a reader on it");
    reader.set_timeout(PATIENCE).expect("a timeout");
    let others = Busy::keep(slow);
    let (began, beginning) = std::sync::mpsc::channel();
    let busy = std::thread::spawn(move || {
        assert!(reader.cmd(&["SELECT", "3"]).expect("SELECT").is_ok());
        let mut answers = 0_u32;
        while port_of(&mut reader) == slow_port {
            assert!(reader.cmd(&BUSY).expect("an answer").is_ok());
            answers += 1;
            let _ = began.send(());
        }
        let info = reader.cmd(&["CLIENT", "INFO"]).expect("CLIENT INFO");
        (answers, info.text().is_some_and(|info| info.contains(" db=3 ")))
    });
    beginning.recv_timeout(PATIENCE).expect("it is kept busy");
    let mut writer = pointsman.client();
    // Half a million bytes at a time. The healthy replica may lag by eight such bursts on a busy
    // machine and recovers at once; the other one reads next to nothing.
    let value = "x".repeat(1000);
    let writes = vec![vec!["SET", "k", &value]; 500];
    wait_until("the busy one to be too far behind", PATIENCE, || {
        assert!(writer.pipeline(&writes).expect("SET").iter().all(harness::Value::is_ok));
        if state_of(&pointsman, slow) == "lagging" { Ok(()) } else { Err(states(&pointsman)) }
    });
    // Each accepted request was answered; then the session moved, with the database it had
    // selected.
    assert!(matches!(busy.join().expect("the reader"), (1.., true)));
    drop(others);
    for (_, client) in &mut on_it {
        client.set_timeout(PATIENCE).expect("a timeout");
        wait_until("an idle one to be elsewhere", PATIENCE, || port_of(client) != slow_port);
    }
    // It is idle now, catches up, and becomes eligible again.
    wait_eligible(&pointsman, 2);
    assert!(pointsman.process().log().contains("\"to\":\"lagging\""), "put out for another reason");
    assert!(
        closed(&pointsman, "fenced") + closed(&pointsman, "replica_ejected") < 0.5,
        "nobody was cut off"
    );
}

#[test]
fn ejects_replica_of_another_master() {
    let cluster = Cluster::builder().down_after(Duration::from_secs(20)).start();
    let (pointsman, at) = with_readers(&cluster, &[PATIENT]);
    wait_eligible(&pointsman, 2);
    let nodes = replicas(&cluster);
    // Sentinel would reconfigure it some time later; until then it is a separate master.
    for sentinel in cluster.sentinels() {
        sentinel.stop();
    }
    let stray = nodes[0];
    let mut on_it = readers(at, 4);
    on_it.retain(|(port, _)| *port == stray.addr().port());
    assert!(stray.ask(&["REPLICAOF", "NO", "ONE"]).expect("REPLICAOF").is_ok());
    wait_eligible(&pointsman, 1);
    // It is a master: no more bytes of readers go there.
    for (_, client) in &mut on_it {
        drop(client.cmd(&["SET", "stray", "1"]));
    }
    assert_eq!(stray.ask(&["EXISTS", "stray"]).expect("EXISTS").int(), Some(0));
    assert!(readers(at, 6).iter().all(|(port, _)| *port != stray.addr().port()));
    for sentinel in cluster.sentinels() {
        sentinel.cont();
    }
}

#[test]
fn keeps_readers_off_the_new_master() {
    let cluster = Cluster::builder().start();
    let (pointsman, at) = with_readers(&cluster, &[PATIENT]);
    wait_eligible(&pointsman, 2);
    let mut before = readers(at, 10);
    let failover = cluster.failover();
    wait_moved(&pointsman, &cluster, failover.from);
    let (old, new) = (failover.from.port(), failover.to.port());
    // Until the old master is a replica, the third node has all readers; then both have.
    let mut zombie = 0;
    let begin = Instant::now();
    while eligible(&pointsman) < 2.0 {
        assert!(begin.elapsed() < LONG_PATIENCE, "{}", states(&pointsman));
        let was_master = cluster
            .node_at(failover.from)
            .expect("the old master")
            .role()
            .is_ok_and(|it| it == "master");
        for (port, _) in readers(at, 2) {
            assert_ne!(port, new, "a reader on the new master");
            assert!(port != old || !was_master, "a reader on the zombie");
        }
        zombie += u32::from(was_master);
    }
    assert!(zombie > 0, "this test needs the old master to be a zombie for a while");
    for (_, client) in &mut before {
        let port = try_port_of(client);
        assert!(port.as_ref().map_or(true, |port| *port != new), "a reader is on the new master");
    }
    // The node that became eligible last has the fewest readers.
    let after = spread(&readers(at, 4));
    assert!(after.contains_key(&old) && !after.contains_key(&new), "{after:?}");
}

#[test]
fn serves_readers_without_master() {
    // Long enough to check them before Sentinel promotes one and closes its connections.
    let cluster = Cluster::builder().down_after(Duration::from_secs(6)).start();
    let (pointsman, at) = with_readers(&cluster, &[PATIENT]);
    wait_eligible(&pointsman, 2);
    let old = cluster.master();
    old.kill();
    wait_until("traffic to be stopped", PATIENCE, || {
        metric(&pointsman, "pointsman_target_current_outage_seconds{service=\"mymaster\"}")
            > Some(0.0)
    });
    assert_eq!(readers(at, 6).len(), 6);
    wait_moved(&pointsman, &cluster, old.addr());
    let new = cluster.master().addr().port();
    assert!(readers(at, 6).iter().all(|(port, _)| *port != new));
    assert!(closed(&pointsman, "no_replica") < 0.5, "nobody was turned away");
}

#[test]
fn rejects_readers_or_uses_master_if_empty() {
    let cluster = Cluster::builder().replicas(1).down_after(Duration::from_secs(20)).start();
    let (rejecting, at) = with_readers(&cluster, &["replicas.empty = \"reject\"", PATIENT]);
    let (standing_in, there) = with_readers(&cluster, &["replicas.empty = \"master\"", PATIENT]);
    wait_eligible(&rejecting, 1);
    wait_eligible(&standing_in, 1);
    let replica = replicas(&cluster)[0];
    replica.kill();
    wait_eligible(&rejecting, 0);
    wait_eligible(&standing_in, 0);
    let mut client = Client::connect(at).expect("a connection");
    let said = client.cmd(&["GET", "k"]).expect("an answer");
    assert!(said.error().is_some_and(|text| text.starts_with("MASTERDOWN ")), "{said:?}");
    assert_eq!(client.read_to_end().expect("the end"), (Vec::new(), Ending::Fin));
    wait_until("its session to be counted", PATIENCE, || closed(&rejecting, "no_replica") >= 1.0);
    let master = cluster.master().addr().port();
    let mut on_master = readers(there, 3);
    assert_eq!(spread(&on_master), BTreeMap::from([(master, 3)]));
    // With a replica again they leave the master, between two of their requests.
    replica.restart();
    wait_eligible(&standing_in, 1);
    for (_, client) in &mut on_master {
        client.set_timeout(PATIENCE).expect("a timeout");
        wait_until("a reader to leave the master", PATIENCE, || {
            port_of(client) == replica.addr().port()
        });
    }
    assert_eq!(spread(&readers(there, 3)), BTreeMap::from([(replica.addr().port(), 3)]));
    assert_eq!(standing_in.get("/ready").expect("ready").0, 200);
}
