//! What the clients and the conductor of a soak share: phases, counts and findings.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Findings of this many are kept; the rest are only counted.
const MOST_FINDINGS: usize = 50;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) addr: SocketAddr,
    pub(super) stop: AtomicBool,
    /// Odd while a fault may be noticed by clients.
    phase: AtomicU64,
    /// Set while Redis may lose acknowledged writes.
    at_risk: AtomicBool,
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

    /// Acknowledged writes that are gone: allowed only after an unplanned change of master.
    pub(super) fn lost(&self, who: &str, count: u64) {
        if self.at_risk.load(Ordering::Acquire) {
            self.lost.fetch_add(count, Ordering::AcqRel);
        } else {
            self.finding(&format!("{who}: {count} acknowledged writes are gone"));
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
