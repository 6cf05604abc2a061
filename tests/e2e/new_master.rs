//! Sessions that are carried to a master which is full, stopped or busy: they wait for it, and
//! their clients do not notice.
//!
//! Most of these tests publish the target themselves to the data plane alone, so that the master is
//! in that state at the moment of the commit. How discovery treats such a master is tested
//! elsewhere.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use harness::{Client, Cluster, Node, wait_until};

use crate::{DEDICATED, builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);
const CLIENTS: usize = 20;

/// Counts the hints of sessions about their target.
#[derive(Debug, Default)]
struct Noticed(AtomicUsize);

impl proxy::Hints for Noticed {
    fn hint(&self, _target: &target::Target, _hint: proxy::Hint) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A data plane without discovery.
struct Plane {
    points: target::TargetWriter,
    noticed: Arc<Noticed>,
    addr: SocketAddr,
    drain: drain::Drain,
    running: Option<proxy::Running>,
    controller: Option<JoinHandle<drain::Summary>>,
}

impl Plane {
    fn start(cluster: &Cluster, options: proxy::Options) -> Self {
        let (points, route) = target::TargetWriter::new();
        let noticed = Arc::<Noticed>::default();
        let hints = Arc::clone(&noticed) as Arc<dyn proxy::Hints>;
        let service = proxy::Service {
            name: "s".into(),
            route: route.into(),
            options: options.into(),
            hints,
        };
        let addr = cluster.address().port();
        let plan = proxy::AddressPlan::new(NonZeroUsize::MIN, &[addr], Vec::new());
        let listener = plan.bind(addr, &service.options.now()).expect("a bound address");
        let (drain, controller) = drain::new(drain::ShutdownSettings::default());
        let mut running =
            proxy::Running::start(NonZeroUsize::MIN, 1000, &drain).expect("a running data plane");
        let number = running.add_service(service);
        running.open(number, listener, false);
        let controller = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .expect("a runtime");
            runtime.block_on(controller.run())
        });
        Self { points, noticed, addr, drain, running: Some(running), controller: Some(controller) }
    }

    fn commit(&mut self, node: &Node) {
        let addr = node.addr();
        self.points.commit(target::Destination {
            addr,
            name: addr.to_string().into(),
            epoch: 0,
            run_id: None,
        });
    }

    /// Clients that the target has answered.
    fn clients(&self) -> Vec<Client> {
        let client = |_| {
            let mut client = Client::connect_within(self.addr, PATIENCE).expect("a connection");
            assert_eq!(client.cmd(&["PING"]).expect("an answer").text(), Some("PONG"));
            client
        };
        (0..CLIENTS).map(client).collect()
    }

    fn stats(&self) -> proxy::ServiceSnapshot {
        self.running.as_ref().and_then(|it| it.stats.service("s")).expect("counters")
    }

    /// Waits until this many attempts have failed.
    fn wait_failures(&self, count: usize) {
        wait_until("attempts that fail", PATIENCE, || {
            self.noticed.0.load(Ordering::Relaxed) >= count
        });
    }

    fn wait_carried(&self, count: u64) {
        wait_until("sessions to be carried", PATIENCE, || self.stats().carried >= count);
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.drain.request_stop(drain::StopRequest::Cut);
        drop(self.controller.take().map(JoinHandle::join));
        drop(self.running.take().map(proxy::Running::join));
    }
}

fn options() -> proxy::Options {
    proxy::Options {
        hold_timeout: PATIENCE,
        connect_timeout: Duration::from_millis(300),
        ..proxy::Options::default()
    }
}

/// Two independent masters.
fn two_masters() -> Cluster {
    Cluster::builder().masters(&["old", "new"]).replicas(0).sentinels(0).start()
}

/// Makes the server accept only this many more connections. Returns a connection for later
/// commands.
fn fill(node: &Node, room: i64) -> Client {
    let mut client = node.client();
    let taken: i64 =
        node.info("clients", "connected_clients").expect("a number").parse().expect("a number");
    // The connection that asked is closed by then.
    let most = taken - 1 + room;
    assert!(
        client.cmd(&["CONFIG", "SET", "maxclients", &most.to_string()]).expect("an answer").is_ok()
    );
    client
}

