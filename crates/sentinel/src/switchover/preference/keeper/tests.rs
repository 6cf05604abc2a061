//! What the keeper decides about answers of the leader and of the nodes. The end-to-end tests of
//! `--to` show that it restores whatever happens.

use std::net::SocketAddr;

use super::*;
use crate::link::login::{Access, Login};
use crate::switchover::leader::ListedReplica;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn node(port: u16) -> NodeAddr {
    SocketAddr::from(([10, 0, 0, 1], port)).into()
}

fn change(port: u16, from: u64, to: u64) -> PriorityChange {
    PriorityChange { node: node(port), dialled: SocketAddr::from(([10, 0, 0, 1], port)), from, to }
}

fn view(priorities: &[(u16, u64)]) -> LeaderView {
    let listed = |&(port, priority): &(u16, u64)| ListedReplica {
        addr: node(port),
        priority,
        info_age: Some(MS(4000)),
        unfit: None,
    };
    LeaderView {
        master: node(1),
        epoch: 6,
        failing_over: false,
        down: false,
        selected: None,
        down_after: None,
        replicas: priorities.iter().map(listed).collect(),
    }
}

/// Replica 2 is requested with priority 1, and 3 was raised from 1.
fn keeper() -> (PriorityKeeper, mpsc::Receiver<Event>) {
    let (events, received) = mpsc::channel(4);
    let login = Login::new(Access { credentials: None, tls: None }, None);
    let keeper = PriorityKeeper {
        name: "s".into(),
        master_name: "m".into(),
        master: node(1),
        sentinel: node(9),
        requested: node(2),
        wanted: 1,
        access: NodeAccess { login, timeout: MS(100) },
        operations: Operations::default(),
        nodes: vec![raised()],
        events,
        reporter: None,
    };
    (keeper, received)
}

fn raised() -> ChangedNode {
    ChangedNode {
        change: change(3, 1, 1_000_000_001),
        connection: None,
        role: None,
        is_raised: true,
        unsure_until: None,
        failed_attempts: 0,
        problem: String::new(),
    }
}

#[test]
fn waits_until_the_leader_reports_the_priorities() {
    let (keeper, _events) = keeper();
    // The leader's INFO is older than the change.
    let problem = keeper.judge(&view(&[(2, 100), (3, 1)])).unwrap().unwrap_err();
    assert!(problem.contains("reports priority 100") && problem.contains("4.0 s ago"), "{problem}");
    let problem = keeper.judge(&view(&[(2, 1), (3, 1)])).unwrap().unwrap_err();
    assert!(problem.contains("priority 1 for 10.0.0.1:3, not above 1"), "{problem}");
    assert_eq!(keeper.judge(&view(&[(2, 1), (3, 1_000_000_001)])), Ok(Ok(())));
}

#[test]
fn fails_at_once_when_another_order_raised_the_replica() {
    let (keeper, _events) = keeper();
    let refused = keeper.judge(&view(&[(2, 1_000_000_100), (3, 2)])).unwrap_err();
    assert!(matches!(refused, SwitchoverError::PrioritiesInUse { node: found, former: 100, .. }
        if found == node(2)));
    let failing = LeaderView { failing_over: true, ..view(&[]) };
    assert_eq!(keeper.judge(&failing), Err(SwitchoverError::FailingOver(node(9))));
    let other = LeaderView { master: node(2), ..view(&[]) };
    assert_eq!(keeper.judge(&other), Err(SwitchoverError::Unsettled));
}

#[test]
fn checks_again_when_a_command_may_still_arrive() {
    let (mut node, now) = (raised(), Instant::now());
    node.unsure_until = Some(now + IN_FLIGHT);
    let restored = || RestoreReply::Restored { is_rewritten: false };
    assert_eq!(node.restored(now, restored()), Err(now + IN_FLIGHT));
    assert!(node.is_raised);
    assert!(node.restored(now + IN_FLIGHT, restored()).is_ok() && !node.is_raised);
}

#[test]
fn tries_again_ever_later_when_a_node_stays_away() {
    let (mut node, now) = (raised(), Instant::now());
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let again = node.restored(now, RestoreReply::Failed("no route".to_owned()));
        pauses.push((again.unwrap_err() - now).as_millis());
    }
    assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 5000, 5000, 5000]);
    assert!(node.is_raised && node.problem == "no route");
}

#[test]
fn leaves_a_value_that_somebody_else_set() {
    let (mut node, now) = (raised(), Instant::now());
    let text = node.restored(now, RestoreReply::Other(42)).unwrap();
    assert!(text.contains("is 42") && !node.is_raised, "{text}");
}

#[test]
fn advises_when_the_file_was_rewritten_before() {
    let (mut node, now) = (raised(), Instant::now());
    let text = node.restored(now, RestoreReply::Restored { is_rewritten: true }).unwrap();
    assert!(text.contains("may contain 1000000001") && text.contains("CONFIG REWRITE"), "{text}");
}

/// The node's address refuses connections.
#[tokio::test(start_paused = true)]
async fn reports_a_node_that_stays_away_and_gives_up() {
    let (mut keeper, mut events) = keeper();
    let operations = keeper.operations.clone();
    if let Some(node) = keeper.nodes.first_mut() {
        node.change.dialled = SocketAddr::from(([127, 0, 0, 1], 1));
    }
    let expected = keeper.raised();
    let kept = tokio::spawn(async move { keeper.restore().await });
    let Some(Event::Settled(left)) = events.recv().await else { panic!("not settled") };
    assert_eq!(left.iter().map(|(it, _)| it.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(operations.snapshot().changed_priorities, expected);
    kept.await.unwrap();
}

#[test]
fn counts_only_replicas_that_could_be_promoted() {
    let mut seen = view(&[(2, 1), (3, 1)]);
    assert!(first_choice(&seen, &node(2), 1).is_err());
    seen.replicas[1].unfit = Some("it considers it down");
    assert_eq!(first_choice(&seen, &node(2), 1), Ok(()));
    seen.replicas[0].unfit = Some("it considers it down");
    assert!(first_choice(&seen, &node(2), 1).unwrap_err().contains("down"));
    assert!(first_choice(&view(&[(3, 1)]), &node(2), 1).unwrap_err().contains("not list"));
    assert_eq!(first_choice(&view(&[(2, 1), (3, 0)]), &node(2), 1), Ok(()));
}
