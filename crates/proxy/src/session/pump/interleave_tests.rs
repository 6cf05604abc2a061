//! Insertion of pushes, with the server's bytes arriving and the client reading in pieces of any
//! size: each push is sent once, between two whole frames, and nothing else changes.

use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use resp::{Frames, Limits, MaintenanceHandshake};

use crate::Options;
use crate::io::buffer::{self, KeptBytes};
use crate::maintenance::pending::MaintenancePush;
use crate::session::pump::Pump;
use crate::testing::{FakeStream, context};

const REFUSAL: &[u8] = b"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n";
const HANDSHAKE: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$19\r\nMAINT_NOTIFICATIONS\r\n$2\r\nON\r\n";

/// RESP3 replies, and pushes of the server's own.
const FRAMES: &[&[u8]] = &[
    b"+OK\r\n",
    b":1\r\n",
    b"$5\r\na\r\nbc\r\n",
    b"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'\r\n",
    b"*2\r\n*1\r\n+>4\r\n$3\r\n\r\n\n\r\n",
    b"%1\r\n+a\r\n~1\r\n#t\r\n",
    b"|1\r\n+ttl\r\n:9\r\n$1\r\nx\r\n",
    b">2\r\n+invalidate\r\n_\r\n",
];

fn pushes() -> [MaintenancePush; 3] {
    [
        MaintenancePush::failing_over(7001, 10),
        MaintenancePush::failed_over(7002),
        MaintenancePush::moving(7003, 5, Some("redis:6379")),
    ]
}

#[test]
fn reads_no_more_than_the_worker_may_keep() {
    let (_publisher, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    let (mut client, mut upstream) = (FakeStream::sending(&[HANDSHAKE]), FakeStream::sending(&[]));
    let mut pump = Pump::new(&mut client, &mut upstream, &context, &target, Vec::new());
    poll(&mut pump);
    assert!(pump.is_interleaving());
    for stuck in [0, 1, 3, 6] {
        // Kept for other sessions of this worker, whose clients read nothing.
        let _others = KeptBytes::new(vec![0; stuck * (4 << 20)]);
        pump.upstream.incoming.push_back(b">2\r\n+invalidate\r\n_\r\n".to_vec());
        pump.upstream.largest_read = 0;
        poll(&mut pump);
        assert_eq!(pump.upstream.largest_read, ((256 * 1024) >> stuck).max(16 * 1024));
    }
}

fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut found, mut frames) = (Vec::new(), Frames::new(Limits::default()));
    while let Some(end) = frames.end(bytes).expect("RESP") {
        found.push(bytes[..end].to_vec());
        bytes = &bytes[end..];
    }
    assert!(bytes.is_empty(), "it ends in the middle of a frame");
    found
}

fn poll(pump: &mut Pump<&mut FakeStream, &mut FakeStream>) {
    let waker = Waker::noop();
    let mut cx = Context::from_waker(waker);
    assert_eq!(buffer::with_scratch(|scratch| pump.poll(&mut cx, waker, scratch)), Poll::Pending);
}

#[derive(Debug, Clone)]
struct Scenario {
    /// The frames that the server sends, and where among them the handshake is answered.
    frames: Vec<usize>,
    answered_at: usize,
    /// The bytes that arrive at a time, and the bytes that the client takes.
    pieces: Vec<(usize, usize)>,
    /// The pieces at which the three pushes become due.
    due: [usize; 3],
    wanted: bool,
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let pieces = prop::collection::vec((1..40_usize, prop_oneof![Just(0), 1..60_usize]), 1..40);
    let frames = prop::collection::vec(0..FRAMES.len(), 0..30);
    (frames, any::<usize>(), pieces, [0..40_usize, 0..40, 0..40], prop::bool::weighted(0.9))
        .prop_map(|(frames, at, pieces, due, wanted)| {
            let answered_at = at % (frames.len() + 1);
            Scenario { frames, answered_at, pieces, due, wanted }
        })
}

/// The client's requests, the server's replies, and the frames that the client must receive.
struct ScriptedTraffic {
    requests: Vec<u8>,
    replies: Vec<u8>,
    expected: Vec<Vec<u8>>,
}

