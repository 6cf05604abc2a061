//! Clients that share connections to a real server: the same replies as with connections of their
//! own, and the promises that every session has.

use std::time::Duration;

use harness::{Client, Cluster, Pointsman, wait_until};

use crate::carry::{USER, hides_planned_failover};
use crate::crowd::Crowd;
use crate::resources::memory;
use crate::tls_redis::sections;
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);
const SHARED: &str = "upstream = \"shared\"";
/// Within this time the server has confirmed that a kept connection was reset.
const RESET_WITHIN: Duration = Duration::from_secs(5);
const CLIENTS: usize = 12;
const ROUNDS: usize = 150;

fn start(cluster: &Cluster) -> Pointsman {
    builder(cluster).service_line(SHARED).start()
}

/// A pseudo-random sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % bound
    }
}

/// A pipeline of one client, whose replies depend on nothing that another client does. Every second
/// client sends nothing that needs its own connection.
fn pipeline(random: &mut Random, client: usize, round: usize) -> Vec<Vec<String>> {
    let key = |n: u64| format!("{client}:{n}");
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let depth = 1 + random.below(12);
    let mut all: Vec<Vec<String>> = Vec::new();
    for n in 0..depth {
        let k = key(random.below(4));
        let value = format!("{client}.{round}.{n}.{}", "x".repeat(random.below(300) as usize));
        match random.below(if client.is_multiple_of(2) { 24 } else { 30 }) {
            0..8 => all.push(words(format!("SET {k} {value}"))),
            8..16 => all.push(words(format!("GET {k}"))),
            16 => all.push(words(format!("APPEND {k} {value}"))),
            17 => all.push(words(format!("ECHO {value}"))),
            18 => all.push(words(format!("LPUSH list{k} {value}"))),
            19 => all.push(words(format!("LRANGE list{k} 0 -1"))),
            20 => all.push(words(format!("EVAL return{{KEYS[1],'{client}'}} 1 {k}"))),
            21 => all.push(words(format!("HSET hash{k} field {value}"))),
            22 => all.push(words(format!("HGETALL hash{k}"))),
            23 => all.push(words(format!("GET list{k}"))),
            24 => all.push(words(format!("NOSUCHCOMMAND {value}"))),
            25 => {
                all.push(words("MULTI".into()));
                all.push(words(format!("INCR count{k}")));
                all.push(words(format!("GET {k}")));
                all.push(words("EXEC".into()));
            }
            26 => all.push(words(format!("BLPOP list{k} 0.01"))),
            27 => all.push(words(format!("SELECT {}", random.below(3)))),
            28 => all.push(words(format!("CLIENT SETNAME c{client}"))),
            _ => all.push(words("CLIENT GETNAME".into())),
        }
    }
    all
}

/// What each client receives.
fn play(connect: &(impl Fn() -> Client + Sync)) -> Vec<Vec<String>> {
    let one = |client: usize| {
        let mut random = Random(client as u64 + 1);
        let mut connection = connect();
        let mut replies = Vec::new();
        for round in 0..ROUNDS {
            let commands = pipeline(&mut random, client, round);
            let answered = connection.pipeline(&commands);
            let answered = answered.unwrap_or_else(|error| panic!("{commands:?}: {error}"));
            replies.push(format!("{answered:?}"));
        }
        replies
    };
    std::thread::scope(|scope| {
        let one = &one;
        let all: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || one(n))).collect();
        all.into_iter().map(|it| it.join().expect("a client")).collect()
    })
}

#[test]
fn gives_the_replies_of_direct_connections() {
    let cluster = Cluster::builder().start();
    let pointsman = start(&cluster);
    let direct = play(&|| cluster.master().client());
    assert!(cluster.master().ask(&["FLUSHALL"]).unwrap().is_ok());
    let shared = play(&|| pointsman.client());
    compare(&direct, &shared);
    let requests = count(&pointsman, "pointsman_shared_requests_total");
    assert!(requests > (CLIENTS / 2 * ROUNDS) as f64, "{requests} were shared");
    assert_eq!(count(&pointsman, "pointsman_shared_desyncs_total"), 0.0);
}

#[track_caller]
fn compare(direct: &[Vec<String>], shared: &[Vec<String>]) {
    for (client, (direct, shared)) in direct.iter().zip(shared).enumerate() {
        for (round, (direct, shared)) in direct.iter().zip(shared).enumerate() {
            assert_eq!(direct, shared, "client {client}, round {round}");
        }
    }
}

