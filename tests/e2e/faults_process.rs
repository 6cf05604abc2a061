//! Faults of the process itself: files that cannot be read, and a failover longer than the hold.
//!
//! | Fault | Test |
//! |---|---|
//! | `password_file` is a FIFO at a reload | [`refuses_fifo_as_password_file`] |
//! | `password_file` hangs at a reload | [`serves_while_password_file_hangs`] |
//! | the configuration file hangs at the start | [`ends_on_sigterm_while_start_hangs`] |
//! | a failover longer than `hold_timeout` | [`stays_ready_through_long_failover`] |

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use harness::{Client, Cluster, Launch, Load, Pointsman, Process, Signal, pause, wait_until};

use crate::{builder, metric};

pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// Longer than the time after which liveness fails for a hanging event loop.
pub(crate) const LONGER_THAN_STUCK: Duration = Duration::from_secs(9);
/// A fast stop: clients need no time to leave, because the address stays.
pub(crate) const SHUTDOWN: &str = "[shutdown]\naccept_min = \"0s\"\naccept_quiet = \"0s\"\naccept_max = \"0s\"\n\
                        drain_spread = \"0s\"\ndrain_timeout = \"5s\"\n";

pub(crate) fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

/// Checks liveness for `time`, while the load must make progress.
fn alive_under_load(pointsman: &Pointsman, load: &Load, time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        let (status, body) = pointsman.get("/alive").expect("an answer");
        assert_eq!(status, 200, "after {:?}: {body}", begin.elapsed());
        let before = load.counts().acknowledged;
        wait_until("a write", PATIENCE, || load.counts().acknowledged > before);
        pause(Duration::from_millis(100));
    }
}

fn secret(folder: &Path, password: &str) -> PathBuf {
    let path = folder.join("password");
    std::fs::write(&path, format!("{password}\n")).expect("a file");
    path
}

/// A pointsman that reads the password of a cluster from a file.
fn with_password_file(cluster: &Cluster, path: &Path) -> Pointsman {
    let lines = format!("{SHUTDOWN}[service.auth]\npassword_file = {path:?}\n");
    builder(cluster).without_logins().lines(&lines).start()
}

/// Makes every attempt to open the file wait, like a network file system without its server: a
/// lease that is not given back. The kernel breaks it after 45 s (`fs.lease-break-time`). Dropping
/// it ends the lease.
struct Hanging(#[allow(dead_code, reason = "it is killed when dropped")] Process);

impl Hanging {
    fn file(path: &Path) -> Self {
        let script = "$| = 1; $SIG{IO} = 'IGNORE'; open(my $f, '+<', $ARGV[0]) or die $!; \
                      fcntl($f, 1024, 1) or die \"no lease: $!\"; print \"leased\\n\"; sleep 600;";
        let folder = path.parent().expect("a folder").to_owned();
        let name = format!("lease-{}", number());
        let args = ["-e".into(), script.into(), path.as_os_str().to_owned()];
        let launch = Launch {
            name,
            program: PathBuf::from("perl"),
            args: Vec::from(args),
            env: Vec::new(),
            folder,
        };
        let process = Process::start(&launch);
        wait_until("the lease", PATIENCE, || {
            assert!(process.is_running(), "{}", process.tail());
            process.log().contains("leased")
        });
        Self(process)
    }
}

/// A number that no other process of this test run uses in its name.
fn number() -> u32 {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

fn threads(pointsman: &Pointsman) -> usize {
    let tasks = format!("/proc/{}/task", pointsman.process().pid());
    std::fs::read_dir(tasks).expect("its threads").count()
}

#[test]
fn refuses_fifo_as_password_file() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).password("secret").start();
    let path = secret(cluster.folder(), "secret");
    let pointsman = with_password_file(&cluster, &path);
    let mut load =
        Load::to(pointsman.addr()).login(cluster.master().login()).writers(4).rate(200).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 50);
    std::fs::remove_file(&path).expect("the file is gone");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    pointsman.process().signal(Signal::HUP);
    alive_under_load(&pointsman, &load, LONGER_THAN_STUCK);
    // The secret stays, and so does everything else; the watch may see the FIFO before the signal.
    let partial = "pointsman_config_reloads_total{result=\"partial\"}";
    wait_until("the report", PATIENCE, || metric(&pointsman, partial) >= Some(1.0));
    let (_, status) = pointsman.get("/status").expect("status");
    assert!(status.contains("is a FIFO") && status.contains("password"), "{status}");
    // A later change of another key applies.
    let config = pointsman.process().log_path().with_file_name("pointsman.toml");
    let text = std::fs::read_to_string(&config).expect("the configuration");
    std::fs::write(&config, text + "[log]\nlevel = \"debug\"\n").expect("the configuration");
    wait_until("the other key", PATIENCE, || pointsman.process().log().contains("log.level"));
    assert_eq!(metric(&pointsman, "pointsman_config_secrets_unread"), Some(1.0));
    load.stop();
    pointsman.sigterm();
    assert_eq!(pointsman.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn serves_while_password_file_hangs() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).password("secret").start();
    let path = secret(cluster.folder(), "secret");
    let pointsman = with_password_file(&cluster, &path);
    let mut load =
        Load::to(pointsman.addr()).login(cluster.master().login()).writers(4).rate(200).start();
    wait_until("some writes", PATIENCE, || load.counts().acknowledged > 50);
    let hanging = Hanging::file(&path);
    let before = threads(&pointsman);
    pointsman.process().signal(Signal::HUP);
    alive_under_load(&pointsman, &load, LONGER_THAN_STUCK);
    let partial = || {
        metric(&pointsman, "pointsman_config_reloads_total{result=\"partial\"}").expect("a counter")
    };
    assert!(partial() >= 1.0, "the secret before stays in use");
    let (_, status) = pointsman.get("/status").expect("status");
    assert!(status.contains(&path.display().to_string()), "{status}");
    assert!(metric(&pointsman, "pointsman_config_read_pending_seconds").expect("a gauge") >= 5.0);
    // Further reloads do not wait for the file and need no threads.
    let most = threads(&pointsman);
    for _ in 1..=8 {
        let so_far = partial();
        pointsman.process().signal(Signal::HUP);
        wait_until("another reload", PATIENCE, || partial() > so_far);
    }
    // A thread may still be on its way back to the pool when the next order comes, so one or two
    // more may have begun; a thread for each order would be eight.
    let at_last = threads(&pointsman);
    assert!(at_last <= most.max(before + 1) + 2, "{before}, {most}, {at_last} threads");
    // The file can be read again: the waiting reload is executed.
    drop(hanging);
    wait_until("the reload", PATIENCE, || {
        metric(&pointsman, "pointsman_config_reloads_total{result=\"unchanged\"}") >= Some(1.0)
    });
    assert_eq!(metric(&pointsman, "pointsman_config_read_pending_seconds"), Some(0.0));
    // SIGTERM while a read hangs.
    let _hanging = Hanging::file(&path);
    pointsman.process().signal(Signal::HUP);
    wait_until("the read", PATIENCE, || {
        metric(&pointsman, "pointsman_config_read_pending_seconds") > Some(0.0)
    });
    load.stop();
    pointsman.sigterm();
    assert_eq!(pointsman.wait_exit(Duration::from_secs(15)).code(), Some(0));
}

