//! The oracle: checks the invariants in every run. It knows the whole state, which no proxy does,
//! and judges each proxy by what it could have known.
//!
//! The **right** master is the address that a majority of all sentinels names. A proxy that could
//! reach a majority of sentinels that name it, for longer than a bound, must not acknowledge writes
//! of another master. A proxy that could not reach them is judged by its policy, and by its state
//! when its gate opened.

use std::collections::{BTreeMap, BTreeSet};

use sentinel::Minority;

use crate::cluster::Cluster;
use crate::net::{Leak, Observation};
use crate::plan::FaultPlan;
use crate::redis::Redis;
use crate::report::{Rule, Violation};
use crate::sentinel::{FailoverStep, Sentinel};
use crate::wire::{Addr, MS, Micros, Pid, SECOND};

/// Bounds from the moment at which a majority with the new master is reachable: for a redial, a
/// handshake, a poll and a verification. With `keep` the last master may be used again after no
/// sentinel was reachable for this long.
const SILENT: Micros = 5 * SECOND;
const HEARD: Micros = 4 * SECOND;
/// The same if a majority has to insist on an older epoch, or if most sentinels are strangers at
/// first.
const INSIST: Micros = 90 * SECOND;
/// With `hold` or `cut`, silence stops traffic after this time: votes expire after five seconds.
const SILENCE: Micros = 10 * SECOND;
/// How long the gate may be closed although nothing is wrong with the master.
const HEALTHY_SHUT: Micros = 7 * SECOND;
/// Bound for a hold or a verification, while all sentinels are reachable.
const HOLD: Micros = 11 * SECOND;
/// Bound while only a majority is: it has to outlast the demotion of a stray master. With fewer, or
/// while one of them has ordered a promotion and not finished, nobody can say which of two masters
/// is meant, and a hold has no bound but that of Sentinel.
const OUTLAST: Micros = HOLD + 20 * SECOND;
/// Bound for writes to succeed after everything has healed and all sentinels agree.
const LIVE: Micros = 15 * SECOND;
/// Bound for an override to end when a majority is back: it may have to insist for ten seconds on
/// the last master.
const OVERRULE: Micros = 25 * SECOND;
/// How long a run continues after an attack.
const AFTERMATH: Micros = 20 * SECOND;
/// How long all must be well before the run ends.
const CALM: Micros = 3 * SECOND;

/// The record of one proxy.
#[derive(Debug, Clone, Default)]
struct ProxyRecord {
    wrong_since: Option<Micros>,
    silent_since: Option<Micros>,
    superseded_since: Option<Micros>,
    healthy_shut_since: Option<Micros>,
    /// The gate is closed, and no majority was reachable at some time since.
    is_blinded: bool,
    open_since: Option<Micros>,
    opened_at: Micros,
    /// Since when a majority is reachable that names the right master.
    heard_since: Option<Micros>,
    /// Since when any majority, and all sentinels, are reachable and none is promoting a replica.
    most_since: Option<Micros>,
    all_since: Option<Micros>,
    /// Since when an override is in force although such a majority is reachable.
    overruled_since: Option<Micros>,
    reads_wrong: BTreeMap<Addr, Micros>,
}

/// An acknowledged write.
#[derive(Debug, Clone, Copy)]
struct Ack {
    id: u32,
    pid: Pid,
    node: Pid,
    at: Micros,
}

/// The oracle. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    minority: Minority,
    only_planned: bool,
    is_attacked: bool,
    right: Option<Addr>,
    right_epoch: u64,
    proxies: Vec<ProxyRecord>,
    /// Since when each sentinel can be reached by each proxy.
    reached_since: Vec<Vec<Option<Micros>>>,
    acks: Vec<Ack>,
    agreed_since: Option<Micros>,
    calm_since: Option<Micros>,
    violation: Option<Violation>,
    /// Most configured sentinels lied, or followed the attacker, at some time.
    captured: bool,
    /// The same of those that a proxy could reach.
    outnumbered: Vec<bool>,
    /// A configured sentinel lied at some time. It has the password for sentinels already.
    betrayed: bool,
    /// What most of those that a proxy could reach listed at some time.
    listed: BTreeSet<(Pid, Addr)>,
    pub(crate) lost: u64,
    pub(crate) converged: bool,
}

