//! The simulated cluster: its processes, its network, and the faults that are in effect.

use crate::hostile::Outsider;
use crate::net::{Event, Net, ProcessInput};
use crate::plan::{ClusterConfig, FaultPlan, HostileConfig};
use crate::proxy::{Proxy, ProxyConfig};
use crate::redis::{Redis, RestartMode};
use crate::rng::Rng;
use crate::sentinel::{Sentinel, SentinelFile};
use crate::trace::Trace;
use crate::wire::{Addr, Micros, Pid, SENTINEL};

/// Ends a fault.
type FaultEnd = Box<dyn FnOnce(&mut Cluster)>;

/// The cluster of one run. See the module's header.
pub(crate) struct Cluster {
    pub(crate) net: Net,
    pub(crate) plan: FaultPlan,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) sentinels: Vec<Sentinel>,
    pub(crate) redis: Vec<Redis>,
    pub(crate) outsiders: Vec<Outsider>,
    undo: Vec<Option<FaultEnd>>,
    /// Faults in effect.
    pub(crate) pending: usize,
    pub(crate) healed_at: Micros,
    pub(crate) next_ip: u8,
    /// How many sentinels have lost their identity so far, and when the last one did.
    pub(crate) identities_lost: (usize, Micros),
}

impl Cluster {
    /// The cluster of `plan`, with its faults scheduled.
    pub(crate) fn new(plan: FaultPlan, rng: Rng, traced: bool) -> Self {
        let ClusterConfig { proxies, sentinels, redis, colocated, latency, .. } = plan.cluster;
        let outside: Vec<Addr> =
            plan.hostile.into_iter().flat_map(HostileConfig::addresses).collect();
        let inside = proxies + sentinels + redis;
        let hosts = inside + outside.len();
        let net = Net::new(rng, hosts, latency, Trace::new(traced));
        let mut cluster = Self {
            net,
            proxies: Vec::new(),
            sentinels: Vec::new(),
            redis: Vec::new(),
            outsiders: Vec::new(),
            undo: Vec::new(),
            pending: plan.faults.len(),
            healed_at: plan.last_begins(),
            next_ip: 100,
            identities_lost: (0, 0),
            plan,
        };
        for at in 0..proxies {
            cluster.net.add(format!("proxy{at}"), at, Addr { ip: 1 + at as u8, port: 1 });
        }
        for at in 0..sentinels {
            cluster.net.add(
                format!("sentinel{at}"),
                proxies + at,
                Addr { ip: 10 + at as u8, port: SENTINEL },
            );
        }
        for at in 0..redis {
            let shares = colocated && at < sentinels;
            let host = if shares { proxies + at } else { proxies + sentinels + at };
            let ip = if shares { 10 } else { 50 } + at as u8;
            cluster.net.add(format!("redis{at}"), host, Addr::redis(ip));
        }
        for (at, addr) in outside.into_iter().enumerate() {
            let pid = cluster.net.add(format!("hostile{at}"), inside + at, addr);
            cluster.net.process_mut(pid).up = false;
        }
        cluster.populate();
        cluster
    }

