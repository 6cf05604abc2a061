//! Sessions on replicas: when a failover reconfigures the replicas, when a replica hangs, and when
//! one has more sessions than the others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Node, Pointsman, Signal, pause, wait_until};

use crate::replicas::{
    LONG_PATIENCE, PATIENCE, PATIENT, carried, closed, port_of, readers, replicas, spread, states,
    wait_eligible, with_readers,
};
use crate::{DEDICATED, builder, metric};

const IDLE: usize = 20;

/// Prints figures of a test that is run by hand.
macro_rules! report {
    ($($word:tt)*) => {{
        #[allow(clippy::print_stderr, reason = "measured on the way, and not judged")]
        { eprintln!($($word)*) }
    }};
}

/// Readers that send requests continuously until they are stopped.
struct Active {
    over: Arc<AtomicBool>,
    longest: Arc<Mutex<Duration>>,
    lost: Arc<AtomicU32>,
    clients: Vec<JoinHandle<u32>>,
}

impl Active {
    fn start(at: SocketAddr, count: usize) -> Self {
        let (over, lost) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let longest = Arc::<Mutex<Duration>>::default();
        let client = |_| {
            let (over, lost, longest) =
                (Arc::clone(&over), Arc::clone(&lost), Arc::clone(&longest));
            std::thread::spawn(move || {
                let connect = || {
                    let client = Client::connect(at).expect("a connection");
                    client.set_timeout(PATIENCE).expect("a timeout");
                    client
                };
                let (mut client, mut answered) = (connect(), 0);
                while !over.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    match client.cmd(&["GET", "k"]) {
                        Ok(value) => assert!(!value.is_error(), "{value:?}"),
                        Err(error) => {
                            assert_ne!(
                                error.kind(),
                                std::io::ErrorKind::WouldBlock,
                                "no answer at all"
                            );
                            lost.fetch_add(1, Ordering::Relaxed);
                            client = connect();
                        }
                    }
                    let mut longest = longest.lock().expect("no panic");
                    *longest = begin.elapsed().max(*longest);
                    drop(longest);
                    answered += 1;
                    pause(Duration::from_millis(2));
                }
                answered
            })
        };
        let clients = (0..count).map(client).collect();
        Self { over, longest, lost, clients }
    }

    /// Answered requests, lost connections, and the longest wait for a reply.
    fn stop(self) -> (u32, u32, Duration) {
        self.over.store(true, Ordering::Relaxed);
        let answered =
            self.clients.into_iter().map(|client| client.join().expect("an active reader")).sum();
        let longest = *self.longest.lock().expect("no panic");
        (answered, self.lost.load(Ordering::Relaxed), longest)
    }
}

/// Waits until all other nodes replicate from the master.
fn wait_followed(cluster: &Cluster) {
    let master = cluster.master().addr();
    for node in cluster.nodes().iter().filter(|node| node.addr() != master) {
        wait_until(&format!("{} to follow the new master", node.name()), LONG_PATIENCE, || {
            let info = |field| node.info("replication", field).map_err(|error| error.to_string());
            let (port, link) = (info("master_port")?, info("master_link_status")?);
            if (port.as_str(), link.as_str()) == (&*master.port().to_string(), "up") {
                Ok(())
            } else {
                Err(port)
            }
        });
    }
}

/// The cause of the master change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Order,
    /// The same while the proxy is stopped, so that its knowledge is from before.
    OrderUnseen,
    Crash,
}

/// Makes another node the master, and waits until all other nodes replicate from it.
fn fail_over(cluster: &Cluster, pointsman: &Pointsman, cause: Cause) {
    match cause {
        Cause::Order => drop(cluster.failover()),
        Cause::OrderUnseen => {
            pointsman.process().signal(Signal::STOP);
            cluster.failover();
        }
        Cause::Crash => {
            let old = cluster.master();
            old.kill();
            wait_until("another master", LONG_PATIENCE, || {
                cluster.current_master_addr().is_ok_and(|it| it != old.addr())
            });
            old.restart();
        }
    }
    wait_followed(cluster);
    if cause == Cause::OrderUnseen {
        pointsman.process().signal(Signal::CONT);
    }
}

