//! When readers' requests wait because replicas are about to be pointed to the new master.
//!
//! Sentinel ends every connection of a replica that it points elsewhere, requests under way
//! included. It does so up to 100 ms after it has announced that the promotion was seen, or that
//! the replica before is done (`parallel-syncs`). A request that is not sent in that time is
//! answered a moment later instead of being lost. So from the announcement on requests wait until
//! the replicas have been re-pointed, or as many of them as are at a time, and never for long: what
//! is announced may not come.
//!
//! Deliberately absent: what makes an announcement credible, and the gate.

use std::time::{Duration, Instant};

/// The longest wait. Sentinel acts on what it announced at its next tick, 100 ms later at most, and
/// the replica writes its configuration to its disk before it ends its connections.
const LONGEST: Duration = Duration::from_millis(500);

/// The others that are re-pointed together with a first one follow within this time.
const TOGETHER: Duration = Duration::from_millis(100);

/// A replica that was re-pointed this long before the announcement was re-pointed by the same
/// failover.
const BEFORE: Duration = Duration::from_secs(10);

/// Waits at once, and after how long another one is allowed: a sentinel that announces without end
/// must not stop readers.
const AT_ONCE: u32 = 8;
const THEN_EVERY: Duration = Duration::from_secs(10);

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Pause {
    since: Option<Instant>,
    /// When it ends at the latest.
    until: Option<Instant>,
    left: u32,
    earned_at: Option<Instant>,
}

impl Default for Pause {
    fn default() -> Self {
        Self { since: None, until: None, left: AT_ONCE, earned_at: None }
    }
}

impl Pause {
    /// Whether requests wait now. `announced`: replicas are about to be re-pointed, as of this
    /// moment. `members`: for each replica that serves readers, when it was last re-pointed, and
    /// whether it follows the new master already.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        announced: bool,
        members: impl Iterator<Item = (Option<Instant>, bool)> + Clone,
    ) -> bool {
        let begin = self.since.unwrap_or(now);
        let is_done = |(at, follows): (Option<Instant>, bool)| {
            follows || at.is_some_and(|at| at + BEFORE >= begin)
        };
        let waits_for_any = members.clone().any(|member| !is_done(member));
        if announced && self.since.is_none() && waits_for_any && self.is_allowed(now) {
            (self.since, self.until) = (Some(now), Some(now + LONGEST));
        }
        let Some(since) = self.since else { return false };
        if let Some(first) = members.filter_map(|(at, _)| at.filter(|at| *at >= since)).min() {
            self.until = self.until.map(|until| until.min(first + TOGETHER));
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

    fn is_allowed(&mut self, now: Instant) -> bool {
        let since = *self.earned_at.get_or_insert(now);
        let earned = now.saturating_duration_since(since).as_nanos() / THEN_EVERY.as_nanos();
        if earned > 0 {
            self.left =
                self.left.saturating_add(u32::try_from(earned).unwrap_or(u32::MAX)).min(AT_ONCE);
            self.earned_at = Some(now);
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::eligibility::tests::ms;

    struct Scene {
        pause: Pause,
        start: Instant,
        members: Vec<(Option<Instant>, bool)>,
    }

    impl Scene {
        fn new(members: usize) -> Self {
            Self {
                pause: Pause::default(),
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
        let mut scene = Scene::new(2);
        assert!(!scene.at(0, false) && scene.at(10, true) && scene.at(50, false));
        assert_eq!(scene.pause.deadline(), Some(scene.start + ms(510)));
        scene.repoint(0, 60);
        assert!(scene.at(60, false));
        scene.repoint(1, 70);
        assert!(!scene.at(70, false));
        assert_eq!(scene.pause.deadline(), None);
        // The announcement that comes through another connection, or late, finds nothing to wait
        // for.
        assert!(!scene.at(80, true));
    }

    #[test]
    fn waits_once_for_each_replica_repointed_in_turn() {
        let mut scene = Scene::new(2);
        assert!(scene.at(0, true));
        scene.repoint(0, 40);
        assert!(
            scene.at(40, false) && scene.at(139, false) && !scene.at(140, false),
            "the other one has its turn later"
        );
        assert!(!scene.at(2000, false) && scene.at(3000, true));
        scene.repoint(1, 3050);
        assert!(!scene.at(3050, false));
        // A long synchronisation: the first was re-pointed minutes ago, and follows the new master.
        let mut scene = Scene::new(2);
        scene.members[0].1 = true;
        assert!(scene.at(100_000, true));
        scene.repoint(1, 100_050);
        assert!(!scene.at(100_050, false));
    }

    #[test]
    fn is_bounded_and_not_repeated_without_end() {
        let mut scene = Scene::new(1);
        let mut waited = 0;
        for at in (0..100_000).step_by(50) {
            waited += u32::from(scene.at(at, true));
        }
        // 8 at once and one each ten seconds, each of half a second.
        assert!((80..=180).contains(&waited), "{waited} of 2000 steps");
        assert!(!Scene::new(0).at(0, true), "nobody is about to be re-pointed");
    }
}
