//! The screen: finds requests whose command is refused to clients, before anything is forwarded.
//!
//! It reads what the client has sent with a scanner of its own, and keeps nothing of the session's
//! state. So nothing that makes a session opaque (`MONITOR`, `PSYNC`, `CLIENT REPLY OFF`) turns it
//! off. A request is forwarded from its first byte on that decides it is not refused; until then
//! its bytes are held. That is a few hundred bytes of an array, and the line of an inline command.
//!
//! Bytes that are no request are not forwarded: the server gets other bytes that are none, answers
//! with its error and closes. Nothing is read from the client after that. The beginning of a line
//! that is longer than the caller can hold is treated in the same way. The error names the client's
//! mistake if a few bytes can repeat it.

use crate::commands::refused::{Decision, RefusalRules, RefusedCommand};
use crate::scan::bulk::MAX_BULK_LEN;
use crate::scan::frame_runs;
use crate::scan::limits::{Bounds, Limits};
use crate::scan::request::{NO_REQUEST, RequestScan, RequestScanner};
use crate::scan::stack::MAX_ELEMENTS;

/// The longest refused request that is kept until it is complete.
const MAX_REFUSED: usize = 64 * 1024;

/// What becomes of the request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Fate {
    #[default]
    Undecided,
    Passes,
    Dropped(RefusedCommand),
    /// The client has sent something that is not a request.
    Broken,
}

/// The screen of a session within a request. Between requests there is none.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    pub(crate) scanner: RequestScanner,
    /// The beginning of a request that is undecided or refused.
    pub(crate) held: Vec<u8>,
    fate: Fate,
}

/// What is to be forwarded instead of the bytes that were read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Screened {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The requests that were refused.
    pub refused: Vec<RefusedCommand>,
    /// The client has sent something that is not a request: nothing more is read from it.
    pub broken: bool,
}

/// What is forwarded: the bytes as they were read, as long as that is possible.
struct Output<'a> {
    read: &'a [u8],
    passed: usize,
    changed: Option<Screened>,
}

impl Output<'_> {
    fn pass(&mut self, piece: &[u8]) {
        match &mut self.changed {
            Some(changed) => changed.bytes.extend_from_slice(piece),
            None => self.passed += piece.len(),
        }
    }

    fn change(&mut self) -> &mut Screened {
        let unchanged = self.read.get(..self.passed).unwrap_or(self.read);
        self.changed
            .get_or_insert_with(|| Screened { bytes: unchanged.to_vec(), ..Screened::default() })
    }
}

impl Screen {
    /// The largest that can be counted: the server applies its own limits.
    fn bounds() -> Bounds {
        Bounds::from(&Limits {
            bulk_bytes: MAX_BULK_LEN.into(),
            elements: MAX_ELEMENTS,
            ..Limits::default()
        })
    }

