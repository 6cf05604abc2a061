//! One run: everything that a seed means, from the start to the verdict.

use crate::net::{Event, Fact, Input, Net};
use crate::oracle::Oracle;
use crate::plan::{Cluster, Kind, Plan};
use crate::proxy::{self, Proxy};
use crate::redis::Redis;
use crate::report::{Rule, Run, Violation};
use crate::rng::Rng;
use crate::sentinel::{File, Sentinel, Settings};
use crate::trace::Trace;
use crate::wire::{Addr, MS, Pid, SECOND, SENTINEL, Us};

/// The invariants look at everything this often.
const SAMPLE: Us = 25 * MS;

/// A run ends at the latest this long after its last fault has ended.
const MOST: Us = 200 * SECOND;

/// What ends a fault.
#[derive(Debug, Clone)]
pub(crate) enum Undo {
    Mend(usize, usize),
    Resume(Pid, bool),
    StartRedis(usize, crate::redis::Comeback),
    StartSentinel(usize, Option<File>),
    StartProxy(usize),
    Admit(usize),
    Dns,
    Fast(usize),
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) net: Net,
    pub(crate) plan: Plan,
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) sentinels: Vec<Sentinel>,
    pub(crate) redis: Vec<Redis>,
    pub(crate) undo: Vec<Undo>,
    /// Faults that are in force.
    pub(crate) pending: usize,
    pub(crate) healed_at: Us,
    pub(crate) next_ip: u8,
    /// How many sentinels have lost their identity so far, and when one did last.
    pub(crate) identities_lost: (usize, Us),
    oracle: Oracle,
}

