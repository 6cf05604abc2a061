//! Plans how many sessions each member of a pool should give up.
//!
//! New sessions go to the least loaded member, so the load stays even while the members stay. When
//! a member returns, all existing sessions are on the other members and stay there as long as their
//! clients keep the connection. So the most loaded member gives up sessions to the least loaded
//! one, a bounded number per second, until no two members differ by more than one.
//!
//! Nothing is moved while anything else moves sessions: the members must have been the same, and
//! unequal, for a while. A plan is only a permit. The session that takes it compares the two loads
//! again with itself counted on both sides, so simultaneous moves never reverse an inequality.

use std::time::{Duration, Instant};

use crate::Generation;

/// The members must have been the same, and unequal, for this long. Draining a member spreads its
/// sessions over a second.
const SETTLE: Duration = Duration::from_secs(3);

/// Interval between two grants of permits.
const GRANT_INTERVAL: Duration = Duration::from_secs(1);

/// The longest interval if no session could use its permit: each grant wakes every session of the
/// pool.
const MAX_GRANT_INTERVAL: Duration = Duration::from_secs(30);

/// See the module's header.
#[derive(Debug)]
pub(crate) struct LoadBalancer {
    members: Vec<Generation>,
    unequal_since: Option<Instant>,
    next_at: Option<Instant>,
    pause: Duration,
    granted: usize,
}

impl Default for LoadBalancer {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            unequal_since: None,
            next_at: None,
            pause: GRANT_INTERVAL,
            granted: 0,
        }
    }
}

impl LoadBalancer {
    /// How many sessions each member should give up now, in the order of `members`, a list of
    /// generations and loads; `None` if nothing changes. `max_moves` is per second. `calm`: nothing
    /// else is moving sessions. `left`: permits that no session has taken.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        members: &[(Generation, usize)],
        max_moves: usize,
        calm: bool,
        left: usize,
    ) -> Option<Vec<usize>> {
        let same = self.members.iter().eq(members.iter().map(|(generation, _)| generation));
        let loads: Vec<usize> = members.iter().map(|(_, load)| *load).collect();
        if !same || !calm || max_moves == 0 || !are_unequal(&loads) {
            if !same {
                self.members = members.iter().map(|(generation, _)| *generation).collect();
            }
            (self.unequal_since, self.next_at, self.pause) = (None, None, GRANT_INTERVAL);
            let granted = std::mem::take(&mut self.granted);
            return (granted > 0).then(|| vec![0; members.len()]);
        }
        let since = *self.unequal_since.get_or_insert(now);
        if now.saturating_duration_since(since) < SETTLE || self.next_at.is_some_and(|at| now < at)
        {
            return None;
        }
        let unused = self.granted > 0 && left >= self.granted;
        self.pause = if unused { (self.pause * 2).min(MAX_GRANT_INTERVAL) } else { GRANT_INTERVAL };
        self.next_at = Some(now + self.pause);
        let moves = plan_moves(&loads, max_moves);
        self.granted = moves.iter().sum();
        Some(moves)
    }
}

fn are_unequal(loads: &[usize]) -> bool {
    let (least, max_moves) = (loads.iter().min(), loads.iter().max());
    least.zip(max_moves).is_some_and(|(least, max_moves)| max_moves - least >= 2)
}

