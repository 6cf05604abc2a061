//! Error replies to requests that were never forwarded.
//!
//! A request that waited at a closed gate until the timeout gets an error instead of a closed
//! connection. The error says that the request was not executed, in a form on which client
//! libraries retry. There is one reply per request, in order, so that a pipeline reads as many
//! replies as it expects. `EXEC` in an open transaction is refused as Redis refuses it
//! (`redis:src/server.c`, `rejectCommand`), which is correct: the transaction ends with its
//! connection.
//!
//! The connection must be closed after these replies, because a client whose `SELECT` or `MULTI`
//! was refused must not continue on it.
//!
//! Requests that may have been executed are not answered here.

use crate::commands::class::Class;
use crate::scan::limits::Bounds;
use crate::scan::request::{RequestScan, RequestScanner};

/// Maximum bytes of error replies to one client. A pipeline of more than five hundred requests is
/// answered in part.
const MAX_BYTES: usize = 64 * 1024;

/// Generates error replies to requests that were not forwarded. The requests are given from a
/// request boundary on, in pieces of any size.
#[derive(Debug, Default)]
pub struct ErrorReplies {
    /// The error text after its first byte. An error line is the same in RESP2 and RESP3.
    error: &'static str,
    requests: RequestScanner,
    limits: Bounds,
    transaction: bool,
    /// No further replies can be given.
    finished: bool,
    lines: Vec<u8>,
}

impl ErrorReplies {
    /// For a session at a request boundary. `error` is the error text, beginning with its code;
    /// `transaction` is whether a `MULTI` of the session was answered with success.
    #[must_use]
    pub fn new(error: &'static str, transaction: bool) -> Self {
        Self { error, transaction, ..Self::default() }
    }

    /// Adds replies to the requests that end within `bytes`.
    pub fn request(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        while !input.is_empty() && !self.finished {
            match self.requests.scan(&mut input, &self.limits) {
                RequestScan::More => return,
                RequestScan::Empty => {}
                // There is no reply to a request that switches replies off or is malformed, nor to
                // anything after it.
                RequestScan::Request(
                    Class::ReplyOff | Class::ReplySkip | Class::Replication,
                    _,
                )
                | RequestScan::Invalid => {
                    self.finished = true;
                }
                RequestScan::Request(class, _) => self.refuse(class),
            }
        }
    }

    fn refuse(&mut self, class: Class) {
        let aborted = self.transaction && class == Class::Exec;
        if aborted {
            self.lines.extend_from_slice(b"-EXECABORT Transaction discarded because of: ");
        } else {
            self.lines.push(b'-');
        }
        self.lines.extend_from_slice(self.error.as_bytes());
        self.lines.extend_from_slice(b"\r\n");
        self.transaction =
            self.transaction && !matches!(class, Class::Exec | Class::Discard | Class::Reset);
        self.finished = self.lines.len() >= MAX_BYTES;
    }

    /// Whether further requests can be answered.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        !self.finished
    }

    /// The replies so far, to be written to the client before its connection is closed.
    #[must_use]
    pub fn lines(&self) -> &[u8] {
        &self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorReplies, MAX_BYTES};

    const WHY: &str =
        "LOADING not now, and about as much text as the real message, which is ninety bytes or so";

    fn refused(requests: &[u8], transaction: bool) -> Vec<String> {
        let mut refusals = ErrorReplies::new(WHY, transaction);
        // One byte at a time.
        requests.iter().for_each(|byte| refusals.request(&[*byte]));
        let text = String::from_utf8(refusals.lines().to_vec()).unwrap();
        assert!(text.is_empty() || text.ends_with("\r\n"));
        text.split_terminator("\r\n")
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn answers_each_complete_request_once() {
        assert_eq!(
            refused(b"*1\r\n$4\r\nPING\r\nGET k\r\n\r\n*0\r\n*2\r\n$3\r\nGET\r\n$1\r\n", false),
            ["-LOADING"; 2]
        );
        assert_eq!(refused(b"", false), [""; 0]);
    }

    #[test]
    fn aborts_exec_only_in_an_open_transaction() {
        let all = b"GET k\r\nEXEC\r\nMULTI\r\nGET k\r\nEXEC\r\n";
        assert_eq!(
            refused(all, true),
            ["-LOADING", "-EXECABORT", "-LOADING", "-LOADING", "-LOADING"]
        );
        assert_eq!(refused(b"DISCARD\r\nEXEC\r\n", true), ["-LOADING", "-LOADING"]);
    }

    #[test]
    fn stops_after_reply_off_or_malformed_request() {
        assert_eq!(refused(b"PING\r\nCLIENT REPLY OFF\r\nPING\r\n", false), ["-LOADING"]);
        assert_eq!(refused(b"PING\r\n*1\r\nnonsense\r\nPING\r\n", false), ["-LOADING"]);
    }

    #[test]
    fn bounds_the_replies_to_a_flood() {
        let mut refusals = ErrorReplies::new(WHY, false);
        refusals.request(&b"a\n".repeat(100_000));
        assert!(!refusals.wants_more());
        assert!((MAX_BYTES..MAX_BYTES + 200).contains(&refusals.lines().len()));
    }
}
