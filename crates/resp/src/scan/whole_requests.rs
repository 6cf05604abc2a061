//! Splits the bytes of one client into whole requests, for a connection that many clients share.
//!
//! Only a whole, well-formed and small request may be written to a shared connection: the server
//! answers anything else by closing the connection, and the rest of a request that its client never
//! sends would hold up all other clients. The caller buffers the bytes; this code says where the
//! next request ends and [how it is handled](Sharing), and scans no byte twice.

use crate::commands::sharing::{PromotionReason, Sharing, is_shared, sharing};
use crate::scan::bulk::{short_array, short_string, size};
use crate::scan::frame_runs::frequent;
use crate::scan::limits::Bounds;
use crate::scan::request::{RequestScan, RequestScanner};

/// The next request in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextRequest {
    /// It is incomplete, and more bytes are needed.
    Incomplete,
    /// An array without elements and its length in bytes. It is not answered and need not be sent.
    Empty(usize),
    /// A whole request.
    Whole {
        /// Its length in bytes.
        len: usize,
        /// How it is handled.
        sharing: Sharing,
    },
    /// The request at the beginning of the buffer, or all that follows, cannot be sent on a shared
    /// connection. The same result is returned until [`WholeRequests::reset`].
    Promotes(PromotionReason),
}

/// Finds whole requests at the beginning of a buffer. The default shares nothing.
#[derive(Debug, Default)]
pub struct WholeRequests {
    scanner: RequestScanner,
    limits: Bounds,
    max_len: usize,
    /// Bytes of the current request that were scanned.
    scanned: usize,
    promotes: Option<PromotionReason>,
}

impl WholeRequests {
    /// Requests of at most `max_len` bytes are shared.
    #[must_use]
    pub fn new(max_len: usize) -> Self {
        Self { max_len, ..Self::default() }
    }

    /// The session returned to shared connections, at the end of a request.
    pub fn reset(&mut self) {
        *self = Self::new(self.max_len);
    }

    /// Reads up to `most` short requests that are [shared](Sharing::Shared) at the beginning of
    /// `buffer`. Returns their number and length; the caller removes them. None if a request was
    /// found to be incomplete before.
    #[inline]
    #[must_use]
    pub fn run(&self, buffer: &[u8], most: u32, max_bytes: usize) -> (u32, usize) {
        let (mut count, mut rest) = (0, buffer);
        if self.scanned > 0 || self.promotes.is_some() {
            return (0, 0);
        }
        while count < most {
            let Some(after) = short_request(rest) else { break };
            let len = rest.len() - after.len();
            if len > self.max_len || buffer.len() - after.len() > max_bytes {
                break;
            }
            (count, rest) = (count + 1, after);
        }
        (count, buffer.len() - rest.len())
    }

    /// The next request in `buffer`, which begins where the last whole request ended: the caller
    /// removes each whole or empty request, and adds bytes if a request is incomplete.
    pub fn next(&mut self, buffer: &[u8]) -> NextRequest {
        self.next_corrected(buffer, |_name, built_in| built_in)
    }

    /// The next request in `buffer`; `correct` has the last word on how its command is handled.
    pub fn next_corrected(
        &mut self,
        buffer: &[u8],
        correct: impl FnOnce(&[u8], Sharing) -> Sharing,
    ) -> NextRequest {
        if let Some(reason) = self.promotes {
            return NextRequest::Promotes(reason);
        }
        // Fewer bytes than were scanned: the caller broke the rule, and nothing is known.
        let Some(mut input) = buffer.get(self.scanned..) else {
            return self.promote(PromotionReason::Inline);
        };
        if self.scanned == 0 && input.first().is_some_and(|first| *first != b'*') {
            return self.promote(PromotionReason::Inline);
        }
        let scan = self.scanner.scan(&mut input, &self.limits);
        let len = buffer.len() - input.len();
        match scan {
            RequestScan::More => {
                self.scanned = len;
                if len.saturating_add(size(self.scanner.body_left())) > self.max_len {
                    return self.promote(PromotionReason::LargeRequest);
                }
                NextRequest::Incomplete
            }
            RequestScan::Empty => {
                self.scanned = 0;
                NextRequest::Empty(len)
            }
            RequestScan::Request(..) if len > self.max_len => {
                self.promote(PromotionReason::LargeRequest)
            }
            RequestScan::Request(..) => {
                let words = buffer.get(..len).and_then(canonical_words);
                let handled = words.map(|words| {
                    let name = words.clone().next().unwrap_or_default();
                    correct(name, sharing(words))
                });
                match handled.unwrap_or(Sharing::Promotes(PromotionReason::Inline)) {
                    Sharing::Promotes(reason) => self.promote(reason),
                    sharing => {
                        self.scanned = 0;
                        NextRequest::Whole { len, sharing }
                    }
                }
            }
            RequestScan::Invalid => self.promote(PromotionReason::Inline),
        }
    }

