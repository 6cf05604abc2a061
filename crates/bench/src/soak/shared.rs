//! What the clients and the conductor of a soak share: phases, counts and findings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Findings of this many are kept; the rest are only counted.
const MOST_FINDINGS: usize = 50;

/// A reply of a failed master may still be on its way for this long; no successor is promoted
/// earlier than Sentinel's `down-after-milliseconds` of two seconds.
const ON_ITS_WAY: Duration = Duration::from_millis(1500);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) addr: SocketAddr,
    pub(super) stop: AtomicBool,
    /// Odd while a fault may be noticed by clients.
    phase: AtomicU64,
    /// Set while Redis may lose acknowledged writes.
    at_risk: AtomicBool,
    /// When the current step began.
    began: Mutex<Instant>,
    /// The current step, for messages.
    step: AtomicU64,
    /// Every client verifies its whole state once per number.
    round: AtomicU64,
    verified: Vec<AtomicU64>,
    pub(super) replies: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) closed: AtomicU64,
    pub(super) audits: AtomicU64,
    lost: AtomicU64,
    errors: Mutex<BTreeMap<String, u64>>,
    findings: Mutex<Vec<String>>,
    omitted: AtomicU64,
}

impl Shared {
    pub(super) fn new(addr: SocketAddr, clients: usize) -> Self {
        Self {
            addr,
            stop: AtomicBool::new(false),
            phase: AtomicU64::new(0),
            at_risk: AtomicBool::new(false),
            began: Mutex::new(Instant::now()),
            step: AtomicU64::new(0),
            round: AtomicU64::new(0),
            verified: (0..clients).map(|_| AtomicU64::new(0)).collect(),
            replies: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            audits: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            errors: Mutex::default(),
            findings: Mutex::default(),
            omitted: AtomicU64::new(0),
        }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Begins a step, `disturbing` if clients may notice it.
    pub(super) fn begin(&self, step: usize, disturbing: bool, at_risk: bool) {
        self.step.store(u64::try_from(step).unwrap_or(u64::MAX), Ordering::Release);
        *self.began.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.at_risk.store(at_risk, Ordering::Release);
        if disturbing {
            self.phase.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn end(&self, disturbing: bool) {
        self.at_risk.store(false, Ordering::Release);
        if disturbing {
            self.phase.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn phase(&self) -> u64 {
        self.phase.load(Ordering::Acquire)
    }

    /// Whether no fault that clients may notice has been in progress since `phase` was read.
    pub(super) fn calm_since(&self, phase: u64) -> bool {
        phase.is_multiple_of(2) && self.phase() == phase
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
        let late = |it: &AtomicU64| it.load(Ordering::Acquire) < round;
        self.verified.iter().enumerate().filter(|(_, it)| late(it)).map(|(at, _)| at).collect()
    }

    /// Acknowledged writes that are gone: allowed only after an unplanned change of master, and
    /// only if the last one was acknowledged before the fault. A later acknowledgement came from
    /// a master that had been superseded.
    pub(super) fn lost(&self, who: &str, count: u64, last: Option<Instant>) {
        let began = *self.began.lock().unwrap_or_else(PoisonError::into_inner);
        let late = last.and_then(|last| last.checked_duration_since(began));
        if !self.at_risk.load(Ordering::Acquire) {
            self.finding(&format!("{who}: {count} acknowledged writes are gone"));
        } else if let Some(late) = late.filter(|late| *late > ON_ITS_WAY) {
            let ms = late.as_millis();
            self.finding(&format!(
                "{who}: {count} writes acknowledged {ms} ms after the fault are gone"
            ));
        } else {
            self.lost.fetch_add(count, Ordering::AcqRel);
        }
    }

    pub(super) fn lost_so_far(&self) -> u64 {
        self.lost.load(Ordering::Acquire)
    }

    /// An error reply, which is a finding if nothing explains it.
    pub(super) fn refused(&self, who: &str, phase: u64, message: &str) {
        *self.errors().entry(shortened(message)).or_default() += 1;
        if self.calm_since(phase) {
            self.finding(&format!("{who}: error reply without a fault: {message}"));
        }
    }

    /// An end of a connection, which is a finding if nothing explains it.
    pub(super) fn broken(&self, who: &str, phase: u64, why: &std::io::Error) {
        self.closed.fetch_add(1, Ordering::AcqRel);
        if self.calm_since(phase) && !self.stopped() {
            self.finding(&format!("{who}: connection lost without a fault: {why}"));
        }
    }

    pub(super) fn finding(&self, what: &str) {
        let step = self.step.load(Ordering::Acquire);
        let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
        if findings.len() < MOST_FINDINGS {
            findings.push(format!("step {step}: {what}"));
        } else {
            self.omitted.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn findings(&self) -> Vec<String> {
        let mut all = self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let omitted = self.omitted.load(Ordering::Acquire);
        if omitted > 0 {
            all.push(format!("and {omitted} more"));
        }
        all
    }

    pub(super) fn error_replies(&self) -> BTreeMap<String, u64> {
        self.errors().clone()
    }

    fn errors(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, u64>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without numbers and addresses, so that equal causes are counted together.
fn shortened(message: &str) -> String {
    message.chars().filter(|it| !it.is_ascii_digit()).take(70).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Shared {
        Shared::new(SocketAddr::from(([127, 0, 0, 1], 1)), 1)
    }

    #[test]
    fn allows_losses_of_unplanned_failovers_only() {
        let shared = shared();
        shared.begin(1, true, false);
        shared.lost("planned", 1, None);
        assert_eq!((shared.lost_so_far(), shared.findings().len()), (0, 1));
        let before = Instant::now();
        shared.begin(2, true, true);
        shared.lost("unplanned", 3, Some(before));
        assert_eq!((shared.lost_so_far(), shared.findings().len()), (3, 1));
    }

    #[test]
    fn finds_late_acknowledgements_of_lost_writes() {
        let shared = shared();
        shared.begin(1, true, true);
        shared.lost("late", 1, Some(Instant::now() + 2 * ON_ITS_WAY));
        assert_eq!((shared.lost_so_far(), shared.findings().len()), (0, 1));
    }

    #[test]
    fn explains_errors_only_during_disturbing_steps() {
        let shared = shared();
        shared.refused("calm", shared.phase(), "ERR x");
        assert_eq!(shared.findings().len(), 1);
        shared.begin(1, true, false);
        shared.refused("fault", shared.phase(), "ERR x");
        shared.end(true);
        assert_eq!(shared.findings().len(), 1);
        shared.begin(2, false, false);
        shared.refused("harmless", shared.phase(), "ERR x");
        assert_eq!(shared.findings().len(), 2);
    }
}
