//! Writes that replicas confirm before their clients hear of them: what is lost when their master
//! dies, what clients receive instead, and what stays as it is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Ending, Pointsman, Value, pause, wait_until};

use crate::nodes::reload;
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);
const BOTH: [&str; 2] = ["upstream = \"dedicated\"", "upstream = \"shared\""];
const WRITERS: usize = 16;

/// While replicas may still have to connect, writes wait for `hold_timeout`.
fn durable(cluster: &Cluster, mode: &str, confirmed: (u8, &str)) -> Pointsman {
    durable_with(cluster, mode, confirmed.0, confirmed.1, "")
}

/// With these sections besides.
fn durable_with(
    cluster: &Cluster,
    mode: &str,
    replicas: u8,
    hold: &str,
    sections: &str,
) -> Pointsman {
    builder(cluster)
        .service_line(mode)
        .service_line(&format!("hold_timeout = \"{hold}\""))
        .service_line(&format!("durability.replicas = {replicas}"))
        .service_line("durability.timeout = \"300ms\"")
        .lines(sections)
        .start()
}

fn cluster() -> Cluster {
    Cluster::builder().replicas(2).sentinels(3).down_after(Duration::from_millis(800)).start()
}

/// Waits until the master has a blocked client.
#[track_caller]
fn wait_blocked(cluster: &Cluster) {
    wait_until("a blocked client", PATIENCE, || {
        cluster.master().info("clients", "blocked_clients").is_ok_and(|count| count == "1")
    });
}

fn dials(pointsman: &Pointsman) -> f64 {
    metric(pointsman, "pointsman_dials_total{service=\"mymaster\"}").expect("a number")
}

fn ended(pointsman: &Pointsman, reason: &str) -> f64 {
    let name = "pointsman_sessions_closed_total";
    let series = format!("{name}{{service=\"mymaster\",reason=\"{reason}\"}}");
    metric(pointsman, &series).unwrap_or(0.0)
}

fn not_confirmed(pointsman: &Pointsman) -> f64 {
    metric(pointsman, "pointsman_unconfirmed_writes_total{service=\"mymaster\"}").expect("a number")
}

/// Clients that each append ascending numbers to a list of their own.
struct Writers {
    ends: Arc<AtomicBool>,
    /// The acknowledged numbers of each.
    acknowledged: Arc<Vec<Mutex<Vec<u64>>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(pointsman: &Pointsman) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let acknowledged: Arc<Vec<Mutex<Vec<u64>>>> =
            Arc::new((0..WRITERS).map(|_| Mutex::default()).collect());
        let addr = pointsman.addr();
        let begin = |writer: usize| {
            let (ends, acknowledged) = (Arc::clone(&ends), Arc::clone(&acknowledged));
            std::thread::spawn(move || {
                let mut number = 0;
                while !ends.load(Ordering::Relaxed) {
                    let Ok(mut client) = Client::connect_within(addr, PATIENCE) else { continue };
                    while !ends.load(Ordering::Relaxed) {
                        number += 1;
                        let words = ["RPUSH".to_owned(), format!("w:{writer}"), number.to_string()];
                        match client.cmd(&words) {
                            Ok(Value::Int(_)) => acknowledged[writer].lock().unwrap().push(number),
                            Ok(_) => {}
                            Err(_) => break,
                        }
                    }
                }
            })
        };
        let threads = (0..WRITERS).map(begin).collect();
        Self { ends, acknowledged, threads }
    }

    fn counts(&self) -> Vec<usize> {
        self.acknowledged.iter().map(|it| it.lock().unwrap().len()).collect()
    }

    /// Waits until each writer has had this many `more` writes acknowledged.
    #[track_caller]
    fn wait_for(&self, more: usize) {
        let before = self.counts();
        wait_until("writes to be acknowledged", PATIENCE, || {
            self.counts().iter().zip(&before).all(|(now, before)| *now >= before + more)
        });
    }

    /// Ends them. Returns how many acknowledged numbers the master does not have.
    fn end(self, cluster: &Cluster) -> usize {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a writer");
        }
        let mut client = cluster.master().client();
        let missing = self.acknowledged.iter().enumerate().map(|(writer, numbers)| {
            let words = ["LRANGE".to_owned(), format!("w:{writer}"), "0".into(), "-1".into()];
            let found = client.cmd(&words).expect("a list");
            let found: BTreeSet<u64> = found
                .items()
                .iter()
                .filter_map(|it| it.text().and_then(|text| text.parse().ok()))
                .collect();
            numbers.lock().unwrap().iter().filter(|number| !found.contains(number)).count()
        });
        missing.sum()
    }
}

