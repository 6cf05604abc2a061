//! Courses in which the master's other clients are paused.

use super::*;

#[test]
fn pauses_clients_without_gap_until_after_the_commit() {
    let mut play = Play::begin(Some(MS(10_000)));
    play.select().pass(1000).put(sight(false, 2, 5, 7));
    let committed = play.at;
    assert_eq!(play.result(), None);
    assert_eq!(
        play.count(|it| *it == Action::Release),
        1,
        "traffic through this proxy does not wait for that"
    );
    play.pass(1100);
    assert!(play.result().unwrap().is_ok(), "{:?}", play.did);
    let pauses: Vec<(u64, u64)> = play
        .did
        .iter()
        .filter_map(|(at, it)| match it {
            Action::Pause(span) => Some((*at, span.as_millis() as u64)),
            _ => None,
        })
        .collect();
    let shut = play.did.iter().find(|(_, it)| matches!(it, Action::Tell("hold", _))).unwrap().0;
    assert!(pauses[0].0 >= shut + 30, "requests of ours are executed first: {pauses:?}");
    assert!(pauses.windows(2).all(|two| two[1].0 < two[0].0 + two[0].1), "{pauses:?}");
    let order = play.did.iter().find(|(_, it)| *it == Action::Order).unwrap().0;
    assert!(pauses[0].0 < order && pauses.last().unwrap().0 >= committed + 800, "{pauses:?}");
    play.left_nothing_behind();
}

#[test]
fn ends_when_pause_is_refused_or_too_long() {
    let mut play = Play::begin(Some(MS(10_000)));
    play.pass(2).put(sight(true, 1, 4, 6));
    while play.count(|it| matches!(it, Action::Pause(_))) == 0 {
        play.at += 1;
        play.put(Input::Tick);
    }
    play.put(Input::Paused(Err("NOPERM".to_owned()))).put(Input::Unpaused);
    play.ended_with(&Reason::NotPaused("NOPERM".to_owned()));
    assert_eq!(play.count(|it| *it == Action::Order), 0);
    let refused =
        Course::begin(Instant::now(), (cast(), node(9)), Limits::default(), Some(MS(1000)));
    assert_eq!(refused.unwrap_err(), Reason::TooLong(MS(1000)));
}

#[test]
fn stops_pausing_before_sentinels_notice() {
    let mut play = Play::begin(Some(MS(2000)));
    play.select();
    let first = play.did.iter().find(|(_, it)| matches!(it, Action::Pause(_))).unwrap().0;
    play.pass(5000);
    for (at, action) in &play.did {
        if let Action::Pause(span) = action {
            assert!(at + span.as_millis() as u64 <= first + 1500, "{at} ms");
        }
    }
    assert_eq!(play.result(), None, "the failover is followed all the same");
    assert_eq!(play.count(|it| matches!(it, Action::Tell("pause", _))), 2);
}

#[test]
fn orders_nothing_after_a_pause_that_lapsed() {
    let mut play = Play::begin(Some(MS(10_000)));
    play.pass(2).put(sight(true, 1, 4, 6));
    let mut granted = false;
    while play.at < 1000 && play.result().is_none() {
        play.at += 10;
        let seen = play.did.len();
        play.put(Input::Tick);
        let did: Vec<Action> = play.did[seen..].iter().map(|(_, it)| it.clone()).collect();
        // The first pause is granted; the master is then too busy to answer the next one, and late
        // with its offset.
        if !granted && did.iter().any(|it| matches!(it, Action::Pause(_))) {
            granted = true;
            play.put(Input::Paused(Ok(())));
        }
        if play.at > 600 {
            play.put(offsets(100, 100));
        }
    }
    assert_eq!(play.count(|it| *it == Action::Order), 0, "{:?}", play.did);
    play.put(Input::Unpaused);
    assert!(matches!(play.result(), Some(Err(Reason::NotPaused(_)))), "{:?}", play.did);
}

#[test]
fn lets_clients_go_when_traffic_flows_without_a_leader() {
    let mut play = Play::begin(Some(MS(30_000)));
    play.select().put(Input::LeaderLost("gone".to_owned())).put(sight(true, 1, 4, 6)).pass(2900);
    assert_eq!(play.count(|it| *it == Action::Unpause), 0, "the promotion may have been made");
    play.put(sight(false, 1, 4, 6));
    let pauses = play.count(|it| matches!(it, Action::Pause(_)));
    assert_eq!(play.count(|it| *it == Action::Unpause), 1);
    play.pass(1000).put(sight(false, 1, 4, 6));
    assert_eq!((play.result(), play.count(|it| matches!(it, Action::Pause(_)))), (None, pauses));
    play.pass(2000)
        .ended_with(&Reason::LeaderLost { sentinel: node(9), problem: "gone".to_owned() });
}