    fn promote(&mut self, reason: PromotionReason) -> NextRequest {
        self.promotes = Some(reason);
        NextRequest::Promotes(reason)
    }
}

/// The bytes after the request at the beginning of `input`, if it is a short one that is shared.
#[inline]
fn short_request(input: &[u8]) -> Option<&[u8]> {
    let (words, rest) = short_array(input)?;
    // The most frequent commands are shared, which a test checks.
    let mut rest = match frequent(rest) {
        Some(rest) => rest,
        None => {
            let (name, rest) = short_string(rest)?;
            if !is_shared(name) {
                return None;
            }
            rest
        }
    };
    for _ in 1..words {
        (_, rest) = short_string(rest)?;
    }
    Some(rest)
}

/// The words of a whole request, if all of its lengths are written as clients write them. Servers
/// refuse a length such as `04` and close the connection, which would cost other clients their
/// replies.
fn canonical_words(request: &[u8]) -> Option<Words<'_>> {
    let (count, words) = header(request, b'*')?;
    let mut all = Words(words);
    let found = all.by_ref().count();
    (found == count && all.0.is_empty()).then_some(Words(words))
}

/// Strings one after another, up to the first one that is not canonical.
#[derive(Clone)]
struct Words<'a>(&'a [u8]);

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, body) = header(self.0, b'$')?;
        let (word, after) = body.split_at_checked(len)?;
        self.0 = after.strip_prefix(b"\r\n")?;
        Some(word)
    }
}

