//! The history of failovers: the phases of each from the first sign to the first session, logged
//! once and kept for metrics and status.
//!
//! It stands beside the machine and decides nothing. The machine's
//! [`FailoverTimeline`](crate::FailoverTimeline) has the
//! phases by the clock of its steps. Here are the two times that it cannot know: when something was
//! read from a socket, and when a session reached the new master.

use std::sync::Arc;
use std::time::{Duration, Instant};

use target::Target;
use tracing::info;

use crate::clock;
use crate::discovery::majority_clock::MajorityClock;
use crate::discovery::snapshot::{FailoverRecord, MAX_FAILOVERS};
use crate::rate_limiter::RateLimiter;
use crate::{Basis, Commit, Machine, MachineEvent, NodeAddr};

/// The history; see the module documentation.
pub(crate) struct FailoverHistory {
    majority_clock: MajorityClock,
    /// When the event that the machine processes now was read.
    read_at: Instant,
    /// The evidence under verification: the machine's time of it, and when its last part was read.
    evidence: Option<(Instant, Instant)>,
    failovers: Vec<FailoverRecord>,
    /// The target of the last commit, until a session has used it.
    target: Option<Arc<Target>>,
    /// Sentinel itself limits how often it fails over. This bounds the log if a server only
    /// pretends to be one; the last line is never lost.
    log_limiter: RateLimiter,
}

impl Default for FailoverHistory {
    fn default() -> Self {
        let (majority_clock, log_limiter) =
            (MajorityClock::default(), RateLimiter::new(20, Duration::from_secs(1)));
        Self {
            majority_clock,
            read_at: clock::now(),
            evidence: None,
            failovers: Vec::new(),
            target: None,
            log_limiter,
        }
    }
}

impl FailoverHistory {
    /// An event was read at `read_at`; called before the machine processes it.
    pub(crate) fn before_step(
        &mut self,
        event: &MachineEvent,
        read_at: Instant,
        machine: &Machine,
    ) {
        self.read_at = read_at;
        if let MachineEvent::Notice { from: Some(from), notice } = event
            && machine.is_member(from)
        {
            self.majority_clock.record(from, notice, read_at);
        }
    }

    /// Called after the machine has processed the event.
    pub(crate) fn after_step(&mut self, read_at: Instant, machine: &Machine) {
        let evidence_at = machine.timeline().evidence_at;
        if evidence_at != self.evidence.map(|(at, _)| at) {
            self.evidence = evidence_at.map(|at| (at, read_at));
        }
    }

    /// Records the commit that was published as `target` at `published_at`; `from` is the master
    /// before.
    pub(crate) fn record(
        &mut self,
        from: Option<NodeAddr>,
        commit: &Commit,
        target: Arc<Target>,
        published_at: Instant,
        machine: &Machine,
    ) -> FailoverRecord {
        // Not that of a hold which outlives the commit.
        let timeline = machine.last_timeline.clone();
        // Evidence that was verified ahead is committed in the very step in which it becomes
        // complete.
        let known = self.evidence.take().filter(|(at, _)| timeline.evidence_at == Some(*at));
        let read_at = known.map_or(self.read_at, |(_, read_at)| read_at);
        let read_at = timeline.evidence_at.map(|_| read_at);
        let by_notice = self.majority_clock.complete(&commit.addr, machine.quorum().1);
        self.majority_clock.clear();
        let failover = FailoverRecord {
            from,
            to: commit.addr.clone(),
            epoch: commit.epoch,
            basis: commit.basis,
            lost_bytes: commit.lost_bytes,
            generation: target.generation().get(),
            timeline,
            evidence_read_at: read_at,
            decided_at: by_notice
                .into_iter()
                .chain(read_at)
                .min()
                .filter(|_| commit.basis == Basis::Majority),
            published_at,
            first_session_at: None,
        };
        self.target = Some(target);
        if self.failovers.len() >= MAX_FAILOVERS {
            self.failovers.remove(0);
        }
        self.failovers.push(failover.clone());
        failover
    }

    /// Records and logs the first session on the current master; called at the next commit at the
    /// latest.
    pub(crate) fn note_first_session(&mut self, service: &Arc<str>) {
        let Some(at) = self.target.as_ref().and_then(|target| target.first_use()) else { return };
        // The value on the target does not change any more.
        self.target = None;
        let Some(failover) = self.failovers.last_mut() else { return };
        failover.first_session_at = Some(at);
        let after_ms = failover.first_session().map(|it| as_u64(it.as_millis()));
        let (service, master, generation) =
            (Arc::clone(service), failover.to.clone(), failover.generation);
        self.log_limiter.log(clock::now(), move |suppressed| {
            info!(
                %service, suppressed, %master, generation, after_ms,
                "first session reached the new master"
            );
        });
    }

    /// Logs a switch with its durations.
    pub(crate) fn log(&mut self, service: &Arc<str>, failover: FailoverRecord) {
        let service = Arc::clone(service);
        self.log_limiter.log(failover.published_at, move |suppressed| {
            let ms = |span: Option<Duration>| span.map(|it| as_u64(it.as_millis()));
            let us = |span: Option<Duration>| span.map(|it| as_u64(it.as_micros()));
            info!(
                %service, suppressed,
                from = failover.from.as_ref().map(ToString::to_string), to = %failover.to,
                epoch = failover.epoch, generation = failover.generation,
                decided_by = failover.basis.label(), duration_ms = ms(failover.timeline.duration()),
                held_ms = ms(failover.timeline.hold()), switched_us = us(failover.switch_time()),
                verified_us = us(failover.verification()), lost_bytes = failover.lost_bytes,
                "switched to new master"
            );
        });
    }

    /// Writes log lines that were delayed by the rate limit.
    pub(crate) fn flush_logs(&mut self, now: Instant) {
        self.log_limiter.flush(now);
    }

    /// The last commits, oldest first.
    pub(crate) fn failovers(&self) -> &[FailoverRecord] {
        &self.failovers
    }
}

/// As a number of 64 bits, which a JSON log line shows as a number; 128 bits become a string.
fn as_u64(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
