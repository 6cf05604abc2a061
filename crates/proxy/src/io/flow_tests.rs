//! One direction between two puppets: its memory, its back-pressure, and that the valve is asked
//! before every write.

use std::task::{Context, Waker};

use proptest::prelude::*;

use crate::io::buffer;
use crate::io::flow::{EndSignal, Flow, FlowStep, ForwardingPolicy, WritePermission};
use crate::testing::Puppet;

/// Lets `budget` writes through, then shuts.
#[derive(Default)]
struct CountingPolicy {
    shut: bool,
    /// Nothing that is read is admitted.
    refuses: bool,
    writes_left: Option<usize>,
    on_read: usize,
    on_written: Vec<u8>,
}

impl ForwardingPolicy for CountingPolicy {
    fn before_read(&mut self) -> WritePermission {
        self.leave(&[])
    }

    fn after_read(&mut self) -> bool {
        !self.refuses
    }

    fn leave(&mut self, _waiting: &[u8]) -> WritePermission {
        if self.shut || self.writes_left == Some(0) {
            WritePermission::Shut
        } else {
            WritePermission::Free
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
    source: &mut Puppet,
    sink: &mut Puppet,
    policy: &mut CountingPolicy,
) -> FlowStep {
    let mut cx = Context::from_waker(Waker::noop());
    buffer::with_scratch(|scratch| {
        flow.poll_move(&mut cx, source, sink, policy, (scratch, EndSignal::Yes))
    })
}

fn flow() -> Flow {
    Flow::new(Vec::new())
}

#[test]
fn returns_what_is_not_admitted_and_writes_none_of_it() {
    let (mut source, mut sink) = (Puppet::saying(&[b"one"]), Puppet::saying(&[]));
    let (mut flow, mut policy) =
        (flow(), CountingPolicy { refuses: true, ..CountingPolicy::default() });
    let mut cx = Context::from_waker(Waker::noop());
    buffer::with_scratch(|scratch| {
        let step =
            flow.poll_move(&mut cx, &mut source, &mut sink, &mut policy, (scratch, EndSignal::Yes));
        assert!(matches!(step, FlowStep::Stopped(3)), "{step:?}");
        assert_eq!(&scratch[..3], b"one");
    });
    assert_eq!((sink.heard.len(), policy.on_read, flow.bytes_moved(), flow.memory()), (0, 0, 0, 0));
}

#[test]
fn what_is_taken_at_once_is_never_kept() {
    let (mut source, mut sink) = (Puppet::saying(&[b"one", b"two"]), Puppet::saying(&[]));
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle));
    assert_eq!((&sink.heard[..], flow.bytes_moved(), flow.memory()), (&b"onetwo"[..], 6, 0));
}

#[test]
fn fails_where_a_sink_takes_more_than_it_was_given() {
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    let mut source = Puppet::saying(&[b"abcdef"]);
    let mut sink = Puppet { takes: 4, ..Puppet::default() };
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
    (sink.takes, sink.overstates) = (9, 1);
    assert!(matches!(
        step(&mut flow, &mut source, &mut sink, &mut policy),
        FlowStep::SinkFailed(_)
    ));
    assert_eq!((policy.on_written.as_slice(), flow.bytes_moved()), (&b"abcd"[..], 4));
}

#[test]
fn a_slow_sink_is_read_for_no_more_and_memory_stays_flat() {
    let word = vec![b'x'; buffer::SCRATCH_SIZE];
    let words: Vec<&[u8]> = std::iter::repeat_n(&word[..], 100).collect();
    let (mut source, mut sink) = (Puppet::saying(&words), Puppet::default());
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    let mut most = 0;
    for round in 0..2_000_u64 {
        sink.takes += 1_000;
        source.asked = 0;
        assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
        assert_eq!(flow.bytes_moved(), 1_000 * (round + 1));
        assert_eq!(flow.is_clear(), policy.on_read == sink.heard.len());
        // Once it was slow, it is read for in small pieces.
        assert!(round == 0 || source.asked <= 16 * 1024, "{}", source.asked);
        most = most.max(flow.memory());
    }
    assert!(most <= buffer::SCRATCH_SIZE, "{most}");
    // When it has caught up nothing is held, and it is trusted with large pieces again.
    sink.takes = usize::MAX;
    while !matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle) {}
    assert_eq!(
        (sink.heard.len(), flow.memory(), source.asked),
        (100 * buffer::SCRATCH_SIZE, 0, buffer::SCRATCH_SIZE)
    );
}

