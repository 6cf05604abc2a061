//! `pointsman sessions` and `pointsman kill` against real servers.

use std::collections::BTreeSet;
use std::io::{BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Pointsman, encode, wait_until};
use serde_json::Value as Json;

use crate::{PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);
/// Words that no output may contain.
const SECRETS: [&str; 4] = ["sesame-open", "private-key-name", "private-value", "private-script"];

fn controlled(cluster: &Cluster, lines: &str) -> (Pointsman, PathBuf) {
    let socket = cluster.folder().join("control.sock");
    let lines = format!("control = true\ncontrol_socket = {socket:?}\n{lines}");
    (builder(cluster).lines(&lines).start(), socket)
}

fn command(socket: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(words).arg("--socket").arg(socket).env_clear().output().expect("pointsman")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[track_caller]
fn document(socket: &Path, words: &[&str]) -> Json {
    let output = command(socket, &[&["sessions", "--json"], words].concat());
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn list(socket: &Path, words: &[&str]) -> Vec<Json> {
    document(socket, words)["list"].as_array().expect("a list").clone()
}

/// The row of this client, once it satisfies `condition`.
#[track_caller]
fn row_of(socket: &Path, client: &str, what: &str, condition: impl Fn(&Json) -> bool) -> Json {
    wait_until(what, PATIENCE, || {
        let rows = list(socket, &[]);
        let found = rows.iter().find(|row| row["client"] == client).cloned();
        found.clone().filter(|row| condition(row)).ok_or_else(|| format!("{found:?}"))
    })
}

/// A client that has sent these commands, and its address.
fn client(pointsman: &Pointsman, commands: &[&[&str]]) -> (Client, String) {
    let mut client = pointsman.client();
    client.set_timeout(PATIENCE).expect("a timeout");
    for command in commands {
        match command[0] {
            "BLPOP" => client.send(&encode(command)).expect("sent"),
            _ => drop(client.cmd(command).expect("an answer")),
        }
    }
    let addr = client.local_addr().expect("an address").to_string();
    (client, addr)
}

#[test]
fn lists_real_sessions_in_each_state_without_secrets() {
    let cluster = Cluster::builder().user("alice on >sesame-open ~* &* +@all").replicas(1).start();
    let (pointsman, socket) = controlled(&cluster, "");
    let auth = ["AUTH", "alice", SECRETS[0]];
    let states: [(&str, &[&[&str]], &str, &str); 6] = [
        ("idle-one", &[&["SET", SECRETS[1], SECRETS[2]], &["SELECT", "2"]], "idle", ""),
        ("multi-one", &[&["MULTI"], &["GET", SECRETS[1]]], "pinned", "transaction"),
        ("watch-one", &[&["WATCH", SECRETS[1]]], "pinned", "watch"),
        ("blpop-one", &[&["BLPOP", SECRETS[3], "0"]], "blocked", "blocking"),
        ("sub-one", &[&["SUBSCRIBE", SECRETS[1]]], "subscribed", "subscribed"),
        ("script-one", &[&["SCRIPT", "LOAD", "return 'private-script'"]], "pinned", "script"),
    ];
    let mut clients = Vec::new();
    for (name, commands, state, why) in states {
        let named = ["CLIENT", "SETNAME", name];
        let (client, addr) = client(&pointsman, &[&[&auth[..], &named[..]], commands].concat());
        let row = row_of(&socket, &addr, name, |row| row["state"] == state);
        let why = if why.is_empty() { Json::Null } else { why.into() };
        assert_eq!((&row["not_carried"], &row["name"]), (&why, &name.into()), "{row}");
        assert_eq!(
            (&row["user"], &row["service"], &row["to"]),
            (&auth[1].into(), &"mymaster".into(), &"master".into()),
            "{row}"
        );
        assert_eq!(row["listener"], pointsman.addr().to_string());
        assert_eq!(row["upstream"], cluster.master().addr().to_string());
        assert!(
            row["commands"].as_u64() >= Some(2) && row["bytes_in"].as_u64() > Some(20),
            "{row}"
        );
        assert!(row["age_s"].as_f64() >= row["idle_s"].as_f64(), "{row}");
        clients.push(client);
    }
    let (monitor, addr) = client(&pointsman, &[&auth, &["MONITOR"]]);
    let row = row_of(&socket, &addr, "MONITOR", |row| row["state"] == "opaque");
    assert_eq!((&row["not_carried"], &row["user"]), (&"monitor".into(), &Json::Null));
    let names = |words: &[&str]| -> BTreeSet<String> {
        let name = |row: &Json| row["name"].as_str().map(str::to_owned);
        list(&socket, words).iter().filter_map(name).collect()
    };
    assert_eq!(
        names(&["--state", "blocked,watch"]),
        ["blpop-one", "watch-one"].map(Into::into).into()
    );
    assert_eq!(names(&["--state", "idle"]), ["idle-one".to_owned()].into());
    assert_eq!(names(&["--source", "192.0.2.0/24"]), BTreeSet::new());
    let limited = document(&socket, &["--limit", "2", "--sort", "commands"]);
    assert_eq!(
        (&limited["listed"], &limited["matching"], &limited["sessions"]),
        (&2.into(), &7.into(), &7.into())
    );

    // Neither the documents nor the log has a secret.
    let (status, networks) = pointsman.get("/networks").expect("totals");
    assert_eq!(status, 200);
    assert!(networks.contains("\"sessions\":7"), "{networks}");
    let shown = document(&socket, &[]).to_string()
        + &text(&command(&socket, &["sessions"]))
        + &networks
        + &pointsman.process().log();
    for secret in SECRETS {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
    // Those who only read metrics and status get no list.
    let (status, _) = pointsman.get("/control/sessions").expect("an answer");
    assert_eq!(status, 403);
    drop((clients, monitor));
}

#[test]
fn keeps_ids_through_a_pause_and_a_failover() {
    let cluster = Cluster::builder().start();
    let (pointsman, socket) = controlled(&cluster, "");
    let (mut client, addr) =
        client(&pointsman, &[&["CLIENT", "SETNAME", "carried"], &["SELECT", "3"]]);
    let before = row_of(&socket, &addr, "an idle session", |row| row["state"] == "idle");
    assert!(command(&socket, &["pause", "--for", "60s"]).status.success());
    client.send(&encode(&["PING"])).expect("sent");
    let held = row_of(&socket, &addr, "a held session", |row| row["state"] == "held");
    assert_eq!((&held["id"], &held["waits_for"]), (&before["id"], &"target".into()));
    assert!(command(&socket, &["resume"]).status.success());
    assert_eq!(client.read_value().expect("a reply").text(), Some("PONG"));
    cluster.begin_failover_of("mymaster");
    let after = row_of(&socket, &addr, "a carried session", |row| {
        row["state"] == "idle" && row["generation"].as_u64() > before["generation"].as_u64()
    });
    assert_eq!(
        (&after["id"], &after["name"], &after["database"]),
        (&before["id"], &"carried".into(), &3.into())
    );
    assert_ne!(after["upstream"], before["upstream"]);
    assert_eq!(client.cmd(&["PING"]).expect("a reply").text(), Some("PONG"));
}

#[test]
fn kills_by_id_and_refuses_wrong_ones() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let (pointsman, socket) = controlled(&cluster, "");
    let (mut one, addr) = client(&pointsman, &[&["BLPOP", "k", "0"]]);
    let (mut other, _) = client(&pointsman, &[]);
    let row = row_of(&socket, &addr, "a blocked session", |row| row["state"] == "blocked");
    let id = row["id"].as_str().expect("an ID");
    let (process, rest) = id.split_once('-').expect("an ID");
    let foreign = format!("{:08x}-{rest}", u32::from_str_radix(process, 16).expect("hex") ^ 1);
    for (wrong, problem) in [
        (foreign.as_str(), "another process"),
        (&format!("{process}-0-4000000-0"), "no such session"),
        ("17", "must be the ID"),
    ] {
        let refused = command(&socket, &["kill", wrong]);
        assert!(
            !refused.status.success() && text(&refused).contains(problem),
            "{}",
            text(&refused)
        );
    }
    let done = command(&socket, &["kill", id]);
    assert!(done.status.success(), "{}", text(&done));
    assert!(one.read_value().is_err(), "the connection is closed");
    let closed = "pointsman_sessions_closed_total{service=\"mymaster\",reason=\"killed\"}";
    wait_until("the counter", PATIENCE, || metric(&pointsman, closed) == Some(1.0));
    let again = command(&socket, &["kill", id]);
    assert!(
        !again.status.success() && text(&again).contains("no such session"),
        "{}",
        text(&again)
    );
    assert_eq!(other.cmd(&["PING"]).expect("a reply").text(), Some("PONG"));
    wait_until("the log", PATIENCE, || {
        let log = pointsman.process().log();
        log.contains("session killed by command")
            && log.contains(id)
            && log.contains("control socket")
    });
}

/// Needs a switch that only builds with debug assertions have.
#[cfg(debug_assertions)]
#[test]
fn names_a_worker_that_does_not_answer() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let switch = cluster.folder().join("stall");
    let socket = cluster.folder().join("control.sock");
    let lines = format!("control = true\ncontrol_socket = {socket:?}\n[process]\nworkers = 2\n");
    let pointsman = builder(&cluster)
        .env("POINTSMAN_TEST_STALL", switch.to_str().expect("a path"))
        .lines(&lines)
        .start();
    let clients: Vec<Client> = (0..40)
        .map(|_| {
            let mut client = pointsman.client();
            client.cmd(&["PING"]).expect("a reply");
            client
        })
        .collect();
    let rows = list(&socket, &[]);
    let of = |worker: &str| {
        let on =
            |row: &&Json| row["id"].as_str().and_then(|id| id.split('-').nth(1)) == Some(worker);
        rows.iter().filter(on).count()
    };
    assert_eq!(of("0") + of("1"), 40);
    let stuck = rows
        .iter()
        .find(|row| row["id"].as_str().is_some_and(|id| id.split('-').nth(1) == Some("1")));
    std::fs::write(&switch, "1").expect("a file");
    wait_until("the worker to hang", PATIENCE, || !switch.exists());
    let partial = document(&socket, &[]);
    assert_eq!(
        (&partial["silent_workers"], &partial["sessions"]),
        (&serde_json::json!([1]), &of("0").into())
    );
    assert!(text(&command(&socket, &["sessions"])).contains("worker 1 did not answer"));
    // The order is withdrawn: the session outlives the hang.
    if let Some(stuck) = stuck {
        let refused = command(&socket, &["kill", stuck["id"].as_str().expect("an ID")]);
        assert!(
            !refused.status.success() && text(&refused).contains("withdrawn"),
            "{}",
            text(&refused)
        );
    }
    wait_until("the worker to return", PATIENCE, || {
        document(&socket, &[])["silent_workers"] == serde_json::json!([])
    });
    assert_eq!(document(&socket, &[])["sessions"], 40);
    drop(clients);
}

/// With `--watch`, documents follow one another until their reader leaves.
#[test]
fn repeats_the_list_until_its_reader_leaves() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let (pointsman, socket) = controlled(&cluster, "");
    let mut watch = Command::new(PROGRAM)
        .args(["sessions", "--watch", "--json", "--socket"])
        .arg(&socket)
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("pointsman");
    let output = BufReader::new(watch.stdout.take().expect("its output"));
    let mut documents = serde_json::Deserializer::from_reader(output).into_iter::<Json>();
    let mut next = || documents.next().expect("a document").expect("JSON");
    assert_eq!(next()["sessions"], 0);
    let (kept, address) = client(&pointsman, &[&["PING"]]);
    // Some may have been made before the client connected.
    let listed = (0..20).map(|_| next()).find(|it| it["sessions"] == 1).expect("a session");
    assert_eq!(listed["list"][0]["client"], address);
    drop((documents, kept));
    let exit =
        wait_until("the end of the command", PATIENCE, || watch.try_wait().expect("a child"));
    assert!(exit.success(), "{exit}");
}

