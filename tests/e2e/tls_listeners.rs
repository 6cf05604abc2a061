//! TLS addresses for readers and for clients of the sentinels: replicas, events, failovers, and
//! servers that die.

use std::net::SocketAddr;
use std::time::Duration;

use harness::{Authority, Client, Cluster, Ending, Pointsman, Tls, wait_until};

use crate::tls_clients::{NAME, assert_served, folder, section};
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);

/// A pointsman with one TLS address of this key, beside its plain one.
struct Listening {
    pointsman: Pointsman,
    addr: SocketAddr,
    tls: Tls,
}

impl Listening {
    fn start(cluster: &Cluster, key: &str) -> Self {
        let authority = Authority::new("Test CA");
        let files = authority.issue(&[NAME]).write(&folder(cluster));
        let addr = cluster.address().port();
        let pointsman = builder(cluster)
            .service_line("hold_timeout = \"30s\"")
            .service_line(&format!("{key} = [\"{addr}\"]"))
            .service_line(&section(&[(&files.chain, &files.key)], ""))
            .start();
        Self { pointsman, addr, tls: Tls::new(&authority, NAME) }
    }

    fn connect(&self) -> std::io::Result<Client> {
        Client::connect_tls(self.addr, &self.tls, PATIENCE)
    }

    /// One value with these labels after that of the service.
    fn value(&self, name: &str, labels: &str) -> f64 {
        let series = format!("pointsman_{name}{{service=\"mymaster\"{labels}}}");
        metric(&self.pointsman, &series).unwrap_or(0.0)
    }
}

/// The port of the server that answers; an error unless it is a replica.
fn replica_of(client: &mut Client) -> Result<String, String> {
    let info = client.cmd(&["INFO"]).map_err(|error| error.to_string())?;
    let text = info.text().ok_or_else(|| format!("{info:?}"))?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    match (field("role:"), field("tcp_port:")) {
        (Some("slave"), Some(port)) => Ok(port.to_owned()),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn serves_readers_over_tls_from_replicas_only() {
    let cluster = Cluster::builder().start();
    let listening = Listening::start(&cluster, "replica_tls_listen");
    wait_until("both replicas to serve", PATIENCE, || {
        listening.value("replicas_eligible", "") >= 2.0
    });
    let mut readers: Vec<Client> = (0..8).map(|_| listening.connect().expect("a reader")).collect();
    for reader in &mut readers {
        replica_of(reader).expect("a replica");
        let refused = reader.cmd(&["SET", "k", "v"]).expect("a reply");
        assert!(refused.error().is_some_and(|it| it.starts_with("READONLY")), "{refused:?}");
    }
    // The plain address beside it leads to the master.
    assert!(listening.pointsman.client().cmd(&["SET", "k", "v"]).expect("SET").is_ok());
    let labels = ",listener=\"replica\"";
    assert!(listening.value("sessions_total", labels) >= 8.0, "counted as sessions of readers");

    // Idle readers are carried through a failover. In the end none of them reads from the new
    // master.
    cluster.failover();
    cluster.wait_whole();
    let master = cluster.master().addr().port().to_string();
    wait_until("readers on replicas only", PATIENCE, || {
        for reader in &mut readers {
            let port = replica_of(reader)?;
            if port == master {
                return Err(port);
            }
        }
        Ok(())
    });
    // A replica dies: new readers are served by the other one.
    let dead = cluster.replicas()[0];
    dead.kill();
    wait_until("only one replica to serve", PATIENCE, || {
        listening.value("replicas_eligible", "") == 1.0
    });
    for _ in 0..8 {
        let port = replica_of(&mut listening.connect().expect("a reader")).expect("a replica");
        assert_ne!(port, dead.addr().port().to_string());
    }
    assert_served(listening.addr, &listening.tls);
}

#[test]
fn serves_sentinel_clients_over_tls() {
    let cluster = Cluster::builder().start();
    let listening = Listening::start(&cluster, "sentinel_tls_listen");
    let ask = |client: &mut Client| {
        let answer = client.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
        let answer = answer.map_err(|error| error.to_string())?;
        let parts = answer.items().iter().filter_map(|it| it.text().map(str::to_owned));
        Ok::<Vec<String>, String>(parts.collect())
    };
    let master = || {
        let addr = cluster.master().addr();
        vec![addr.ip().to_string(), addr.port().to_string()]
    };
    wait_until("an answer with the master", PATIENCE, || {
        let mut client = listening.connect().map_err(|error| error.to_string())?;
        let answer = ask(&mut client)?;
        if answer == master() { Ok(()) } else { Err(format!("{answer:?}")) }
    });
    let mut subscriber = listening.connect().expect("a connection");
    let id = subscriber.cmd(&["SENTINEL", "MYID"]).expect("MYID");
    let confirmed = subscriber.cmd(&["SUBSCRIBE", "+switch-master"]).expect("SUBSCRIBE");
    assert_eq!(confirmed.items().first().and_then(|it| it.text()), Some("subscribe"));
    let old = master();
    cluster.failover();
    let event = subscriber.read_value().expect("the event");
    let text = event.items().get(2).and_then(|it| it.text()).unwrap_or_default().to_owned();
    assert!(text.starts_with(&format!("mymaster {} {} ", old[0], old[1])), "{event:?}");

    // Its sentinel dies: the session ends with `close_notify`, and another sentinel answers.
    let mine = cluster.sentinels().iter().find(|it| {
        let reply = it.ask(&["SENTINEL", "MYID"]);
        reply.is_ok_and(|reply| reply.text() == id.text())
    });
    mine.expect("the sentinel of the subscriber").kill();
    let (_, ending) = subscriber.read_to_end().expect("an orderly end");
    assert_eq!(ending, Ending::Fin);
    wait_until("another sentinel", PATIENCE, || {
        let mut client = listening.connect().map_err(|error| error.to_string())?;
        let answer = ask(&mut client)?;
        if answer == master() { Ok(()) } else { Err(format!("{answer:?}")) }
    });
    let labels = ",listener=\"sentinel\"";
    assert!(listening.value("sessions_total", labels) >= 2.0, "counted as sessions of their own");
}
