//! What must hold in every run: it knows the whole truth, which no proxy does, and judges each
//! proxy by what it could have known.
//!
//! The **right** master is the address that a majority of all sentinels names. A proxy that could
//! hear a majority of sentinels which name it, for longer than the bound, has no excuse for an
//! acknowledgement by another one; a proxy that could not hear them is judged by its policy, and by
//! what it believed when its gate opened.

use std::collections::{BTreeMap, BTreeSet};

use sentinel::Minority;

use crate::net::Fact;
use crate::plan::Plan;
use crate::proxy::driver::Happened;
use crate::proxy::mono;
use crate::report::{Rule, Violation};
use crate::sentinel::Sentinel;
use crate::wire::{Addr, MS, Pid, SECOND, Us};
use crate::world::World;

/// From the moment at which a majority that knows better can be heard: a redial, a greeting, a
/// round and a verification. With `keep` the last master may be used again after no sentinel was
/// heard for this long.
const SILENT: Us = 5 * SECOND;
const HEARD: Us = 4 * SECOND;
/// The same where a majority has to insist on an older epoch, or where most sentinels are strangers
/// at first.
const INSIST: Us = 90 * SECOND;
/// With `hold` or `cut`, silence stops traffic after this long: votes expire after five seconds.
const SILENCE: Us = 10 * SECOND;
/// The gate may be shut this long to a master with which nothing is wrong.
const HEALTHY_SHUT: Us = 7 * SECOND;
/// A hold, or a verification, is over after this long.
const HOLD: Us = 11 * SECOND;
/// After everything has healed and all sentinels agree, writes succeed within this time.
const LIVE: Us = 15 * SECOND;
/// How long all is well before the run is over.
const CALM: Us = 3 * SECOND;

/// What is watched of one proxy.
#[derive(Debug, Clone, Default)]
struct Watched {
    wrong_since: Option<Us>,
    silent_since: Option<Us>,
    superseded_since: Option<Us>,
    healthy_shut_since: Option<Us>,
    open_since: Option<Us>,
    opened_at: Us,
    awake_since: Option<Us>,
    reads_wrong: BTreeMap<Addr, Us>,
}

/// An acknowledged write.
#[derive(Debug, Clone, Copy)]
struct Ack {
    id: u32,
    pid: Pid,
    node: Pid,
    at: Us,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    minority: Minority,
    only_planned: bool,
    ignored: Vec<Rule>,
    right: Option<Addr>,
    right_epoch: u64,
    proxies: Vec<Watched>,
    acks: Vec<Ack>,
    agreed_since: Option<Us>,
    calm_since: Option<Us>,
    violation: Option<Violation>,
    pub(crate) lost: u64,
    pub(crate) converged: bool,
}

/// Keeps since when something is so.
fn since(slot: &mut Option<Us>, is: bool, now: Us) {
    if is {
        slot.get_or_insert(now);
    } else {
        *slot = None;
    }
}

impl World {
    /// The address that a majority of all sentinels names.
    pub(crate) fn oracle_right(&self) -> Option<Addr> {
        let named = self
            .sentinels
            .iter()
            .filter(|it| self.net.process(it.pid).up)
            .map(Sentinel::current_master);
        let mut votes: BTreeMap<Addr, usize> = BTreeMap::new();
        named.for_each(|addr| *votes.entry(addr).or_default() += 1);
        votes.into_iter().find(|(_, times)| *times > self.sentinels.len() / 2).map(|(addr, _)| addr)
    }

    /// The right master, if it is one: sentinels that lost their files may name a replica.
    fn right_master(&self) -> Option<Addr> {
        let right = self.oracle_right()?;
        let node = self.redis.iter().find(|it| self.net.addr(it.pid) == right)?;
        (node.is_master() && self.net.process(node.pid).up).then_some(right)
    }

    fn can_hear(&self, proxy: Pid, sentinel: Pid) -> bool {
        let process = self.net.process(sentinel);
        process.up && !process.stopped && self.net.reach(proxy, sentinel)
    }

    /// How many sentinels a proxy could hear, and how many of them name the right master.
    fn heard(&self, proxy: Pid, right: Option<Addr>) -> (usize, usize) {
        let heard = || self.sentinels.iter().filter(|it| self.can_hear(proxy, it.pid));
        (heard().count(), heard().filter(|it| Some(it.current_master()) == right).count())
    }
}

