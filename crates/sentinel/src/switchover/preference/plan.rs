//! Which priorities to change so that Sentinel promotes the requested replica.
//!
//! Sentinel promotes the replica with the lowest priority above 0
//! (`redis:src/sentinel.c:compareSlavesForPromotion`). Usually it is enough to lower the requested
//! one below all others. Where the lowest is 1 already, those with 1 are raised to 2. A 0 means
//! that a replica is never promoted, and stays.

use std::net::SocketAddr;

use crate::NodeAddr;
use crate::switchover::error::SwitchoverError;

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

/// The changes that make `requested` the first choice, and its priority with them.
pub(super) fn plan(
    requested: &NodeAddr,
    candidates: &[Candidate],
) -> Result<(Vec<PriorityChange>, u64), SwitchoverError> {
    let refuse = |problem: &str| SwitchoverError::NotPromotable {
        node: requested.clone(),
        problem: problem.to_owned(),
    };
    let own = candidates
        .iter()
        .find(|it| it.node == *requested)
        .ok_or_else(|| refuse("it does not follow the master"))?;
    if own.priority == 0 {
        return Err(refuse("its replica-priority is 0, so that it is never promoted"));
    }
    let others = || candidates.iter().filter(|it| it.node != *requested && it.priority > 0);
    let Some(lowest) = others().map(|it| it.priority).min() else {
        return Ok((Vec::new(), own.priority));
    };
    if own.priority < lowest {
        return Ok((Vec::new(), own.priority));
    }
    let to = lowest.saturating_sub(1).max(1);
    let change = |it: &Candidate, to| PriorityChange {
        node: it.node.clone(),
        dialled: it.dialled,
        from: it.priority,
        to,
    };
    // Raised first: until the last change the order of the replicas stays a valid one.
    let raised = others().filter(|it| it.priority <= to).map(|it| change(it, to + 1));
    let lowered = (own.priority != to).then(|| change(own, to));
    Ok((raised.chain(lowered).collect(), to))
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
    fn changes_as_few_priorities_as_possible() {
        assert_eq!(planned(&[100, 100, 100]), Ok((vec![(1, 100, 99)], 99)));
        assert_eq!(planned(&[100, 10, 100]), Ok((vec![(1, 100, 9)], 9)));
        assert_eq!(planned(&[5, 10, 100]), Ok((vec![], 5)), "it is the lowest already");
        assert_eq!(planned(&[100, 0, 0]), Ok((vec![], 100)), "it is the only candidate");
        assert_eq!(planned(&[100, 0, 2]), Ok((vec![(1, 100, 1)], 1)));
        assert_eq!(planned(&[100, 1, 1]), Ok((vec![(2, 1, 2), (3, 1, 2), (1, 100, 1)], 1)));
        assert_eq!(planned(&[1, 1, 7]), Ok((vec![(2, 1, 2)], 1)));
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
                prop_assert!(from > 0 && to > 0 && to != from);
                if let Some(it) = after.get_mut(at) {
                    *it = to;
                }
            }
            prop_assert_eq!(after.first(), Some(&own));
            prop_assert!(after.iter().skip(1).all(|it| *it == 0 || *it > own), "{:?}", after);
        }
    }
}