/// Kills a master that has been cut off from its replicas for a while, at full speed. Returns how
/// many acknowledged writes are lost.
fn lost_with_master(mode: &str, replicas: u8) -> usize {
    let cluster = cluster();
    let pointsman = durable(&cluster, mode, (replicas, "30s"));
    let writers = Writers::start(&pointsman);
    writers.wait_for(20);
    let (old, others) = (cluster.master(), cluster.replicas());
    others.iter().for_each(|node| node.stop());
    // What was sent to a stopped replica would still be read by it.
    old.ask(&["CLIENT", "KILL", "TYPE", "replica"]).expect("a reply");
    pause(Duration::from_millis(400));
    old.kill();
    others.iter().for_each(|node| node.cont());
    wait_until("a new master", PATIENCE, || {
        cluster.current_master_addr().is_ok_and(|addr| addr != old.addr())
    });
    writers.wait_for(5);
    writers.end(&cluster)
}

#[test]
fn loses_no_confirmed_write_when_its_master_dies() {
    for mode in BOTH {
        assert_eq!(lost_with_master(mode, 1), 0, "{mode}");
    }
}

/// The test above can fail: without confirmation, the same fault loses writes.
#[test]
fn loses_writes_without_confirmation() {
    assert!(lost_with_master(BOTH[0], 0) > 0);
}

/// Writes that arrive while replicas are asked are confirmed by the next `WAIT` together.
#[test]
fn confirms_writes_of_many_clients_at_once() {
    let cluster = cluster();
    let pointsman = durable_with(&cluster, BOTH[1], 1, "30s", "[process]\nworkers = 1");
    let mut clients: Vec<Client> = (0..WRITERS).map(|_| pointsman.client()).collect();
    let set = |client: &mut Client| client.cmd(&["SET", "k", "v"]).expect("a reply").is_ok();
    assert!(clients.iter_mut().all(set));
    let waits = || {
        let line = cluster.master().info("commandstats", "cmdstat_wait").expect("a count");
        let count = line.strip_prefix("calls=").and_then(|it| it.split_once(','));
        count.and_then(|(count, _)| count.parse::<u64>().ok()).expect("a number")
    };
    let (before, replicas) = (waits(), cluster.replicas());
    replicas.iter().for_each(|node| node.stop());
    for client in &mut clients {
        client.send(&harness::encode(&["SET", "k", "v"])).expect("sent");
        pause(Duration::from_millis(10));
    }
    replicas.iter().for_each(|node| node.cont());
    assert!(clients.iter_mut().all(|it| it.read_value().expect("a reply").is_ok()));
    assert_eq!(waits() - before, 2, "one for the first write, and one for all others");
}

#[test]
fn keeps_writes_through_a_planned_failover() {
    for mode in BOTH {
        let cluster = cluster();
        let pointsman = durable(&cluster, mode, (1, "30s"));
        let writers = Writers::start(&pointsman);
        writers.wait_for(20);
        let began = Instant::now();
        cluster.failover();
        writers.wait_for(20);
        assert!(began.elapsed() < Duration::from_secs(20), "{mode}: held for lost writes");
        assert_eq!((writers.end(&cluster), not_confirmed(&pointsman)), (0, 0.0), "{mode}");
    }
}

