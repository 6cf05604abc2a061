//! What the clients and the conductor of a soak share: phases, counts, suspicions and findings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use harness::pause;

use super::judge::{Acknowledged, History, Kind, Ruling, Suspicion};
use super::timeline::Timeline;

/// Findings of this many are kept; the rest are only counted.
const MOST_FINDINGS: usize = 50;
/// Steps with findings that are printed with what happened before.
const EXPLAINED: usize = 5;

/// When a request began, and whether a fault was in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Phase(u64);

/// One finding.
#[derive(Debug, Clone, Default)]
pub(super) struct Finding {
    pub(super) what: String,
    /// What happened in the ten seconds before.
    pub(super) before: Vec<String>,
}

/// Lost writes that are no finding, by their cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Excused {
    pub(super) by_fault: u64,
    /// Replicas that lagged when `SENTINEL FAILOVER` promoted them.
    pub(super) by_lag: u64,
    pub(super) by_environment: u64,
    /// Other observations that a failover by the environment explains.
    pub(super) others: u64,
}

impl Excused {
    pub(super) fn lost(&self) -> u64 {
        self.by_fault + self.by_lag + self.by_environment
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) addr: SocketAddr,
    pub(super) stop: AtomicBool,
    pub(super) timeline: Timeline,
    /// Odd while a fault may be noticed by clients.
    phase: AtomicU64,
    /// The current step, for messages.
    step: AtomicU64,
    /// Every client verifies its whole state once per number.
    round: AtomicU64,
    verified: Vec<AtomicU64>,
    /// Every client stops between two requests while this is not zero.
    rest: AtomicU64,
    rests: AtomicU64,
    resting: Vec<AtomicU64>,
    pub(super) replies: AtomicU64,
    pub(super) connections: AtomicU64,
    /// Connections of clients that are open now.
    pub(super) open: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) audits: AtomicU64,
    lost: AtomicU64,
    lost_by_lag: AtomicU64,
    lost_by_environment: AtomicU64,
    /// Suspicions that a failover without a fault of the soak explains.
    excused: AtomicU64,
    failed: AtomicU64,
    errors: Mutex<BTreeMap<String, u64>>,
    suspicions: Mutex<Vec<Suspicion>>,
    findings: Mutex<Vec<Finding>>,
    omitted: AtomicU64,
}