#[test]
fn gives_the_same_replies_over_tls() {
    let cluster = Cluster::builder().tls().start();
    let pointsman =
        builder(&cluster).service_line(SHARED).lines(&sections(&cluster, "client")).start();
    let direct = play(&|| cluster.master().client());
    assert!(cluster.master().ask(&["FLUSHALL"]).unwrap().is_ok());
    compare(&direct, &play(&|| pointsman.client()));
    assert_eq!(count(&pointsman, "pointsman_shared_desyncs_total"), 0.0);
}

/// A client that does not read costs others nothing, and receives everything once it reads.
#[test]
fn serves_others_beside_a_slow_reader() {
    let cluster = Cluster::builder().start();
    let pointsman = builder(&cluster).service_line(SHARED).lines("[process]\nworkers = 1").start();
    let (mut slow, mut other) = (pointsman.client(), pointsman.client());
    let value = "v".repeat(60_000);
    assert!(slow.cmd(&["SET", "large", &value]).unwrap().is_ok());
    slow.send(&harness::encode(&["GET", "large"]).repeat(500)).unwrap();
    for n in 0..2_000 {
        assert_eq!(other.cmd(&["INCR", "n"]).unwrap().int(), Some(n + 1));
    }
    for _ in 0..500 {
        assert_eq!(slow.read_value().unwrap().text(), Some(value.as_str()));
    }
    assert_eq!(other.cmd(&["INCR", "n"]).unwrap().int(), Some(2_001));
}

#[test]
fn hides_planned_failover_from_sharing_clients() {
    let cluster = Cluster::builder().user(USER).start();
    let pointsman =
        builder(&cluster).service_line("hold_timeout = \"30s\"").service_line(SHARED).start();
    let crowd = Crowd::gather(&pointsman, 200);
    println!("planned, shared: {}", hides_planned_failover(&cluster, &pointsman, crowd));
}

