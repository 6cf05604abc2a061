//! What became of each failover, for people: its phases from the first notice to the first session,
//! told once in the log and kept for metrics and status.
//!
//! It stands beside the machine and decides nothing. The machine's [`FailoverTimeline`] knows the phases by
//! the clock of its steps; here are the two ends that it cannot see: when something was read from a
//! socket, and when a session reached the new master.

use std::sync::Arc;
use std::time::{Duration, Instant};

use target::Target;
use tracing::info;

use crate::discovery::majority_clock::MajorityClock;
use crate::discovery::snapshot::{Failover, REMEMBERED};
use crate::rate_limiter::RateLimiter;
use crate::{Basis, Commit, Event, Machine, NodeAddr};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct FailoverHistory {
    tidings: MajorityClock,
    /// When what the machine is given now was read.
    reading: Instant,
    /// Which evidence is under verification, by the machine's time of it, and when its last part
    /// was read.
    evidence: Option<(Instant, Instant)>,
    failovers: Vec<Failover>,
    /// What the last of them led to, until a session was there.
    target: Option<Arc<Target>>,
    /// Sentinel itself bounds how often it fails over; whoever only pretends to be one is bounded
    /// here, but for the last word.
    log_limiter: RateLimiter,
}

impl Default for FailoverHistory {
    fn default() -> Self {
        let (tidings, log_limiter) =
            (MajorityClock::default(), RateLimiter::new(20, Duration::from_secs(1)));
        Self {
            tidings,
            reading: Instant::now(),
            evidence: None,
            failovers: Vec::new(),
            target: None,
            log_limiter,
        }
    }
}

impl FailoverHistory {
    /// Something was read at `heard_at` and is about to be given to the machine.
    pub(crate) fn before(&mut self, event: &Event, heard_at: Instant, machine: &Machine) {
        self.reading = heard_at;
        if let Event::Notice { from: Some(from), notice } = event
            && machine.is_member(from)
        {
            self.tidings.heard(from, notice, heard_at);
        }
    }

    /// The machine has taken it in.
    pub(crate) fn after(&mut self, heard_at: Instant, machine: &Machine) {
        let evidence_at = machine.story().evidence_at;
        if evidence_at != self.evidence.map(|(at, _)| at) {
            self.evidence = evidence_at.map(|at| (at, heard_at));
        }
    }

    /// The points were moved to `target`, as `commit` wanted, at `swapped_at`; `from` is where they
    /// led before.
    pub(crate) fn moved(
        &mut self,
        (from, commit): (Option<NodeAddr>, &Commit),
        (target, swapped_at): (Arc<Target>, Instant),
        machine: &Machine,
    ) -> Failover {
        let story = machine.story().clone();
        // What was verified ahead is committed in the very step in which its evidence is complete.
        let known = self
            .evidence
            .take()
            .filter(|(at, _)| story.evidence_at == Some(*at))
            .map(|(_, read)| read);
        let read_at = known.or(story.evidence_at.map(|_| self.reading));
        let by_notice = self.tidings.complete(&commit.addr, machine.quorum().1);
        self.tidings.clear();
        let failover = Failover {
            from,
            to: commit.addr.clone(),
            epoch: commit.epoch,
            basis: commit.basis,
            lost_bytes: commit.lost_bytes,
            generation: target.generation().get(),
            story,
            evidence_read_at: read_at,
            decided_at: by_notice
                .into_iter()
                .chain(read_at)
                .min()
                .filter(|_| commit.basis == Basis::Majority),
            swapped_at,
            first_session_at: None,
        };
        self.target = Some(target);
        if self.failovers.len() >= REMEMBERED {
            self.failovers.remove(0);
        }
        self.failovers.push(failover.clone());
        failover
    }

    /// Takes note of the first session on the master in force, and tells of it. Not later than the
    /// next move.
    pub(crate) fn note_first_session(&mut self, service: &Arc<str>) {
        let Some(at) = self.target.as_ref().and_then(|target| target.first_use()) else { return };
        // The target is asked no more: what is noted on it does not change.
        self.target = None;
        let Some(failover) = self.failovers.last_mut() else { return };
        failover.first_session_at = Some(at);
        let after_ms = failover.first_session().map(|it| logged(it.as_millis()));
        let (service, master, generation) =
            (Arc::clone(service), failover.to.clone(), failover.generation);
        self.log_limiter.log(Instant::now(), move |suppressed| {
            info!(%service, suppressed, %master, generation, after_ms, "the first session has reached the new master");
        });
    }

    /// Tells of a move with its durations.
    pub(crate) fn tell(&mut self, service: &Arc<str>, failover: Failover) {
        let service = Arc::clone(service);
        self.log_limiter.log(failover.swapped_at, move |suppressed| {
            let ms = |span: Option<Duration>| span.map(|it| logged(it.as_millis()));
            let us = |span: Option<Duration>| span.map(|it| logged(it.as_micros()));
            info!(
                %service, suppressed, master = %failover.to, epoch = failover.epoch, generation = failover.generation,
                basis = ?failover.basis, from = failover.from.as_ref().map(ToString::to_string),
                suspected_ms = ms(failover.story.suspicion()), held_ms = ms(failover.story.hold()),
                switched_us = us(failover.swap()), verified_us = us(failover.verification()),
                lost_bytes = failover.lost_bytes, "the points lead to a new master"
            );
        });
    }

    /// Tells what could not be told before.
    pub(crate) fn catch_up(&mut self, now: Instant) {
        self.log_limiter.flush(now);
    }

    /// The last moves of the points, oldest first.
    pub(crate) fn failovers(&self) -> &[Failover] {
        &self.failovers
    }
}

/// A number that a line in JSON holds as a number: of 128 bits it makes a string.
fn logged(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
