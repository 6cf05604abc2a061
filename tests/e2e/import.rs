//! Import of haproxy configurations against a real cluster: every sample of tests/import without
//! TLS that is not refused becomes a configuration that `check` accepts and that serves clients.
//! Only addresses are replaced by those of the cluster.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use harness::{Address, Client, Cluster, Family, Launch, Process, http_get, wait_until};

use crate::PROGRAM;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The password in the samples.
const PASSWORD: &str = "correct-horse-battery";
const ENV: [(&str, &str); 5] = [
    ("AUTH", PASSWORD),
    ("REDIS_PASSWORD", PASSWORD),
    ("SENTINELAUTH", "of-the-sentinels"),
    ("MASTER_NAME", "sessions"),
    ("REDIS_HOST_1", "10.0.0.11"),
];
/// Samples that have a test of their own, in which the sentinels are replaced as well.
const OWN_TEST: [&str; 8] = [
    "argo-cd",
    "bitnami",
    "blog-role",
    "blog-sentinel",
    "hand-written",
    "redis-ha",
    "two-clusters-named",
    "two-clusters-one-name",
];
/// Names of masters in the samples.
const MASTERS: [&str; 3] = ["mymaster", "sessions", "cache"];

fn sample(name: &str) -> String {
    let path = format!("{}/tests/import/{name}.cfg", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A sample with other addresses; each address must occur in it.
pub(crate) fn exchanged(name: &str, addresses: &[(&str, String)]) -> String {
    addresses.iter().fold(sample(name), |text, (from, to)| {
        assert!(text.contains(from), "{name} has no {from}");
        text.replace(from, to)
    })
}

fn run(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).env_clear().envs(ENV).output().expect("pointsman")
}

/// Imports the text, checks the configuration and starts it. Returns the process and the report.
pub(crate) fn started(
    cluster: &Cluster,
    name: &str,
    text: &str,
    flags: &[&str],
) -> (Process, String) {
    let folder = cluster.folder().join(format!("import-{name}"));
    std::fs::create_dir(&folder).expect("a folder");
    let file = |name: &str, text: &[u8]| -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let cfg = file("haproxy.cfg", text.as_bytes());
    let args = [&["import", "haproxy", "--explain", cfg.to_str().expect("a path")], flags].concat();
    let imported = run(&args);
    let said = String::from_utf8_lossy(&imported.stderr).into_owned();
    assert_eq!(imported.status.code(), Some(0), "{name}: {said}");
    let toml = file("pointsman.toml", &imported.stdout);
    let toml = toml.to_str().expect("a path");
    let checked = run(&["check", "--config", toml]);
    assert_eq!(
        checked.status.code(),
        Some(0),
        "{name}: {}",
        String::from_utf8_lossy(&checked.stderr)
    );
    let process = Process::start(&Launch {
        name: format!("imported-{name}"),
        program: PROGRAM.into(),
        args: ["run", "--config", toml].map(Into::into).to_vec(),
        env: ENV.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
        folder,
    });
    (process, said)
}

pub(crate) fn wait_ready(process: &Process, admin: std::net::SocketAddr) {
    wait_until("the imported proxy to be ready", PATIENCE, || {
        assert!(process.is_running(), "it ended: {}", process.tail());
        match http_get(admin, "/ready") {
            Ok((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

/// Checks that a client at this address reaches the master.
fn serves(addr: std::net::SocketAddr, password: Option<&str>) {
    serves_client(Client::connect(addr).expect("a connection"), password);
}

/// Checks that a client behind a load balancer with the PROXY protocol reaches the master.
fn serves_with_header(addr: std::net::SocketAddr, password: Option<&str>) {
    let mut client = Client::connect(addr).expect("a connection");
    client.send(b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n").expect("a header");
    serves_client(client, password);
}

pub(crate) fn serves_client(mut client: Client, password: Option<&str>) {
    if let Some(password) = password {
        assert!(client.cmd(&["AUTH", password]).expect("AUTH").is_ok());
    }
    assert!(client.cmd(&["SET", "who", "imported"]).expect("SET").is_ok());
    assert_eq!(
        client.cmd(&["ROLE"]).expect("ROLE").items().first().and_then(|role| role.text()),
        Some("master")
    );
}

/// Checks that a client at the address for readers reaches a replica. The proxy is ready once it
/// knows the master, and finds the replicas later.
pub(crate) fn reads(
    addr: std::net::SocketAddr,
    password: Option<&str>,
    admin: std::net::SocketAddr,
    service: &str,
) {
    wait_until("a replica for readers", PATIENCE, || {
        let (_, text) = http_get(admin, "/metrics").map_err(|error| error.to_string())?;
        let series = format!("pointsman_replicas_eligible{{service=\"{service}\"}} ");
        let count: Option<f64> =
            text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok());
        if count >= Some(1.0) { Ok(()) } else { Err(format!("{series}{count:?}")) }
    });
    let mut client = Client::connect(addr).expect("a connection");
    if let Some(password) = password {
        assert!(client.cmd(&["AUTH", password]).expect("AUTH").is_ok());
    }
    let role = client.cmd(&["ROLE"]).expect("ROLE");
    assert_eq!(role.items().first().and_then(|role| role.text()), Some("slave"));
}

#[test]
fn serves_argo_cd_and_a_frontend_with_votes() {
    let cluster = Cluster::builder().masters(&["argocd", "mymaster"]).replicas(1).start();
    let sentinels: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    let (listen, admin) = (cluster.address().port(), cluster.address().port());
    let mut addresses = vec![(":6379\n", format!("{listen}\n")), (":8888", admin.to_string())];
    // Of the server lines only the hosts matter; they are replaced where sentinels are named.
    let names: Vec<String> =
        (0..3).map(|at| format!("argocd-redis-ha-announce-{at}:26379")).collect();
    addresses
        .extend(names.iter().zip(&sentinels).map(|(name, addr)| (name.as_str(), addr.clone())));
    let (process, said) = started(&cluster, "argo-cd", &exchanged("argo-cd", &addresses), &[]);
    wait_ready(&process, admin);
    serves(listen, None);
    assert!(
        http_get(admin, "/healthz").is_ok_and(|(status, _)| status == 200),
        "the old path of the probe is answered"
    );
    assert!(
        said.contains("service.name = \"argocd\"")
            && said.contains(" 0 without counterpart, 0 assumed"),
        "{said}"
    );

    let (listen, admin) = (cluster.address().port(), cluster.address().port());
    let mut addresses = vec![("*:6379", listen.to_string())];
    let names: Vec<String> = (1..=3).map(|at| format!("192.168.1.1{at}:26379")).collect();
    addresses
        .extend(names.iter().zip(&sentinels).map(|(name, addr)| (name.as_str(), addr.clone())));
    let text = exchanged("blog-sentinel", &addresses);
    let text = format!("{text}\nlisten page\n    bind {admin}\n    mode http\n    stats enable\n");
    let (process, _) = started(&cluster, "blog-sentinel", &text, &[]);
    wait_ready(&process, admin);
    serves(listen, None);
}

#[test]
fn serves_role_checks_with_password() {
    let cluster = Cluster::builder()
        .masters(&["mymaster", "sessions", "cache"])
        .replicas(1)
        .password(PASSWORD)
        .start();
    let sentinels: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    // If the file names no sentinels, port 26379 is assumed, which differs here.
    let flags = ["--sentinel", &sentinels[0], "--sentinel", &sentinels[1]];
    let port = || cluster.address().port();

    let (listen, admin) = (port(), port());
    let addresses = [("*:6379", listen.to_string()), ("*:8404", admin.to_string())];
    let (process, said) = started(&cluster, "bitnami", &exchanged("bitnami", &addresses), &flags);
    wait_ready(&process, admin);
    serves(listen, Some(PASSWORD));
    assert!(said.contains("service.auth.password_env = \"REDIS_PASSWORD\""), "{said}");

    let (listen, admin) = (port(), port());
    let text = exchanged("blog-role", &[("10.0.0.1:6379", listen.to_string())]);
    let text = format!("{text}\nlisten page\nbind {admin}\nmode http\nmonitor-uri /healthz\n");
    let (process, said) = started(&cluster, "blog-role", &text, &flags);
    wait_ready(&process, admin);
    serves(listen, Some(PASSWORD));
    assert!(said.contains("service.auth.password\n") && !said.contains(PASSWORD), "{said}");

    let (sessions, readers, cache, admin) = (port(), port(), port(), port());
    let addresses = [
        ("10.1.0.5:6380", readers.to_string()),
        ("10.1.0.5:6379", sessions.to_string()),
        ("10.1.0.5:6390", cache.to_string()),
        ("127.0.0.1:8404", admin.to_string()),
        ("src 10.0.0.0/8", "src 127.0.0.0/8".to_owned()),
    ];
    let text = exchanged("hand-written", &addresses);
    let (process, said) = started(
        &cluster,
        "hand-written",
        &text,
        &[&flags[..], &["--name", "cache=cache"]].concat(),
    );
    wait_ready(&process, admin);
    for addr in [sessions, cache] {
        serves(addr, Some(PASSWORD));
    }
    reads(readers, Some(PASSWORD), admin, "sessions");
    assert!(
        said.contains("carries no Redis traffic: keep it in haproxy")
            && !said.contains(PASSWORD)
            && !said.contains("hunter2"),
        "{said}"
    );
}

#[test]
fn serves_redis_ha_chart_with_both_passwords() {
    let cluster =
        Cluster::builder().replicas(1).password(PASSWORD).sentinel_password(ENV[2].1).start();
    let port = || cluster.address().port();
    let (listen, replicas, admin, metrics) = (port(), port(), port(), port());
    let mut addresses = vec![
        ("[::]:6379", listen.to_string()),
        ("[::]:6380", replicas.to_string()),
        ("[::]:8888", admin.to_string()),
        ("[::]:9101", metrics.to_string()),
    ];
    let names: Vec<String> =
        (0..3).map(|at| format!("shop-redis-ha-announce-{at}:26379")).collect();
    let sentinels = cluster.sentinel_addrs();
    addresses
        .extend(names.iter().zip(&sentinels).map(|(name, addr)| (name.as_str(), addr.to_string())));
    let (process, said) = started(&cluster, "redis-ha", &exchanged("redis-ha", &addresses), &[]);
    wait_ready(&process, admin);
    serves(listen, Some(PASSWORD));
    reads(replicas, Some(PASSWORD), admin, "mymaster");
    let (status, text) = http_get(metrics, "/metrics").expect("the old port of the metrics");
    assert!(
        status == 200 && text.contains("pointsman_master_switches_total{service=\"mymaster\"} 1"),
        "{text}"
    );
    assert!(said.contains("service.sentinel_auth.password_env = \"SENTINELAUTH\""), "{said}");
}

/// The sample's flags, if the sample is not refused.
fn flags_of(text: &str) -> Option<Vec<&str>> {
    let mut expected = text.lines().filter_map(|line| line.strip_prefix("#= "));
    let command = expected.next().expect("an expectation");
    (expected.next() == Some("exit 0")).then(|| command.split_whitespace().skip(3).collect())
}

/// The text with a new address or Unix socket in every `bind`, and with an admin server.
fn rebound(cluster: &Cluster, text: &str, admin: std::net::SocketAddr) -> String {
    let rebind = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = match words[..] {
            ["bind", path, ..] if path.starts_with('/') => {
                let own =
                    cluster.folder().join(format!("{}.sock", cluster.address().port().port()));
                return line.replacen(path, own.to_str().expect("a path"), 1);
            }
            ["bind", address, ..] => Some(address),
            ["listen", _, address, ..] if address.contains(':') => Some(address),
            _ => None,
        };
        address.map_or(line.to_owned(), |address| {
            line.replacen(address, &cluster.address().port().to_string(), 1)
        })
    };
    let text: String = text.lines().map(|line| rebind(line) + "\n").collect();
    // The clients are on this machine.
    let text = text.replace("src 10.0.0.0/8", "src 127.0.0.0/8");
    format!("{text}listen added-page\n bind {admin}\n mode http\n stats enable\n")
}

/// The listen addresses, with Unix sockets separately.
fn addresses(service: &toml::Value, key: &str) -> (Vec<std::net::SocketAddr>, Vec<PathBuf>) {
    let all = service.get(key).and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let (unix, tcp): (Vec<_>, Vec<_>) =
        all.iter().filter_map(toml::Value::as_str).partition(|addr| addr.starts_with("unix:"));
    let tcp = tcp.iter().map(|addr| addr.parse().expect("an address"));
    (
        tcp.collect(),
        unix.iter().filter_map(|addr| addr.strip_prefix("unix:")).map(PathBuf::from).collect(),
    )
}

fn answers_at(path: &Path) {
    let mut client = UnixStream::connect(path).expect("a socket");
    client.write_all(b"PING\r\n").expect("a request");
    let mut reply = [0; 7];
    client.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply, b"+PONG\r\n");
}

/// Imports and runs every sample with or without a password; returns how many there were.
fn serve_samples(cluster: &Cluster, with_password: bool) -> usize {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/import");
    let entries =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let samples = entries.filter(|path| path.extension().is_some_and(|it| it == "cfg"));
    let mut names: Vec<String> =
        samples.filter_map(|it| Some(it.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    names.retain(|name| !OWN_TEST.contains(&name.as_str()));
    let sentinel = cluster.sentinel_addrs()[0].to_string();
    let mut count = 0;
    for name in names {
        let text = sample(&name);
        let Some(mut flags) = flags_of(&text) else { continue };
        if text.contains(".auth.") != with_password || text.contains("tls.") {
            continue;
        }
        count += 1;
        if let Some(at) = flags.iter().position(|flag| *flag == "--sentinel") {
            flags.drain(at..at + 2);
        }
        flags.extend(["--sentinel", &sentinel]);
        let admin = cluster.address().port();
        let (process, _) = started(cluster, &name, &rebound(cluster, &text, admin), &flags);
        wait_ready(&process, admin);
        let toml = cluster.folder().join(format!("import-{name}/pointsman.toml"));
        let table: toml::Table =
            std::fs::read_to_string(toml).expect("a file").parse().expect("TOML");
        for service in table["service"].as_array().expect("services") {
            let (listen, sockets) = addresses(service, "listen");
            assert!(!listen.is_empty(), "{name}");
            let from = service.get("proxy_protocol_from").and_then(toml::Value::as_array);
            let from_all =
                from.is_some_and(|it| it.iter().any(|net| net.as_str() == Some("0.0.0.0/0")));
            for addr in listen {
                let password = with_password.then_some(PASSWORD);
                if from_all { serves_with_header(addr, password) } else { serves(addr, password) }
            }
            sockets.iter().for_each(|path| answers_at(path));
            for addr in addresses(service, "replica_listen").0 {
                reads(
                    addr,
                    with_password.then_some(PASSWORD),
                    admin,
                    service["name"].as_str().expect("a name"),
                );
            }
        }
    }
    count
}

#[test]
fn serves_every_sample_without_password() {
    let cluster = Cluster::builder().masters(&MASTERS).replicas(1).start();
    assert!(serve_samples(&cluster, false) >= 20);
}

#[test]
fn serves_every_sample_with_password() {
    let user = format!("proxy on >{PASSWORD} ~* &* +@all");
    let cluster =
        Cluster::builder().masters(&MASTERS).replicas(1).password(PASSWORD).user(&user).start();
    assert!(serve_samples(&cluster, true) >= 3);
}

#[test]
fn refuses_by_line_with_exit_code_78() {
    let address = Address::claim(Family::Ipv4);
    let folder = tempfile::tempdir().expect("a folder");
    let cfg = folder.path().join("haproxy.cfg");
    let text = format!(
        "listen redis\n  bind {}\n  server a \"${{REDIS_HOST}}:6379\"\n  tcp-check send 'PING\n",
        address.port()
    );
    std::fs::write(&cfg, text).expect("a file");
    let cfg = cfg.to_str().expect("a path");
    let output = run(&["import", "haproxy", cfg]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(78), &b""[..]));
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].starts_with(&format!(
            "{cfg}:3:3: \"${{REDIS_HOST}}:6379\" is not a host; set the variable"
        )),
        "{said}"
    );
    assert!(lines[1].starts_with(&format!("{cfg}:4:18: the quote ' is not closed")), "{said}");
    assert_eq!(lines[2], "pointsman: import refused: 2 errors, no configuration written");
    assert_eq!(run(&["import", "haproxy", "/nowhere"]).status.code(), Some(78));
    assert_eq!(run(&["import", "haproxy"]).status.code(), Some(64));
}
