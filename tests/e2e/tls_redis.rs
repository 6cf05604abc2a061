//! Sessions with masters, replicas and sentinels that speak TLS only and demand client
//! certificates: bytes, failovers, and certificates that are wrong.

use std::net::SocketAddr;
use std::time::Duration;

use harness::{Client, Cluster, Load, Pointsman, Value, wait_until};

use crate::durability::serve_every_kind_of_request;
use crate::isolation::sets;
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);
/// A lost election is repeated after twelve seconds.
const LONG_HOLD: &str = "hold_timeout = \"30s\"";

/// Both sections, with the client certificate in these files.
pub(crate) fn sections(cluster: &Cluster, client: &str) -> String {
    let folder = cluster.folder().join("tls");
    let file = |extension: &str| folder.join(format!("{client}.{extension}"));
    let keys = format!(
        "enabled = true\nca_file = {:?}\ncertificate_file = {:?}\nkey_file = {:?}\n",
        cluster.certificates().ca_file(),
        file("crt"),
        file("key")
    );
    format!("[service.redis_tls]\n{keys}[service.sentinel_tls]\n{keys}")
}

fn start(cluster: &Cluster, line: &str) -> Pointsman {
    builder(cluster).service_line(line).lines(&sections(cluster, "client")).start()
}

fn count(pointsman: &Pointsman, name: &str, labels: &str) -> f64 {
    metric(pointsman, &format!("{name}{{service=\"mymaster\"{labels}}}")).unwrap_or(0.0)
}

fn wait_for_switch(pointsman: &Pointsman) {
    wait_until("the switch", PATIENCE, || {
        count(pointsman, "pointsman_target_generation", "") >= 2.0
    });
}

/// A client that is served within the time for which it may be held.
fn client(pointsman: &Pointsman) -> Client {
    Client::connect_within(pointsman.addr(), PATIENCE).expect("a connection")
}

#[test]
fn serves_replies_values_and_messages_over_tls() {
    let cluster = Cluster::builder().tls().start();
    let pointsman = start(&cluster, LONG_HOLD);
    let mut client = client(&pointsman);
    for size in [1, 16_384, 1 << 20, 20 << 20] {
        let value = vec![b'x'; size];
        let reply = client.cmd(&[b"SET".as_slice(), b"k", &value]).expect("a reply");
        assert_eq!(reply.text(), Some("OK"), "{size}");
        let reply = client.cmd(&["GET", "k"]).expect("the value");
        assert_eq!(reply.text().map(str::len), Some(size));
    }
    let commands: Vec<_> = (0..10_000).map(|_| vec!["INCR", "n"]).collect();
    let replies = client.pipeline(&commands).expect("replies");
    let numbers = replies.iter().map(Value::int).collect::<Vec<_>>();
    assert!(numbers.iter().zip(1..).all(|(got, number)| *got == Some(number)));

    let mut subscriber = self::client(&pointsman);
    let confirmed = subscriber.cmd(&["SUBSCRIBE", "news"]).expect("SUBSCRIBE");
    assert_eq!(confirmed.items().first().and_then(|it| it.text()), Some("subscribe"));
    assert_eq!(client.cmd(&["PUBLISH", "news", "hello"]).expect("PUBLISH").int(), Some(1));
    let message = subscriber.read_value().expect("the message");
    assert_eq!(message.items().get(2).and_then(|it| it.text()), Some("hello"));

    // Later connections resume what an earlier one has negotiated.
    let handshakes = |kind| count(&pointsman, "pointsman_target_tls_handshakes_total", kind);
    wait_until("a resumed handshake", PATIENCE, || {
        assert_eq!(self::client(&pointsman).cmd(&["PING"]).expect("PING").text(), Some("PONG"));
        let (full, resumed) = (handshakes(",kind=\"full\""), handshakes(",kind=\"resumed\""));
        if resumed >= 1.0 { Ok(()) } else { Err(format!("{full} full, {resumed} resumed")) }
    });
    // Nothing is spliced.
    assert_eq!(count(&pointsman, "pointsman_spliced_bytes_total", ""), 0.0);
}

