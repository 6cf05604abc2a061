//! What identifies a node and what makes it serve: its process, its role and its history. Not the
//! text of its address, and not the word `PONG`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Node, Pointsman, Signal, pause, wait_until};

use crate::replicas::{PATIENCE, port_of, states, wait_eligible, with_readers};
use crate::{metric, pointsman};

/// The stall of the proxy: longer than `stall` of the machine.
const STALL: Duration = Duration::from_millis(1200);

/// Refused requests must not look like a failure of the node to Sentinel in these tests.
const PATIENT_SENTINELS: Duration = Duration::from_secs(120);

fn cluster(replicas: usize, down_after: Duration) -> Cluster {
    Cluster::builder()
        .replicas(replicas)
        .down_after(down_after)
        .redis_line("enable-protected-configs yes")
        .start()
}

/// The node cannot save to its disk any more, and refuses writes and PING.
fn fill_disk(node: &Node) {
    node.ask(&["CONFIG", "SET", "save", "3600 1"]).expect("save points");
    node.ask(&["CONFIG", "SET", "dir", "/proc"]).expect("a directory without files");
    node.ask(&["BGSAVE"]).expect("a fork");
    wait_refusal(node, "MISCONF");
}

fn wait_refusal(node: &Node, word: &str) {
    wait_until(&format!("{} to answer {word}", node.name()), PATIENCE, || {
        match node.ask(&["PING"]) {
            Err(error) if error.to_string().contains(word) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

fn stall(pointsman: &Pointsman) {
    pointsman.process().signal(Signal::STOP);
    pause(STALL);
    pointsman.process().signal(Signal::CONT);
}

fn status(pointsman: &Pointsman) -> serde_json::Value {
    let (_, status) = pointsman.get("/status").expect("status");
    serde_json::from_str(&status).expect("JSON")
}

/// The answer to PING of one node in the status.
fn ping_of(pointsman: &Pointsman, node: &Node) -> String {
    let status = status(pointsman);
    let nodes = status["services"][0]["nodes"].as_array().expect("nodes");
    let it = nodes.iter().find(|it| it["addr"] == node.addr().to_string());
    it.map(|it| it["ping"].to_string()).unwrap_or_default()
}

fn wait_ping(pointsman: &Pointsman, node: &Node, word: &str) {
    wait_until(&format!("{word} in the status"), PATIENCE, || {
        let ping = ping_of(pointsman, node);
        if ping.contains(word) { Ok(()) } else { Err(ping) }
    });
}

fn generation(pointsman: &Pointsman) -> Option<f64> {
    metric(pointsman, "pointsman_target_generation{service=\"mymaster\"}")
}

#[test]
fn serves_master_whose_disk_is_full() {
    let cluster = cluster(0, PATIENT_SENTINELS);
    let master = cluster.master();
    master.ask(&["SET", "k", "v"]).expect("a write");
    fill_disk(master);
    // A new process takes it: reads work, and writes get the server's own refusal.
    let pointsman = pointsman(&cluster);
    let mut client = pointsman.client();
    assert_eq!(client.cmd(&["GET", "k"]).expect("GET").text(), Some("v"));
    let refusal = client.cmd(&["SET", "k", "w"]).expect("an answer");
    assert!(format!("{refusal:?}").contains("MISCONF"), "{refusal:?}");
    wait_ping(&pointsman, master, "misconf");
    // A stall of the proxy does not close the gate for longer than a round trip.
    stall(&pointsman);
    let mut client = pointsman.client();
    let begin = Instant::now();
    assert_eq!(client.cmd(&["GET", "k"]).expect("GET").text(), Some("v"));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(generation(&pointsman), Some(1.0));
}

#[test]
fn passes_script_kill_after_stall() {
    let cluster = cluster(0, PATIENT_SENTINELS);
    let master = cluster.master();
    master.ask(&["CONFIG", "SET", "busy-reply-threshold", "50"]).expect("a limit");
    let pointsman = pointsman(&cluster);
    let mut session = pointsman.client();
    session.cmd(&["SET", "k", "v"]).expect("SET");
    let mut script = master.client();
    script.send(b"*3\r\n$4\r\nEVAL\r\n$17\r\nwhile true do end\r\n$1\r\n0\r\n").expect("sent");
    wait_refusal(master, "BUSY");
    wait_ping(&pointsman, master, "busy");
    stall(&pointsman);
    let mut admin = pointsman.client();
    let begin = Instant::now();
    let killed = admin.cmd(&["SCRIPT", "KILL"]).expect("an answer");
    assert_eq!(killed.text(), Some("OK"), "{killed:?}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    // The server answers the order before it ends the script, and is busy until then.
    assert!(script.read_value().expect("the end of the script").is_error());
    assert_eq!(session.cmd(&["GET", "k"]).expect("GET").text(), Some("v"));
    assert_eq!(generation(&pointsman), Some(1.0));
}

#[test]
fn replicas_with_full_disks_serve_reads() {
    let cluster = cluster(2, Duration::from_secs(2));
    let (pointsman, at) = with_readers(&cluster, &["replicas.empty = \"reject\""]);
    wait_eligible(&pointsman, 2);
    let mut reader = Client::connect(at).expect("a connection");
    let port = port_of(&mut reader);
    cluster.replicas().into_iter().for_each(fill_disk);
    wait_flagged(&cluster);
    for replica in cluster.replicas() {
        wait_ping(&pointsman, replica, "misconf");
    }
    wait_eligible(&pointsman, 2);
    assert_eq!(port_of(&mut reader), port, "the session stayed");
    port_of(&mut Client::connect(at).expect("a connection"));
}

/// Waits until every sentinel considers every replica down.
fn wait_flagged(cluster: &Cluster) {
    wait_until("the sentinels to flag the replicas", PATIENCE, || {
        let flagged = |sentinel: &Node| {
            let replicas = sentinel.ask(&["SENTINEL", "REPLICAS", cluster.name()]).expect("a list");
            let flags = |it: &harness::Value| {
                it.field("flags").and_then(harness::Value::text).unwrap_or("").contains("s_down")
            };
            replicas.items().iter().all(flags)
        };
        if cluster.sentinels().iter().all(flagged) { Ok(()) } else { Err("not all") }
    });
}

#[test]
fn readers_stay_when_all_sentinels_are_lost() {
    let cluster = cluster(2, Duration::from_secs(2));
    let (pointsman, at) = with_readers(&cluster, &["replicas.empty = \"reject\""]);
    wait_eligible(&pointsman, 2);
    let mut reader = Client::connect(at).expect("a connection");
    let port = port_of(&mut reader);
    cluster.sentinels().iter().for_each(Node::kill);
    // Views expire after five seconds, and answers of replicas after some more.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(15) {
        assert_eq!(port_of(&mut reader), port);
        pause(Duration::from_millis(50));
    }
    wait_eligible(&pointsman, 2);
    port_of(&mut Client::connect(at).expect("a connection"));
    assert!(states(&pointsman).contains("eligible"));
}

/// Another spelling of an address, which is a name to everyone but the resolver.
fn spelled(addr: SocketAddr) -> String {
    let SocketAddr::V4(addr) = addr else { panic!("{addr}") };
    let [one, two, three, four] = addr.ip().octets();
    format!("{one}.{two}.{three}.0x{four:x}")
}

fn announce(sentinel: &Node, names: &str) {
    sentinel.ask(&["SENTINEL", "CONFIG", "SET", "announce-hostnames", names]).expect("a setting");
}

#[test]
fn sessions_stay_when_sentinels_announce_names() {
    let cluster = cluster(1, PATIENT_SENTINELS);
    let (master, service) = (cluster.master().addr(), cluster.name());
    let name = spelled(master);
    for sentinel in cluster.sentinels() {
        let ask = |words: &[&str]| sentinel.ask(words).expect("SENTINEL");
        ask(&["SENTINEL", "CONFIG", "SET", "resolve-hostnames", "yes"]);
        ask(&["SENTINEL", "REMOVE", service]);
        ask(&["SENTINEL", "MONITOR", service, &name, &master.port().to_string(), "2"]);
    }
    cluster.wait_whole();
    let pointsman = pointsman(&cluster);
    let (mut multi, mut blocked) = (pointsman.client(), pointsman.client());
    multi.cmd(&["MULTI"]).expect("MULTI");
    multi.cmd(&["SET", "k", "v"]).expect("QUEUED");
    blocked.send(b"*3\r\n$5\r\nBLPOP\r\n$4\r\nlist\r\n$1\r\n0\r\n").expect("sent");
    let named = format!("{name}:{}", master.port());
    for (setting, text) in [("yes", &named), ("no", &master.to_string()), ("yes", &named)] {
        cluster.sentinels().iter().for_each(|sentinel| announce(sentinel, setting));
        wait_until(&format!("the master as {text}"), PATIENCE, || {
            let known = status(&pointsman)["services"][0]["target"].to_string();
            if known.contains(&format!("\"{text}\"")) { Ok(()) } else { Err(known) }
        });
    }
    assert_eq!(generation(&pointsman), Some(1.0), "no commit");
    let done = multi.cmd(&["EXEC"]).expect("the transaction");
    assert!(!done.is_error(), "{done:?}");
    pointsman.client().cmd(&["RPUSH", "list", "item"]).expect("RPUSH");
    let item = blocked.read_value().expect("the element");
    assert_eq!(item.items().get(1).and_then(harness::Value::text), Some("item"), "{item:?}");
}
