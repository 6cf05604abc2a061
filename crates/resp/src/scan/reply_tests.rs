//! Tests of the reply scanner: the ends of frames, in pieces of any size.

use proptest::prelude::{
    Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

use crate::{Direction, Ledger, Limits, SessionState};

/// A ledger with `requests` owed replies.
fn owing(requests: usize, limits: &Limits) -> Ledger {
    let mut ledger = Ledger::new(limits);
    ledger.request(&b"PING\r\n".repeat(requests));
    ledger
}

/// The end of each frame in `bytes`, and whether the session is opaque at the end.
fn ends(bytes: &[u8], pieces: &[usize], limits: &Limits) -> (Vec<usize>, bool) {
    let mut ledger = owing(1000, limits);
    let (mut found, mut offset, mut input) = (Vec::new(), 0, bytes);
    let mut sizes = pieces.iter().copied().cycle();
    while !input.is_empty() {
        let (mut piece, rest) =
            input.split_at(sizes.next().unwrap_or(usize::MAX).clamp(1, input.len()));
        input = rest;
        while !piece.is_empty() {
            let taken = ledger.reply_split(piece).0.len();
            assert!(taken > 0 && taken <= piece.len());
            piece = &piece[taken..];
            offset += taken;
            if ledger.session_state() == SessionState::Opaque {
                assert_eq!(ledger.allocated(), 0);
                return (found, true);
            }
            if ledger.at_boundary(Direction::Reply) {
                assert_eq!(ledger.allocated(), 0);
                found.push(offset);
            }
        }
    }
    assert!(ledger.allocated() <= 2 * usize::from(limits.depth));
    (found, false)
}

fn one_frame(bytes: &[u8]) {
    let expected = (vec![bytes.len()], false);
    for pieces in [usize::MAX, 1, 2, 3] {
        assert_eq!(
            ends(bytes, &[pieces], &Limits::default()),
            expected,
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
    }
    // No proper prefix is a frame.
    for end in 1..bytes.len() {
        assert_eq!(
            ends(&bytes[..end], &[usize::MAX], &Limits::default()),
            (vec![], false),
            "{end} of {bytes:?}"
        );
    }
}

#[test]
fn finds_the_end_of_every_type() {
    let frames: &[&[u8]] = &[
        b"+OK\r\n",
        b"+\r\n",
        b"+a\rb\nc\r\r\n",
        b"-ERR x\r\n",
        b":0\r\n",
        b":-12\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"$5\r\n\r\n\r\n+\r\n",
        b"*0\r\n",
        b"*-1\r\n",
        b"*2\r\n$1\r\na\r\n:1\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5e3\r\n",
        b",inf\r\n",
        b"(3492890328409238509324850943850943825024385\r\n",
        b"!5\r\nERR x\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"%0\r\n",
        b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n",
        b"~3\r\n:1\r\n:2\r\n:3\r\n",
        b">1\r\n+x\r\n",
        b">0\r\n",
        b"|1\r\n+ttl\r\n:3\r\n$1\r\na\r\n",
        b"|0\r\n:1\r\n",
        b"|1\r\n+a\r\n|1\r\n+b\r\n+c\r\n+d\r\n:1\r\n",
        b"|1\r\n+a\r\n+b\r\n|1\r\n+c\r\n+d\r\n*0\r\n",
        b"*2\r\n|1\r\n+a\r\n%1\r\n+b\r\n+c\r\n:1\r\n:2\r\n",
        b"$?\r\n;4\r\nHell\r\n;1\r\no\r\n;0\r\n",
        b"$?\r\n;0\r\n",
        b"*?\r\n.\r\n",
        b"*?\r\n:1\r\n*?\r\n:2\r\n.\r\n.\r\n",
        b"*2\r\n~?\r\n:1\r\n.\r\n:2\r\n",
        b"%?\r\n+a\r\n$?\r\n;1\r\nx\r\n;0\r\n.\r\n",
        b"*3\r\n*0\r\n$-1\r\n*-1\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*2\r\n:1\r\n*0\r\n",
        b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
        b">2\r\n|1\r\n+a\r\n+b\r\n$10\r\ninvalidate\r\n_\r\n",
    ];
    for frame in frames {
        one_frame(frame);
    }
}

#[test]
fn turns_opaque_on_bytes_that_are_not_resp() {
    let bad: &[&[u8]] = &[
        b"x",
        b"\r\n",
        b"$-2\r\n",
        b"*-2\r\n",
        b"%-1\r\n",
        b"$x\r\n",
        b"$1\n",
        b"*1\r\n>1\r\n+a\r\n",
        b".\r\n",
        b"*1\r\n.\r\n",
        b";1\r\n",
        b"$?\r\n$1\r\n",
        b"*1\r\n*?\r\n*1\r\n.\r\n",
        b"%4294967295\r\n",
        b"*99999999999999999999\r\n",
        b"=?\r\n",
        b"$9223372036854775807\r\n",
    ];
    for bytes in bad {
        for pieces in [1, usize::MAX] {
            assert_eq!(
                ends(bytes, &[pieces], &Limits::default()),
                (vec![], true),
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }
}

#[test]
fn enforces_reply_limits_exactly() {
    let limits = Limits { bulk_bytes: 3, elements: 4, depth: 6, ..Limits::default() };
    let six = b"*1\r\n".repeat(6);
    let streamed = b"*?\r\n".repeat(6);
    let within: &[&[u8]] = &[
        b"$3\r\nabc\r\n",
        b"%2\r\n:1\r\n:2\r\n:3\r\n:4\r\n",
        &[&six[..], b":1\r\n"].concat(),
        &[&six[..], &six, b"|1\r\n:1\r\n*2\r\n:2\r\n*1\r\n:3\r\n:4\r\n"].concat(),
        &[&streamed[..], &b".\r\n".repeat(6)].concat(),
    ];
    let beyond: &[&[u8]] = &[
        b"$4\r\n",
        b"%3\r\n",
        b"*5\r\n",
        b"$?\r\n;4\r\n",
        &[&six[..], b"*?\r\n"].concat(),
        &[&streamed[..], b"*1\r\n"].concat(),
    ];
    for bytes in within {
        assert_eq!(ends(bytes, &[1], &limits), (vec![bytes.len()], false), "{bytes:?}");
    }
    for bytes in beyond {
        assert_eq!(ends(bytes, &[2], &limits), (vec![], true), "{bytes:?}");
    }
}

#[test]
fn reads_sixty_four_mixed_levels() {
    let mut frame = Vec::new();
    for level in 0..64 {
        frame.extend_from_slice(
            [&b"*2\r\n:1\r\n"[..], b"%1\r\n+k\r\n", b"~1\r\n", b"*?\r\n$1\r\nx\r\n"][level % 4],
        );
    }
    frame.extend_from_slice(b":0\r\n");
    for level in (0..64).rev() {
        if level % 4 == 3 {
            frame.extend_from_slice(b".\r\n");
        }
    }
    let twice = [&frame[..], &frame[..]].concat();
    for pieces in [usize::MAX, 1, 7] {
        assert_eq!(
            ends(&twice, &[pieces], &Limits::default()),
            (vec![frame.len(), twice.len()], false)
        );
    }
}

#[test]
fn counts_an_attribute_as_part_of_its_reply() {
    let mut ledger = owing(1, &Limits::default());
    ledger.reply(b"|1\r\n+a\r\n+b\r\n");
    assert!(!ledger.at_boundary(Direction::Reply));
    assert_eq!(ledger.owed(), 1);
    ledger.reply(b":1\r\n");
    assert!(ledger.at_boundary(Direction::Reply));
    assert_eq!(ledger.session_state(), SessionState::Quiet);
}

#[test]
fn skips_reply_bodies_and_chunks_unseen() {
    for (header, end) in [
        (&b"$70000\r\n"[..], &b"\r\n"[..]),
        (b"*2\r\n:1\r\n$70000\r\n", b"\r\n"),
        (b"$?\r\n;70000\r\n", b"\r\n;0\r\n"),
        (b"=70000\r\n", b"\r\n"),
    ] {
        let mut ledger = owing(1, &Limits::default());
        ledger.reply(header);
        assert_eq!(ledger.body_left(Direction::Reply), 70_000);
        ledger.skip_body(Direction::Reply, 69_999);
        assert_eq!(ledger.body_left(Direction::Reply), 1);
        ledger.reply(b"x");
        assert_eq!((ledger.body_left(Direction::Reply), ledger.owed()), (0, 1));
        ledger.reply(end);
        assert_eq!(ledger.session_state(), SessionState::Quiet, "{header:?}");
    }
}

/// Any value, possibly nested.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let line = (prop::sample::select(&b"+-:_#,("[..]), prop::collection::vec(any::<u8>(), 0..6))
        .prop_map(|(kind, text)| {
            let text: Vec<u8> =
                text.into_iter().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
            [&[kind][..], &text, b"\r\n"].concat()
        });
    let string = (prop::sample::select(&b"$!="[..]), prop::collection::vec(any::<u8>(), 0..30))
        .prop_map(|(kind, text)| {
            [&[kind][..], text.len().to_string().as_bytes(), b"\r\n", &text, b"\r\n"].concat()
        });
    let chunks =
        prop::collection::vec(prop::collection::vec(any::<u8>(), 1..12), 0..3).prop_map(|chunks| {
            let mut out = b"$?\r\n".to_vec();
            for chunk in chunks {
                out.extend(
                    [b";", chunk.len().to_string().as_bytes(), b"\r\n", &chunk, b"\r\n"].concat(),
                );
            }
            [out, b";0\r\n".to_vec()].concat()
        });
    let leaf = prop_oneof![4 => line, 4 => string, 1 => chunks, 1 => Just(b"$-1\r\n".to_vec()), 1 => Just(b"*-1\r\n".to_vec())];
    leaf.prop_recursive(9, 40, 4, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            (prop::sample::select(&b"*~"[..]), list.clone()).prop_map(|(kind, items)| {
                [&[kind][..], items.len().to_string().as_bytes(), b"\r\n", &items.concat()].concat()
            }),
            (prop::sample::select(&b"*~%"[..]), list.clone()).prop_map(|(kind, items)| {
                [
                    &[kind][..],
                    b"?\r\n",
                    &items.concat().repeat(1 + usize::from(kind == b'%')),
                    b".\r\n",
                ]
                .concat()
            }),
            list.clone().prop_map(|items| {
                [
                    b"%",
                    items.len().to_string().as_bytes(),
                    b"\r\n",
                    &items.concat(),
                    &items.concat(),
                ]
                .concat()
            }),
            (list, inner).prop_map(|(items, value)| {
                [
                    b"|",
                    items.len().to_string().as_bytes(),
                    b"\r\n",
                    &items.concat(),
                    &items.concat(),
                    &value,
                ]
                .concat()
            }),
        ]
    })
}

proptest! {
    #[test]
    fn finds_frame_ends_in_any_pieces(
        values in prop::collection::vec(value(), 1..5),
        pieces in prop::collection::vec(1_usize..9, 1..20),
    ) {
        let bytes = values.concat();
        let lengths = values.iter().map(Vec::len);
        let expected: Vec<usize> = lengths
            .scan(0, |end, length| {
                *end += length;
                Some(*end)
            })
            .collect();
        let at_once = ends(&bytes, &[usize::MAX], &Limits::default());
        prop_assert_eq!(&at_once, &(expected.clone(), false));
        prop_assert_eq!(&ends(&bytes, &pieces, &Limits::default()), &(expected.clone(), false));
        prop_assert_eq!(&ends(&bytes, &[1], &Limits::default()), &(expected, false));
    }

    #[test]
    fn agrees_on_damaged_frames_in_any_pieces(
        values in prop::collection::vec(value(), 1..4),
        damage in prop::collection::vec(
            (
                any::<prop::sample::Index>(),
                prop::sample::select(&b"*$%>|~.;?-0129\r\n+x"[..]),
            ),
            1..3,
        ),
        pieces in prop::collection::vec(1_usize..9, 1..20),
    ) {
        let mut bytes = values.concat();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let limits = Limits { depth: 8, ..Limits::default() };
        let expected = ends(&bytes, &[usize::MAX], &limits);
        prop_assert_eq!(&ends(&bytes, &pieces, &limits), &expected);
        prop_assert_eq!(&ends(&bytes, &[1], &limits), &expected);
    }

    #[test]
    fn never_panics_and_bounds_memory(
        exchanges in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(any::<u8>(), 0..40)),
            0..20,
        ),
    ) {
        let limits = Limits { depth: 10, marks: 6, ..Limits::default() };
        let mut ledger = Ledger::new(&limits);
        for (request, bytes) in exchanges {
            if request { ledger.request(&bytes) } else { ledger.reply(&bytes) }
            prop_assert!(ledger.allocated() <= 20);
            while ledger.take_hint().is_some() {}
        }
    }
}
