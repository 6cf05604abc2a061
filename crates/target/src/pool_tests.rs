//! A pool as its readers see it, step by step and under arbitrary publications.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;

use crate::{
    Destination, Empty, Look, Moment, PoolWriter, Replies, TargetRef, TargetSource, TargetWriter,
};

fn to(port: u16) -> Destination {
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    Destination { addr, name: addr.to_string().into(), epoch: 1, run_id: None }
}

fn pool(empty: Empty) -> (TargetWriter, PoolWriter, TargetSource) {
    let (points, route) = TargetWriter::new();
    let (writer, pool) = PoolWriter::new(&route, empty);
    (points, writer, pool.into())
}

fn port(way: &TargetSource) -> Option<u16> {
    way.open_target().map(|ride| ride.addr().port())
}

#[tokio::test]
async fn lets_every_reply_of_a_replica_pass() {
    let (mut points, mut writer, way) = pool(Empty::Master);
    writer.publish(vec![to(1)]);
    let replica = way.open_target().expect("a replica");
    assert!(replica.takes_requests() && replica.expects_requests());
    // It acknowledges no write, whatever becomes of the master, of the writer's word, and of
    // itself.
    points.commit(to(2));
    points.drop_replies();
    writer.renew(Moment::now(), Duration::ZERO);
    let begin = std::time::Instant::now();
    while replica.takes_requests() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the word never ran out");
    }
    assert_eq!(replica.replies(), Replies::Pass);
    writer.renew(Moment::now(), Duration::from_secs(60));
    assert!(replica.takes_requests());
    writer.bar(to(1).addr);
    assert_eq!((replica.takes_requests(), replica.expects_requests()), (false, false));
    assert_eq!(replica.replies(), Replies::Pass);
    // A master in the place of replicas is the master.
    writer.publish(Vec::new());
    points.release();
    let master = way.open_target().expect("the master");
    points.drop_replies();
    assert_eq!(master.replies(), Replies::Drop);
}

#[tokio::test]
async fn before_the_first_publication_readers_wait_and_an_empty_set_is_an_answer() {
    let (_points, mut writer, way) = pool(Empty::Reject);
    assert!(port(&way).is_none());
    let waiter = {
        let way = way.clone();
        tokio::spawn(async move { way.wait_open().await.map(|ride| ride.addr().port()) })
    };
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    writer.publish(vec![to(1)]);
    assert_eq!(waiter.await.expect("waiter"), Some(1));
    writer.publish(Vec::new());
    assert!(way.wait_open().await.is_none());
}

