//! The listener that leads to any live sentinel: queries, subscriptions, and what happens when a
//! sentinel dies, hangs or does not know the master.

use std::net::SocketAddr;
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, wait_until};

use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);

/// A pointsman with a listener for sentinel clients, and its address.
fn with_sentinels(cluster: &Cluster) -> (Pointsman, SocketAddr) {
    let listen = cluster.address().port();
    let line = format!("sentinel_listen = [\"{listen}\"]");
    (builder(cluster).service_line(&line).start(), listen)
}

/// The master's address, queried through the listener.
fn master_through(listen: SocketAddr) -> std::io::Result<Vec<String>> {
    let mut client = Client::connect_within(listen, Duration::from_secs(5))?;
    let reply = client.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"])?;
    if let Some(error) = reply.error() {
        return Err(std::io::Error::other(error.to_owned()));
    }
    Ok(reply.items().iter().filter_map(|it| it.text().map(str::to_owned)).collect())
}

fn expected(cluster: &Cluster) -> Vec<String> {
    let master = cluster.master().addr();
    vec![master.ip().to_string(), master.port().to_string()]
}

/// The MYID of the sentinel that answers a new connection.
fn sentinel_id(listen: SocketAddr) -> std::io::Result<String> {
    let mut client = Client::connect_within(listen, Duration::from_secs(5))?;
    let reply = client.cmd(&["SENTINEL", "MYID"])?;
    reply.text().map(str::to_owned).ok_or_else(|| std::io::Error::other(format!("{reply:?}")))
}

#[test]
fn answers_through_any_live_sentinel() {
    let cluster = Cluster::builder().start();
    let (pointsman, listen) = with_sentinels(&cluster);
    wait_until("an answer with the master", PATIENCE, || {
        let answer = master_through(listen).map_err(|error| error.to_string())?;
        if answer == expected(&cluster) { Ok(()) } else { Err(format!("{answer:?}")) }
    });
    let sessions = "pointsman_sessions_total{service=\"mymaster\",listener=\"sentinel\"}";
    assert!(metric(&pointsman, sessions) >= Some(1.0), "its sessions have a label of their own");

    // A dead sentinel gets no new connections, and the other two answer.
    cluster.sentinels()[0].kill();
    let dead = "pointsman_sentinels_up{service=\"mymaster\"}";
    wait_until("the dead sentinel to be noticed", PATIENCE, || {
        metric(&pointsman, dead) == Some(2.0)
    });
    for _ in 0..20 {
        assert_eq!(master_through(listen).expect("a live sentinel"), expected(&cluster));
    }
}

#[test]
fn forwards_events_and_closes_with_the_sentinel() {
    let cluster = Cluster::builder().start();
    let (_pointsman, listen) = with_sentinels(&cluster);
    wait_until("an answer", PATIENCE, || master_through(listen).is_ok());
    let mut subscriber = Client::connect(listen).expect("a connection");
    let id = subscriber.cmd(&["SENTINEL", "MYID"]).expect("MYID");
    let confirmed = subscriber.cmd(&["SUBSCRIBE", "+switch-master"]).expect("SUBSCRIBE");
    assert_eq!(confirmed.items().first().and_then(|it| it.text()), Some("subscribe"));
    let old = expected(&cluster);
    cluster.failover();
    subscriber.set_timeout(PATIENCE).expect("a timeout");
    let event = subscriber.read_value().expect("the event");
    let text = event.items().get(2).and_then(|it| it.text()).unwrap_or_default().to_owned();
    assert!(text.starts_with(&format!("mymaster {} {} ", old[0], old[1])), "{event:?}");

    // Its sentinel dies: the subscription ends, and the next connection reaches another one.
    let mine = cluster.sentinels().iter().find(|it| {
        let reply = it.ask(&["SENTINEL", "MYID"]);
        reply.is_ok_and(|reply| reply.text() == id.text())
    });
    mine.expect("the sentinel of the subscriber").kill();
    subscriber.read_to_end().expect("the end of the connection");
    let next = wait_until("another sentinel", PATIENCE, || {
        sentinel_id(listen).map_err(|error| error.to_string())
    });
    assert_ne!(Some(next.as_str()), id.text());
}

#[test]
fn turns_clients_away_without_any_sentinel() {
    let cluster = Cluster::builder().start();
    let (pointsman, listen) = with_sentinels(&cluster);
    wait_until("an answer", PATIENCE, || master_through(listen).is_ok());
    for sentinel in cluster.sentinels() {
        sentinel.kill();
    }
    let closed = "pointsman_sessions_closed_total{service=\"mymaster\",listener=\"sentinel\",reason=\"no_replica\"}";
    wait_until("a client to be turned away", PATIENCE, || {
        let refused = master_through(listen).is_err();
        if refused && metric(&pointsman, closed) >= Some(1.0) {
            Ok(())
        } else {
            Err(format!("{:?}", metric(&pointsman, closed)))
        }
    });
    // Data traffic is not affected, and neither are probes.
    assert!(pointsman.client().cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    cluster.sentinels()[1].restart();
    wait_until("the restarted sentinel to answer", PATIENCE, || {
        master_through(listen).map_err(|error| error.to_string()).map(drop)
    });
}
