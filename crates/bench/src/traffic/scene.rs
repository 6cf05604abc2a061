//! Everything that runs during a measurement: Redis, a sentinel, the load generator with its
//! backend, the proxies; and single measurements.
//!
//! Pointsman is configured as users do it: a real sentinel names two masters, a Redis and the
//! built-in backend, and Pointsman verifies both. All proxies are started once and are idle between
//! their measurements; only memory is measured in a new process, because most proxies keep what
//! they allocated.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::load::{
    Churn, Cost, Flow, Handshake, Latency, Loader, Measured, Meter, Pace, Target, Tls, Window,
    Workload, private_memory,
};
use harness::{Authority, Client, Cluster, Launch, Process, find_in_path, pause};
use setup::files;

use super::record::{Measure, Row};
use super::single_request::{tell, wait_ready};
use crate::name_of;
use crate::peers::{self, Around, Peer, Program, Route, configuration};
use crate::stats::number;

/// Small requests beside large values.
const PINGS: Flow = Flow { workload: Workload::Ping, clients: 1, pipeline: 1, rate: Some(200) };
/// The length of an alternating window.
const WINDOW: Duration = Duration::from_millis(200);
/// Handshakes at once: as many as a client of the load keeps tickets for one server.
const HANDSHAKES: usize = 8;
/// Idle connections before those whose memory is measured, so that one-time costs do not count.
const BEFORE: usize = 100;
/// Idle connections whose memory is measured.
const PAIRS: usize = 2000;
/// How long they are idle before that.
const REST: Duration = Duration::from_millis(400);

/// The programs that are built here.
#[derive(Debug, Clone)]
pub(super) struct Built {
    pub(super) pointsman: PathBuf,
    /// The baseline proxy, or why it did not build.
    pub(super) baseline: Result<PathBuf, String>,
}

/// A running proxy.
struct Running {
    process: Process,
    plain: Addresses,
    secured: Addresses,
}

/// Where a proxy leads to each backend.
#[derive(Debug, Clone, Copy)]
struct Addresses {
    redis: SocketAddr,
    sink: SocketAddr,
}

/// All processes of the measurement. Dropping it ends them.
pub(super) struct Scene {
    // Dropped in this order: the proxies end before their backends.
    running: BTreeMap<Peer, Running>,
    loader: Loader,
    cluster: Cluster,
    /// The proxies' certificate and its key, in one file.
    certificate: PathBuf,
    /// The programs that are built here.
    built: Built,
    core: usize,
    started: u32,
}

impl Scene {
    /// Starts the backends, with this number of replicas, on the first core; the proxies will run
    /// on the second.
    ///
    /// # Errors
    /// If the load generator does not start.
    pub(super) fn start(
        built: Built,
        cores: (usize, usize),
        replicas: usize,
    ) -> Result<Self, String> {
        let words = |error: std::io::Error| format!("no load: {error}");
        let loader = Loader::start(cores.0, IpAddr::V4(Ipv4Addr::LOCALHOST)).map_err(words)?;
        let (ip, port) = (loader.sink().ip(), loader.sink().port());
        let cluster = Cluster::builder()
            .replicas(replicas)
            .sentinels(1)
            .sentinel_line(&format!("sentinel monitor sink {ip} {port} 1"))
            .sentinel_line("sentinel down-after-milliseconds sink 10000")
            .start();
        let target = cluster.master().addr();
        for workload in [Workload::WRITE, Workload::Set(64 << 10), Workload::Set(1 << 20)] {
            tell(target, workload).map_err(|error| format!("redis-server: {error}"))?;
        }
        let certificate = certificate(&cluster)?;
        let (running, core) = (BTreeMap::new(), cores.1);
        Ok(Self { running, loader, cluster, certificate, built, core, started: 0 })
    }

    /// Starts a proxy and waits until it answers on both routes. Does nothing if it runs.
    ///
    /// # Errors
    /// Why it cannot be measured.
    pub(super) fn admit(&mut self, peer: Peer) -> Result<(), String> {
        if peer != Peer::Direct && !self.running.contains_key(&peer) {
            let running = self.launch(peer)?;
            self.running.insert(peer, running);
        }
        Ok(())
    }

