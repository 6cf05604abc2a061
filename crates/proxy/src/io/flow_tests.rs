//! One direction between two test streams: its memory, its back-pressure, and that the policy is
//! consulted before every write.

use std::task::{Context, Waker};

use proptest::prelude::*;

use crate::io::buffer;
use crate::io::flow::{EndSignal, Flow, FlowStep, ForwardingPolicy, MAX_READS, WritePermission};
use crate::testing::FakeStream;

impl Flow {
    /// Bytes of memory it holds.
    fn memory(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.bytes.capacity())
    }
}

/// Permits `writes_left` writes, then none.
#[derive(Default)]
struct CountingPolicy {
    blocked: bool,
    /// Rejects everything that is read.
    rejects_reads: bool,
    writes_left: Option<usize>,
    /// Permits so many bytes at a time, and accounts for them before.
    limit: Option<usize>,
    on_read: usize,
    on_written: Vec<u8>,
}

impl ForwardingPolicy for CountingPolicy {
    fn before_read(&mut self) -> WritePermission {
        self.before_write(&[], 0)
    }

    fn after_read(&mut self, _bytes: &[u8]) -> bool {
        !self.rejects_reads
    }

    fn before_write(&mut self, _waiting: &[u8], _begun: usize) -> WritePermission {
        if self.blocked || self.writes_left == Some(0) {
            WritePermission::Blocked
        } else {
            self.limit.map_or(WritePermission::Unlimited, WritePermission::Limited)
        }
    }

    fn on_read(&mut self, bytes: &[u8]) {
        self.on_read += bytes.len();
    }

    fn on_written(&mut self, bytes: &[u8], _measured: bool) {
        self.on_written.extend_from_slice(bytes);
        if let Some(left) = &mut self.writes_left {
            *left -= 1;
        }
    }

    fn bulk_left(&self) -> u64 {
        0
    }

    fn on_bulk_read(&mut self, _n: u64) {}

    fn on_bulk_written(&mut self, _n: u64) {}
}

fn step(
    flow: &mut Flow,
    source: &mut FakeStream,
    sink: &mut FakeStream,
    policy: &mut CountingPolicy,
) -> FlowStep {
    let mut cx = Context::from_waker(Waker::noop());
    // As the pump does.
    buffer::with_scratch(|scratch| match flow.poll_usual(&mut cx, source, sink, policy, scratch) {
        Ok(step) => step,
        Err(left) => flow.poll_move(&mut cx, source, sink, policy, scratch, EndSignal::Yes, left),
    })
}

fn flow() -> Flow {
    Flow::new(Vec::new())
}

#[test]
fn returns_what_is_not_admitted_and_writes_none_of_it() {
    let (mut source, mut sink) = (FakeStream::sending(&[b"one"]), FakeStream::sending(&[]));
    let (mut flow, mut policy) =
        (flow(), CountingPolicy { rejects_reads: true, ..CountingPolicy::default() });
    let mut cx = Context::from_waker(Waker::noop());
    buffer::with_scratch(|scratch| {
        let step = flow.poll_move(
            &mut cx,
            &mut source,
            &mut sink,
            &mut policy,
            scratch,
            EndSignal::Yes,
            MAX_READS,
        );
        assert!(matches!(step, FlowStep::Stopped(3)), "{step:?}");
        assert_eq!(&scratch[..3], b"one");
    });
    assert_eq!((sink.written.len(), policy.on_read, flow.moved, flow.memory()), (0, 0, 0, 0));
}

#[test]
fn keeps_nothing_that_is_written_at_once() {
    let (mut source, mut sink) = (FakeStream::sending(&[b"one", b"two"]), FakeStream::sending(&[]));
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle));
    assert_eq!((&sink.written[..], flow.moved, flow.memory()), (&b"onetwo"[..], 6, 0));
}

/// While a session leaves, requests are forwarded one by one: what was read for the first of them
/// is kept, and has to be written in the same poll, since no event would follow.
#[test]
fn writes_limited_bytes_in_the_poll_that_reads_them() {
    let (mut source, mut sink) = (FakeStream::sending(&[b"request"]), FakeStream::sending(&[]));
    let (mut flow, mut policy) = (flow(), CountingPolicy { limit: Some(3), ..Default::default() });
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle));
    assert_eq!((&sink.written[..], flow.moved, flow.memory()), (&b"request"[..], 7, 0));
}

#[test]
fn fails_when_sink_reports_too_many_bytes() {
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    let mut source = FakeStream::sending(&[b"abcdef"]);
    let mut sink = FakeStream { capacity: 4, ..FakeStream::default() };
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
    (sink.capacity, sink.overstated) = (9, 1);
    assert!(matches!(
        step(&mut flow, &mut source, &mut sink, &mut policy),
        FlowStep::SinkFailed(_)
    ));
    assert_eq!((policy.on_written.as_slice(), flow.moved), (&b"abcd"[..], 4));
}

