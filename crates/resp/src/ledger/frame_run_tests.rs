//! Compares a ledger that is given pieces, which reads runs of frames in one loop, with a ledger
//! that is given single bytes, which never uses that loop. Both must agree after every piece.

use std::path::Path;

use proptest::prelude::{ProptestConfig, Strategy, any, prop, prop_assert_eq, proptest};

use crate::{Direction, FrameCounts, Hint, Ledger, Limits, Replay};

/// Requests that form runs, and requests that end them.
const REQUESTS: &[&[u8]] = &[
    b"*1\r\n$4\r\nPING\r\n",
    b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n",
    b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$3\r\n\r\n*\r\n",
    b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n",
    b"*9\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n$1\r\ne\r\n$1\r\nf\r\n$1\r\ng\r\n$1\r\nh\r\n",
    b"*10\r\n$4\r\nMGET\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n$1\r\ne\r\n$1\r\nf\r\n$1\r\ng\r\n$1\r\nh\r\n$1\r\ni\r\n",
    b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n",
    b"*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$2\r\nme\r\n",
    b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n",
    b"*1\r\n$5\r\nMULTI\r\n",
    b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$4\r\nSKIP\r\n",
    b"get inline\r\n",
    b"\r\n",
    b"*0\r\n",
];

const REPLIES: &[&[u8]] = &[
    b"+OK\r\n",
    b"$-1\r\n",
    b":0\r\n",
    b":-9223372036854775808\r\n",
    b"$3\r\nabc\r\n",
    b"$16\r\n+OK\r\n$-1\r\n:1\r\nx\r\n",
    b"$0\r\n\r\n",
    b"+QUEUED\r\n",
    b"-READONLY You can't write\r\n",
    b"*2\r\n$1\r\na\r\n:1\r\n",
    b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
    b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n",
    b"%1\r\n+a\r\n#t\r\n",
    b">2\r\n$10\r\ninvalidate\r\n*0\r\n",
];

/// Complete frames of these, sometimes a long string, and in one of four streams some damaged
/// bytes.
fn stream(frames: &'static [&'static [u8]], long: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let frame = (any::<prop::sample::Index>(), 0..30_usize, 50..150_usize, 1..4_usize).prop_map(
        move |(which, odd, length, times)| {
            if odd > 0 {
                // Half of the frames are of the kinds that form runs.
                let most = if odd % 2 == 0 { 5 } else { frames.len() };
                return frames[which.index(most)].repeat(times);
            }
            format!("{long}${length}\r\n{}\r\n", "x".repeat(length)).repeat(times).into_bytes()
        },
    );
    let spots = prop::collection::vec(
        (any::<prop::sample::Index>(), prop::sample::select(&b"*$:+-0129\r\nx"[..])),
        0..3,
    );
    (prop::collection::vec(frame, 1..40), prop::bool::weighted(0.25), spots).prop_map(
        |(frames, damaged, spots)| {
            let mut bytes = frames.concat();
            for (place, byte) in spots.into_iter().filter(|_| damaged) {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            bytes
        },
    )
}

fn feed(ledger: &mut Ledger, direction: Direction, bytes: &[u8]) {
    match direction {
        Direction::Request => ledger.request(bytes),
        Direction::Reply => ledger.reply(bytes),
    }
}

/// Everything that a ledger reports, as text.
fn report(ledger: &mut Ledger) -> (String, Vec<Hint>, FrameCounts, Option<Vec<u8>>) {
    let both = [Direction::Request, Direction::Reply];
    let words = format!(
        "{:?}, owes {}, between {:?}, unseen {:?}, last {:?} {:?}, must end {:?}",
        ledger.session_state(),
        ledger.owed(),
        both.map(|direction| ledger.at_boundary(direction)),
        both.map(|direction| ledger.body_left(direction)),
        ledger.last_request(),
        ledger.last_answer(),
        ledger.must_end(),
    );
    // Frames of an opaque session are not counted.
    let counts = if ledger.is_opaque() { FrameCounts::default() } else { ledger.take_counts() };
    let replay = Replay::of(ledger).map(|replay| replay.requests().to_vec());
    (words, std::iter::from_fn(|| ledger.take_hint()).collect(), counts, replay)
}

/// Gives a piece to one ledger at once, and to the other byte by byte.
fn feed_both(runs: &mut Ledger, bytes: &mut Ledger, direction: Direction, piece: &[u8]) {
    feed(runs, direction, piece);
    piece.iter().for_each(|byte| feed(bytes, direction, &[*byte]));
}

/// The bytes that a target of `fuzz/fuzz_targets` feeds to a ledger for an input.
fn turns(target: &str, input: &[u8]) -> Vec<(Direction, Vec<u8>)> {
    let bytes = input.get(1..).unwrap_or_default().to_vec();
    match target {
        "request" => vec![(Direction::Request, bytes)],
        "reply" => vec![(Direction::Request, b"PING\r\n".repeat(20)), (Direction::Reply, bytes)],
        _ => {
            let directions = [Direction::Request, Direction::Reply].into_iter().cycle();
            directions.zip(input.split(|byte| *byte == 0xff).map(<[u8]>::to_vec)).collect()
        }
    }
}

