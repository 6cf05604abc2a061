//! Clients that are checked by their address: allowed networks, and load balancers with the PROXY
//! protocol; haproxy is a real one.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use harness::{Client, Cluster, Ending, Launch, Pointsman, Process, wait_until};
use serde_json::Value as Json;

use crate::{PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);
/// The address from which haproxy connects.
const BALANCER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 77, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 78, 1);

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

fn rejected(pointsman: &Pointsman, reason: &str) -> f64 {
    let series =
        format!("pointsman_clients_rejected_total{{service=\"mymaster\",reason=\"{reason}\"}}");
    metric(pointsman, &series).expect("the series")
}

/// haproxy in front of `to`, with these options of its server line.
fn haproxy(cluster: &Cluster, name: &str, to: SocketAddr, options: &str) -> (Process, SocketAddr) {
    let folder = cluster.folder().join(name);
    std::fs::create_dir(&folder).expect("a folder");
    let listen = cluster.address().port();
    let conf = format!(
        "defaults\n  mode tcp\n  timeout connect 4s\n  timeout server 60s\n  timeout client 60s\n\
         listen redis\n  bind {listen}\n  server s {to} source {BALANCER} {options}\n"
    );
    let file = folder.join("haproxy.cfg");
    std::fs::write(&file, conf).expect("the file");
    let args = vec!["-db".into(), "-f".into(), file.into_os_string()];
    let program = PathBuf::from("haproxy");
    let launch = Launch { name: name.to_owned(), program, args, env: Vec::new(), folder };
    let process = Process::start(&launch);
    wait_until("haproxy to listen", PATIENCE, || Client::connect(listen).is_ok());
    (process, listen)
}

fn pings(client: &mut Client) -> bool {
    client.cmd(&["PING"]).is_ok_and(|reply| reply.text() == Some("PONG"))
}

#[track_caller]
fn denied(mut client: Client, with: &str) {
    let (reply, _) = client.read_to_end().expect("a reply");
    let reply = String::from_utf8_lossy(&reply).into_owned();
    assert!(reply.starts_with(with), "{reply:?}");
}

fn sessions(cluster: &Cluster) -> Vec<Json> {
    let socket = cluster.folder().join("control.sock");
    let output: Output = Command::new(PROGRAM)
        .args(["sessions", "--json", "--socket"])
        .arg(socket)
        .env_clear()
        .output()
        .expect("pointsman");
    let document: Json = serde_json::from_slice(&output.stdout).expect("JSON");
    document["list"].as_array().expect("a list").clone()
}

#[test]
fn counts_clients_by_address_that_haproxy_reports() {
    let cluster = small();
    let socket = cluster.folder().join("control.sock");
    let pointsman = builder(&cluster)
        .service_line(&format!("proxy_protocol_from = [\"{BALANCER}\"]"))
        .service_line("max_connections_per_source = 2")
        .lines(&format!("control = true\ncontrol_socket = {socket:?}\n[log]\nsessions = \"all\""))
        .start();
    let headers = || metric(&pointsman, "pointsman_proxy_headers_total{service=\"mymaster\"}");
    for (name, options) in [
        ("v1", "send-proxy check check-send-proxy inter 100"),
        ("v2", "send-proxy-v2 proxy-v2-options crc32c check check-send-proxy inter 100"),
    ] {
        let (_haproxy, front) = haproxy(&cluster, name, pointsman.addr(), options);
        let mut client = Client::connect_from(CLIENT, front).expect("a connection");
        assert!(pings(&mut client), "{name}");
        let addr = client.local_addr().expect("an address").to_string();
        let listed = sessions(&cluster).iter().any(|row| row["client"] == *addr);
        assert!(listed, "{name}: {addr} is not among {:?}", sessions(&cluster));
        // The limit applies to the client and not to the load balancer.
        let mut second = Client::connect_from(CLIENT, front).expect("a connection");
        assert!(pings(&mut second));
        let third = Client::connect_from(CLIENT, front).expect("a connection");
        denied(third, "-ERR max number of clients reached");
        let mut other = Client::connect_from(OTHER, front).expect("a connection");
        assert!(pings(&mut other));
        // redis-cli, as people use it.
        let port = front.port().to_string();
        let output = Command::new("redis-cli")
            .args(["-h", &front.ip().to_string(), "-p", &port, "SET", name, "1"])
            .output()
            .expect("redis-cli");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "OK\n", "{output:?}");
        // Health checks are neither refused nor reported.
        let before = headers();
        wait_until("health checks", PATIENCE, || headers() > before.map(|count| count + 5.0));
        drop((client, second, other));
        wait_until("the access log", PATIENCE, || {
            pointsman.process().log().contains(&format!("\"client\":\"{addr}\""))
        });
    }
    for reason in ["header_missing", "header_malformed", "header_timeout", "not_allowed"] {
        assert_eq!(rejected(&pointsman, reason), 0.0, "{reason}");
    }
    assert!(!pointsman.process().log().contains("client rejected"));
}

