//! Subscribers that continue on the new master, where that is configured.

use std::time::Duration;

use harness::{Client, Cluster, Pointsman, wait_until};

use crate::{builder, metric};

const USER: &str = "app on >pw ~* &* +@all";
const PATIENCE: Duration = Duration::from_secs(40);

/// Frames as a subscriber reads them: the words, without the differences of RESP2 and RESP3.
fn words(client: &mut Client, resp3: bool, count: usize) -> Vec<String> {
    let mut line = || {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(client.read_exact(1).expect("a frame"));
        }
        String::from_utf8(line).unwrap().trim_end().to_owned()
    };
    assert_eq!(line(), format!("{}{count}", if resp3 { '>' } else { '*' }));
    let mut word = || match line() {
        number if number.starts_with(':') => number,
        _ => line(),
    };
    (0..count).map(|_| word()).collect()
}

/// Whether the servers have sharded channels.
fn sharded() -> bool {
    harness::server_version() >= (7, 0)
}

/// A subscriber that authenticated, and unsubscribed from some channels.
fn subscriber(pointsman: &Pointsman, resp3: bool) -> Client {
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).unwrap();
    let hello: &[&str] =
        if resp3 { &["HELLO", "3", "AUTH", "app", "pw"] } else { &["AUTH", "app", "pw"] };
    for command in [hello, &["CLIENT", "SETNAME", "listener"]] {
        assert!(client.cmd(command).unwrap().error().is_none());
    }
    for (command, names) in [
        ("SUBSCRIBE", "a b gone"),
        ("PSUBSCRIBE", "p:*"),
        ("UNSUBSCRIBE", "gone"),
        ("SSUBSCRIBE", "s"),
    ] {
        if command == "SSUBSCRIBE" && !sharded() {
            continue;
        }
        let request: Vec<&str> = std::iter::once(command).chain(names.split(' ')).collect();
        client.send(&harness::encode(&request)).unwrap();
        for name in names.split(' ') {
            assert_eq!(
                words(&mut client, resp3, 3)[..2],
                [command.to_lowercase(), name.to_owned()]
            );
        }
    }
    client
}

/// Publishes on the current master; each client receives it, and nothing before it.
fn everybody_hears(cluster: &Cluster, clients: &mut [(Client, bool)], text: &str) {
    let publish = |command: &str, channel: &str| {
        let heard = cluster.master().ask(&[command, channel, text]).unwrap().int().unwrap();
        assert_eq!(heard, clients.len() as i64, "{channel}");
    };
    assert_eq!(cluster.master().ask(&["PUBLISH", "gone", text]).unwrap().int(), Some(0));
    publish("PUBLISH", "b");
    publish("PUBLISH", "p:1");
    if sharded() {
        publish("SPUBLISH", "s");
    }
    for (client, resp3) in clients {
        assert_eq!(words(client, *resp3, 3), ["message", "b", text]);
        assert_eq!(words(client, *resp3, 4), ["pmessage", "p:*", "p:1", text]);
        if sharded() {
            assert_eq!(words(client, *resp3, 3), ["smessage", "s", text]);
        }
        // It still has its identity and controls its subscriptions.
        client.send(&harness::encode(&["UNSUBSCRIBE", "a"])).unwrap();
        assert_eq!(words(client, *resp3, 3), ["unsubscribe", "a", ":2"]);
        client.send(&harness::encode(&["SUBSCRIBE", "a"])).unwrap();
        assert_eq!(words(client, *resp3, 3), ["subscribe", "a", ":3"]);
    }
}

/// Subscribers of both versions receive what is published after `what`, and only that, and keep
/// their identity.
fn subscribers_go_on_after(what: impl FnOnce(&Cluster)) {
    let cluster = Cluster::builder().user(USER).start();
    // A lost election is repeated after twelve seconds; they have to be held for that long.
    let pointsman = builder(&cluster)
        .service_line("subscriptions = \"replay\"")
        .service_line("hold_timeout = \"30s\"")
        .start();
    let mut clients: Vec<(Client, bool)> = (0..20)
        .map(|number| number % 2 == 1)
        .map(|resp3| (subscriber(&pointsman, resp3), resp3))
        .collect();
    everybody_hears(&cluster, &mut clients, "before");
    what(&cluster);
    wait_until("the subscribers to be carried", PATIENCE, || {
        metric(&pointsman, "pointsman_sessions_carried_total{service=\"mymaster\"}") >= Some(20.0)
    });
    everybody_hears(&cluster, &mut clients, "after");
    let list = cluster.master().ask(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap();
    let list: Vec<&str> =
        list.text().unwrap().lines().filter(|line| line.contains(" name=listener ")).collect();
    assert_eq!(list.len(), 20);
    assert!(list.iter().all(|line| line.contains(" user=app ")), "{list:?}");
}

#[test]
fn resubscribes_after_a_planned_failover() {
    subscribers_go_on_after(|cluster| {
        cluster.failover();
    });
}

#[test]
fn resubscribes_after_the_masters_death() {
    subscribers_go_on_after(|cluster| cluster.master().kill());
}

#[test]
fn closes_subscribers_by_default() {
    let cluster = Cluster::builder().user(USER).start();
    let pointsman = builder(&cluster).start();
    let mut client = subscriber(&pointsman, true);
    cluster.failover();
    let (bytes, ending) = client.read_to_end().expect("the end of the connection");
    assert_eq!((bytes.as_slice(), ending), (&b""[..], harness::Ending::Fin));
}