/// The length in a canonical header of that type, and the bytes after it.
fn header(bytes: &[u8], kind: u8) -> Option<(usize, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    let (digits, after) = rest.split_at_checked(end)?;
    let padded = digits.len() > 1 && digits.starts_with(b"0");
    if *first != kind || padded {
        return None;
    }
    Some((std::str::from_utf8(digits).ok()?.parse().ok()?, after.strip_prefix(b"\r\n")?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn encode(words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

    #[test]
    fn returns_whole_requests_only() {
        let mut requests = WholeRequests::new(1000);
        for len in 0..GET.len() {
            assert_eq!(requests.next(&GET[..len]), NextRequest::Incomplete);
        }
        let whole = NextRequest::Whole { len: GET.len(), sharing: Sharing::Shared };
        assert_eq!(requests.next(&[GET, GET].concat()), whole);
        assert_eq!(requests.next(b"*0\r\n"), NextRequest::Empty(4));
        let select = encode(&[b"select", b"3"]);
        let verified = NextRequest::Whole { len: select.len(), sharing: Sharing::Verified };
        assert_eq!(requests.next(&select), verified);
    }

    #[test]
    fn promotes_what_cannot_be_shared() {
        use PromotionReason as Reason;
        let large = encode(&[b"SET", b"k", &[b'v'; 1000]]);
        let cases: [(&[u8], Reason); 11] = [
            (b"PING\r\n", Reason::Inline),
            (b"\r\n", Reason::Inline),
            (b"*1\r\n:1\r\n", Reason::Inline),
            // Servers answer these with a protocol error and close the connection, or might.
            (b"*2\r\n$3\r\nGET\r\n$04\r\nkeys\r\n", Reason::Inline),
            (b"*02\r\n$3\r\nGET\r\n$4\r\nkeys\r\n", Reason::Inline),
            (b"*2\r\n$3\r\nGET\r\n$+4\r\nkeys\r\n", Reason::Inline),
            (b"*2\r\n$5\r\nHELLO\r\n$1\r\n3xx", Reason::Inline),
            (b"*2000000000\r\n", Reason::Inline),
            (&large, Reason::LargeRequest),
            (&large[..40], Reason::LargeRequest),
            (b"*1\r\n$5\r\nMULTI\r\n", Reason::Transaction),
        ];
        for (bytes, reason) in cases {
            let mut requests = WholeRequests::new(1000);
            assert_eq!(requests.next(bytes), NextRequest::Promotes(reason), "{reason:?}");
            assert_eq!(requests.next(GET), NextRequest::Promotes(reason), "until the reset");
            assert_eq!(requests.run(GET, 9, 999), (0, 0));
            requests.reset();
            assert!(matches!(requests.next(GET), NextRequest::Whole { .. }));
        }
    }

    #[test]
    fn shares_the_most_frequent_commands() {
        for name in [&b"GET"[..], b"set", b"Get", b"SeT"] {
            let request = encode(&[name, b"k"]);
            assert!(frequent(&request[4..]).is_some() && is_shared(name), "{name:?}");
        }
        for name in [&b"DEL"[..], b"GETX", b"GE", b"MULTI"] {
            assert_eq!(frequent(&encode(&[name, b"k"])[4..]), None, "{name:?}");
        }
    }

    #[test]
    fn limits_a_run_by_number_and_bytes() {
        let many = GET.repeat(10);
        let requests = WholeRequests::new(1000);
        assert_eq!(requests.run(&many, 3, 1000), (3, 3 * GET.len()));
        assert_eq!(requests.run(&many, 99, 5 * GET.len() - 1), (4, 4 * GET.len()));
        let mixed = [GET, GET, b"*1\r\n$5\r\nMULTI\r\n", GET].concat();
        assert_eq!(requests.run(&mixed, 99, 1000), (2, 2 * GET.len()));
        assert_eq!(WholeRequests::new(10).run(GET, 9, 999), (0, 0));
    }

    proptest! {
        /// The run and the scanner find the same requests, whatever the pieces.
        #[test]
        fn finds_the_same_requests_in_any_pieces(
            names in prop::collection::vec(0_usize..8, 1..20),
            cuts in prop::collection::vec(1_usize..40, 1..20),
        ) {
            let words: [&[&[u8]]; 8] = [
                &[b"GET", b"k"], &[b"set", b"k", b"v"], &[b"PING"], &[b"EVAL", b"x", b"0"],
                &[b"SELECT", b"1"], &[b"MGET", b"a", b"b", b"c"], &[b"ECHO", &[b'x'; 150]],
                &[b"SCAN", b"0"],
            ];
            let all: Vec<Vec<u8>> = names.iter().map(|name| encode(words[*name])).collect();
            let bytes = all.concat();
            let mut requests = WholeRequests::new(400);
            let (mut buffer, mut found) = (Vec::new(), Vec::new());
            let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
            while !rest.is_empty() || !buffer.is_empty() {
                let size = (*cuts.next().unwrap()).min(rest.len());
                buffer.extend_from_slice(&rest[..size]);
                rest = &rest[size..];
                let (count, len) = requests.run(&buffer, 2, 100);
                prop_assert!(count <= 2 && len <= 100);
                for _ in 0..count {
                    let len = all[found.len()].len();
                    found.push(buffer.drain(..len).collect::<Vec<u8>>());
                }
                match requests.next(&buffer) {
                    NextRequest::Incomplete => {}
                    NextRequest::Whole { len, .. } => found.push(buffer.drain(..len).collect()),
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            prop_assert_eq!(found, all);
        }
    }
}