#[test]
fn keeps_idle_clients_while_the_new_master_is_full() {
    let cluster = two_masters();
    let [old, new] = [&cluster.groups()[0].nodes()[0], &cluster.groups()[1].nodes()[0]];
    let mut plane = Plane::start(&cluster, options());
    plane.commit(old);
    let mut clients = plane.clients();
    let mut control = fill(new, 9);
    plane.commit(new);
    plane.wait_carried(9);
    plane.wait_failures(3);
    assert_eq!(plane.stats().carried, 9);
    assert!(control.cmd(&["CONFIG", "SET", "maxclients", "10000"]).expect("an answer").is_ok());
    plane.wait_carried(CLIENTS as u64);
    for client in &mut clients {
        assert_eq!(client.cmd(&["PING"]).expect("an answer").text(), Some("PONG"));
    }
    assert_eq!(plane.stats().closed_in_all(), 0);
}

#[test]
fn closes_waiting_clients_cleanly_if_the_new_master_stays_full() {
    let cluster = two_masters();
    let [old, new] = [&cluster.groups()[0].nodes()[0], &cluster.groups()[1].nodes()[0]];
    let mut plane = Plane::start(
        &cluster,
        proxy::Options { hold_timeout: Duration::from_secs(3), ..options() },
    );
    plane.commit(old);
    let mut clients = plane.clients();
    let _control = fill(new, 9);
    plane.commit(new);
    wait_until("the end of the hold", PATIENCE, || plane.stats().closed_in_all() == 11);
    let mut served = 0;
    for client in &mut clients {
        // The connection ended before the request, so nothing that is read can be a reply to it.
        match client.cmd(&["PING"]) {
            Ok(answer) => {
                assert_eq!(answer.text(), Some("PONG"), "an idle client was told something");
                served += 1;
            }
            Err(error) => assert!(
                matches!(client.read_to_end(), Ok((bytes, _)) if bytes.is_empty()),
                "{error}"
            ),
        }
    }
    assert_eq!((served, plane.stats().carried), (9, 9));
}

#[test]
fn carries_nobody_to_a_stopped_master_until_it_answers() {
    let cluster = two_masters();
    let [old, new] = [&cluster.groups()[0].nodes()[0], &cluster.groups()[1].nodes()[0]];
    let mut plane = Plane::start(&cluster, options());
    plane.commit(old);
    let mut clients = plane.clients();
    plane.points.hold();
    // Its kernel still accepts connections.
    new.stop();
    plane.commit(new);
    clients[0].send(b"INCR k\r\n").expect("a request");
    plane.wait_failures(3);
    assert_eq!(plane.stats().carried, 0, "an accepted connection was taken for an answer");
    // Another master is committed instead: held requests were not forwarded, and are answered
    // there.
    plane.commit(old);
    assert_eq!(clients[0].read_value().expect("an answer").int(), Some(1));
    plane.wait_carried(CLIENTS as u64);
    plane.commit(new);
    plane.wait_failures(CLIENTS);
    new.cont();
    plane.wait_carried(2 * CLIENTS as u64);
    for client in &mut clients {
        assert_eq!(client.cmd(&["PING"]).expect("an answer").text(), Some("PONG"));
    }
    assert_eq!(
        new.ask(&["EXISTS", "k"]).expect("an answer").int(),
        Some(0),
        "the stopped master got a request"
    );
    assert_eq!(plane.stats().closed_in_all(), 0);
}

