//! What each kind of fault does to the world, to whom it happens to.

use crate::plan::{Fault, Kind};
use crate::redis::Comeback;
use crate::sentinel::File;
use crate::wire::{Addr, MS, Pid, SECOND, Us};
use crate::world::{Undo, World};

impl World {
    pub(crate) fn inflict(&mut self, fault: Fault) {
        self.pending -= 1;
        self.healed_at = self.healed_at.max(self.net.now);
        let Fault { kind, lasts, .. } = fault;
        let until = self.net.now + lasts;
        let text = format!("--- {kind:?}, for {} ms", lasts / MS);
        let now = self.net.now;
        self.net.trace.add(now, "FAULT", text);
        match kind {
            Kind::KillMaster
            | Kind::KillReplica
            | Kind::StopMaster
            | Kind::StopReplica
            | Kind::BusyMaster => {
                self.hurt_redis(kind, until);
            }
            Kind::CutMaster
            | Kind::CutSets
            | Kind::CutOneWay
            | Kind::CutProxy
            | Kind::CutProxyFromSentinels => {
                self.cut(kind, until);
            }
            Kind::StopProxy | Kind::SuspendProxy => {
                let pid = self.net.rng.below(self.proxies.len());
                self.stop(pid, until, kind == Kind::SuspendProxy);
            }
            Kind::RestartProxy => {
                let at = self.net.rng.below(self.proxies.len());
                self.crash(at, false);
                self.undo_at(until.min(now + 5 * SECOND), Undo::StartProxy(at));
            }
            Kind::DnsMissing | Kind::DnsSubset | Kind::DnsLate => self.spoil_dns(kind, until),
            Kind::Failover | Kind::TwoFailovers => {
                self.order_failovers(if kind == Kind::Failover { 1 } else { 2 })
            }
            Kind::Switchover => {
                let at = self.net.rng.below(self.proxies.len());
                self.proxies[at].switchover.wanted = true;
            }
            Kind::ReplacePod | Kind::ReuseAddress => self.replace(kind, until),
            Kind::SlowHost => {
                let hosts = self.proxies.len() + self.sentinels.len() + self.redis.len();
                let (host, by) = (self.net.rng.below(hosts), self.net.rng.range(20 * MS, 400 * MS));
                self.net.slow(host, by);
                self.undo_at(until, Undo::Fast(host));
            }
            _ => self.hurt_sentinels(kind, until),
        }
    }

    /// The redis node that most sentinels name.
    pub(crate) fn master(&self) -> usize {
        let named = self
            .oracle_right()
            .and_then(|addr| self.redis.iter().position(|it| self.net.addr(it.pid) == addr));
        named.or_else(|| self.redis.iter().position(crate::redis::Redis::is_master)).unwrap_or(0)
    }

    fn some_replica(&mut self) -> usize {
        let master = self.master();
        let others: Vec<usize> = (0..self.redis.len()).filter(|at| *at != master).collect();
        *self.net.rng.pick(&others)
    }

    fn stop(&mut self, pid: Pid, until: Us, suspended: bool) {
        if self.net.process(pid).up && !self.net.process(pid).stopped {
            self.net.say(pid, || "STOPPED".to_owned());
            self.net.stop(pid);
            self.undo_at(until, Undo::Resume(pid, suspended));
        }
    }

    fn crash(&mut self, pid: Pid, silent: bool) {
        self.net.say(pid, || if silent { "GONE with its machine" } else { "KILLED" }.to_owned());
        self.net.crash(pid, silent);
    }

