//! Clients without credentials share connections for as long as the server admits new clients
//! without credentials, and not longer: what they may do is decided when they connect, not when the
//! connection was opened that they would share.

use std::time::{Duration, Instant};

use harness::{Client, Cluster, Pointsman, Value, wait_until};

use crate::carry::USER;
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);
/// How long a client may be admitted, or refused, as the server did before.
const KNOWN_FOR: Duration = Duration::from_millis(250);

/// The server admits clients without credentials, or does not any more.
fn set_access(cluster: &Cluster, open: bool) {
    let mut operator = cluster.master().client();
    assert!(operator.cmd(&["AUTH", "app", "pw"]).unwrap().is_ok());
    let rules: &[&str] = if open { &["nopass"] } else { &["resetpass", ">secret"] };
    let reply = operator.cmd(&[&["ACL", "SETUSER", "default"], rules].concat()).unwrap();
    assert!(reply.is_ok(), "{reply:?}");
}

fn start() -> (Cluster, Pointsman) {
    // The sentinel does not log in, and is not to take the server for down.
    let cluster = Cluster::builder().replicas(0).sentinels(1).user(USER).down_after(PATIENCE);
    let cluster = cluster.start();
    let password = cluster.folder().join("password");
    std::fs::write(&password, "pw").unwrap();
    let login = format!("[service.auth]\nusername = \"app\"\npassword_file = {password:?}\n");
    let pointsman = builder(&cluster).service_line("upstream = \"shared\"").lines(&login).start();
    (cluster, pointsman)
}

/// The reply to a new client without credentials, which stays connected.
fn ask(pointsman: &Pointsman, request: &[&str]) -> (Client, Value) {
    let mut client = Client::connect(pointsman.addr()).unwrap();
    let reply = client.cmd(request).unwrap();
    (client, reply)
}

fn is_refused(reply: &Value) -> bool {
    reply.error().is_some_and(|it| it.starts_with("NOAUTH"))
}

fn count(pointsman: &Pointsman, name: &str) -> f64 {
    metric(pointsman, &format!("{name}{{service=\"mymaster\"}}")).expect("the metric")
}

/// A moment after a change every new client has its reply, on every worker.
fn clients_soon_are(pointsman: &Pointsman, refused: bool) {
    let changed = Instant::now();
    while changed.elapsed() < KNOWN_FOR {
        ask(pointsman, &["GET", "k"]);
    }
    for _ in 0..50 {
        let (_, reply) = ask(pointsman, &["GET", "k"]);
        assert_eq!(is_refused(&reply), refused, "{reply:?}");
    }
}

#[test]
fn admits_clients_without_credentials_while_the_server_does() {
    let (cluster, pointsman) = start();
    set_access(&cluster, true);
    // The shared connection, and connections on which clients were verified.
    let (mut early, reply) = ask(&pointsman, &["SET", "k", "v"]);
    assert!(reply.is_ok(), "{reply:?}");
    let stateful: [&[&str]; 2] = [&["HELLO", "3"], &["SELECT", "1"]];
    for _ in 0..3 {
        let verified = stateful.map(|request| ask(&pointsman, request));
        assert!(verified.iter().all(|(_, reply)| !reply.is_error()), "{verified:?}");
        wait_until("their return", PATIENCE, || {
            count(&pointsman, "pointsman_shared_sessions") == 3.0
        });
        drop(verified);
        set_access(&cluster, false);
        // The server itself decides, at once.
        for request in stateful {
            let (_, reply) = ask(&pointsman, request);
            assert!(is_refused(&reply), "{request:?}: {reply:?}");
        }
        clients_soon_are(&pointsman, true);
        // One that was admitted stays, as it would directly.
        assert_eq!(early.cmd(&["GET", "k"]).unwrap().text(), Some("v"));
        set_access(&cluster, true);
        for request in stateful {
            let (_, reply) = ask(&pointsman, request);
            assert!(!reply.is_error(), "{request:?}: {reply:?}");
        }
        clients_soon_are(&pointsman, false);
    }
    assert_eq!(early.cmd(&["GET", "k"]).unwrap().text(), Some("v"));
    // Not a connection to the server for each of them.
    let shared = count(&pointsman, "pointsman_shared_connections");
    assert!(shared <= 8.0, "{shared} shared connections");
    assert_eq!(count(&pointsman, "pointsman_shared_desyncs_total"), 0.0);
}

