//! The state machine of a session of a shared service.

use std::time::Duration;

use resp::{PromotionReason, Sharing};

use crate::session::{Action, Mode, Offer, SharedEnd, SharedSession};

const T: Duration = Duration::from_secs(100);
const MULTI: Sharing = Sharing::Promotes(PromotionReason::Transaction);
const WAIT: Sharing = Sharing::Promotes(PromotionReason::Wait);

fn after_requests(count: u32) -> SharedSession {
    let mut session = SharedSession::default();
    (0..count).for_each(|_| assert_eq!(session.offer(Sharing::Shared, T), Offer::Send));
    session
}

#[test]
fn promotes_after_all_replies_and_in_order() {
    let mut session = after_requests(2);
    assert_eq!((session.offer(MULTI, T), session.pending()), (Offer::Wait, Action::None));
    assert_eq!(session.offer(Sharing::Shared, T), Offer::Wait, "nothing overtakes");
    assert!(!session.offer_run(1));
    assert_eq!((session.replied(1), session.replied(1)), (Action::None, Action::Connect));
    assert_eq!((session.pending(), session.offer(MULTI, T)), (Action::None, Offer::Wait));
    assert_eq!(session.connected(), Action::Continue);
    assert_eq!(session.offer(MULTI, T), Offer::Forward);
    assert_eq!(session.offer(Sharing::Shared, T), Offer::Forward);
}

#[test]
fn promotes_at_once_with_nothing_in_flight() {
    let mut session = SharedSession::default();
    assert_eq!((session.offer(MULTI, T), session.pending()), (Offer::Wait, Action::Connect));
}

#[test]
fn verifies_one_request_after_all_replies() {
    let mut session = after_requests(1);
    assert_eq!(session.offer(Sharing::Verified, T), Offer::Wait);
    assert_eq!(session.replied(1), Action::Continue);
    assert_eq!(session.offer(Sharing::Verified, T), Offer::Verify);
    assert_eq!(session.offer(Sharing::Shared, T), Offer::Wait);
    assert_eq!(session.verified(true, T), Action::Join);
    assert_eq!(session.offer(Sharing::Verified, T), Offer::Verify);
    assert_eq!(session.verified(false, T), Action::Connect, "its state cannot be shared");
}

#[test]
fn returns_when_clean_and_calm() {
    let mut session = SharedSession::default();
    session.offer(MULTI, T);
    assert_eq!((session.pending(), session.connected()), (Action::Connect, Action::Continue));
    let second = Duration::from_secs(1);
    assert_eq!(session.at_boundary(true, T + second / 2), Action::None, "needed just now");
    assert_eq!(session.returns_at(), Some(T + second));
    assert_eq!(session.at_boundary(false, T + second), Action::None, "not clean");
    session.offer(MULTI, T + second);
    assert_eq!(session.at_boundary(true, T + second), Action::None);
    assert_eq!(session.at_boundary(true, T + 2 * second), Action::Join);
    assert_eq!((session.mode(), session.returns_at()), (Mode::Shared, None));
}

#[test]
fn stays_longer_with_each_promotion_soon_after() {
    let (mut session, mut now, mut stays) = (SharedSession::default(), T, Vec::new());
    for _ in 0..12 {
        session.offer(MULTI, now);
        assert_eq!(session.pending(), Action::Connect);
        session.connected();
        let returns = session.returns_at().unwrap();
        stays.push((returns - now).as_secs());
        now = returns;
        assert_eq!(session.at_boundary(true, now), Action::Join);
    }
    assert_eq!(stays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    session.offer(MULTI, now + Duration::from_secs(3001));
    assert_eq!(session.linger().as_secs(), 150, "after a long time without");
}

#[test]
fn answers_wait_only_on_the_connection_of_the_writes() {
    let mut unused = SharedSession::default();
    assert_eq!((unused.offer(WAIT, T), unused.pending()), (Offer::Wait, Action::Connect));
    let mut one = after_requests(1);
    assert_eq!(one.offer(WAIT, T), Offer::Wait);
    assert_eq!(one.replied(1), Action::TakeConnection);
    one.connected();
    assert_eq!(one.offer(WAIT, T), Offer::Forward);
    let elsewhere = Offer::End(SharedEnd::WaitElsewhere);
    let mut lost = after_requests(1);
    assert_eq!((lost.replied(1), lost.connection_lost()), (Action::Continue, Action::Continue));
    assert_eq!(lost.offer(WAIT, T), elsewhere);
    let mut moved = after_requests(1);
    moved.replied(1);
    moved.offer(MULTI, T);
    assert_eq!((moved.pending(), moved.connected()), (Action::Connect, Action::Continue));
    assert_eq!(moved.offer(WAIT, T), elsewhere, "it had written on the shared connection");
    let mut back = SharedSession::default();
    back.offer(MULTI, T);
    back.pending();
    back.connected();
    assert_eq!(back.at_boundary(true, 2 * T), Action::Join);
    assert_eq!(back.offer(WAIT, 2 * T), elsewhere, "it had written on its own connection");
}

#[test]
fn ends_only_with_requests_in_flight() {
    assert_eq!(SharedSession::default().connection_lost(), Action::Continue);
    let lost = Action::End(SharedEnd::InFlightLost);
    assert_eq!(after_requests(1).connection_lost(), lost);
    let mut verifying = SharedSession::default();
    verifying.offer(Sharing::Verified, T);
    assert_eq!(verifying.connection_lost(), lost);
    assert_eq!(verifying.offer(Sharing::Shared, T), Offer::End(SharedEnd::InFlightLost));
    let mut draining = after_requests(1);
    draining.offer(MULTI, T);
    assert_eq!(draining.connection_lost(), lost);
    let mut connecting = SharedSession::default();
    connecting.offer(MULTI, T);
    connecting.pending();
    assert_eq!(connecting.connection_lost(), Action::End(SharedEnd::NotConnected));
    assert_eq!(after_requests(1).replied(2), Action::End(SharedEnd::Broken));
}

#[test]
fn promotes_unsuited_sessions_at_the_boundary() {
    let mut session = after_requests(2);
    let large = PromotionReason::LargeReply;
    assert_eq!(session.unsuited(large, T), Action::None);
    assert_eq!(session.mode(), Mode::Draining(large));
    assert_eq!(session.replied(2), Action::Connect);
    assert_eq!(session.unsuited(large, T), Action::None, "once");
}