#[test]
fn loses_nothing_in_a_planned_failover_over_tls() {
    let cluster = Cluster::builder().tls().start();
    let pointsman = start(&cluster, LONG_HOLD);
    let old = cluster.master();
    let mut idle = client(&pointsman);
    assert_eq!(idle.cmd(&["SELECT", "3"]).expect("SELECT").text(), Some("OK"));
    assert_eq!(idle.cmd(&["SET", "mine", "3"]).expect("SET").text(), Some("OK"));
    let mut load = Load::to(pointsman.addr()).writers(16).rate(2000).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 500);

    let failover = cluster.failover();
    wait_for_switch(&pointsman);
    let at_commit = sets(old);
    let seen = load.counts().acknowledged;
    wait_until("writes to go on", PATIENCE, || load.counts().acknowledged > seen + 1000);
    let now = sets(old);
    if old.role().expect("ROLE") == "master" {
        assert_eq!(now, at_commit, "the superseded master was written to");
    }
    load.stop();
    // Over the proxy, which leads to the new master.
    assert_ne!(failover.from, failover.to);
    let verdict = load.verify(pointsman.addr()).expect("a look at the new master");
    assert!(verdict.acknowledged > 1500 && verdict.missing == 0, "{verdict:?}");
    // The idle session is in its database, and did not notice.
    assert_eq!(idle.cmd(&["GET", "mine"]).expect("GET").text(), Some("3"));
    assert!(count(&pointsman, "pointsman_sessions_carried_total", "") >= 1.0);
}

#[test]
fn resumes_writes_after_the_death_of_a_tls_master() {
    let cluster = Cluster::builder().tls().start();
    let pointsman = start(&cluster, LONG_HOLD);
    let mut idle = client(&pointsman);
    assert_eq!(idle.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    let mut load = Load::to(pointsman.addr()).writers(16).rate(1000).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 500);
    cluster.master().kill();
    wait_for_switch(&pointsman);
    let seen = load.counts().acknowledged;
    wait_until("writes to go on", PATIENCE, || load.counts().acknowledged > seen + 500);
    load.stop();
    assert_eq!(idle.cmd(&["PING"]).expect("the session was carried").text(), Some("PONG"));
    assert!(count(&pointsman, "pointsman_sessions_carried_total", "") >= 1.0);
}

#[test]
fn answers_sentinel_clients_over_tls() {
    let cluster = Cluster::builder().tls().start();
    let listen = cluster.address().port();
    let pointsman = start(&cluster, &format!("sentinel_listen = [\"{listen}\"]"));
    let master = cluster.master().addr();
    let expected = [master.ip().to_string(), master.port().to_string()];
    wait_until("an answer with the master", PATIENCE, || {
        let answer = master_through(listen).map_err(|error| error.to_string())?;
        if answer == expected { Ok(()) } else { Err(format!("{answer:?}")) }
    });
    let labels = ",listener=\"sentinel\",kind=\"full\"";
    let resumed = ",listener=\"sentinel\",kind=\"resumed\"";
    let name = "pointsman_target_tls_handshakes_total";
    assert!(count(&pointsman, name, labels) + count(&pointsman, name, resumed) >= 1.0);
}

#[test]
fn confirms_every_kind_of_request_over_tls() {
    let cluster = Cluster::builder().replicas(2).sentinels(1).tls().start();
    serve_every_kind_of_request(&cluster, &sections(&cluster, "client"));
}

fn master_through(listen: SocketAddr) -> std::io::Result<Vec<String>> {
    let mut client = Client::connect_within(listen, Duration::from_secs(5))?;
    let reply = client.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"])?;
    if let Some(error) = reply.error() {
        return Err(std::io::Error::other(error.to_owned()));
    }
    Ok(reply.items().iter().filter_map(|it| it.text().map(str::to_owned)).collect())
}