#[test]
fn requires_header_from_load_balancers_only() {
    let cluster = small();
    let pointsman = builder(&cluster)
        .service_line(&format!("proxy_protocol_from = [\"{BALANCER}\"]"))
        .service_line("proxy_protocol_timeout = \"300ms\"")
        .service_line("allow = [\"127.0.0.0/16\"]")
        .start();
    let from = |source| Client::connect_from(source, pointsman.addr()).expect("a connection");
    // A client elsewhere is not parsed: its bytes are data for Redis.
    let mut direct = from(Ipv4Addr::LOCALHOST);
    assert!(pings(&mut direct));
    direct.send(b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n").expect("a line");
    let reply = direct.read_value().expect("a reply");
    assert!(reply.error().is_some_and(|error| error.contains("unknown command")), "{reply:?}");
    let send = |bytes: &[u8]| {
        let mut client = from(BALANCER);
        client.send(bytes).expect("bytes");
        client
    };
    denied(send(b"PING\r\n"), "-DENIED");
    assert_eq!(rejected(&pointsman, "header_missing"), 1.0);
    for malformed in
        [&b"PROXY TCP4 10.0.0.1\r\nPING\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c"]
    {
        denied(send(malformed), "");
    }
    assert_eq!(rejected(&pointsman, "header_malformed"), 2.0);
    denied(send(b"PROXY TCP4 10.0.0.1 10."), "");
    assert_eq!(rejected(&pointsman, "header_timeout"), 1.0);
    // The address in the header counts for the allowed networks, whatever follows it at once.
    denied(send(b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\nPING\r\n"), "-DENIED");
    assert_eq!(rejected(&pointsman, "not_allowed"), 1.0);
    let mut allowed = send(b"PROXY TCP4 127.0.5.5 10.0.0.2 1 2\r\nPING\r\n");
    assert_eq!(allowed.read_value().expect("a reply").text(), Some("PONG"));
    assert!(pings(&mut allowed));
    // In single bytes, and without an address.
    let mut slow = from(BALANCER);
    for byte in b"PROXY UNKNOWN\r\nPING\r\n" {
        slow.send(&[*byte]).expect("a byte");
    }
    assert_eq!(slow.read_value().expect("a reply").text(), Some("PONG"));
    // Connecting and closing is a health check.
    let before = pointsman.process().log();
    drop(from(BALANCER));
    let mut client = from(BALANCER);
    client.shutdown_write().expect("an end");
    assert_eq!(client.read_to_end().expect("its end"), (Vec::new(), Ending::Fin));
    assert_eq!(pointsman.process().log(), before);
    assert!(pings(&mut direct), "an established session is not affected");
}

#[test]
fn applies_changed_networks_to_new_clients() {
    let cluster = small();
    let line = "allow = [\"127.0.77.0/24\"]";
    let pointsman = builder(&cluster).service_line(line).start();
    let from = |source| Client::connect_from(source, pointsman.addr()).expect("a connection");
    let mut established = from(CLIENT);
    assert!(pings(&mut established));
    denied(from(OTHER), "-DENIED the address of this client is not allowed");
    assert_eq!(rejected(&pointsman, "not_allowed"), 1.0);
    let log = pointsman.process().log();
    assert!(log.contains("client rejected") && log.contains("127.0.78.1"), "{log}");
    let config = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&config).expect("the file");
    std::fs::write(&config, text.replace(line, "allow = [\"127.0.78.1\"]")).expect("the file");
    wait_until("the new networks", PATIENCE, || pings(&mut from(OTHER)));
    denied(from(CLIENT), "-DENIED");
    assert!(pings(&mut established), "a session that began before continues");
    std::fs::write(&config, text.replace(line, "")).expect("the file");
    wait_until("no networks", PATIENCE, || pings(&mut from(CLIENT)));
    assert!(pings(&mut from(OTHER)));
}

/// Connections that Redis has accepted so far.
fn accepted(cluster: &Cluster) -> u64 {
    let stats = cluster.master().ask(&["INFO", "stats"]).expect("its counters");
    let stats = stats.text().expect("text").to_owned();
    let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.expect("a line").parse().expect("a number")
}

/// Health checks and port scans connect and leave. Once they are frequent, they cost Redis nothing.
#[test]
fn spares_redis_from_clients_that_say_nothing() {
    let cluster = small();
    let pointsman = builder(&cluster).lines("[process]\nworkers = 1").start();
    // One that leaves while its connection to Redis is being opened has abandoned it.
    let ended = || {
        let ended = ["client_closed", "hold_abandoned", "client_reset"].map(|reason| {
            let labels = format!("{{service=\"mymaster\",reason=\"{reason}\"}}");
            metric(&pointsman, &format!("pointsman_sessions_closed_total{labels}"))
        });
        ended.into_iter().flatten().sum::<f64>()
    };
    let visit = |visits: u32, so_far: f64| {
        for _ in 0..visits {
            drop(TcpStream::connect(pointsman.addr()).expect("a connection"));
        }
        wait_until("their ends", PATIENCE, || {
            let ended = ended();
            if ended >= so_far { Ok(()) } else { Err(format!("{ended} of {so_far}")) }
        });
    };
    visit(30, 30.0);
    let before = accepted(&cluster);
    visit(500, 530.0);
    let cost = accepted(&cluster) - before;
    assert!(cost < 20, "{cost} connections for 500 clients that said nothing");
    let mut client = pointsman.client();
    assert_eq!(client.cmd(&["PING"]).expect("a reply").text(), Some("PONG"));
}