#[test]
fn answers_with_an_error_without_enough_replicas() {
    for mode in BOTH {
        let cluster = cluster();
        let pointsman = durable(&cluster, mode, (1, "300ms"));
        let mut client = pointsman.client();
        assert!(client.cmd(&["SET", "k", "1"]).expect("a reply").is_ok());
        let replicas = cluster.replicas();
        replicas.iter().for_each(|node| node.stop());
        let commands =
            [vec!["GET", "k"], vec!["INCR", "k"], vec!["LPUSH", "k", "v"], vec!["GET", "k"]];
        let replies = client.pipeline(&commands).expect("replies");
        replicas.iter().for_each(|node| node.cont());
        assert_eq!(replies[0].text(), Some("1"), "{mode}");
        assert!(replies[1].error().is_some_and(|it| it.starts_with("NOREPLICAS ")), "{replies:?}");
        assert!(replies[2].error().is_some_and(|it| it.starts_with("WRONGTYPE ")), "{replies:?}");
        assert_eq!(replies[3].text(), Some("2"), "{mode}: it was made");
        assert_eq!(not_confirmed(&pointsman), 1.0);
        assert!(client.cmd(&["INCR", "k"]).expect("a reply").int() == Some(3), "{mode}");
    }
}

/// On a shared connection, readers do not wait for as long as writers do.
#[test]
fn serves_readers_while_writes_wait() {
    let cluster = cluster();
    let pointsman = durable_with(&cluster, BOTH[1], 1, "20s", "[process]\nworkers = 1");
    let (mut writer, mut reader) = (pointsman.client(), pointsman.client());
    assert!(writer.cmd(&["SET", "k", "v"]).expect("a reply").is_ok());
    assert_eq!(reader.cmd(&["GET", "k"]).expect("a reply").text(), Some("v"));
    let replicas = cluster.replicas();
    replicas.iter().for_each(|node| node.stop());
    writer.send(&harness::encode(&["SET", "k", "w"])).expect("sent");
    pause(Duration::from_millis(50));
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(reader.cmd(&["GET", "k"]).expect("a reply").text(), Some("w"));
    }
    let took = began.elapsed();
    replicas.iter().for_each(|node| node.cont());
    assert!(writer.read_value().expect("a reply").is_ok());
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// Many libraries write all of a pipeline before they read a reply. The sockets hold a part of it.
#[test]
fn serves_a_pipeline_that_is_written_before_it_is_read() {
    const PAIRS: usize = 1500;
    let cluster = cluster();
    for mode in BOTH {
        let pointsman = durable(&cluster, mode, (1, "20s"));
        let mut client = pointsman.client();
        let value = "x".repeat(10_000);
        let (set, get) = (["SET", "k", value.as_str()], ["GET", "k"]);
        client
            .send(&[harness::encode(&set), harness::encode(&get)].concat().repeat(PAIRS))
            .expect("sent");
        for pair in 0..PAIRS {
            assert!(client.read_value().expect("a reply").is_ok(), "{mode}: {pair}");
            let read = client.read_value().expect("a reply");
            assert_eq!(read.text(), Some(value.as_str()), "{mode}: {pair}");
        }
        assert_eq!(client.cmd(&["STRLEN", "k"]).expect("a reply").int(), Some(10_000), "{mode}");
    }
}

/// A command with a wrong number of words opens and ends no transaction, but for `EXEC`.
#[test]
fn follows_transactions_beside_malformed_requests() {
    let cluster = cluster();
    let pipelines: [&[&[&str]]; 5] = [
        &[&["MULTI", "x"], &["SET", "k", "1"], &["DISCARD", "x"], &["RESET", "x"], &["GET", "k"]],
        &[&["MULTI"], &["SET", "k", "2"], &["DISCARD", "x"], &["SET", "k", "3"], &["EXEC"]],
        &[&["MULTI"], &["SET", "k", "4"], &["RESET", "x"], &["SET", "k", "5"], &["EXEC"]],
        &[&["MULTI"], &["SET", "k", "6"], &["MULTI", "x"], &["SET", "k", "7"], &["DISCARD"]],
        &[&["MULTI"], &["SET", "k", "8"], &["EXEC", "x"], &["SET", "k", "9"], &["EXEC"]],
    ];
    for mode in BOTH {
        let pointsman = durable(&cluster, mode, (1, "20s"));
        let (mut client, mut direct) = (pointsman.client(), cluster.master().client());
        for pipeline in pipelines {
            let requests: Vec<_> = pipeline.iter().map(|words| words.to_vec()).collect();
            let expected = direct.pipeline(&requests).expect("replies");
            let replies = client.pipeline(&requests).expect("replies");
            assert_eq!(replies, expected, "{mode}: {requests:?}");
            let one_by_one = |words: &Vec<&str>| client.cmd(words).expect("a reply");
            let replies: Vec<_> = requests.iter().map(one_by_one).collect();
            assert_eq!(replies, expected, "{mode}: {requests:?}");
            assert!(client.cmd(&["SET", "k", "z"]).expect("a reply").is_ok(), "{mode}");
        }
        assert_eq!((ended(&pointsman, "not_confirmed"), not_confirmed(&pointsman)), (0.0, 0.0));
    }
}