    fn launch(&mut self, peer: Peer) -> Result<Running, String> {
        let program = match peer.source() {
            Some(source) => peers::find(source)?,
            None if peer == Peer::Baseline => own(&self.built.baseline.clone()?),
            None => own(&self.built.pointsman),
        };
        self.launch_program(peer, &program)
    }

    fn launch_program(&mut self, peer: Peer, program: &Program) -> Result<Running, String> {
        self.started += 1;
        let name = format!("{}-{}", name_of(&peer), self.started);
        let folder = self.cluster.folder().join(&name);
        files::make(&folder)?;
        let port = || self.cluster.address().port();
        let [plain, secured] = [(); 2].map(|()| Addresses { redis: port(), sink: port() });
        let routes = [
            Route {
                name: "mymaster",
                listen: plain.redis,
                secured: secured.redis,
                target: self.cluster.master().addr(),
            },
            Route {
                name: "sink",
                listen: plain.sink,
                secured: secured.sink,
                target: self.loader.sink(),
            },
        ];
        let sentinel = self.cluster.sentinel_addrs().first().copied().ok_or("no sentinel")?;
        let (admin, certificate) = (port(), self.certificate.as_path());
        let around = Around { sentinel, admin, certificate, root: &program.root, folder: &folder };
        let (file, text, args) = configuration(peer, &routes, &around);
        let file = folder.join(file);
        files::write(&file, text)?;
        // Set before its start, so that all its threads are on the core, and it finds one core if
        // it counts them.
        let taskset = find_in_path("taskset").ok_or("taskset is missing (Debian's util-linux)")?;
        let args = args
            .iter()
            .map(|arg| if arg == "FILE" { file.clone().into_os_string() } else { arg.into() });
        let args = ["-c".into(), self.core.to_string().into()]
            .into_iter()
            .chain(program.words.iter().cloned())
            .chain(args)
            .collect();
        let process =
            Process::start(&Launch { name, program: taskset, args, env: Vec::new(), folder });
        wait_ready(&process, [plain.redis, plain.sink]);
        Ok(Running { process, plain, secured })
    }

    /// Alternates the requests of a row between pointsman and the baseline, or another pointsman if
    /// there is a program, for this number of rounds or until `stop`. Returns the costs of each
    /// round.
    ///
    /// # Errors
    /// A message for people.
    pub(super) fn alternate(
        &mut self,
        row: Row,
        flow: Flow,
        program: Option<&Path>,
        rounds: u32,
        stop: &Arc<AtomicBool>,
    ) -> Result<Vec<[Cost; 2]>, String> {
        let one = self.launch(Peer::Pointsman)?;
        let other = match program {
            Some(program) => self.launch_program(Peer::Pointsman, &own(program))?,
            None => self.launch(Peer::Baseline)?,
        };
        let targets = [&one, &other].map(|running| Target {
            to: if row.is_to_sink() { running.plain.sink } else { running.plain.redis },
            pid: running.process.pid(),
        });
        let stop = Arc::clone(stop);
        self.loader
            .run(move |engine| flow.alternate(engine, targets, WINDOW, rounds, &stop))
            .map_err(|error| error.to_string())
    }

    /// Measures once; returns the values and the resources used.
    ///
    /// # Errors
    /// A message for people.
    pub(super) fn measure(
        &mut self,
        row: Row,
        peer: Peer,
        pace: Pace,
    ) -> Result<(BTreeMap<Measure, f64>, Window), String> {
        let handshake = if row == Row::TlsResumed { Handshake::Resumed } else { Handshake::Full };
        let tls = if row.is_tls() { Some(Tls::new(handshake)?) } else { None };
        if matches!(row, Row::Idle | Row::TlsIdle) {
            let bytes = self.idle(peer, tls.as_ref())?;
            return Ok((BTreeMap::from([(Measure::Memory, bytes)]), Window::default()));
        }
        let (to, pids) = self.path(row, peer);
        let meter = self.meter(pids);
        let done = self.loader.run(move |engine| match (row, row.flow()) {
            (Row::Fairness, Some(flow)) => flow.run_beside(PINGS, engine, to, pace, &meter),
            (_, Some(flow)) => flow.run(engine, to, tls.as_ref(), pace, &meter),
            (_, None) => {
                let at_once = match row {
                    Row::First => 1,
                    Row::Connections => 16,
                    _ => HANDSHAKES,
                };
                Churn { to, tls, at_once, pace }.run(engine, &meter)
            }
        });
        let measured = done.map_err(|error| error.to_string())?;
        let mut values = values(&measured, row.flow().map_or(0, |flow| flow.workload.payload()));
        let of_proxy = [Measure::CpuRequest, Measure::CpuBulk, Measure::CpuConn, Measure::Busy];
        values.retain(|measure, _| {
            row.measures().contains(measure)
                && (peer != Peer::Direct || !of_proxy.contains(measure))
        });
        Ok((values, measured.window))
    }

