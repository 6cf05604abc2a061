//! Whatever nodes say and sentinels list, in whatever order: what must never happen, and what must
//! in the end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::tests::{Scene, dialled, follower, ms, node, report};
use crate::{ProbeFailure, Role};

#[derive(Debug, Clone)]
enum Step {
    Time(u64),
    Says(u8, Said),
    Lists(BTreeMap<u8, bool>),
    Calm(bool),
    Candidate(Option<u8>),
    Leads(u8),
    Hush(bool),
    Stall,
}

#[derive(Debug, Clone, Copy)]
enum Said {
    Master,
    Follows(u8, bool),
    At(u64),
    Foreign(u8),
    Fails(ProbeFailure),
}

fn said() -> impl Strategy<Value = Said> {
    let failure = prop_oneof![
        Just(ProbeFailure::Unreachable),
        Just(ProbeFailure::Silent),
        Just(ProbeFailure::TurnedAway),
        Just(ProbeFailure::Denied),
        Just(ProbeFailure::Rejected)
    ];
    prop_oneof![
        2 => Just(Said::Master),
        4 => (1_u8..6, any::<bool>()).prop_map(|(of, connected)| Said::Follows(of, connected)),
        2 => (0_u64..5000).prop_map(Said::At),
        1 => (1_u8..6).prop_map(Said::Foreign),
        2 => failure.prop_map(Said::Fails),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (1_u64..4000).prop_map(Step::Time),
        6 => (1_u8..6, said()).prop_map(|(who, said)| Step::Says(who, said)),
        2 => prop::collection::btree_map(1_u8..6, any::<bool>(), 0..5).prop_map(Step::Lists),
        1 => any::<bool>().prop_map(Step::Calm),
        1 => prop::option::of(1_u8..6).prop_map(Step::Candidate),
        1 => (1_u8..6).prop_map(Step::Leads),
        1 => any::<bool>().prop_map(Step::Hush),
        1 => Just(Step::Stall),
    ]
}

fn apply(scene: &mut Scene, step: Step) {
    match step {
        Step::Time(span) => scene.now += ms(span),
        Step::Says(who, said) => {
            let follows = |of, connected| Ok(report(who, follower(of, connected), 100, "first"));
            let answer = match said {
                Said::Master => Ok(report(who, Role::Master, 100, "first")),
                Said::Follows(of, connected) => follows(of, connected),
                Said::At(offset) => Ok(report(who, follower(scene.leader, true), offset, "first")),
                Said::Foreign(of) => Ok(report(who, follower(of, true), 100, "foreign")),
                Said::Fails(failure) => Err(failure),
            };
            scene.answers.insert(who, answer);
        }
        Step::Lists(listed) => scene.listed = listed,
        Step::Calm(calm) => scene.calm = calm,
        Step::Candidate(candidate) => scene.candidate = candidate,
        Step::Leads(leader) => scene.leader = leader,
        Step::Hush(silent) => scene.silent_sentinels = silent,
        Step::Stall => {
            scene.now += ms(10_000);
            scene.roster.wake(scene.now);
        }
    }
}

proptest! {
    #[test]
    fn readers_are_never_sent_to_a_master_a_candidate_or_a_node_that_does_not_answer(
        steps in prop::collection::vec((step(), any::<bool>()), 1..60),
    ) {
        let mut scene = Scene::new();
        for (step, asks) in steps {
            apply(&mut scene, step);
            let ruling = if asks { scene.ask() } else { scene.judge() };
            let Some(members) = ruling.members else { continue };
            prop_assert!(ruling.barred.contains(&dialled(scene.leader)));
            for member in members {
                prop_assert!(!ruling.barred.contains(&member.dialled));
                prop_assert_ne!(&member.addr, &node(scene.leader));
                prop_assert!(scene.candidate.is_none_or(|it| node(it) != member.addr));
                if asks {
                    let answer = scene.answers.iter().find(|(who, _)| node(**who) == member.addr).map(|(_, it)| it);
                    match answer {
                        Some(Ok(report)) => {
                            let follows = matches!(report.role, Role::Replica { .. });
                            prop_assert!(follows && report.pong);
                        }
                        Some(Err(failure)) => prop_assert_ne!(*failure, ProbeFailure::Denied),
                        None => prop_assert!(false, "{} never answered", member.addr),
                    }
                }
            }
        }
    }

    /// However it was before: once all is well for long enough, everybody is in, and stays in.
    #[test]
    fn when_all_is_well_everybody_is_let_in(steps in prop::collection::vec((step(), any::<bool>()), 0..60)) {
        let mut scene = Scene::new();
        for (step, asks) in steps {
            apply(&mut scene, step);
            if asks { scene.ask() } else { scene.judge() };
        }
        let Scene { leader, candidate, calm, listed, silent_sentinels, answers, .. } = Scene::new();
        (scene.leader, scene.candidate, scene.calm, scene.silent_sentinels) = (leader, candidate, calm, silent_sentinels);
        (scene.listed, scene.answers) = (listed, answers);
        scene.run(5000);
        prop_assert_eq!(scene.members(), [2, 3]);
        prop_assert!(scene.run(5000).changes.is_empty());
    }
}
