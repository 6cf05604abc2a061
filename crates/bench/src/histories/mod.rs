//! `cargo xtask verify --minutes N`: histories of clients of several proxies, under random faults.
//!
//! Clients of two or three proxies use the same keys of a real cluster and record every operation
//! ([`client`]). One thread performs the schedule of the seed ([`schedule`], [`stage`]). After each
//! step the objects of its epoch are read through every proxy, and each history is checked
//! ([`checker`]): it has to be linearizable, with losses only where a change of the master excuses
//! them ([`eras`]). Only Redis and its sentinels say what happened; Pointsman is not asked.
//!
//! The seed determines the modes, the schedule and the choices of the clients, not the
//! interleaving: a violation that depends on a race may need several runs of its seed.

mod checker;
#[cfg(test)]
mod checker_tests;
mod client;
mod eras;
mod operation;
mod proxy;
mod report;
mod schedule;
mod stage;
mod switches;
mod timeline;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use harness::{Absences, in_private_namespace, loopback_up, pause};

use crate::load::private_memory;
use crate::{caught, space, stop_on_signals, words};
use checker::{Verdict, check};
use client::{CLIENTS, Worker};
use eras::{Away, Evidence};
use operation::{Action, Kind, Micros, Object, Operation, Outcome};
use report::{Epoch, Tally};
use schedule::{Fault, Step, schedule};
use stage::Stage;
use switches::switches;
use world::World;

/// A run has new servers, and its own modes and seed, after this time.
const LEG: Duration = Duration::from_secs(300);
/// Steps of a leg, more than fit.
const STEPS: usize = 500;
/// Readings of an object that may fail before that is a finding.
const READINGS: usize = 20;
/// Growth of a process that is a finding, after its first step.
const GROWTH: u64 = 8 << 20;
/// After a core was away for this long, errors are no finding.
const STALL: Micros = 500_000;
/// After this many findings a run ends.
const FINDINGS: usize = 3;
/// How long operations continue after a step.
const AFTERWARDS: Duration = Duration::from_millis(700);

/// How the proxies are configured: as the seed decides.
#[derive(Debug, Clone, Copy)]
struct Mode {
    proxies: u32,
    shared: bool,
    tls: bool,
    /// Redis and Sentinel speak TLS only.
    servers_tls: bool,
    durable: bool,
}

impl Mode {
    fn of(seed: u64, asked: Option<bool>) -> Self {
        let mut rng = Rng::with_seed(!seed);
        let (proxies, shared) = (rng.u32(2..=3), rng.bool());
        let [tls, servers_tls, durable] = [(); 3].map(|()| rng.u8(..4) == 0);
        Self { proxies, shared: asked.unwrap_or(shared), tls, servers_tls, durable }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let upstream = if self.shared { "shared" } else { "dedicated" };
        write!(f, "{} proxies, {upstream}", self.proxies)?;
        write!(f, "{}", if self.tls { ", TLS" } else { "" })?;
        write!(f, "{}", if self.servers_tls { ", TLS to servers" } else { "" })?;
        write!(f, "{}", if self.durable { ", durability" } else { "" })
    }
}

