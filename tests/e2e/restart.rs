//! Restarts that clients do not notice: with a listening socket that outlives the process, and by
//! takeover.

use std::ffi::OsString;
use std::fs::Permissions;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use harness::{Client, Cluster, Launch, Pointsman, Process, Signal, http_get, pause, wait_until};

use crate::builder;

const PATIENCE: Duration = Duration::from_secs(30);
/// Clients that open a new connection for each request.
const CALLERS: usize = 4;
/// The pause between two requests of a client.
const BETWEEN: Duration = Duration::from_millis(5);
/// A fast stop: clients need no time to leave, because the address stays.
const SHUTDOWN: &str = "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\ndrain_spread = \"0s\"\n\
                        drain_timeout = \"5s\"\n";

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

/// Clients that connect, send PING and expect PONG until they are stopped.
pub(crate) struct Callers {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Callers {
    pub(crate) fn start(addr: SocketAddr) -> Self {
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let call = || {
            let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
            std::thread::spawn(move || {
                let mut failures = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match Client::connect_within(addr, PATIENCE)
                        .and_then(|mut client| client.cmd(&["PING"]))
                    {
                        Ok(reply) if reply.text() == Some("PONG") => {
                            let _ = served.fetch_add(1, Ordering::Relaxed);
                        }
                        other => failures.push(format!("{other:?}")),
                    }
                    pause(BETWEEN);
                }
                failures
            })
        };
        let threads = (0..CALLERS).map(|_| call()).collect();
        Self { stop, served, threads }
    }

    /// Waits until this many more requests were served.
    pub(crate) fn wait_for(&self, more: u64) {
        let before = self.served.load(Ordering::Relaxed);
        wait_until("clients to be served", PATIENCE, || {
            self.served.load(Ordering::Relaxed) >= before + more
        });
    }

    pub(crate) fn stop(self) -> (u64, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let failures =
            self.threads.into_iter().flat_map(|thread| thread.join().expect("a caller")).collect();
        (self.served.load(Ordering::Relaxed), failures)
    }
}

/// A stand-in for systemd: it owns the listening socket and starts the program with it as
/// descriptor 3.
pub(crate) fn activated(
    number: usize,
    folder: &Path,
    config: &Path,
    socket: &TcpListener,
) -> Process {
    activated_as("mymaster", number, folder, config, socket)
}

/// A start with another name of the socket (`FileDescriptorName=`).
pub(crate) fn activated_as(
    name: &str,
    number: usize,
    folder: &Path,
    config: &Path,
    socket: &TcpListener,
) -> Process {
    let script = format!(
        "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={name}; exec \"$0\" \"$@\" 3<&0 0</dev/null"
    );
    let args = [
        "-c".into(),
        script.into(),
        crate::PROGRAM.into(),
        "run".into(),
        "--config".into(),
        config.into(),
    ];
    let launch = Launch {
        name: format!("activated-{number}"),
        program: PathBuf::from("/bin/sh"),
        args: Vec::from(args),
        env: Vec::new(),
        folder: folder.to_owned(),
    };
    Process::start_with(
        &launch,
        Stdio::from(std::os::fd::OwnedFd::from(socket.try_clone().expect("a handle"))),
    )
}

fn restarts_through_activation(count: usize) {
    let cluster = small();
    let socket = TcpListener::bind((cluster.address().ip(), 0)).expect("a socket");
    let addr = socket.local_addr().expect("its address");
    let admin = cluster.address().port();
    let sentinels = cluster.sentinel_addrs();
    let config = cluster.folder().join("activated.toml");
    // The address in the file is not used: the socket takes precedence.
    let text = format!(
        "[[service]]\nname = \"mymaster\"\nsentinels = [\"{}\"]\nlisten = [\"127.0.0.1:1\"]\n[admin]\nlisten = [\"{admin}\"]\n{SHUTDOWN}",
        sentinels[0]
    );
    std::fs::write(&config, text).expect("a file");
    let callers = Callers::start(addr);
    let mut process = activated(0, cluster.folder(), &config, &socket);
    for number in 1..=count {
        callers.wait_for(20);
        process.signal(Signal::TERM);
        assert_eq!(process.wait_exit(PATIENCE).code(), Some(0));
        process = activated(number, cluster.folder(), &config, &socket);
    }
    callers.wait_for(20);
    let (served, failures) = callers.stop();
    assert!(failures.is_empty(), "{} of {served}: {failures:?}", failures.len());
    assert!(process.log().contains("using sockets of the service manager"), "{}", process.log());
}

