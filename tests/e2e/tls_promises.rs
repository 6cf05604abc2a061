//! What plain sessions are promised, for TLS sessions: blocked requests, notifications and output
//! limits through a planned failover, and the end of a process with requests in flight.

use std::time::Duration;

use harness::{Client, Cluster, Ending, Value, encode, wait_until};

use crate::metric;
use crate::tls_clients::Secured;

const PATIENCE: Duration = Duration::from_secs(60);
/// Stops without an accepting phase and asks all sessions at once.
const SHUTDOWN: &str = "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\n\
                        accept_max = \"0s\"\ndrain_spread = \"0s\"\ndrain_timeout = \"30s\"\n";

fn wait_blocked(cluster: &Cluster, clients: &str) {
    wait_until("the requests to block", PATIENCE, || {
        cluster.master().info("clients", "blocked_clients").is_ok_and(|it| it == clients)
    });
}

/// A name in a push, which has a number after it.
#[track_caller]
fn push(client: &mut Client, name: &str) {
    match client.read_value().expect("a push") {
        Value::Push(all) => assert_eq!(all[0].text(), Some(name), "{all:?}"),
        other => panic!("{other:?} and not {name}"),
    }
}

fn notified(mut client: Client) -> Client {
    client.set_timeout(PATIENCE).expect("a timeout");
    assert!(matches!(client.cmd(&["HELLO", "3"]).expect("HELLO"), Value::Map(_)));
    let request = ["CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "none"];
    assert!(client.cmd(&request).expect("an answer").is_ok());
    client
}

#[test]
fn treats_blocked_and_notified_tls_clients_as_plain() {
    let cluster = Cluster::builder().start();
    let secured = Secured::start(&cluster, "", "");
    let plain = || {
        let client = secured.pointsman.client();
        client.set_timeout(PATIENCE).expect("a timeout");
        client
    };
    let mut blocked = [plain(), secured.client()];
    for client in &mut blocked {
        client.send(&encode(&["BLPOP", "queue", "0"])).expect("BLPOP");
    }
    let mut asking = [notified(plain()), notified(secured.client())];
    wait_blocked(&cluster, "2");
    cluster.failover();
    // The old master ends the pops when it is demoted, and the sessions with them: whether an
    // element was removed is not known.
    let outcomes = blocked.map(|mut client| match client.read_value() {
        Ok(reply) => format!("{reply:?}, then {:?}", client.read_to_end().map(|it| it.1)),
        Err(error) => format!("{:?}", error.kind()),
    });
    assert_eq!(outcomes, ["UnexpectedEof", "UnexpectedEof"], "plain, and over TLS");
    for client in &mut asking {
        push(client, "FAILING_OVER");
        push(client, "FAILED_OVER");
        assert!(client.cmd(&["SET", "k", "v"]).expect("an answer").is_ok());
    }
    // New pops block at the new master, and are answered there, in the order in which they block.
    let mut next = [plain(), secured.client()];
    for (client, count) in next.iter_mut().zip(["1", "2"]) {
        client.send(&encode(&["BLPOP", "queue", "0"])).expect("BLPOP");
        wait_blocked(&cluster, count);
    }
    for client in &mut next {
        let pushed = cluster.master().ask(&["LPUSH", "queue", "item"]).expect("LPUSH");
        assert_eq!(pushed.int(), Some(1));
        let popped = client.read_value().expect("the element");
        assert_eq!(popped.items().get(1).and_then(|it| it.text()), Some("item"));
    }
}

#[test]
fn ends_slow_tls_subscriber_at_the_masters_limit() {
    let cluster = Cluster::builder().start();
    let secured = Secured::start(&cluster, "", "");
    let mut kept = secured.client();
    assert_eq!(kept.cmd(&["SELECT", "3"]).expect("SELECT").text(), Some("OK"));
    // On the first master, and on its successor.
    for _ in 0..2 {
        let mut slow = secured.client();
        let confirmed = slow.cmd(&["SUBSCRIBE", "news"]).expect("SUBSCRIBE");
        assert_eq!(confirmed.items().len(), 3);
        let limit = ["CONFIG", "SET", "client-output-buffer-limit", "pubsub 1mb 0 0"];
        assert!(cluster.master().ask(&limit).expect("CONFIG").is_ok());
        let batch = vec![vec!["PUBLISH".to_owned(), "news".to_owned(), "x".repeat(4096)]; 64];
        wait_until("the end by the limit", PATIENCE, || {
            cluster.master().client().pipeline(&batch).expect("PUBLISH")[63].int() == Some(0)
        });
        // Whole messages in order, as far as they were sent, and an announced end.
        let (bytes, ending) = slow.read_to_end().expect("an orderly end");
        assert_eq!(ending, Ending::Fin);
        assert!(bytes.len() > 64 * 4096, "only {} bytes came first", bytes.len());
        assert_eq!(kept.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
        cluster.failover();
        assert_eq!(kept.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
        cluster.wait_whole();
    }
    let carried = "pointsman_sessions_carried_total{service=\"mymaster\"}";
    assert!(metric(&secured.pointsman, carried) >= Some(2.0));
}

#[test]
fn answers_tls_requests_in_flight_before_it_stops() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let secured = Secured::start(&cluster, "", SHUTDOWN);
    let mut idle = secured.client();
    assert_eq!(idle.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    // A reply that is far larger than all buffers, to a client that does not read it yet.
    let value = "x".repeat(48 << 20);
    assert!(idle.cmd(&["SET", "large", &value]).expect("SET").is_ok());
    let mut reading = secured.client();
    reading.send(&encode(&["GET", "large"])).expect("GET");
    // A request that waits at the server, and others after it.
    let mut busy = secured.client();
    let mut requests = encode(&["BLPOP", "later", "0"]);
    (0..100).for_each(|_| requests.extend(encode(&["INCR", "n"])));
    busy.send(&requests).expect("requests");
    wait_blocked(&cluster, "1");
    let header = reading.read_exact(1).expect("the beginning of the reply");
    assert_eq!(header, b"$");

    secured.pointsman.sigterm();
    assert_eq!(idle.read_to_end().expect("an orderly end"), (Vec::new(), Ending::Fin));
    assert!(secured.pointsman.process().is_running(), "it did not wait for the busy clients");
    cluster.master().ask(&["LPUSH", "later", "item"]).expect("LPUSH");
    let popped = busy.read_value().expect("the element");
    assert_eq!(popped.items().get(1).and_then(|it| it.text()), Some("item"));
    for number in 1..=100 {
        assert_eq!(busy.read_value().expect("a reply").int(), Some(number));
    }
    // `close_notify`, then FIN: without the former this is an error.
    assert_eq!(busy.read_to_end().expect("an orderly end"), (Vec::new(), Ending::Fin));
    let (rest, ending) = reading.read_to_end().expect("an orderly end");
    let expected = format!("{}\r\n", value.len()).len() + value.len() + 2;
    assert_eq!((rest.len(), ending), (expected, Ending::Fin));
    assert_eq!(secured.pointsman.wait_exit(PATIENCE).code(), Some(0));
    let log = secured.pointsman.process().log();
    assert!(log.contains("\"drained\":3,\"cut\":0"), "{}", secured.pointsman.process().tail());
}