impl Oracle {
    pub(crate) fn new(plan: &Plan, ignored: &[Rule]) -> Self {
        Self {
            ignored: ignored.to_vec(),
            minority: plan.cluster.minority,
            only_planned: plan.is_planned(),
            proxies: vec![Watched::default(); plan.cluster.proxies],
            ..Self::default()
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.violation.is_some() || self.converged
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acks.len() as u64
    }

    fn violate(&mut self, rule: Rule, pid: Pid, mut text: String, world: &mut World) {
        if self.violation.is_none() && !self.ignored.contains(&rule) {
            text.push_str(&format!(" [minority = {:?}]", self.minority));
            world.net.say(pid, || format!("VIOLATION of {rule:?}: {text}"));
            let who = world.net.process(pid).name.clone();
            self.violation = Some(Violation { rule, at: world.net.now, who, text });
        }
    }

    pub(crate) fn take(&mut self, fact: Fact, world: &mut World) {
        match fact {
            Fact::Acked { pid, node, id, executed } => {
                let at = world.net.now;
                self.acks.push(Ack { id, pid, node, at });
                self.judge_ack(pid, node, executed, world);
            }
            Fact::Happened(pid, Happened::Broken(text)) => {
                self.violate(Rule::Safety, pid, text, world)
            }
            Fact::Happened(pid, Happened::Opened { to, how, fresh, minority, shut_for }) => {
                self.proxies[pid].opened_at = world.net.now;
                let right = world.right_master();
                let superseded = right.is_some_and(|right| right != to);
                if !superseded || shut_for.is_none() {
                    return;
                }
                let right = right.map(|it| it.to_string()).unwrap_or_default();
                let named = fresh.len();
                if named == 0 {
                    let text = format!(
                        "opened to {to} ({how}) without a word for it since the gate shut; {right} is right"
                    );
                    let expired = how.starts_with("released") && !how.ends_with("no_master");
                    let rule = if expired { Rule::ReleasedUnheard } else { Rule::OpenedUnheard };
                    // With `keep` silence takes no master away: after its time the last one is used
                    // again.
                    let patient = self.minority == Minority::Keep && shut_for >= Some(SILENT);
                    if !patient {
                        self.violate(rule, pid, text, world);
                    }
                } else if minority
                    && self.minority == Minority::Hold
                    && named <= world.sentinels.len() / 2
                {
                    let text = format!(
                        "held as a minority, then opened to {to} ({how}) on the word of {named}; {right} is right"
                    );
                    self.violate(Rule::HoldOpened, pid, text, world);
                }
            }
        }
    }

    fn judge_ack(&mut self, pid: Pid, node: Pid, executed: Us, world: &mut World) {
        let (now, addr) = (world.net.now, world.net.addr(node));
        let wrong = world.right_master().is_some_and(|right| right != addr);
        let it = &self.proxies[pid];
        let slept = world.proxies[pid].driver.unproven_since.filter(|at| wrong && executed > *at);
        let newer =
            world.redis.iter().filter(|it| it.pid != node).filter_map(|it| it.promoted_at).max();
        let after = newer.is_some_and(|at| at <= executed && at > it.opened_at);
        let evidence = world.proxies[pid].driver.evidence.filter(|_| after);
        let late = it
            .wrong_since
            .filter(|at| wrong && now - at > self.heard_bound(pid, world) && executed > *at);
        let blind = it.silent_since.zip(it.superseded_since).map(|(one, two)| one.max(two));
        let blind = blind.filter(|at| {
            wrong && self.minority != Minority::Keep && now - at > SILENCE && executed > *at
        });
        if let Some(at) = slept {
            let text = format!(
                "{addr} acknowledged before anybody was heard after the process slept until {} ms",
                at / MS
            );
            self.violate(Rule::WroteAfterSleep, pid, text, world);
        } else if let Some(at) = evidence {
            let text = format!(
                "acknowledged what {addr} executed at {} ms, after another node was promoted at {} ms and with evidence of it since {} ms",
                executed / MS,
                newer.unwrap_or(0) / MS,
                at / MS
            );
            self.violate(Rule::AckAfterEvidence, pid, text, world);
        } else if let Some(at) = late {
            let text = format!(
                "{addr} acknowledged, although a majority that names another could be heard for {} ms",
                (now - at) / MS
            );
            self.violate(Rule::LateMajority, pid, text, world);
        } else if let Some(at) = blind {
            let text = format!(
                "{addr} acknowledged after {} ms of silence under {:?}",
                (now - at) / MS,
                self.minority
            );
            self.violate(Rule::BlindWrites, pid, text, world);
        }
    }

    fn heard_bound(&self, pid: Pid, world: &World) -> Us {
        let epoch = world.proxies[pid].driver.committed().map_or(0, |(_, epoch, _)| epoch);
        if self.right_epoch < epoch || world.are_strangers() {
            INSIST
        } else {
            HEARD + world.slowest()
        }
    }

    pub(crate) fn sample(&mut self, world: &mut World) {
        let right = world.right_master();
        if right != self.right {
            self.right = right;
            self.proxies.iter_mut().for_each(|it| it.wrong_since = None);
        }
        let epochs = world.sentinels.iter().filter(|it| Some(it.current_master()) == right);
        self.right_epoch = epochs.map(|it| it.config_epoch).max().unwrap_or(0);
        for pid in 0..self.proxies.len() {
            let process = world.net.process(pid);
            if !process.up || process.stopped {
                self.proxies[pid] = Watched::default();
                continue;
            }
            world.proxies[pid].driver.epoch_now();
            self.watch(pid, world);
        }
        self.watch_end(world);
    }

    fn watch(&mut self, pid: Pid, world: &mut World) {
        let (now, majority) = (world.net.now, world.sentinels.len() / 2 + 1);
        let right = self.right;
        let (heard, naming) = world.heard(pid, right);
        let driver = &world.proxies[pid].driver;
        let target = driver.route.target.clone();
        let shut = driver.is_closed(mono(pid, &world.net)) || target.is_none();
        let (held_for, state) = (driver.held_for(mono(pid, &world.net)), driver.state());
        let superseded =
            target.as_ref().is_some_and(|it| right.is_some_and(|right| right != it.addr));
        let healthy = self.is_healthy(pid, heard, world);
        let it = &mut self.proxies[pid];
        it.awake_since.get_or_insert(now);
        since(&mut it.wrong_since, superseded && naming >= majority, now);
        since(&mut it.silent_since, heard < majority, now);
        since(&mut it.superseded_since, superseded, now);
        since(&mut it.healthy_shut_since, healthy && shut, now);
        since(&mut it.open_since, !shut && target.as_ref().map(|it| it.addr) == right, now);
        let taken = it.healthy_shut_since.filter(|at| now - at > HEALTHY_SHUT + world.slowest());
        if let Some(at) = taken {
            let text = format!(
                "shut for {} ms, although the committed master is healthy and the only one ({state})",
                (now - at) / MS
            );
            self.violate(Rule::HealthyTaken, pid, text, world);
        }
        if held_for > HOLD + world.slowest() {
            self.violate(
                Rule::EndlessHold,
                pid,
                format!("{state} for {} ms", held_for / MS),
                world,
            );
        }
        self.watch_readers(pid, world);
    }

    /// Whether nothing is wrong with the committed master, and a majority of the sentinels can be
    /// heard.
    fn is_healthy(&self, pid: Pid, heard: usize, world: &World) -> bool {
        let driver = &world.proxies[pid].driver;
        let Some((addr, _, run_id)) = driver.committed().filter(|_| !driver.is_paused()) else {
            return false;
        };
        let Some(node) = world.redis.iter().find(|it| world.net.addr(it.pid) == addr) else {
            return false;
        };
        let process = world.net.process(node.pid);
        let same = run_id.is_none_or(|id| *id == *crate::wire::hex(node.run_id));
        let alive =
            process.up && !process.stopped && node.is_master() && world.net.reach(pid, node.pid);
        let alone = world.redis.iter().all(|it| it.pid == node.pid || it.master() == Some(addr));
        let quiet = world.sentinels.iter().all(|it| !it.failing_over);
        // With `hold` and `cut` the word of strangers is none yet, a majority has to name it, and
        // what was cut has to be verified anew.
        let naming = world.sentinels.iter().filter(|it| it.current_master() == addr).count();
        let strict = !world.are_strangers() && naming > world.sentinels.len() / 2 && !node.full;
        let strict = strict && world.slowest() == 0;
        // A master that was taken away is used again on votes only, and those of strangers are none
        // for half a minute.
        let published = driver.route.target.is_some() || !world.are_strangers();
        let known = (self.minority == Minority::Keep && published) || strict;
        same && alive && alone && quiet && known && heard > world.sentinels.len() / 2
    }

    fn watch_readers(&mut self, pid: Pid, world: &mut World) {
        let now = world.net.now;
        let members = world.proxies[pid].driver.ruling.members.iter().flatten();
        let members: BTreeSet<Addr> = members.filter_map(|it| Addr::of(&it.addr)).collect();
        let wrong = |addr: &Addr| {
            let node = world.redis.iter().find(|it| world.net.addr(it.pid) == *addr);
            node.is_some_and(|it| {
                let process = world.net.process(it.pid);
                it.is_master()
                    && process.up
                    && !process.stopped
                    && !it.full
                    && world.net.reach(pid, it.pid)
            })
        };
        let wrong: BTreeSet<Addr> = members.into_iter().filter(wrong).collect();
        let slow = world.slowest();
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
            self.violate(Rule::ReaderOnMaster, pid, text, world);
        }
    }