/// A worker that hangs delays the first list; further ones are refused meanwhile, with a reason.
#[cfg(debug_assertions)]
#[test]
fn refuses_a_second_list_while_one_is_being_made() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let switch = cluster.folder().join("stall");
    let socket = cluster.folder().join("control.sock");
    let lines = format!("control = true\ncontrol_socket = {socket:?}\n[process]\nworkers = 2\n");
    let _pointsman = builder(&cluster)
        .env("POINTSMAN_TEST_STALL", switch.to_str().expect("a path"))
        .lines(&lines)
        .start();
    std::fs::write(&switch, "1").expect("a file");
    wait_until("the worker to hang", PATIENCE, || !switch.exists());
    // All are sent before an answer is read.
    let mut asked: Vec<UnixStream> = (0..3)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).expect("the control socket");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let request = b"GET /control/sessions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            stream.write_all(request).expect("sent");
            stream
        })
        .collect();
    let mut answers: Vec<String> = asked
        .iter_mut()
        .map(|stream| {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            answer
        })
        .collect();
    answers.sort();
    assert!(answers[0].starts_with("HTTP/1.1 200 "), "{answers:?}");
    for refused in &answers[1..] {
        assert!(refused.starts_with("HTTP/1.1 429 "), "{answers:?}");
        assert!(refused.to_lowercase().contains("retry-after: 1\r\n"), "{refused}");
        assert!(refused.ends_with("another list is being made; try again\n"), "{refused}");
    }
    // The turn is given back.
    wait_until("another list", PATIENCE, || command(&socket, &["sessions"]).status.success());
}

