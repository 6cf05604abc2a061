//! A configuration that changes while the process runs: by SIGHUP, by a new file, by a symlink swap
//! of Kubernetes, and with faults.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use harness::{Cluster, Pointsman, Signal, wait_until};

use crate::{builder, metric, pointsman};

const PATIENCE: Duration = Duration::from_secs(30);

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

fn file(pointsman: &Pointsman) -> PathBuf {
    pointsman.process().log_path().with_file_name("pointsman.toml")
}

/// Replaces a file atomically by a rename, like editors and deployments.
fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).expect("a file");
    std::fs::rename(&next, path).expect("a rename");
}

fn reloads(pointsman: &Pointsman, result: &str) -> f64 {
    metric(pointsman, &format!("pointsman_config_reloads_total{{result=\"{result}\"}}"))
        .expect("a counter")
}

fn hash(pointsman: &Pointsman) -> String {
    let (_, text) = pointsman.get("/metrics").expect("metrics");
    let line =
        text.lines().find(|line| line.starts_with("pointsman_config_info{")).expect("the hash");
    line.split('"').nth(1).expect("a label").to_owned()
}

#[test]
fn applies_live_keys_and_names_others() {
    let cluster = small();
    let pointsman = builder(&cluster).service_line("hold_timeout = \"25s\"").start();
    let (path, before) = (file(&pointsman), hash(&pointsman));
    let text = std::fs::read_to_string(&path).expect("the file");
    let text = text.replace(
        "hold_timeout = \"25s\"",
        "hold_timeout = \"300ms\"\nmax_connections = 2\nunix_socket_mode = \"0600\"",
    );
    std::fs::write(&path, text + "[log]\nlevel = \"debug\"\n").expect("the file");
    // A session from before the reload.
    let mut old = pointsman.client();
    assert!(old.cmd(&["PING"]).is_ok());
    pointsman.process().signal(Signal::HUP);
    wait_until("the reload", PATIENCE, || reloads(&pointsman, "applied") >= 1.0);
    assert_ne!(hash(&pointsman), before);
    assert_eq!(metric(&pointsman, "pointsman_config_last_reload_successful"), Some(1.0));
    assert_eq!(metric(&pointsman, "pointsman_config_pending_restart"), Some(1.0));
    let (_, status) = pointsman.get("/status").expect("status");
    assert!(status.contains("\"service.unix_socket_mode (mymaster)\""), "{status}");
    assert!(old.cmd(&["PING"]).is_ok());
    // The new limit on connections.
    let mut second = pointsman.client();
    assert!(second.cmd(&["PING"]).is_ok());
    let refused = pointsman.client().read_to_end().expect("a refusal");
    assert_eq!(refused.0, b"-ERR max number of clients reached\r\n");
    // The new log level, which logs each session.
    drop(second);
    wait_until("a line of the new level", PATIENCE, || {
        pointsman.process().log().contains("session ended")
    });
    // The new hold timeout: a client without a master is disconnected early.
    cluster.nodes()[0].kill();
    cluster.sentinels()[0].kill();
    wait_until("the end of the old session's master", PATIENCE, || old.cmd(&["PING"]).is_err());
    wait_until("places to be free again", PATIENCE, || {
        metric(&pointsman, "pointsman_sessions_open{service=\"mymaster\"}") == Some(0.0)
    });
    let begin = Instant::now();
    let mut held = pointsman.client();
    held.set_timeout(PATIENCE).expect("a timeout");
    let answer = held.cmd(&["PING"]);
    assert!(answer.as_ref().map_or(true, |reply| reply.error().is_some()), "{answer:?}");
    assert!(begin.elapsed() < Duration::from_secs(15), "it was held for {:?}", begin.elapsed());
}

#[test]
fn refuses_faulty_configuration_as_a_whole() {
    let cluster = small();
    let pointsman = builder(&cluster).start();
    let (path, before) = (file(&pointsman), hash(&pointsman));
    let text = std::fs::read_to_string(&path).expect("the file");
    // Without a signal: the change of the file is sufficient.
    replace(&path, &format!("{text}[shutdown]\ndrain_timeout = \"soon\"\n"));
    wait_until("the refusal", PATIENCE, || reloads(&pointsman, "refused") >= 1.0);
    let line = text.lines().count() + 2;
    let place = format!("{}:{line}:", path.display());
    // The thread that reads the file counts it, and another thread writes the log.
    wait_until(&format!("a line of the log with {place} and the key"), PATIENCE, || {
        let log = pointsman.process().log();
        let told =
            log.lines().any(|it| it.contains(&place) && it.contains("shutdown.drain_timeout"));
        if told { Ok(()) } else { Err(log) }
    });
    assert_eq!(
        (hash(&pointsman), metric(&pointsman, "pointsman_config_last_reload_successful")),
        (before, Some(0.0))
    );
    assert_eq!(pointsman.client().cmd(&["PING"]).expect("PING").text(), Some("PONG"));
    replace(&path, &text);
    wait_until("the repair", PATIENCE, || reloads(&pointsman, "unchanged") >= 1.0);
    assert_eq!(metric(&pointsman, "pointsman_config_last_reload_successful"), Some(1.0));
}

