//! What the admin server withstands: foreign hosts, guessed tokens, and readers without a token.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, wait_until};

use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);
const CONTROL: &str = "the-control-token-1";
const READ: &str = "the-reading-token-1";
/// The Basic credentials "any:the-reading-token-1".
const READ_BASIC: &str = "Basic YW55OnRoZS1yZWFkaW5nLXRva2VuLTE=";

/// Sends a request from `source` and returns the status and the head of the response.
fn request(
    source: Ipv4Addr,
    addr: SocketAddr,
    line: &str,
    headers: &[(&str, &str)],
) -> (u16, String) {
    let client = Client::connect_from(source, addr).expect("a connection");
    let mut stream = client.stream();
    let mut text = format!("{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        text += &format!("Host: {addr}\r\n");
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{text}\r\n").as_bytes()).expect("a request");
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("a response");
    let response = String::from_utf8_lossy(&response).into_owned();
    (response.get(9..12).and_then(|code| code.parse().ok()).expect("a status"), response)
}

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

fn get(pointsman: &Pointsman, path: &str, headers: &[(&str, &str)]) -> u16 {
    request(Ipv4Addr::LOCALHOST, pointsman.admin(), &format!("GET {path}"), headers).0
}

#[test]
fn refuses_foreign_hosts_until_they_are_configured() {
    let cluster = small();
    let line = "hosts = [\"proxy.example.com\"]";
    let pointsman = builder(&cluster).lines(line).start();
    for path in ["/", "/status", "/networks", "/history"] {
        assert_eq!(get(&pointsman, path, &[("Host", "rebind.example")]), 421, "{path}");
        assert_eq!(get(&pointsman, path, &[("Host", "proxy.example.com:80")]), 200, "{path}");
        assert_eq!(get(&pointsman, path, &[]), 200, "{path}");
    }
    for path in ["/alive", "/ready", "/startup", "/metrics"] {
        assert_eq!(get(&pointsman, path, &[("Host", "rebind.example")]), 200, "{path}");
    }
    assert_eq!(metric(&pointsman, "pointsman_admin_foreign_hosts_total"), Some(4.0));
    let config = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&config).expect("the file");
    std::fs::write(&config, text.replace(line, "hosts = [\"*.example\"]")).expect("the file");
    wait_until("the other names", PATIENCE, || {
        get(&pointsman, "/status", &[("Host", "rebind.example")]) == 200
    });
    assert_eq!(get(&pointsman, "/status", &[("Host", "proxy.example.com")]), 421);
}

#[test]
fn throttles_guessed_tokens_by_source() {
    let cluster = small();
    let lines = "control = true\ncontrol_token_env = \"E2E_TOKEN\"";
    let pointsman = builder(&cluster).lines(lines).env("E2E_TOKEN", CONTROL).start();
    let resume = |source: Ipv4Addr, token: &str| {
        let header = format!("Bearer {token}");
        request(source, pointsman.admin(), "POST /control/resume", &[("Authorization", &header)])
    };
    let (attacker, operator) = (Ipv4Addr::new(127, 0, 66, 6), Ipv4Addr::LOCALHOST);
    for number in 0..10 {
        let (status, response) = resume(attacker, &format!("guess-number-{number:05}"));
        assert_eq!(status, 401, "{response}");
    }
    // Wrong ones only: others may be behind the same address, such as the operator.
    assert_eq!(resume(attacker, CONTROL).0, 200, "the right token is not locked out");
    let (status, response) = resume(attacker, "guess-number-99999");
    assert_eq!(status, 429, "{response}");
    assert!(response.to_ascii_lowercase().contains("retry-after: "), "{response}");
    assert_eq!(resume(attacker, CONTROL).0, 200, "neither after that");
    assert_eq!(resume(operator, "guess-number-99999").0, 401, "other sources are not throttled");
    // Without a token nothing is guessed.
    for _ in 0..20 {
        let bare = request(operator, pointsman.admin(), "POST /control/resume", &[]).0;
        assert_eq!(bare, 401);
    }
    assert_eq!(resume(operator, CONTROL).0, 200);
    let refused = |reason: &str| {
        metric(&pointsman, &format!("pointsman_admin_tokens_refused_total{{reason=\"{reason}\"}}"))
    };
    assert_eq!((refused("wrong"), refused("throttled")), (Some(11.0), Some(1.0)));
    let log = pointsman.process().log();
    assert!(log.contains("127.0.66.6") && !log.contains("guess-number"), "{log}");
    wait_until("the allowance", PATIENCE, || resume(attacker, "guess-number-88888").0 == 401);
}

#[test]
fn asks_readers_for_token_except_probes() {
    let cluster = small();
    let read_only = cluster.address().port();
    let lines = format!(
        "control = true\ncontrol_token_env = \"E2E_TOKEN\"\nread_token_env = \"E2E_READ\"\n\
         read_only_listen = [\"{read_only}\"]"
    );
    let pointsman =
        builder(&cluster).lines(&lines).env("E2E_TOKEN", CONTROL).env("E2E_READ", READ).start();
    let (read, control) = (format!("Bearer {READ}"), format!("Bearer {CONTROL}"));
    for path in ["/", "/status", "/networks", "/history", "/metrics"] {
        assert_eq!(get(&pointsman, path, &[]), 401, "{path}");
        for header in [read.as_str(), READ_BASIC, &control] {
            assert_eq!(get(&pointsman, path, &[("Authorization", header)]), 200, "{path} {header}");
        }
    }
    for path in ["/alive", "/startup", "/healthz"] {
        assert_eq!(get(&pointsman, path, &[]), 200, "{path}");
    }
    let resume = |addr, header: &str| {
        let headers = [("Authorization", header)];
        request(Ipv4Addr::LOCALHOST, addr, "POST /control/resume", &headers).0
    };
    assert_eq!(resume(pointsman.admin(), &read), 401, "reading does not permit commands");
    assert_eq!(resume(pointsman.admin(), READ_BASIC), 401);
    assert_eq!(resume(pointsman.admin(), &control), 200);
    assert_eq!(resume(read_only, &control), 403, "a read-only address");
    let status =
        request(Ipv4Addr::LOCALHOST, read_only, "GET /status", &[("Authorization", &read)]);
    assert_eq!(status.0, 200);
}