/// A client that comes alone, long after the last one, is not admitted by what was known then.
#[test]
fn refuses_the_first_client_after_a_pause() {
    let (cluster, pointsman) = start();
    set_access(&cluster, true);
    let (mut early, reply) = ask(&pointsman, &["SET", "k", "v"]);
    assert!(reply.is_ok(), "{reply:?}");
    set_access(&cluster, false);
    let changed = Instant::now();
    wait_until("the end of what is known", PATIENCE, || changed.elapsed() > KNOWN_FOR);
    let (_, reply) = ask(&pointsman, &["SET", "k", "w"]);
    assert!(is_refused(&reply), "{reply:?}");
    assert_eq!(early.cmd(&["GET", "k"]).unwrap().text(), Some("v"));
}

/// As directly, clients stay authenticated after their secret was changed. They may authenticate
/// with the next one, in the state that they have, and nobody else can with the former one.
#[test]
fn lets_clients_authenticate_after_a_rotation() {
    let (cluster, pointsman) = start();
    let mut operator = cluster.master().client();
    assert!(operator.cmd(&["AUTH", "app", "pw"]).unwrap().is_ok());
    let user = ["ACL", "SETUSER", "ann", "on", ">one", "~*", "&*", "+@all"];
    assert!(operator.cmd(&user).unwrap().is_ok());
    let begin: [&[&str]; 2] = [&["AUTH", "ann", "one"], &["HELLO", "3", "AUTH", "ann", "one"]];
    let next: [&[&str]; 2] = [&["AUTH", "ann", "two"], &["HELLO", "3", "AUTH", "ann", "two"]];
    let mut clients = begin.map(|request| {
        let (mut client, reply) = ask(&pointsman, request);
        assert!(!reply.is_error(), "{reply:?}");
        assert!(client.cmd(&["SELECT", "3"]).unwrap().is_ok());
        client
    });
    wait_until("them to share", PATIENCE, || count(&pointsman, "pointsman_shared_sessions") == 2.0);
    for (n, client) in clients.iter_mut().enumerate() {
        assert!(client.cmd(&["SET", &format!("k{n}"), "v"]).unwrap().is_ok());
    }
    let reply = operator.cmd(&["ACL", "SETUSER", "ann", "resetpass", ">two"]).unwrap();
    assert!(reply.is_ok(), "{reply:?}");
    for (n, client) in clients.iter_mut().enumerate() {
        let get = |client: &mut Client| client.cmd(&["GET", &format!("k{n}")]).unwrap();
        assert_eq!(get(client).text(), Some("v"));
        let reply = client.cmd(&["AUTH", "ann", "three"]).unwrap();
        assert!(reply.error().is_some_and(|it| it.starts_with("WRONGPASS")), "{reply:?}");
        assert_eq!(get(client).text(), Some("v"), "it is still authenticated");
        let reply = client.cmd(next[n]).unwrap();
        assert!(!reply.is_error(), "{reply:?}");
        assert_eq!(get(client).text(), Some("v"), "in its database");
        assert!(client.cmd(&["MULTI"]).unwrap().is_ok(), "on a connection of its own");
        assert_eq!(client.cmd(&["GET", "k0"]).unwrap().text(), Some("QUEUED"));
        assert_eq!(client.cmd(&["EXEC"]).unwrap().items()[0].text(), Some("v"));
    }
    let (_client, reply) = ask(&pointsman, begin[0]);
    assert!(reply.is_error(), "{reply:?}");
}

/// Servers close the connection of a client that sends much before it has authenticated. Such a
/// request is sent on a connection of its client alone.
#[test]
fn shares_no_large_requests_without_credentials() {
    let (cluster, pointsman) = start();
    set_access(&cluster, false);
    clients_soon_are(&pointsman, true);
    let large = "x".repeat(20_000);
    let many: Vec<&str> = std::iter::once("MGET").chain(["k"; 10]).collect();
    let mut bystander = Client::connect(pointsman.addr()).unwrap();
    for request in [&["SET", "k", &large][..], &many] {
        let mut direct = cluster.master().client();
        let (_, reply) = ask(&pointsman, request);
        assert_eq!(reply, direct.cmd(request).unwrap(), "{:?}", request.first());
    }
    assert!(is_refused(&bystander.cmd(&["GET", "k"]).unwrap()));
    assert_eq!(count(&pointsman, "pointsman_shared_desyncs_total"), 0.0);
    assert_eq!(count(&pointsman, "pointsman_shared_sessions_lost_total"), 0.0);
}