#[test]
fn waits_for_a_master_that_runs_a_script() {
    let cluster = two_masters();
    let [old, new] = [&cluster.groups()[0].nodes()[0], &cluster.groups()[1].nodes()[0]];
    assert!(new.ask(&["CONFIG", "SET", "lua-time-limit", "10"]).expect("an answer").is_ok());
    let mut plane = Plane::start(&cluster, options());
    plane.commit(old);
    let mut clients = plane.clients();
    assert!(clients[1].cmd(&["SELECT", "3"]).expect("an answer").is_ok());
    let (mut script, mut control) = (new.client(), new.client());
    script.send(&harness::encode(&["EVAL", "while true do end", "0"])).expect("a request");
    wait_until("a busy server", PATIENCE, || {
        control
            .cmd(&["PING"])
            .expect("an answer")
            .error()
            .is_some_and(|error| error.starts_with("BUSY"))
    });
    plane.points.hold();
    for client in &mut clients {
        client.send(b"INCR k\r\n").expect("a request");
    }
    plane.commit(new);
    plane.wait_failures(3);
    assert_eq!(plane.stats().carried, 0);
    assert!(control.cmd(&["SCRIPT", "KILL"]).expect("an answer").is_ok());
    let mut counts: Vec<i64> = clients
        .iter_mut()
        .map(|client| {
            let answer = client.read_value().expect("an answer");
            answer.int().unwrap_or_else(|| panic!("{answer} instead of a number"))
        })
        .collect();
    counts.sort_unstable();
    // The session in another database counts there.
    assert_eq!(counts, [1].into_iter().chain(1..CLIENTS as i64).collect::<Vec<_>>());
}

#[test]
fn shows_no_error_of_a_full_master_after_a_failover() {
    let cluster = Cluster::builder().start();
    let builder = builder(&cluster).service_line("hold_timeout = \"30s\"");
    let pointsman = builder.service_line(DEDICATED).start();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| pointsman.client()).collect();
    for client in &mut clients {
        client.set_timeout(PATIENCE).expect("a timeout");
        assert_eq!(client.cmd(&["PING"]).expect("an answer").text(), Some("PONG"));
    }
    // Stopped, so that it finds the new master full: Sentinel closes every connection of a server
    // that it promotes, including any that could have prepared that.
    pointsman.process().signal(harness::Signal::STOP);
    let failover = cluster.failover();
    let new = cluster.node_at(failover.to).expect("the new master");
    // Room for the other two servers, for discovery and for some of the clients.
    let mut control = fill(new, 12);
    pointsman.process().signal(harness::Signal::CONT);
    let carried = || {
        metric(&pointsman, "pointsman_sessions_carried_total{service=\"mymaster\"}")
            .unwrap_or_default()
    };
    let waiting = || {
        metric(&pointsman, "pointsman_sessions_waiting{service=\"mymaster\"}").unwrap_or_default()
    };
    wait_until("the sessions to move", PATIENCE, || {
        carried() > 0.0 && carried() + waiting() >= CLIENTS as f64
    });
    let waited = waiting() > 0.0;
    assert!(control.cmd(&["CONFIG", "SET", "maxclients", "10000"]).expect("an answer").is_ok());
    wait_until("all of them", PATIENCE, || carried() >= CLIENTS as f64);
    for client in &mut clients {
        assert_eq!(
            client.cmd(&["PING"]).expect("an answer").text(),
            Some("PONG"),
            "an idle client was told something"
        );
    }
    assert!(waited, "the new master was not full");
}

/// A new master where nobody may be anonymous any more does not serve such sessions.
#[test]
fn closes_admitted_sessions_where_a_password_is_needed() {
    let cluster = two_masters();
    let [old, new] = [&cluster.groups()[0].nodes()[0], &cluster.groups()[1].nodes()[0]];
    let mut plane = Plane::start(&cluster, options());
    plane.commit(old);
    let mut clients = plane.clients();
    let needs_password = ["CONFIG", "SET", "requirepass", "pw"];
    for node in [new, old] {
        assert!(node.ask(&needs_password).expect("an answer").is_ok());
    }
    // As with Redis itself, a password applies to clients that come later.
    assert_eq!(clients[0].cmd(&["PING"]).expect("an answer").text(), Some("PONG"));
    let mut late = Client::connect_within(plane.addr, PATIENCE).expect("a connection");
    let is_refused = |client: &mut Client| {
        let reply = client.cmd(&["GET", "k"]).expect("an answer");
        reply.error().is_some_and(|error| error.starts_with("NOAUTH"))
    };
    assert!(is_refused(&mut late));
    plane.commit(new);
    for client in &mut clients {
        assert_eq!(client.read_to_end().expect("the end of the connection").0, b"");
    }
    assert!(is_refused(&mut late), "it has not authenticated yet, and may do so");
    assert!(late.cmd(&["AUTH", "pw"]).expect("an answer").is_ok());
    assert_eq!(plane.stats().carried, 1);
}
