//! Pauses readers' requests while replicas are about to be reconfigured to follow the new master.
//!
//! Sentinel ends every connection of a replica that it reconfigures, with the requests in flight.
//! It does so up to 100 ms after it has announced that the promotion was seen, or that the previous
//! replica is done (`parallel-syncs`). A request held back in that time is answered a moment later
//! instead of being lost. Requests therefore wait from the announcement until the replicas have
//! been reconfigured, or as many of them as are reconfigured at a time. The wait is bounded,
//! because an announced reconfiguration may not happen.

use std::time::{Duration, Instant};

use crate::rate_limiter::RateLimiter;

/// Upper bound of a pause. Sentinel acts at its next tick, at most 100 ms after the announcement,
/// and the replica writes its configuration to disk before it ends its connections.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Replicas that are reconfigured together follow the first one within this time.
const BATCH_SPREAD: Duration = Duration::from_millis(100);

/// A replica that was reconfigured at most this long before the announcement was reconfigured by
/// the same failover.
const SAME_FAILOVER: Duration = Duration::from_secs(10);

/// Pauses allowed at once, and the interval between further ones: a sentinel that announces
/// without end must not stop readers.
const PAUSE_BURST: u32 = 8;
const PAUSE_INTERVAL: Duration = Duration::from_secs(10);

/// The pause of one service. See the module's header.
pub(crate) struct RepointPause {
    since: Option<Instant>,
    /// When it ends at the latest.
    until: Option<Instant>,
    limiter: RateLimiter,
}

impl Default for RepointPause {
    fn default() -> Self {
        let limiter = RateLimiter::new(PAUSE_BURST, PAUSE_INTERVAL);
        Self { since: None, until: None, limiter }
    }
}

impl RepointPause {
    /// Whether requests wait now. `announced`: a sentinel has just announced that replicas are
    /// about to be reconfigured. `members`: for each replica that serves readers, when it was last
    /// reconfigured, and whether it already follows the new master.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        announced: bool,
        members: impl Iterator<Item = (Option<Instant>, bool)> + Clone,
    ) -> bool {
        let begin = self.since.unwrap_or(now);
        let is_done = |(at, follows): (Option<Instant>, bool)| {
            follows || at.is_some_and(|at| at + SAME_FAILOVER >= begin)
        };
        let waits_for_any = members.clone().any(|member| !is_done(member));
        let begins = announced && self.since.is_none() && waits_for_any;
        if begins && self.limiter.allow(now).is_some() {
            (self.since, self.until) = (Some(now), Some(now + MAX_PAUSE));
        }
        let Some(since) = self.since else { return false };
        if let Some(first) = members.filter_map(|(at, _)| at.filter(|at| *at >= since)).min() {
            self.until = self.until.map(|until| until.min(first + BATCH_SPREAD));
        }
        if !waits_for_any || self.until.is_none_or(|until| now >= until) {
            (self.since, self.until) = (None, None);
        }
        self.since.is_some()
    }

    /// When [`step`](Self::step) is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::eligibility::tests::ms;

    struct PauseScenario {
        pause: RepointPause,
        start: Instant,
        members: Vec<(Option<Instant>, bool)>,
    }

    impl PauseScenario {
        fn new(members: usize) -> Self {
            Self {
                pause: RepointPause::default(),
                start: Instant::now(),
                members: vec![(None, false); members],
            }
        }

        fn at(&mut self, at: u64, announced: bool) -> bool {
            self.pause.step(self.start + ms(at), announced, self.members.iter().copied())
        }

        fn repoint(&mut self, member: usize, at: u64) {
            self.members[member] = (Some(self.start + ms(at)), false);
        }
    }

    #[test]
    fn waits_until_all_are_repointed() {
        let mut scenario = PauseScenario::new(2);
        assert!(!scenario.at(0, false) && scenario.at(10, true) && scenario.at(50, false));
        assert_eq!(scenario.pause.deadline(), Some(scenario.start + ms(510)));
        scenario.repoint(0, 60);
        assert!(scenario.at(60, false));
        scenario.repoint(1, 70);
        assert!(!scenario.at(70, false));
        assert_eq!(scenario.pause.deadline(), None);
        // A late announcement, or one on another connection, finds nothing to wait for.
        assert!(!scenario.at(80, true));
    }

    #[test]
    fn waits_once_for_each_replica_repointed_in_turn() {
        let mut scenario = PauseScenario::new(2);
        assert!(scenario.at(0, true));
        scenario.repoint(0, 40);
        assert!(
            scenario.at(40, false) && scenario.at(139, false) && !scenario.at(140, false),
            "the second replica is reconfigured later"
        );
        assert!(!scenario.at(2000, false) && scenario.at(3000, true));
        scenario.repoint(1, 3050);
        assert!(!scenario.at(3050, false));
        // A long synchronisation: the first one was reconfigured minutes ago, and follows.
        let mut scenario = PauseScenario::new(2);
        scenario.members[0].1 = true;
        assert!(scenario.at(100_000, true));
        scenario.repoint(1, 100_050);
        assert!(!scenario.at(100_050, false));
    }

    #[test]
    fn is_bounded_and_not_repeated_without_end() {
        let mut scenario = PauseScenario::new(1);
        let mut waited = 0;
        for at in (0..100_000).step_by(50) {
            waited += u32::from(scenario.at(at, true));
        }
        // 8 at once and one per ten seconds, half a second each.
        assert!((80..=180).contains(&waited), "{waited} of 2000 steps");
        assert!(!PauseScenario::new(0).at(0, true), "there is no replica to wait for");
    }
}
