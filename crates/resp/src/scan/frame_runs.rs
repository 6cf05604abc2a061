//! The fast path: scans runs of short ordinary requests, and of the short replies to them, in one
//! loop.
//!
//! Nearly all traffic of Redis clients is of this kind. Scanning a byte costs so little that saving
//! and restoring the state of the scanner between frames would cost more. So a run is read in one
//! loop whose state is in a few local variables. The scanners continue where it ends: at a frame
//! that is longer, rarer, or incomplete.
//!
//! Deliberately absent: other rules. Each frame read here would be read in the same way by
//! [`request`](crate::scan::request) and [`reply`](crate::scan::reply); `run_tests.rs` and the fuzz
//! targets compare the two.

use crate::commands::class::Class;
use crate::commands::table::ClassLookup;
use crate::scan::bulk::{MAX_SHORT_LEN, short_array, short_string};
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
/// running a script from the cache is ordinary, as it is outside of transactions.
#[inline]
pub(crate) fn requests<'a>(input: &'a [u8], limits: &Bounds, scripts: bool) -> RequestRun<'a> {
    let mut run = RequestRun { whole: 0, begun: None, rest: input };
    if limits.bulk_bytes < MAX_SHORT_LEN || limits.elements < 9 {
        return run;
    }
    while let Some((words, rest)) = short_array(run.rest) {
        let mut rest = match frequent(rest) {
            Some(rest) => rest,
            None => {
                let Some((name, rest)) = short_string(rest) else { break };
                match ClassLookup::START.with(name) {
                    ClassLookup::Known(Class::Ordinary) => {}
                    ClassLookup::Known(Class::EvalSha) if scripts => {}
                    _ => break,
                }
                rest
            }
        };
        let mut left = words - 1;
        while left > 0 {
            let Some((_, after)) = short_string(rest) else { break };
            (rest, left) = (after, left - 1);
        }
        run.rest = rest;
        if left > 0 {
            run.begun = Some((words, left));
            break;
        }
        run.whole += 1;
    }
    run
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
        let after = match rest.first() {
            Some(b'$') => {
                short_string(rest).map(|(_, after)| after).or_else(|| rest.strip_prefix(b"$-1\r\n"))
            }
            Some(b'+') => rest.strip_prefix(b"+OK\r\n"),
            Some(b':') => number(rest),
            _ => None,
        };
        let Some(after) = after else { break };
        (whole, rest) = (whole + 1, after);
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
                requests(&input, &bounds(), true),
                RequestRun { whole: 2, begun: None, rest: end },
                "{end:?}"
            );
        }
        let begun = [get.as_slice(), b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000\r\nxxx"].concat();
        let run = requests(&begun, &bounds(), true);
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
