//! The metrics of a real process: valid by the rules of Prometheus, complete, and small with many
//! services.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Authority, Client, Cluster, Pointsman, find_in_path, wait_until};
use pointsman::reference::{CATALOGUE, HAPROXY, MetricKind, SPARSE_ABOVE};

use crate::tls_clients::{folder, section};
use crate::{DEDICATED, builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);

/// The output of `promtool check metrics`; empty if all is well.
fn promtool(text: &str) -> String {
    let unpacked =
        concat!(env!("CARGO_MANIFEST_DIR"), "/target/deploy-tools/prometheus/usr/bin/promtool");
    let program = find_in_path("promtool").unwrap_or_else(|| unpacked.into());
    let mut command = Command::new(&program);
    command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo xtask test` gets it (Debian's prometheus)", program.display())
    });
    child.stdin.take().expect("its input").write_all(text.as_bytes()).expect("the metrics");
    let output = child.wait_with_output().expect("its end");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if output.status.success() { said } else { format!("{}: {said}", output.status) }
}

/// The response to a scraper that prefers OpenMetrics, and its content type.
fn open_metrics(pointsman: &Pointsman) -> (String, String) {
    let mut stream = TcpStream::connect(pointsman.admin()).expect("the admin server");
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
    write!(stream, "GET /metrics HTTP/1.0\r\nAccept: {accept}\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a header");
    (head.to_ascii_lowercase(), body.to_owned())
}

/// The name of each series without labels.
fn series(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(['{', ' ']).next().unwrap_or(line)).collect()
}

/// The metrics of the catalogue that a text lacks. Not every machine limits or counts memory and
/// CPU for this process, faults of TLS have series only while there are some
/// (`tls_sentinel::reports_certificates_that_change_under_tls_links`), shared connections only
/// where a service has had one (`shared_surface::shows_who_shares_in_status_list_and_metrics`), and
/// spare replicas only with durability
/// (`durability::waits_before_it_follows_a_replica_without_confirmed_writes`).
fn missing_from(text: &str) -> Vec<&'static str> {
    let there = series(text);
    let is_missing = |it: &&pointsman::reference::Metric| {
        let name = match it.kind {
            MetricKind::Histogram => format!("{}_count", it.name),
            _ => it.name.to_owned(),
        };
        !there.contains(name.as_str())
    };
    const AT_TIMES: [&str; 5] = [
        "pointsman_log_lines_suppressed_total",
        "pointsman_tls_faults",
        "pointsman_shared_connections_by_table",
        "pointsman_shared_access_checks_total",
        "pointsman_durability_spare_replicas",
    ];
    let all = CATALOGUE.iter().chain(HAPROXY);
    all.filter(|it| !it.name.starts_with("pointsman_cgroup_"))
        .filter(|it| !AT_TIMES.contains(&it.name))
        .filter(is_missing)
        .map(|it| it.name)
        .collect()
}

#[test]
fn passes_promtool_with_every_metric() {
    let cluster = Cluster::builder().start();
    let (readers, secured) = (cluster.address().port(), cluster.address().port());
    let authority = Authority::new("Test CA");
    let paths = authority.issue(&["redis.test"]).write(&folder(&cluster));
    let pointsman = builder(&cluster)
        .service_line(&format!("replica_listen = [\"{readers}\"]"))
        .service_line(&format!("tls_listen = [\"{secured}\"]"))
        .service_line(&section(&[(&paths.chain, &paths.key)], ""))
        .lines("[metrics]\nhaproxy_names = true")
        .start();
    wait_until("replicas for readers", PATIENCE, || {
        metric(&pointsman, "pointsman_replicas_eligible{service=\"mymaster\"}") == Some(2.0)
    });
    let mut reader = Client::connect(readers).expect("a reader");
    assert_eq!(reader.cmd(&["GET", "a"]).expect("GET").text(), None);
    let mut client = pointsman.client();
    for number in 0..100 {
        assert!(client.cmd(&["SET", "a", &number.to_string()]).expect("SET").is_ok());
    }
    let over = AtomicBool::new(false);
    let (failover, gaps) = std::thread::scope(|threads| {
        let gaps = threads.spawn(|| nodes_left_out(&pointsman, &cluster, &over));
        let ends_the_scrapes = Over(&over);
        let failover = cluster.failover_of("mymaster");
        wait_until("all to be calm", PATIENCE, || {
            pointsman
                .get("/status")
                .is_ok_and(|(_, status)| status.contains("\"state\": \"stable\""))
        });
        drop(ends_the_scrapes);
        (failover, gaps.join().expect("the scrapes"))
    });
    assert_eq!(
        gaps,
        BTreeSet::new(),
        "a node is there in every scrape, through the whole failover"
    );
    assert_eq!(client.cmd(&["GET", "a"]).expect("GET").text(), Some("99"));
    let first = "pointsman_failover_first_session_seconds_count{service=\"mymaster\"}";
    wait_until("the first session to be told", PATIENCE, || metric(&pointsman, first) >= Some(2.0));
    assert_eq!(client.cmd(&["GET", "a"]).expect("GET").text(), Some("99"));

    let (_, text) = pointsman.get("/metrics").expect("metrics");
    assert_eq!(promtool(&text), "");
    assert_ne!(
        promtool(&text.replacen("# HELP pointsman_master_switches_total", "# ", 1)),
        "",
        "promtool finds faults"
    );
    assert_eq!(missing_from(&text), [""; 0], "in the catalogue and not in /metrics");

    let (head, open) = open_metrics(&pointsman);
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(
        open.ends_with("\n# EOF\n")
            && open.contains("\n# TYPE pointsman_master_switches counter\n"),
        "{open}"
    );
    assert!(open.contains("\npointsman_master_switches_total{service=\"mymaster\"} 2\n"), "{open}");
    assert_eq!(series(&open), series(&text), "both forms have the same series");
    what_haproxys_names_say(&pointsman, &cluster, failover.to);
    what_the_process_says(&pointsman, &cluster);
}

/// Sets a flag when it is dropped, however that happens.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The nodes that some scrape did not contain.
fn nodes_left_out(
    pointsman: &Pointsman,
    cluster: &Cluster,
    over: &AtomicBool,
) -> BTreeSet<std::net::SocketAddr> {
    let mut missing = BTreeSet::new();
    while !over.load(Ordering::Relaxed) {
        let (_, text) = pointsman.get("/metrics").expect("metrics");
        let left_out = |node: &std::net::SocketAddr| {
            !text.contains(&format!("haproxy_server_status{{proxy=\"mymaster\",server=\"{node}\""))
        };
        missing.extend(cluster.nodes().iter().map(harness::Node::addr).filter(left_out));
        harness::pause(Duration::from_millis(5));
    }
    missing
}

fn what_haproxys_names_say(pointsman: &Pointsman, cluster: &Cluster, master: std::net::SocketAddr) {
    let of = |series: &str| metric(pointsman, &format!("haproxy_{series}"));
    let server = |name: &str, node: &dyn std::fmt::Display, more: &str| {
        of(&format!("server_{name}{{proxy=\"mymaster\",server=\"{node}\"{more}}}"))
    };
    let state = |node: &dyn std::fmt::Display, state: &str| {
        server("status", node, &format!(",state=\"{state}\""))
    };
    for node in cluster.nodes().iter().map(harness::Node::addr) {
        let is = f64::from(u8::from(node == master));
        assert_eq!(
            (state(&node, "UP"), state(&node, "DOWN")),
            (Some(is), Some(1.0 - is)),
            "{node}"
        );
        assert_eq!(server("current_sessions", &node, ""), Some(is), "{node}");
    }
    wait_until("the check of the master", PATIENCE, || {
        server("check_status", &master, ",state=\"L7OK\"") == Some(1.0)
    });
    assert_eq!(of("backend_status{proxy=\"mymaster\",state=\"UP\"}"), Some(1.0));
    assert_eq!(of("backend_active_servers{proxy=\"mymaster\"}"), Some(1.0));
    assert_eq!(of("frontend_status{proxy=\"mymaster\",state=\"UP\"}"), Some(1.0));
    assert_eq!(of("frontend_sessions_total{proxy=\"mymaster\"}"), Some(1.0));
    // The reader was disconnected if its replica was the one that was promoted.
    let readers = of("frontend_current_sessions{proxy=\"mymaster/replicas\"}");
    assert!(readers.is_some_and(|readers| readers <= 1.0), "{readers:?}");
    assert_eq!(of("frontend_sessions_total{proxy=\"mymaster/replicas\"}"), Some(1.0));
    assert!(
        of("backend_downtime_seconds_total{proxy=\"mymaster\"}") > Some(0.0),
        "a failover is a downtime"
    );
    assert!(of("backend_connection_attempts_total{proxy=\"mymaster\"}") >= Some(2.0));
    assert!(of("process_current_connections") >= Some(1.0) && of("process_stopping") == Some(0.0));
}

fn what_the_process_says(pointsman: &Pointsman, cluster: &Cluster) {
    let of = |series: &str| metric(pointsman, series).unwrap_or_else(|| panic!("no {series}"));
    for sentinel in cluster.sentinel_addrs() {
        // A sentinel that answered slowly during the failover may have been reconnected.
        for series in ["up", "events"] {
            let series = format!("pointsman_sentinel_{series}{{sentinel=\"{sentinel}\"}}");
            wait_until(&format!("{series} 1"), PATIENCE, || match of(&series) {
                1.0 => Ok(()),
                other => Err(other.to_string()),
            });
        }
    }
    // The connection of the scrape itself comes and goes, and so may others.
    wait_until("as many open files in the metrics as there are", PATIENCE, || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", pointsman.process().pid()))
            .expect("its files")
            .count();
        let told = of("process_open_fds");
        if (told - files as f64).abs() <= 3.0 {
            Ok(())
        } else {
            Err(format!("{told} are told, {files} are there"))
        }
    });
    assert!(of("process_resident_memory_bytes") > 1e6 && of("process_cpu_seconds_total") > 0.0);
    let workers = of("pointsman_worker_sessions{worker=\"0\"}");
    assert!(of("pointsman_worker_tasks{worker=\"0\"}") > workers);
    assert!(workers <= 2.0 && of("pointsman_worker_stalls_total{worker=\"0\"}") >= 0.0);
    if std::path::Path::new("/proc/self/schedstat").exists() {
        assert!(of("pointsman_worker_cpu_seconds_total{worker=\"0\"}") > 0.0);
    }
    let outage = of("pointsman_target_outage_seconds_total{service=\"mymaster\"}");
    assert!(outage > 0.0 && outage < 30.0, "{outage}");
}

#[test]
fn keeps_metrics_of_50_services_below_200_kb() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let (sentinel, master) = (&cluster.sentinels()[0], cluster.master().addr());
    let names: Vec<String> = (0..50).map(|number| format!("orders-cache-{number:02}")).collect();
    let (ip, port) = (master.ip().to_string(), master.port().to_string());
    for name in &names {
        sentinel.ask(&["SENTINEL", "MONITOR", name, &ip, &port, "1"]).expect("MONITOR");
    }
    assert!(names.len() > SPARSE_ABOVE);
    let names_of_all: Vec<_> = names.iter().map(String::as_str).collect();
    let pointsman = builder(&cluster).services(&names_of_all).service_line(DEDICATED).start();
    let generation = |name: &str| format!("pointsman_target_generation{{service=\"{name}\"}}");
    for name in &names {
        wait_until("a master for each", PATIENCE, || {
            metric(&pointsman, &generation(name)) == Some(1.0)
        });
        let mut client =
            Client::connect(pointsman.addr_of(name).expect("an address")).expect("a client");
        // Enough for a sample of their durations.
        for _ in 0..40 {
            assert_eq!(client.cmd(&["PING"]).expect("PING").text(), Some("PONG"));
        }
    }
    let (_, text) = pointsman.get("/metrics").expect("metrics");
    assert!(text.len() < 200_000, "{} bytes", text.len());
    assert_eq!(promtool(&text), "");
    for name in &names {
        let of =
            |metric: &str| text.contains(&format!("\npointsman_{metric}{{service=\"{name}\"}} "));
        assert!(
            of("commands_total") && of("command_duration_seconds_count") && of("sessions_open"),
            "{name}"
        );
        assert!(!of("stalls_total") && !of("dial_duration_seconds_count"), "{name}");
    }
    assert_eq!(metric(&pointsman, "pointsman_dial_duration_seconds_count"), Some(50.0));
    println!("{} bytes of metrics with 50 services", text.len());
}
