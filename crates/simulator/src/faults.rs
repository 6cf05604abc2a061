//! Applies each kind of fault to the cluster.

use crate::cluster::Cluster;
use crate::plan::{Fault, FaultKind};
use crate::redis::RestartMode;
use crate::sentinel::SentinelFile;
use crate::wire::{Addr, MS, Micros, Pid, SECOND};

impl Cluster {
    pub(crate) fn apply(&mut self, fault: Fault) {
        self.pending -= 1;
        self.healed_at = self.healed_at.max(self.net.now);
        let Fault { kind, lasts, .. } = fault;
        let until = self.net.now + lasts;
        let text = format!("--- {kind:?}, for {} ms", lasts / MS);
        let now = self.net.now;
        self.net.trace.add(now, "FAULT", text);
        match kind {
            FaultKind::KillMaster
            | FaultKind::KillReplica
            | FaultKind::StopMaster
            | FaultKind::StopReplica
            | FaultKind::BusyMaster => {
                self.fail_redis(kind, until);
            }
            FaultKind::CutMaster
            | FaultKind::CutSets
            | FaultKind::CutOneWay
            | FaultKind::CutProxy
            | FaultKind::CutProxyFromSentinels => {
                self.cut(kind, until);
            }
            FaultKind::StopProxy | FaultKind::SuspendProxy => {
                let pid = self.net.rng.below(self.proxies.len());
                self.stop(pid, until, kind == FaultKind::SuspendProxy);
            }
            FaultKind::RestartProxy => {
                let at = self.net.rng.below(self.proxies.len());
                self.crash(at, false);
                self.undo_at(until.min(now + 5 * SECOND), move |it| it.start_proxy(at));
            }
            FaultKind::DnsMissing | FaultKind::DnsSubset | FaultKind::DnsLate => {
                self.fail_dns(kind, until);
            }
            FaultKind::Failover | FaultKind::TwoFailovers => {
                self.order_failovers(if kind == FaultKind::Failover { 1 } else { 2 }, false);
            }
            FaultKind::Coordinated => self.order_failovers(1, true),
            FaultKind::Switchover => {
                let at = self.net.rng.below(self.proxies.len());
                self.proxies[at].is_switchover_wanted = true;
            }
            FaultKind::ReplacePod | FaultKind::ReuseAddress => self.replace(kind, until),
            FaultKind::SlowHost => {
                let hosts = self.proxies.len() + self.sentinels.len() + self.redis.len();
                let (host, by) = (self.net.rng.below(hosts), self.net.rng.range(20 * MS, 400 * MS));
                self.net.slow(host, by);
                self.undo_at(until, move |it| it.net.slow(host, 0));
            }
            FaultKind::OrderFollow => self.order_follow(lasts),
            FaultKind::Takeover
            | FaultKind::ReloadSentinels
            | FaultKind::ReplicaOf
            | FaultKind::ZeroPriority
            | FaultKind::AnnounceNames
            | FaultKind::NewPassword => self.operate(kind, until),
            FaultKind::MonitorAnew | FaultKind::ResetSentinels | FaultKind::SetQuorum => {
                self.order_sentinels(kind);
            }
            FaultKind::HostilePeers | FaultKind::HostileSentinels => self.attack(until),
            _ => self.fail_sentinels(kind, until),
        }
    }

    /// What an operator does to a proxy or to Redis nodes.
    fn operate(&mut self, kind: FaultKind, until: Micros) {
        match kind {
            FaultKind::Takeover => {
                let at = self.net.rng.below(self.proxies.len());
                if self.net.runs(at) {
                    self.crash(at, false);
                    self.undo_at(self.net.now, move |it| it.start_proxy(at));
                }
            }
            FaultKind::ReloadSentinels => {
                let at = self.net.rng.below(self.proxies.len());
                let (names, many) = (self.proxies[at].config.names, self.sentinels.len());
                if names == 1 || self.net.rng.percent(30) {
                    let names = if names == 1 { many } else { 1 };
                    self.proxies[at].reload(names, None, &mut self.net);
                } else {
                    let without = self.net.rng.below(many);
                    self.proxies[at].reload(names, Some(without), &mut self.net);
                    self.undo_at(until, move |it| {
                        let names = it.proxies[at].config.names;
                        it.proxies[at].reload(names, None, &mut it.net);
                    });
                }
            }
            FaultKind::ReplicaOf => self.replica_of(),
            FaultKind::ZeroPriority => {
                self.redis.iter_mut().for_each(|it| it.priority = 0);
                self.undo_at(until, |it| it.redis.iter_mut().for_each(|it| it.priority = 100));
            }
            FaultKind::AnnounceNames => {
                let few = self.net.rng.percent(40);
                for sentinel in &mut self.sentinels {
                    sentinel.announces_names = !few || self.net.rng.percent(50);
                }
                self.undo_at(until, |it| {
                    it.sentinels.iter_mut().for_each(|it| it.announces_names = false);
                });
            }
            _ => {
                for at in 0..self.redis.len() {
                    if self.net.rng.percent(50) {
                        self.redis[at].set_password();
                    }
                }
                self.undo_at(until, |it| {
                    it.redis.iter_mut().for_each(|it| it.has_password = false);
                });
            }
        }
    }

