//! What clients, conductor and reporters of a run share.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::{Client, Tls, pause};

use super::operation::{KINDS, Kind, Micros, Object, Operation};
use super::timeline::Timeline;
use crate::lock;

/// Longer than a proxy holds a request.
pub(super) const TIMEOUT: Duration = Duration::from_secs(12);
/// An object is replaced by another one after this many operations.
const LONGEST: u64 = 160;
/// Operations of an epoch; clients wait when there are more.
const MOST: usize = 400_000;
/// How long clients may take to finish their operations.
const FINISH: Duration = Duration::from_secs(60);

pub(super) struct World {
    pub(super) timeline: Timeline,
    /// Where clients connect, one address for each proxy.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) tls: Option<Tls>,
    pub(super) stop: AtomicBool,
    epoch: AtomicU64,
    /// The epoch of the latest operation of each client.
    reached: Vec<AtomicU64>,
    /// Operations of each kind, which number its objects.
    used: [AtomicU64; KINDS.len()],
    values: AtomicU64,
    operations: Mutex<Vec<Operation>>,
    /// Connections that ended or could not be opened.
    ends: Mutex<Vec<(Micros, String)>>,
}

impl World {
    pub(super) fn new(addresses: Vec<SocketAddr>, tls: Option<Tls>, clients: usize) -> Self {
        Self {
            timeline: Timeline::new(),
            addresses,
            tls,
            stop: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            reached: (0..clients).map(|_| AtomicU64::new(0)).collect(),
            used: Default::default(),
            values: AtomicU64::new(0),
            operations: Mutex::default(),
            ends: Mutex::default(),
        }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Connects through a proxy.
    pub(super) fn connect(&self, proxy: usize) -> io::Result<Client> {
        let address = self.addresses.get(proxy).copied().ok_or(io::ErrorKind::NotFound)?;
        match &self.tls {
            Some(tls) => Client::connect_tls(address, tls, TIMEOUT),
            None => Client::connect_within(address, TIMEOUT),
        }
    }

    /// A client is about to begin an operation. The epoch that it belongs to.
    pub(super) fn arrive(&self, client: usize) -> u64 {
        while lock(&self.operations).len() > MOST && !self.stopped() {
            pause(Duration::from_millis(100));
        }
        let epoch = self.epoch.load(Ordering::Acquire);
        if let Some(reached) = self.reached.get(client) {
            reached.store(epoch, Ordering::Release);
        }
        epoch
    }

    /// The object for the next operation of a kind.
    pub(super) fn object(&self, kind: Kind, epoch: u64) -> Object {
        let place = KINDS.iter().position(|it| *it == kind).unwrap_or(0);
        let used = self.used.get(place).map_or(0, |it| it.fetch_add(1, Ordering::Relaxed));
        Object { epoch, kind, number: used / LONGEST }
    }

    pub(super) fn value(&self) -> u64 {
        self.values.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn record(&self, operation: Operation) {
        lock(&self.operations).push(operation);
    }

    pub(super) fn ended(&self, what: String) {
        lock(&self.ends).push((self.timeline.now(), what));
    }

    /// Begins the next epoch, and waits until nothing of the former one is in flight.
    pub(super) fn begin_epoch(&self) -> Result<u64, String> {
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        let deadline = Instant::now() + FINISH;
        let late = |it: &AtomicU64| it.load(Ordering::Acquire) < epoch;
        while self.reached.iter().any(late) {
            if Instant::now() > deadline {
                let late: Vec<usize> = (0..self.reached.len())
                    .filter(|at| self.reached.get(*at).is_some_and(late))
                    .collect();
                return Err(format!("clients {late:?} did not finish an operation"));
            }
            pause(Duration::from_millis(5));
        }
        Ok(epoch)
    }

    /// Takes the operations of the epochs before this one, by object and in order of time.
    pub(super) fn take(&self, before: u64) -> BTreeMap<Object, Vec<Operation>> {
        let mut taken = BTreeMap::<Object, Vec<Operation>>::new();
        let mut kept = Vec::new();
        for it in std::mem::take(&mut *lock(&self.operations)) {
            if it.object.epoch < before {
                taken.entry(it.object).or_default().push(it);
            } else {
                kept.push(it);
            }
        }
        lock(&self.operations).extend(kept);
        taken.values_mut().for_each(|all| all.sort_by_key(|it| it.invoked));
        taken
    }

    /// Takes the ends of connections so far.
    pub(super) fn take_ends(&self) -> Vec<(Micros, String)> {
        std::mem::take(&mut *lock(&self.ends))
    }
}
