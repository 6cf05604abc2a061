//! A rolling replacement of all pods under load, like a Deployment with one additional pod and none
//! missing.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Absences, Cluster, Family, pause, wait_until};

use crate::clients::{Clients, Crowd, Tally};
use crate::network::{self, NODE};
use crate::pod::{Kind, Pod, Stop};

const PATIENCE: Duration = Duration::from_secs(40);
/// Number of pods of the Deployment.
const REPLICAS: usize = 3;
/// The interval at which the node's rules follow the endpoints.
const SYNC: Duration = Duration::from_millis(20);
/// Load before the first and after the last replacement.
const MARGIN: Duration = Duration::from_secs(1);
/// The part of a client's pause that may have passed when its proxy decides to close the session,
/// and that the measurement of absences may miss.
const LOOK: Duration = Duration::from_millis(5);

/// The parameters of a replacement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) kind: Kind,
    /// How much later than the deletion of a pod the node learns of it.
    pub(crate) lag: Duration,
    pub(crate) crowd: Crowd,
    /// Additional lines of the configuration.
    pub(crate) settings: &'a str,
}

/// The results of a replacement.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) lag: Duration,
    pub(crate) tallies: [Tally; 3],
    pub(crate) stops: Vec<Stop>,
    /// Duration of the whole replacement.
    pub(crate) took: Duration,
    /// How often a core was away for about as long as a client pauses.
    pub(crate) absences: usize,
}

/// The pods, and the thread that updates the node's rules.
struct Endpoints {
    pods: Arc<Mutex<Vec<Arc<Pod>>>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Endpoints {
    fn follow(lag: Duration) -> Self {
        let (pods, stop) = (Arc::<Mutex<Vec<Arc<Pod>>>>::default(), Arc::<AtomicBool>::default());
        let (watched, stopped) = (Arc::clone(&pods), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut known = BTreeSet::new();
            network::set_endpoints(&known);
            while !stopped.load(Ordering::Relaxed) {
                let pods = watched.lock().expect("no panic").clone();
                let now: BTreeSet<_> =
                    pods.iter().filter(|pod| pod.is_endpoint(lag)).map(|pod| pod.address).collect();
                if now != known {
                    network::set_endpoints(&now);
                    known = now;
                }
                pause(SYNC);
            }
        });
        Self { pods, stop, thread }
    }

    fn add(&self, pod: &Arc<Pod>) {
        self.pods.lock().expect("no panic").push(Arc::clone(pod));
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the endpoints");
    }
}

/// Starts a cluster and the pods, replaces all of them under load, and counts. `first` is the
/// number of the first pod; no number is used twice.
pub(crate) fn roll(plan: Plan<'_>, first: u8) -> Record {
    let cluster = Cluster::builder().family(Family::On(NODE)).replicas(0).sentinels(1).start();
    let endpoints = Endpoints::follow(plan.lag);
    let mut numbers = first..;
    let mut start = || {
        let number = numbers.next().expect("a number");
        let pod = Pod::start(plan.kind, number, &cluster, plan.settings);
        endpoints.add(&pod);
        wait_until(&format!("pod {number} to be ready\n{}", pod.tail()), PATIENCE, || {
            pod.is_ready()
        });
        pod
    };
    let old: Vec<_> = (0..REPLICAS).map(|_| start()).collect();
    pause(SYNC * 4);
    let machine = Absences::watch();
    let clients = Clients::start(plan.crowd);
    pause(MARGIN);
    let begin = Instant::now();
    let mut stopping = Vec::new();
    let mut new = Vec::new();
    for pod in old {
        new.push(start());
        stopping.push(std::thread::spawn(move || pod.stop()));
    }
    let stops = stopping.into_iter().map(|thread| thread.join().expect("a stop")).collect();
    let took = begin.elapsed();
    pause(MARGIN);
    let tallies = clients.stop();
    let absences = machine.longer_than(plan.crowd.think - LOOK, begin, Instant::now());
    endpoints.end();
    new.iter().for_each(|pod| pod.end_probing());
    Record { kind: plan.kind, lag: plan.lag, tallies, stops, took, absences }
}
