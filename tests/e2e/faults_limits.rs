//! More clients than there is room for: rows 30, 31, 35 and 36 of the table in `main.rs`, and the
//! limit per source address.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::{Cgroup, Client, Cluster, Pointsman, Quota, encode, wait_until};

use crate::{builder, metric, pointsman, resources};

const PATIENCE: Duration = Duration::from_secs(30);
const REFUSAL: &str = "-ERR max number of clients reached\r\n";

fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

fn refused(pointsman: &Pointsman, limit: &str) -> f64 {
    let series =
        format!("pointsman_sessions_refused_total{{service=\"mymaster\",limit=\"{limit}\"}}");
    metric(pointsman, &series).unwrap_or(0.0)
}

fn pong(client: &mut Client) -> bool {
    client.cmd(&["PING"]).is_ok_and(|answer| answer.text() == Some("PONG"))
}

#[test]
fn refuses_flood_without_harm_to_sessions() {
    let cluster = small();
    let pointsman = builder(&cluster).service_line("max_connections = 50").start();
    let mut inside: Vec<Client> = (0..50).map(|_| pointsman.client()).collect();
    assert!(inside.iter_mut().all(pong));
    let (addr, over, told) = (pointsman.addr(), AtomicBool::new(false), AtomicUsize::new(0));
    let ((), worst) = resources::probed(&pointsman, || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let (bytes, _) = Client::connect(addr)
                            .expect("connect")
                            .read_to_end()
                            .expect("an answer");
                        assert_eq!(String::from_utf8_lossy(&bytes), REFUSAL);
                        told.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(3) {
                let asked = Instant::now();
                assert!(inside.iter_mut().all(pong));
                assert!(
                    asked.elapsed() < Duration::from_secs(5),
                    "{:?} for 50 answers",
                    asked.elapsed()
                );
            }
            over.store(true, Ordering::Relaxed);
        });
    });
    worst.check("a flood at the limit");
    let told = told.into_inner();
    assert!(told > 100, "only {told} were refused: no flood");
    assert_eq!(refused(&pointsman, "service"), told as f64);
    assert_eq!(pointsman.get("/ready").expect("ready").0, 503, "full is not ready");
    drop(inside);
    wait_until("places to be free again", PATIENCE, || pong(&mut pointsman.client()));
}

#[test]
fn limits_connections_per_source() {
    let cluster = small();
    let pointsman = builder(&cluster).service_line("max_connections_per_source = 3").start();
    let from = |last: u8| {
        Client::connect_from([127, 255, 7, last].into(), pointsman.addr()).expect("a connection")
    };
    let mut greedy: Vec<Client> = (0..3).map(|_| from(1)).collect();
    assert!(greedy.iter_mut().all(pong));
    let (bytes, _) = from(1).read_to_end().expect("an answer");
    assert_eq!(String::from_utf8_lossy(&bytes), REFUSAL);
    assert!(pong(&mut from(2)), "another source is not concerned");
    assert_eq!((refused(&pointsman, "source"), refused(&pointsman, "service")), (1.0, 0.0));
    drop(greedy.pop());
    wait_until("the place of the one that left", PATIENCE, || pong(&mut from(1)));
}

/// CPU time per second while liveness and metrics are requested, and the response times.
fn spent_in_three_seconds(pointsman: &Pointsman) -> (f64, resources::Worst) {
    let (used, begin) = (resources::cpu(pointsman), Instant::now());
    let (spent, worst) = resources::probed(pointsman, || {
        wait_until("three seconds", PATIENCE, || begin.elapsed() > Duration::from_secs(3));
        resources::cpu(pointsman).saturating_sub(used).as_secs_f64() / begin.elapsed().as_secs_f64()
    });
    (spent, worst)
}