/// A server that reads an end drops a client that waits for replicas.
#[test]
fn answers_clients_that_have_ended_their_direction() {
    let cluster = cluster();
    for mode in BOTH {
        let pointsman = durable(&cluster, mode, (1, "20s"));
        let pipelines: [&[&[&str]]; 4] = [
            &[&["SET", "k", "1"]],
            &[&["MULTI"], &["INCR", "k"], &["EXEC"]],
            // These do not block.
            &[&["XREAD", "STREAMS", "st", "0"], &["SET", "k", "1"]],
            &[&["RPUSH", "list", "a"], &["BLPOP", "list", "1"], &["BLPOP", "list", "0.01"]],
        ];
        for requests in pipelines {
            let mut client = pointsman.client();
            let bytes: Vec<u8> = requests.iter().flat_map(|it| harness::encode(it)).collect();
            client.send(&[bytes, harness::encode(&["GET", "k"])].concat()).expect("sent");
            client.shutdown_write().expect("an end");
            let (replies, ending) = client.read_to_end().expect("an end");
            assert!(
                replies.ends_with(b"\r\n$1\r\n1\r\n") || replies.ends_with(b"\r\n$1\r\n2\r\n"),
                "{mode}: {}",
                replies.escape_ascii()
            );
            assert_eq!(ending, Ending::Fin, "{mode}");
        }
    }
}

/// A session whose server has ended the connection waits for no answer to its `WAIT`: it would keep
/// its place for half a minute.
#[test]
fn ends_with_its_server_while_a_write_waits() {
    let cluster = cluster();
    cluster.replicas().iter().for_each(|it| it.stop());
    for mode in BOTH {
        let pointsman = durable(&cluster, mode, (2, "30s"));
        let mut clients: Vec<Client> = (0..4).map(|_| pointsman.client()).collect();
        for client in &mut clients {
            let requests = [harness::encode(&["SET", "k", "v"]), harness::encode(&["GET", "k"])];
            client.send(&requests.concat()).expect("requests");
        }
        let open =
            || metric(&pointsman, "pointsman_sessions_open{service=\"mymaster\"}").unwrap_or(0.0);
        wait_until("the clients", PATIENCE, || open() >= 4.0);
        pause(Duration::from_millis(300));
        let killed = cluster.master().client().cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
        assert!(killed.expect("a reply").int().is_some_and(|it| it > 0), "{mode}");
        drop(clients);
        wait_until("the end of the sessions", Duration::from_secs(8), || open() < 1.0);
    }
    cluster.replicas().iter().for_each(|it| it.cont());
}

#[test]
fn closes_instead_of_an_error_if_configured() {
    let cluster = cluster();
    let pointsman = builder(&cluster)
        .service_line("hold_timeout = \"200ms\"")
        .service_line("durability.replicas = 2")
        .service_line("durability.timeout = \"200ms\"")
        .service_line("durability.on_timeout = \"close\"")
        .start();
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "k", "1"]).expect("a reply").is_ok());
    let replica = cluster.replicas()[0];
    replica.stop();
    // Reads need no replica.
    assert_eq!(client.cmd(&["GET", "k"]).expect("a reply").text(), Some("1"));
    assert!(client.cmd(&["SET", "k", "2"]).is_err());
    replica.cont();
    wait_until("the end to be counted", PATIENCE, || ended(&pointsman, "not_confirmed") == 1.0);
    assert_eq!(ended(&pointsman, "upstream_reset"), 0.0);
}

