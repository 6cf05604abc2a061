//! The rule of the valve by itself: what shuts it, each cause alone.

use std::time::{Duration, Instant};

use resp::{Ledger, Limits};
use target::{ClockReading, ReplyPolicy, TargetWriter};

use crate::context::WorkerContext;
use crate::io::flow::{ForwardingPolicy, WritePermission};
use crate::io::forwarding::{ReplyForwarding, RequestForwarding};
use crate::latency::Stopwatch;
use crate::testing::{SOON, context, destination};

/// What a valve towards `target` says before a read and before a write.
fn requests(
    context: &WorkerContext,
    target: &target::Target,
) -> (WritePermission, WritePermission) {
    let mut ledger = Ledger::new(&Limits::default());
    let (mut heard, mut measured, mut stopwatch) = (false, 0, Stopwatch::default());
    let mut policy = RequestForwarding {
        ledger: &mut ledger,
        target,
        context,
        heard: &mut heard,
        stopping: false,
        stopwatch: &mut stopwatch,
        measured: &mut measured,
    };
    (policy.before_read(), policy.leave(b"PING\r\n"))
}

/// Whether a valve from `target` admits what was read.
fn after_read(context: &WorkerContext, target: &target::Target) -> bool {
    let mut ledger = Ledger::new(&Limits::default());
    let (mut stopwatch, mut commands) = (Stopwatch::default(), 0);
    let mut policy = ReplyForwarding {
        ledger: &mut ledger,
        target,
        context,
        stopwatch: &mut stopwatch,
        commands: &mut commands,
    };
    assert_eq!(policy.leave(b"+OK\r\n"), WritePermission::Free, "what was admitted goes");
    policy.after_read()
}

#[test]
fn shuts_for_requests_at_the_fence_alone() {
    let (mut points, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    assert_eq!(requests(&context, &target), (WritePermission::Free, WritePermission::Free));
    points.commit(destination("127.0.0.1:2".parse().unwrap()));
    assert!(!target.is_closed(), "only the fence has fallen: the gate is open to the next target");
    assert_eq!(requests(&context, &target), (WritePermission::Shut, WritePermission::Shut));
}

#[test]
fn shuts_for_requests_at_the_gate_alone() {
    let (mut points, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    let shutting: [fn(&mut TargetWriter); 3] =
        [TargetWriter::hold, TargetWriter::discard_replies, |it| {
            it.set_reply_policy(ReplyPolicy::Wait)
        }];
    for shut in shutting {
        shut(&mut points);
        assert!(!target.fence().is_raised());
        assert_eq!(requests(&context, &target), (WritePermission::Shut, WritePermission::Shut));
        points.release();
        assert_eq!(requests(&context, &target), (WritePermission::Free, WritePermission::Free));
    }
}

#[test]
fn shuts_for_requests_when_the_word_has_run_out() {
    let (mut points, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    points.renew(ClockReading::now(), Duration::ZERO);
    let begin = Instant::now();
    while requests(&context, &target).1 != WritePermission::Shut {
        assert!(begin.elapsed() < SOON, "the word never ran out");
    }
    points.renew(ClockReading::now(), Duration::from_secs(60));
    assert_eq!(requests(&context, &target), (WritePermission::Free, WritePermission::Free));
}

#[test]
fn admits_replies_unless_they_wait_or_are_dropped() {
    let (mut points, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    points.hold();
    assert!(after_read(&context, &target), "a shut gate stops requests");
    for fate in [ReplyPolicy::Wait, ReplyPolicy::Drop] {
        points.set_reply_policy(fate);
        assert!(!after_read(&context, &target), "{fate:?}");
    }
    points.release();
    assert!(after_read(&context, &target));
    points.commit(destination("127.0.0.1:2".parse().unwrap()));
    assert!(!after_read(&context, &target));
}
