//! Two groups of sentinels that both call their master `mymaster`, served by one process: each
//! service has its own name, and its clients never get the data of the other.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

use harness::{Client, Cluster, Launch, Process, http_get, wait_until};
use serde_json::Value as Json;

use crate::PROGRAM;
use crate::import::{exchanged, started, wait_ready};
use crate::switchover::{TOKEN, stderr, stdout};

const PATIENCE: Duration = Duration::from_secs(30);

/// The listen address of each service.
struct Listeners {
    orders: SocketAddr,
    sessions: SocketAddr,
    admin: SocketAddr,
}

fn listeners(cluster: &Cluster) -> Listeners {
    let port = || cluster.address().port();
    Listeners { orders: port(), sessions: port(), admin: port() }
}

fn who(addr: SocketAddr) -> String {
    let mut client = Client::connect(addr).expect("a connection");
    client.cmd(&["GET", "who"]).expect("GET").text().unwrap_or_default().to_owned()
}

fn set_who(cluster: &Cluster, value: &str) {
    assert!(cluster.master().ask(&["SET", "who", value]).expect("SET").is_ok());
}

fn series(admin: SocketAddr, series: &str) -> Option<f64> {
    let (_, text) = http_get(admin, "/metrics").expect("metrics");
    text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

fn status(admin: SocketAddr) -> Json {
    let (_, text) = http_get(admin, "/status").expect("the status");
    serde_json::from_str(&text).expect("JSON")
}

fn pointsman(words: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(words).env_clear().envs([("POINTSMAN_CONTROL_TOKEN", TOKEN), ("TOKEN", TOKEN)]);
    command.output().expect("pointsman")
}

/// Starts one process for both clusters, from a configuration with `master`.
fn both(orders: &Cluster, sessions: &Cluster, at: &Listeners) -> (Process, String) {
    let service = |name: &str, listen: SocketAddr, cluster: &Cluster| {
        let sentinels: Vec<String> =
            cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
        format!(
            "[[service]]\nname = {name:?}\nmaster = \"mymaster\"\nlisten = [\"{listen}\"]\n\
             sentinels = {sentinels:?}\n"
        )
    };
    let toml = service("orders", at.orders, orders)
        + &service("sessions", at.sessions, sessions)
        + &format!(
            "[admin]\nlisten = [\"{}\"]\ncontrol = true\ncontrol_token_env = \"TOKEN\"\n",
            at.admin
        );
    let folder = orders.folder().join("both");
    std::fs::create_dir(&folder).expect("a folder");
    let file = folder.join("pointsman.toml");
    std::fs::write(&file, toml).expect("a file");
    let path = file.to_str().expect("a path").to_owned();
    let process = Process::start(&Launch {
        name: "both".to_owned(),
        program: PROGRAM.into(),
        args: ["run", "--config", &path].map(Into::into).to_vec(),
        env: vec![("TOKEN".to_owned(), TOKEN.to_owned())],
        folder,
    });
    wait_ready(&process, at.admin);
    (process, path)
}

#[test]
fn serves_two_clusters_with_one_master_name() {
    let (orders, sessions) =
        (Cluster::builder().replicas(1).start(), Cluster::builder().replicas(1).start());
    let at = listeners(&orders);
    let (process, file) = both(&orders, &sessions, &at);
    set_who(&orders, "orders");
    set_who(&sessions, "sessions");
    let mut quiet = Client::connect(at.sessions).expect("a connection");
    assert_eq!(quiet.cmd(&["GET", "who"]).expect("GET").text(), Some("sessions"));
    assert_eq!([who(at.orders), who(at.sessions)], ["orders", "sessions"]);

    // A failover of one group is none of the other.
    let generation = |service: &str| {
        let name = format!("pointsman_target_generation{{service=\"{service}\"}}");
        series(at.admin, &name)
    };
    orders.failover();
    wait_until("the switch of orders", PATIENCE, || generation("orders") == Some(2.0));
    assert_eq!(generation("sessions"), Some(1.0));
    assert_eq!(quiet.cmd(&["GET", "who"]).expect("GET").text(), Some("sessions"));
    assert_eq!([who(at.orders), who(at.sessions)], ["orders", "sessions"]);

    // Commands name the service, and the sentinels get the master's name.
    wait_until("both nodes of sessions to tell where they stand", PATIENCE, || {
        let nodes = status(at.admin)["services"][1]["nodes"].clone();
        let nodes = nodes.as_array().cloned().unwrap_or_default();
        nodes.len() == 2 && nodes.iter().all(|node| node["offset"].is_u64())
    });
    let admin = at.admin.to_string();
    let done = pointsman(&["switchover", "sessions", "--admin", &admin]);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    assert_eq!((generation("orders"), generation("sessions")), (Some(2.0), Some(2.0)));
    assert_eq!([who(at.orders), who(at.sessions)], ["orders", "sessions"]);

    let document = status(at.admin);
    for (number, name) in ["orders", "sessions"].into_iter().enumerate() {
        let service = &document["services"][number];
        assert_eq!((&service["name"], &service["master_name"]), (&name.into(), &"mymaster".into()));
        assert!(service["sentinels"].as_array().expect("a list").iter().all(|it| it["up"] == true));
    }
    let checked = stdout(&pointsman(&["check", "--config", &file]));
    assert!(checked.contains("(orders of master mymaster, sessions of master"), "{checked}");
    // The sentinels make the former masters replicas some time after the switch.
    wait_until("the doctor to find one master of each", PATIENCE, || {
        let doctor = stdout(&pointsman(&["sentinels", "--config", &file, "--json"]));
        let doctor: Json = serde_json::from_str(&doctor).expect("JSON");
        let services = doctor["services"].as_array().expect("services");
        let is_whole = |service: &Json| {
            let nodes = service["nodes"].as_array().expect("nodes");
            let masters = nodes.iter().filter(|it| it["role"] == "master").count();
            let findings = service["findings"].as_array().expect("findings");
            (masters, nodes.len()) == (1, 2)
                && service["master_name"] == "mymaster"
                && findings.iter().all(|it| it["code"] != "unknown-name")
        };
        let is_done = services.len() == 2 && services.iter().all(is_whole);
        if is_done { Ok(()) } else { Err(format!("{doctor:#}")) }
    });
    assert!(process.is_running());
}

#[test]
fn imports_two_clusters_with_one_master_name() {
    let (orders, sessions) =
        (Cluster::builder().replicas(1).start(), Cluster::builder().replicas(1).start());
    let at = listeners(&orders);
    set_who(&orders, "orders");
    set_who(&sessions, "sessions");
    let node = |cluster: &Cluster, number: usize| cluster.nodes()[number].addr().to_string();
    let text = exchanged(
        "two-clusters-named",
        &[
            ("127.0.0.1:6379", at.orders.to_string()),
            ("127.0.0.1:6380", at.sessions.to_string()),
            ("10.20.4.10:6379", node(&orders, 0)),
            ("10.20.4.11:6379", node(&orders, 1)),
            ("10.20.5.10:6379", node(&sessions, 0)),
            ("10.20.5.11:6379", node(&sessions, 1)),
        ],
    );
    let text = format!("{text}listen page\n bind {}\n mode http\n stats enable\n", at.admin);
    let sentinel = |name: &str, cluster: &Cluster| {
        format!("--sentinel={name}={}", cluster.sentinel_addrs()[0])
    };
    let flags = [sentinel("orders", &orders), sentinel("sessions", &sessions)];
    let names = ["--name", "orders=mymaster", "--name", "sessions=mymaster"];
    let flags: Vec<&str> = names.into_iter().chain(flags.iter().map(String::as_str)).collect();
    let (process, said) = started(&orders, "two-clusters-named", &text, &flags);
    wait_ready(&process, at.admin);
    assert_eq!([who(at.orders), who(at.sessions)], ["orders", "sessions"], "{said}");

    // With the sentinels of one group for both, the import is refused.
    let file = orders.folder().join("import-two-clusters-named/haproxy.cfg");
    let shared = format!("--sentinel={}", orders.sentinel_addrs()[0]);
    let file = file.to_str().expect("a path");
    let refused = pointsman(&[&["import", "haproxy", file, &shared], &names[..]].concat());
    assert_eq!(refused.status.code(), Some(78));
    assert!(stderr(&refused).contains("would ask the same sentinels"), "{}", stderr(&refused));
}