impl Scenario {
    fn traffic(&self) -> ScriptedTraffic {
        let (mut requests, mut replies, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for at in 0..=self.frames.len() {
            if at == self.answered_at {
                requests.extend_from_slice(HANDSHAKE);
                replies.extend_from_slice(REFUSAL);
                expected.push(if self.wanted { b"+OK\r\n".to_vec() } else { REFUSAL.to_vec() });
            }
            let Some(frame) = self.frames.get(at).map(|which| FRAMES[*which]) else { break };
            if frame[0] != b'>' {
                requests.extend_from_slice(b"GET k\r\n");
            }
            replies.extend_from_slice(frame);
            expected.push(frame.to_vec());
        }
        ScriptedTraffic { requests, replies, expected }
    }
}

fn check(scenario: &Scenario) {
    let (_publisher, context) = context();
    context
        .shared
        .service
        .options
        .set(Options { maintenance_push: scenario.wanted, ..Options::default() });
    let target = context.shared.service.route.usable_target().unwrap();
    let (mut client, mut upstream) = (FakeStream::sending(&[]), FakeStream::sending(&[]));
    let mut pump = Pump::new(&mut client, &mut upstream, &context, &target, Vec::new());
    // First `HELLO` alone, so that it is answered before the rest is sent.
    pump.client.incoming.push_back(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n".to_vec());
    pump.upstream.incoming.push_back(b"%1\r\n+proto\r\n:3\r\n".to_vec());
    poll(&mut pump);
    pump.client.written.clear();
    let ScriptedTraffic { requests, replies, expected } = scenario.traffic();
    pump.client.incoming.push_back(requests);
    pump.client.capacity = 0;
    poll(&mut pump);
    let mut announced = Vec::new();
    let mut announce = |pump: &mut Pump<&mut FakeStream, &mut FakeStream>, now: usize| {
        for (push, due) in pushes().into_iter().zip(scenario.due) {
            if due <= now
                && !announced.contains(&push)
                && pump.ledger.maintenance_handshake() != MaintenanceHandshake::Off
            {
                announced.push(push.clone());
                pump.announce(push);
            }
        }
    };
    let mut rest = &replies[..];
    for (step, (comes, takes)) in scenario.pieces.iter().enumerate() {
        let (piece, later) = rest.split_at((*comes).min(rest.len()));
        rest = later;
        if !piece.is_empty() {
            pump.upstream.incoming.push_back(piece.to_vec());
        }
        pump.client.capacity += takes;
        announce(&mut pump, step);
        poll(&mut pump);
    }
    pump.client.capacity = usize::MAX;
    if !rest.is_empty() {
        pump.upstream.incoming.push_back(rest.to_vec());
    }
    // The reads per poll are bounded, and pieces may have queued while the client took nothing.
    while !pump.upstream.incoming.is_empty() {
        poll(&mut pump);
        announce(&mut pump, usize::MAX);
    }
    poll(&mut pump);
    announce(&mut pump, usize::MAX);
    poll(&mut pump);
    let received = frames(&pump.client.written);
    let sent_by_us: Vec<Vec<u8>> =
        announced.iter().map(|push| push.text.clone().into_bytes()).collect();
    let from_server: Vec<_> =
        received.iter().filter(|frame| !sent_by_us.contains(frame)).cloned().collect();
    assert_eq!(from_server, expected, "what the server sent");
    assert_eq!(received.len(), expected.len() + sent_by_us.len(), "each push once");
    assert_eq!(announced.len(), if scenario.wanted { 3 } else { 0 });
    assert!(pump.interleaved.is_none() && pump.replies.is_clear(), "nothing is left over");
    assert_eq!(context.counters.maintenance_handshakes.get(), u64::from(scenario.wanted));
}

proptest! {
    #[test]
    fn inserts_pushes_between_whole_frames(scenario in scenarios()) {
        check(&scenario);
    }
}

/// A value too large to end within one poll is forwarded as usual, and the push waits for its end.
#[test]
fn sends_a_push_after_the_value_under_way() {
    let (_publisher, context) = context();
    let target = context.shared.service.route.usable_target().unwrap();
    let (mut client, mut upstream) = (FakeStream::sending(&[]), FakeStream::sending(&[]));
    let mut pump: Pump<&mut FakeStream, &mut FakeStream> =
        Pump::new(&mut client, &mut upstream, &context, &target, Vec::new());
    pump.client
        .incoming
        .push_back([b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n", HANDSHAKE, b"GET k\r\n"].concat());
    pump.upstream.incoming.push_back([b"%1\r\n+proto\r\n:3\r\n", REFUSAL].concat());
    poll(&mut pump);
    pump.client.written.clear();
    let body = vec![b'x'; 40 * 1024 * 1024];
    pump.upstream.incoming.push_back(format!("${}\r\n", body.len()).into_bytes());
    poll(&mut pump);
    pump.upstream.incoming.extend(body.chunks(1024 * 1024).map(<[u8]>::to_vec));
    let push = pushes()[1].clone();
    pump.announce(push.clone());
    while !pump.upstream.incoming.is_empty() {
        poll(&mut pump);
        assert!(!pump.client.written.ends_with(push.text.as_bytes()));
    }
    pump.upstream.incoming.push_back(b"\r\n".to_vec());
    poll(&mut pump);
    assert!(pump.client.written.ends_with(format!("xx\r\n{}", push.text).as_bytes()));
    assert_eq!(
        pump.client.written.len(),
        body.len() + b"$41943040\r\n\r\n".len() + push.text.len()
    );
}
