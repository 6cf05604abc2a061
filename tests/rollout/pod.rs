//! A pod as a kubelet treats it: started, probed, terminated, and killed after its grace period.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Cluster, Launch, Process, Signal, http_get, pause};

use crate::network::{self, PORTS};

/// `periodSeconds` of the readiness probe.
const PERIOD: Duration = Duration::from_secs(1);
/// `failureThreshold` of the readiness probe.
const FAILURES: u32 = 3;

/// The program in the pods, and how it is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// SIGTERM only.
    Pointsman,
    /// Stopped like the official image of haproxy: SIGUSR1, without a hook.
    HaproxyPlain,
    /// The established recipe: a hook that sleeps ten seconds, then SIGUSR1, with `hard-stop-after
    /// 20s`.
    HaproxyRecipe,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::HaproxyPlain, Self::HaproxyRecipe, Self::Pointsman];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pointsman => "Pointsman",
            Self::HaproxyPlain => "haproxy, no hook",
            Self::HaproxyRecipe => "haproxy, preStop sleep 10",
        }
    }

    /// `terminationGracePeriodSeconds`; the default of Kubernetes for plain haproxy.
    fn grace(self) -> Duration {
        Duration::from_secs(if self == Self::HaproxyPlain { 30 } else { 60 })
    }

    fn hook(self) -> Duration {
        Duration::from_secs(if self == Self::HaproxyRecipe { 10 } else { 0 })
    }

    fn signal(self) -> Signal {
        if self == Self::Pointsman { Signal::TERM } else { Signal::USR1 }
    }

    fn health(self) -> &'static str {
        if self == Self::Pointsman { "/ready" } else { "/healthz" }
    }

    fn program(self) -> (PathBuf, Vec<OsString>) {
        match self {
            Self::Pointsman => (crate::program(), vec!["run".into(), "--config".into()]),
            _ => {
                let haproxy = harness::find_in_path("haproxy")
                    .unwrap_or_else(|| PathBuf::from("/usr/sbin/haproxy"));
                (haproxy, vec!["-db".into(), "-f".into()])
            }
        }
    }

    fn config(self, cluster: &Cluster, settings: &str) -> String {
        let (clients, probes) = PORTS;
        if self == Self::Pointsman {
            let sentinels: Vec<String> =
                cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
            return format!(
                "[[service]]\nname = \"mymaster\"\nlisten = [\"0.0.0.0:{clients}\"]\nsentinels = {sentinels:?}\n\
                 [admin]\nlisten = [\"0.0.0.0:{probes}\"]\n{settings}"
            );
        }
        let hard = if self == Self::HaproxyRecipe { "global\n  hard-stop-after 20s\n" } else { "" };
        let mut conf = format!(
            "{hard}defaults\n  mode tcp\n  timeout connect 4s\n  timeout server 330s\n  timeout client 330s\n  timeout \
             check 2s\n  timeout tunnel 1h\nfrontend probe\n  bind :{probes}\n  mode http\n  monitor-uri /healthz\n\
             frontend clients\n  bind :{clients}\n  default_backend master\nbackend master\n  option tcp-check\n  \
             tcp-check connect\n  tcp-check send info\\ replication\\r\\n\n  tcp-check expect string role:master\n"
        );
        for (number, node) in cluster.nodes().iter().enumerate() {
            conf.push_str(&format!(
                "  server R{number} {} check inter 1s fall 1 rise 1\n",
                node.addr()
            ));
        }
        conf
    }
}

/// A pod that runs or is being terminated.
pub(crate) struct Pod {
    kind: Kind,
    pub(crate) address: Ipv4Addr,
    process: Process,
    ready: AtomicBool,
    /// When its deletion began.
    deleted: Mutex<Option<Instant>>,
    probing: Mutex<Option<JoinHandle<()>>>,
    gone: AtomicBool,
}

/// How a pod stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stop {
    /// From its deletion to its end.
    pub(crate) took: Duration,
    /// It did not end within its grace period.
    pub(crate) killed: bool,
}

impl Pod {
    pub(crate) fn start(kind: Kind, number: u8, cluster: &Cluster, settings: &str) -> Arc<Self> {
        let (namespace, address) = network::pod(number);
        let file = cluster.folder().join(format!("{namespace}.conf"));
        std::fs::write(&file, kind.config(cluster, settings)).expect("a configuration");
        let (program, args) = kind.program();
        let process = launch(&namespace, &program, args, &file, cluster.folder());
        let (ready, gone, deleted, probing) =
            (AtomicBool::new(false), AtomicBool::new(false), Mutex::new(None), Mutex::new(None));
        let pod = Arc::new(Self { kind, address, process, ready, deleted, probing, gone });
        let probed = Arc::clone(&pod);
        *pod.probing.lock().expect("no panic") = Some(std::thread::spawn(move || probed.probe()));
        pod
    }

    /// Runs the readiness probe.
    fn probe(&self) {
        let probes = SocketAddr::from((self.address, PORTS.1));
        let mut failures = 0;
        while !self.gone.load(Ordering::Relaxed) {
            let begin = Instant::now();
            if http_get(probes, self.kind.health()).is_ok_and(|(status, _)| status == 200) {
                failures = 0;
                self.ready.store(true, Ordering::Relaxed);
            } else {
                failures += 1;
                if failures >= FAILURES {
                    self.ready.store(false, Ordering::Relaxed);
                }
            }
            // Probed more often until it is ready for the first time, to save time.
            let period = if self.is_ready() { PERIOD } else { PERIOD / 10 };
            pause(period.saturating_sub(begin.elapsed()));
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Whether the node's packet filter still sends clients here, if it learns of deletions with
    /// this lag.
    pub(crate) fn is_endpoint(&self, lag: Duration) -> bool {
        match *self.deleted.lock().expect("no panic") {
            None => self.is_ready(),
            Some(at) => at.elapsed() < lag,
        }
    }

    pub(crate) fn tail(&self) -> String {
        self.process.tail()
    }

    /// Deletes the pod: the hook, the signal, the grace period, the kill.
    pub(crate) fn stop(&self) -> Stop {
        let begin = Instant::now();
        *self.deleted.lock().expect("no panic") = Some(begin);
        pause(self.kind.hook());
        self.process.signal(self.kind.signal());
        let mut killed = false;
        while self.process.is_running() {
            if begin.elapsed() >= self.kind.grace() {
                self.process.kill();
                killed = true;
            }
            pause(Duration::from_millis(10));
        }
        let took = begin.elapsed();
        self.end_probing();
        Stop { took, killed }
    }

    pub(crate) fn end_probing(&self) {
        self.gone.store(true, Ordering::Relaxed);
        if let Some(probing) = self.probing.lock().expect("no panic").take() {
            probing.join().expect("a probe");
        }
    }
}

fn launch(
    namespace: &str,
    program: &Path,
    args: Vec<OsString>,
    file: &Path,
    folder: &Path,
) -> Process {
    let mut all: Vec<OsString> = ["netns", "exec", namespace].map(OsString::from).into();
    all.push(program.into());
    all.extend(args);
    all.push(file.into());
    let ip = harness::find_in_path("ip").expect("iproute2");
    let name = namespace.to_owned();
    Process::start(&Launch {
        name,
        program: ip,
        args: all,
        env: Vec::new(),
        folder: folder.to_owned(),
    })
}