    /// The Redis node that most sentinels name.
    pub(crate) fn master(&self) -> usize {
        let named = self
            .majority_master()
            .and_then(|addr| self.redis.iter().position(|it| self.net.addr(it.pid) == addr));
        named.or_else(|| self.redis.iter().position(crate::redis::Redis::is_master)).unwrap_or(0)
    }

    fn some_replica(&mut self) -> usize {
        let master = self.master();
        let others: Vec<usize> = (0..self.redis.len()).filter(|at| *at != master).collect();
        *self.net.rng.pick(&others)
    }

    fn stop(&mut self, pid: Pid, until: Micros, suspended: bool) {
        if self.net.runs(pid) {
            self.net.trace_line(pid, || "STOPPED".to_owned());
            self.net.stop(pid);
            self.undo_at(until, move |it| {
                it.net.trace_line(pid, || "continues".to_owned());
                it.net.resume(pid, suspended);
            });
        }
    }

    fn crash(&mut self, pid: Pid, silent: bool) {
        self.net
            .trace_line(pid, || if silent { "GONE with its machine" } else { "KILLED" }.to_owned());
        self.net.crash(pid, silent);
    }

    fn fail_redis(&mut self, kind: FaultKind, until: Micros) {
        let at = match kind {
            FaultKind::KillReplica | FaultKind::StopReplica => self.some_replica(),
            _ => self.master(),
        };
        let pid = self.redis[at].pid;
        match kind {
            FaultKind::KillMaster | FaultKind::KillReplica => {
                let silent = self.net.rng.percent(25);
                let how = *self.net.rng.pick(&[
                    RestartMode::Kept,
                    RestartMode::Kept,
                    RestartMode::RoleLost,
                    RestartMode::Empty,
                ]);
                self.crash(pid, silent);
                self.undo_at(until, move |it| it.start_redis(at, how));
            }
            FaultKind::BusyMaster => {
                self.redis[at].full = true;
                self.net.trace_line(pid, || "admits no new clients, and is busy".to_owned());
                let busy = self.net.rng.range(2 * SECOND, 9 * SECOND);
                let now = self.net.now;
                self.stop(pid, now + busy, false);
                self.undo_at(until.max(now + busy + 20 * SECOND), move |it| {
                    it.redis[at].full = false;
                });
            }
            _ => self.stop(pid, until, false),
        }
    }

    /// An operator promotes a replica by hand, or makes it follow another one.
    fn replica_of(&mut self) {
        let at = self.some_replica();
        let (pid, other) = (self.redis[at].pid, self.some_replica());
        if !self.net.process(pid).up {
            return;
        }
        if other == at || self.net.rng.percent(70) {
            self.net.trace_line(pid, || "REPLICAOF NO ONE".to_owned());
            self.redis[at].slave_of(None, &mut self.net);
        } else {
            let master = self.net.addr(self.redis[other].pid);
            self.net.trace_line(pid, || format!("REPLICAOF {master}"));
            self.redis[at].slave_of(Some(master), &mut self.net);
        }
    }

    /// Orders to one sentinel, or to all that run.
    fn order_sentinels(&mut self, kind: FaultKind) {
        let one = self.net.rng.below(self.sentinels.len());
        let only = self.net.rng.percent(40).then_some(one);
        let quorum = self.net.rng.range(1, self.sentinels.len() as u64 + 1) as usize;
        for at in (0..self.sentinels.len()).filter(|at| only.is_none_or(|it| it == *at)) {
            if !self.net.runs(self.sentinels[at].pid) {
                continue;
            }
            let sentinel = &mut self.sentinels[at];
            match kind {
                FaultKind::SetQuorum => sentinel.set_quorum(quorum, &mut self.net),
                _ => sentinel.forget(kind == FaultKind::MonitorAnew, &mut self.net),
            }
        }
    }