    /// Whether it is between two requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.fate == Fate::Undecided && self.held.is_empty() && self.scanner.at_boundary()
    }

    /// Whether a part of the request under way was dropped, so that it cannot be read again.
    pub(crate) fn is_dropping(&self) -> bool {
        matches!(self.fate, Fate::Dropped(_)) && self.held.is_empty()
    }

    /// Reads what the client has sent, and holds at most `most` bytes after that. `None` if all of
    /// it is to be forwarded.
    pub(crate) fn read(
        &mut self,
        rules: &RefusalRules,
        bytes: &[u8],
        most: usize,
    ) -> Option<Screened> {
        let bounds = Self::bounds();
        let mut output = Output { read: bytes, passed: 0, changed: None };
        let mut input = bytes;
        while !input.is_empty() {
            if self.fate == Fate::Broken {
                output.change();
                break;
            }
            if self.is_idle() && !rules.has_frequent {
                let run = frame_runs::requests(input, &bounds, true, Some(rules));
                self.scanner.skip_run(run.whole, run.begun);
                output.pass(input.get(..input.len() - run.rest.len()).unwrap_or_default());
                input = run.rest;
                if run.begun.is_some() {
                    self.fate = Fate::Passes;
                }
                if input.is_empty() {
                    break;
                }
            }
            self.read_one(rules, &bounds, &mut input, &mut output);
        }
        if self.held.len() > most {
            if self.fate == Fate::Undecided {
                self.break_off(NO_REQUEST, &mut output);
            }
            self.held = Vec::new();
        }
        output.changed
    }

    /// Forwards bytes that are not a request in place of the client's, and nothing after them.
    fn break_off(&mut self, instead: &[u8], output: &mut Output<'_>) {
        (self.fate, self.held) = (Fate::Broken, Vec::new());
        let changed = output.change();
        changed.broken = true;
        changed.bytes.extend_from_slice(instead);
    }

    /// Reads up to the end of a request.
    fn read_one(
        &mut self,
        rules: &RefusalRules,
        bounds: &Bounds,
        input: &mut &[u8],
        output: &mut Output<'_>,
    ) {
        let before = *input;
        let scan = self.scanner.scan(input, bounds);
        let piece = before.get(..before.len() - input.len()).unwrap_or(before);
        let ended = matches!(scan, RequestScan::Request(..) | RequestScan::Empty);
        if scan == RequestScan::Invalid {
            let mut instead = self.scanner.as_invalid(bounds);
            if self.fate == Fate::Passes {
                output.pass(piece);
                // The server has seen the beginning of the request, and expects a header.
                instead = b"!\r\n";
            }
            return self.break_off(instead, output);
        }
        match self.fate {
            Fate::Passes => output.pass(piece),
            Fate::Dropped(_) | Fate::Broken => {
                output.change();
                self.hold_refused(piece);
            }
            Fate::Undecided => self.decide(rules, piece, ended, output),
        }
        if ended && self.fate != Fate::Broken {
            if let Fate::Dropped(command) = self.fate {
                let changed = output.change();
                changed.bytes.append(&mut command.substitute());
                changed.refused.push(command);
                self.held = Vec::new();
            }
            self.fate = Fate::Undecided;
        }
    }

    /// Keeps what was read of a refused request while it is small, so that it can be read again
    /// if the session continues on another connection within it.
    fn hold_refused(&mut self, piece: &[u8]) {
        if self.held.is_empty() {
            return;
        }
        if self.held.len() + piece.len() > MAX_REFUSED {
            self.held = Vec::new();
        } else {
            self.held.extend_from_slice(piece);
        }
    }

    fn decide(&mut self, rules: &RefusalRules, piece: &[u8], ended: bool, output: &mut Output<'_>) {
        let decision = if self.held.is_empty() {
            rules.decide(piece, ended)
        } else {
            self.held.extend_from_slice(piece);
            rules.decide(&self.held, ended)
        };
        match decision {
            Decision::Wait if ended => self.break_off(NO_REQUEST, output),
            Decision::Pass => {
                self.fate = Fate::Passes;
                if self.held.is_empty() {
                    output.pass(piece);
                } else {
                    output.change().bytes.append(&mut self.held);
                    self.held = Vec::new();
                }
            }
            Decision::Refuse(_) | Decision::Wait => {
                output.change();
                if self.held.is_empty() {
                    self.held = piece.to_vec();
                }
                if let Decision::Refuse(command) = decision {
                    self.fate = Fate::Dropped(command);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use crate::{Ledger, Limits, Refusals, RefusedCommand};

    fn ledger(entries: &[&str]) -> Ledger {
        let refusals = Refusals::new(entries.iter().copied()).unwrap();
        Ledger::new(&Limits::default()).with_refusals(refusals)
    }

    fn encode(words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    /// What is forwarded of these pieces, the labels of what is refused, and whether they are
    /// requests.
    fn forward<'a>(
        ledger: &mut Ledger,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> (Vec<u8>, Vec<&'static str>, bool) {
        let (mut all, mut refused, mut broken) = (Vec::new(), Vec::new(), false);
        for piece in pieces {
            if ledger.admits(piece, true) {
                all.extend_from_slice(piece);
                ledger.request(piece);
                continue;
            }
            let Some(screened) = ledger.screen(piece, usize::MAX) else {
                all.extend_from_slice(piece);
                continue;
            };
            all.extend_from_slice(&screened.bytes);
            refused.extend(screened.refused.iter().map(|it| it.label()));
            broken |= screened.broken;
        }
        (all, refused, broken)
    }

    const HELLO: &[u8] = b"__sentinel__:hello";
    const SUBSTITUTE: &[u8] = b"*1\r\n$20\r\nPOINTSMAN.REFUSED.50\r\n";
    const DEFAULT: &[&str] = &["PUBLISH __sentinel__:*", "publish exactly"];

    #[test]
    fn refuses_by_command_subcommand_and_channel() {
        let entries = ["publish a:*", "spublish b", "@deployment", "flushall", "client|kill"];
        let cases: &[(&[&[u8]], &[&str])] = &[
            (&[b"PUBLISH", b"a:x", b"m"], &["publish"]),
            (&[b"Publish", b"a:", b"m"], &["publish"]),
            (&[b"PUBLISH", b"a", b"m"], &[]),
            (&[b"PUBLISH", b"A:x", b"m"], &[]),
            (&[b"SPUBLISH", b"b", b"m"], &["spublish"]),
            (&[b"PUBLISH", b"bb", b"m"], &[]),
            (&[b"PUBLISH"], &[]),
            (&[b"config", b"set", b"a", b"b"], &["config"]),
            (&[b"config", b"get", b"a"], &[]),
            (&[b"CONFIG"], &[]),
            (&[b"ACL", b"SETUSER", b"x"], &["acl"]),
            (&[b"acl", b"whoami"], &[]),
            (&[b"cluster", &[b'x'; 200]], &["cluster"]),
            (&[b"FLUSHALL"], &["flushall"]),
            (&[b"client", b"Kill", b"x"], &["client"]),
            (&[b"client", b"list"], &[]),
            (&[b"shutdown", b"nosave"], &["shutdown"]),
            (&[&[b'x'; 300], b"a:x"], &[]),
            (&[b"GET", b"a:x"], &[]),
        ];
        for (words, expected) in cases {
            let request = encode(words);
            let whole = forward(&mut ledger(&entries), [&request[..]].into_iter());
            let bytes = forward(&mut ledger(&entries), request.chunks(1));
            assert_eq!(whole, bytes, "{words:?}");
            assert_eq!((&whole.1[..], whole.2), (*expected, false), "{words:?}");
            assert_eq!(whole.0 == request, expected.is_empty(), "{words:?}");
        }
    }

    #[test]
    fn replaces_only_the_error_of_the_refused_request() {
        let mut ledger = ledger(DEFAULT);
        let publish = encode(&[b"PUBLISH", b"__sentinel__:hello", b"m"]);
        let requests = [&encode(&[b"GET", b"k"])[..], &publish, &encode(&[b"GET", b"k"])].concat();
        let (forwarded, refused, broken) = forward(&mut ledger, [&requests[..]].into_iter());
        assert_eq!((refused.len(), broken), (1, false));
        ledger.request(&forwarded);
        assert_eq!((ledger.owed(), ledger.next_reply_is_refusal()), (3, None));
        ledger.reply(b"$-1\r\n");
        let refusal = ledger.next_reply_is_refusal().unwrap();
        assert!(
            refusal.reply().starts_with("-NOPERM ")
                && refusal.reply().ends_with("used as arguments\r\n")
        );
        ledger.reply(b"-ERR unknown command\r\n");
        assert_eq!((ledger.owed(), ledger.next_reply_is_refusal()), (1, None));
        ledger.reply(b"$-1\r\n");
        assert_eq!(ledger.session_state(), crate::SessionState::Quiet);
        assert_eq!(ledger.pin(), None, "it leaves nothing on the connection");
    }

    #[test]
    fn forwards_nothing_after_what_is_no_request() {
        let publish = encode(&[b"PUBLISH", b"__sentinel__:hello", b"m"]);
        for (broken, instead) in [
            (&b"GET \"k\r\n"[..], &b"\"\r\n"[..]),
            (b"GET a\0b\r\n", b"\"\r\n"),
            (b"*03\r\n", b"*x\r\n"),
            (b"*2147483647\r\n", b"*x\r\n"),
            (b"*1\r\n:1\r\n", b"*1\r\n!\r\n"),
            (b"*1\r\n$-1\r\n", b"*1\r\n!\r\n"),
            (&[b'x'; 65_537], b"*1\r\n!\r\n"),
        ] {
            let all = [broken, &publish, b"PUBLISH __sentinel__:hello x\r\n"].concat();
            for size in [1, 7, all.len()] {
                let (forwarded, refused, is_broken) =
                    forward(&mut ledger(DEFAULT), all.chunks(size));
                assert!(is_broken && refused.is_empty(), "{broken:?}");
                let has = |text: &[u8]| forwarded.windows(text.len()).any(|it| it == text);
                assert!(!has(b"PUBLISH") && !has(b"hello"));
                assert_eq!(forwarded, instead, "{:?}", &broken[..4]);
            }
        }
    }

    #[test]
    fn refuses_in_two_pieces_cut_anywhere() {
        let (get, publish) = (encode(&[b"GET", b"k"]), encode(&[b"PUBLISH", HELLO, b"x"]));
        let line = b"pub\"lish\" '__sentinel__:hello' x\r\n".as_slice();
        for refused in [&publish[..], line] {
            for cut in 1..refused.len() {
                let (begin, end) = refused.split_at(cut);
                let pieces = [[&get, begin].concat(), [end, &get].concat()];
                let (forwarded, labels, broken) =
                    forward(&mut ledger(DEFAULT), pieces.iter().map(Vec::as_slice));
                let expected = [&get[..], SUBSTITUTE, &get].concat();
                assert_eq!((forwarded, labels.len(), broken), (expected, 1, false), "cut at {cut}");
            }
        }
    }

    #[test]
    fn passes_ordinary_requests_with_quotes_and_escapes() {
        for line in [
            &b"SET k \"a\\x00b\"\r\n"[..],
            b"SET \"k\\x0d\\n\\\"\" 'a\\'b'\r\n",
            b"publish events \"\\x5f_sentinel__:hello\"\r\n",
            b"publish \"event\\x73\" x\r\n",
            b"publish __SENTINEL__:hello x\r\n",
            b"subscribe __sentinel__:hello\n",
            b"set __sentinel__:hello \"\\\\\"\n",
            b"\r\n",
        ] {
            for size in [1, 3, line.len()] {
                let (forwarded, refused, broken) = forward(&mut ledger(DEFAULT), line.chunks(size));
                assert_eq!((forwarded, refused.len(), broken), (line.to_vec(), 0, false));
            }
        }
    }

    #[test]
    fn refuses_or_passes_requests_larger_than_it_keeps() {
        let value = vec![b'y'; 70_000];
        let after = encode(&[b"PING"]);
        let requests = [
            (encode(&[b"CONFIG", b"SET", b"x", &value]), true),
            (encode(&[b"CONFIG", b"GET", b"x", &value]), false),
        ];
        for (large, is_refused) in requests {
            let (begin, end) = large.split_at(66_000);
            let mut ledger = ledger(&["@deployment"]);
            let first = forward(&mut ledger, begin.chunks(16_000));
            assert_eq!(first.0.is_empty(), is_refused);
            // What was dropped cannot be said again elsewhere, so the session is not moved.
            let is_within = ledger.session_state() != crate::SessionState::Quiet;
            assert_eq!(is_within, is_refused, "the helper records no other");
            let last = forward(&mut ledger, [end, &after].into_iter());
            assert_eq!(last.1.len(), usize::from(is_refused));
            let forwarded = [first.0, last.0].concat();
            assert!(forwarded.ends_with(&after) && forwarded.starts_with(&large) != is_refused);
        }
    }

    #[test]
    fn breaks_off_a_line_that_is_longer_than_may_be_held() {
        let line = [b"PUBLISH ".to_vec(), vec![b'a'; 20_000]].concat();
        let mut plenty = ledger(DEFAULT);
        let held = plenty.screen(&line, usize::MAX).expect("nothing is forwarded");
        assert!(held.bytes.is_empty() && !held.broken);
        assert!(plenty.screened() >= line.len());
        let mut scarce = ledger(DEFAULT);
        let (first, second) = line.split_at(16_000);
        let held = scarce.screen(first, 16_384).expect("nothing is forwarded");
        assert!(held.bytes.is_empty() && !held.broken);
        let ended = scarce.screen(second, 16_384).expect("other bytes are forwarded");
        assert!(ended.broken && ended.bytes == b"*1\r\n!\r\n", "{ended:?}");
        assert_eq!(scarce.screened(), 0);
    }

    #[test]
    fn refuses_in_opaque_sessions() {
        let (get, publish) = (encode(&[b"GET", b"k"]), encode(&[b"PUBLISH", HELLO, b"x"]));
        let mut ledger = ledger(DEFAULT);
        forward(&mut ledger, [&get[..15]].into_iter());
        ledger.reply(b"nonsense that is no reply\r\n");
        assert_eq!(ledger.session_state(), crate::SessionState::Opaque);
        let rest = [&get[15..], &publish, &get].concat();
        let (forwarded, refused, _) = forward(&mut ledger, [&rest[..]].into_iter());
        assert_eq!(forwarded, [&get[15..], SUBSTITUTE, &get].concat());
        assert_eq!(refused, ["publish"]);
    }

    #[test]
    fn rejects_entries_that_are_not_understood() {
        for entry in [
            "",
            "@",
            "@deploymnt",
            "deployment",
            "PUBLISH",
            "CONFIG SET",
            "PUBLISH a*b",
            "A|B|C",
            "PUBLISH a b",
            "x y z",
            "|SET",
            "CONFIG|",
            "PUBLISH [a]*",
            "é",
        ] {
            assert_eq!(Refusals::check(entry).is_err(), entry != "PUBLISH", "{entry:?}");
        }
        let checked = |entry| Refusals::check(entry).unwrap();
        assert_eq!(checked(" publish  News:* "), "PUBLISH News:*");
        assert_eq!(
            (checked("config|set"), checked("@deployment")),
            ("CONFIG|SET".into(), "@deployment".into())
        );
        assert!(
            crate::DEFAULT_REFUSALS.split(',').all(|it| Refusals::check(it).as_deref() == Ok(it))
        );
        assert!(RefusedCommand::labels().count() < 50);
    }

    proptest! {
        /// However a request is spelled and cut, it passes unchanged or is refused, and requests
        /// beside it pass.
        #[test]
        fn decides_the_same_in_any_pieces(
            picks in prop::collection::vec(0_usize..9, 1..12),
            cuts in prop::collection::vec(1_usize..60, 1..20),
            case in any::<u8>(),
        ) {
            let name: Vec<u8> = b"PUBLISH".iter().enumerate()
                .map(|(at, byte)| if case >> at & 1 == 1 { byte | 0x20 } else { *byte })
                .collect();
            let inline = |begin: &[u8], rest: &[u8]| [begin, &name[..], rest].concat();
            let (hello, long) = (HELLO, vec![b'x'; 500]);
            let all: [(Vec<u8>, bool); 9] = [
                (encode(&[b"GET", b"k"]), false),
                (encode(&[b"SET", b"k", &long]), false),
                (encode(&[&name, b"news", hello]), false),
                (encode(&[b"EVALSHA", b"x", b"0"]), false),
                (b"ECHO 'PUBLISH __sentinel__:hello x'\r\n".to_vec(), false),
                (encode(&[&name, hello, &long]), true),
                (encode(&[&name, b"exactly", b"m"]), true),
                (inline(b" '", b"' \"\\x5f_sentinel__:h\" x\r\n"), true),
                (inline(b"", b" __sent'inel__:h' x\n"), true),
            ];
            let bytes: Vec<u8> = picks.iter().flat_map(|it| all[*it].0.clone()).collect();
            let mut cuts = cuts.iter().cycle();
            let mut rest = &bytes[..];
            let pieces = std::iter::from_fn(|| {
                let (piece, after) = rest.split_at((*cuts.next()?).min(rest.len()));
                rest = after;
                (!piece.is_empty()).then_some(piece)
            });
            let (forwarded, refused, broken) = forward(&mut ledger(DEFAULT), pieces);
            prop_assert!(!broken);
            let expected: Vec<u8> = picks.iter()
                .flat_map(|it| if all[*it].1 { SUBSTITUTE.to_vec() } else { all[*it].0.clone() })
                .collect();
            prop_assert_eq!(refused.len(), picks.iter().filter(|it| all[**it].1).count());
            prop_assert_eq!(forwarded, expected);
        }
    }
}
