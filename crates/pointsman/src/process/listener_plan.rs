//! Decides what a reload does with each listening address: keep it, move it to another service,
//! open it, or close it.
//!
//! An address belongs to a listener set, such as `mymaster` or `mymaster/replicas`. One that
//! changes its set keeps its sockets, so that no client is refused, and the sessions of the former
//! set leave. Port 0 names no address, so it never moves.

use proxy::ListenAddr;

/// An address with the name of its listener set.
pub(crate) type SetAddress = (String, ListenAddr);

/// What to do for one wanted address. Numbers are positions in the list of running addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerStep {
    /// It is served by its set already.
    Keep(usize),
    /// Another set serves it: its sockets move.
    Move(usize),
    /// It has to be bound.
    Open,
}

/// The plan for all addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListenerPlan {
    /// One step for each wanted address, in order.
    pub(crate) steps: Vec<ListenerStep>,
    /// The running addresses to close; `true` if the sockets move to another set.
    pub(crate) closed: Vec<(usize, bool)>,
}

/// Plans the change from the `running` addresses to the `wanted` ones.
pub(crate) fn plan(running: &[SetAddress], wanted: &[SetAddress]) -> ListenerPlan {
    let mut used = vec![false; running.len()];
    let mut take = |is: &dyn Fn(&SetAddress) -> bool| {
        let (number, taken) = used
            .iter_mut()
            .enumerate()
            .find(|(number, used)| !**used && running.get(*number).is_some_and(is))?;
        *taken = true;
        Some(number)
    };
    // All that stay first: an address that moves must not take the place of one that stays.
    let mut steps: Vec<Option<ListenerStep>> =
        wanted.iter().map(|it| take(&|other| other == it).map(ListenerStep::Keep)).collect();
    for ((_, addr), step) in wanted.iter().zip(&mut steps) {
        if step.is_none() && addr.tcp().is_none_or(|addr| addr.port() != 0) {
            *step = take(&|(_, other)| other == addr).map(ListenerStep::Move);
        }
    }
    let steps: Vec<ListenerStep> =
        steps.into_iter().map(|step| step.unwrap_or(ListenerStep::Open)).collect();
    let closed = (0..running.len()).filter(|at| !steps.contains(&ListenerStep::Keep(*at)));
    let closed = closed.map(|at| (at, steps.contains(&ListenerStep::Move(at)))).collect();
    ListenerPlan { steps, closed }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ListenerStep::{Keep, Move, Open};
    use super::*;

    fn list(entries: &[(&str, &str)]) -> Vec<SetAddress> {
        let entry = |(set, addr): &(&str, &str)| {
            ((*set).to_owned(), ListenAddr::parse(addr).expect("an address"))
        };
        entries.iter().map(entry).collect()
    }

    fn planned(
        running: &[(&str, &str)],
        wanted: &[(&str, &str)],
    ) -> (Vec<ListenerStep>, Vec<(usize, bool)>) {
        let plan = plan(&list(running), &list(wanted));
        (plan.steps, plan.closed)
    }

    #[test]
    fn keeps_opens_and_closes_addresses() {
        let (one, two) = ("127.0.0.1:1", "127.0.0.1:2");
        assert_eq!(planned(&[("a", one)], &[("a", one)]), (vec![Keep(0)], vec![]));
        assert_eq!(planned(&[], &[("a", one)]), (vec![Open], vec![]));
        assert_eq!(planned(&[("a", one)], &[]), (vec![], vec![(0, false)]));
        assert_eq!(planned(&[("a", one)], &[("a", two)]), (vec![Open], vec![(0, false)]));
    }

    #[test]
    fn moves_address_between_services_and_to_readers() {
        let (one, two) = ("127.0.0.1:1", "127.0.0.1:2");
        let swap = planned(&[("a", one), ("b", two)], &[("a", two), ("b", one)]);
        assert_eq!(swap, (vec![Move(1), Move(0)], vec![(0, true), (1, true)]));
        let renamed = planned(&[("a", one)], &[("c", one)]);
        assert_eq!(renamed, (vec![Move(0)], vec![(0, true)]));
        let readers = planned(&[("a", one), ("a", two)], &[("a", one), ("a/replicas", two)]);
        assert_eq!(readers, (vec![Keep(0), Move(1)], vec![(1, true)]));
        let path = "unix:/run/a.sock";
        assert_eq!(planned(&[("a", path)], &[("b", path)]).0, [Move(0)]);
    }

    #[test]
    fn never_moves_port_0() {
        let any = "127.0.0.1:0";
        assert_eq!(planned(&[("a", any)], &[("b", any)]), (vec![Open], vec![(0, false)]));
        let more = planned(&[("a", any)], &[("a", any), ("a", any)]);
        assert_eq!(more, (vec![Keep(0), Open], vec![]));
        assert_eq!(planned(&[("a", any), ("a", any)], &[("a", any)]).1, [(1, false)]);
    }

    fn any_list() -> impl Strategy<Value = Vec<SetAddress>> {
        let entry = (0_u8..3, 0_u16..4).prop_map(|(set, port)| {
            (
                format!("set{set}"),
                ListenAddr::from(std::net::SocketAddr::from(([127, 0, 0, 1], port))),
            )
        });
        prop::collection::vec(entry, 0..6)
    }

    proptest! {
        /// Every wanted address has one step, every running one at most one use, and whatever is
        /// not kept is closed.
        #[test]
        fn uses_each_socket_once(running in any_list(), wanted in any_list()) {
            let plan = plan(&running, &wanted);
            prop_assert_eq!(plan.steps.len(), wanted.len());
            let mut used = std::collections::BTreeSet::new();
            for (step, (set, addr)) in plan.steps.iter().zip(&wanted) {
                if let Keep(at) | Move(at) = step {
                    prop_assert!(used.insert(*at));
                    prop_assert_eq!(&running[*at].1, addr);
                    prop_assert_eq!(running[*at].0 == *set, matches!(step, Keep(_)));
                }
            }
            for at in 0..running.len() {
                let kept = plan.steps.contains(&Keep(at));
                let closed = plan.closed.iter().find(|(it, _)| *it == at);
                prop_assert_eq!(kept, closed.is_none());
                if let Some((_, moved)) = closed {
                    prop_assert_eq!(*moved, plan.steps.contains(&Move(at)));
                }
            }
        }
    }
}
