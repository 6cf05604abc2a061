//! A Unix socket as a listener, used by redis-cli, through failovers, drains, takeovers and
//! crashes; and `[::]` for both families.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Launch, Pointsman, PointsmanBuilder, Process, Signal, wait_until};

use crate::faults_process::{SHUTDOWN, run};
use crate::restart::wait_for_place;
use crate::{PROGRAM, builder, metric};

const PATIENCE: Duration = Duration::from_secs(40);

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

fn socket(cluster: &Cluster) -> PathBuf {
    cluster.folder().join("redis.sock")
}

/// A pointsman whose service also listens on a Unix socket. The address is given by a flag, because
/// the file would be refused with two equal keys in a table.
fn with_socket<'a>(cluster: &'a Cluster, lines: &str) -> PointsmanBuilder<'a> {
    let listen = format!("unix:{}", socket(cluster).display());
    let tcp = format!("{}", cluster.address().port());
    builder(cluster).lines(lines).arg("--listen").arg(listen).arg("--listen").arg(tcp)
}

/// The real redis-cli; it is given commands, and its output is read line by line.
struct Cli {
    child: Child,
    commands: ChildStdin,
    answers: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Cli {
    fn connect(path: &Path) -> Self {
        let mut command = Command::new("redis-cli");
        command.arg("-s").arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("redis-cli");
        let commands = child.stdin.take().expect("its input");
        let answers = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { child, commands, answers }
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").expect("a command");
        self.answers.next().expect("an answer").expect("a line")
    }
}

impl Drop for Cli {
    fn drop(&mut self) {
        // Both fail only if the child has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The reply to one PING on a new connection.
fn ping(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"PING\r\n").expect("a request");
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).expect("a reply");
    String::from_utf8_lossy(&reply).into_owned()
}

fn closed(pointsman: &Pointsman, reason: &str) -> f64 {
    let series =
        format!("pointsman_sessions_closed_total{{service=\"mymaster\",reason=\"{reason}\"}}");
    metric(pointsman, &series).unwrap_or(0.0)
}

#[test]
fn serves_redis_cli_over_a_unix_socket_through_a_failover() {
    let cluster = Cluster::builder().replicas(1).sentinels(3).start();
    let lines = "[log]\nsessions = \"all\"";
    let pointsman =
        with_socket(&cluster, lines).service_line("max_connections_per_source = 1").start();
    let path = socket(&cluster);
    let mode = std::fs::metadata(&path).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let mut cli = Cli::connect(&path);
    let mut other = Cli::connect(&path);
    assert_eq!(cli.ask("SET key before"), "OK");
    assert_eq!(cli.ask("SELECT 3"), "OK");
    assert_eq!(other.ask("PING"), "PONG", "clients without an address are not counted by it");
    let large = "x".repeat(1 << 20);
    let mut raw = UnixStream::connect(&path).expect("a connection");
    write!(raw, "*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n${}\r\n{large}\r\n", large.len())
        .expect("a large value");
    let mut line = String::new();
    BufReader::new(&raw).read_line(&mut line).expect("an answer");
    assert_eq!(line, "+OK\r\n");
    assert_eq!(other.ask("GET large").len(), large.len());
    let before = cluster.master().addr();
    cluster.failover();
    wait_until("another master", PATIENCE, || {
        pointsman
            .get("/status")
            .is_ok_and(|(_, text)| !text.contains(&format!("\"name\": \"{before}\"")))
    });
    assert_eq!(cli.ask("SET key after"), "OK", "the same connection");
    assert!(cli.ask("CLIENT INFO").contains(" db=3 "), "carried with its database");
    // One that is still on its way to the new master would end for another reason.
    assert_eq!(other.ask("PING"), "PONG");
    raw.write_all(b"PING\r\n").expect("a request");
    line.clear();
    BufReader::new(&raw).read_line(&mut line).expect("an answer");
    assert_eq!(line, "+PONG\r\n");
    drop((cli, other, raw));
    wait_until("the ends", PATIENCE, || closed(&pointsman, "client_closed") >= 3.0);
    let log = pointsman.process().log();
    assert!(
        log.lines()
            .any(|line| line.contains("session ended") && line.contains("\"client\":\"unix\"")),
        "{log}"
    );
    pointsman.sigterm();
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
    assert!(!path.exists(), "the file goes with its process");
}

#[test]
fn replaces_only_a_socket_that_nobody_listens_on() {
    let cluster = small();
    let path = socket(&cluster);
    let living = UnixListener::bind(&path).expect("a socket of somebody's");
    let refused = with_socket(&cluster, "").without_waiting().start();
    assert_eq!(refused.wait_exit(PATIENCE).code(), Some(1));
    assert!(
        refused.process().log().contains("already in use by another process"),
        "{}",
        refused.process().log()
    );
    assert!(UnixStream::connect(&path).is_ok(), "it was left alone");
    drop(living);
    let first = with_socket(&cluster, "").start();
    assert_eq!(Cli::connect(&path).ask("PING"), "PONG");
    first.process().kill();
    assert!(path.exists(), "a crash leaves the file");
    let _second = with_socket(&cluster, "").start();
    assert_eq!(Cli::connect(&path).ask("PING"), "PONG");
}

#[test]
fn hands_over_unix_socket_without_refusals() {
    let cluster = small();
    let path = socket(&cluster);
    let lines = format!("{SHUTDOWN}[process]\nstate_dir = {:?}", cluster.folder());
    let old = with_socket(&cluster, &lines).start();
    let file = old.process().log_path().with_file_name("pointsman.toml");
    wait_for_place(&cluster.folder().join("takeover.sock"));
    let mut staying = Cli::connect(&path);
    assert_eq!(staying.ask("PING"), "PONG");
    let listen = format!("unix:{}", path.display());
    let port = old.process().log();
    let tcp = listening_tcp(&port);
    let new = run(
        "successor",
        cluster.folder(),
        &file,
        &["--takeover", "--listen", &listen, "--listen", &tcp],
    );
    // A client connects continuously and is always served. Its request follows at once: redis-cli
    // may take longer to send the first one than the drain lasts.
    let begin = Instant::now();
    let mut served = 0;
    let exit = loop {
        let reply = ping(&path);
        assert_eq!(reply, "+PONG\r\n", "after {served} in {:?}", begin.elapsed());
        served += 1;
        if let Some(exit) = old.process().ended() {
            break exit;
        }
        assert!(begin.elapsed() < PATIENCE, "the old process stays: {}", old.process().tail());
    };
    assert_eq!(exit.code(), Some(0));
    assert_eq!(Cli::connect(&path).ask("PING"), "PONG", "the file stays with the socket");
    new.signal(Signal::TERM);
    assert_eq!(new.wait_exit(PATIENCE).code(), Some(0));
    assert!(!path.exists(), "the successor removes what it took over");
    assert_eq!(leftovers(cluster.folder()), Vec::<String>::new());
}

/// The old process is asked to stop while it hands over: it leaves to the new one as without that.
/// And a takeover replaces a socket whose file was removed.
#[test]
fn takeover_keeps_its_unix_socket_and_restores_a_lost_one() {
    let cluster = small();
    let (path, folder) = (socket(&cluster), cluster.folder().to_owned());
    let lines = format!("{SHUTDOWN}[process]\nstate_dir = {folder:?}");
    let lines = lines.replace("accept_min = \"0s\"", "accept_min = \"20s\"");
    let lines = lines.replace("accept_max = \"0s\"", "accept_max = \"20s\"");
    let old = with_socket(&cluster, &lines).start();
    wait_for_place(&folder.join("takeover.sock"));
    let file = old.process().log_path().with_file_name("pointsman.toml");
    let (listen, tcp) = (format!("unix:{}", path.display()), old.addr().to_string());
    let take = |name: &str| {
        run(name, &folder, &file, &["--takeover", "--listen", &listen, "--listen", &tcp])
    };
    let complete = |it: &Process| {
        wait_until("the takeover", PATIENCE, || it.log().contains("takeover complete"));
    };
    let new = take("successor");
    wait_until("the sockets", PATIENCE, || new.log().contains("using sockets of the running"));
    new.signal(Signal::STOP);
    old.sigterm();
    wait_until("the signal", PATIENCE, || old.process().log().contains("received SIGTERM"));
    new.signal(Signal::CONT);
    complete(&new);
    let began = Instant::now();
    assert!(old.wait_exit(PATIENCE).success());
    assert!(began.elapsed() < Duration::from_secs(10), "the old one leaves at once");
    assert_eq!(ping(&path), "+PONG\r\n");
    std::fs::remove_file(&path).expect("the file");
    wait_for_place(&folder.join("takeover.sock"));
    let last = take("restorer");
    complete(&last);
    assert!(new.wait_exit(PATIENCE).success());
    assert_eq!(ping(&path), "+PONG\r\n");
}

#[test]
fn keeps_unix_socket_of_the_service_manager() {
    let cluster = small();
    let path = cluster.folder().join("activated.sock");
    let socket = UnixListener::bind(&path).expect("a socket");
    let configured = builder(&cluster)
        .lines(&format!("{SHUTDOWN}[process]\nstate_dir = {:?}", cluster.folder()))
        .start();
    let file = configured.process().log_path().with_file_name("pointsman.toml");
    configured.process().kill();
    let script = "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=mymaster; exec \"$0\" \"$@\" 3<&0 0</dev/null";
    let listen = format!("unix:{}", path.display());
    let args = ["-c", script, PROGRAM, "run", "--config"]
        .map(OsString::from)
        .into_iter()
        .chain([file.clone().into()]);
    let (name, program, folder) =
        ("activated".to_owned(), PathBuf::from("/bin/sh"), cluster.folder().to_owned());
    let launch = Launch { name, program, args: args.collect(), env: Vec::new(), folder };
    let input = std::os::fd::OwnedFd::from(socket.try_clone().expect("a second handle"));
    let old = Process::start_with(&launch, Stdio::from(input));
    // The connection waits in the queue until the process serves.
    assert_eq!(Cli::connect(&path).ask("PING"), "PONG");
    wait_for_place(&cluster.folder().join("takeover.sock"));
    let new = run("successor", cluster.folder(), &file, &["--takeover", "--listen", &listen]);
    assert_eq!(old.wait_exit(PATIENCE).code(), Some(0));
    assert_eq!(Cli::connect(&path).ask("PING"), "PONG");
    new.signal(Signal::TERM);
    assert_eq!(new.wait_exit(PATIENCE).code(), Some(0));
    assert!(path.exists(), "the file is the service manager's");
}

/// The TCP listen address of a process, from its log.
fn listening_tcp(log: &str) -> String {
    let serving = log.lines().find(|line| line.contains("\"serving\"")).expect("what it serves");
    let rest = serving.split("127.").nth(1).expect("an address");
    format!(
        "127.{}",
        rest.chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect::<String>()
    )
}

/// Hidden files: sockets that were not published or not removed.
fn leftovers(folder: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(folder).expect("the folder").map(|it| it.expect("an entry").file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name.starts_with('.'))
        .collect()
}

#[test]
fn serves_both_families_on_the_unspecified_ipv6_address() {
    let cluster = small();
    let port = std::net::TcpListener::bind("[::]:0")
        .expect("a port")
        .local_addr()
        .expect("its address")
        .port();
    let pointsman = builder(&cluster)
        .lines("[log]\nsessions = \"all\"")
        .service_line("max_connections_per_source = 1")
        .arg("--listen")
        .arg(format!("[::]:{port}"))
        .start();
    let connect = |ip: std::net::IpAddr| Client::connect((ip, port).into()).expect("a connection");
    let mut v6 = connect(Ipv6Addr::LOCALHOST.into());
    assert_eq!(v6.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    let mut v4 = connect(Ipv4Addr::LOCALHOST.into());
    assert_eq!(v4.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    let name = v4.local_addr().expect("an address").to_string();
    drop((v4, v6));
    wait_until("the line of the IPv4 client", PATIENCE, || {
        let log = pointsman.process().log();
        log.lines().any(|line| {
            line.contains("session ended") && line.contains(&format!("\"client\":\"{name}\""))
        })
    });
}

#[test]
fn check_refuses_an_ipv4_address_in_the_form_of_ipv6() {
    let check = |listen: &str| {
        let mut command = Command::new(PROGRAM);
        let output = command
            .args(["check", "--sentinel", "s", "--listen", listen])
            .output()
            .expect("pointsman check");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = check("[::ffff:127.0.0.1]:6379");
    assert!(code == Some(78) && text.contains("write \"127.0.0.1:6379\""), "{code:?} {text}");
    let (code, text) = check(&format!("unix:/{}", "x".repeat(107)));
    assert!(code == Some(78) && text.contains("107"), "{code:?} {text}");
    let (code, text) = check("unix:/nowhere/at/all/redis.sock");
    assert!(
        code == Some(0) && text.contains("/nowhere/at/all does not exist here"),
        "{code:?} {text}"
    );
}

/// The start ends if one of them is missing.
#[test]
fn check_warns_of_missing_folders_of_the_process() {
    for setting in ["admin.control_socket=/nowhere/a/control.sock", "process.state_dir=/nowhere/a"]
    {
        let mut command = Command::new(PROGRAM);
        let output = command
            .args(["check", "--sentinel", "s", "--set", "admin.control=true", "--set", setting])
            .output()
            .expect("pointsman check");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("the folder /nowhere/a does not exist here"), "{setting}: {text}");
    }
}
