//! The pool as its readers see it: individual steps, and arbitrary publications.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;

use crate::{
    ClockReading, Destination, EmptyPool, PoolWriter, ReplicaStatus, ReplyPolicy, TargetRef,
    TargetSource, TargetWriter,
};

fn to(port: u16) -> Destination {
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    Destination { addr, name: addr.to_string().into(), epoch: 1, run_id: None }
}

fn pool(empty: EmptyPool) -> (TargetWriter, PoolWriter, TargetSource) {
    let (master_writer, master) = TargetWriter::new();
    let (writer, pool) = PoolWriter::new(&master, empty);
    (master_writer, writer, pool.into())
}

fn port(source: &TargetSource) -> Option<u16> {
    source.usable_target().map(|held| held.addr().port())
}

#[tokio::test]
async fn passes_every_reply_of_a_replica() {
    let (mut master_writer, mut writer, source) = pool(EmptyPool::Master);
    writer.publish(vec![to(1)]);
    let replica = source.usable_target().expect("a replica");
    assert!(replica.accepts_requests() && replica.may_accept_requests());
    // A replica's reply acknowledges no write, so it passes whatever happens to the master, the
    // lease or the replica.
    master_writer.commit(to(2));
    master_writer.discard_replies();
    writer.renew(ClockReading::now(), Duration::ZERO);
    let begin = std::time::Instant::now();
    while replica.accepts_requests() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the lease never expired");
    }
    assert_eq!(replica.reply_policy(), ReplyPolicy::Pass);
    writer.renew(ClockReading::now(), Duration::from_secs(60));
    assert!(replica.accepts_requests());
    writer.fence(to(1).addr);
    assert_eq!((replica.accepts_requests(), replica.may_accept_requests()), (false, false));
    assert_eq!(replica.reply_policy(), ReplyPolicy::Pass);
    // A master that serves in place of replicas is treated as a master.
    writer.publish(Vec::new());
    master_writer.release();
    let master = source.usable_target().expect("the master");
    master_writer.discard_replies();
    assert_eq!(master.reply_policy(), ReplyPolicy::Drop);
}

#[test]
fn fails_from_failed_connect_to_answer() {
    let (mut writer, _reader) = TargetWriter::new();
    let target = writer.commit(to(1));
    target.doubt();
    assert!(!target.is_failing(), "a client can cause a doubt");
    target.defer();
    assert!(target.is_failing());
    target.record_proof();
    assert!(!target.is_failing());
}

#[tokio::test]
async fn waits_before_publication_and_rejects_when_empty() {
    let (_points, mut writer, source) = pool(EmptyPool::Reject);
    assert!(port(&source).is_none());
    let waiter = {
        let source = source.clone();
        tokio::spawn(async move { source.wait_usable().await.map(|held| held.addr().port()) })
    };
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    writer.publish(vec![to(1)]);
    assert_eq!(waiter.await.expect("waiter"), Some(1));
    writer.publish(Vec::new());
    assert!(source.wait_usable().await.is_none());
}