/// Keeps the time since which a condition holds.
fn since(slot: &mut Option<Micros>, is: bool, now: Micros) {
    if is {
        slot.get_or_insert(now);
    } else {
        *slot = None;
    }
}

impl Cluster {
    /// The address that a majority of all sentinels names.
    pub(crate) fn majority_master(&self) -> Option<Addr> {
        let named = self
            .sentinels
            .iter()
            .filter(|it| self.net.process(it.pid).up)
            .map(Sentinel::current_master);
        let mut votes: BTreeMap<Addr, usize> = BTreeMap::new();
        named.for_each(|addr| *votes.entry(addr).or_default() += 1);
        votes.into_iter().find(|(_, times)| *times > self.sentinels.len() / 2).map(|(addr, _)| addr)
    }

    /// The Redis node at an address.
    fn node_at(&self, addr: Addr) -> Option<&Redis> {
        self.redis.iter().find(|it| self.net.addr(it.pid) == addr)
    }

    /// The right master, if it is a master: sentinels that lost their files may name a replica.
    pub(crate) fn right_master(&self) -> Option<Addr> {
        let right = self.majority_master()?;
        let node = self.node_at(right)?;
        (node.is_master() && self.net.process(node.pid).up).then_some(right)
    }

    /// Whether a server runs, and a proxy reaches it.
    pub(crate) fn can_hear(&self, proxy: Pid, server: Pid) -> bool {
        self.net.runs(server) && self.net.reach(proxy, server)
    }

    /// How many sentinels a proxy can reach, and how many of them name the right master.
    fn heard(&self, proxy: Pid, right: Option<Addr>) -> (usize, usize) {
        let heard = || self.sentinels.iter().filter(|it| self.can_hear(proxy, it.pid));
        (heard().count(), heard().filter(|it| Some(it.current_master()) == right).count())
    }
}