/// Sentinel promotes a replica that lacks what the other one has confirmed, because that one must
/// not be promoted.
#[test]
fn waits_before_it_follows_a_replica_without_confirmed_writes() {
    let cluster = cluster();
    let pointsman = durable(&cluster, BOTH[0], (1, "4s"));
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "k", "1"]).expect("a reply").is_ok());
    let gauge = |name: &str| metric(&pointsman, name).expect("a number");
    let spare = "pointsman_durability_spare_replicas{service=\"mymaster\"}";
    wait_until("a count of replicas", PATIENCE, || metric(&pointsman, spare) == Some(1.0));
    let (old, replicas) = (cluster.master(), cluster.replicas());
    replicas[0].ask(&["CONFIG", "SET", "replica-priority", "0"]).expect("a reply");
    cluster.look_often();
    pause(Duration::from_millis(1500));
    replicas[1].stop();
    // What was sent to a stopped replica would still be read by it.
    old.ask(&["CLIENT", "KILL", "TYPE", "replica"]).expect("a reply");
    wait_until("the other replica", PATIENCE, || {
        old.info("replication", "connected_slaves").is_ok_and(|count| count == "1")
    });
    for number in 0..100 {
        assert!(client.cmd(&["SET", "k", &number.to_string()]).expect("a reply").is_ok());
    }
    // As long as the prober may need to see the offset.
    pause(Duration::from_millis(1200));
    old.kill();
    replicas[1].cont();
    let alarm = "pointsman_alarm{service=\"mymaster\",alarm=\"lacks_confirmed\"}";
    wait_until("the alarm", PATIENCE, || gauge(alarm) == 1.0);
    assert_eq!(gauge("pointsman_gate_closed{service=\"mymaster\"}"), 1.0);
    assert_eq!(replicas[1].role().expect("a role"), "master");
    wait_until("the gate to open", PATIENCE, || gauge(alarm) == 0.0);
    let master = cluster.current_master_addr().expect("a master");
    assert_eq!(master, replicas[1].addr());
    wait_until("a reply", PATIENCE, || {
        let mut client = pointsman.client();
        client.cmd(&["GET", "k"]).is_ok_and(|reply| reply.text() == Some("1"))
    });
}

/// A value that a blocked client was given is confirmed, too. No server waits for it by itself.
#[test]
fn confirms_what_a_blocked_client_was_given() {
    let cluster = cluster();
    let pointsman = durable(&cluster, BOTH[0], (1, "300ms"));
    let mut blocked = pointsman.client();
    assert!(blocked.cmd(&["SET", "k", "v"]).expect("a reply").is_ok());
    blocked.send(&harness::encode(&["BLPOP", "q", "5"])).expect("sent");
    wait_blocked(&cluster);
    cluster.replicas().iter().for_each(|node| node.stop());
    cluster.master().ask(&["RPUSH", "q", "x"]).expect("a reply");
    let reply = blocked.read_value().expect("a reply");
    cluster.replicas().iter().for_each(|node| node.cont());
    assert!(reply.error().is_some_and(|it| it.starts_with("NOREPLICAS ")), "{reply:?}");
}

