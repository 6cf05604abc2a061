//! The option `nodes`: what sentinels announce outside of it is not dialled.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness::{Cluster, Node, Pointsman, Signal, Value, alone, wait_until};

use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);

/// The sources of Pointsman's connections to members, as `CLIENT LIST` shows them.
const FROM_POINTSMAN: &str = " addr=127.0.0.1:";

fn alarm(pointsman: &Pointsman) -> Option<f64> {
    metric(pointsman, "pointsman_alarm{service=\"mymaster\",alarm=\"outside_nodes\"}")
}

/// Sentinels dial each other as well, but name themselves otherwise and never begin with HELLO.
fn was_dialled(seen: &Mutex<String>) -> bool {
    let seen = seen.lock().expect("no poison");
    seen.contains("HELLO") || seen.contains("pointsman")
}

fn is_connected_to(node: &Node) -> bool {
    node.ask(&["CLIENT", "LIST"]).expect("CLIENT LIST").to_string().contains(FROM_POINTSMAN)
}

/// Accepts connections and collects what is sent on them.
fn listen(addr: SocketAddr) -> Arc<Mutex<String>> {
    let (listener, seen) =
        (TcpListener::bind(addr).expect("a port"), Arc::<Mutex<String>>::default());
    let shared = Arc::clone(&seen);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let seen = Arc::clone(&shared);
            std::thread::spawn(move || {
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..count]);
                    seen.lock().expect("no poison").push_str(&text);
                }
            });
        }
    });
    seen
}

/// Makes every sentinel list a sentinel at this address.
fn announce(cluster: &Cluster, sentinel: SocketAddr) {
    let (master, id) = (cluster.master().addr(), "b".repeat(40));
    let (ip, port) = (sentinel.ip(), sentinel.port());
    let hello = format!("{ip},{port},{id},0,mymaster,{},{},0", master.ip(), master.port());
    for it in cluster.sentinels() {
        it.ask(&["PUBLISH", "__sentinel__:hello", &hello]).expect("a hello");
    }
}

/// Replaces a text in the configuration, and waits until the change is applied.
pub(crate) fn reload(pointsman: &Pointsman, from: &str, to: &str) {
    let file = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&file).expect("the file");
    assert!(text.contains(from), "{text}");
    std::fs::write(&file, text.replace(from, to)).expect("the file");
    let applied = || metric(pointsman, "pointsman_config_reloads_total{result=\"applied\"}");
    let before = applied();
    pointsman.process().signal(Signal::HUP);
    wait_until("the reload", PATIENCE, || applied() > before);
}

#[test]
fn dials_no_announced_address_outside_nodes() {
    if !alone("nodes::dials_no_announced_address_outside_nodes") {
        return;
    }
    let cluster = Cluster::builder().start_apart();
    let [master, near, outside] = cluster.nodes() else { panic!("three servers") };
    let hostile: SocketAddr = "127.0.66.1:26379".parse().expect("an address");
    let seen = listen(hostile);
    announce(&cluster, hostile);
    let (some, all) = ("\"127.0.100.1\", \"127.0.100.2\", \"127.0.101.0/24\"", "\"127.0.0.0/8\"");
    let pointsman = builder(&cluster)
        .service_line("hold_timeout = \"500ms\"")
        .service_line(&format!("nodes = [{some}]"))
        .start();
    wait_until("both addresses in the alarm", PATIENCE, || alarm(&pointsman) == Some(2.0));
    assert!(pointsman.client().cmd(&["SET", "k", "before"]).expect("SET").is_ok());
    wait_until("the replica in nodes to be probed", PATIENCE, || is_connected_to(near));

    // A failover to the server outside: traffic stops, and nothing is sent to either.
    near.ask(&["CONFIG", "SET", "replica-priority", "0"]).expect("CONFIG");
    wait_until("the priority to be known", PATIENCE, || {
        cluster.sentinels().iter().all(|it| {
            let replicas = it.ask(&["SENTINEL", "REPLICAS", "mymaster"]).expect("REPLICAS");
            let priority = |it: &Value| it.field("slave-priority").and_then(Value::int);
            replicas.items().iter().any(|it| priority(it) == Some(0))
        })
    });
    assert_eq!(cluster.failover().to, outside.addr());
    let refused = pointsman.client().cmd(&["SET", "k", "during"]).expect("an answer");
    assert!(refused.to_string().contains("LOADING"), "{refused}");
    for node in [master, outside] {
        assert_eq!(node.ask(&["GET", "k"]).expect("GET").text(), Some("before"));
    }
    assert!(!is_connected_to(outside));
    assert!(!was_dialled(&seen), "{seen:?}");

    // Both are dialled as soon as they are permitted, so the addresses are right.
    reload(&pointsman, some, all);
    wait_until("the new master to serve", PATIENCE, || {
        let answer = pointsman.client().cmd(&["SET", "k", "after"]);
        answer.is_ok_and(|it| it.is_ok())
            && outside.ask(&["GET", "k"]).is_ok_and(|it| it.text() == Some("after"))
    });
    wait_until("the sentinel to be dialled", PATIENCE, || was_dialled(&seen));
    wait_until("the end of the alarm", PATIENCE, || alarm(&pointsman) == Some(0.0));
}