#[test]
fn recovers_from_lack_of_descriptors() {
    let cluster = small();
    let pointsman = pointsman(&cluster);
    let mut before = pointsman.client();
    assert!(pong(&mut before));
    // The cost of these requests on this machine, in this build.
    let (asked_for, _) = spent_in_three_seconds(&pointsman);
    // Not one descriptor more than there are.
    pointsman.process().limit_files(resources::first_free_file(&pointsman));
    let begin = Instant::now();
    let mut clients: Vec<Client> = (0..40).map(|_| pointsman.client()).collect();
    let errors =
        || metric(&pointsman, "pointsman_accept_errors_total{service=\"mymaster\"}").unwrap_or(0.0);
    wait_until("the lack to be met", PATIENCE, || errors() > 0.0);
    let (spent, worst) = spent_in_three_seconds(&pointsman);
    worst.check("out of file descriptors");
    // A spinning loop takes a whole core.
    assert!(spent < asked_for + 0.5, "{spent} s of CPU a second, {asked_for} before");
    assert!(pong(&mut before), "established sessions are served");
    let said = pointsman.process().log().matches("cannot accept connections").count();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let most = workers * (begin.elapsed().as_secs() as usize + 2);
    assert!(
        said >= 1 && said <= most,
        "{said} lines in {:?} of {workers} workers",
        begin.elapsed()
    );
    pointsman.process().limit_files(4096);
    // The clients waited in the queue. A few may have been accepted with a descriptor that was free
    // for a moment and closed for lack of a second one; none is left waiting.
    for client in &mut clients {
        let answer = client.cmd(&["PING"]);
        let timed_out =
            answer.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::TimedOut);
        assert!(!timed_out, "{answer:?}");
    }
    wait_until("a new client to be served", PATIENCE, || pong(&mut pointsman.client()));
}

#[test]
fn refuses_clients_before_memory_runs_out() {
    const MIB: u64 = 1024 * 1024;
    let cgroup = match Cgroup::new(Quota::Memory(96 * MIB)) {
        Ok(cgroup) => cgroup,
        Err(why) => return eprintln!("NOT TESTED: a bound on memory ({why})"),
    };
    let cluster = small();
    let value = vec![b'x'; 300_000];
    assert!(
        cluster.nodes()[0]
            .client()
            .cmd(&[b"SET".as_slice(), b"large", &value])
            .expect("SET")
            .is_ok()
    );
    let pointsman = builder(&cluster).within(&cgroup).start();
    // 96 MiB, a quarter kept free, 24 MiB for the process, 32 KiB per session.
    assert_eq!(metric(&pointsman, "pointsman_connections_limit"), Some(1536.0));
    assert!(pointsman.process().log().contains("allowed by"), "{}", pointsman.process().log());
    let mut clients = Vec::new();
    let mut kept_out = 0;
    let ((), worst) = resources::probed(&pointsman, || {
        // Each requests ten times the memory that a session is counted with, and reads none of it.
        while kept_out < 100 && clients.len() < 3000 {
            for _ in 0..50 {
                let mut client = pointsman.client();
                drop(client.send(&encode(&["GET", "large"])));
                clients.push(client);
            }
            kept_out = ["process", "service", "memory"]
                .map(|limit| refused(&pointsman, limit) as usize)
                .iter()
                .sum();
        }
    });
    worst.check("a flood at the limit on memory");
    assert!(kept_out >= 100, "nobody was refused: {} clients", clients.len());
    assert_eq!(cgroup.oom_kills(), 0);
    assert!(pointsman.process().is_running());
    drop(clients);
    wait_until("clients to be let in again", PATIENCE, || pong(&mut pointsman.client()));
    drop(pointsman);
}

#[test]
fn answers_probes_with_a_fifth_of_a_core() {
    let cgroup = match Cgroup::new(Quota::Cpu(0.2)) {
        Ok(cgroup) => cgroup,
        Err(why) => return eprintln!("NOT TESTED: a bound on CPU ({why})"),
    };
    let cluster = small();
    let pointsman = pointsman(&cluster);
    cgroup.take(pointsman.process().pid());
    let (host, port) = (pointsman.addr().ip().to_string(), pointsman.addr().port().to_string());
    let mut load = std::process::Command::new("redis-benchmark")
        .args(["-h", &host, "-p", &port, "-n", "100000000", "-c", "20", "-q", "-t", "get"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("redis-benchmark");
    let commands =
        || metric(&pointsman, "pointsman_commands_total{service=\"mymaster\"}").unwrap_or(0.0);
    let (answered, worst) = resources::probed(&pointsman, || {
        let begin = Instant::now();
        wait_until("four seconds of load", PATIENCE, || begin.elapsed() > Duration::from_secs(4));
        commands()
    });
    load.kill().expect("the end of the load");
    load.wait().expect("the end of the load");
    assert!(answered > 500.0, "no load: {answered} commands");
    worst.check("a fifth of a core");
    // The process ends before its cgroup is removed.
    drop(pointsman);
}