    /// Kills a sentinel, which restarts later from a file, or from its own.
    fn restart_sentinel(&mut self, at: usize, back: Micros, file: Option<SentinelFile>) {
        self.crash(self.sentinels[at].pid, false);
        self.undo_at(back, move |it| it.start_sentinel(at, file));
    }

    fn fail_sentinels(&mut self, kind: FaultKind, until: Micros) {
        let now = self.net.now;
        let at = self.net.rng.below(self.sentinels.len());
        let pid = self.sentinels[at].pid;
        match kind {
            FaultKind::StopSentinel => self.stop(pid, until, false),
            FaultKind::JumpClock => {
                let by = *self.net.rng.pick(&[-60_000, -3000, 2500, 30_000]);
                self.net.trace_line(pid, || format!("its clock jumps by {by} ms"));
                self.net.process_mut(pid).clock_off += by;
            }
            FaultKind::RestartSentinel => self.restart_sentinel(at, until, None),
            FaultKind::StaleSentinelFile => {
                let stale = self.sentinels[at].files.first().cloned();
                self.restart_sentinel(at, until, stale);
            }
            FaultKind::LoseSentinelFile => {
                let file = self.fresh_file(at);
                self.restart_sentinel(at, until, Some(file));
            }
            FaultKind::LoseSentinels => {
                for at in 0..self.sentinels.len() {
                    self.crash(self.sentinels[at].pid, false);
                    let late = self.net.rng.range(0, 10 * SECOND);
                    self.undo_at(until + late, move |it| it.start_sentinel(at, None));
                }
            }
            FaultKind::OldFiles => {
                let back = now + self.net.rng.range(300 * MS, 3 * SECOND);
                let master = self.net.addr(self.redis[self.master()].pid);
                let is_empty = self.net.rng.percent(50);
                for at in 0..self.sentinels.len() {
                    let empty = SentinelFile::fresh(self.sentinels[at].id, master);
                    let old = self.sentinels[at].files.first().cloned();
                    let file = if is_empty { Some(empty) } else { old };
                    self.restart_sentinel(at, back, file);
                }
            }
            FaultKind::LoseAllFiles => {
                let named = self.net.rng.below(self.redis.len());
                let master = self.net.addr(self.redis[named].pid);
                let back = now + self.net.rng.range(300 * MS, 3 * SECOND);
                for at in 0..self.sentinels.len() {
                    let file = SentinelFile::fresh(self.net.rng.next(), master);
                    self.restart_sentinel(at, back, Some(file));
                }
            }
            _ => {
                let mut back = now;
                for at in 0..self.sentinels.len() {
                    let master = self.net.addr(self.redis[self.master()].pid);
                    let file = SentinelFile::fresh(self.net.rng.next(), master);
                    back += self.net.rng.range(SECOND, 8 * SECOND);
                    self.restart_sentinel(at, back, Some(file));
                }
            }
        }
    }

    /// An operator promotes a replica by hand, if no majority of the sentinels runs, and orders the
    /// proxies to follow it. Or orders them to follow any node: a wrong order must do no harm.
    fn order_follow(&mut self, lasts: Micros) {
        let running = self.sentinels.iter().filter(|it| self.net.process(it.pid).up).count();
        let at = self.net.rng.below(self.redis.len());
        let pid = self.redis[at].pid;
        if running <= self.sentinels.len() / 2 && self.net.process(pid).up {
            self.net.trace_line(pid, || "PROMOTED by hand".to_owned());
            self.redis[at].slave_of(None, &mut self.net);
        }
        let (node, force) = (self.net.addr(pid), self.net.rng.percent(20));
        for proxy in 0..self.proxies.len() {
            if self.net.runs(proxy) && self.net.rng.percent(90) {
                self.proxies[proxy].follow(node, lasts, force, &mut self.net);
            }
        }
    }

    /// A file as it was before the sentinel first ran: it names its own Redis node, the first
    /// master, or the right one.
    fn fresh_file(&mut self, at: usize) -> SentinelFile {
        let named = match self.net.rng.range(0, 3) {
            0 => at.min(self.redis.len() - 1),
            1 => 0,
            _ => self.master(),
        };
        let master = self.net.addr(self.redis[named].pid);
        SentinelFile::fresh(self.net.rng.next(), master)
    }