#[tokio::test]
async fn a_word_that_ran_out_makes_readers_wait() {
    let (_points, mut writer, way) = pool(Empty::Reject);
    writer.publish(vec![to(1)]);
    let ride = way.open_target().expect("a member");
    writer.renew(Moment::now(), Duration::ZERO);
    for _ in 0..5000 {
        if ride.is_shut() {
            break;
        }
        // The coarse clock ticks every few milliseconds.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(ride.is_shut() && port(&way).is_none());
    let waiter = {
        let way = way.clone();
        tokio::spawn(async move { way.wait_open().await.is_some() })
    };
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    writer.renew(Moment::now(), Duration::from_secs(60));
    assert!(waiter.await.expect("waiter"));
}

#[test]
fn a_member_that_comes_back_is_the_same_target_and_a_restarted_one_is_not() {
    let (_points, mut writer, way) = pool(Empty::Reject);
    writer.publish(vec![to(1)]);
    let ride = way.open_target().expect("a member");
    writer.publish(vec![to(2)]);
    assert!(ride.is_draining() && !ride.fence().has_fallen());
    writer.publish(vec![to(1), to(2)]);
    assert!(!ride.is_draining());
    assert_eq!(port(&way), Some(2), "the load of the one that came back is known");
    writer.publish(vec![Destination { run_id: Some("another".into()), ..to(1) }]);
    assert!(ride.is_draining());
    assert_eq!(writer.known().len(), 2);
    drop(ride);
    writer.publish(vec![to(2)]);
    assert_eq!(writer.known().len(), 1, "who has nobody on it is forgotten");
}

#[tokio::test]
async fn a_bar_takes_members_and_dismissed_ones_alike_and_rings() {
    let (_points, mut writer, way) = pool(Empty::Reject);
    writer.publish(vec![to(1)]);
    let dismissed = way.open_target().expect("a member");
    writer.publish(vec![Destination { run_id: Some("x".into()), ..to(1) }, to(2)]);
    let moved = way.moved();
    writer.bar(to(1).addr);
    moved.await;
    assert!(dismissed.fence().has_fallen());
    assert_eq!(port(&way), Some(2));
    assert_eq!(writer.known().len(), 1);
}

#[tokio::test]
async fn the_master_stands_in_behind_its_own_fence_and_gate() {
    let (mut points, mut writer, way) = pool(Empty::Master);
    writer.publish(Vec::new());
    assert!(port(&way).is_none(), "no master, and so nothing stands in");
    let moved = way.moved();
    let master = points.commit(to(9));
    moved.await;
    writer.publish(Vec::new());
    let ride = way.open_target().expect("the master");
    writer.bar(to(9).addr);
    assert!(!master.fence().has_fallen(), "a bar is about replicas");
    points.hold();
    assert!(ride.is_shut() && port(&way).is_none());
    points.release();
    writer.publish(vec![to(1)]);
    assert!(ride.is_draining() && !master.is_draining(), "those who write are not asked to leave");
    assert_eq!(port(&way), Some(1));
    points.commit(to(8));
    assert!(ride.fence().has_fallen());
}

#[derive(Debug, Clone)]
enum Step {
    Publish(BTreeSet<u16>),
    Bar(u16),
    Board,
    Leave(usize),
    Commit(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::collection::btree_set(1_u16..6, 0..5).prop_map(Step::Publish),
        1 => (1_u16..6).prop_map(Step::Bar),
        6 => Just(Step::Board),
        4 => any::<usize>().prop_map(Step::Leave),
        1 => (1_u16..6).prop_map(Step::Commit),
    ]
}

proptest! {
    /// Whatever is published, barred and ridden: a reader gets a member that nobody barred and that
    /// has the fewest riders; every rider of a barred node is behind a fallen fence, of a former
    /// member dismissed; and with `reject` nobody gets the master.
    #[test]
    fn readers_are_only_where_they_may_be(steps in prop::collection::vec(step(), 1..80)) {
        let (mut points, mut writer, way) = pool(Empty::Reject);
        let mut members: BTreeSet<u16> = BTreeSet::new();
        let mut riders: Vec<TargetRef> = Vec::new();
        for step in steps {
            match step {
                Step::Publish(set) => {
                    writer.publish(set.iter().copied().map(to).collect());
                    members = set;
                }
                Step::Bar(port) => {
                    writer.bar(to(port).addr);
                    members.remove(&port);
                    prop_assert!(riders.iter().all(|it| it.addr().port() != port || it.fence().has_fallen()));
                }
                Step::Board => match way.open_target() {
                    Some(ride) => {
                        let port = ride.addr().port();
                        prop_assert!(members.contains(&port) && !ride.fence().has_fallen() && !ride.is_draining());
                        let load = |port: u16| {
                            riders.iter().filter(|it| it.addr().port() == port && !it.fence().has_fallen()).count()
                        };
                        prop_assert_eq!(load(port), members.iter().map(|it| load(*it)).min().unwrap_or(0));
                        prop_assert_eq!(ride.load(), load(port) + 1);
                        riders.push(ride);
                    }
                    None => prop_assert!(members.is_empty()),
                },
                Step::Leave(which) => {
                    if let Some(at) = which.checked_rem(riders.len()) {
                        riders.swap_remove(at);
                    }
                }
                Step::Commit(port) => drop(points.commit(to(port))),
            }
            for ride in &riders {
                let member = members.contains(&ride.addr().port());
                prop_assert!(ride.fence().has_fallen() || ride.is_draining() != member);
            }
            prop_assert!(writer.known().len() <= 5 + riders.len());
        }
    }
}

#[tokio::test]
async fn holds_requests_of_readers_and_no_replies() {
    let (_points, mut writer, way) = pool(Empty::Reject);
    writer.publish(vec![to(1)]);
    let ride = way.open_target().expect("a member");
    assert!(writer.hold(true) && !writer.hold(true));
    assert!(!ride.takes_requests() && !ride.expects_requests() && ride.replies() == Replies::Pass);
    let waiter = {
        let way = way.clone();
        tokio::spawn(async move { way.wait_open().await.is_some() })
    };
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    assert!(writer.hold(false) && ride.takes_requests() && ride.replies() == Replies::Pass);
    assert!(waiter.await.expect("waiter"));
}

#[test]
fn tells_sessions_what_is_known_of_their_replica_only() {
    let (_points, mut writer, way) = pool(Empty::Reject);
    let process = |run_id: &str| Destination { run_id: Some(run_id.into()), ..to(1) };
    writer.publish(vec![process("old")]);
    let (old, name) = (way.open_target().expect("a member"), to(1).name);
    assert_eq!(old.look(), None);
    let look = Look { failing_over: true, ..Look::default() };
    writer.note("another", Some("old"), look, true);
    assert_eq!((old.look(), old.is_silent()), (None, false));
    writer.note(&name, Some("old"), look, false);
    assert_eq!((old.look(), old.is_silent(), old.is_urgent()), (Some(look), false, false));
    writer.note(&name, Some("old"), Look { about_to_end: true, ..look }, false);
    assert!(old.is_urgent() && !old.is_silent());
    // Another process answers at its address: nobody will answer for the old one any more.
    writer.publish(vec![process("new")]);
    let new = way.open_target().expect("a member");
    writer.note(&name, Some("new"), look, false);
    assert_eq!((old.is_silent(), new.is_silent()), (true, false));
    writer.note(&name, None, look, false);
    assert_eq!((old.is_silent(), new.is_silent()), (false, false), "not known is no other");
}