#[test]
fn ends_on_sigterm_while_start_hangs() {
    let cluster = small();
    let first = builder(&cluster).start();
    let file = first.process().log_path().with_file_name("pointsman.toml");
    drop(first);
    let hanging = Hanging::file(&file);
    let start = || run("hanging", cluster.folder(), &file, &[]);
    let process = start();
    wait_until("word of what it waits for", PATIENCE, || {
        process
            .log()
            .lines()
            .any(|line| line.contains("waiting") && line.contains("pointsman.toml"))
    });
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit(Duration::from_secs(10)).code(), Some(0), "{}", process.tail());
    // A start that is not interrupted succeeds when the file can be read.
    let process = start();
    drop(hanging);
    wait_until("the start", PATIENCE, || process.log().contains("started"));
}

pub(crate) fn run(name: &str, folder: &Path, config: &Path, more: &[&str]) -> Process {
    let mut args: Vec<OsString> = vec!["run".into()];
    args.extend(more.iter().map(OsString::from));
    args.extend(["--config".into(), config.as_os_str().to_owned()]);
    let (program, folder) = (PathBuf::from(crate::PROGRAM), folder.to_owned());
    Process::start(&Launch { name: name.to_owned(), program, args, env: Vec::new(), folder })
}

/// One attempt to be served by the process that listens there.
pub(crate) fn ping(pointsman: &Pointsman) -> Option<String> {
    let mut client = Client::connect_within(pointsman.addr(), Duration::from_secs(1)).ok()?;
    client.set_timeout(Duration::from_secs(1)).ok()?;
    client.cmd(&["PING"]).ok()?.text().map(str::to_owned)
}

/// The results of `/ready` while a dead master is detected and replaced.
fn failover_of_fifteen_seconds(line: &str) -> (Vec<(Duration, u16)>, Duration) {
    let cluster =
        Cluster::builder().replicas(1).sentinels(3).down_after(Duration::from_secs(15)).start();
    let pointsman = builder(&cluster).service_line("hold_timeout = \"2s\"").lines(line).start();
    // No age of a result is below that of the hold: from before the kill until after the answer.
    let begin = Instant::now();
    cluster.master().kill();
    let mut seen = Vec::new();
    let generation = || metric(&pointsman, "pointsman_target_generation{service=\"mymaster\"}");
    let mut answered = false;
    while generation() < Some(2.0) {
        assert!(
            begin.elapsed() < Duration::from_secs(90),
            "no failover; {}",
            pointsman.process().tail()
        );
        let (status, _) = pointsman.get("/ready").expect("an answer");
        seen.push((begin.elapsed(), status));
        if begin.elapsed() > Duration::from_secs(5) && !answered {
            // A client that arrives now is answered, not refused.
            let mut client = pointsman.client();
            client.set_timeout(PATIENCE).expect("a timeout");
            let reply = client.cmd(&["PING"]).expect("a reply");
            assert!(reply.error().is_some_and(|error| error.starts_with("LOADING")), "{reply:?}");
            answered = true;
        }
        pause(Duration::from_millis(50));
    }
    assert!(answered);
    wait_until("the new master to serve", PATIENCE, || ping(&pointsman).as_deref() == Some("PONG"));
    assert_eq!(pointsman.get("/ready").expect("an answer").0, 200);
    (seen, begin.elapsed())
}

#[test]
fn stays_ready_through_long_failover() {
    let (seen, took) = failover_of_fifteen_seconds("");
    let unready: Vec<_> = seen.iter().filter(|(_, status)| *status != 200).collect();
    assert!(took > Duration::from_secs(12), "the failover took {took:?}, which shows nothing");
    assert!(
        unready.is_empty(),
        "in {took:?} unready {} of {} times, {unready:?}",
        unready.len(),
        seen.len()
    );
}

#[test]
fn turns_unready_without_master_if_configured() {
    let (seen, took) = failover_of_fifteen_seconds("ready_without_master = false");
    let first = seen.iter().find(|(_, status)| *status != 200).expect("it was never unready");
    assert!(
        first.0 >= Duration::from_secs(2),
        "unready within the hold, after {:?} of {took:?}",
        first.0
    );
}
