//! Requests that a server executes whatever is set on their connection, so that one may go ahead of
//! the state of its session, if nothing follows it there.
//!
//! A server that runs a script for too long refuses nearly everything, `SELECT` included. What ends
//! the script it executes, for any connection of a user with that permission. And no user is needed
//! to authenticate.
//!
//! `CLIENT UNBLOCK` is not among them, since a server that runs a script refuses it, and `FUNCTION
//! STATS` ends nothing.

use crate::commands::request_words::words;
use crate::scan::limits::Bounds;
use crate::scan::request::{RequestScan, RequestScanner};

/// The request at the beginning of `bytes`, and the bytes after it, if it is whole and ends a
/// script.
#[must_use]
pub fn split_interrupt(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, words) = first(bytes)?;
    let [command, argument] = words.as_slice() else { return None };
    let is = |name: &[u8], with: &[u8]| {
        command.eq_ignore_ascii_case(name) && argument.eq_ignore_ascii_case(with)
    };
    let ends_script =
        is(b"SCRIPT", b"KILL") || is(b"FUNCTION", b"KILL") || is(b"SHUTDOWN", b"NOSAVE");
    bytes.split_at_checked(len).filter(|_| ends_script)
}

/// The request at the beginning of `bytes`, and the bytes after it, if it is whole and has
/// credentials.
#[must_use]
pub fn split_authentication(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, words) = first(bytes)?;
    let is = |word: &[u8], name: &[u8]| word.eq_ignore_ascii_case(name);
    let (command, arguments) = words.split_first()?;
    let authenticates = is(command, b"AUTH")
        || (is(command, b"HELLO") && arguments.iter().skip(1).any(|word| is(word, b"AUTH")));
    bytes.split_at_checked(len).filter(|_| authenticates)
}

/// The length and the words of the request at the beginning of `bytes`, if it is whole.
fn first(bytes: &[u8]) -> Option<(usize, Vec<&[u8]>)> {
    let mut rest = bytes;
    let scan = RequestScanner::default().scan(&mut rest, &Bounds::default());
    if !matches!(scan, RequestScan::Request(..)) {
        return None;
    }
    let len = bytes.len().checked_sub(rest.len())?;
    Some((len, words(bytes.get(..len)?)?))
}

#[cfg(test)]
mod tests {
    use super::{split_authentication, split_interrupt};

    const KILL: &[u8] = b"*2\r\n$6\r\nscript\r\n$4\r\nKill\r\n";

    #[test]
    fn finds_one_whole_request_that_ends_a_script() {
        for len in 0..KILL.len() {
            assert_eq!(split_interrupt(&KILL[..len]), None, "{len} bytes");
        }
        let others: [&[u8]; 3] = [b"", b"*3\r\n$3\r\nSET", KILL];
        for rest in others {
            let both = [KILL, rest].concat();
            assert_eq!(split_interrupt(&both), Some((KILL, rest)));
        }
        for line in ["FUNCTION KILL\r\n", "  shutdown  nosave \n", "SCRIPT KILL\n"] {
            assert_eq!(split_interrupt(line.as_bytes()), Some((line.as_bytes(), &b""[..])));
        }
    }

    #[test]
    fn finds_a_request_with_credentials() {
        for line in ["AUTH x\r\n", "auth me x\r\n", "HELLO 3 setname n auth me x\r\n"] {
            let both = [line.as_bytes(), KILL].concat();
            assert_eq!(split_authentication(&both), Some((line.as_bytes(), KILL)), "{line}");
            assert_eq!(split_authentication(&both[..line.len() - 1]), None, "{line}");
        }
        for line in ["HELLO\r\n", "HELLO 3\r\n", "HELLO auth\r\n", "GET auth\r\n", "\r\n"] {
            assert_eq!(split_authentication(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn finds_nothing_that_depends_on_a_database() {
        let others = [
            "GET k",
            "SCRIPT",
            "SCRIPT FLUSH",
            "SCRIPT KILL now",
            "SCRIPT LOAD kill",
            "FUNCTION STATS",
            "FUNCTION FLUSH",
            "SHUTDOWN",
            "SHUTDOWN SAVE",
            "SHUTDOWN NOSAVE NOW",
            "CLIENT KILL",
            "\"SCRIPT\" KILL",
            "",
        ];
        for line in others {
            assert_eq!(split_interrupt(format!("{line}\r\n").as_bytes()), None, "{line}");
        }
        // It is not the first one.
        assert_eq!(split_interrupt(&[b"GET k\r\n", KILL].concat()), None);
        assert_eq!(split_interrupt(&[b"*0\r\n", KILL].concat()), None);
        assert_eq!(split_interrupt(b"*2\r\n:1\r\n"), None);
    }
}