/// Checks histories of a program from this seed on, with shared connections or dedicated ones, or
/// as the seed decides; success if nothing was found.
///
/// # Errors
/// A message for people, if it cannot start.
pub(crate) fn run(
    minutes: u64,
    first: u64,
    shared: Option<bool>,
    program: &Path,
) -> Result<ExitCode, String> {
    if space::entered().is_none() {
        let why = space::enter(program);
        return Err(format!("partitions need a network namespace: {why}"));
    }
    if !in_private_namespace() {
        return Err("this is not a private network namespace".to_owned());
    }
    loopback_up()?;
    let stop = stop_on_signals()?;
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut found = 0;
    for leg in 0.. {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.load(Ordering::Acquire) || found >= FINDINGS {
            break;
        }
        let seed = first + leg;
        let mode = Mode::of(seed, shared);
        println!("── seed {seed}: {mode}");
        found += run_leg(program, seed, mode, left.min(LEG), &stop)?;
    }
    println!("{}", if found == 0 { "No finding." } else { "There are findings." });
    Ok(if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One run with servers of its own. The number of findings.
fn run_leg(
    program: &Path,
    seed: u64,
    mode: Mode,
    length: Duration,
    stop: &AtomicBool,
) -> Result<usize, String> {
    let mut stage = Stage::start(program, mode)?;
    stage.recover();
    let addresses: Vec<SocketAddr> = stage.each_proxy().map(|it| it.addr).collect();
    let world = World::new(addresses, stage.tls.clone(), CLIENTS);
    stage.cluster.sentinels().iter().for_each(|it| stage::attend(it, &world));
    let mut conductor = Conductor {
        stage: &stage,
        world: &world,
        mode,
        absences: Absences::watch(),
        judged: 0,
        master: stage.cluster.master().addr(),
        memory: BTreeMap::new(),
        tally: Tally::default(),
        findings: Vec::new(),
    };
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for id in 0..CLIENTS {
            let world = &world;
            scope.spawn(move || Worker::new(world, id, seed).run());
        }
        for node in stage.cluster.nodes() {
            let (stage, world) = (&stage, &world);
            scope.spawn(move || stage.watch(node, world));
        }
        let is_over = || begin.elapsed() >= length || stop.load(Ordering::Acquire);
        conductor.conduct(&schedule(seed, STEPS), &is_over);
        world.stop.store(true, Ordering::Release);
    });
    let leftovers: Vec<String> = stage.each_proxy().flat_map(|it| it.leftovers()).collect();
    let doubt = conductor.tally.doubt();
    leftovers.into_iter().chain(doubt).for_each(|it| conductor.find(it));
    let Conductor { tally, findings, .. } = conductor;
    print!("{}", tally.text());
    if !findings.is_empty() {
        stage.cluster.keep_folder();
        println!("logs of all processes: {}", stage.cluster.folder().display());
        println!("run it again: cargo xtask verify --minutes 5 --seed {seed}");
    }
    Ok(findings.len())
}

/// Performs the steps of the schedule and judges each of them.
struct Conductor<'a> {
    stage: &'a Stage,
    world: &'a World,
    mode: Mode,
    absences: Absences,
    /// When the previous judgement was, and the master then.
    judged: Micros,
    master: SocketAddr,
    /// The first memory of each process.
    memory: BTreeMap<u32, u64>,
    tally: Tally,
    findings: Vec<String>,
}