#[test]
fn agrees_on_the_fuzz_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let limits = Limits { memory: 200, names: 1024, ..Limits::default() };
    for target in ["request", "reply", "conversation"] {
        let files: Vec<_> = std::fs::read_dir(corpus.join(target))
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        assert!(files.len() > 50, "{target}: {}", files.len());
        for file in files {
            let (mut runs, mut bytes) = (Ledger::new(&limits), Ledger::new(&limits));
            for (direction, turn) in turns(target, &std::fs::read(&file).unwrap()) {
                for piece in turn.chunks(1 + turn.len() % 60) {
                    feed_both(&mut runs, &mut bytes, direction, piece);
                    assert_eq!(report(&mut runs), report(&mut bytes), "{}", file.display());
                }
            }
        }
    }
}

#[test]
fn agrees_on_requests_beyond_the_recording_limits() {
    let limits = Limits { memory: 200, names: 1024, ..Limits::default() };
    let (mut runs, mut bytes) = (Ledger::new(&limits), Ledger::new(&limits));
    let names = format!("*2\r\n$9\r\nSUBSCRIBE\r\n$900\r\n{}\r\n", "n".repeat(900));
    let select = "*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n".repeat(20);
    let get = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    for turn in [&select, get, &select, &names, &select, &names, get] {
        feed_both(&mut runs, &mut bytes, Direction::Request, turn.as_bytes());
    }
    let ok = "+OK\r\n".repeat(41);
    let confirmed = format!("*3\r\n$9\r\nsubscribe\r\n$900\r\n{}\r\n:1\r\n", "n".repeat(900));
    for turn in [ok.as_str(), &confirmed, &ok[..100], &confirmed, &ok[..5]] {
        feed_both(&mut runs, &mut bytes, Direction::Reply, turn.as_bytes());
        assert_eq!(report(&mut runs), report(&mut bytes));
    }
    // The last state is known, although earlier requests were not recorded.
    for (request, reply) in
        [(&*select, &ok[..100]), ("UNSUBSCRIBE\r\n", "*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n")]
    {
        feed_both(&mut runs, &mut bytes, Direction::Request, request.as_bytes());
        feed_both(&mut runs, &mut bytes, Direction::Reply, reply.as_bytes());
        assert_eq!(report(&mut runs), report(&mut bytes));
    }
    assert!(Replay::of(&runs).is_some());
}

/// Frames like the one before are compared with it instead of being read.
#[test]
fn agrees_on_repeated_frames_with_any_damaged_byte() {
    let long = format!("*2\r\n$3\r\nGET\r\n$99\r\n{}\r\n", "k".repeat(99));
    let requests = REQUESTS.iter().copied().chain([long.as_bytes()]);
    let requests = requests.map(|it| (Direction::Request, it));
    let replies = REPLIES.iter().map(|it| (Direction::Reply, *it));
    for (direction, frame) in requests.chain(replies) {
        let whole = frame.repeat(3);
        for place in frame.len()..whole.len() {
            for byte in b"*$:+-0129\r\nxG" {
                let mut damaged = whole.clone();
                damaged[place] = *byte;
                let (mut runs, mut bytes) =
                    (Ledger::new(&Limits::default()), Ledger::new(&Limits::default()));
                if direction == Direction::Reply {
                    feed_both(&mut runs, &mut bytes, Direction::Request, &REQUESTS[1].repeat(3));
                }
                // Incomplete ones, too.
                for piece in damaged.chunks(whole.len() - 1) {
                    feed_both(&mut runs, &mut bytes, direction, piece);
                    let text = String::from_utf8_lossy(&damaged);
                    assert_eq!(report(&mut runs), report(&mut bytes), "{text:?}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn agrees_on_runs_and_single_bytes(
        requests in stream(REQUESTS, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n"),
        replies in stream(REPLIES, ""),
        pieces in prop::collection::vec((any::<bool>(), 1_usize..400), 1..30),
    ) {
        let limits = Limits { memory: 200, names: 1024, ..Limits::default() };
        let (mut runs, mut bytes) = (Ledger::new(&limits), Ledger::new(&limits));
        let (mut requests, mut replies) = (&requests[..], &replies[..]);
        // The rest comes at once in the end, so that there are long runs.
        for (request, size) in pieces.into_iter().chain([(true, usize::MAX), (false, usize::MAX)]) {
            let (direction, left) = if request {
                (Direction::Request, &mut requests)
            } else {
                (Direction::Reply, &mut replies)
            };
            // More replies than requests would make the session opaque too soon.
            if !request && runs.owed() == 0 {
                continue;
            }
            let (piece, rest) = left.split_at(size.min(left.len()));
            *left = rest;
            feed_both(&mut runs, &mut bytes, direction, piece);
            prop_assert_eq!(report(&mut runs), report(&mut bytes), "after {:?}", String::from_utf8_lossy(piece));
        }
    }
}