    fn populate(&mut self) {
        let cluster = self.plan.cluster;
        let net = &mut self.net;
        let first_redis = cluster.proxies + cluster.sentinels;
        let master = net.addr(first_redis);
        for at in 0..cluster.redis {
            let replid = net.rng.next();
            self.redis.push(Redis::new(first_redis + at, replid, (at > 0).then_some(master), net));
        }
        let ids: Vec<(u64, Addr)> = (0..cluster.sentinels)
            .map(|at| (net.rng.next(), net.addr(cluster.proxies + at)))
            .collect();
        let replicas: Vec<Addr> = (1..cluster.redis).map(|at| net.addr(first_redis + at)).collect();
        for (at, (id, _)) in ids.iter().enumerate() {
            let (config_epoch, current_epoch) = (cluster.epoch, cluster.epoch);
            let mut file =
                SentinelFile { config_epoch, current_epoch, ..SentinelFile::fresh(*id, master) };
            if cluster.knows_peers {
                file.replicas.clone_from(&replicas);
                file.peers = ids.iter().filter(|(other, _)| other != id).copied().collect();
            }
            self.sentinels.push(Sentinel::new(cluster.proxies + at, &file, cluster, net));
        }
        net.dns.sentinels = (0..cluster.sentinels).map(|at| cluster.proxies + at).collect();
        let config = ProxyConfig {
            cluster,
            names: if cluster.one_name { 1 } else { cluster.sentinels },
            has_passwords: self.plan.hostile.is_some(),
        };
        self.proxies = (0..cluster.proxies).map(|at| Proxy::new(at, config, 1, net)).collect();
        if self.plan.hostile.is_some() {
            self.redis.iter_mut().for_each(|it| it.has_password = true);
        }
        let outside = self.plan.hostile.into_iter().flat_map(HostileConfig::addresses);
        for at in 0..outside.count() {
            let (pid, id) = (first_redis + cluster.redis + at, net.rng.next());
            self.outsiders.push(Outsider::new(pid, id, cluster.proxies));
        }
        for (at, fault) in self.plan.faults.iter().enumerate() {
            net.at(fault.at, Event::Fault(at));
        }
    }

    /// Passes an input to its process.
    pub(crate) fn dispatch(&mut self, pid: Pid, input: ProcessInput) {
        let (proxies, sentinels) = (self.proxies.len(), self.sentinels.len());
        if pid < proxies {
            self.proxies[pid].handle(input, &mut self.net);
        } else if pid < proxies + sentinels {
            self.sentinels[pid - proxies].handle(input, &mut self.net);
        } else if pid < proxies + sentinels + self.redis.len() {
            self.redis[pid - proxies - sentinels].handle(input, &mut self.net);
        } else {
            let at = pid - proxies - sentinels - self.redis.len();
            self.outsiders[at].handle(input, &mut self.net);
        }
    }

    /// Schedules the end of a fault, or of a part of it.
    pub(crate) fn undo_at(&mut self, at: Micros, end: impl FnOnce(&mut Self) + 'static) {
        self.pending += 1;
        self.undo.push(Some(Box::new(end)));
        self.net.at(at, Event::Heal(self.undo.len() - 1));
    }

    /// Ends a fault.
    pub(crate) fn undo(&mut self, at: usize) {
        self.pending -= 1;
        self.healed_at = self.net.now;
        if let Some(end) = self.undo[at].take() {
            end(self);
        }
    }

    pub(crate) fn start_redis(&mut self, at: usize, how: RestartMode) {
        let pid = self.redis[at].pid;
        if self.net.process(pid).up {
            return;
        }
        self.net.start(pid);
        self.redis[at].restart(how, &mut self.net);
        let addr = self.net.addr(pid);
        let role = if self.redis[at].is_master() { "master" } else { "replica" };
        self.net.trace_line(pid, || format!("starts again at {addr} ({how:?}), as a {role}"));
    }

    pub(crate) fn start_proxy(&mut self, at: usize) {
        if self.net.process(at).up {
            return;
        }
        self.net.trace_line(at, || "starts again".to_owned());
        self.net.start(at);
        self.proxies[at].restart(&mut self.net);
    }

    pub(crate) fn start_sentinel(&mut self, at: usize, file: Option<SentinelFile>) {
        let pid = self.sentinels[at].pid;
        if self.net.process(pid).up {
            return;
        }
        self.net.start(pid);
        if file.as_ref().is_some_and(|file| file.id != self.sentinels[at].id) {
            self.identities_lost = (self.identities_lost.0 + 1, self.net.now);
        }
        self.sentinels[at].restart(file, &mut self.net);
        let it = &self.sentinels[at];
        let (addr, master, epoch) = (self.net.addr(pid), it.master.addr, it.config_epoch);
        self.net
            .trace_line(pid, || format!("starts again at {addr}: names {master} at epoch {epoch}"));
    }
}