/// Waits until a process can be taken over at this path; probes answer a little earlier.
pub(crate) fn wait_for_place(path: &Path) {
    // The kernel reports that a socket of another type listens there; for a dead one it reports a
    // refusal.
    const OF_ANOTHER_TYPE: i32 = 91;
    wait_until("a process that lets another one take over", PATIENCE, || {
        std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|it| it.raw_os_error() == Some(OF_ANOTHER_TYPE))
    });
}

fn restarts_through_takeover(count: usize) {
    let cluster = small();
    let folder = cluster.folder().to_owned();
    let lines = format!("{SHUTDOWN}[process]\nstate_dir = {folder:?}\nworkers = 2");
    let first = builder(&cluster).lines(&lines).start();
    let config = first.process().log_path().with_file_name("pointsman.toml");
    let (addr, admin) = (first.addr(), first.admin());
    let place = folder.join("takeover.sock");
    let callers = Callers::start(addr);
    let mut running: Option<Process> = None;
    for number in 1..=count {
        callers.wait_for(20);
        wait_for_place(&place);
        let args =
            ["run".into(), "--takeover".into(), "--config".into(), config.clone().into_os_string()];
        let name = format!("takeover-{number}");
        let launch = Launch {
            name,
            program: PathBuf::from(crate::PROGRAM),
            args: Vec::<OsString>::from(args),
            env: Vec::new(),
            folder: folder.clone(),
        };
        let next = Process::start(&launch);
        let old = running.as_ref().unwrap_or(first.process());
        assert_eq!(old.wait_exit(PATIENCE).code(), Some(0), "{}", next.tail());
        wait_until("the new one to answer probes", PATIENCE, || {
            assert!(next.is_running(), "{}", next.tail());
            http_get(admin, "/ready").is_ok_and(|(status, _)| status == 200)
        });
        running = Some(next);
    }
    callers.wait_for(20);
    let (served, failures) = callers.stop();
    assert!(failures.is_empty(), "{} of {served}: {failures:?}", failures.len());
    let last = running.expect("at least one");
    assert!(last.log().contains("takeover complete"), "{}", last.log());
    last.signal(Signal::TERM);
    assert_eq!(last.wait_exit(PATIENCE).code(), Some(0));
    assert!(!place.exists());
}

#[test]
fn restarts_through_socket_activation_refuse_nobody() {
    restarts_through_activation(5);
}

#[test]
fn restarts_by_takeover_refuse_nobody() {
    restarts_through_takeover(5);
}

#[test]
#[ignore = "takes a minute: cargo test --test e2e -- --ignored fifty_restarts"]
fn fifty_restarts_through_socket_activation_refuse_nobody() {
    restarts_through_activation(50);
}

#[test]
#[ignore = "takes a minute: cargo test --test e2e -- --ignored fifty_restarts"]
fn fifty_restarts_by_takeover_refuse_nobody() {
    restarts_through_takeover(50);
}

