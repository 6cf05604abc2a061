//! Whatever pieces the server's bytes come in and whatever pieces the client takes: our words fall
//! between whole frames, each once, and nothing else changes.

use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use resp::{Frames, Limits, MaintenanceHandshake};

use crate::Options;
use crate::io::kept::Kept;
use crate::io::scratch;
use crate::maintenance::notice::Notice;
use crate::session::pump::Pump;
use crate::testing::{Puppet, seat};

const REFUSAL: &[u8] = b"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n";
const HANDSHAKE: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$19\r\nMAINT_NOTIFICATIONS\r\n$2\r\nON\r\n";

/// Replies of RESP3, and pushes of the server's own.
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

fn notices() -> [Notice; 3] {
    [
        Notice::FailingOver { number: 7001, seconds: 10 },
        Notice::FailedOver { number: 7002 },
        Notice::Moving { number: 7003, seconds: 5, to: Some("redis:6379".into()) },
    ]
}

#[test]
fn reads_no_more_than_the_worker_may_keep() {
    let (_points, seat) = seat();
    let target = seat.shared.service.route.open_target().unwrap();
    let (mut client, mut upstream) = (Puppet::saying(&[HANDSHAKE]), Puppet::saying(&[]));
    let mut pump = Pump::new((&mut client, &mut upstream), &seat, &target, Vec::new());
    poll(&mut pump);
    assert!(pump.has_words());
    for stuck in [0, 1, 3, 6] {
        // So much is kept for other sessions of this worker, whose clients read nothing.
        let _others = Kept::new(vec![0; stuck * (4 << 20)]);
        pump.upstream.says.push_back(b">2\r\n+invalidate\r\n_\r\n".to_vec());
        pump.upstream.asked = 0;
        poll(&mut pump);
        assert_eq!(pump.upstream.asked, ((256 * 1024) >> stuck).max(16 * 1024));
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

fn poll(pump: &mut Pump<'_, Puppet, Puppet>) {
    let waker = Waker::noop();
    let mut cx = Context::from_waker(waker);
    assert_eq!(scratch::with(|scratch| pump.poll(&mut cx, waker, scratch)), Poll::Pending);
}

#[derive(Debug, Clone)]
struct Plan {
    /// Which frames the server sends, and where among them the handshake is answered.
    frames: Vec<usize>,
    answered_at: usize,
    /// How many bytes come at a time, and how many the client takes.
    pieces: Vec<(usize, usize)>,
    /// At which pieces the three pushes become due.
    due: [usize; 3],
    wanted: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let pieces = prop::collection::vec((1..40_usize, prop_oneof![Just(0), 1..60_usize]), 1..40);
    let frames = prop::collection::vec(0..FRAMES.len(), 0..30);
    (frames, any::<usize>(), pieces, [0..40_usize, 0..40, 0..40], prop::bool::weighted(0.9))
        .prop_map(|(frames, at, pieces, due, wanted)| {
            let answered_at = at % (frames.len() + 1);
            Plan { frames, answered_at, pieces, due, wanted }
        })
}

fn check(plan: &Plan) {
    let (_points, seat) = seat();
    seat.shared
        .service
        .options
        .set(Options { maintenance_push: plan.wanted, ..Options::default() });
    let target = seat.shared.service.route.open_target().unwrap();
    let (mut client, mut upstream) = (Puppet::saying(&[]), Puppet::saying(&[]));
    let mut pump = Pump::new((&mut client, &mut upstream), &seat, &target, Vec::new());
    // One after the other, so that HELLO is answered when the rest is asked.
    pump.client.says.push_back(b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n".to_vec());
    pump.upstream.says.push_back(b"%1\r\n+proto\r\n:3\r\n".to_vec());
    poll(&mut pump);
    pump.client.heard.clear();
    let (mut requests, mut said, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..=plan.frames.len() {
        if at == plan.answered_at {
            requests.extend_from_slice(HANDSHAKE);
            said.extend_from_slice(REFUSAL);
            expected.push(if plan.wanted { b"+OK\r\n".to_vec() } else { REFUSAL.to_vec() });
        }
        let Some(frame) = plan.frames.get(at).map(|which| FRAMES[*which]) else { break };
        if frame[0] != b'>' {
            requests.extend_from_slice(b"GET k\r\n");
        }
        said.extend_from_slice(frame);
        expected.push(frame.to_vec());
    }
    pump.client.says.push_back(requests);
    pump.client.takes = 0;
    poll(&mut pump);
    let mut announced = Vec::new();
    let mut announce = |pump: &mut Pump<'_, Puppet, Puppet>, now: usize| {
        for (notice, due) in notices().into_iter().zip(plan.due) {
            if due <= now
                && !announced.contains(&notice)
                && pump.ledger.maintenance_handshake() != MaintenanceHandshake::Off
            {
                announced.push(notice.clone());
                pump.announce(notice);
            }
        }
    };
    let mut rest = &said[..];
    for (step, (comes, takes)) in plan.pieces.iter().enumerate() {
        let (piece, behind) = rest.split_at((*comes).min(rest.len()));
        rest = behind;
        if !piece.is_empty() {
            pump.upstream.says.push_back(piece.to_vec());
        }
        pump.client.takes += takes;
        announce(&mut pump, step);
        poll(&mut pump);
    }
    pump.client.takes = usize::MAX;
    if !rest.is_empty() {
        pump.upstream.says.push_back(rest.to_vec());
    }
    // A turn has so many reads, and pieces may have gathered while the client took nothing.
    while !pump.upstream.says.is_empty() {
        poll(&mut pump);
        announce(&mut pump, usize::MAX);
    }
    poll(&mut pump);
    announce(&mut pump, usize::MAX);
    poll(&mut pump);
    let heard = frames(&pump.client.heard);
    let ours: Vec<Vec<u8>> = announced.iter().map(|notice| notice.encode().into_bytes()).collect();
    let theirs: Vec<_> = heard.iter().filter(|frame| !ours.contains(frame)).cloned().collect();
    assert_eq!(theirs, expected, "what the server said");
    assert_eq!(heard.len(), expected.len() + ours.len(), "each push once");
    assert_eq!(announced.len(), if plan.wanted { 3 } else { 0 });
    assert!(pump.aside.is_none() && pump.replies.is_clear(), "nothing stays behind");
    assert_eq!(seat.block.agreements.get(), u64::from(plan.wanted));
}

proptest! {
    #[test]
    fn our_words_fall_between_whole_frames(plan in plan()) {
        check(&plan);
    }
}

/// A value too large to end within one turn flows as always, and the push waits for its end.
#[test]
fn a_push_waits_for_the_end_of_a_value_under_way() {
    let (_points, seat) = seat();
    let target = seat.shared.service.route.open_target().unwrap();
    let (mut client, mut upstream) = (Puppet::saying(&[]), Puppet::saying(&[]));
    let mut pump: Pump<'_, Puppet, Puppet> =
        Pump::new((&mut client, &mut upstream), &seat, &target, Vec::new());
    pump.client
        .says
        .push_back([b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n", HANDSHAKE, b"GET k\r\n"].concat());
    pump.upstream.says.push_back([b"%1\r\n+proto\r\n:3\r\n", REFUSAL].concat());
    poll(&mut pump);
    pump.client.heard.clear();
    let body = vec![b'x'; 40 * 1024 * 1024];
    pump.upstream.says.push_back(format!("${}\r\n", body.len()).into_bytes());
    poll(&mut pump);
    pump.upstream.says.extend(body.chunks(1024 * 1024).map(<[u8]>::to_vec));
    let push = notices()[1].clone();
    pump.announce(push.clone());
    while !pump.upstream.says.is_empty() {
        poll(&mut pump);
        assert!(!pump.client.heard.ends_with(push.encode().as_bytes()));
    }
    pump.upstream.says.push_back(b"\r\n".to_vec());
    poll(&mut pump);
    assert!(pump.client.heard.ends_with(format!("xx\r\n{}", push.encode()).as_bytes()));
    assert_eq!(
        pump.client.heard.len(),
        body.len() + b"$41943040\r\n\r\n".len() + push.encode().len()
    );
}
