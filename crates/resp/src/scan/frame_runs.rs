//! The fast path: scans runs of short ordinary requests, and of the short replies to them, in one
//! loop.
//!
//! Nearly all traffic of Redis clients is of this kind. Scanning a byte costs so little that saving
//! and restoring the state of the scanner between frames would cost more. So a run is read in one
//! loop whose state is in a few local variables. The scanners continue where it ends: at a frame
//! that is longer, rarer, or incomplete.
//!
//! There are no rules of its own: [`request`](crate::scan::request) and
//! [`reply`](crate::scan::reply) would find the same frames; `frame_run_tests.rs` and the fuzz
//! targets compare both.

use crate::commands::class::Class;
use crate::commands::refused::RefusalRules;
use crate::commands::table::ClassLookup;
use crate::scan::bulk::{CRLF, MAX_SHORT_LEN, short_array, short_string, size};
use crate::scan::limits::Bounds;

/// Maximum length of a line with a number that is read here: that of any 64-bit number.
const MAX_NUMBER_LEN: usize = 22;

/// The result of scanning a run of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestRun<'a> {
    /// Number of complete ordinary requests.
    pub(crate) whole: u32,
    /// Number of words of one more ordinary request, and how many of them are missing. At least its
    /// name was read.
    pub(crate) begun: Option<(u32, u32)>,
    /// The bytes after that.
    pub(crate) rest: &'a [u8],
}

/// Scans a run of requests at the beginning of `input`, which is at a request boundary. `scripts`:
/// running a script from the cache is ordinary, as it is outside of transactions. The run ends
/// before a request that may be refused by `rules`, which are without `GET` and `SET`.
///
/// Inlined where there are no rules, so that it looks for none.
#[inline(always)]
pub(crate) fn requests<'a>(
    input: &'a [u8],
    limits: &Bounds,
    scripts: bool,
    rules: Option<&RefusalRules>,
) -> RequestRun<'a> {
    let mut run = RequestRun { whole: 0, begun: None, rest: input };
    if limits.bulk_bytes < MAX_SHORT_LEN || limits.elements < 9 {
        return run;
    }
    while let Some((words, rest)) = short_array(run.rest) {
        let rest = match frequent(rest) {
            Some(rest) => rest,
            None => {
                let Some((name, rest)) = short_string(rest) else { break };
                match ClassLookup::START.with(name) {
                    ClassLookup::Known(Class::Ordinary) => {}
                    ClassLookup::Known(Class::EvalSha) if scripts => {}
                    _ => break,
                }
                if rules.is_some_and(|rules| rules.may_refuse(name)) {
                    break;
                }
                rest
            }
        };
        let (request, left) = (run.rest, words - 1);
        if !run.arguments(rest, words, left) {
            break;
        }
        if run.rest.is_empty() {
            break;
        }
        // A request without arguments says nothing about the string that may follow it.
        let Some(left) = left.checked_sub(1) else { continue };
        let Some(like) = Beginning::of_request(request, rest) else { continue };
        while let Some(rest) = like.skip(run.rest) {
            if !run.arguments(rest, words, left) {
                return run;
            }
        }
    }
    run
}

impl<'a> RequestRun<'a> {
    /// Reads the last `left` words of a request. Returns whether it is complete.
    #[inline(always)]
    fn arguments(&mut self, mut rest: &'a [u8], words: u32, mut left: u32) -> bool {
        while left > 0 {
            let Some((_, after)) = short_string(rest) else { break };
            (rest, left) = (after, left - 1);
        }
        self.rest = rest;
        if left > 0 {
            self.begun = Some((words, left));
            return false;
        }
        self.whole += 1;
        true
    }
}

/// The beginning of a frame up to the end of the first length that it states. In a pipeline, most
/// frames begin as the one before does, and comparing costs a fraction of reading.
#[derive(Debug, Clone, Copy)]
struct Beginning<const N: usize> {
    /// The first bytes, and which of their bits belong to the beginning.
    bytes: [u8; N],
    mask: u64,
    /// The length of the frame up to the end of the text after that length.
    len: usize,
}

/// A request begins with at least two headers and a name.
const REQUEST: usize = 24;
/// A reply may be as short as four bytes.
const REPLY: usize = 8;

/// The mask of the first `n` of eight bytes in little-endian order; `None` for more.
#[inline]
fn mask(n: usize) -> Option<u64> {
    let left = 8_usize.checked_sub(n)?;
    u64::MAX.checked_shr(u32::try_from(8 * left).ok()?).or(Some(0))
}

impl Beginning<REQUEST> {
    /// The beginning of a request whose first argument begins at `arguments`; `None` if what comes
    /// before is too short or too long to be compared.
    #[inline]
    fn of_request(request: &[u8], arguments: &[u8]) -> Option<Self> {
        let bytes = *request.first_chunk()?;
        let (text, after) = short_string(arguments)?;
        let len = request.len() - after.len();
        let begin = len.checked_sub(text.len() + size(CRLF))?;
        Some(Self { bytes, mask: mask(begin.checked_sub(REQUEST - 8)?)?, len })
    }

    /// The bytes after the first argument, if `input` begins so.
    #[inline]
    fn skip<'a>(&self, input: &'a [u8]) -> Option<&'a [u8]> {
        let found: &[u8; REQUEST] = input.first_chunk()?;
        let [found, own] = [found, &self.bytes].map(|bytes| {
            let [first @ .., a, b, c, d, e, f, g, h] = *bytes;
            (u128::from_le_bytes(first), u64::from_le_bytes([a, b, c, d, e, f, g, h]))
        });
        let same = found.0 == own.0 && (found.1 ^ own.1) & self.mask == 0;
        if same { input.get(self.len..) } else { None }
    }
}

