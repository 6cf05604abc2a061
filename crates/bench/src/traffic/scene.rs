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
use std::time::Duration;

use crate::load::{
    Alternating, Churn, Closed, Cost, Handshake, Idle, Latency, Loader, Meter, Mixed, Open, Rate,
    Target, Tls, Window, Workload,
};
use harness::{Authority, Cluster, Launch, Process, find_in_path};
use setup::files;

use super::flow::{BULK_CLIENTS, Flow};
use super::record::{Measure, Row};
use super::single_request::{tell, wait_ready};
use crate::name_of;
use crate::peers::{self, Around, Peer, Program, Route, configuration};
use crate::stats::number;

/// Large values that each client requests at once in the row with small requests beside them.
const BULK_PIPELINE: usize = 4;
/// The interval of small requests beside large values.
const PING_GAP: Duration = Duration::from_millis(5);
/// Handshakes at once: as many as a client of the load keeps tickets for one server.
const HANDSHAKES: usize = 8;
/// Idle connections whose memory is measured.
const PAIRS: usize = 2000;

/// The duration of each measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) warm: Duration,
    pub(super) time: Duration,
}

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
        for workload in [Workload::Small, Workload::Set(64 << 10), Workload::Set(1 << 20)] {
            if let Some(preparation) = workload.preparation() {
                tell(target, &preparation, b"+OK\r\n")
                    .map_err(|error| format!("redis-server: {error}"))?;
            }
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
        let program = match peers::find(peer)? {
            Some(program) => program,
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
        wait_ready(&process, [plain.redis, plain.sink])?;
        Ok(Running { process, plain, secured })
    }

    /// Alternates a flow between a proxy and a second one until `go_on` returns `false`, which gets
    /// the costs of each round. With a program, the second one is that pointsman instead.
    ///
    /// # Errors
    /// A message for people.
    pub(super) fn alternate(
        &mut self,
        flow: Flow,
        window: Duration,
        peer: Peer,
        other: Peer,
        program: Option<&Path>,
        go_on: impl FnMut(&[Cost]) -> bool + Send + 'static,
    ) -> Result<(), String> {
        let one = self.launch(peer)?;
        let other = match program {
            Some(program) => self.launch_program(peer, &own(program))?,
            None => self.launch(other)?,
        };
        let targets = [&one, &other].map(|running| Target {
            to: if flow.to_redis { running.plain.redis } else { running.plain.sink },
            pid: running.process.pid(),
        });
        let Flow { workload, clients, pipeline, rate, .. } = flow;
        let job = Alternating { workload, clients, pipeline, rate, window };
        self.loader
            .run(move |engine| job.run(engine, &targets, go_on))
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
    ) -> Result<(BTreeMap<Measure, f64>, Option<Window>), String> {
        let handshake = if row == Row::TlsResumed { Handshake::Resumed } else { Handshake::Full };
        let tls = if row.is_tls() { Some(Tls::new(handshake)?) } else { None };
        if matches!(row, Row::Idle | Row::TlsIdle) {
            let fresh = self.launch(peer)?;
            return self
                .idle(&fresh, tls)
                .map(|bytes| (BTreeMap::from([(Measure::Memory, bytes)]), None));
        }
        let (Addresses { redis, sink }, pids) = self.path(row, peer);
        let meter = self.meter(pids);
        let Pace { warm, time } = pace;
        let closed = |to, workload, clients, pipeline| Closed {
            to,
            tls: tls.clone(),
            workload,
            clients,
            pipeline,
            warm,
            time,
        };
        let churn = |to, at_once| Churn { to, tls: tls.clone(), at_once, warm, time };
        let values = match (row, Flow::of(row)) {
            (_, Some(Flow { workload, clients, pipeline, rate, to_redis })) => {
                let to = if to_redis { redis } else { sink };
                match rate {
                    Some(rate) => {
                        self.open(Open { to, workload, clients, rate, warm, time }, meter)
                    }
                    None => self.closed(closed(to, workload, clients, pipeline), meter),
                }
            }
            (Row::Fairness, _) => {
                let bulk = closed(redis, Workload::Get(1 << 20), BULK_CLIENTS, BULK_PIPELINE);
                self.mixed(Mixed { bulk, gap: PING_GAP }, meter)
            }
            (Row::Connections, _) => self.churn(churn(sink, 16), meter),
            (Row::TlsFull | Row::TlsResumed, _) => self.churn(churn(sink, HANDSHAKES), meter),
            _ => self.churn(churn(redis, 1), meter),
        };
        let (mut values, window) = values.map_err(|error| error.to_string())?;
        if peer == Peer::Direct {
            values.retain(|measure, _| {
                !matches!(
                    measure,
                    Measure::CpuRequest | Measure::CpuBulk | Measure::CpuConn | Measure::Busy
                )
            });
        }
        values.retain(|measure, _| row.measures().contains(measure));
        Ok((values, Some(window)))
    }

    /// The addresses to send load to, and the processes to measure.
    fn path(&self, row: Row, peer: Peer) -> (Addresses, Vec<u32>) {
        match self.running.get(&peer) {
            Some(running) if row.is_tls() => (running.secured, vec![running.process.pid()]),
            Some(running) => (running.plain, vec![running.process.pid()]),
            None => {
                let (redis, sink) = (self.cluster.master().addr(), self.loader.sink());
                (Addresses { redis, sink }, Vec::new())
            }
        }
    }

    fn closed(
        &self,
        job: Closed,
        meter: Meter,
    ) -> std::io::Result<(BTreeMap<Measure, f64>, Window)> {
        let payload = job.workload.payload();
        let rate = self.loader.run(move |engine| job.run(engine, &meter))?;
        Ok(rates(rate, payload))
    }

    fn open(&self, job: Open, meter: Meter) -> std::io::Result<(BTreeMap<Measure, f64>, Window)> {
        let (latency, window) = self.loader.run(move |engine| job.run(engine, &meter))?;
        Ok((latencies(latency, window), window))
    }

    fn mixed(&self, job: Mixed, meter: Meter) -> std::io::Result<(BTreeMap<Measure, f64>, Window)> {
        let payload = job.bulk.workload.payload();
        let (latency, rate) = self.loader.run(move |engine| job.run(engine, &meter))?;
        let (mut values, window) = rates(rate, payload);
        values.extend(
            latencies(latency, window)
                .into_iter()
                .filter(|(measure, _)| *measure != Measure::CpuRequest),
        );
        Ok((values, window))
    }

    fn churn(&self, job: Churn, meter: Meter) -> std::io::Result<(BTreeMap<Measure, f64>, Window)> {
        let (latency, window) = self.loader.run(move |engine| job.run(engine, &meter))?;
        let count = number(latency.count as u64);
        let mut values = latencies(latency, window);
        values.insert(Measure::Conns, count / window.seconds);
        values.insert(Measure::CpuConn, window.proxy / count * 1e4);
        Ok((values, window))
    }

    fn idle(&self, running: &Running, tls: Option<Tls>) -> Result<f64, String> {
        let to = if tls.is_some() { running.secured.sink } else { running.plain.sink };
        let rest = Duration::from_millis(400);
        let job = Idle { to, tls, before: 100, pairs: PAIRS, rest };
        let pids = vec![running.process.pid()];
        let memory = self
            .loader
            .run(move |engine| job.run(engine, &pids))
            .map_err(|error| error.to_string())?;
        Ok((number(memory.after) - number(memory.before)) / number(PAIRS as u64))
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

fn rates(rate: Rate, payload: usize) -> (BTreeMap<Measure, f64>, Window) {
    let (requests, window) = (number(rate.requests), rate.window);
    let gib = requests * number(payload as u64) / number(1 << 30);
    let values = [
        (Measure::Rps, requests / window.seconds),
        (Measure::CpuRequest, window.proxy / requests * 1e6),
        (Measure::Bulk, gib / window.seconds),
        (Measure::CpuBulk, window.proxy / gib),
        (Measure::Busy, window.proxy / window.seconds),
    ];
    (values.into(), window)
}

fn latencies(latency: Latency, window: Window) -> BTreeMap<Measure, f64> {
    let cpu = window.proxy / number(latency.count as u64) * 1e6;
    let values = [
        (Measure::P50, latency.p50),
        (Measure::P99, latency.p99),
        (Measure::P999, latency.p999),
        (Measure::CpuRequest, cpu),
        (Measure::Busy, window.proxy / window.seconds),
    ];
    values.into()
}

/// Writes a certificate with a key of the curve P-256.
fn certificate(cluster: &Cluster) -> Result<PathBuf, String> {
    let certificate = Authority::new("benchmark").issue(&["redis.bench"]);
    let path = cluster.folder().join("certificate.pem");
    files::write(&path, certificate.chain + &certificate.key)?;
    Ok(path)
}
