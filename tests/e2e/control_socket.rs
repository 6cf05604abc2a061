//! Commands through the Unix socket, which belongs to a user and needs no token.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use harness::{Cluster, Launch, Pointsman, Process, Signal, wait_until};

use crate::{PROGRAM, builder};

const PATIENCE: Duration = Duration::from_secs(30);
const STOPS_FAST: &str = "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\ndrain_spread = \"0s\"\n\
                          drain_timeout = \"5s\"\n";
/// The user `nobody`, who never owns a process under test.
const SOMEBODY_ELSE: u32 = 65534;

/// A cluster, and a socket path in its folder.
fn scene() -> (Cluster, PathBuf) {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let socket = cluster.folder().join("control.sock");
    (cluster, socket)
}

fn controlled(cluster: &Cluster, socket: &Path) -> Pointsman {
    controlled_with(cluster, socket, "dedicated")
}

/// The same with this value of `upstream`.
fn controlled_with(cluster: &Cluster, socket: &Path, upstream: &str) -> Pointsman {
    let state = cluster.folder();
    let lines = format!(
        "control = true\ncontrol_socket = {socket:?}\n[process]\nstate_dir = {state:?}\nworkers = 1\n{STOPS_FAST}"
    );
    let upstream = format!("upstream = {upstream:?}");
    builder(cluster).service_line(&upstream).lines(&lines).start()
}

/// A command as an operator types it, without a token.
fn order(what: &[&str], to: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(what).args(to).env_clear();
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Pauses and resumes through the socket.
#[track_caller]
fn takes_orders(socket: &Path) {
    for what in ["pause", "resume"] {
        let done = order(&[what], &["--socket", socket.to_str().unwrap()]).output().unwrap();
        assert!(done.status.success(), "{what}: {}", text(&done));
    }
}

#[test]
fn accepts_commands_of_the_owner_only() {
    let (cluster, socket) = scene();
    let pointsman = controlled(&cluster, &socket);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    takes_orders(&socket);
    // The configuration file names the socket, too.
    let config = pointsman.process().log_path().with_file_name("pointsman.toml");
    let done = order(&["pause", "--for", "60s"], &["--config", config.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", text(&done));
    // Without a token the network accepts no commands.
    let admin = pointsman.admin().to_string();
    let refused = order(&["resume"], &["--admin", &admin])
        .env("POINTSMAN_CONTROL_TOKEN", "x")
        .output()
        .unwrap();
    assert!(
        !refused.status.success() && text(&refused).contains("control socket only"),
        "{}",
        text(&refused)
    );
    let missing =
        order(&["resume", "nobody"], &["--socket", socket.to_str().unwrap()]).output().unwrap();
    assert!(
        !missing.status.success() && text(&missing).contains("no such service"),
        "{}",
        text(&missing)
    );
    if rustix::process::geteuid().is_root() {
        // Even if the permissions of the file allow it: the kernel reports the user. The program is
        // a copy, because the user may not read its folder. Another process makes the copy: a child
        // of a neighbouring test could briefly hold a file that this process has open for writing,
        // and such a file cannot be executed.
        let copy = cluster.folder().join("program");
        assert!(Command::new("cp").args([Path::new(PROGRAM), &copy]).status().unwrap().success());
        for (path, mode) in
            [(cluster.folder(), 0o755), (socket.as_path(), 0o666), (copy.as_path(), 0o755)]
        {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let mut other = Command::new(&copy);
        other
            .args(["resume", "--socket", socket.to_str().unwrap()])
            .env_clear()
            .uid(SOMEBODY_ELSE)
            .gid(SOMEBODY_ELSE);
        let other = other.output().unwrap();
        assert!(!other.status.success() && text(&other).contains("no answer"), "{}", text(&other));
    }
    takes_orders(&socket);
    pointsman.sigterm();
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn keeps_socket_through_crash_and_takeover() {
    let (cluster, socket) = scene();
    let dead = controlled(&cluster, &socket);
    dead.process().kill();
    assert!(socket.exists(), "what a dead process leaves");
    let old = controlled(&cluster, &socket);
    takes_orders(&socket);

    let config = old.process().log_path().with_file_name("pointsman.toml");
    let args = ["run".into(), "--takeover".into(), "--config".into(), config.into_os_string()];
    let (name, folder) = ("takeover".to_owned(), cluster.folder().to_owned());
    let launch =
        Launch { name, program: PROGRAM.into(), args: Vec::from(args), env: Vec::new(), folder };
    let new = Process::start(&launch);
    assert_eq!(old.wait_exit(PATIENCE).code(), Some(0), "{}", new.tail());
    wait_until("the new one's socket", PATIENCE, || socket.exists());
    takes_orders(&socket);
    wait_until("the new one to tell of it", PATIENCE, || {
        new.log().contains("traffic resumed by command")
    });
    new.signal(Signal::TERM);
    assert_eq!(new.wait_exit(PATIENCE).code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn says_which_command_holds_traffic() {
    for upstream in ["dedicated", "shared"] {
        says_who_holds(upstream);
    }
}

#[track_caller]
fn says_who_holds(upstream: &str) {
    let (cluster, socket) = scene();
    let pointsman = controlled_with(&cluster, &socket, upstream);
    let admin = pointsman.admin().to_string();
    let mut client = pointsman.client();
    assert!(client.cmd(&["SET", "k", "v"]).unwrap().is_ok());
    let status = || text(&order(&["status"], &["--admin", &admin]).output().unwrap());
    let done = order(&["pause", "--for", "60s"], &["--socket", socket.to_str().unwrap()]).output();
    assert!(done.unwrap().status.success());
    // An established client waits like a new one.
    client.send(&harness::encode(&["SET", "k", "w"])).unwrap();
    wait_until("the verdict", PATIENCE, || {
        let said = status();
        let paused = said.lines().find(|it| it.starts_with("  WARNING    Traffic held for "));
        let paused = paused.filter(|it| it.contains(": paused by an operator (pause, 5"));
        match paused.filter(|it| it.ends_with("; 1 client is waiting.")) {
            Some(_) => Ok(()),
            None => Err(said),
        }
    });
    // The page and the JSON document say the same.
    let document: serde_json::Value =
        serde_json::from_str(&pointsman.get("/status").unwrap().1).unwrap();
    let verdict = &document["services"][0]["verdict"];
    assert_eq!(verdict["severity"], "warning");
    let sentence = format!("mymaster: {}", verdict["text"].as_str().unwrap());
    assert_eq!(document["verdict"]["text"], sentence);
    assert_eq!(document["services"][0]["pause"]["by"], "pause");
    let of_node = |key: &str| document["services"][0]["nodes"][0][key].clone();
    assert_eq!((of_node("sessions"), of_node("failed_connects")), (1.into(), 0.into()));
    assert!(
        order(&["resume"], &["--socket", socket.to_str().unwrap()]).status().unwrap().success()
    );
    assert!(client.read_value().unwrap().is_ok());
    wait_until("the end of the wait", PATIENCE, || status().contains(", 0 waiting,"));
}
