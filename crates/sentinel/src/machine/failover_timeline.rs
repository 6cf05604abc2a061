//! The phases of one failover, by the clock of this process: what the metrics, the status page and
//! the log tell alike.

use std::time::{Duration, Instant};

/// When each phase began. Filled in as it happens; closed by a commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FailoverTimeline {
    /// The first sign that something may be wrong.
    pub suspected_at: Option<Instant>,
    /// The gate was shut.
    pub held_at: Option<Instant>,
    /// The first `+switch-master`, or the first view at a higher epoch.
    pub switched_at: Option<Instant>,
    /// The evidence was complete: from here on the machine itself is what takes time.
    pub evidence_at: Option<Instant>,
    /// The points moved.
    pub committed_at: Option<Instant>,
}

impl FailoverTimeline {
    /// From complete evidence to the move of the points: one verification round trip; nothing, if
    /// it was verified ahead.
    #[must_use]
    pub fn verification(&self) -> Option<Duration> {
        Some(self.committed_at?.saturating_duration_since(self.evidence_at?))
    }

    /// From the first sign of trouble to the move of the points.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        Some(self.committed_at?.saturating_duration_since(self.suspected_at?))
    }

    /// How long traffic was held.
    #[must_use]
    pub fn hold(&self) -> Option<Duration> {
        Some(self.committed_at?.saturating_duration_since(self.held_at?))
    }

    /// More than a suspicion, and not over.
    pub(super) fn is_under_way(&self) -> bool {
        self.committed_at.is_none() && (self.held_at.is_some() || self.switched_at.is_some())
    }

    pub(super) fn suspected(&mut self, now: Instant) {
        if self.committed_at.is_some() {
            *self = Self::default();
        }
        self.suspected_at.get_or_insert(now);
    }

    /// The gate is shut, and has been since `since`.
    pub(super) fn held(&mut self, now: Instant, since: Instant) {
        self.suspected(now);
        self.held_at.get_or_insert(since);
    }

    pub(super) fn switched(&mut self, now: Instant) {
        self.suspected(now);
        self.switched_at.get_or_insert(now);
    }

    pub(super) fn evidence(&mut self, now: Instant) {
        self.switched(now);
        self.evidence_at.get_or_insert(now);
    }

    pub(super) fn committed(&mut self, now: Instant) {
        self.committed_at = Some(now);
    }

    /// It came to nothing.
    pub(super) fn abandoned(&mut self) {
        if self.committed_at.is_none() {
            *self = Self::default();
        }
    }
}