    fn hurt_redis(&mut self, kind: Kind, until: Us) {
        let at = match kind {
            Kind::KillReplica | Kind::StopReplica => self.some_replica(),
            _ => self.master(),
        };
        let pid = self.redis[at].pid;
        match kind {
            Kind::KillMaster | Kind::KillReplica => {
                let silent = self.net.rng.percent(25);
                let how = *self.net.rng.pick(&[
                    Comeback::Kept,
                    Comeback::Kept,
                    Comeback::RoleLost,
                    Comeback::Empty,
                ]);
                self.crash(pid, silent);
                self.undo_at(until, Undo::StartRedis(at, how));
            }
            Kind::BusyMaster => {
                self.redis[at].full = true;
                self.net.say(pid, || "admits no new clients, and is busy".to_owned());
                let busy = self.net.rng.range(2 * SECOND, 9 * SECOND);
                let now = self.net.now;
                self.stop(pid, now + busy, false);
                self.undo_at(until.max(now + busy + 20 * SECOND), Undo::Admit(at));
            }
            _ => self.stop(pid, until, false),
        }
    }

    fn hurt_sentinels(&mut self, kind: Kind, until: Us) {
        let now = self.net.now;
        let at = self.net.rng.below(self.sentinels.len());
        let pid = self.sentinels[at].pid;
        match kind {
            Kind::StopSentinel => self.stop(pid, until, false),
            Kind::JumpClock => {
                let by = *self.net.rng.pick(&[-60_000, -3000, 2500, 30_000]);
                self.net.say(pid, || format!("its clock jumps by {by} ms"));
                self.net.process_mut(pid).clock_off += by;
            }
            Kind::RestartSentinel => {
                self.crash(pid, false);
                self.undo_at(until, Undo::StartSentinel(at, None));
            }
            Kind::StaleSentinelFile => {
                let files = &self.sentinels[at].files;
                let stale = files.first().cloned();
                self.crash(pid, false);
                self.undo_at(until, Undo::StartSentinel(at, stale));
            }
            Kind::LoseSentinelFile => {
                let file = self.fresh_file(at);
                self.crash(pid, false);
                self.undo_at(until, Undo::StartSentinel(at, Some(file)));
            }
            Kind::LoseAllFiles => {
                let named = self.net.rng.below(self.redis.len());
                let master = self.net.addr(self.redis[named].pid);
                let back = now + self.net.rng.range(300 * MS, 3 * SECOND);
                for at in 0..self.sentinels.len() {
                    let file = File::fresh(self.net.rng.next(), master);
                    self.crash(self.sentinels[at].pid, false);
                    self.undo_at(back, Undo::StartSentinel(at, Some(file)));
                }
            }
            _ => {
                let mut back = now;
                for at in 0..self.sentinels.len() {
                    let master = self.net.addr(self.redis[self.master()].pid);
                    let file = File::fresh(self.net.rng.next(), master);
                    back += self.net.rng.range(SECOND, 8 * SECOND);
                    self.crash(self.sentinels[at].pid, false);
                    self.undo_at(back, Undo::StartSentinel(at, Some(file)));
                }
            }
        }
    }

    /// A file as it was before the sentinel first ran: it may name its own redis node, the first
    /// master, or the right one.
    fn fresh_file(&mut self, at: usize) -> File {
        let named = match self.net.rng.range(0, 3) {
            0 => at.min(self.redis.len() - 1),
            1 => 0,
            _ => self.master(),
        };
        let master = self.net.addr(self.redis[named].pid);
        File::fresh(self.net.rng.next(), master)
    }

    fn order_failovers(&mut self, many: usize) {
        for _ in 0..many {
            let at = self.net.rng.below(self.sentinels.len());
            let pid = self.sentinels[at].pid;
            if self.net.process(pid).up && !self.net.process(pid).stopped {
                let taken = self.sentinels[at].order_failover(&mut self.net);
                self.net.say(pid, || format!("SENTINEL FAILOVER by an operator, taken: {taken}"));
            }
        }
    }

    fn spoil_dns(&mut self, kind: Kind, until: Us) {
        match kind {
            Kind::DnsMissing => self.net.dns.missing = true,
            Kind::DnsLate => self.net.dns.late = self.net.rng.range(100 * MS, 3 * SECOND),
            _ => {
                let mut all = self.net.dns.sentinels.clone();
                self.net.rng.shuffle(&mut all);
                let most = all.len() as u64;
                all.truncate(self.net.rng.range(1, most) as usize);
                self.net.dns.left_out = all;
            }
        }
        self.undo_at(until, Undo::Dns);
    }

