//! Orders to follow a node, in arbitrary streams of events.

use proptest::prelude::*;

use super::streams::{Happening, ProbeOutcome, happening, letter, rules};
use super::{Oracle, World, ms, node};
use crate::Notice;
use crate::machine::{FollowRefusal, MachineAction, OverrideNews};

/// Whether this action is no news of an order, or the refusal of one because of a majority.
pub(super) fn is_refused(action: &MachineAction) -> bool {
    match action {
        MachineAction::Override(OverrideNews::Answered(_, answer)) => {
            *answer == Err(FollowRefusal::MajorityAnswers)
        }
        MachineAction::Override(OverrideNews::Ended(..)) => false,
        _ => true,
    }
}

proptest! {
    /// With all sentinels but one lost, whatever that one reports: an order for a master is
    /// carried out, and only the operator, the time limit and the node itself change the target.
    #[test]
    fn follows_orders_against_a_single_sentinel(
        rules in rules(), wanted in letter(),
        stream in prop::collection::vec(happening(false), 1..200),
    ) {
        let mut world = World::new(rules.clone(), Oracle::new(rules).of_electorate(3));
        world.boot();
        world.wait(ms(20_000), |_| {});
        world.open.clear();
        world.happens(&Happening::Follow { addr: wanted, millis: 3_600_000, force: true });
        let asked = world.open.iter().position(|(it, _)| *it == node(wanted));
        let which = asked.expect("the node is queried");
        let answer = ProbeOutcome::Promoted;
        world.happens(&Happening::Answer { which, answer, keep: false });
        prop_assert!(world.machine.committed().is_some_and(|it| it.addr == node(wanted)));
        prop_assert!(world.machine.override_in_force().is_some() && !world.machine.is_holding());
        world.log.clear();
        for happening in &stream {
            match happening {
                Happening::View { from, .. } if *from != 1 => {}
                Happening::Notice { notice: Notice::ConfigUpdateFrom { .. }, .. } => {}
                Happening::Notice { from, .. } if from.is_some_and(|from| from != 1) => {}
                Happening::Follow { .. } | Happening::Unfollow => {}
                _ => world.happens(happening),
            }
        }
        prop_assert!(world.machine.override_in_force().is_some());
        prop_assert!(world.machine.committed().is_some_and(|it| it.addr == node(wanted)));
    }
}
