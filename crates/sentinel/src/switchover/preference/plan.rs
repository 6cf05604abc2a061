//! Which priorities to change so that Sentinel promotes the requested replica, and whether it
//! would.
//!
//! Sentinel promotes the replica with the lowest priority above 0
//! (`redis:src/sentinel.c:compareSlavesForPromotion`). The requested one keeps its priority; those
//! that it would not be preferred to are raised by [`RAISE`]. A 0 means that a replica is never
//! promoted, and stays.
//!
//! A raised value contains the one before: any process that finds it knows what to restore, and two
//! that raise the same replica at once set and restore the same values.

use std::net::SocketAddr;
use std::time::Duration;

use crate::NodeAddr;
use crate::switchover::error::SwitchoverError;
use crate::switchover::leader::LeaderView;

/// Added to a priority for a while. Servers accept up to 2,147,483,647; nobody uses such values.
const RAISE: u64 = 1_000_000_000;

/// The value before, if this one was raised for a switchover.
#[must_use]
pub fn former_priority(value: u64) -> Option<u64> {
    value.checked_sub(RAISE)
}

/// Fails if another process has raised this priority, or ended without restoring it.
pub(super) fn refuse_raised(node: &NodeAddr, value: u64) -> Result<(), SwitchoverError> {
    let Some(former) = former_priority(value) else { return Ok(()) };
    let problem = format!(
        "its replica-priority is {value}: another process is switching over to a named replica, \
         or ended without restoring it; repeat it when that is done, or, if nobody is doing that: \
         redis-cli -h {} -p {} CONFIG SET replica-priority {former}",
        node.host, node.port
    );
    Err(SwitchoverError::node(node, problem))
}

/// A temporary change of a node's `replica-priority`; none if both values are the same.
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

/// Sets the values that make `requested` the first choice, and returns its own.
pub(super) fn plan(
    requested: &NodeAddr,
    replicas: &mut [&mut PriorityChange],
) -> Result<u64, SwitchoverError> {
    for it in &*replicas {
        refuse_raised(&it.node, it.from)?;
    }
    let own = replicas.iter().find(|it| it.node == *requested).map(|it| it.from);
    let own =
        own.ok_or_else(|| SwitchoverError::node(requested, "it does not follow the master"))?;
    if own == 0 {
        let problem = "its replica-priority is 0, so that it is never promoted";
        return Err(SwitchoverError::node(requested, problem));
    }
    for it in replicas {
        if it.node != *requested && (1..=own).contains(&it.from) {
            it.to = it.from + RAISE;
        }
    }
    Ok(own)
}

/// Whether the leader would promote the requested replica, or why not yet. Fails where waiting is
/// in vain. `waited`: the time since this process has read the replica's own priority.
pub(super) fn is_established(
    view: &LeaderView,
    leader: &NodeAddr,
    master: &NodeAddr,
    requested: &NodeAddr,
    wanted: u64,
    waited: Duration,
) -> Result<Result<(), String>, SwitchoverError> {
    if view.failing_over {
        return Err(SwitchoverError::FailingOver(leader.clone()));
    }
    if view.master != *master || view.down {
        return Err(SwitchoverError::Unsettled);
    }
    // Raised by another process since this one has read it; an older report may be of a switchover
    // that has ended.
    let mut reported = view.replicas.iter().filter(|it| it.addr == *requested);
    if let Some(own) = reported.find(|it| it.info_age.is_some_and(|age| age < waited)) {
        refuse_raised(requested, own.priority)?;
    }
    Ok(first_choice(view, requested, wanted))
}