    /// A pod that comes back empty, at an address of its own or at one that another node had.
    fn replace(&mut self, kind: Kind, until: Us) {
        let back = until.min(self.net.now + 8 * SECOND);
        let at = if self.net.rng.percent(40) { self.master() } else { self.some_replica() };
        let pid = self.redis[at].pid;
        let silent = self.net.rng.percent(50);
        self.crash(pid, silent);
        if kind == Kind::ReuseAddress {
            let other = self.net.rng.below(self.redis.len());
            let (own, theirs) = (self.net.addr(pid), self.net.addr(self.redis[other].pid));
            if other != at {
                self.crash(self.redis[other].pid, true);
                self.undo_at(back + SECOND, Undo::StartRedis(other, Comeback::Empty));
                self.net.process_mut(self.redis[other].pid).addr = own;
            }
            self.net.process_mut(pid).addr = theirs;
        } else {
            self.next_ip = self.next_ip.wrapping_add(1).max(100);
            self.net.process_mut(pid).addr = Addr::redis(self.next_ip);
        }
        self.undo_at(back, Undo::StartRedis(at, Comeback::Empty));
        if kind == Kind::ReplacePod && self.plan.cluster.together && at < self.sentinels.len() {
            let sentinel = self.sentinels[at].pid;
            self.crash(sentinel, true);
            self.net.process_mut(sentinel).addr.ip = self.next_ip;
            let local = File::fresh(self.net.rng.next(), Addr::redis(self.next_ip));
            let file = if self.net.rng.percent(70) { local } else { self.fresh_file(at) };
            let late = self.net.rng.range(0, SECOND);
            self.undo_at(back + late, Undo::StartSentinel(at, Some(file)));
        }
    }

    fn cut(&mut self, kind: Kind, until: Us) {
        let (proxies, hosts) =
            (self.proxies.len(), self.proxies.len() + self.sentinels.len() + self.redis.len());
        let sentinels: Vec<usize> = (proxies..proxies + self.sentinels.len()).collect();
        let (one, two): (Vec<usize>, Vec<usize>) = match kind {
            Kind::CutMaster => {
                let host = self.net.process(self.redis[self.master()].pid).host;
                let mut side = vec![host];
                if self.net.rng.percent(50) {
                    side.extend((0..proxies).filter(|_| self.net.rng.percent(60)));
                    let few = self.net.rng.below(self.sentinels.len().div_ceil(2));
                    side.extend(sentinels.iter().filter(|it| **it != host).take(few));
                }
                let keep = *self.net.rng.pick(&[0, 0, 0, 30]);
                let others: Vec<usize> = (0..hosts).filter(|it| !side.contains(it)).collect();
                (side, others.into_iter().filter(|_| !self.net.rng.percent(keep)).collect())
            }
            Kind::CutProxy => {
                let host = self.net.rng.below(proxies);
                (vec![host], (0..hosts).filter(|it| *it != host).collect())
            }
            Kind::CutProxyFromSentinels => (vec![self.net.rng.below(proxies)], sentinels),
            _ => {
                let mut all: Vec<usize> = (0..hosts).collect();
                self.net.rng.shuffle(&mut all);
                let split = self.net.rng.range(1, hosts as u64) as usize;
                let (one, two) = all.split_at(split);
                (one.to_vec(), two.to_vec())
            }
        };
        self.net.trace.add(self.net.now, "FAULT", format!("hosts {one:?} and {two:?} are cut off"));
        let staggered = matches!(kind, Kind::CutProxy | Kind::CutProxyFromSentinels)
            || self.net.rng.percent(30);
        for from in &one {
            for to in &two {
                let late = if staggered { self.net.rng.range(0, 3 * SECOND) } else { 0 };
                self.net.cut(*from, *to);
                self.undo_at(until + late, Undo::Mend(*from, *to));
                if kind != Kind::CutOneWay {
                    self.net.cut(*to, *from);
                    self.undo_at(until + late, Undo::Mend(*to, *from));
                }
            }
        }
    }
}