impl Oracle {
    pub(crate) fn new(plan: &FaultPlan) -> Self {
        Self {
            is_attacked: plan.hostile.is_some(),
            outnumbered: vec![false; plan.cluster.proxies],
            minority: plan.cluster.minority,
            only_planned: plan.is_planned(),
            proxies: vec![ProxyRecord::default(); plan.cluster.proxies],
            ..Self::default()
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.violation.is_some() || self.converged
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acks.len() as u64
    }

    fn violate(&mut self, rule: Rule, pid: Pid, mut text: String, cluster: &mut Cluster) {
        // An attack may take service away: it makes the electorate larger.
        let outlasts_attacks =
            matches!(rule, Rule::RequestOutside | Rule::PasswordOutside | Rule::Safety);
        if self.violation.is_none() && (outlasts_attacks || !self.is_attacked) {
            text.push_str(&format!(" [minority = {:?}]", self.minority));
            cluster.net.trace_line(pid, || format!("VIOLATION of {rule:?}: {text}"));
            let who = cluster.net.process(pid).name.clone();
            self.violation = Some(Violation { rule, at: cluster.net.now, who, text });
        }
    }

    pub(crate) fn take(&mut self, pid: Pid, observation: Observation, cluster: &mut Cluster) {
        match observation {
            Observation::Acked { node, id, executed } => {
                let at = cluster.net.now;
                self.acks.push(Ack { id, pid, node, at });
                self.judge_ack(pid, node, executed, cluster);
                self.judge_parent(pid, node, executed, cluster);
            }
            Observation::ForwardedUnproven { node } => self.judge_forward(pid, node, cluster),
            Observation::Leaked { node, leak } => {
                let addr = cluster.net.addr(node);
                self.judge_leak(pid, addr, leak, cluster);
            }
            Observation::Ordered { to } => self.judge_order(pid, to, cluster),
            Observation::InvariantBroken(text) => self.violate(Rule::Safety, pid, text, cluster),
            Observation::Opened { to, how, fresh, minority, shut_for } => {
                self.proxies[pid].opened_at = cluster.net.now;
                let right = cluster.right_master().filter(|right| *right != to);
                // An order has its own rule: `WrongOrder`.
                let is_ordered = cluster.proxies[pid].observed.is_overridden();
                let (Some(right), Some(shut_for), false) = (right, shut_for, is_ordered) else {
                    return;
                };
                if fresh == 0 {
                    let text = format!(
                        "opened to {to} ({how}) without a view of it since the gate closed; \
                         {right} is right"
                    );
                    let expired = how.starts_with("released") && !how.ends_with("no_master");
                    let rule = if expired { Rule::ReleasedUnheard } else { Rule::OpenedUnheard };
                    // With `keep` silence takes no master away: after that time the last one is
                    // used again.
                    let patient = self.minority == Minority::Keep && shut_for >= SILENT;
                    if !patient {
                        self.violate(rule, pid, text, cluster);
                    }
                } else if minority
                    && self.minority == Minority::Hold
                    && fresh <= cluster.sentinels.len() / 2
                {
                    let text = format!(
                        "held as a minority, then opened to {to} ({how}) by {fresh} views; \
                         {right} is right"
                    );
                    self.violate(Rule::HoldOpened, pid, text, cluster);
                }
            }
        }
    }

    fn judge_ack(&mut self, pid: Pid, node: Pid, executed: Micros, cluster: &mut Cluster) {
        let (now, addr) = (cluster.net.now, cluster.net.addr(node));
        let wrong = cluster.right_master().is_some_and(|right| right != addr);
        let it = &self.proxies[pid];
        let resumed =
            cluster.proxies[pid].observed.unproven_since.filter(|at| wrong && executed > *at);
        // What no sentinel knows is not what one has selected.
        let is_known = |addr: Addr| cluster.sentinels.iter().any(|it| it.knows(addr));
        let others = cluster.redis.iter().filter(|it| it.pid != node);
        let others = others.filter(|it| is_known(cluster.net.addr(it.pid)));
        let newer = others.filter_map(|it| it.promoted_at).max();
        let after = newer.is_some_and(|at| at <= executed && at > it.opened_at);
        let observed = &cluster.proxies[pid].observed;
        // The order to promote follows the selection within 70 ms. On a slow network it may arrive
        // after a reply that was executed after the promotion, and nothing else tells the proxy.
        let selected = observed.selected.filter(|_| !cluster.net.was_slow());
        let evidence = observed.evidence.or(selected).filter(|_| after);
        let late = it
            .wrong_since
            .filter(|at| wrong && now - at > self.heard_bound(pid, cluster) && executed > *at);
        let blind = it.silent_since.zip(it.superseded_since).map(|(one, two)| one.max(two));
        let overridden = cluster.proxies[pid].observed.is_overridden();
        let blind = blind.filter(|at| {
            !overridden
                && wrong
                && self.minority != Minority::Keep
                && now - at > SILENCE
                && executed > *at
        });
        if let Some(at) = resumed {
            let text = format!(
                "{addr} acknowledged before any view was received after the process was stopped \
                 until {} ms",
                at / MS
            );
            self.violate(Rule::WroteAfterSleep, pid, text, cluster);
        } else if let Some(at) = evidence {
            let text = format!(
                "acknowledged what {addr} executed at {} ms, after another node was promoted at \
                 {} ms and with evidence of it since {} ms",
                executed / MS,
                newer.unwrap_or(0) / MS,
                at / MS
            );
            self.violate(Rule::AckAfterEvidence, pid, text, cluster);
        } else if let Some(at) = late {
            let text = format!(
                "{addr} acknowledged, although a majority that names another was reachable for \
                 {} ms",
                (now - at) / MS
            );
            self.violate(Rule::LateMajority, pid, text, cluster);
        } else if let Some(at) = blind {
            let text = format!(
                "{addr} acknowledged after {} ms of silence under {:?}",
                (now - at) / MS,
                self.minority
            );
            self.violate(Rule::BlindWrites, pid, text, cluster);
        }
    }

    /// Judges an acknowledgement by what servers told this proxy, whatever discovery makes of it. A
    /// sentinel that was out of reach when the child spoke has to name it: E3 does not wait for
    /// its promotion.
    fn judge_parent(&mut self, pid: Pid, node: Pid, executed: Micros, cluster: &mut Cluster) {
        let parent = cluster.net.addr(node);
        let observed = &cluster.proxies[pid].observed;
        if observed.is_overridden() {
            return;
        }
        let history = cluster.redis.iter().find(|it| it.pid == node).map(|it| it.replid);
        let children = cluster.redis.iter().filter(|it| it.pid != node && it.is_master());
        let children = children.filter(|it| Some(it.replid2) == history).filter_map(|it| {
            let told = observed.masters.get(&it.replid).copied()?;
            (told < executed).then_some((cluster.net.addr(it.pid), told))
        });
        let found = children.into_iter().find_map(|(child, told)| {
            let supports = |at: &usize| {
                let (it, reached) = (&cluster.sentinels[*at], self.reached_since[*at][pid]);
                let view = observed.successors.get(&it.id).filter(|(addr, _)| *addr == child);
                let names = it.current_master() == child;
                it.successor() == child
                    && view.is_some_and(|(_, at)| *at < executed)
                    && (names || reached.is_some_and(|at| at < told))
                    && cluster.prefers(pid, it, parent)
            };
            let by = (0..self.reached_since.len()).find(supports)?;
            Some((child, told, cluster.net.process(cluster.sentinels[by].pid).name.clone()))
        });
        if let Some((child, told, by)) = found {
            let text = format!(
                "{parent} acknowledged what it executed at {} ms, although its child {child}, \
                 which {by} names or promotes, said at {} ms that it is a master",
                executed / MS,
                told / MS
            );
            self.violate(Rule::AckAfterChild, pid, text, cluster);
        }
    }

    fn watch_sentinels(&mut self, cluster: &Cluster) {
        let proxies = self.proxies.len();
        self.reached_since.resize_with(cluster.sentinels.len(), || vec![None; proxies]);
        for (reached, sentinel) in self.reached_since.iter_mut().zip(&cluster.sentinels) {
            for (pid, slot) in reached.iter_mut().enumerate() {
                since(slot, cluster.can_hear(pid, sentinel.pid), cluster.net.now);
            }
        }
    }

    /// A proxy that was stopped forwards a write before it received any view. Another node must not
    /// have been promoted meanwhile.
    fn judge_forward(&mut self, pid: Pid, node: Pid, cluster: &mut Cluster) {
        let since = cluster.net.process(pid).stopped_at;
        let promoted = |at: &Micros| *at >= since;
        let others = cluster.redis.iter().filter(|it| it.pid != node && it.is_master());
        let Some(at) = others.filter_map(|it| it.promoted_at).find(promoted) else { return };
        let resumed = cluster.proxies[pid].observed.unproven_since;
        // With `keep`, silence of all sentinels takes no master away.
        let patient = self.minority == Minority::Keep
            && resumed.is_some_and(|resumed| cluster.net.now - resumed >= SILENT);
        if !patient {
            let text = format!(
                "forwarded to {} before any view was received after a stop from {} ms on, in which \
                 another node was promoted at {} ms",
                cluster.net.addr(node),
                since / MS,
                at / MS
            );
            self.violate(Rule::WroteAfterSleep, pid, text, cluster);
        }
    }

    /// What must be known before a leak is judged.
    fn watch_attack(&mut self, pid: Pid, cluster: &Cluster) {
        self.captured |= cluster.is_captured();
        self.betrayed |= cluster.sentinels.iter().any(|it| it.plot.is_some());
        let (liars, honest) = cluster.liars_and_honest(pid);
        self.outnumbered[pid] |= honest <= liars;
        let outside = cluster.outsiders.iter().map(|it| cluster.net.addr(it.pid));
        self.listed
            .extend(outside.filter(|addr| cluster.is_listed(pid, *addr)).map(|addr| (pid, addr)));
    }

    /// Something reached a process outside the cluster.
    fn judge_leak(&mut self, pid: Pid, to: Addr, leak: Leak, cluster: &mut Cluster) {
        self.watch_attack(pid, cluster);
        let rule = match leak {
            Leak::Request | Leak::Readers => Rule::RequestOutside,
            Leak::NodePassword | Leak::SentinelPassword => Rule::PasswordOutside,
        };
        let may_know = match leak {
            Leak::Request | Leak::Readers => false,
            Leak::NodePassword => self.listed.contains(&(pid, to)),
            Leak::SentinelPassword => self.betrayed || self.listed.contains(&(pid, to)),
        };
        if !self.captured && !self.outnumbered[pid] && !may_know {
            let (liars, honest) = cluster.liars_and_honest(pid);
            let text = format!(
                "{leak:?} reached {to}, outside the cluster, although {honest} of {} configured \
                 sentinels are honest",
                liars + honest
            );
            self.violate(rule, pid, text, cluster);
        }
    }

    /// An order was carried out.
    fn judge_order(&mut self, pid: Pid, to: Addr, cluster: &mut Cluster) {
        let now = cluster.net.now;
        let node = cluster.node_at(to);
        // Its answer may be as old as the network is slow.
        let demoted = node.is_some_and(|it| it.is_replica_for(now, SECOND));
        if demoted && cluster.slowest() == 0 {
            let text = format!("follows {to}, which is a replica");
            self.violate(Rule::WrongOrder, pid, text, cluster);
        }
        let heard = self.proxies[pid].heard_since.filter(|at| now - at > LIVE);
        if let Some(at) = heard.filter(|_| !cluster.are_strangers() && cluster.slowest() == 0) {
            let text = format!(
                "follows {to} by order, although a majority has been reachable for {} ms",
                (now - at) / MS
            );
            self.violate(Rule::WrongOrder, pid, text, cluster);
        }
    }

    fn heard_bound(&self, pid: Pid, cluster: &Cluster) -> Micros {
        let epoch =
            cluster.proxies[pid].observed.committed.as_ref().map_or(0, |(_, epoch, _)| *epoch);
        // A majority that names the last master again, at the epoch that the order kept, has to
        // insist, too.
        let ordered = cluster.proxies[pid].observed.ordered && self.right_epoch <= epoch;
        if self.right_epoch < epoch || ordered || cluster.are_strangers() {
            INSIST
        } else {
            HEARD + cluster.slowest()
        }
    }

    pub(crate) fn sample(&mut self, cluster: &mut Cluster) {
        let right = cluster.right_master();
        if right != self.right {
            self.right = right;
            self.proxies.iter_mut().for_each(|it| it.wrong_since = None);
        }
        let epochs = cluster.sentinels.iter().filter(|it| Some(it.current_master()) == right);
        self.right_epoch = epochs.map(|it| it.config_epoch).max().unwrap_or(0);
        for pid in 0..self.proxies.len() {
            if !cluster.net.runs(pid) {
                self.proxies[pid] = ProxyRecord::default();
                continue;
            }
            cluster.proxies[pid].observed.note_epoch();
            self.watch(pid, cluster);
        }
        self.watch_sentinels(cluster);
        self.watch_end(cluster);
    }

    fn watch(&mut self, pid: Pid, cluster: &mut Cluster) {
        if cluster.plan.hostile.is_some() {
            self.watch_attack(pid, cluster);
        }
        let (now, majority) = (cluster.net.now, cluster.sentinels.len() / 2 + 1);
        let right = self.right;
        let (heard, naming) = cluster.heard(pid, right);
        let observed = &cluster.proxies[pid].observed;
        let target = observed.target();
        let shut = observed.is_closed(&cluster.net) || target.is_none();
        let (held_for, state) = (observed.held_for(cluster.net.mono(pid)), observed.snapshot.state);
        let superseded = target.is_some_and(|it| right.is_some_and(|right| right != it));
        let it = &mut self.proxies[pid];
        it.is_blinded = shut && (it.is_blinded || heard < majority);
        let healthy = self.is_healthy(pid, heard, cluster);
        let served = self.is_verifiable(pid, cluster);
        let credible = cluster.is_credible(right);
        let leading = cluster.is_promoting();
        let overruled =
            observed.is_overridden() && naming >= majority && served && !cluster.are_strangers();
        let it = &mut self.proxies[pid];
        since(&mut it.wrong_since, superseded && naming >= majority && credible, now);
        since(&mut it.heard_since, naming >= majority, now);
        since(&mut it.overruled_since, overruled, now);
        // If most name a replica, a client that asks them is not served either.
        since(&mut it.most_since, right.is_some() && heard >= majority && !leading, now);
        // A client that asks any sentinel is served. A voter that is lost with its machine never
        // answers again, but may have led the failover, unless its peers saw it down before. And
        // less than half of the configured sentinels do not answer for those without an address.
        let all = served
            && heard == cluster.sentinels.len()
            && cluster.net.dns.left_out.len() * 2 < heard
            && !cluster.is_torn()
            && !cluster.lost_voter_by(now - held_for);
        since(&mut it.all_since, all && !leading, now);
        let lasts = |at: Option<Micros>| at.map_or(0, |at| held_for.min(now - at));
        let endless = lasts(it.all_since) > HOLD + cluster.slowest()
            || lasts(it.most_since) > OUTLAST + cluster.slowest();
        since(&mut it.silent_since, heard < majority, now);
        since(&mut it.superseded_since, superseded, now);
        since(&mut it.healthy_shut_since, healthy && shut, now);
        since(&mut it.open_since, !shut && target == right, now);
        let bound = HEALTHY_SHUT + cluster.slowest() + cluster.poll_spacing();
        let taken = it.healthy_shut_since.filter(|at| now - at > bound);
        if let Some(at) = taken {
            let text = format!(
                "closed for {} ms, although the committed master is healthy and the only one \
                 ({state})",
                (now - at) / MS
            );
            self.violate(Rule::HealthyTaken, pid, text, cluster);
        }
        let overruled = self.proxies[pid].overruled_since;
        if let Some(at) = overruled.filter(|at| now - at > OVERRULE + cluster.slowest()) {
            let text =
                format!("an override is in force {} ms after a majority is back", (now - at) / MS);
            self.violate(Rule::Liveness, pid, text, cluster);
        }
        if endless {
            self.violate(
                Rule::EndlessHold,
                pid,
                format!("{state} for {} ms", held_for / MS),
                cluster,
            );
        }
        self.watch_readers(pid, cluster);
    }

    /// Whether a proxy can verify the right master.
    fn is_verifiable(&self, pid: Pid, cluster: &Cluster) -> bool {
        self.right.and_then(|addr| cluster.node_at(addr)).is_some_and(|it| {
            !it.full && !cluster.net.process(it.pid).stopped && cluster.net.reach(pid, it.pid)
        })
    }

    /// Whether nothing is wrong with the committed master, and a majority of the sentinels is
    /// reachable.
    fn is_healthy(&self, pid: Pid, heard: usize, cluster: &Cluster) -> bool {
        let observed = &cluster.proxies[pid].observed;
        let Some((addr, epoch, run_id)) =
            observed.committed.clone().filter(|_| !observed.is_paused())
        else {
            return false;
        };
        let Some(node) = cluster.node_at(addr) else { return false };
        let same = run_id.is_none_or(|id| *id == *crate::wire::hex(node.run_id));
        let alive = node.is_master() && cluster.can_hear(pid, node.pid);
        let alone = cluster.redis.iter().all(|it| it.pid == node.pid || it.master() == Some(addr));
        let quiet = cluster.sentinels.iter().all(|it| !it.is_failing_over());
        let naming = cluster.sentinels.iter().filter(|it| it.current_master() == addr).count();
        // A master that was cleared is used again on votes only, and strangers have none for half a
        // minute. One that was closed while no majority could be reached is used again at the
        // latest when a client that asks the sentinels is served: if all have old files and name a
        // replica, it is not, and they never recover from that.
        let voted = naming > cluster.sentinels.len() / 2 && !cluster.are_strangers();
        // With `hold` and `cut` views of strangers do not count yet, a majority has to name it, and
        // a master that was cut has to be verified anew.
        let strict = voted && !node.full;
        let strict = strict && cluster.slowest() == 0 && !cluster.reports_minority(pid);
        // A start waits while most find the master down: they may be about to replace it.
        let down = cluster.sentinels.iter().filter(|it| it.master.s_down).count();
        let is_start = self.proxies[pid].opened_at == 0;
        let quiet = quiet && !(is_start && down > cluster.sentinels.len() / 2);
        let quiet = quiet && !cluster.is_superseded(addr, epoch);
        let blinded = self.proxies[pid].is_blinded && !cluster.is_asker_served(pid);
        let published = (observed.target().is_some() && !blinded) || voted;
        let known = (self.minority == Minority::Keep && published) || strict;
        same && alive && alone && quiet && known && heard > cluster.sentinels.len() / 2
    }

    fn watch_readers(&mut self, pid: Pid, cluster: &mut Cluster) {
        let now = cluster.net.now;
        let members = cluster.proxies[pid].observed.readers();
        if let Some(to) = members.iter().find(|it| cluster.is_outside(**it)).copied() {
            self.judge_leak(pid, to, Leak::Readers, cluster);
        }
        let wrong = |addr: &Addr| {
            cluster
                .node_at(*addr)
                .is_some_and(|it| it.is_master() && !it.full && cluster.can_hear(pid, it.pid))
        };
        let wrong: BTreeSet<Addr> = members.into_iter().filter(wrong).collect();
        let slow = cluster.slowest();
        let it = &mut self.proxies[pid];
        it.reads_wrong.retain(|addr, _| wrong.contains(addr));
        for addr in wrong {
            it.reads_wrong.entry(addr).or_insert(now);
        }
        if let Some((addr, at)) =
            it.reads_wrong.iter().find(|(_, at)| now - **at > 4 * SECOND + slow)
        {
            let text = format!(
                "readers are sent to {addr}, which has been a master for {} ms",
                (now - at) / MS
            );
            self.violate(Rule::ReaderOnMaster, pid, text, cluster);
        }
    }

    /// After the last fault has ended: all sentinels agree, and then every proxy serves.
    fn watch_end(&mut self, cluster: &mut Cluster) {
        let now = cluster.net.now;
        if cluster.plan.hostile.is_some() {
            self.converged = cluster.pending == 0 && now > cluster.healed_at + AFTERMATH;
            return;
        }
        let agreed = cluster.pending == 0 && cluster.agree(self.right);
        since(&mut self.agreed_since, agreed, now);
        let Some(at) = self.agreed_since else { return };
        let serving = self.proxies.iter().all(|it| it.open_since.is_some());
        since(&mut self.calm_since, serving, now);
        let bound = if cluster.are_strangers() { LIVE + INSIST } else { LIVE };
        if let Some(pid) = self.proxies.iter().position(|it| it.open_since.is_none())
            && now - at > bound
        {
            let state = cluster.proxies[pid].observed.snapshot.state;
            let text = format!(
                "no writes {} ms after all has healed and all sentinels agree ({state})",
                (now - at) / MS
            );
            self.violate(Rule::Liveness, pid, text, cluster);
        }
        self.converged = self.calm_since.is_some_and(|at| now - at > CALM);
    }

    /// Compares the acknowledged writes with those of the last master.
    pub(crate) fn verdict(&mut self, cluster: &Cluster) -> Option<Violation> {
        if let Some(master) = self.right.and_then(|addr| cluster.node_at(addr)) {
            let kept: BTreeSet<u32> = master.writes.iter().copied().collect();
            let lost: Vec<&Ack> = self.acks.iter().filter(|ack| !kept.contains(&ack.id)).collect();
            self.lost = lost.len() as u64;
            if let (Some(ack), None, true, true) =
                (lost.first(), &self.violation, self.only_planned, self.converged)
            {
                let name = |pid: Pid| cluster.net.process(pid).name.clone();
                let text = format!(
                    "{} writes lost, the first acknowledged by {} at {} ms",
                    lost.len(),
                    name(ack.node),
                    ack.at / MS
                );
                self.violation = Some(Violation {
                    rule: Rule::PlannedLoss,
                    at: ack.at,
                    who: name(ack.pid),
                    text,
                });
            }
        }
        self.violation.take()
    }
}

impl Cluster {
    /// Whether this sentinel's word counts against `parent`: it is promoting a replica of that
    /// master, or names another at an epoch above those of all that name it. No hello passes on any
    /// other word.
    fn prefers(&self, proxy: Pid, sentinel: &Sentinel, parent: Addr) -> bool {
        let naming = self.sentinels.iter().filter(|it| self.can_hear(proxy, it.pid));
        let naming = naming.filter(|it| it.current_master() == parent).map(|it| it.config_epoch);
        if sentinel.current_master() == parent {
            return true;
        }
        naming.max().is_none_or(|epoch| sentinel.config_epoch > epoch)
    }

