//! Patience: which clock runs when, and that one always runs while the client keeps us waiting.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::life::Life;
use crate::server::Settings;

fn settings() -> Settings {
    Settings {
        header_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(75),
        ..Settings::default()
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn each_state_has_its_clock() {
    let (settings, start) = (settings(), Instant::now());
    let mut life = Life::new(start);
    // A new connection has the header's time for its first request, however it uses it.
    assert_eq!(life.deadline(&settings), Some(start + 5 * SECOND));
    life.read(start + SECOND);
    assert_eq!(life.deadline(&settings), Some(start + 6 * SECOND));
    life.read(start + 4 * SECOND);
    assert_eq!(life.deadline(&settings), Some(start + 6 * SECOND), "a drop started the clock anew");
    assert_eq!(life.waiting_since(), Some(start + SECOND));
    life.requested(start + 5 * SECOND);
    assert_eq!(life.deadline(&settings), Some(start + 15 * SECOND));
    assert_eq!(life.waiting_since(), None);
    life.answered(start + 6 * SECOND);
    assert_eq!(life.deadline(&settings), Some(start + 81 * SECOND));
    assert_eq!(life.waiting_since(), Some(start + 6 * SECOND));
}

#[test]
fn a_client_that_does_not_read_is_given_up_even_after_the_answer_was_handed_over() {
    let (settings, start) = (settings(), Instant::now());
    let mut life = Life::new(start);
    life.requested(start);
    life.wrote(false, start + SECOND);
    life.wrote(false, start + 2 * SECOND);
    life.answered(start + 2 * SECOND);
    assert_eq!(life.deadline(&settings), Some(start + 11 * SECOND));
    life.wrote(true, start + 3 * SECOND);
    assert_eq!(life.deadline(&settings), Some(start + 77 * SECOND));
}

#[test]
fn a_stream_has_time_as_long_as_it_is_read() {
    let (settings, start) = (settings(), Instant::now());
    let mut life = Life::new(start);
    life.requested(start);
    life.streams(start);
    assert!(life.is_streaming());
    assert_eq!((life.deadline(&settings), life.waiting_since()), (None, None));
    life.wrote(false, start + SECOND);
    assert_eq!(life.deadline(&settings), Some(start + 11 * SECOND));
    assert_eq!(life.waiting_since(), Some(start + SECOND));
}

proptest! {
    #![proptest_config(ProptestConfig { fork: false, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whoever_keeps_us_waiting_has_a_deadline(deeds in prop::collection::vec((0_u8..6, 0_u64..30), 0..50)) {
        let settings = settings();
        let mut now = Instant::now();
        let mut life = Life::new(now);
        for (deed, pause) in deeds {
            now += Duration::from_secs(pause);
            match deed {
                0 => life.read(now),
                1 => life.requested(now),
                2 => life.streams(now),
                3 => life.answered(now),
                4 => life.wrote(true, now),
                _ => life.wrote(false, now),
            }
            let deadline = life.deadline(&settings);
            prop_assert!(deadline.is_some() || (life.is_streaming() && life.waiting_since().is_none()));
            prop_assert!(deadline.is_none_or(|deadline| deadline <= now + settings.idle_timeout));
            if let Some(since) = life.waiting_since() {
                prop_assert!(deadline.is_some_and(|deadline| deadline <= since + settings.idle_timeout));
            }
        }
    }
}
