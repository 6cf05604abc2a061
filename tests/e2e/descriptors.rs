//! File descriptors: at the start, under a limit that is lowered at run time, and for clients,
//! probes and discovery.

use std::process::Command;
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, wait_until};

use crate::{PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);
const REFUSAL: &str = "-ERR max number of clients reached";

fn pong(client: &mut Client) -> bool {
    client.cmd(&["PING"]).is_ok_and(|answer| answer.text() == Some("PONG"))
}

fn refused(pointsman: &Pointsman, limit: &str) -> f64 {
    let series =
        format!("pointsman_sessions_refused_total{{service=\"mymaster\",limit=\"{limit}\"}}");
    metric(pointsman, &series).unwrap_or(0.0)
}

#[test]
fn refuses_clients_without_descriptors_and_follows() {
    let cluster = Cluster::builder().replicas(1).sentinels(3).start();
    let pointsman = builder(&cluster).lines("[process]\nworkers = 2").start();
    pointsman.process().limit_files(256);
    let limit = || metric(&pointsman, "pointsman_connections_limit").expect("a limit");
    wait_until("the limit to be noticed", PATIENCE, || limit() < 128.0);
    let most = limit();
    assert!(most >= 20.0, "256 files carry some clients, not {most}");
    let mut clients: Vec<Client> = (0..400).map(|_| pointsman.client()).collect();
    let (mut served, mut other) = (Vec::new(), Vec::new());
    for mut client in clients.drain(..) {
        match client.cmd(&["PING"]) {
            Ok(answer) if answer.text() == Some("PONG") => served.push(client),
            Ok(answer) => other.push(answer.error().unwrap_or_default().to_owned()),
            Err(error) => other.push(error.to_string()),
        }
    }
    assert_eq!(served.len() as f64, most, "{other:?}");
    assert!(other.iter().all(|text| text == &REFUSAL[1..]), "{other:?}");
    assert_eq!(refused(&pointsman, "files"), other.len() as f64);
    let (status, text) = pointsman.get("/ready").expect("an answer");
    assert!(status == 503 && text.contains("open files"), "{status} {text}");
    assert!(pointsman.process().log().contains("open files"), "{}", pointsman.process().log());
    // Discovery, probes and sessions get the descriptors that they need.
    let before = cluster.master().addr();
    cluster.failover();
    assert!(
        served
            .iter_mut()
            .all(|client| client.cmd(&["SET", "key", "value"]).is_ok_and(|it| it.is_ok()))
    );
    assert_ne!(cluster.master().addr(), before);
    // A higher limit is noticed as well.
    pointsman.process().limit_files(4096);
    wait_until("the limit to be noticed", PATIENCE, || limit() > 1000.0);
    assert!(pong(&mut pointsman.client()));
}

#[test]
fn follows_a_failover_when_the_limit_falls_below_its_sessions() {
    let cluster = Cluster::builder().replicas(1).sentinels(3).start();
    let pointsman = builder(&cluster)
        .lines("[process]\nworkers = 2")
        .service_line("hold_timeout = \"2s\"")
        .start();
    let mut clients: Vec<Client> = (0..300).map(|_| pointsman.client()).collect();
    assert!(clients.iter_mut().all(pong));
    pointsman.process().limit_files(256);
    let limit = || metric(&pointsman, "pointsman_connections_limit").expect("a limit");
    wait_until("the limit to be noticed", PATIENCE, || limit() < 128.0);
    assert!(clients.iter_mut().all(pong), "sessions that are there stay");
    cluster.failover();
    let committed = cluster.master().addr().to_string();
    wait_until("discovery to follow", PATIENCE, || {
        pointsman.get("/metrics").is_ok_and(|(_, text)| {
            text.lines()
                .any(|line| line.starts_with("pointsman_target_info") && line.contains(&committed))
        })
    });
    let served = clients
        .iter_mut()
        .filter_map(|client| client.cmd(&["PING"]).ok()?.text().map(str::to_owned));
    let served = served.filter(|text| text == "PONG").count();
    // Each needs a descriptor below the limit for its new connection, and gets one as soon as one
    // is free.
    assert!(served > 20, "only {served} of 300 were carried");
}

#[test]
fn says_how_many_files_are_needed_without_a_client() {
    let start = |files: u32, services: u32| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("pointsman.toml");
        let service = |number: u32| {
            let port = 20_000 + number;
            format!(
                "[[service]]\nname = \"m{number}\"\nsentinels = [\"127.0.0.1:1\"]\nlisten = [\"127.97.0.1:{port}\"]\n"
            )
        };
        let services: String = (0..services).map(service).collect();
        let text =
            format!("{services}[admin]\nlisten = [\"127.97.0.1:19999\"]\n[process]\nworkers = 2\n");
        std::fs::write(&file, text).expect("a file");
        let mut command = Command::new("sh");
        // Ends by the timeout if the start does not fail.
        let script = format!("ulimit -n {files}; timeout -s QUIT 2 \"$0\" run --config \"$1\"");
        command.args(["-c", &script, PROGRAM]).arg(&file);
        let output = command.output().expect("a shell");
        let all = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&all).into_owned()
    };
    let text = start(100, 1);
    assert!(!text.contains("to 0"), "{text}");
    assert!(text.contains("before the first client") && text.contains("LimitNOFILE"), "{text}");
    let text = start(256, 1);
    assert!(
        text.contains("max_connections is") && text.contains("\"started\""),
        "256 carry some clients: {text}"
    );
    // A service needs its listeners and a few connections.
    let text = start(4000, 200);
    assert!(text.contains("\"started\""), "{text}");
}