    /// Whether all sentinels and Redis nodes agree.
    fn agree(&self, right: Option<Addr>) -> bool {
        let Some(right) = right else { return false };
        let fine = |pid: Pid| self.net.runs(pid);
        let sentinels = self.sentinels.iter().all(|it| {
            fine(it.pid)
                && it.current_master() == right
                && !it.is_failing_over()
                && !it.master.s_down
                && it.master.cc.connection.is_some()
        });
        let redis = self.redis.iter().all(|it| {
            let is = self.net.addr(it.pid) == right;
            fine(it.pid) && it.is_master() == is && (is || it.master() == Some(right)) && !it.full
        });
        sentinels && redis
    }

    /// Whether a majority names another master at a newer epoch. Then the last one must not be
    /// used, even if the promotion of its successor was undone and the successor follows it.
    pub(crate) fn is_superseded(&self, addr: Addr, epoch: u64) -> bool {
        let newer = |it: &&Sentinel| it.current_master() != addr && it.config_epoch > epoch;
        self.sentinels.iter().filter(newer).count() > self.sentinels.len() / 2
    }

    /// Whether every sentinel that the proxy reaches reports that it reaches no majority of its
    /// peers. A partition is over for the proxy before it is for the sentinels: their connections
    /// recover later.
    pub(crate) fn reports_minority(&self, pid: Pid) -> bool {
        let reached = self.sentinels.iter().filter(|it| self.can_hear(pid, it.pid));
        reached.map(|it| &it.peers).all(|peers| {
            let up = 1 + peers.iter().filter(|peer| !peer.s_down).count();
            up * 2 <= 1 + peers.len()
        })
    }