/// The 99th percentile of `times`.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() * 99 / 100).copied().unwrap_or_default()
}

#[test]
fn lists_thousands_of_sessions_beside_a_load() {
    // Each takes a descriptor here and one at the server.
    let files = harness::raise_files();
    let count: usize = std::env::var("POINTSMAN_LISTED_SESSIONS")
        .map_or(2000, |count| count.parse().expect("a number"))
        .min(files.saturating_sub(500));
    let cluster =
        Cluster::builder().replicas(0).sentinels(1).redis_line("maxclients 20000").start();
    let (pointsman, socket) = controlled(&cluster, "");
    let clients: Vec<Client> = (0..count)
        .map(|_| {
            let mut client = pointsman.client();
            client.cmd(&["PING"]).expect("a reply");
            client
        })
        .collect();
    let measure = |busy: &dyn Fn()| {
        let stop = AtomicBool::new(false);
        let mut times = Vec::new();
        std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let (mut client, mut times) = (pointsman.client(), Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    assert_eq!(client.cmd(&["PING"]).expect("a reply").text(), Some("PONG"));
                    times.push(begin.elapsed());
                }
                times
            });
            busy();
            stop.store(true, Ordering::Relaxed);
            times = load.join().expect("no error");
        });
        (times.len(), p99(times))
    };
    let (before, quiet) = measure(&|| harness::pause(Duration::from_secs(2)));
    let (requests, listing) = measure(&|| {
        for round in 0..5 {
            let document = document(&socket, &["--limit", "100"]);
            assert_eq!(
                (&document["listed"], &document["silent_workers"]),
                (&100.into(), &serde_json::json!([]))
            );
            // The clients, and the one that measures.
            assert_eq!(document["sessions"], count + 1, "round {round}");
        }
    });
    println!(
        "{count} sessions: p99 {quiet:?} of {before} requests alone, {listing:?} of {requests} during five lists"
    );
    assert!(requests > 0);
    drop(clients);
}