#[tokio::test]
async fn makes_readers_wait_when_lease_expires() {
    let (_points, mut writer, source) = pool(EmptyPool::Reject);
    writer.publish(vec![to(1)]);
    let held = source.usable_target().expect("a member");
    writer.renew(ClockReading::now(), Duration::ZERO);
    for _ in 0..5000 {
        if held.is_closed() {
            break;
        }
        // The coarse clock ticks every few milliseconds.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(held.is_closed() && port(&source).is_none());
    let waiter = {
        let source = source.clone();
        tokio::spawn(async move { source.wait_usable().await.is_some() })
    };
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    writer.renew(ClockReading::now(), Duration::from_secs(60));
    assert!(waiter.await.expect("waiter"));
}

#[test]
fn keeps_target_of_returning_but_not_of_restarted_member() {
    let (_points, mut writer, source) = pool(EmptyPool::Reject);
    writer.publish(vec![to(1)]);
    let held = source.usable_target().expect("a member");
    writer.publish(vec![to(2)]);
    assert!(held.is_draining() && !held.fence().is_raised());
    writer.publish(vec![to(1), to(2)]);
    assert!(!held.is_draining());
    assert_eq!(port(&source), Some(2), "the returning member's load is known");
    writer.publish(vec![Destination { run_id: Some("another".into()), ..to(1) }]);
    assert!(held.is_draining());
    assert_eq!(writer.targets().len(), 2);
    drop(held);
    writer.publish(vec![to(2)]);
    assert_eq!(writer.targets().len(), 1, "a target without sessions is dropped");
}

#[tokio::test]
async fn fences_members_and_draining_targets_and_wakes() {
    let (_points, mut writer, source) = pool(EmptyPool::Reject);
    writer.publish(vec![to(1)]);
    let draining = source.usable_target().expect("a member");
    writer.publish(vec![Destination { run_id: Some("x".into()), ..to(1) }, to(2)]);
    let changed = source.changed();
    writer.fence(to(1).addr);
    changed.await;
    assert!(draining.fence().is_raised());
    assert_eq!(port(&source), Some(2));
    assert_eq!(writer.targets().len(), 1);
}

#[tokio::test]
async fn serves_master_with_its_own_fence_and_gate_when_empty() {
    let (mut master_writer, mut writer, source) = pool(EmptyPool::Master);
    writer.publish(Vec::new());
    assert!(port(&source).is_none(), "there is no master to fall back to");
    let changed = source.changed();
    let master = master_writer.commit(to(9));
    changed.await;
    writer.publish(Vec::new());
    let held = source.usable_target().expect("the master");
    writer.fence(to(9).addr);
    assert!(!master.fence().is_raised(), "fencing a replica fenced the master");
    master_writer.hold();
    assert!(held.is_closed() && port(&source).is_none());
    master_writer.release();
    writer.publish(vec![to(1)]);
    assert!(held.is_draining() && !master.is_draining(), "writers are not drained");
    assert_eq!(port(&source), Some(1));
    master_writer.commit(to(8));
    assert!(held.fence().is_raised());
}

#[derive(Debug, Clone)]
enum PoolStep {
    Publish(BTreeSet<u16>),
    Fence(u16),
    Acquire,
    Release(usize),
    Commit(u16),
}

fn step() -> impl Strategy<Value = PoolStep> {
    prop_oneof![
        3 => prop::collection::btree_set(1_u16..6, 0..5).prop_map(PoolStep::Publish),
        1 => (1_u16..6).prop_map(PoolStep::Fence),
        6 => Just(PoolStep::Acquire),
        4 => any::<usize>().prop_map(PoolStep::Release),
        1 => (1_u16..6).prop_map(PoolStep::Commit),
    ]
}

proptest! {
    /// For any publications and fences: a reader gets an unfenced member with the fewest sessions;
    /// every session of a fenced node sees its fence raised, every session of a former member is
    /// drained; and with `reject` no reader gets the master.
    #[test]
    fn gives_readers_only_allowed_targets(steps in prop::collection::vec(step(), 1..80)) {
        let (mut master_writer, mut writer, source) = pool(EmptyPool::Reject);
        let mut members: BTreeSet<u16> = BTreeSet::new();
        let mut held_targets: Vec<TargetRef> = Vec::new();
        for step in steps {
            match step {
                PoolStep::Publish(set) => {
                    writer.publish(set.iter().copied().map(to).collect());
                    members = set;
                }
                PoolStep::Fence(port) => {
                    writer.fence(to(port).addr);
                    members.remove(&port);
                    prop_assert!(held_targets
                        .iter()
                        .all(|it| it.addr().port() != port || it.fence().is_raised()));
                }
                PoolStep::Acquire => match source.usable_target() {
                    Some(held) => {
                        let port = held.addr().port();
                        prop_assert!(members.contains(&port));
                        prop_assert!(!held.fence().is_raised() && !held.is_draining());
                        let load = |port: u16| {
                            held_targets
                                .iter()
                                .filter(|it| it.addr().port() == port && !it.fence().is_raised())
                                .count()
                        };
                        let least = members.iter().map(|it| load(*it)).min().unwrap_or(0);
                        prop_assert_eq!(load(port), least);
                        prop_assert_eq!(held.load(), load(port) + 1);
                        held_targets.push(held);
                    }
                    None => prop_assert!(members.is_empty()),
                },
                PoolStep::Release(which) => {
                    if let Some(at) = which.checked_rem(held_targets.len()) {
                        held_targets.swap_remove(at);
                    }
                }
                PoolStep::Commit(port) => drop(master_writer.commit(to(port))),
            }
            for held in &held_targets {
                let member = members.contains(&held.addr().port());
                prop_assert!(held.fence().is_raised() || held.is_draining() != member);
            }
            prop_assert!(writer.targets().len() <= 5 + held_targets.len());
        }
    }
}

#[tokio::test]
async fn holds_requests_but_not_replies_of_readers() {
    let (_points, mut writer, source) = pool(EmptyPool::Reject);
    writer.publish(vec![to(1)]);
    let held = source.usable_target().expect("a member");
    assert!(writer.hold(true) && !writer.hold(true));
    assert!(
        !held.accepts_requests()
            && !held.may_accept_requests()
            && held.reply_policy() == ReplyPolicy::Pass
    );
    let waiter = {
        let source = source.clone();
        tokio::spawn(async move { source.wait_usable().await.is_some() })
    };
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    assert!(
        writer.hold(false) && held.accepts_requests() && held.reply_policy() == ReplyPolicy::Pass
    );
    assert!(waiter.await.expect("waiter"));
}

#[test]
fn publishes_status_to_sessions_of_that_replica_only() {
    let (_points, mut writer, source) = pool(EmptyPool::Reject);
    let process = |run_id: &str| Destination { run_id: Some(run_id.into()), ..to(1) };
    writer.publish(vec![process("old")]);
    let (old, name) = (source.usable_target().expect("a member"), to(1).name);
    assert_eq!(old.replica_status(), None);
    let replica_status = ReplicaStatus { failing_over: true, ..ReplicaStatus::default() };
    writer.set_replica_status("another", Some("old"), replica_status, true);
    assert_eq!((old.replica_status(), old.is_silent()), (None, false));
    writer.set_replica_status(&name, Some("old"), replica_status, false);
    assert_eq!(
        (old.replica_status(), old.is_silent(), old.is_urgent()),
        (Some(replica_status), false, false)
    );
    writer.set_replica_status(
        &name,
        Some("old"),
        ReplicaStatus { about_to_end: true, ..replica_status },
        false,
    );
    assert!(old.is_urgent() && !old.is_silent());
    // Another process answers at the same address, so the old one will never be reported on again.
    writer.publish(vec![process("new")]);
    let new = source.usable_target().expect("a member");
    writer.set_replica_status(&name, Some("new"), replica_status, false);
    assert_eq!((old.is_silent(), new.is_silent()), (true, false));
    writer.set_replica_status(&name, None, replica_status, false);
    assert_eq!(
        (old.is_silent(), new.is_silent()),
        (false, false),
        "an unknown run_id replaces nothing"
    );
}