impl Beginning<REPLY> {
    /// The beginning of a reply of `len` bytes that is a string.
    #[inline]
    fn of_reply(reply: &[u8], len: usize) -> Option<Self> {
        let bytes: [u8; REPLY] = *reply.first_chunk()?;
        let begin = if bytes[2] == b'\r' { 4 } else { 5 };
        Some(Self { bytes, mask: mask(begin)?, len })
    }

    /// The bytes after the reply, if `input` begins so.
    #[inline]
    fn skip<'a>(&self, input: &'a [u8]) -> Option<&'a [u8]> {
        let found = u64::from_le_bytes(*input.first_chunk()?);
        let same = (found ^ u64::from_le_bytes(self.bytes)) & self.mask == 0;
        if same { input.get(self.len..) } else { None }
    }
}

/// The bytes after the name at the beginning of `input`, if that is one of the two most frequent
/// names. One comparison of eight bytes costs less than a lookup in the table of all names.
#[inline]
pub(crate) fn frequent(input: &[u8]) -> Option<&[u8]> {
    const GET: u64 = u64::from_le_bytes(*b"$3\r\nget\r");
    const SET: u64 = u64::from_le_bytes(*b"$3\r\nset\r");
    const CASE: u64 = u64::from_le_bytes(*b"\0\0\0\0   \0");
    let (head, rest) = input.split_first_chunk::<9>()?;
    let head = u64::from_le_bytes(*head.first_chunk::<8>()?) | CASE;
    (head == GET || head == SET).then_some(rest)
}

/// Scans up to `most` replies at the beginning of `input`, which is at a reply boundary. Returns
/// their number and the bytes after them.
#[inline]
pub(crate) fn replies<'a>(input: &'a [u8], most: u32, limits: &Bounds) -> (u32, &'a [u8]) {
    let (mut whole, mut rest) = (0, input);
    if limits.bulk_bytes < MAX_SHORT_LEN {
        return (whole, rest);
    }
    while whole < most {
        let (after, is_string) = match rest.first() {
            Some(b'$') => {
                let string = short_string(rest).map(|(_, after)| after);
                (string.or_else(|| rest.strip_prefix(b"$-1\r\n")), true)
            }
            Some(b'+') => (rest.strip_prefix(b"+OK\r\n"), true),
            Some(b':') => (number(rest), false),
            _ => (None, false),
        };
        let Some(after) = after else { break };
        let reply = rest;
        (whole, rest) = (whole + 1, after);
        if !is_string || rest.is_empty() {
            continue;
        }
        let Some(like) = Beginning::of_reply(reply, reply.len() - after.len()) else { continue };
        while whole < most
            && let Some(after) = like.skip(rest)
        {
            (whole, rest) = (whole + 1, after);
        }
    }
    (whole, rest)
}

/// The bytes after the line at the beginning of `input`, if it is as short as that of a number.
fn number(input: &[u8]) -> Option<&[u8]> {
    let feed = input.iter().take(MAX_NUMBER_LEN + 1).position(|byte| *byte == b'\n')?;
    let (line, after) = input.split_at_checked(feed + 1)?;
    line.ends_with(b"\r\n").then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    fn bounds() -> Bounds {
        Bounds::from(&Limits::default())
    }

    #[test]
    fn ends_a_run_at_special_long_or_incomplete_requests() {
        let get = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n";
        let ends: &[&[u8]] = &[
            b"",
            b"*",
            b"*2\r\n$3\r\nGE",
            b"*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n",
            b"*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n",
            b"PING\r\n",
            b"\r\n",
            b"*0\r\n",
            b"*10\r\n$4\r\nMSET\r\n",
            b"*2\r\n$100\r\n",
            b"*1\r\n:1\r\n",
        ];
        for end in ends {
            let input = [get.as_slice(), get, end].concat();
            assert_eq!(
                requests(&input, &bounds(), true, None),
                RequestRun { whole: 2, begun: None, rest: end },
                "{end:?}"
            );
        }
        // A string that belongs to no request.
        let ping = b"*1\r\n$4\r\nPING\r\n".as_slice();
        let stray = [ping, b"$3\r\nabc\r\n", ping, b"$3\r\nabc\r\n"].concat();
        let run = requests(&stray, &bounds(), true, None);
        assert_eq!(run, RequestRun { whole: 1, begun: None, rest: &stray[ping.len()..] });
        let begun = [get.as_slice(), b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000\r\nxxx"].concat();
        let run = requests(&begun, &bounds(), true, None);
        assert_eq!(run, RequestRun { whole: 1, begun: Some((3, 1)), rest: b"$1000\r\nxxx" });
    }

    #[test]
    fn reads_at_most_the_owed_replies() {
        let each: &[&[u8]] = &[
            b"$3\r\nxxx\r\n",
            b"+OK\r\n",
            b"$-1\r\n",
            b":-9223372036854775808\r\n",
            b"$0\r\n\r\n",
        ];
        for end in [
            &b""[..],
            b"-ERR x\r\n",
            b"+QUEUED\r\n",
            b"*0\r\n",
            b":1\n",
            b":12345678901234567890123\r\n",
            b"$9\r\nx",
        ] {
            let input = [each.concat().as_slice(), end].concat();
            assert_eq!(replies(&input, u32::MAX, &bounds()), (5, end), "{end:?}");
            let (few, rest) = replies(&input, 2, &bounds());
            assert_eq!((few, rest), (2, &input[14..]));
        }
    }
}
