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
use crate::discovery::snapshot::{FailoverRecord, MAX_FAILOVERS};
use crate::rate_limiter::Voice;
use crate::{Basis, Commit, Machine, MachineEvent, NodeAddr};

/// See the module's header.
#[derive(Debug)]
pub(crate) struct FailoverHistory {
    majority_clock: MajorityClock,
    /// When what the machine is given now was read.
    reading: Instant,
    /// Which evidence is under verification, by the machine's time of it, and when its last part
    /// was read.
    evidence: Option<(Instant, Instant)>,
    failovers: Vec<FailoverRecord>,
    /// What the last of them led to, until a session was there.
    target: Option<Arc<Target>>,
    /// Sentinel itself bounds how often it fails over; whoever only pretends to be one is bounded
    /// here, but for the last word.
    voice: Voice,
}

impl Default for FailoverHistory {
    fn default() -> Self {
        let (majority_clock, voice) =
            (MajorityClock::default(), Voice::new(20, Duration::from_secs(1)));
        Self {
            majority_clock,
            reading: Instant::now(),
            evidence: None,
            failovers: Vec::new(),
            target: None,
            voice,
        }
    }
}

impl FailoverHistory {
    /// Something was read at `heard_at` and is about to be given to the machine.
    pub(crate) fn before(&mut self, event: &MachineEvent, heard_at: Instant, machine: &Machine) {
        self.reading = heard_at;
        if let MachineEvent::Notice { from: Some(from), notice } = event
            && machine.is_member(from)
        {
            self.majority_clock.heard(from, notice, heard_at);
        }
    }

    /// The machine has taken it in.
    pub(crate) fn after(&mut self, heard_at: Instant, machine: &Machine) {
        let evidence_at = machine.timeline().evidence_at;
        if evidence_at != self.evidence.map(|(at, _)| at) {
            self.evidence = evidence_at.map(|at| (at, heard_at));
        }
    }

    /// The points were moved to `target`, as `commit` wanted, at `published_at`; `from` is where they
    /// led before.
    pub(crate) fn moved(
        &mut self,
        (from, commit): (Option<NodeAddr>, &Commit),
        (target, published_at): (Arc<Target>, Instant),
        machine: &Machine,
    ) -> FailoverRecord {
        let timeline = machine.timeline().clone();
        // What was verified ahead is committed in the very step in which its evidence is complete.
        let known = self
            .evidence
            .take()
            .filter(|(at, _)| timeline.evidence_at == Some(*at))
            .map(|(_, read)| read);
        let read_at = known.or(timeline.evidence_at.map(|_| self.reading));
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
        self.voice.say(Instant::now(), move |unsaid| {
            info!(%service, unsaid, %master, generation, after_ms, "the first session has reached the new master");
        });
    }

    /// Tells of a move with its durations.
    pub(crate) fn tell(&mut self, service: &Arc<str>, failover: FailoverRecord) {
        let service = Arc::clone(service);
        self.voice.say(failover.published_at, move |unsaid| {
            let ms = |span: Option<Duration>| span.map(|it| logged(it.as_millis()));
            let us = |span: Option<Duration>| span.map(|it| logged(it.as_micros()));
            info!(
                %service, unsaid, from = failover.from.as_ref().map(ToString::to_string), to = %failover.to,
                epoch = failover.epoch, generation = failover.generation,
                decided_by = failover.basis.label(), duration_ms = ms(failover.timeline.duration()),
                held_ms = ms(failover.timeline.hold()), switched_us = us(failover.switch_time()),
                verified_us = us(failover.verification()), lost_bytes = failover.lost_bytes,
                "switched to new master"
            );
        });
    }

    /// Tells what could not be told before.
    pub(crate) fn catch_up(&mut self, now: Instant) {
        self.voice.catch_up(now);
    }

    /// The last moves of the points, oldest first.
    pub(crate) fn failovers(&self) -> &[FailoverRecord] {
        &self.failovers
    }
}

/// A number that a line in JSON holds as a number: of 128 bits it makes a string.
fn logged(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