impl World {
    pub(crate) fn new(seed: u64, traced: bool, ignored: &[Rule]) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::new(&mut rng);
        Self::with_plan(plan, rng, traced, ignored)
    }

    pub(crate) fn with_plan(plan: Plan, rng: Rng, traced: bool, ignored: &[Rule]) -> Self {
        let Cluster { proxies, sentinels, redis, together, latency, .. } = plan.cluster;
        let hosts = proxies + sentinels + redis;
        let net = Net::new(rng, hosts, latency, Trace::new(traced));
        let oracle = Oracle::new(&plan, ignored);
        let mut world = Self {
            net,
            proxies: Vec::new(),
            sentinels: Vec::new(),
            redis: Vec::new(),
            undo: Vec::new(),
            pending: plan.faults.len(),
            healed_at: plan.last_begins(),
            next_ip: 100,
            identities_lost: (0, 0),
            oracle,
            plan,
        };
        for at in 0..proxies {
            world.net.add(format!("proxy{at}"), at, Addr { ip: 1 + at as u8, port: 1 });
        }
        for at in 0..sentinels {
            world.net.add(
                format!("sentinel{at}"),
                proxies + at,
                Addr { ip: 10 + at as u8, port: SENTINEL },
            );
        }
        for at in 0..redis {
            let shares = together && at < sentinels;
            let host = if shares { proxies + at } else { proxies + sentinels + at };
            let ip = if shares { 10 } else { 50 } + at as u8;
            world.net.add(format!("redis{at}"), host, Addr::redis(ip));
        }
        world.populate();
        world
    }

    fn populate(&mut self) {
        let cluster = self.plan.cluster.clone();
        let net = &mut self.net;
        let first_redis = cluster.proxies + cluster.sentinels;
        let master = net.addr(first_redis);
        for at in 0..cluster.redis {
            let replid = net.rng.next();
            self.redis.push(Redis::new(first_redis + at, replid, (at > 0).then_some(master), net));
        }
        let settings = Settings {
            quorum: cluster.quorum,
            down_after: cluster.down_after,
            failover_timeout: cluster.failover_timeout,
        };
        let ids: Vec<(u64, Addr)> = (0..cluster.sentinels)
            .map(|at| (net.rng.next(), net.addr(cluster.proxies + at)))
            .collect();
        let replicas: Vec<Addr> = (1..cluster.redis).map(|at| net.addr(first_redis + at)).collect();
        for (at, (id, _)) in ids.iter().enumerate() {
            let (config_epoch, current_epoch) = (cluster.epoch, cluster.epoch);
            let mut file = File { config_epoch, current_epoch, ..File::fresh(*id, master) };
            if cluster.acquainted {
                file.replicas.clone_from(&replicas);
                file.peers = ids.iter().filter(|(other, _)| other != id).copied().collect();
            }
            self.sentinels.push(Sentinel::new(cluster.proxies + at, &file, settings, net));
        }
        net.dns.sentinels = (0..cluster.sentinels).map(|at| cluster.proxies + at).collect();
        let names = if cluster.one_name { 1 } else { cluster.sentinels };
        let settings = proxy::Settings {
            minority: cluster.minority,
            names,
            clients: cluster.clients,
            think: cluster.think,
        };
        for at in 0..cluster.proxies {
            self.proxies.push(Proxy::new(at, settings.clone(), 1, net));
        }
        for (at, fault) in self.plan.faults.iter().enumerate() {
            net.at(fault.at, Event::Fault(at));
        }
        net.at(SAMPLE, Event::Sample);
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> (Run, String) {
        let limit = |healed: Us| healed + MOST;
        while self.net.now < limit(self.healed_at) {
            if !self.step() || self.oracle.is_over() {
                break;
            }
        }
        self.finish()
    }

    /// Runs until a time, for tests.
    #[cfg(test)]
    pub(crate) fn run_until(&mut self, until: Us) {
        while self.net.now < until && self.step() {}
    }

    fn step(&mut self) -> bool {
        let Some(event) = self.net.next() else { return false };
        match event {
            Event::To(pid, _, input) => self.dispatch(pid, input),
            Event::Fault(at) => self.inflict(self.plan.faults[at]),
            Event::Heal(at) => self.undo(at),
            Event::Sample => {
                let mut oracle = std::mem::take(&mut self.oracle);
                oracle.sample(self);
                self.oracle = oracle;
                self.net.at(self.net.now + SAMPLE, Event::Sample);
            }
        }
        if !self.net.facts.is_empty() {
            let facts: Vec<Fact> = std::mem::take(&mut self.net.facts);
            let mut oracle = std::mem::take(&mut self.oracle);
            facts.into_iter().for_each(|fact| oracle.take(fact, self));
            self.oracle = oracle;
        }
        true
    }

    fn dispatch(&mut self, pid: Pid, input: Input) {
        let (proxies, sentinels) = (self.proxies.len(), self.sentinels.len());
        if pid < proxies {
            self.proxies[pid].handle(input, &mut self.net);
        } else if pid < proxies + sentinels {
            self.sentinels[pid - proxies].handle(input, &mut self.net);
        } else {
            self.redis[pid - proxies - sentinels].handle(input, &mut self.net);
        }
    }

    /// Ends a fault, or a part of it, at a time.
    pub(crate) fn undo_at(&mut self, at: Us, what: Undo) {
        self.undo.push(what);
        self.pending += 1;
        self.net.at(at, Event::Heal(self.undo.len() - 1));
    }

    fn undo(&mut self, at: usize) {
        self.pending -= 1;
        self.healed_at = self.net.now;
        match self.undo[at].clone() {
            Undo::Mend(from, to) => self.net.mend(from, to),
            Undo::Resume(pid, suspended) => {
                self.net.say(pid, || "continues".to_owned());
                self.net.resume(pid, suspended);
            }
            Undo::StartRedis(at, how) => {
                let pid = self.redis[at].pid;
                if self.net.process(pid).up {
                    return;
                }
                self.net.start(pid);
                self.redis[at].restart(how, &mut self.net);
                let (addr, role) = (
                    self.net.addr(pid),
                    if self.redis[at].is_master() { "master" } else { "replica" },
                );
                self.net.say(pid, || format!("starts again at {addr} ({how:?}), as a {role}"));
            }
            Undo::StartSentinel(at, file) => self.start_sentinel(at, file),
            Undo::StartProxy(at) => {
                if self.net.process(at).up {
                    return;
                }
                self.net.say(at, || "starts again".to_owned());
                self.net.start(at);
                self.proxies[at].restart(&mut self.net);
            }
            Undo::Admit(at) => self.redis[at].full = false,
            Undo::Dns => {
                (self.net.dns.missing, self.net.dns.late) = (false, 0);
                self.net.dns.left_out.clear();
            }
            Undo::Fast(host) => self.net.slow(host, 0),
        }
    }

    fn start_sentinel(&mut self, at: usize, file: Option<File>) {
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
        self.net.say(pid, || format!("starts again at {addr}: names {master} at epoch {epoch}"));
    }

    fn finish(mut self) -> (Run, String) {
        let mut oracle = std::mem::take(&mut self.oracle);
        let violation: Option<Violation> = oracle.verdict(&self);
        let counts = self.proxies.iter().map(|it| it.driver.counts);
        let (mut commits, mut holds) = (0, 0);
        counts.for_each(|it| (commits, holds) = (commits + it.commits, holds + it.holds));
        let kinds: Vec<Kind> = self.plan.kinds();
        let run = Run {
            kinds,
            simulated: self.net.now,
            events: self.net.events,
            failovers: self.sentinels.iter().map(|it| it.switched).sum(),
            commits,
            holds,
            acknowledged: oracle.acknowledged(),
            lost: oracle.lost,
            converged: oracle.converged,
            violation,
        };
        (run, self.net.trace.text())
    }
}