/// How many sessions each member should give up, `max_moves` in total, to make the largest
/// difference as small as possible.
fn plan_moves(loads: &[usize], max_moves: usize) -> Vec<usize> {
    let (mut loads, mut moves) = (loads.to_vec(), vec![0; loads.len()]);
    for _ in 0..max_moves {
        let fullest = (0..loads.len()).max_by_key(|at| loads.get(*at));
        let emptiest = (0..loads.len()).min_by_key(|at| loads.get(*at));
        let Some((from, to)) = fullest.zip(emptiest).filter(|_| are_unequal(&loads)) else { break };
        if let (Some(load), Some(count)) = (loads.get_mut(from), moves.get_mut(from)) {
            (*load, *count) = (*load - 1, *count + 1);
        }
        if let Some(load) = loads.get_mut(to) {
            *load += 1;
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members(loads: &[usize]) -> Vec<(Generation, usize)> {
        loads
            .iter()
            .enumerate()
            .map(|(number, load)| (Generation::new(number as u64 + 1), *load))
            .collect()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn moves_sessions_until_loads_differ_by_one() {
        assert_eq!(plan_moves(&[16, 0], 100), [8, 0]);
        assert_eq!(plan_moves(&[16, 0], 3), [3, 0]);
        assert_eq!(plan_moves(&[2, 2, 2, 0], 100).iter().sum::<usize>(), 1);
        assert_eq!(plan_moves(&[5, 4, 4], 100), [0, 0, 0]);
        assert_eq!((plan_moves(&[], 5), plan_moves(&[7], 5)), (vec![], vec![0]));
    }

    #[test]
    fn waits_until_members_have_settled() {
        let (mut balance, start) = (LoadBalancer::default(), Instant::now());
        let both = members(&[16, 0]);
        assert_eq!(balance.step(start, &both, 10, true, 0), None, "the members are not settled");
        assert_eq!(balance.step(start + ms(10), &both, 10, true, 0), None);
        assert_eq!(
            balance.step(start + ms(2000), &both, 10, false, 0),
            None,
            "a failover restarts the wait"
        );
        assert_eq!(balance.step(start + ms(2010), &both, 10, true, 0), None);
        assert_eq!(balance.step(start + ms(5000), &both, 10, true, 0), None);
        assert_eq!(balance.step(start + ms(5010), &both, 5, true, 0), Some(vec![5, 0]));
        assert_eq!(
            balance.step(start + ms(5500), &members(&[11, 5]), 5, true, 0),
            None,
            "five per second"
        );
        assert_eq!(
            balance.step(start + ms(6010), &members(&[11, 5]), 5, true, 0),
            Some(vec![3, 0])
        );
        assert_eq!(
            balance.step(start + ms(7010), &members(&[8, 8]), 5, true, 0),
            Some(vec![0, 0]),
            "permits are withdrawn"
        );
        assert_eq!(balance.step(start + ms(8010), &members(&[8, 8]), 5, true, 0), None);
        assert_eq!(balance.step(start + ms(99_000), &both, 0, true, 0), None, "switched off");
    }

    #[test]
    fn backs_off_when_no_session_can_move() {
        let (mut balance, mut now) = (LoadBalancer::default(), Instant::now());
        let (both, mut granted, mut asked) = (members(&[16, 0]), 0, 0);
        for _ in 0..600 {
            now += ms(500);
            if let Some(moves) = balance.step(now, &both, 4, true, granted) {
                granted = moves.iter().sum();
                asked += 1;
            }
        }
        assert!((8..=16).contains(&asked), "asked {asked} times in five minutes");
    }

    proptest! {
        #[test]
        fn evens_loads_within_one_and_never_overshoots(
            loads in prop::collection::vec(0_usize..60, 0..8),
            max_moves in 0_usize..200,
        ) {
            let moves = plan_moves(&loads, max_moves);
            prop_assert_eq!(moves.len(), loads.len());
            let total: usize = loads.iter().sum();
            let low = total.checked_div(loads.len()).unwrap_or(0);
            for (load, count) in loads.iter().zip(&moves) {
                prop_assert!(*count == 0 || load - count >= low, "a member gives up too many");
            }
            // Apply the moves as sessions do: one at a time, from a permitted member to the least
            // loaded one.
            let (mut after, mut left) = (loads.clone(), moves.clone());
            while let Some(from) = (0..left.len()).find(|at| left[*at] > 0) {
                left[from] -= 1;
                let to = (0..after.len()).min_by_key(|at| after[*at]).unwrap();
                if after[from] >= after[to] + 2 {
                    after[from] -= 1;
                    after[to] += 1;
                }
            }
            prop_assert_eq!(after.iter().sum::<usize>(), total);
            let enough = moves.iter().sum::<usize>() < max_moves;
            prop_assert!(!enough || !are_unequal(&after), "{:?} became {:?}", loads, after);
        }

        /// For any sequence of loads: nothing moves when the load is even, and never more than the
        /// rate.
        #[test]
        fn moves_at_most_the_rate_and_nothing_when_even(
            steps in prop::collection::vec(
                (0_u64..1500, 0_usize..30, 0_usize..30, any::<bool>()),
                1..60,
            ),
            rate in 0_usize..20,
        ) {
            let (mut balance, start, mut at) = (LoadBalancer::default(), Instant::now(), 0);
            let (mut allowed, mut first, mut granted) = (0_usize, None, 0);
            for (later, one, other, calm) in steps {
                at += later;
                let unequal = one.abs_diff(other) >= 2;
                let loads = members(&[one, other]);
                if let Some(moves) = balance.step(start + ms(at), &loads, rate, calm, 0) {
                    granted = moves.iter().sum();
                    prop_assert!(granted == 0 || (calm && unequal));
                    allowed += granted;
                    first = first.or((granted > 0).then_some(at));
                }
                prop_assert!(granted == 0 || (calm && unequal), "permits outlive their reason");
            }
            if let Some(first) = first {
                prop_assert!(allowed as u64 <= (rate as u64) * ((at - first) / 1000 + 1));
            }
        }
    }
}
