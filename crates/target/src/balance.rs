//! Which members of a pool are to give up sessions, and how many: decides, and nothing else.
//!
//! New sessions go where fewest are, so shares are equal as long as members stay. After one was
//! away, all sessions that there were are on the others, for as long as their clients keep their
//! connections. So the fullest member gives up sessions to the emptiest, a bounded number per
//! second, until no two members differ by more than one.
//!
//! Nothing is moved while anything else moves sessions: the members have to be the same, and
//! unequal, for a while. What is planned is only a permission. The session that takes it compares
//! the two loads again with itself counted on both sides, so that moves at the same time never
//! reverse an inequality.
//!
//! Deliberately absent: which sessions move.

use std::time::{Duration, Instant};

use crate::Generation;

/// The members must have been the same, and unequal, for this long. A dismissal spreads its
/// sessions over a second.
const SETTLE: Duration = Duration::from_secs(3);

/// Permissions are given this often.
const EVERY: Duration = Duration::from_secs(1);

/// If no session could use them, ever more seldom, up to this: each time wakes every session of the
/// pool.
const SELDOM: Duration = Duration::from_secs(30);

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Balance {
    members: Vec<Generation>,
    unequal_since: Option<Instant>,
    next_at: Option<Instant>,
    pause: Duration,
    given: usize,
}

impl Default for Balance {
    fn default() -> Self {
        Self { members: Vec::new(), unequal_since: None, next_at: None, pause: EVERY, given: 0 }
    }
}

impl Balance {
    /// How many sessions each member is to give up now, in the order of `members`, which are given
    /// with their loads; `None` if nothing changes. `most` is per second. `calm`: nothing but this
    /// moves sessions. `left`: permissions that nobody took.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        members: &[(Generation, usize)],
        (most, calm): (usize, bool),
        left: usize,
    ) -> Option<Vec<usize>> {
        let same = self.members.iter().eq(members.iter().map(|(generation, _)| generation));
        let loads: Vec<usize> = members.iter().map(|(_, load)| *load).collect();
        if !same || !calm || most == 0 || !are_unequal(&loads) {
            if !same {
                self.members = members.iter().map(|(generation, _)| *generation).collect();
            }
            (self.unequal_since, self.next_at, self.pause) = (None, None, EVERY);
            let given = std::mem::take(&mut self.given);
            return (given > 0).then(|| vec![0; members.len()]);
        }
        let since = *self.unequal_since.get_or_insert(now);
        if now.saturating_duration_since(since) < SETTLE || self.next_at.is_some_and(|at| now < at)
        {
            return None;
        }
        let unused = self.given > 0 && left >= self.given;
        self.pause = if unused { (self.pause * 2).min(SELDOM) } else { EVERY };
        self.next_at = Some(now + self.pause);
        let moves = plan(&loads, most);
        self.given = moves.iter().sum();
        Some(moves)
    }
}

fn are_unequal(loads: &[usize]) -> bool {
    let (least, most) = (loads.iter().min(), loads.iter().max());
    least.zip(most).is_some_and(|(least, most)| most - least >= 2)
}