    fn order_failovers(&mut self, many: usize, coordinated: bool) {
        for _ in 0..many {
            let at = self.net.rng.below(self.sentinels.len());
            let pid = self.sentinels[at].pid;
            if self.net.runs(pid) {
                let taken = self.sentinels[at].order_failover(coordinated, &mut self.net);
                self.net.trace_line(pid, || {
                    format!("SENTINEL FAILOVER by an operator, taken: {taken}")
                });
            }
        }
    }

    fn fail_dns(&mut self, kind: FaultKind, until: Micros) {
        match kind {
            FaultKind::DnsMissing => self.net.dns.missing = true,
            FaultKind::DnsLate => self.net.dns.late = self.net.rng.range(100 * MS, 3 * SECOND),
            _ => {
                let mut all = self.net.dns.sentinels.clone();
                self.net.rng.shuffle(&mut all);
                let most = all.len() as u64;
                all.truncate(self.net.rng.range(1, most) as usize);
                self.net.dns.left_out = all;
            }
        }
        self.undo_at(until, |it| {
            (it.net.dns.missing, it.net.dns.late) = (false, 0);
            it.net.dns.left_out.clear();
        });
    }

    /// A pod that restarts empty, at a new address or at one that another node had.
    fn replace(&mut self, kind: FaultKind, until: Micros) {
        let back = until.min(self.net.now + 8 * SECOND);
        let at = if self.net.rng.percent(40) { self.master() } else { self.some_replica() };
        let pid = self.redis[at].pid;
        let silent = self.net.rng.percent(50);
        self.crash(pid, silent);
        if kind == FaultKind::ReuseAddress {
            let other = self.net.rng.below(self.redis.len());
            let (own, theirs) = (self.net.addr(pid), self.net.addr(self.redis[other].pid));
            if other != at {
                self.crash(self.redis[other].pid, true);
                self.undo_at(back + SECOND, move |it| it.start_redis(other, RestartMode::Empty));
                self.net.process_mut(self.redis[other].pid).addr = own;
            }
            self.net.process_mut(pid).addr = theirs;
        } else {
            self.next_ip = self.next_ip.wrapping_add(1).max(100);
            self.net.process_mut(pid).addr = Addr::redis(self.next_ip);
        }
        self.undo_at(back, move |it| it.start_redis(at, RestartMode::Empty));
        if kind == FaultKind::ReplacePod && self.plan.cluster.colocated && at < self.sentinels.len()
        {
            let sentinel = self.sentinels[at].pid;
            self.crash(sentinel, true);
            self.net.process_mut(sentinel).addr.ip = self.next_ip;
            let local = SentinelFile::fresh(self.net.rng.next(), Addr::redis(self.next_ip));
            let file = if self.net.rng.percent(70) { local } else { self.fresh_file(at) };
            let late = self.net.rng.range(0, SECOND);
            self.undo_at(back + late, move |it| it.start_sentinel(at, Some(file)));
        }
    }

    fn cut(&mut self, kind: FaultKind, until: Micros) {
        let (proxies, hosts) =
            (self.proxies.len(), self.proxies.len() + self.sentinels.len() + self.redis.len());
        let sentinels: Vec<usize> = (proxies..proxies + self.sentinels.len()).collect();
        let (one, two): (Vec<usize>, Vec<usize>) = match kind {
            FaultKind::CutMaster => {
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
            FaultKind::CutProxy => {
                let host = self.net.rng.below(proxies);
                (vec![host], (0..hosts).filter(|it| *it != host).collect())
            }
            FaultKind::CutProxyFromSentinels => (vec![self.net.rng.below(proxies)], sentinels),
            _ => {
                let mut all: Vec<usize> = (0..hosts).collect();
                self.net.rng.shuffle(&mut all);
                let split = self.net.rng.range(1, hosts as u64) as usize;
                let (one, two) = all.split_at(split);
                (one.to_vec(), two.to_vec())
            }
        };
        self.net.trace.add(self.net.now, "FAULT", format!("hosts {one:?} and {two:?} are cut off"));
        let staggered = matches!(kind, FaultKind::CutProxy | FaultKind::CutProxyFromSentinels)
            || self.net.rng.percent(30);
        for from in one {
            for &to in &two {
                let late = if staggered { self.net.rng.range(0, 3 * SECOND) } else { 0 };
                self.net.cut(from, to);
                self.undo_at(until + late, move |it| it.net.mend(from, to));
                if kind != FaultKind::CutOneWay {
                    self.net.cut(to, from);
                    self.undo_at(until + late, move |it| it.net.mend(to, from));
                }
            }
        }
    }
}