/// Nobody would serve otherwise: the old process still accepts, but hands nothing over any more.
#[test]
fn takeover_waits_for_a_process_that_stops() {
    let cluster = small();
    let folder = cluster.folder().to_owned();
    let shutdown = SHUTDOWN.replace("0s\"\naccept_quiet", "10s\"\naccept_quiet");
    let shutdown = shutdown.replace("accept_max = \"0s", "accept_max = \"10s");
    let old =
        builder(&cluster).lines(&format!("[process]\nstate_dir = {folder:?}\n{shutdown}")).start();
    old.sigterm();
    wait_until("the stop", PATIENCE, || old.get("/ready").is_ok_and(|it| it.0 != 200));
    let next = old.taken_over_by(Path::new(crate::PROGRAM));
    assert_eq!(old.client().cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    assert!(old.wait_exit(PATIENCE).success());
    wait_until("the next process", PATIENCE, || {
        Client::connect_within(old.addr(), PATIENCE)
            .and_then(|mut client| client.cmd(&["PING"]))
            .is_ok_and(|it| it.text() == Some("PONG"))
    });
    assert!(next.log().contains("waiting for the process that stops"), "{}", next.log());
}

#[test]
fn takeover_opens_an_added_admin_address() {
    let cluster = small();
    let folder = cluster.folder().to_owned();
    let lines = format!("{SHUTDOWN}[process]\nstate_dir = {folder:?}");
    let old = builder(&cluster).lines(&lines).start();
    wait_for_place(&folder.join("takeover.sock"));
    let file = old.process().log_path().with_file_name("pointsman.toml");
    let added = cluster.address().port();
    let text = std::fs::read_to_string(&file).expect("the file");
    let text = text.replace("[admin]", &format!("[admin]\nread_only_listen = [\"{added}\"]"));
    assert!(text.contains("read_only_listen"), "{text}");
    std::fs::write(&file, text).expect("a file");
    let _next = old.taken_over_by(Path::new(crate::PROGRAM));
    assert!(old.wait_exit(PATIENCE).success());
    for admin in [old.admin(), added] {
        let (status, _) = http_get(admin, "/ready").expect("probes");
        assert_eq!(status, 200, "{admin}");
    }
}

/// After a crash, say: the folder is needed only at the next takeover.
#[test]
fn serves_without_takeover_if_state_dir_is_unwritable() {
    let cluster = small();
    let (state, script) = (cluster.folder().join("state"), cluster.folder().join("run.sh"));
    std::fs::create_dir(&state).expect("a folder");
    let program = crate::PROGRAM;
    for options in ["ro", "nr_inodes=1"] {
        let mount = format!("mount -t tmpfs -o {options} none {}", state.display());
        let text = format!(
            "#!/bin/sh\nexec unshare --mount sh -c '{mount} && exec {program} \"$@\"' sh \"$@\"\n"
        );
        std::fs::write(&script, text).expect("a script");
        std::fs::set_permissions(&script, Permissions::from_mode(0o700)).expect("a mode");
        let lines = format!("[process]\nstate_dir = {state:?}");
        let pointsman = Pointsman::builder(&script, &cluster).lines(&lines).start();
        assert_eq!(pointsman.client().cmd(&["PING"]).expect("PING").text(), Some("PONG"));
        let log = pointsman.process().log();
        assert!(log.contains("takeover is disabled"), "{options}: {log}");
    }
}

#[test]
fn keeps_old_process_if_takeover_fails() {
    let cluster = small();
    let folder = cluster.folder().to_owned();
    let old = builder(&cluster).lines(&format!("[process]\nstate_dir = {folder:?}")).start();
    let file = old.process().log_path().with_file_name("pointsman.toml");
    let mut client = old.client();
    // Another master's name: the new process finds no master and is stopped by a signal.
    let text = std::fs::read_to_string(&file).expect("the file").replace("mymaster", "nobody");
    let wrong = folder.join("wrong.toml");
    std::fs::write(&wrong, text).expect("a file");
    wait_for_place(&folder.join("takeover.sock"));
    let args = ["run".into(), "--takeover".into(), "--config".into(), wrong.into_os_string()];
    let name = "takeover-wrong".to_owned();
    let program = PathBuf::from(crate::PROGRAM);
    let next =
        Process::start(&Launch { name, program, args: Vec::from(args), env: Vec::new(), folder });
    wait_until("the sockets to be taken", PATIENCE, || {
        next.log().contains("using sockets of the running process")
    });
    next.signal(Signal::TERM);
    assert_eq!(next.wait_exit(PATIENCE).code(), Some(0));
    wait_until("the old one to note it", PATIENCE, || {
        old.process().log().contains("takeover failed, continuing to serve")
    });
    assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    assert_eq!(old.client().cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    assert_eq!(old.get("/ready").expect("ready").0, 200);
}