/// A failover with this many replicas, with idle and active readers. No idle reader may notice, and
/// an active one only if its request was in flight when Sentinel closed the connection.
fn fails_over_under_readers(count: usize, parallel_syncs: usize, cause: Cause) {
    let syncs = format!("sentinel parallel-syncs mymaster {parallel_syncs}");
    let cluster = Cluster::builder().replicas(count).sentinel_line(&syncs).start();
    // With one replica the master has to serve reads while that replica is promoted.
    let empty =
        if count == 1 { "replicas.empty = \"master\"" } else { "replicas.empty = \"reject\"" };
    let (pointsman, at) = with_readers(&cluster, &[PATIENT, empty]);
    wait_eligible(&pointsman, u32::try_from(count).expect("a few"));
    let mut idle = readers(at, IDLE);
    for (_, client) in &mut idle {
        assert!(client.cmd(&["SELECT", "3"]).expect("SELECT").is_ok());
    }
    // A request that waits while the proxy is stopped has waited for longer than hold_timeout.
    let active = Active::start(at, if cause == Cause::OrderUnseen { 0 } else { 4 });
    fail_over(&cluster, &pointsman, cause);
    wait_eligible(&pointsman, u32::try_from(count).expect("a few"));
    let (answered, lost, longest) = active.stop();
    let new = cluster.master().addr().port();
    let mut broken = 0;
    for (_, client) in &mut idle {
        client.set_timeout(PATIENCE).expect("a timeout");
        match client.cmd(&["CLIENT", "INFO"]) {
            Ok(info) => {
                assert!(info.text().is_some_and(|info| info.contains(" db=3 ")), "{info:?}");
                wait_until("a reader to leave the master", PATIENCE, || port_of(client) != new);
            }
            Err(_) => broken += 1,
        }
    }
    let ends: f64 = ["upstream_closed", "upstream_reset", "fenced", "replica_ejected"]
        .map(|it| closed(&pointsman, it))
        .iter()
        .sum();
    report!(
        "{cause:?}, {count} replicas, parallel-syncs {parallel_syncs}: {broken} of {IDLE} idle readers closed, {lost} of {answered} requests \
         of active ones lost, longest wait {longest:?}, {} sessions carried, {ends} ended",
        carried(&pointsman)
    );
    assert_eq!(broken, 0, "idle readers were closed; {}", states(&pointsman));
    assert!(
        (ends - f64::from(lost)).abs() < 0.5,
        "{ends} sessions ended, and {lost} had a request under way"
    );
    assert!(
        lost <= 4 * u32::try_from(count).expect("a few"),
        "{lost} lost for one kick of each replica"
    );
}

#[test]
fn keeps_idle_readers_through_planned_failover() {
    fails_over_under_readers(2, 10, Cause::Order);
}

#[test]
fn keeps_readers_while_replicas_are_repointed_in_turn() {
    fails_over_under_readers(3, 1, Cause::Order);
}

#[test]
fn keeps_idle_readers_through_crash_of_master() {
    fails_over_under_readers(2, 1, Cause::Crash);
}

#[test]
fn keeps_idle_readers_where_the_master_stands_in() {
    fails_over_under_readers(1, 1, Cause::Order);
}

#[test]
fn keeps_idle_readers_through_unseen_failover() {
    fails_over_under_readers(2, 1, Cause::OrderUnseen);
}

#[test]
fn closes_a_reader_that_an_operator_kills() {
    let cluster = Cluster::builder().down_after(Duration::from_secs(20)).start();
    // The server lists one connection of those that share.
    let (pointsman, at) = with_readers(&cluster, &[PATIENT, DEDICATED]);
    wait_eligible(&pointsman, 2);
    let mut all = readers(at, 6);
    let nodes = replicas(&cluster);
    let there = nodes[0].addr().port();
    // Its replica has as many sessions as the other one, which would therefore receive it.
    let killed = all.iter().position(|(port, _)| *port == there).expect("a reader on it");
    let (_, mut client) = all.remove(killed);
    assert!(client.cmd(&["CLIENT", "SETNAME", "victim"]).expect("SETNAME").is_ok());
    let list = nodes[0].ask(&["CLIENT", "LIST"]).expect("CLIENT LIST");
    let line = list
        .text()
        .expect("text")
        .lines()
        .find(|line| line.contains("name=victim"))
        .expect("the victim");
    let id = line.split(' ').find_map(|field| field.strip_prefix("id=")).expect("an id");
    assert_eq!(nodes[0].ask(&["CLIENT", "KILL", "ID", id]).expect("CLIENT KILL").int(), Some(1));
    client.set_timeout(PATIENCE).expect("a timeout");
    client.read_to_end().expect("the end that the operator wanted");
    wait_until("its end to be counted", PATIENCE, || closed(&pointsman, "upstream_closed") >= 1.0);
    assert!(carried(&pointsman) < 0.5, "the kick was not obeyed");
    assert_eq!(spread(&all).values().sum::<usize>(), 5);
    assert!(
        all.iter_mut().all(|(port, client)| port_of(client) == *port),
        "nobody else has noticed"
    );
}

/// Readers on this node with a request in flight that is not answered.
fn asks_in_vain(at: SocketAddr, node: &Node, requests: &[&[&str]]) -> Vec<Client> {
    let mut on_it: Vec<Client> = readers(at, requests.len() * 4)
        .into_iter()
        .filter(|(port, _)| *port == node.addr().port())
        .map(|(_, client)| client)
        .take(requests.len())
        .collect();
    node.stop();
    for (client, request) in on_it.iter_mut().zip(requests) {
        client.send(&harness::encode(request)).expect("a request");
        client.set_timeout(PATIENCE).expect("a timeout");
    }
    assert_eq!(on_it.len(), requests.len());
    on_it
}