/// Everything that clients do beside plain writes works as without confirmation.
pub(super) fn serve_every_kind_of_request(cluster: &Cluster, sections: &str) {
    for mode in BOTH {
        let pointsman = durable_with(cluster, mode, 2, "10s", sections);
        let mut client = pointsman.client();
        let mut other = pointsman.client();
        cluster.master().ask(&["FLUSHALL"]).expect("a reply");
        let ok = |value: Value| assert!(value.is_ok(), "{mode}: {value:?}");
        ok(client.cmd(&["MULTI"]).expect("a reply"));
        let queued = client.cmd(&["INCR", "n"]).expect("a reply");
        assert_eq!(queued.text(), Some("QUEUED"));
        assert_eq!(client.cmd(&["EXEC"]).expect("a reply").items()[0].int(), Some(1));
        // The client's own WAIT has its own answer.
        ok(client.cmd(&["SET", "k", "v"]).expect("a reply"));
        assert_eq!(client.cmd(&["WAIT", "2", "1000"]).expect("a reply").int(), Some(2), "{mode}");
        // A blocked client gets what another one writes.
        client.send(&harness::encode(&["BLPOP", "q", "5"])).expect("sent");
        wait_blocked(cluster);
        assert_eq!(other.cmd(&["RPUSH", "q", "x"]).expect("a reply").int(), Some(1));
        assert_eq!(client.read_value().expect("a reply").items()[1].text(), Some("x"));
        assert_eq!(
            client.cmd(&["EVAL", "return redis.call('INCR', 'n')", "0"]).expect("a reply").int(),
            Some(2)
        );
        // A large value, and a pipeline.
        let large = "x".repeat(3 << 20);
        ok(other.cmd(&["SET", "large", &large]).expect("a reply"));
        assert_eq!(
            other.cmd(&["GET", "large"]).expect("a reply").text().map(str::len),
            Some(3 << 20)
        );
        let commands: Vec<Vec<&str>> = (0..1000).map(|_| vec!["INCR", "many"]).collect();
        let replies = other.pipeline(&commands).expect("replies");
        assert!((1..).zip(&replies).all(|(n, reply)| reply.int() == Some(n)), "{mode}");
        assert!(!other.cmd(&["SUBSCRIBE", "news"]).expect("a reply").is_error());
        assert_eq!(client.cmd(&["PUBLISH", "news", "hi"]).expect("a reply").int(), Some(1));
        assert_eq!(other.read_value().expect("a message").items()[2].text(), Some("hi"));
        assert_eq!(not_confirmed(&pointsman), 0.0);
    }
}

#[test]
fn serves_every_kind_of_request_with_confirmation() {
    serve_every_kind_of_request(&cluster(), "");
}

/// Requests that cannot be followed end their session, and cost Redis no further connection. They
/// do not end others.
#[test]
fn ends_sessions_that_cannot_be_followed() {
    for mode in BOTH {
        let cluster = cluster();
        let pointsman = durable(&cluster, mode, (1, "10s"));
        let mut other = pointsman.client();
        assert!(other.cmd(&["SET", "k", "v"]).expect("a reply").is_ok());
        for request in [
            &b"*1\r\n$-5\r\nGET\r\n"[..],
            b"*1\r\n$5\r\nMULTI\r\n*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n",
        ] {
            let before = dials(&pointsman);
            let mut client = pointsman.client();
            client.set_timeout(PATIENCE).expect("a timeout");
            client.send(request).expect("sent");
            client.read_to_end().expect("an end");
            let after = dials(&pointsman);
            assert!(after <= before + 1.0, "{mode}: {} dials", after - before);
        }
        assert_eq!(other.cmd(&["GET", "k"]).expect("a reply").text(), Some("v"), "{mode}");
        // A session is counted after its client has read the end.
        wait_until("both to be counted", PATIENCE, || ended(&pointsman, "not_confirmed") == 2.0);
    }
}

/// Without replies there is nothing to hold.
#[test]
fn serves_clients_that_want_no_replies() {
    let cluster = cluster();
    let pointsman = durable(&cluster, BOTH[0], (1, "10s"));
    let mut client = pointsman.client();
    let mut request = |words: &[&str]| client.send(&harness::encode(words)).expect("sent");
    request(&["CLIENT", "REPLY", "SKIP"]);
    request(&["SET", "a", "1"]);
    request(&["SET", "b", "1"]);
    request(&["CLIENT", "REPLY", "OFF"]);
    request(&["SET", "c", "1"]);
    request(&["CLIENT", "REPLY", "ON"]);
    request(&["MGET", "a", "b", "c"]);
    assert!(client.read_value().expect("of b").is_ok());
    assert!(client.read_value().expect("of ON").is_ok());
    assert_eq!(client.read_value().expect("values").items().len(), 3);
}