#[test]
fn a_thousand_slow_sinks_get_little_each_and_a_quick_one_gets_all_again_when_they_are_gone() {
    let word = vec![b'x'; buffer::SCRATCH_SIZE];
    let mut stuck = Vec::new();
    for _ in 0..1_000 {
        let (mut source, mut sink) = (Puppet::saying(&[&word]), Puppet::default());
        let (mut flow, mut policy) = (flow(), CountingPolicy::default());
        assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
        assert_eq!(flow.memory(), policy.on_read);
        stuck.push(flow);
    }
    let all: usize = stuck.iter().map(Flow::memory).sum();
    assert!(all <= (16 << 20) + buffer::SCRATCH_SIZE + 1_000 * 16 * 1024, "{all} bytes");
    let asked = || {
        let (mut source, mut sink) = (Puppet::saying(&[&word]), Puppet::saying(&[]));
        let (mut flow, mut policy) = (flow(), CountingPolicy::default());
        while !matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle) {}
        assert_eq!(sink.heard, word);
        source.asked
    };
    assert_eq!(asked(), 16 * 1024);
    drop(stuck);
    assert_eq!(asked(), buffer::SCRATCH_SIZE);
}

#[test]
fn a_shut_valve_stops_reading_and_what_was_read_before() {
    let (mut source, mut sink) = (Puppet::saying(&[b"one", b"two"]), Puppet::default());
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
    sink.takes = usize::MAX;
    policy.shut = true;
    for _ in 0..3 {
        assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
    }
    assert_eq!((sink.heard.len(), source.says.len()), (0, 1));
    policy.shut = false;
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle));
    assert_eq!(sink.heard, b"onetwo");
}

#[test]
fn the_end_comes_behind_the_last_byte() {
    let (mut source, mut sink) =
        (Puppet::saying(&[b"bye", b""]), Puppet { takes: 1, ..Puppet::default() });
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Stuck));
    assert!(!sink.told);
    sink.takes = 10;
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Done));
    assert!(sink.told && flow.has_ended());
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Done));
}

#[test]
fn a_torrent_leaves_room_for_others() {
    let word = vec![b'x'; buffer::SCRATCH_SIZE];
    let words: Vec<&[u8]> = std::iter::repeat_n(&word[..], 50).collect();
    let (mut source, mut sink) = (Puppet::saying(&words), Puppet::saying(&[]));
    let (mut flow, mut policy) = (flow(), CountingPolicy::default());
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::More));
    assert_eq!(sink.heard.len(), 2 * buffer::SCRATCH_SIZE);
    // Nor do small pieces go on for ever.
    let words = std::iter::repeat_n(&b"x"[..], 50).collect::<Vec<_>>();
    let (mut source, mut sink) = (Puppet::saying(&words), Puppet::saying(&[]));
    assert!(matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::More));
    assert_eq!(sink.heard.len(), 4);
}

proptest! {
    #![proptest_config(ProptestConfig { fork: false, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the pieces and the pace, and whenever the valve shuts: the order is kept, nothing
    /// is lost or doubled, and after the valve has shut not a byte more goes.
    #[test]
    fn bytes_keep_their_order_and_a_shut_valve_holds(
        early in prop::collection::vec(any::<u8>(), 0..20),
        words in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..20),
        paces in prop::collection::vec(0_usize..30, 1..30),
        shut_after in prop::option::of(0_usize..20),
    ) {
        let slices: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let whole: Vec<u8> = early.iter().copied().chain(words.concat()).collect();
        let (mut source, mut sink) = (Puppet::saying(&slices), Puppet::default());
        let mut flow = Flow::new(early);
        let mut policy = CountingPolicy { writes_left: shut_after, ..CountingPolicy::default() };
        for pace in paces {
            sink.takes += pace;
            step(&mut flow, &mut source, &mut sink, &mut policy);
            prop_assert!(whole.starts_with(&sink.heard));
            prop_assert_eq!(&policy.on_written, &sink.heard);
        }
        let heard = sink.heard.len();
        if policy.writes_left == Some(0) {
            sink.takes = usize::MAX;
            step(&mut flow, &mut source, &mut sink, &mut policy);
            prop_assert_eq!(sink.heard.len(), heard);
            policy.writes_left = None;
        }
        sink.takes = usize::MAX;
        policy.writes_left = None;
        while !matches!(step(&mut flow, &mut source, &mut sink, &mut policy), FlowStep::Idle) {}
        prop_assert_eq!(&sink.heard, &whole);
        prop_assert_eq!(flow.bytes_moved(), whole.len() as u64);
    }
}