/// How many sessions each is to give up, `most` in all, so that the greatest difference becomes as
/// small as it can.
fn plan(loads: &[usize], most: usize) -> Vec<usize> {
    let (mut loads, mut moves) = (loads.to_vec(), vec![0; loads.len()]);
    for _ in 0..most {
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
    fn moves_sessions_until_shares_differ_by_one() {
        assert_eq!(plan(&[16, 0], 100), [8, 0]);
        assert_eq!(plan(&[16, 0], 3), [3, 0]);
        assert_eq!(plan(&[2, 2, 2, 0], 100).iter().sum::<usize>(), 1);
        assert_eq!(plan(&[5, 4, 4], 100), [0, 0, 0]);
        assert_eq!((plan(&[], 5), plan(&[7], 5)), (vec![], vec![0]));
    }

    #[test]
    fn waits_until_members_have_settled() {
        let (mut balance, start) = (Balance::default(), Instant::now());
        let both = members(&[16, 0]);
        assert_eq!(balance.step(start, &both, (10, true), 0), None, "the members are new");
        assert_eq!(balance.step(start + ms(10), &both, (10, true), 0), None);
        assert_eq!(
            balance.step(start + ms(2000), &both, (10, false), 0),
            None,
            "a failover begins the wait anew"
        );
        assert_eq!(balance.step(start + ms(2010), &both, (10, true), 0), None);
        assert_eq!(balance.step(start + ms(5000), &both, (10, true), 0), None);
        assert_eq!(balance.step(start + ms(5010), &both, (5, true), 0), Some(vec![5, 0]));
        assert_eq!(
            balance.step(start + ms(5500), &members(&[11, 5]), (5, true), 0),
            None,
            "five per second"
        );
        assert_eq!(
            balance.step(start + ms(6010), &members(&[11, 5]), (5, true), 0),
            Some(vec![3, 0])
        );
        assert_eq!(
            balance.step(start + ms(7010), &members(&[8, 8]), (5, true), 0),
            Some(vec![0, 0]),
            "taken back"
        );
        assert_eq!(balance.step(start + ms(8010), &members(&[8, 8]), (5, true), 0), None);
        assert_eq!(balance.step(start + ms(99_000), &both, (0, true), 0), None, "switched off");
    }

    #[test]
    fn asks_ever_more_seldom_where_no_session_can_move() {
        let (mut balance, mut now) = (Balance::default(), Instant::now());
        let (both, mut given, mut asked) = (members(&[16, 0]), 0, 0);
        for _ in 0..600 {
            now += ms(500);
            if let Some(moves) = balance.step(now, &both, (4, true), given) {
                given = moves.iter().sum();
                asked += 1;
            }
        }
        assert!((8..=16).contains(&asked), "asked {asked} times in five minutes");
    }

    proptest! {
        #[test]
        fn plans_end_within_one_and_never_overshoot(
            loads in prop::collection::vec(0_usize..60, 0..8),
            most in 0_usize..200,
        ) {
            let moves = plan(&loads, most);
            prop_assert_eq!(moves.len(), loads.len());
            let total: usize = loads.iter().sum();
            let low = total.checked_div(loads.len()).unwrap_or(0);
            for (load, count) in loads.iter().zip(&moves) {
                prop_assert!(*count == 0 || load - count >= low, "one gives up too many");
            }
            // As sessions do it: one after the other, from where it is allowed to where fewest are.
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
            let enough = moves.iter().sum::<usize>() < most;
            prop_assert!(!enough || !are_unequal(&after), "{:?} became {:?}", loads, after);
        }

        /// Whatever comes and goes: with equal shares nobody is moved, and never more than the
        /// rate.
        #[test]
        fn moves_no_more_than_the_rate_and_nobody_when_equal(
            steps in prop::collection::vec((0_u64..1500, 0_usize..30, 0_usize..30, any::<bool>()), 1..60),
            rate in 0_usize..20,
        ) {
            let (mut balance, start, mut at) = (Balance::default(), Instant::now(), 0);
            let (mut allowed, mut first, mut given) = (0_usize, None, 0);
            for (later, one, other, calm) in steps {
                at += later;
                let unequal = one.abs_diff(other) >= 2;
                if let Some(moves) = balance.step(start + ms(at), &members(&[one, other]), (rate, calm), 0) {
                    given = moves.iter().sum();
                    prop_assert!(given == 0 || (calm && unequal));
                    allowed += given;
                    first = first.or((given > 0).then_some(at));
                }
                prop_assert!(given == 0 || (calm && unequal), "permissions outlive their reason");
            }
            if let Some(first) = first {
                prop_assert!(allowed as u64 <= (rate as u64) * ((at - first) / 1000 + 1));
            }
        }
    }
}