/// What the server then answers would be taken for the replies to other requests.
#[test]
fn ends_sessions_whose_silence_is_refused() {
    let cluster = cluster();
    let pointsman = durable(&cluster, BOTH[0], (1, "10s"));
    let rules = ["ACL", "SETUSER", "loud", "on", ">pw", "~*", "+@all", "-client|reply"];
    assert!(cluster.master().ask(&rules).expect("a reply").is_ok());
    for silence in ["OFF", "SKIP"] {
        let mut client = pointsman.client();
        assert!(client.cmd(&["AUTH", "loud", "pw"]).expect("a reply").is_ok());
        let commands = [["CLIENT", "REPLY", silence], ["SET", "a", "1"], ["SET", "b", "1"]];
        client.send(&commands.map(|words| harness::encode(&words)).concat()).expect("sent");
        assert!(client.read_value().is_err(), "{silence}: nothing is acknowledged");
    }
    // A session is counted after its client has read the end.
    wait_until("both to be counted", PATIENCE, || ended(&pointsman, "not_confirmed") == 2.0);
}

/// A connection keeps the rule with which it was opened: those who come later share another one.
#[test]
fn confirms_for_clients_that_come_after_a_reload() {
    let cluster = cluster();
    for mode in BOTH {
        let pointsman = durable_with(&cluster, mode, 0, "300ms", "[process]\nworkers = 1");
        let mut before = pointsman.client();
        assert!(before.cmd(&["SET", "k", "1"]).expect("a reply").is_ok());
        reload(&pointsman, "durability.replicas = 0", "durability.replicas = 1");
        let mut after = pointsman.client();
        assert_eq!(after.cmd(&["GET", "k"]).expect("a reply").text(), Some("1"));
        let replicas = cluster.replicas();
        replicas.iter().for_each(|node| node.stop());
        let (new, old) = (after.cmd(&["SET", "k", "2"]), before.cmd(&["SET", "k", "3"]));
        replicas.iter().for_each(|node| node.cont());
        let refused = |it: &Value| it.error().is_some_and(|it| it.starts_with("NOREPLICAS "));
        assert!(new.as_ref().is_ok_and(refused), "{mode}: {new:?}");
        assert!(old.as_ref().is_ok_and(Value::is_ok), "{mode}: {old:?}");
    }
}

/// A master that runs a script for too long refuses the `WAIT` that would follow a write.
#[test]
fn ends_a_script_that_blocks_the_master() {
    const LIBRARY: &str = "#!lua name=lib\n\
        redis.register_function('spin', function() while true do end end)";
    let patient = Duration::from_secs(20);
    let cluster = Cluster::builder().replicas(1).sentinels(1).down_after(patient).start();
    let master = cluster.master();
    master.ask(&["CONFIG", "SET", "busy-reply-threshold", "50"]).expect("a limit");
    master.ask(&["FUNCTION", "LOAD", LIBRARY]).expect("a library");
    for mode in BOTH {
        let pointsman = durable(&cluster, mode, (1, "10s"));
        let (mut client, mut script) = (pointsman.client(), master.client());
        assert!(client.cmd(&["SET", "k", "v"]).expect("a reply").is_ok(), "{mode}");
        let mut run = |spin: [&str; 3], requests: &[[&str; 2]]| {
            script.send(&harness::encode(&spin)).expect("sent");
            wait_until("a busy master", PATIENCE, || {
                master.ask(&["PING"]).is_err_and(|error| error.to_string().contains("BUSY"))
            });
            for request in requests {
                let reply = client.cmd(request).expect("a reply");
                assert!(!reply.is_error(), "{mode}: {request:?}: {reply:?}");
            }
            assert!(script.read_value().expect("the end of the script").is_error(), "{mode}");
        };
        run(["EVAL", "while true do end", "0"], &[["SCRIPT", "KILL"]]);
        run(["FCALL", "spin", "0"], &[["FUNCTION", "STATS"], ["FUNCTION", "KILL"]]);
        assert!(client.cmd(&["SET", "k", "w"]).expect("a reply").is_ok(), "{mode}");
        assert_eq!(not_confirmed(&pointsman), 0.0, "{mode}");
    }
}