impl Shared {
    pub(super) fn new(addr: SocketAddr, clients: usize) -> Self {
        let numbers = || (0..clients).map(|_| AtomicU64::new(0)).collect();
        Self {
            addr,
            stop: AtomicBool::new(false),
            timeline: Timeline::new(),
            phase: AtomicU64::new(0),
            step: AtomicU64::new(0),
            round: AtomicU64::new(0),
            verified: numbers(),
            rest: AtomicU64::new(0),
            rests: AtomicU64::new(0),
            resting: numbers(),
            replies: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            open: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            audits: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            lost_by_lag: AtomicU64::new(0),
            lost_by_environment: AtomicU64::new(0),
            excused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            errors: Mutex::default(),
            suspicions: Mutex::default(),
            findings: Mutex::default(),
            omitted: AtomicU64::new(0),
        }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub(super) fn begin(&self, step: usize) {
        self.step.store(u64::try_from(step).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// From now on until the end of the step, clients may notice a fault.
    pub(super) fn disturb(&self) {
        self.phase.fetch_or(1, Ordering::AcqRel);
    }

    /// Ends a step. Whether clients may have noticed a fault of it.
    pub(super) fn end(&self) -> bool {
        let disturbed = !self.phase().0.is_multiple_of(2);
        if disturbed {
            self.phase.fetch_add(1, Ordering::AcqRel);
        }
        disturbed
    }

    pub(super) fn phase(&self) -> Phase {
        Phase(self.phase.load(Ordering::Acquire))
    }

    /// Whether no fault that clients may notice has been in progress since `phase` was read.
    pub(super) fn calm_since(&self, phase: Phase) -> bool {
        phase.0.is_multiple_of(2) && self.phase() == phase
    }

    pub(super) fn ask_for_round(&self) -> u64 {
        self.round.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(super) fn round(&self) -> u64 {
        self.round.load(Ordering::Acquire)
    }

    pub(super) fn verified(&self, client: usize, round: u64) {
        if let Some(slot) = self.verified.get(client) {
            slot.store(round, Ordering::Release);
        }
    }

    /// The clients that have not verified their state in this round.
    pub(super) fn missing(&self, round: u64) -> Vec<usize> {
        behind(&self.verified, round)
    }

    /// Asks all clients to stop between two requests.
    pub(super) fn ask_for_rest(&self) -> u64 {
        let number = self.rests.fetch_add(1, Ordering::AcqRel) + 1;
        self.rest.store(number, Ordering::Release);
        number
    }

    pub(super) fn release(&self) {
        self.rest.store(0, Ordering::Release);
    }

    /// The clients that do not rest yet.
    pub(super) fn active(&self, number: u64) -> Vec<usize> {
        behind(&self.resting, number)
    }

    /// Waits for as long as all clients are asked to rest. `publish` settles the accounts before.
    pub(super) fn rest(&self, client: usize, publish: impl FnOnce()) {
        let number = self.rest.load(Ordering::Acquire);
        if number == 0 {
            return;
        }
        publish();
        if let Some(slot) = self.resting.get(client) {
            slot.store(number, Ordering::Release);
        }
        while self.rest.load(Ordering::Acquire) == number && !self.stopped() {
            pause(Duration::from_millis(1));
        }
    }

    /// Acknowledged writes that are gone.
    pub(super) fn lost(&self, who: &str, count: u64, last: Option<Acknowledged>) {
        self.timeline.note(&format!("{who}: {count} acknowledged writes are gone"));
        self.suspect(Kind::Lost { count, last }, who);
    }

    /// Something that needs a fault as its explanation.
    pub(super) fn unexplained(&self, phase: Phase, what: &str) {
        if self.calm_since(phase) && !self.stopped() {
            self.timeline.note(what);
            self.suspect(Kind::Unexplained, what);
        }
    }

    fn suspect(&self, kind: Kind, what: &str) {
        let step = self.step.load(Ordering::Acquire);
        let suspicion = Suspicion { at: Instant::now(), step, what: what.to_owned(), kind };
        lock(&self.suspicions).push(suspicion);
    }

    /// Judges all suspicions since the previous judgement.
    pub(super) fn judge(&self, history: &History) {
        for suspicion in std::mem::take(&mut *lock(&self.suspicions)) {
            match history.judge(&suspicion) {
                Ruling::LostByFault(count) => self.lost.fetch_add(count, Ordering::AcqRel),
                Ruling::LostByLag(count) => self.lost_by_lag.fetch_add(count, Ordering::AcqRel),
                Ruling::LostByEnvironment(count) => {
                    self.lost_by_environment.fetch_add(count, Ordering::AcqRel)
                }
                Ruling::Environment => self.excused.fetch_add(1, Ordering::AcqRel),
                Ruling::Finding(what) => {
                    self.add_finding(what, suspicion.at);
                    0
                }
            };
        }
    }

    pub(super) fn excused(&self) -> Excused {
        let read = |it: &AtomicU64| it.load(Ordering::Acquire);
        Excused {
            by_fault: read(&self.lost),
            by_lag: read(&self.lost_by_lag),
            by_environment: read(&self.lost_by_environment),
            others: read(&self.excused),
        }
    }

    /// A planned failover was ordered and did not take place.
    pub(super) fn failover_failed(&self) {
        self.timeline.note("the planned failover did not take place");
        self.failed.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn failed_failovers(&self) -> u64 {
        self.failed.load(Ordering::Acquire)
    }

    /// An error reply, which is a finding if nothing explains it.
    pub(super) fn refused(&self, who: &str, phase: Phase, message: &str) {
        *lock(&self.errors).entry(shortened(message)).or_default() += 1;
        self.unexplained(phase, &format!("{who}: error reply without a fault: {message}"));
    }

    /// An end of a connection, which is a finding if nothing explains it.
    pub(super) fn broken(&self, who: &str, phase: Phase, why: &std::io::Error) {
        self.closed.fetch_add(1, Ordering::AcqRel);
        if !self.calm_since(phase) {
            self.timeline.note(&format!("{who}: connection lost: {why}"));
        }
        self.unexplained(phase, &format!("{who}: connection lost without a fault: {why}"));
    }

    pub(super) fn finding(&self, what: &str) {
        let step = self.step.load(Ordering::Acquire);
        self.timeline.note(what);
        self.add_finding(format!("step {step}: {what}"), Instant::now());
    }

    /// The first finding of a step is kept with what happened before it.
    fn add_finding(&self, what: String, at: Instant) {
        let step = |what: &str| what.split(':').next().map(str::to_owned);
        let (number, explained, again) = {
            let findings = lock(&self.findings);
            let explained = findings.iter().filter(|it| !it.before.is_empty()).count();
            let again = findings.iter().any(|it| step(&it.what) == step(&what));
            (findings.len(), explained, again)
        };
        if number < MOST_FINDINGS {
            let explain = explained < EXPLAINED && !again;
            let before = if explain { self.timeline.around(at) } else { Vec::new() };
            lock(&self.findings).push(Finding { what, before });
        } else {
            self.omitted.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut all = lock(&self.findings).clone();
        let omitted = self.omitted.load(Ordering::Acquire);
        if omitted > 0 {
            all.push(Finding { what: format!("and {omitted} more"), before: Vec::new() });
        }
        all
    }

    pub(super) fn error_replies(&self) -> BTreeMap<String, u64> {
        lock(&self.errors).clone()
    }
}

fn behind(slots: &[AtomicU64], number: u64) -> Vec<usize> {
    let late = |it: &AtomicU64| it.load(Ordering::Acquire) < number;
    slots.iter().enumerate().filter(|(_, it)| late(it)).map(|(at, _)| at).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Without numbers and addresses, so that equal causes are counted together.
fn shortened(message: &str) -> String {
    message.chars().filter(|it| !it.is_ascii_digit()).take(70).collect()
}

#[cfg(test)]
mod tests {
    use super::super::judge::Deed;
    use super::super::schedule::Fault;
    use super::*;

    fn shared() -> Shared {
        Shared::new(SocketAddr::from(([127, 0, 0, 1], 1)), 1)
    }

    fn judged(shared: &Shared, deeds: Vec<Deed>) -> usize {
        shared.judge(&History { deeds, switches: Vec::new() });
        shared.findings().len()
    }

    #[test]
    fn counts_excused_losses_and_reports_others() {
        let shared = shared();
        let acknowledged = |at| Some(Acknowledged { sent: at, at });
        shared.lost("calm", 1, acknowledged(Instant::now()));
        assert_eq!((judged(&shared, Vec::new()), shared.excused().by_fault), (1, 0));
        let begin = Instant::now();
        let kill = Deed { fault: Fault::KillMaster, node: None, begin, end: None };
        shared.lost("unplanned", 3, acknowledged(begin));
        assert_eq!((judged(&shared, vec![kill]), shared.excused().by_fault), (1, 3));
    }

    #[test]
    fn explains_errors_only_while_disturbed() {
        let shared = shared();
        shared.begin(1);
        shared.refused("calm", shared.phase(), "ERR x");
        assert!(!shared.end());
        assert_eq!(judged(&shared, Vec::new()), 1);
        shared.begin(2);
        shared.disturb();
        shared.refused("fault", shared.phase(), "ERR x");
        assert!(shared.end());
        assert_eq!(judged(&shared, Vec::new()), 1);
        shared.refused("later", shared.phase(), "ERR x");
        assert_eq!(judged(&shared, Vec::new()), 2);
    }

    #[test]
    fn explains_findings_with_what_came_before() {
        let shared = shared();
        let number = shared.timeline.begin(Fault::Reload, None);
        shared.timeline.end(number);
        shared.finding("a wrong reply");
        let before = &shared.findings()[0].before;
        assert!(before.iter().any(|line| line.contains("end of: reload")), "{before:?}");
    }
}
