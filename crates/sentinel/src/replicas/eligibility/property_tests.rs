//! Properties of eligibility for arbitrary answers of nodes and views of sentinels, in any order:
//! what must never happen, and what must happen in the end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::tests::{TestCluster, dialled, follower, ms, node, report};
use crate::{ProbeFailure, Role};

#[derive(Debug, Clone)]
enum ClusterStep {
    Time(u64),
    Says(u8, NodeAnswer),
    Listed(BTreeMap<u8, bool>),
    Calm(bool),
    Candidate(Option<u8>),
    Leads(u8),
    MuteSentinels(bool),
    Stall,
}

#[derive(Debug, Clone, Copy)]
enum NodeAnswer {
    Master,
    Follows(u8, bool),
    At(u64),
    Foreign(u8),
    Fails(ProbeFailure),
}

fn node_answer() -> impl Strategy<Value = NodeAnswer> {
    let failure = prop_oneof![
        Just(ProbeFailure::Unreachable),
        Just(ProbeFailure::Unresponsive),
        Just(ProbeFailure::ConnectionRejected),
        Just(ProbeFailure::Busy),
        Just(ProbeFailure::Denied),
        Just(ProbeFailure::UnusableAddress)
    ];
    prop_oneof![
        2 => Just(NodeAnswer::Master),
        4 => (1_u8..6, any::<bool>())
            .prop_map(|(of, connected)| NodeAnswer::Follows(of, connected)),
        2 => (0_u64..5000).prop_map(NodeAnswer::At),
        1 => (1_u8..6).prop_map(NodeAnswer::Foreign),
        2 => failure.prop_map(NodeAnswer::Fails),
    ]
}

fn step() -> impl Strategy<Value = ClusterStep> {
    prop_oneof![
        5 => (1_u64..4000).prop_map(ClusterStep::Time),
        6 => (1_u8..6, node_answer())
            .prop_map(|(who, node_answer)| ClusterStep::Says(who, node_answer)),
        2 => prop::collection::btree_map(1_u8..6, any::<bool>(), 0..5)
            .prop_map(ClusterStep::Listed),
        1 => any::<bool>().prop_map(ClusterStep::Calm),
        1 => prop::option::of(1_u8..6).prop_map(ClusterStep::Candidate),
        1 => (1_u8..6).prop_map(ClusterStep::Leads),
        1 => any::<bool>().prop_map(ClusterStep::MuteSentinels),
        1 => Just(ClusterStep::Stall),
    ]
}

fn apply(cluster: &mut TestCluster, step: ClusterStep) {
    match step {
        ClusterStep::Time(span) => cluster.now += ms(span),
        ClusterStep::Says(who, node_answer) => {
            let follows = |of, connected| Ok(report(who, follower(of, connected), 100, "first"));
            let answer = match node_answer {
                NodeAnswer::Master => Ok(report(who, Role::Master, 100, "first")),
                NodeAnswer::Follows(of, connected) => follows(of, connected),
                NodeAnswer::At(offset) => {
                    Ok(report(who, follower(cluster.master, true), offset, "first"))
                }
                NodeAnswer::Foreign(of) => Ok(report(who, follower(of, true), 100, "foreign")),
                NodeAnswer::Fails(failure) => Err(failure),
            };
            cluster.answers.insert(who, answer);
        }
        ClusterStep::Listed(listed) => cluster.listed = listed,
        ClusterStep::Calm(stable) => cluster.stable = stable,
        ClusterStep::Candidate(candidate) => cluster.candidate = candidate,
        ClusterStep::Leads(master) => cluster.master = master,
        ClusterStep::MuteSentinels(silent) => cluster.silent_sentinels = silent,
        ClusterStep::Stall => {
            cluster.now += ms(10_000);
            cluster.eligibility.on_resume(cluster.now);
        }
    }
}

proptest! {
    #[test]
    fn never_sends_readers_to_master_candidate_or_mute_node(
        steps in prop::collection::vec((step(), any::<bool>()), 1..60),
    ) {
        let mut cluster = TestCluster::new();
        for (step, asks) in steps {
            apply(&mut cluster, step);
            let update = if asks { cluster.ask() } else { cluster.evaluate() };
            let Some(members) = update.members else { continue };
            prop_assert!(update.fenced.contains(&dialled(cluster.master)));
            for member in members {
                prop_assert!(!update.fenced.contains(&member.dialled));
                prop_assert_ne!(&member.addr, &node(cluster.master));
                prop_assert!(cluster.candidate.is_none_or(|it| node(it) != member.addr));
                if asks {
                    let mut answers = cluster.answers.iter();
                    let answer = answers.find(|(who, _)| node(**who) == member.addr);
                    match answer.map(|(_, it)| it) {
                        Some(Ok(report)) => {
                            let follows = matches!(report.role, Role::Replica { .. });
                            prop_assert!(follows && report.ping.is_ready());
                        }
                        Some(Err(failure)) => prop_assert_ne!(*failure, ProbeFailure::Denied),
                        None => prop_assert!(false, "{} never answered", member.addr),
                    }
                }
            }
        }
    }

    /// From any state: once all is well for long enough, every replica is eligible, and stays so.
    #[test]
    fn admits_all_replicas_when_all_is_well(
        steps in prop::collection::vec((step(), any::<bool>()), 0..60),
    ) {
        let mut cluster = TestCluster::new();
        for (step, asks) in steps {
            apply(&mut cluster, step);
            if asks { cluster.ask() } else { cluster.evaluate() };
        }
        let well = TestCluster::new();
        (cluster.master, cluster.candidate) = (well.master, well.candidate);
        (cluster.stable, cluster.silent_sentinels) = (well.stable, well.silent_sentinels);
        (cluster.listed, cluster.answers) = (well.listed, well.answers);
        cluster.run(5000);
        prop_assert_eq!(cluster.members(), [2, 3]);
        prop_assert!(cluster.run(5000).changes.is_empty());
    }
}