/// Whether a failover by this sentinel would promote the requested replica; if not, why.
pub(super) fn first_choice(
    view: &LeaderView,
    requested: &NodeAddr,
    wanted: u64,
) -> Result<(), String> {
    let own = view.replicas.iter().find(|it| it.addr == *requested);
    let own = own.ok_or_else(|| format!("it does not list {requested}"))?;
    if let Some(unfit) = own.unfit {
        return Err(format!("it would not promote {requested}: {unfit}"));
    }
    let age = |age: Option<Duration>| {
        age.map_or(String::new(), |age| {
            format!("; it asks every ten seconds, last {:.1} s ago", age.as_secs_f64())
        })
    };
    if own.priority != wanted {
        let (priority, age) = (own.priority, age(own.info_age));
        return Err(format!("it reports priority {priority} for {requested}, not {wanted}{age}"));
    }
    let rival = view.replicas.iter().find(|it| {
        it.addr != *requested && it.unfit.is_none() && it.priority > 0 && it.priority <= wanted
    });
    rival.map_or(Ok(()), |rival| {
        let (node, priority, age) = (&rival.addr, rival.priority, age(rival.info_age));
        Err(format!("it reports priority {priority} for {node}, not above {wanted}{age}"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::switchover::leader::ListedReplica;

    fn replica(port: u16, priority: u64) -> PriorityChange {
        let dialled = SocketAddr::from(([10, 0, 0, 1], port));
        PriorityChange { node: dialled.into(), dialled, from: priority, to: priority }
    }

    fn plan_all(requested: u16, replicas: &mut [PriorityChange]) -> Result<u64, SwitchoverError> {
        let mut them: Vec<&mut PriorityChange> = replicas.iter_mut().collect();
        plan(&replica(requested, 0).node, &mut them)
    }

    /// Port, value before, value after.
    type Changed = Vec<(u16, u64, u64)>;

    fn planned(priorities: &[u64]) -> Result<(Changed, u64), SwitchoverError> {
        let mut replicas: Vec<PriorityChange> =
            (1..).zip(priorities).map(|(port, priority)| replica(port, *priority)).collect();
        let own = plan_all(1, &mut replicas)?;
        replicas.retain(|it| it.from != it.to);
        Ok((replicas.into_iter().map(|it| (it.node.port, it.from, it.to)).collect(), own))
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
        let refused = plan_all(9, &mut [replica(1, 100)]).unwrap_err().to_string();
        assert!(refused.contains("does not follow"), "{refused}");
    }

    /// What a sentinel reports: ports and priorities.
    fn view(priorities: &[(u16, u64)]) -> LeaderView {
        let listed = |&(port, priority): &(u16, u64)| ListedReplica {
            addr: replica(port, priority).node,
            priority,
            info_age: Some(Duration::from_secs(4)),
            unfit: None,
        };
        LeaderView {
            master: replica(1, 0).node,
            epoch: 6,
            failing_over: false,
            down: false,
            selected: None,
            down_after: None,
            replicas: priorities.iter().map(listed).collect(),
        }
    }

    #[test]
    fn waits_until_the_leader_reports_the_priorities() {
        let node = replica(2, 1).node;
        // The leader's INFO is older than the change.
        let problem = first_choice(&view(&[(2, 100), (3, 1)]), &node, 1).unwrap_err();
        assert!(problem.contains("reports priority 100"), "{problem}");
        assert!(problem.contains("4.0 s ago"), "{problem}");
        let problem = first_choice(&view(&[(2, 1), (3, 1)]), &node, 1).unwrap_err();
        assert!(problem.contains("priority 1 for 10.0.0.1:3, not above 1"), "{problem}");
        assert_eq!(first_choice(&view(&[(2, 1), (3, 1_000_000_001)]), &node, 1), Ok(()));
    }

    #[test]
    fn fails_at_once_when_waiting_is_in_vain() {
        let (node, leader) = (|port| replica(port, 0).node, replica(9, 0).node);
        let after = |seconds, view: &LeaderView| {
            is_established(view, &leader, &node(1), &node(2), 1, Duration::from_secs(seconds))
        };
        let judge = |view: &LeaderView| after(5, view);
        let raised = view(&[(2, 1_000_000_100), (3, 2)]);
        let refused = judge(&raised).unwrap_err().to_string();
        assert!(refused.contains("-p 2 CONFIG SET replica-priority 100"), "{refused}");
        let older = after(3, &raised).unwrap().unwrap_err();
        assert!(older.contains("not 1; it asks every ten seconds"), "{older}");
        let failing = LeaderView { failing_over: true, ..view(&[]) };
        assert_eq!(judge(&failing), Err(SwitchoverError::FailingOver(node(9))));
        let other = LeaderView { master: node(2), ..view(&[]) };
        assert_eq!(judge(&other), Err(SwitchoverError::Unsettled));
        let waiting = judge(&view(&[(2, 100)])).unwrap();
        assert!(waiting.is_err());
    }

    #[test]
    fn counts_only_replicas_that_could_be_promoted() {
        let node = replica(2, 1).node;
        let mut seen = view(&[(2, 1), (3, 1)]);
        assert!(first_choice(&seen, &node, 1).is_err());
        seen.replicas[1].unfit = Some("it considers it down");
        assert_eq!(first_choice(&seen, &node, 1), Ok(()));
        seen.replicas[0].unfit = Some("it considers it down");
        assert!(first_choice(&seen, &node, 1).unwrap_err().contains("down"));
        assert!(first_choice(&view(&[(3, 1)]), &node, 1).unwrap_err().contains("not list"));
        assert_eq!(first_choice(&view(&[(2, 1), (3, 0)]), &node, 1), Ok(()));
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