/// What is behind a blocking command in a pipeline holds nothing back: that would be a client which
/// waits for a reply before it continues.
#[test]
fn confirms_pipelines_with_blocking_commands() {
    let cluster = cluster();
    let take: &[&str] = &["BLPOP", "list", "1"];
    let (set, read): (&[&str], &[&str]) = (&["SET", "o", "1"], &["XREAD", "STREAMS", "st", "0"]);
    // Each without an answer to its last request, if that blocks.
    let pipelines: [(&[&[&str]], usize); 9] = [
        (&[set, take, &["MULTI"]], 3),
        (&[set, take, &["BLPOP", "never", "0"]], 2),
        (&[set, read, set, &["MULTI"]], 4),
        (&[set, read, set, &["BLPOP", "never", "0"]], 3),
        (&[set, take, set, take, &["GET", "o"]], 5),
        (&[set, take, &["CLIENT", "REPLY", "OFF"]], 2),
        (&[set, take, &["SUBSCRIBE", "ch"]], 3),
        (&[set, take, &["MONITOR"]], 3),
        (&[set, take, &["QUIT"]], 3),
    ];
    for mode in BOTH {
        let pointsman = durable(&cluster, mode, (1, "20s"));
        for (requests, answered) in pipelines {
            let bytes = requests.iter().map(|words| harness::encode(words)).collect::<Vec<_>>();
            let replies = |mut client: Client| {
                cluster.master().ask(&["DEL", "list"]).expect("a reply");
                cluster.master().ask(&["RPUSH", "list", "a", "b"]).expect("a reply");
                // From then on it has a connection of its own.
                client.cmd(&["BLPOP", "none", "0.01"]).expect("a reply");
                client.send(&bytes.concat()).expect("sent");
                (0..answered).map(|_| client.read_value().expect("a reply")).collect::<Vec<_>>()
            };
            let expected = replies(cluster.master().client());
            assert_eq!(replies(pointsman.client()), expected, "{mode}: {requests:?}");
        }
        assert_eq!(not_confirmed(&pointsman), 0.0, "{mode}");
    }
}

/// What is pushed then stays in the list, as without a proxy.
#[test]
fn unblocks_clients_that_leave() {
    let cluster = cluster();
    let master = cluster.master();
    for mode in BOTH {
        let pointsman = durable(&cluster, mode, (1, "20s"));
        for (blocks, behind) in [
            ("BLPOP list 0\r\n", ""),
            ("SET o 1\r\nBLPOP list 0\r\n", ""),
            ("BLPOP list 0\r\n", "QUIT\r\n"),
            ("BLPOP list 0\r\n", "SET o 2\r\n"),
            ("WAIT 9 0\r\n", "SET o 3\r\n"),
        ] {
            let mut client = pointsman.client();
            client.send(blocks.as_bytes()).expect("sent");
            wait_blocked(&cluster);
            client.send(behind.as_bytes()).expect("sent");
            drop(client);
            wait_until("no blocked client", PATIENCE / 8, || {
                master.info("clients", "blocked_clients").is_ok_and(|count| count == "0")
            });
        }
        // One that has been blocked for a while is forgotten at once.
        let forgotten = |_| {
            let mut client = pointsman.client();
            client.send(b"BLPOP list 0\r\n").expect("sent");
            wait_blocked(&cluster);
            pause(Duration::from_millis(150));
            let left = Instant::now();
            drop(client);
            wait_until("no blocked client", PATIENCE / 8, || {
                master.info("clients", "blocked_clients").is_ok_and(|count| count == "0")
            });
            left.elapsed()
        };
        let soonest = (0..5).map(forgotten).min().expect("five times");
        assert!(soonest < Duration::from_millis(80), "{mode}: after {soonest:?}");
        assert_eq!(master.ask(&["RPUSH", "list", "a"]).expect("a reply").int(), Some(1), "{mode}");
        assert_eq!(master.ask(&["LPOP", "list"]).expect("a reply").text(), Some("a"), "{mode}");
    }
}