#[test]
fn stops_reading_for_slow_sink_and_bounds_memory() {
    let piece = vec![b'x'; buffer::SCRATCH_SIZE];
    let pieces: Vec<&[u8]> = std::iter::repeat_n(&piece[..], 100).collect();
    let (mut source, mut sink) = (FakeStream::sending(&pieces), FakeStream::default());
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    let mut most = 0;
    for round in 0..2_000_u64 {
        sink.capacity += 1_000;
        source.largest_read = 0;
        assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
        assert_eq!(flow.moved, 1_000 * (round + 1));
        assert_eq!(flow.is_clear(), policy.on_read == sink.written.len());
        // After it was slow, reads for it are small.
        assert!(round == 0 || source.largest_read <= 16 * 1024, "{}", source.largest_read);
        most = most.max(flow.memory());
    }
    assert!(most <= buffer::SCRATCH_SIZE, "{most}");
    // When it has caught up nothing is kept, and reads are large again.
    sink.capacity = usize::MAX;
    while !matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle) {}
    assert_eq!(
        (sink.written.len(), flow.memory(), source.largest_read),
        (100 * buffer::SCRATCH_SIZE, 0, buffer::SCRATCH_SIZE)
    );
}

#[test]
fn shrinks_reads_while_many_sinks_are_slow() {
    let piece = vec![b'x'; buffer::SCRATCH_SIZE];
    let mut stuck = Vec::new();
    for _ in 0..1_000 {
        let (mut source, mut sink) = (FakeStream::sending(&[&piece]), FakeStream::default());
        let (mut flow, mut policy) = (flow(), CountingPolicy::default());
        assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
        assert_eq!(flow.memory(), policy.on_read);
        stuck.push(flow);
    }
    let all: usize = stuck.iter().map(Flow::memory).sum();
    assert!(all <= (16 << 20) + buffer::SCRATCH_SIZE + 1_000 * 16 * 1024, "{all} bytes");
    let asked = || {
        let (mut source, mut sink) = (FakeStream::sending(&[&piece]), FakeStream::sending(&[]));
        let (mut flow, mut policy) = (flow(), CountingPolicy::default());
        while !matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle) {}
        assert_eq!(sink.written, piece);
        source.largest_read
    };
    assert_eq!(asked(), 16 * 1024);
    drop(stuck);
    assert_eq!(asked(), buffer::SCRATCH_SIZE);
}

#[test]
fn stops_reading_and_writing_when_blocked() {
    let (mut source, mut sink) = (FakeStream::sending(&[b"one", b"two"]), FakeStream::default());
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
    sink.capacity = usize::MAX;
    policy.blocked = true;
    for _ in 0..3 {
        assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
    }
    assert_eq!((sink.written.len(), source.incoming.len()), (0, 1));
    policy.blocked = false;
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle));
    assert_eq!(sink.written, b"onetwo");
}

#[test]
fn signals_end_after_last_byte() {
    let (mut source, mut sink) =
        (FakeStream::sending(&[b"bye", b""]), FakeStream { capacity: 1, ..FakeStream::default() });
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
    assert!(!sink.ended);
    sink.capacity = 10;
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Done));
    assert!(sink.ended && flow.ended);
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Done));
}

#[test]
fn yields_to_others_during_long_transfer() {
    let piece = vec![b'x'; buffer::SCRATCH_SIZE];
    let pieces: Vec<&[u8]> = std::iter::repeat_n(&piece[..], 50).collect();
    let (mut source, mut sink) = (FakeStream::sending(&pieces), FakeStream::sending(&[]));
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::More));
    assert_eq!(sink.written.len(), 2 * buffer::SCRATCH_SIZE);
    // Small pieces do not continue for ever either.
    let pieces = std::iter::repeat_n(&b"x"[..], 50).collect::<Vec<_>>();
    let (mut source, mut sink) = (FakeStream::sending(&pieces), FakeStream::sending(&[]));
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::More));
    assert_eq!(sink.written.len(), 4);
}

proptest! {
    #![proptest_config(ProptestConfig {
        fork: false,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// For pieces of any size, sinks of any speed and a policy that blocks at any time: the order
    /// is kept, nothing is lost or duplicated, and while the policy blocks not a byte is written.
    #[test]
    fn keeps_order_and_writes_nothing_while_blocked(
        early in prop::collection::vec(any::<u8>(), 0..20),
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..20),
        paces in prop::collection::vec(0_usize..30, 1..30),
        blocked_after in prop::option::of(0_usize..20),
    ) {
        let slices: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        let whole: Vec<u8> = early.iter().copied().chain(pieces.concat()).collect();
        let (mut source, mut sink) = (FakeStream::sending(&slices), FakeStream::default());
        let mut flow = Flow::new(early);
        let mut policy = CountingPolicy { writes_left: blocked_after, ..CountingPolicy::default() };
        for pace in paces {
            sink.capacity += pace;
            step(&mut flow, &mut source, &mut sink, &mut policy);
            prop_assert!(whole.starts_with(&sink.written));
            prop_assert_eq!(&policy.on_written, &sink.written);
        }
        let heard = sink.written.len();
        if policy.writes_left == Some(0) {
            sink.capacity = usize::MAX;
            step(&mut flow, &mut source, &mut sink, &mut policy);
            prop_assert_eq!(sink.written.len(), heard);
            policy.writes_left = None;
        }
        sink.capacity = usize::MAX;
        policy.writes_left = None;
        while !matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle) {}
        prop_assert_eq!(&sink.written, &whole);
        prop_assert_eq!(flow.moved, whole.len() as u64);
    }
}