/// The connections of the server that are not from the test itself or from probes.
fn list(master: &harness::Node) -> Vec<String> {
    let list = master.ask(&["CLIENT", "LIST"]).unwrap();
    list.text().unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn shares_one_connection_and_loses_only_requests_in_flight() {
    let cluster = Cluster::builder().start();
    let pointsman = builder(&cluster).service_line(SHARED).lines("[process]\nworkers = 1").start();
    let mut clients: Vec<Client> = (0..50).map(|_| pointsman.client()).collect();
    for client in &mut clients {
        assert!(client.cmd(&["SET", "k", "v"]).unwrap().is_ok());
    }
    let of_set = || list(cluster.master()).into_iter().filter(|it| it.contains("cmd=set"));
    let lines: Vec<String> = of_set().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let id = lines[0].split(' ').find_map(|field| field.strip_prefix("id=")).unwrap();
    assert_eq!(cluster.master().ask(&["CLIENT", "KILL", "ID", id]).unwrap().int(), Some(1));
    // None had a request in flight.
    for client in &mut clients {
        assert_eq!(client.cmd(&["GET", "k"]).unwrap().text(), Some("v"));
    }
}

#[test]
fn checks_the_credentials_of_each_client() {
    let cluster = Cluster::builder().start();
    let pointsman = start(&cluster);
    let master = cluster.master();
    let user = ["ACL", "SETUSER", "ann", "on", ">one", ">two", "~*", "&*", "+@all"];
    assert!(master.ask(&user).unwrap().is_ok());
    let client = |secret| {
        let mut client = pointsman.client();
        let reply = client.cmd(&["AUTH", "ann", secret]).unwrap();
        (client, reply)
    };
    let mut all: Vec<Client> = ["one", "two", "one"]
        .map(|secret| {
            let (client, reply) = client(secret);
            assert!(reply.is_ok(), "{reply:?}");
            client
        })
        .into();
    wait_until("them to share", PATIENCE, || sharing(&pointsman) >= 3.0);
    for client in &mut all {
        assert_eq!(client.cmd(&["ACL", "WHOAMI"]).unwrap().text(), Some("ann"));
        assert!(client.cmd(&["SET", "k", "v"]).unwrap().is_ok());
    }
    let (mut wrong, reply) = client("three");
    assert!(reply.error().is_some_and(|it| it.starts_with("WRONGPASS")), "{reply:?}");
    assert!(wrong.cmd(&["GET", "k"]).unwrap().text() == Some("v"), "the default user");
    // The server closes the connections of a deleted user, and so its clients end or are refused.
    assert_eq!(master.ask(&["ACL", "DELUSER", "ann"]).unwrap().int(), Some(1));
    for mut client in all {
        if let Ok(reply) = client.cmd(&["GET", "k"]) {
            let refusal = "LOADING This connection cannot continue";
            assert!(reply.error().is_some_and(|it| it.starts_with(refusal)), "{reply:?}");
        }
        assert!(client.cmd(&["GET", "k"]).is_err(), "a deleted user is not served");
    }
    let (_client, reply) = client("one");
    assert!(reply.is_error());
}

fn count(pointsman: &Pointsman, name: &str) -> f64 {
    metric(pointsman, &format!("{name}{{service=\"mymaster\"}}")).expect("the metric")
}

fn sharing(pointsman: &Pointsman) -> f64 {
    count(pointsman, "pointsman_shared_sessions")
}

#[test]
fn serves_what_needs_its_own_connection() {
    let cluster = Cluster::builder().start();
    let pointsman = start(&cluster);
    let (mut one, mut two) = (pointsman.client(), pointsman.client());
    assert!(one.cmd(&["SET", "k", "v"]).unwrap().is_ok());
    assert!(two.cmd(&["GET", "k"]).unwrap().text() == Some("v"));
    // A blocked client holds up no other one.
    one.send(&harness::encode(&["BLPOP", "list", "0"])).unwrap();
    wait_until("the client to block", PATIENCE, || {
        cluster.master().info("clients", "blocked_clients").unwrap() == "1"
    });
    assert_eq!(two.cmd(&["LPUSH", "list", "a"]).unwrap().int(), Some(1));
    assert_eq!(one.read_value().unwrap().items()[1].text(), Some("a"));
    // Subscriptions.
    assert_eq!(one.cmd(&["SUBSCRIBE", "c"]).unwrap().items()[1].text(), Some("c"));
    assert_eq!(two.cmd(&["PUBLISH", "c", "hello"]).unwrap().int(), Some(1));
    assert_eq!(one.read_value().unwrap().items()[2].text(), Some("hello"));
    // The identity of a connection stays the same for as long as the client knows it.
    let mut three = pointsman.client();
    let id = three.cmd(&["CLIENT", "ID"]).unwrap().int().unwrap();
    assert!(three.cmd(&["SET", "x", "y"]).unwrap().is_ok());
    assert_eq!(three.cmd(&["CLIENT", "ID"]).unwrap().int(), Some(id));
    // A watched key of one client, changed by another one.
    let mut four = pointsman.client();
    assert!(four.cmd(&["WATCH", "k"]).unwrap().is_ok());
    assert!(two.cmd(&["SET", "k", "other"]).unwrap().is_ok());
    assert!(four.cmd(&["MULTI"]).unwrap().is_ok());
    assert_eq!(four.cmd(&["GET", "k"]).unwrap().text(), Some("QUEUED"));
    assert_eq!(four.cmd(&["EXEC"]).unwrap().items().len(), 0, "aborted");
    // RESP3 for one of them.
    let mut five = pointsman.client();
    assert!(five.cmd(&["HELLO", "3"]).unwrap().field("server").is_some());
    assert!(five.cmd(&["HSET", "h", "f", "1"]).is_ok());
    assert_eq!(five.cmd(&["HGETALL", "h"]).unwrap().field("f").and_then(|it| it.text()), Some("1"));
    assert_eq!(two.cmd(&["HGETALL", "h"]).unwrap().items().len(), 2, "RESP2");
}

/// Clients that connect, authenticate, ask and leave cost the server no connection each, and their
/// secrets are checked by it all the same.
#[test]
fn verifies_clients_without_a_connection_each() {
    let cluster = Cluster::builder().user(USER).start();
    let pointsman = builder(&cluster).service_line(SHARED).lines("[process]\nworkers = 1").start();
    let accepted = || -> u64 {
        let stats = cluster.master().ask(&["INFO", "stats"]).unwrap().text().unwrap().to_owned();
        let line = stats.lines().find_map(|it| it.strip_prefix("total_connections_received:"));
        line.unwrap().parse().unwrap()
    };
    let refused = || {
        let mut client = pointsman.client();
        let reply = client.cmd(&["AUTH", "app", "wrong"]).unwrap();
        assert!(format!("{reply:?}").contains("WRONGPASS"), "{reply:?}");
        let whoami = client.cmd(&["ACL", "WHOAMI"]).unwrap();
        assert_ne!(whoami.text(), Some("app"), "the user of the client before");
    };
    refused();
    let before = accepted();
    for n in 0..200 {
        let mut client = pointsman.client();
        assert!(client.cmd(&["AUTH", "app", "pw"]).unwrap().is_ok());
        assert!(client.cmd(&["CLIENT", "SETNAME", "visitor"]).unwrap().is_ok());
        assert!(client.cmd(&["SET", "k", &n.to_string()]).unwrap().is_ok());
        assert_eq!(client.cmd(&["GET", "k"]).unwrap().text(), Some(&*n.to_string()));
    }
    let cost = accepted() - before;
    assert!(cost < 30, "{cost} connections for 200 clients");
    // Sooner than a kept connection is closed.
    wait_until("the names of clients that have left to be gone", RESET_WITHIN, || {
        let list = cluster.master().ask(&["CLIENT", "LIST"]).unwrap().text().unwrap().to_owned();
        if list.contains("visitor") { Err(list) } else { Ok(()) }
    });
    (0..5).for_each(|_| refused());
}

/// A server may give the name of an ordinary command to one that changes its connection.
#[test]
fn gives_a_renamed_command_its_own_connection() {
    let cluster = Cluster::builder()
        .redis_line("rename-command TOUCH \"\"")
        .redis_line("rename-command MULTI TOUCH")
        .start();
    let pointsman = builder(&cluster).service_line(SHARED).lines("[process]\nworkers = 1").start();
    let (mut one, mut two) = (pointsman.client(), pointsman.client());
    assert!(two.cmd(&["SET", "k", "v"]).unwrap().is_ok());
    assert!(one.cmd(&["TOUCH"]).unwrap().is_ok(), "it begins a transaction");
    assert_eq!(two.cmd(&["GET", "k"]).unwrap().text(), Some("v"));
    assert_eq!(one.cmd(&["INCR", "n"]).unwrap().text(), Some("QUEUED"));
    assert_eq!(one.cmd(&["EXEC"]).unwrap().items()[0].int(), Some(1));
    let series = "pointsman_shared_promotions_total{service=\"mymaster\",reason=\"server_table\"}";
    assert_eq!(metric(&pointsman, series), Some(1.0));
    assert_eq!(count(&pointsman, "pointsman_shared_desyncs_total"), 0.0);
}

/// Where the clients' user may not read the server's table, the built-in one counts.
#[test]
fn shares_without_the_table_of_the_server() {
    let cluster = Cluster::builder().user("app on >pw ~* &* +@all -command").start();
    let pointsman = builder(&cluster).service_line(SHARED).start();
    let mut client = pointsman.client();
    assert!(client.cmd(&["AUTH", "app", "pw"]).unwrap().is_ok());
    wait_until("its return", PATIENCE, || {
        assert!(client.cmd(&["SET", "k", "v"]).unwrap().is_ok());
        count(&pointsman, "pointsman_shared_requests_total") > 0.0
    });
    assert_eq!(client.cmd(&["GET", "k"]).unwrap().text(), Some("v"));
    let reply = client.cmd(&["COMMAND", "COUNT"]).unwrap();
    assert!(reply.is_error(), "{reply:?}");
    assert_eq!(count(&pointsman, "pointsman_shared_connections"), 1.0);
    let by_table = ["server", "built_in"].map(|table| {
        let labels = format!("{{service=\"mymaster\",table=\"{table}\"}}");
        metric(&pointsman, &format!("pointsman_shared_connections_by_table{labels}"))
    });
    assert_eq!(by_table, [Some(0.0), Some(1.0)]);
}

#[test]
fn needs_little_memory_for_idle_clients() {
    const FIRST: usize = 100;
    const SESSIONS: usize = 1000;
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = start(&cluster);
    let ping = || {
        let mut client = pointsman.client();
        assert!(client.cmd(&["PING"]).is_ok());
        client
    };
    let mut idle: Vec<Client> = (0..FIRST).map(|_| ping()).collect();
    let before = memory(&pointsman);
    idle.extend((0..SESSIONS).map(|_| ping()));
    assert_eq!(sharing(&pointsman), (FIRST + SESSIONS) as f64);
    let each = (memory(&pointsman) - before) / SESSIONS as u64;
    // 670 in a release build, 790 in a debug build; 2,200 with what they need for a request.
    assert!(each <= 1000, "{each} bytes");
    // All of them are served again.
    for client in &mut idle {
        assert!(client.cmd(&["PING"]).is_ok());
    }
}