/// The time until the kernel probes a client that is silent, on the proxy's side of its connection:
/// what the connection has inherited from its listening socket.
fn keepalive(client: &harness::Client, pointsman: &Pointsman) -> Duration {
    let hex = |addr: SocketAddr| {
        let IpAddr::V4(ip) = addr.ip() else { panic!("{addr}") };
        format!("{:08X}:{:04X}", u32::from_le_bytes(ip.octets()), addr.port())
    };
    let ours = hex(pointsman.addr());
    let theirs = hex(client.local_addr().expect("an address"));
    wait_until("the keepalive timer", PATIENCE, || {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the sockets");
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut rows = rows.filter(|row| row[1] == ours && row[2] == theirs);
        let row = rows.next()?;
        // Timer 1 is that of bytes that are not acknowledged yet.
        let left = row[5].strip_prefix("02:")?;
        Some(Duration::from_millis(u64::from_str_radix(left, 16).expect("hex") * 10))
    })
}

/// The kernel accepts the options of the first service and refuses those of the second.
#[test]
fn restores_socket_options_after_a_refused_one() {
    let cluster = Cluster::builder().masters(&["one", "two"]).replicas(0).sentinels(1).start();
    let pointsman = builder(&cluster).service_line("tcp_keepalive = \"60s\"").start();
    let path = file(&pointsman);
    let text = std::fs::read_to_string(&path).expect("the file");
    let with = |one: &str, two: &str| {
        let text = text.replacen("= \"60s\"", &format!("= \"{one}\""), 1);
        text.replacen("= \"60s\"", &format!("= \"{two}\""), 1)
    };
    let new_client = || {
        let mut client = pointsman.client();
        assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
        keepalive(&client, &pointsman)
    };
    let (short, long) = (Duration::from_secs(60), Duration::from_secs(900));
    assert!(new_client() <= short);
    // Linux takes at most 32,767 s.
    replace(&path, &with("15m", "10h"));
    wait_until("the refusal", PATIENCE, || reloads(&pointsman, "refused") >= 1.0);
    wait_until("the reason in the log", PATIENCE, || {
        pointsman.process().log().contains("cannot change the listening sockets of two")
    });
    assert!(new_client() <= short, "the first service kept an option of a refused configuration");
    replace(&path, &with("15m", "30m"));
    wait_until("the reload", PATIENCE, || reloads(&pointsman, "applied") >= 1.0);
    let applied = new_client();
    assert!(applied > short && applied <= long, "{applied:?}");
}

#[test]
fn reads_swapped_config_map() {
    let cluster = small();
    let first = builder(&cluster).start();
    let text = std::fs::read_to_string(file(&first)).expect("the file");
    drop(first);
    // The layout of a kubelet's volume: the file is a link to a file below a link that is replaced
    // as a whole.
    let volume = cluster.folder().join("volume");
    let lay = |name: &str, text: &str| {
        let place = volume.join(name);
        std::fs::create_dir_all(&place).expect("a folder");
        std::fs::write(place.join("pointsman.toml"), text).expect("a file");
        let next = volume.join("..data_tmp");
        std::os::unix::fs::symlink(name, &next).expect("a link");
        std::fs::rename(&next, volume.join("..data")).expect("the exchange");
    };
    lay("..2026_1", &text);
    std::os::unix::fs::symlink("..data/pointsman.toml", volume.join("pointsman.toml"))
        .expect("a link");
    let config = volume.join("pointsman.toml");
    let pointsman = builder(&cluster).by_flags().arg("--config").arg(config).start();
    let before = hash(&pointsman);
    lay("..2026_2", &format!("{text}[shutdown]\ndrain_timeout = \"33s\"\n"));
    wait_until("the reload", PATIENCE, || reloads(&pointsman, "applied") >= 1.0);
    assert_ne!(hash(&pointsman), before);
}

#[test]
fn reports_a_deleted_configuration_file_and_keeps_running() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let (path, before) = (file(&pointsman), hash(&pointsman));
    let away = path.with_extension("away");
    std::fs::rename(&path, &away).expect("a rename");
    let successful = || metric(&pointsman, "pointsman_config_last_reload_successful");
    wait_until("the report", PATIENCE, || successful() == Some(0.0));
    let (_, status) = pointsman.get("/status").expect("status");
    assert!(status.contains("pointsman.toml"), "{status}");
    assert_eq!((hash(&pointsman), pointsman.client().cmd(&["PING"]).is_ok()), (before, true));
    std::fs::rename(&away, &path).expect("a rename");
    wait_until("the file to be read again", PATIENCE, || successful() == Some(1.0));
    let log = pointsman.process().log();
    assert_eq!(
        log.matches("not reloaded: ").count(),
        1,
        "once, however often it was looked for: {log}"
    );
}
