//! Clients that share connections have nothing of one another: no identity, no pause, no limit.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, Value, wait_until};

use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);

fn start(cluster: &Cluster) -> Pointsman {
    let lines = "[process]\nworkers = 1";
    builder(cluster).service_line("upstream = \"shared\"").lines(lines).start()
}

fn sharing(pointsman: &Pointsman) -> f64 {
    metric(pointsman, "pointsman_shared_sessions{service=\"mymaster\"}").expect("the metric")
}

/// An identity that a client was told belongs to no other client later, whichever way it was told.
#[test]
fn tells_no_identity_to_two_clients() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = start(&cluster);
    let hello = |client: &mut Client| client.cmd(&["HELLO", "3"]).unwrap();
    let info = |client: &mut Client| {
        assert!(client.cmd(&["CLIENT", "SETNAME", "me"]).unwrap().is_ok());
        client.cmd(&["CLIENT", "INFO"]).unwrap()
    };
    let id_of = |reply: &Value| match reply.field("id").and_then(Value::int) {
        Some(id) => id,
        None => {
            let text = reply.text().unwrap().to_owned();
            text.split(' ').find_map(|it| it.strip_prefix("id=")).unwrap().parse().unwrap()
        }
    };
    let (mut clients, mut ids) = (Vec::new(), BTreeSet::new());
    for round in 0..6 {
        let mut client = pointsman.client();
        let reply = if round % 2 == 0 { hello(&mut client) } else { info(&mut client) };
        assert!(ids.insert(id_of(&reply)), "{reply:?} of another client");
        clients.push(client);
        wait_until("its return", PATIENCE, || sharing(&pointsman) == f64::from(round + 1));
        // A connection that is kept is reset first.
        let mut last = pointsman.client();
        assert!(last.cmd(&["SELECT", "1"]).unwrap().is_ok());
    }
    // It kills nobody.
    for id in ids {
        let killed = clients[0].cmd(&["CLIENT", "KILL", "ID", &id.to_string()]).unwrap();
        assert_eq!(killed.int(), Some(0));
    }
    for client in &mut clients {
        assert!(client.cmd(&["GET", "k"]).is_ok());
    }
}

/// A server that limits what it keeps for a client would end all members of a connection for one of
/// them. It may say so, and then clients keep connections of their own.
#[test]
fn ends_nobody_for_the_reply_of_another_client() {
    for limit in ["client-output-buffer-limit normal 1mb 0 0", "maxmemory-clients 4mb"] {
        let cluster = Cluster::builder().replicas(0).sentinels(1).redis_line(limit).start();
        let pointsman = start(&cluster);
        let size = "20000000";
        assert!(cluster.master().ask(&["SETRANGE", "large", size, "x"]).unwrap().int().is_some());
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut bystander = pointsman.client();
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let reply = bystander.cmd(&["INCR", "n"]);
                        assert!(reply.as_ref().is_ok_and(|it| it.int().is_some()), "{reply:?}");
                    }
                });
            }
            for _ in 0..5 {
                let mut reader = pointsman.client();
                assert!(reader.cmd(&["EXISTS", "k"]).unwrap().int().is_some());
                // The server may end this one.
                let _reply = reader.cmd(&["GET", "large"]);
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
