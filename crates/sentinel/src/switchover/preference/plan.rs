//! Which priorities to change so that Sentinel promotes the requested replica.
//!
//! Sentinel promotes the replica with the lowest priority above 0
//! (`redis:src/sentinel.c:compareSlavesForPromotion`). The requested one keeps its priority; those
//! that it would not be preferred to are raised by [`RAISE`]. A 0 means that a replica is never
//! promoted, and stays.
//!
//! A raised value contains the one before: any process that finds it knows what to restore, and two
//! that raise the same replica at once set and restore the same values.

use std::net::SocketAddr;

use crate::NodeAddr;
use crate::switchover::error::SwitchoverError;

/// Added to a priority for a while. Servers accept up to 2,147,483,647; nobody uses such values.
const RAISE: u64 = 1_000_000_000;

/// The value before, if this one was raised for a switchover.
#[must_use]
pub fn former_priority(value: u64) -> Option<u64> {
    value.checked_sub(RAISE)
}

/// A temporary change of a node's `replica-priority`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorityChange {
    /// The node.
    pub node: NodeAddr,
    /// The address that is dialled.
    pub dialled: SocketAddr,
    /// The value before, to be restored.
    pub from: u64,
    /// The value during the switchover.
    pub to: u64,
}

impl PriorityChange {
    /// The command that restores the value, for an operator's shell.
    #[must_use]
    pub fn remedy(&self) -> String {
        let (host, port) = (self.dialled.ip(), self.dialled.port());
        format!("redis-cli -h {host} -p {port} CONFIG SET replica-priority {}", self.from)
    }
}

/// A replica with its `replica-priority`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) node: NodeAddr,
    pub(super) dialled: SocketAddr,
    pub(super) priority: u64,
}

/// The changes that make `requested` the first choice, and its priority.
pub(super) fn plan(
    requested: &NodeAddr,
    candidates: &[Candidate],
) -> Result<(Vec<PriorityChange>, u64), SwitchoverError> {
    let refuse = |problem: &str| SwitchoverError::NotPromotable {
        node: requested.clone(),
        problem: problem.to_owned(),
    };
    for it in candidates {
        if let Some(former) = former_priority(it.priority) {
            let (node, value) = (it.node.clone(), it.priority);
            return Err(SwitchoverError::PrioritiesInUse { node, value, former });
        }
    }
    let own = candidates
        .iter()
        .find(|it| it.node == *requested)
        .ok_or_else(|| refuse("it does not follow the master"))?;
    if own.priority == 0 {
        return Err(refuse("its replica-priority is 0, so that it is never promoted"));
    }
    let rivals = candidates
        .iter()
        .filter(|it| it.node != *requested && (1..=own.priority).contains(&it.priority));
    let raised = rivals.map(|it| PriorityChange {
        node: it.node.clone(),
        dialled: it.dialled,
        from: it.priority,
        to: it.priority + RAISE,
    });
    Ok((raised.collect(), own.priority))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate(port: u16, priority: u64) -> Candidate {
        let dialled = SocketAddr::from(([10, 0, 0, 1], port));
        Candidate { node: dialled.into(), dialled, priority }
    }

    /// Port, value before, value after.
    type Changed = Vec<(u16, u64, u64)>;

    fn planned(priorities: &[u64]) -> Result<(Changed, u64), SwitchoverError> {
        let candidates: Vec<Candidate> =
            (1..).zip(priorities).map(|(port, priority)| candidate(port, *priority)).collect();
        let (changes, own) = plan(&candidate(1, 0).node, &candidates)?;
        Ok((changes.into_iter().map(|it| (it.node.port, it.from, it.to)).collect(), own))
    }

    #[test]
    fn raises_only_rivals_of_requested_replica() {
        let raised = |port: u16, value: u64| (port, value, 1_000_000_000 + value);
        assert_eq!(planned(&[100, 100, 100]), Ok((vec![raised(2, 100), raised(3, 100)], 100)));
        assert_eq!(planned(&[100, 10, 101]), Ok((vec![raised(2, 10)], 100)));
        assert_eq!(planned(&[5, 10, 100]), Ok((vec![], 5)), "it is the lowest already");
        assert_eq!(planned(&[100, 0, 0]), Ok((vec![], 100)), "it is the only candidate");
        assert_eq!(planned(&[1, 1, 7]), Ok((vec![raised(2, 1)], 1)));
        assert_eq!(planned(&[999_999_999, 1]), Ok((vec![raised(2, 1)], 999_999_999)));
    }

    /// Whether another order is at work or was killed: the value before is known in either case.
    #[test]
    fn refuses_while_a_replica_is_raised() {
        for priorities in [[1_000_000_100, 100], [100, 1_000_000_100]] {
            let refused = planned(&priorities).unwrap_err().to_string();
            assert!(refused.contains("CONFIG SET replica-priority 100"), "{refused}");
        }
        assert_eq!(former_priority(1_000_000_007), Some(7));
        assert_eq!(former_priority(999_999_999), None);
    }

    #[test]
    fn refuses_a_replica_that_is_never_promoted() {
        let refused = planned(&[0, 100]).unwrap_err().to_string();
        assert!(refused.contains("replica-priority is 0"), "{refused}");
        let refused = plan(&candidate(9, 0).node, &[candidate(1, 100)]).unwrap_err().to_string();
        assert!(refused.contains("does not follow"), "{refused}");
    }

    proptest! {
        #[test]
        fn makes_requested_replica_the_only_first_choice(
            priorities in proptest::collection::vec(0_u64..4, 1..6),
        ) {
            let Ok((changes, own)) = planned(&priorities) else {
                prop_assert_eq!(priorities.first(), Some(&0));
                return Ok(());
            };
            let mut after = priorities.clone();
            for (port, from, to) in changes {
                let at = usize::from(port) - 1;
                prop_assert_eq!(priorities.get(at), Some(&from));
                prop_assert!(from > 0 && former_priority(to) == Some(from));
                prop_assert!(i32::try_from(to).is_ok());
                if let Some(it) = after.get_mut(at) {
                    *it = to;
                }
            }
            prop_assert_eq!(after.first(), Some(&own));
            prop_assert!(after.iter().skip(1).all(|it| *it == 0 || *it > own), "{:?}", after);
        }
    }
}
