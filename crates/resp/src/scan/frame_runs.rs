//! Runs of everyday frames: short requests that leave no trace in the connection, and the short
//! replies to them.
//!
//! Nearly all that Redis clients say is of this kind, and a pipeline is nothing else. Each byte
//! costs so little to scan that carrying the state from one frame to the next through memory would
//! cost more than that. So a run is taken in one loop whose state is a few local variables; the
//! scanners take over where it ends, at whatever is longer, rarer, or not all there.
//!
//! Deliberately absent: any opinion. What is taken here would be taken byte for byte alike by
//! [`request`](crate::scan::request) and [`reply`](crate::scan::reply); `run_tests.rs` and the fuzz targets
//! compare the two.

use crate::commands::class::Class;
use crate::commands::table::ClassLookup;
use crate::scan::bulk::{MAX_SHORT_LEN, short_array, short_string};
use crate::scan::limits::Bounds;

/// The longest line with a number that is looked for here: any 64-bit one.
const MAX_NUMBER_LEN: usize = 22;

/// What a run of requests came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestRun<'a> {
    /// So many ordinary requests.
    pub(crate) whole: u32,
    /// Words of one more, and how many of them are still to come: at least its name was taken, and
    /// it is ordinary too.
    pub(crate) begun: Option<(u32, u32)>,
    /// What is behind all that.
    pub(crate) rest: &'a [u8],
}

/// Takes a run of requests off the front of `input`, which begins between two. `scripts`: to run
/// one from the cache is ordinary, which it is outside of transactions.
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
            let Some((_, behind)) = short_string(rest) else { break };
            (rest, left) = (behind, left - 1);
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

/// What is behind the name at the front of `input`, if that is one of the two most frequent: they
/// are known by one look at eight bytes, which is less than a look into the table of all names.
#[inline]
fn frequent(input: &[u8]) -> Option<&[u8]> {
    const GET: u64 = u64::from_le_bytes(*b"$3\r\nget\r");
    const SET: u64 = u64::from_le_bytes(*b"$3\r\nset\r");
    const CASE: u64 = u64::from_le_bytes(*b"\0\0\0\0   \0");
    let (head, rest) = input.split_first_chunk::<9>()?;
    let head = u64::from_le_bytes(*head.first_chunk::<8>()?) | CASE;
    (head == GET || head == SET).then_some(rest)
}

/// Takes up to `most` replies off the front of `input`, which begins between two, and returns how
/// many and what is behind them.
#[inline]
pub(crate) fn replies<'a>(input: &'a [u8], most: u32, limits: &Bounds) -> (u32, &'a [u8]) {
    let (mut whole, mut rest) = (0, input);
    if limits.bulk_bytes < MAX_SHORT_LEN {
        return (whole, rest);
    }
    while whole < most {
        let behind = match rest.first() {
            Some(b'$') => short_string(rest)
                .map(|(_, behind)| behind)
                .or_else(|| rest.strip_prefix(b"$-1\r\n")),
            Some(b'+') => rest.strip_prefix(b"+OK\r\n"),
            Some(b':') => number(rest),
            _ => None,
        };
        let Some(behind) = behind else { break };
        (whole, rest) = (whole + 1, behind);
    }
    (whole, rest)
}

/// What is behind the line at the front of `input`, if it is as short as a number's.
fn number(input: &[u8]) -> Option<&[u8]> {
    let feed = input.iter().take(MAX_NUMBER_LEN + 1).position(|byte| *byte == b'\n')?;
    let (line, behind) = input.split_at_checked(feed + 1)?;
    line.ends_with(b"\r\n").then_some(behind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;

    fn bounds() -> Bounds {
        Bounds::from(&Limits::default())
    }

    #[test]
    fn a_run_ends_at_what_is_not_ordinary_not_short_or_not_all_there() {
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
    fn replies_are_taken_as_many_as_are_owed() {
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
