//! The timeline of one failover by this process's clock, shared by metrics, status page and log.

use std::time::{Duration, Instant};

/// When each phase began. Filled in as it happens; complete with the commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FailoverTimeline {
    /// The first sign of trouble.
    pub suspected_at: Option<Instant>,
    /// The gate was closed.
    pub held_at: Option<Instant>,
    /// The first `+switch-master`, or the first view at a higher epoch.
    pub switched_at: Option<Instant>,
    /// The evidence was complete. From here on, only the verification by this process takes time.
    pub evidence_at: Option<Instant>,
    /// The commit.
    pub committed_at: Option<Instant>,
}

impl FailoverTimeline {
    /// From the first sign of trouble to the commit.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        Some(self.committed_at?.saturating_duration_since(self.suspected_at?))
    }

    /// How long traffic was held.
    #[must_use]
    pub fn hold(&self) -> Option<Duration> {
        Some(self.committed_at?.saturating_duration_since(self.held_at?))
    }

    /// More than a suspicion, and not committed yet.
    pub(super) fn is_under_way(&self) -> bool {
        self.committed_at.is_none() && (self.held_at.is_some() || self.switched_at.is_some())
    }

    pub(super) fn suspected(&mut self, now: Instant) {
        if self.committed_at.is_some() {
            *self = Self::default();
        }
        self.suspected_at.get_or_insert(now);
    }

    /// The gate is closed, and has been since `since`.
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

    /// The suspicion was unfounded.
    pub(super) fn abandoned(&mut self) {
        if self.committed_at.is_none() {
            *self = Self::default();
        }
    }
}
