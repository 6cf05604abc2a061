//! The rule of the valve by itself: what shuts it, each cause alone.

use std::time::{Duration, Instant};

use resp::{Ledger, Limits};
use target::{ClockReading, ReplyPolicy as Fate, TargetWriter};

use crate::io::flow::{ForwardingPolicy, Leave};
use crate::io::forwarding::{ReplyPolicy, Requests};
use crate::latency::Stopwatch;
use crate::runtime::worker::WorkerContext;
use crate::testing::{SOON, destination, seat};

/// What a valve towards `target` says before a read and before a write.
fn requests(seat: &WorkerContext, target: &target::Target) -> (Leave, Leave) {
    let mut ledger = Ledger::new(&Limits::default());
    let (mut heard, mut measured, mut stopwatch) = (false, 0, Stopwatch::default());
    let mut valve = Requests {
        ledger: &mut ledger,
        target,
        seat,
        heard: &mut heard,
        stopping: false,
        stopwatch: &mut stopwatch,
        measured: &mut measured,
    };
    (valve.expects(), valve.leave(b"PING\r\n"))
}

/// Whether a valve from `target` admits what was read.
fn admits(seat: &WorkerContext, target: &target::Target) -> bool {
    let mut ledger = Ledger::new(&Limits::default());
    let (mut stopwatch, mut commands) = (Stopwatch::default(), 0);
    let mut valve = ReplyPolicy {
        ledger: &mut ledger,
        target,
        seat,
        stopwatch: &mut stopwatch,
        commands: &mut commands,
    };
    assert_eq!(valve.leave(b"+OK\r\n"), Leave::Free, "what was admitted goes");
    valve.admits()
}

#[test]
fn shuts_for_requests_at_the_fence_alone() {
    let (mut points, seat) = seat();
    let target = seat.shared.service.route.usable_target().unwrap();
    assert_eq!(requests(&seat, &target), (Leave::Free, Leave::Free));
    points.commit(destination("127.0.0.1:2".parse().unwrap()));
    assert!(!target.is_closed(), "only the fence has fallen: the gate is open to the next target");
    assert_eq!(requests(&seat, &target), (Leave::Shut, Leave::Shut));
}

#[test]
fn shuts_for_requests_at_the_gate_alone() {
    let (mut points, seat) = seat();
    let target = seat.shared.service.route.usable_target().unwrap();
    let shutting: [fn(&mut TargetWriter); 3] =
        [TargetWriter::hold, TargetWriter::discard_replies, |it| it.set_reply_policy(Fate::Wait)];
    for shut in shutting {
        shut(&mut points);
        assert!(!target.fence().is_raised());
        assert_eq!(requests(&seat, &target), (Leave::Shut, Leave::Shut));
        points.release();
        assert_eq!(requests(&seat, &target), (Leave::Free, Leave::Free));
    }
}

#[test]
fn shuts_for_requests_when_the_word_has_run_out() {
    let (mut points, seat) = seat();
    let target = seat.shared.service.route.usable_target().unwrap();
    points.renew(ClockReading::now(), Duration::ZERO);
    let begin = Instant::now();
    while requests(&seat, &target).1 != Leave::Shut {
        assert!(begin.elapsed() < SOON, "the word never ran out");
    }
    points.renew(ClockReading::now(), Duration::from_secs(60));
    assert_eq!(requests(&seat, &target), (Leave::Free, Leave::Free));
}

#[test]
fn admits_replies_unless_they_wait_or_are_dropped() {
    let (mut points, seat) = seat();
    let target = seat.shared.service.route.usable_target().unwrap();
    points.hold();
    assert!(admits(&seat, &target), "a shut gate stops requests");
    for fate in [Fate::Wait, Fate::Drop] {
        points.set_reply_policy(fate);
        assert!(!admits(&seat, &target), "{fate:?}");
    }
    points.release();
    assert!(admits(&seat, &target));
    points.commit(destination("127.0.0.1:2".parse().unwrap()));
    assert!(!admits(&seat, &target));
}