    /// The address to send load to, and the processes to measure.
    fn path(&self, row: Row, peer: Peer) -> (SocketAddr, Vec<u32>) {
        let direct = Addresses { redis: self.cluster.master().addr(), sink: self.loader.sink() };
        let running = self.running.get(&peer);
        let Addresses { redis, sink } = running
            .map_or(direct, |running| if row.is_tls() { running.secured } else { running.plain });
        let pids = running.map(|running| running.process.pid()).into_iter().collect();
        (if row.is_to_sink() { sink } else { redis }, pids)
    }

    /// Memory of a new process per idle connection, in bytes.
    fn idle(&mut self, peer: Peer, tls: Option<&Tls>) -> Result<f64, String> {
        let running = self.launch(peer)?;
        let connect = || match tls {
            Some(tls) => tls.client(running.secured.sink),
            None => Client::connect(running.plain.sink),
        };
        let mut clients = Vec::new();
        let mut memory_with = |count| {
            while clients.len() < count {
                let mut client = connect()?;
                client.cmd(&["PING"])?;
                clients.push(client);
            }
            pause(REST);
            Ok(number(private_memory(&[running.process.pid()])))
        };
        let words = |error: std::io::Error| error.to_string();
        let before = memory_with(BEFORE).map_err(words)?;
        let after = memory_with(BEFORE + PAIRS).map_err(words)?;
        Ok((after - before) / number(PAIRS as u64))
    }

    /// A meter for a proxy that also knows our other processes, so that they do not count as
    /// foreign.
    fn meter(&self, proxy: Vec<u32>) -> Meter {
        let nodes = self
            .cluster
            .nodes()
            .iter()
            .chain(self.cluster.sentinels())
            .filter_map(harness::Node::pid);
        let idle = self
            .running
            .values()
            .map(|running| running.process.pid())
            .filter(|pid| !proxy.contains(pid));
        let others = nodes.chain(idle).collect();
        Meter { proxy, others }
    }
}

/// A program that was built here.
fn own(program: &Path) -> Program {
    Program { words: vec![program.into()], root: PathBuf::new() }
}

/// All that a measurement says. What a row does not show may be meaningless for it.
fn values(measured: &Measured, payload: usize) -> BTreeMap<Measure, f64> {
    let Measured { requests, replies, window } = measured;
    let (count, latency) = (number(*requests), Latency::of(replies));
    let gib = count * number(payload as u64) / number(1 << 30);
    BTreeMap::from([
        (Measure::Rps, count / window.seconds),
        (Measure::CpuRequest, window.proxy / count * 1e6),
        (Measure::Busy, window.proxy / window.seconds),
        (Measure::P50, latency.p50),
        (Measure::P99, latency.p99),
        (Measure::P999, latency.p999),
        (Measure::Bulk, gib / window.seconds),
        (Measure::CpuBulk, window.proxy / gib),
        (Measure::Conns, count / window.seconds),
        (Measure::CpuConn, window.proxy / count * 1e4),
    ])
}

/// Writes a certificate with a key of the curve P-256.
fn certificate(cluster: &Cluster) -> Result<PathBuf, String> {
    let certificate = Authority::new("benchmark").issue(&["redis.bench"]);
    let path = cluster.folder().join("certificate.pem");
    files::write(&path, certificate.chain + &certificate.key)?;
    Ok(path)
}
