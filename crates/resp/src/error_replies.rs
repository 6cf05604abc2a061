//! Answers to requests that were certainly never forwarded.
//!
//! A request that waited at the gate in vain deserves better than a closed connection: an error
//! that says it was not executed, in a form that the clients which try again by themselves know.
//! One a request, in their order, so that a pipeline reads as many replies as it expects. `EXEC` in
//! an open transaction is refused as Redis refuses it (`redis:src/server.c`, `rejectCommand`),
//! which is the truth: the transaction goes with its connection.
//!
//! The connection must be closed behind the last of these: who is refused a `SELECT` or a `MULTI`
//! must not go on as if it had been accepted.
//!
//! Deliberately absent: any other reply. What may have been executed is not answered here.

use crate::commands::class::Class;
use crate::scan::limits::{Bounds, Limits};
use crate::scan::request::{RequestScan, RequestScanner};

/// Most bytes of answers to one client: a pipeline of more than five hundred requests is cut short.
const MOST: usize = 64 * 1024;

/// Writes the refusals of a client's unforwarded requests, shown from a boundary between two
/// requests on, in pieces of any size.
#[derive(Debug)]
pub struct ErrorReplies {
    /// The text of a refusal behind its first byte. An error line reads the same in RESP2 and
    /// RESP3.
    why: &'static str,
    requests: RequestScanner,
    limits: Bounds,
    transaction: bool,
    /// Something came after which no more answers can be given.
    over: bool,
    lines: Vec<u8>,
}

impl ErrorReplies {
    /// For a session between two requests. `why`: the text of the error, its code first;
    /// `transaction`: a `MULTI` of the session has been answered with success.
    #[must_use]
    pub fn new(why: &'static str, transaction: bool) -> Self {
        let limits = Bounds::from(&Limits::default());
        Self {
            why,
            requests: RequestScanner::new(),
            limits,
            transaction,
            over: false,
            lines: Vec::new(),
        }
    }

    /// Answers the requests that end within `bytes`.
    pub fn request(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        while !input.is_empty() && !self.over {
            match self.requests.scan(&mut input, &self.limits) {
                RequestScan::More => return,
                RequestScan::Empty => {}
                // Those that ask for silence, and what is no request at all, have no answer, nor
                // has anything behind them.
                RequestScan::Request(
                    Class::ReplyOff | Class::ReplySkip | Class::Replication,
                    _,
                )
                | RequestScan::Invalid => {
                    self.over = true;
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
        self.lines.extend_from_slice(self.why.as_bytes());
        self.lines.extend_from_slice(b"\r\n");
        self.transaction =
            self.transaction && !matches!(class, Class::Exec | Class::Discard | Class::Reset);
        self.over = self.lines.len() >= MOST;
    }

    /// Whether more requests could be answered.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        !self.over
    }

    /// The answers so far, to be written to the client before its connection is ended.
    #[must_use]
    pub fn lines(&self) -> &[u8] {
        &self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorReplies, MOST};

    const WHY: &str = "LOADING not now, and about as much text as there is in earnest, which is ninety bytes or so";

    fn refused(requests: &[u8], transaction: bool) -> Vec<String> {
        let mut refusals = ErrorReplies::new(WHY, transaction);
        // A byte at a time, as the network may have it.
        requests.iter().for_each(|byte| refusals.request(&[*byte]));
        let text = String::from_utf8(refusals.lines().to_vec()).unwrap();
        assert!(text.is_empty() || text.ends_with("\r\n"));
        text.split_terminator("\r\n")
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn one_answer_a_whole_request_and_none_for_half_of_one() {
        assert_eq!(
            refused(b"*1\r\n$4\r\nPING\r\nGET k\r\n\r\n*0\r\n*2\r\n$3\r\nGET\r\n$1\r\n", false),
            ["-LOADING"; 2]
        );
        assert_eq!(refused(b"", false), [""; 0]);
    }

    #[test]
    fn exec_is_aborted_where_a_transaction_was_open_and_only_there() {
        let all = b"GET k\r\nEXEC\r\nMULTI\r\nGET k\r\nEXEC\r\n";
        assert_eq!(
            refused(all, true),
            ["-LOADING", "-EXECABORT", "-LOADING", "-LOADING", "-LOADING"]
        );
        assert_eq!(refused(b"DISCARD\r\nEXEC\r\n", true), ["-LOADING", "-LOADING"]);
    }

    #[test]
    fn behind_a_wish_for_silence_or_nonsense_nothing_is_said() {
        assert_eq!(refused(b"PING\r\nCLIENT REPLY OFF\r\nPING\r\n", false), ["-LOADING"]);
        assert_eq!(refused(b"PING\r\n*1\r\nnonsense\r\nPING\r\n", false), ["-LOADING"]);
    }

    #[test]
    fn a_flood_is_not_answered_in_full() {
        let mut refusals = ErrorReplies::new(WHY, false);
        refusals.request(&b"a\n".repeat(100_000));
        assert!(!refusals.wants_more());
        assert!((MOST..MOST + 200).contains(&refusals.lines().len()));
    }
}
