//! Half TLS handshakes beside honest clients, which do not wait for them: half handshakes are
//! evicted before they take the places of other clients.

use std::net::{Ipv4Addr, SocketAddr};

use harness::{Authority, Client, Cluster, wait_until};

use crate::metric;
use crate::tls_clients::{NAME, PATIENCE, Secured, folder, section, small};

/// The first bytes of a ClientHello that announces 512 bytes.
const HALF_HELLO: &[u8] = &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];

/// The handshakes of a test do not time out while it runs.
const PATIENT: &str = "handshake_timeout = \"10m\"";

/// A network of load balancers.
const BALANCER: Ipv4Addr = Ipv4Addr::new(127, 5, 0, 1);

/// A pointsman with two workers, and further lines of the service.
fn secured(cluster: &Cluster, lines: &str) -> Secured {
    let authority = Authority::new("Test CA");
    let ip = cluster.address().ip().to_string();
    let files = authority.issue(&[NAME, &ip]).write(&folder(cluster));
    let section = section(&[(&files.chain, &files.key)], PATIENT);
    let service = format!("{lines}\n{section}");
    Secured::start_with(cluster, authority, &service, "[process]\nworkers = 2")
}

/// Opens half handshakes from some addresses in turn. Each has sent half a hello, a whole hello
/// that is all it ever says, or nothing.
struct Strangers {
    addr: SocketAddr,
    hello: Vec<u8>,
    /// From a load balancer, with this header.
    header: Option<&'static str>,
    /// Of the third and fourth byte of the address.
    sources: u16,
    open: Vec<Client>,
}

impl Strangers {
    fn of(secured: &Secured, sources: u16, header: Option<&'static str>) -> Self {
        let (addr, hello) = (secured.addr, secured.tls().hello());
        Self { addr, hello, header, sources, open: Vec::new() }
    }

    fn come(&mut self, count: usize) {
        for _ in 0..count {
            let number = self.open.len();
            let source = u16::try_from(number % usize::from(self.sources)).expect("a number");
            let [high, low] = source.to_be_bytes();
            let from = match self.header {
                Some(_) => BALANCER,
                None => Ipv4Addr::new(127, 8, 1 + high, low),
            };
            let mut stranger = Client::connect_from(from, self.addr).expect("a connection");
            let says = [HALF_HELLO, &self.hello, b""][number % 3];
            let header = self.header.unwrap_or_default().as_bytes();
            // Fails if the client was refused.
            let _sent = stranger.send(&[header, says].concat());
            self.open.push(stranger);
        }
    }
}

fn waiting(secured: &Secured) -> f64 {
    let series = "pointsman_tls_handshakes_running{service=\"mymaster\"}";
    metric(&secured.pointsman, series).expect("the series")
}

fn failed(secured: &Secured, reason: &str) -> f64 {
    let labels = format!("{{service=\"mymaster\",reason=\"{reason}\"}}");
    metric(&secured.pointsman, &format!("pointsman_tls_handshake_failures_total{labels}"))
        .expect("the series")
}

#[track_caller]
fn assert_answered(client: &mut Client) {
    assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
}

#[test]
fn serves_tls_clients_while_1300_half_handshakes_wait() {
    let cluster = small();
    let secured = secured(&cluster, "");
    let mut established = secured.client();
    let mut one = Strangers::of(&secured, 1, None);
    one.come(300);
    let mut many = Strangers::of(&secured, 200, None);
    many.come(1000);
    // Two of three have sent something.
    let begun = [300, 1000].map(|all| f64::from(all - all / 3)).iter().sum::<f64>();
    wait_until("all to have begun", PATIENCE, || waiting(&secured) >= begun);
    for _ in 0..20 {
        assert_answered(&mut secured.client());
        assert_answered(&mut established);
    }
    // None of them had to end for that.
    assert_eq!(waiting(&secured), begun);
    assert_eq!((failed(&secured, "timed_out"), failed(&secured, "evicted")), (0.0, 0.0));
}

/// A service with 400 places, 50 clients that come one by one, each after 20 strangers, and one
/// that has connected before all of them and says nothing until they are there.
fn serves_beside_evictions(cluster: &Cluster, sources: u16, header: Option<&'static str>) {
    let lines = "max_connections = 400\nproxy_protocol_from = [\"127.5.0.0/16\"]";
    let secured = secured(cluster, lines);
    let mut established = secured.client();
    let slow = match header {
        Some(_) => {
            let mut slow = Client::connect_from(BALANCER, secured.addr).expect("a connection");
            slow.send(b"PROXY TCP4 10.0.0.1 10.0.0.9 1 2\r\n").expect("sent");
            slow
        }
        None => {
            Client::connect_from(Ipv4Addr::new(127, 6, 0, 1), secured.addr).expect("a connection")
        }
    };
    let mut strangers = Strangers::of(&secured, sources, header);
    let mut served = Vec::new();
    for _ in 0..50 {
        strangers.come(20);
        let mut client = secured.client();
        assert_answered(&mut client);
        assert_answered(&mut established);
        served.push(client);
    }
    // 1000 and the slow one, of which no more wait than there are places.
    let evicted = failed(&secured, "evicted");
    assert!((601.0..1000.0).contains(&evicted), "{evicted}");
    assert_eq!(failed(&secured, "timed_out"), 0.0);
    assert_answered(&mut slow.secured(&secured.tls()).expect("it was not evicted"));
    served.iter_mut().for_each(assert_answered);
    let lines = || secured.pointsman.process().log().matches("TLS handshake evicted").count();
    wait_until("a line in the log", PATIENCE, || lines() > 0);
    assert!(lines() < 10, "{} lines in the log", lines());
}

#[test]
fn evicts_half_handshakes_of_one_address() {
    serves_beside_evictions(&small(), 1, None);
}

#[test]
fn evicts_half_handshakes_of_200_addresses() {
    serves_beside_evictions(&small(), 200, None);
}

#[test]
fn evicts_half_handshakes_by_address_in_header() {
    serves_beside_evictions(&small(), 1, Some("PROXY TCP4 10.0.0.2 10.0.0.9 1 2\r\n"));
}
