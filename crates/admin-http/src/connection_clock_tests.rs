//! Deadlines: which one applies when, and that one applies whenever the client is waited for.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::connection_clock::ConnectionClock;
use crate::settings::ServerSettings;

fn settings() -> ServerSettings {
    ServerSettings {
        header_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(75),
        ..ServerSettings::default()
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn has_one_deadline_per_state() {
    let (settings, start) = (settings(), Instant::now());
    let mut clock = ConnectionClock::new(start, false);
    // The header timeout applies to the first request of a new connection, however it is sent.
    assert_eq!(clock.deadline(&settings), Some(start + 5 * SECOND));
    clock.read(start + SECOND);
    assert_eq!(clock.deadline(&settings), Some(start + 6 * SECOND));
    clock.read(start + 4 * SECOND);
    assert_eq!(
        clock.deadline(&settings),
        Some(start + 6 * SECOND),
        "a piece restarted the timeout"
    );
    assert_eq!(clock.waiting_since(), Some(start + SECOND));
    clock.requested(start + 5 * SECOND);
    assert_eq!(clock.deadline(&settings), Some(start + 15 * SECOND));
    assert_eq!(clock.waiting_since(), None);
    // While it waits for its turn it may be evicted.
    clock.queued(start + 5 * SECOND);
    assert_eq!(clock.deadline(&settings), Some(start + 10 * SECOND));
    assert_eq!(clock.waiting_since(), Some(start + 5 * SECOND));
    clock.requested(start + 5 * SECOND);
    clock.answered(start + 6 * SECOND);
    assert_eq!(clock.deadline(&settings), Some(start + 81 * SECOND));
    assert_eq!(clock.waiting_since(), Some(start + 6 * SECOND));
}

#[test]
fn times_out_unread_response_after_hand_over() {
    let (settings, start) = (settings(), Instant::now());
    let mut clock = ConnectionClock::new(start, false);
    clock.requested(start);
    clock.wrote(false, start + SECOND);
    clock.wrote(false, start + 2 * SECOND);
    clock.answered(start + 2 * SECOND);
    assert_eq!(clock.deadline(&settings), Some(start + 11 * SECOND));
    clock.wrote(true, start + 3 * SECOND);
    assert_eq!(clock.deadline(&settings), Some(start + 77 * SECOND));
}

#[test]
fn has_no_deadline_while_stream_is_read() {
    let (settings, start) = (settings(), Instant::now());
    let mut clock = ConnectionClock::new(start, false);
    clock.requested(start);
    clock.streams(start);
    assert!(clock.is_streaming());
    assert_eq!((clock.deadline(&settings), clock.waiting_since()), (None, None));
    clock.wrote(false, start + SECOND);
    assert_eq!(clock.deadline(&settings), Some(start + 11 * SECOND));
    assert_eq!(clock.waiting_since(), Some(start + SECOND));
}

proptest! {
    #![proptest_config(ProptestConfig {
        fork: false,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn has_deadline_whenever_client_is_waited_for(
        events in prop::collection::vec((0_u8..6, 0_u64..30), 0..50),
    ) {
        let settings = settings();
        let mut now = Instant::now();
        let mut clock = ConnectionClock::new(now, false);
        for (event, pause) in events {
            now += Duration::from_secs(pause);
            match event {
                0 => clock.read(now),
                1 => clock.requested(now),
                2 => clock.streams(now),
                3 => clock.answered(now),
                4 => clock.wrote(true, now),
                _ => clock.wrote(false, now),
            }
            let deadline = clock.deadline(&settings);
            let waits = clock.waiting_since();
            prop_assert!(deadline.is_some() || (clock.is_streaming() && waits.is_none()));
            prop_assert!(deadline.is_none_or(|deadline| deadline <= now + settings.idle_timeout));
            if let Some(since) = waits {
                let latest = since + settings.idle_timeout;
                prop_assert!(deadline.is_some_and(|deadline| deadline <= latest));
            }
        }
    }
}
