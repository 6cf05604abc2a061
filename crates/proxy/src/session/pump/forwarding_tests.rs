//! The forwarding policies by themselves: what blocks them, each cause alone.

use std::time::{Duration, Instant};

use resp::{Ledger, Limits};
use target::{ClockReading, ReplyPolicy, TargetWriter};

use crate::context::WorkerContext;
use crate::io::flow::{ForwardingPolicy, WritePermission};
use crate::latency::Stopwatch;
use crate::session::pump::forwarding::{ReplyForwarding, RequestForwarding};
use crate::testing::{SOON, context, destination};

/// The permissions of a policy towards `target`, before a read and before a write.
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
        deferred: false,
        screened: &mut None,
    };
    (policy.before_read(), policy.before_write(b"PING\r\n", 0))
}

/// Whether a policy from `target` admits what was read.
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
    assert_eq!(
        policy.before_write(b"+OK\r\n", 0),
        WritePermission::Unlimited,
        "admitted replies may be written"
    );
    policy.after_read(b"")
}

#[test]
fn blocks_requests_when_fence_is_raised() {
    let (mut writer, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    assert_eq!(
        requests(&context, &target),
        (WritePermission::Unlimited, WritePermission::Unlimited)
    );
    writer.commit(destination("127.0.0.1:2".parse().unwrap()));
    assert!(!target.is_closed(), "the gate is open to the next target");
    assert_eq!(requests(&context, &target), (WritePermission::Blocked, WritePermission::Blocked));
}

#[test]
fn blocks_requests_when_gate_is_closed() {
    let (mut writer, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    let closing: [fn(&mut TargetWriter); 3] =
        [TargetWriter::hold, TargetWriter::discard_replies, |it| {
            it.set_reply_policy(ReplyPolicy::Wait);
        }];
    for close in closing {
        close(&mut writer);
        assert!(!target.fence().is_raised());
        assert_eq!(
            requests(&context, &target),
            (WritePermission::Blocked, WritePermission::Blocked)
        );
        writer.release();
        assert_eq!(
            requests(&context, &target),
            (WritePermission::Unlimited, WritePermission::Unlimited)
        );
    }
}

#[test]
fn blocks_requests_when_lease_has_expired() {
    let (mut writer, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    writer.renew(ClockReading::now(), Duration::ZERO);
    let begin = Instant::now();
    while requests(&context, &target).1 != WritePermission::Blocked {
        assert!(begin.elapsed() < SOON, "the lease never expired");
    }
    writer.renew(ClockReading::now(), Duration::from_secs(60));
    assert_eq!(
        requests(&context, &target),
        (WritePermission::Unlimited, WritePermission::Unlimited)
    );
}

#[test]
fn admits_replies_unless_policy_is_wait_or_drop() {
    let (mut writer, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    writer.hold();
    assert!(after_read(&context, &target), "a closed gate stops requests");
    for reply_policy in [ReplyPolicy::Wait, ReplyPolicy::Drop] {
        writer.set_reply_policy(reply_policy);
        assert!(!after_read(&context, &target), "{reply_policy:?}");
    }
    writer.release();
    assert!(after_read(&context, &target));
    writer.commit(destination("127.0.0.1:2".parse().unwrap()));
    assert!(!after_read(&context, &target));
}