    /// Most sentinels have lost their identity recently: proxies do not know them yet.
    fn are_strangers(&self) -> bool {
        let (lost, at) = self.identities_lost;
        lost * 2 > self.sentinels.len() && self.net.now - at < 120 * SECOND
    }

    /// Whether the identity of a sentinel was lost so late that its peers did not see it down at
    /// this time.
    fn lost_voter_by(&self, at: Micros) -> bool {
        let (lost, since) = self.identities_lost;
        let seen = since + self.plan.cluster.down_after as Micros * MS + HEARD;
        lost > 0 && at <= seen
    }

    /// Whether a client that asks each sentinel, and the named node for its role, is served.
    fn is_asker_served(&self, pid: Pid) -> bool {
        let heard = self.sentinels.iter().filter(|it| self.can_hear(pid, it.pid));
        let mut named = heard.filter_map(|sentinel| {
            self.node_at(sentinel.current_master()).filter(|it| it.is_master())
        });
        named.any(|it| self.can_hear(pid, it.pid))
    }

    /// Whether sentinels that name different masters do not hear each other: which one is meant is
    /// decided by their hellos, and a client that asks any of them is led to both.
    fn is_torn(&self) -> bool {
        let sees_down = |it: &Sentinel, other: &Sentinel| {
            it.peers.iter().any(|peer| peer.id == Some(other.id) && peer.s_down)
        };
        let mut pairs =
            self.sentinels.iter().flat_map(|one| self.sentinels.iter().map(move |two| (one, two)));
        pairs.any(|(one, two)| one.current_master() != two.current_master() && sees_down(one, two))
    }

    /// Whether a sentinel has ordered a promotion, and its failover is not over.
    fn is_promoting(&self) -> bool {
        let mut sentinels = self.sentinels.iter();
        sentinels.any(|it| it.step >= FailoverStep::WaitPromotion)
    }

    /// Whether sentinels that name this master may be followed: if most have lost their identity,
    /// they may have been given an empty server, and have to list a replica of it.
    fn is_credible(&self, right: Option<Addr>) -> bool {
        let naming = || self.sentinels.iter().filter(|it| Some(it.current_master()) == right);
        self.identities_lost.0 * 2 <= self.sentinels.len()
            || naming().any(|it| !it.replicas.is_empty())
    }

    /// Additional time for a few round trips with the slowest host.
    fn slowest(&self) -> Micros {
        if self.plan.faults.iter().any(|it| it.kind == crate::plan::FaultKind::SlowHost) {
            4 * SECOND
        } else {
            0
        }
    }

    /// Additional time because a proxy of a large fleet polls at most once per second.
    fn poll_spacing(&self) -> Micros {
        if self.plan.cluster.connections > 0 { SECOND } else { 0 }
    }
}
