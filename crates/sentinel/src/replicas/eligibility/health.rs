//! Replica health as the sessions connected to a replica need it: when it last answered, which
//! master it follows, whether it is unresponsive.
//!
//! Kept apart from the last report, which is dropped after a stall of this process: a replica that
//! was reconfigured during the stall must be noticed afterwards.

use std::time::{Duration, Instant};

use crate::{NodeAddr, Probe, ProbeFailure, Role};

/// Tracks the health of one replica. See the module's header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::replicas) struct HealthTracker {
    /// When the most recent successful probe was sent.
    pub(in crate::replicas) asked_at: Option<Instant>,
    /// The same for any answer. A replica that refuses our commands is busy or full, but alive.
    alive_at: Option<Instant>,
    /// The master that it followed at that time; `Some(None)` if it was a master itself.
    pub(in crate::replicas) follows: Option<Option<NodeAddr>>,
    pub(in crate::replicas) repointed_at: Option<Instant>,
}

impl HealthTracker {
    /// Records a probe whose result arrived at `now`.
    pub(super) fn record_probe(&mut self, now: Instant, probe: &Probe) {
        match &probe.outcome {
            Ok(report) => {
                self.alive_at = self.alive_at.max(Some(probe.asked_at));
                if self.asked_at.is_some_and(|at| probe.asked_at < at) {
                    // A later probe was answered before it: this answer is outdated.
                    return;
                }
                self.asked_at = Some(probe.asked_at);
                let follows = match &report.role {
                    Role::Master => None,
                    Role::Replica { master, .. } => Some(master.clone()),
                    Role::Unknown => return,
                };
                if self.follows.as_ref().is_some_and(|before| *before != follows) {
                    self.repointed_at = Some(now);
                }
                self.follows = Some(follows);
            }
            Err(ProbeFailure::Denied | ProbeFailure::ConnectionRejected | ProbeFailure::Busy) => {
                self.alive_at = self.alive_at.max(Some(probe.asked_at));
            }
            Err(
                ProbeFailure::Unreachable
                | ProbeFailure::UnusableAddress
                | ProbeFailure::OutsideNodes
                | ProbeFailure::Unresponsive,
            ) => {}
        }
    }

    /// Whether it has not answered for longer than `unanswered`; `None` while it has not been
    /// probed yet.
    pub(super) fn is_silent(&self, now: Instant, unanswered: Option<Duration>) -> bool {
        let since = |at: Instant| now.saturating_duration_since(at);
        unanswered.is_some_and(|span| self.alive_at.is_none_or(|at| since(at) > span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeReport;
    use crate::replicas::eligibility::tests::{follower, ms, report};

    fn answer(asked_at: Instant, role: Role) -> Probe {
        Probe { asked_at, outcome: Ok(NodeReport { role, ..report(2, Role::Unknown, 0, "x") }) }
    }

    #[test]
    fn notes_when_replica_follows_another_master() {
        let (mut health, start) = (HealthTracker::default(), Instant::now());
        let mut record_probe = |at: u64, role| {
            health.record_probe(start + ms(at), &answer(start + ms(at), role));
            health.repointed_at
        };
        assert_eq!(record_probe(1, follower(1, true)), None, "the first answer is not a change");
        assert_eq!(record_probe(2, follower(1, false)), None, "a broken link is not a change");
        assert_eq!(record_probe(3, Role::Unknown), None);
        assert_eq!(record_probe(4, follower(3, false)), Some(start + ms(4)));
        assert_eq!(record_probe(5, follower(3, true)), Some(start + ms(4)));
        assert_eq!(
            record_probe(6, Role::Master),
            Some(start + ms(6)),
            "a promotion ends all connections, too"
        );
        assert_eq!(record_probe(7, follower(3, true)), Some(start + ms(7)));
        // An answer that was overtaken by a later one.
        health.record_probe(start + ms(9), &answer(start + ms(2), follower(1, true)));
        assert_eq!(
            (health.repointed_at, health.asked_at),
            (Some(start + ms(7)), Some(start + ms(7)))
        );
    }

    #[test]
    fn is_silent_only_without_any_answer() {
        let (mut health, start) = (HealthTracker::default(), Instant::now());
        health.record_probe(start, &answer(start, follower(1, true)));
        let failed = |failure| Probe { asked_at: start + ms(3000), outcome: Err(failure) };
        let silent = |health: &HealthTracker, at| health.is_silent(start + ms(at), Some(ms(3000)));
        for failure in
            [ProbeFailure::Unresponsive, ProbeFailure::Unreachable, ProbeFailure::UnusableAddress]
        {
            health.record_probe(start + ms(3000), &failed(failure));
            assert_eq!(
                (silent(&health, 3000), silent(&health, 3001)),
                (false, true),
                "{failure:?}"
            );
        }
        assert!(!health.is_silent(start + ms(9000), None), "it has not been probed since a stall");
        for failure in [ProbeFailure::ConnectionRejected, ProbeFailure::Denied, ProbeFailure::Busy]
        {
            let mut alive = health.clone();
            alive.record_probe(start + ms(3000), &failed(failure));
            assert!(!silent(&alive, 3001), "{failure:?} is an answer");
        }
    }
}