#[test]
fn ends_requests_on_a_hung_replica_within_the_bound() {
    let cluster = Cluster::builder().down_after(Duration::from_secs(20)).start();
    let (pointsman, at) = with_readers(&cluster, &["silent_timeout = \"1s\"", DEDICATED]);
    wait_eligible(&pointsman, 2);
    let hung = replicas(&cluster)[0];
    let waiting =
        asks_in_vain(at, hung, &[&["GET", "k"], &["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]]);
    let begin = Instant::now();
    wait_eligible(&pointsman, 1);
    for mut client in waiting {
        let (said, _) = client.read_to_end().expect("the end");
        assert!(said.is_empty(), "{said:?}");
    }
    report!("requests on a hung replica ended after {:?}", begin.elapsed());
    wait_until("their ends to be counted", PATIENCE, || {
        closed(&pointsman, "target_unresponsive") >= 2.0
    });
    assert!(
        closed(&pointsman, "target_unresponsive") < 2.5,
        "sessions that were owed nothing ended as well"
    );
    hung.cont();
    wait_eligible(&pointsman, 2);
}

#[test]
fn ends_requests_on_a_hung_master_once_superseded() {
    let cluster = Cluster::builder().start();
    // A first request of a client that shares is not yet in flight.
    let pointsman = builder(&cluster).service_line(DEDICATED).start();
    let requests: [&[&str]; 2] = [&["GET", "k"], &["BLPOP", "l", "0"]];
    let mut waiting: Vec<Client> = requests.iter().map(|_| pointsman.client()).collect();
    let mut quiet = pointsman.client();
    assert!(quiet.cmd(&["SELECT", "3"]).expect("SELECT").is_ok());
    let old = cluster.master();
    // The blocking request is in flight before the node hangs, the other one after.
    waiting[1].send(&harness::encode(requests[1])).expect("a request");
    wait_until("it to block", PATIENCE, || {
        old.info("clients", "blocked_clients").is_ok_and(|count| count == "1")
    });
    old.stop();
    waiting[0].send(&harness::encode(requests[0])).expect("a request");
    let begin = Instant::now();
    for client in &mut waiting {
        client.set_timeout(LONG_PATIENCE).expect("a timeout");
        let (said, _) = client.read_to_end().expect("the end");
        assert!(said.is_empty(), "{said:?}");
    }
    report!("requests on a hung master ended after {:?}", begin.elapsed());
    quiet.set_timeout(LONG_PATIENCE).expect("a timeout");
    let info = quiet.cmd(&["CLIENT", "INFO"]).expect("the quiet one goes to the new master");
    assert!(info.text().is_some_and(|info| info.contains(" db=3 ")), "{info:?}");
    old.cont();
}

fn moved(pointsman: &Pointsman) -> f64 {
    let series = "pointsman_sessions_rebalanced_total{service=\"mymaster\",listener=\"replica\"}";
    metric(pointsman, series).unwrap_or(0.0)
}

#[test]
fn shares_readers_again_after_a_readmission() {
    let cluster = Cluster::builder().down_after(Duration::from_secs(20)).start();
    // A reader that shares and rests keeps its replica until it asks again.
    let lines = ["replicas.rebalance_per_second = 20", DEDICATED];
    let (pointsman, at) = with_readers(&cluster, &lines);
    wait_eligible(&pointsman, 2);
    let mut all = readers(at, 16);
    let nodes = replicas(&cluster);
    // A session that cannot be moved stays.
    let bound_to = nodes[1].addr().port();
    let at_bound = all.iter().position(|(port, _)| *port == bound_to).expect("a reader there");
    assert!(all[at_bound].1.cmd(&["MULTI"]).expect("MULTI").is_ok());
    nodes[0].stop();
    wait_eligible(&pointsman, 1);
    wait_until("all to be on the other replica", PATIENCE, || carried(&pointsman) >= 8.0);
    nodes[0].cont();
    wait_eligible(&pointsman, 2);
    let begin = Instant::now();
    wait_until("equal shares", PATIENCE, || {
        if moved(&pointsman) >= 8.0 { Ok(()) } else { Err(states(&pointsman)) }
    });
    report!("shares were equal {:?} after the readmission", begin.elapsed());
    let (_, bound) = &mut all[at_bound];
    assert_eq!(bound.cmd(&["PING"]).expect("PING").text(), Some("QUEUED"));
    assert_eq!(bound.cmd(&["EXEC"]).expect("EXEC").items().len(), 1);
    for (port, client) in &mut all {
        client.set_timeout(PATIENCE).expect("a timeout");
        *port = port_of(client);
    }
    assert_eq!(
        spread(&all),
        nodes.iter().map(|node| (node.addr().port(), 8)).collect::<BTreeMap<_, _>>()
    );
    assert_eq!(all[at_bound].0, bound_to);
    assert!((moved(&pointsman) - 8.0).abs() < 0.5, "more were moved than necessary");
    let ends: f64 = ["upstream_closed", "replica_ejected", "dial_failed"]
        .map(|it| closed(&pointsman, it))
        .iter()
        .sum();
    assert!(ends < 0.5, "a session was closed for it");
}