impl Conductor<'_> {
    fn find(&mut self, what: String) {
        println!("FINDING {what}");
        self.findings.push(what);
    }

    fn conduct(&mut self, steps: &[Step], is_over: &dyn Fn() -> bool) {
        if let Err(why) = self.world.begin_epoch() {
            self.find(why);
        }
        for (index, step) in steps.iter().enumerate() {
            if is_over() || !self.findings.is_empty() {
                return;
            }
            let start = Instant::now();
            pause(step.pause);
            let done = self.perform(step);
            pause(AFTERWARDS);
            let performed = start.elapsed().as_secs_f64();
            let judged = done.and_then(|()| self.judge(step));
            self.tally.steps += 1;
            let all = start.elapsed().as_secs_f64();
            println!("{:>4}  {}: {performed:.1} s, {all:.1} s", index + 1, step.line());
            if let Err(why) = judged {
                self.find(format!("{}: {why}", step.line()));
            }
        }
    }

    /// Performs all faults and waits until everything is complete again. In separate threads,
    /// because the harness panics if something does not happen.
    fn perform(&self, step: &Step) -> Result<(), String> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = step
                .acts
                .iter()
                .map(|act| {
                    let others = step.acts.iter().filter(|it| *it != act).map(|it| it.fault);
                    let others: Vec<Fault> = others.collect();
                    scope.spawn(move || {
                        pause(act.after);
                        self.stage.perform(act, &others, self.world);
                    })
                })
                .collect();
            threads.into_iter().try_for_each(std::thread::ScopedJoinHandle::join)
        })
        .map_err(|panic| words(&*panic))?;
        caught(|| {
            self.stage.recover();
            Ok(())
        })
    }

    /// Ends the epoch and checks its histories.
    fn judge(&mut self, step: &Step) -> Result<(), String> {
        const FOREBODING: Micros = 30_000_000;
        let epoch = self.world.begin_epoch()?;
        let mut histories = self.world.take(epoch);
        let read = self.read(&mut histories);
        let (faults, notes) = self.world.timeline.take();
        let ends = self.world.take_ends();
        let sightings = self.world.timeline.sightings(self.judged.saturating_sub(FOREBODING));
        let switches = switches(&sightings, self.judged, self.master);
        let roles = self.world.timeline.roles();
        let away = |from: Micros, to: Micros| {
            let (from, to) = (self.world.timeline.instant(from), self.world.timeline.instant(to));
            let micros = |it: Duration| it.as_micros().try_into().unwrap_or(Micros::MAX);
            Away {
                total: micros(self.absences.between(from, to)),
                longest: micros(self.absences.longest(from, to)),
            }
        };
        let evidence =
            Evidence { switches: &switches, faults: &faults, roles: &roles, away: &away };
        let eras = evidence.eras();
        eras.iter().for_each(|it| self.tally.change(it));
        // A replica without a core does not confirm in time.
        let stall = away(self.judged, self.world.timeline.now()).longest;
        let is_calm = switches.is_empty()
            && (stall < STALL || !self.mode.durable)
            && !step.acts.iter().any(|it| it.fault.disturbs(self.mode.durable));
        let (sightings, durable) = (sightings.as_slice(), self.mode.durable);
        let explained = Epoch { eras: &eras, notes: &notes, sightings, durable };
        self.check(&explained, &histories);
        if is_calm {
            self.look_for_errors(&histories, &ends);
        }
        self.look_at_memory();
        (self.judged, self.master) =
            (self.world.timeline.now(), self.stage.cluster.current_master_addr()?);
        read
    }

    fn check(&mut self, epoch: &Epoch<'_>, histories: &BTreeMap<Object, Vec<Operation>>) {
        let changes = epoch.changes();
        for (object, history) in histories {
            self.tally.count(history);
            match check(history, &changes, epoch.durable) {
                Verdict::Linearizable => {}
                Verdict::Undecided => {
                    self.tally.undecided += 1;
                    let unknown = history.iter().filter(|it| it.is_unknown()).count();
                    println!(
                        "      undecided: {} operations on a {}, {unknown} without an outcome",
                        history.len(),
                        object.kind.name()
                    );
                }
                Verdict::Violated(_) if self.findings.len() < FINDINGS => {
                    let text = epoch.explain(*object, history);
                    self.find(text.unwrap_or_else(|| format!("{object:?}")));
                }
                Verdict::Violated(_) => {}
            }
        }
    }

    /// Reads every object through every proxy.
    fn read(&self, histories: &mut BTreeMap<Object, Vec<Operation>>) -> Result<(), String> {
        for proxy in 0..self.world.addresses.len() {
            let mut connection = None;
            for (object, history) in histories.iter_mut() {
                let action = match object.kind {
                    Kind::Register | Kind::Counter => Action::Get,
                    Kind::Lists | Kind::Queue => Action::RangeBoth,
                    Kind::Set => Action::Members,
                };
                let mut attempts = 0;
                loop {
                    let invoked = self.world.timeline.now();
                    let outcome = match &mut connection {
                        Some(client) => client::send(client, *object, action, ""),
                        None => Err(std::io::ErrorKind::NotConnected.into()),
                    };
                    let ended = self.world.timeline.now();
                    match outcome {
                        Ok(Outcome::Refused(_) | Outcome::Unknown) => {}
                        Ok(outcome) => {
                            history.push(Operation {
                                client: CLIENTS + proxy,
                                proxy,
                                object: *object,
                                action,
                                way: "at the end",
                                outcome,
                                invoked,
                                ended,
                            });
                            break;
                        }
                        Err(_) => connection = self.world.connect(proxy).ok(),
                    }
                    attempts += 1;
                    if attempts > READINGS {
                        return Err(format!("no value of {object:?} through proxy {proxy}"));
                    }
                    pause(Duration::from_millis(if attempts > 1 { 50 } else { 0 }));
                }
            }
        }
        Ok(())
    }

    /// Without a fault that clients may notice, each error and each end of a connection is one.
    fn look_for_errors(
        &mut self,
        histories: &BTreeMap<Object, Vec<Operation>>,
        ends: &[(Micros, String)],
    ) {
        let is_error = |it: &&Operation| match &it.outcome {
            Outcome::Unknown => true,
            Outcome::Refused(message) => message != "EXEC: nil",
            _ => false,
        };
        if let Some(it) = histories.values().flatten().find(is_error) {
            self.find(format!("an error without a fault: client {}: {it}", it.client));
        }
        if let Some((at, what)) = ends.first() {
            let at = eras::seconds(*at);
            self.find(format!("the end of a connection without a fault: {at:.3} s: {what}"));
        }
    }

    fn look_at_memory(&mut self) {
        let pids: Vec<u32> =
            self.stage.each_proxy().map(|it| it.pointsman.process().pid()).collect();
        for pid in pids {
            let memory = private_memory(&[pid]);
            let first = *self.memory.entry(pid).or_insert(memory);
            if first > 0 && memory > first + GROWTH {
                self.find(format!("process {pid} grew from {first} to {memory} bytes"));
            }
        }
    }
}