    /// After the last fault has ended: everybody agrees, and then every proxy serves.
    fn watch_end(&mut self, world: &mut World) {
        let now = world.net.now;
        let agreed = world.pending == 0 && world.agree(self.right);
        since(&mut self.agreed_since, agreed, now);
        let Some(at) = self.agreed_since else { return };
        let serving = self.proxies.iter().all(|it| it.open_since.is_some());
        since(&mut self.calm_since, serving, now);
        let bound = if world.are_strangers() { LIVE + INSIST } else { LIVE };
        if let Some(pid) = self.proxies.iter().position(|it| it.open_since.is_none())
            && now - at > bound
        {
            let state = world.proxies[pid].driver.state();
            let text = format!(
                "no writes {} ms after all has healed and all sentinels agree ({state})",
                (now - at) / MS
            );
            self.violate(Rule::Liveness, pid, text, world);
        }
        self.converged = self.calm_since.is_some_and(|at| now - at > CALM);
    }

    /// What was acknowledged and is not there in the end.
    pub(crate) fn verdict(&mut self, world: &World) -> Option<Violation> {
        let right = self
            .right
            .and_then(|addr| world.redis.iter().find(|it| world.net.addr(it.pid) == addr));
        if let Some(master) = right {
            let kept: BTreeSet<u32> = master.writes.iter().copied().collect();
            let lost: Vec<&Ack> = self.acks.iter().filter(|ack| !kept.contains(&ack.id)).collect();
            self.lost = lost.len() as u64;
            if let (Some(ack), None, true, true) =
                (lost.first(), &self.violation, self.only_planned, self.converged)
            {
                let name = |pid: Pid| world.net.process(pid).name.clone();
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

impl World {
    /// Whether every sentinel and every redis node is of one mind.
    fn agree(&self, right: Option<Addr>) -> bool {
        let Some(right) = right else { return false };
        let fine = |pid: Pid| self.net.process(pid).up && !self.net.process(pid).stopped;
        let sentinels = self.sentinels.iter().all(|it| {
            fine(it.pid)
                && it.current_master() == right
                && !it.failing_over
                && !it.master.s_down
                && it.master.cc.is_some()
        });
        let redis = self.redis.iter().all(|it| {
            let is = self.net.addr(it.pid) == right;
            fine(it.pid) && it.is_master() == is && (is || it.master() == Some(right)) && !it.full
        });
        sentinels && redis
    }

    /// Most sentinels have lost their identity a while ago at most: proxies do not know them yet.
    fn are_strangers(&self) -> bool {
        let (lost, at) = self.identities_lost;
        lost * 2 > self.sentinels.len() && self.net.now - at < 120 * SECOND
    }

    /// What the slowest host adds to a few round trips.
    fn slowest(&self) -> Us {
        if self.plan.faults.iter().any(|it| it.kind == crate::plan::Kind::SlowHost) {
            4 * SECOND
        } else {
            0
        }
    }
}
