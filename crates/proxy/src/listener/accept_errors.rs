//! What to do when `accept(2)` fails: go on at once, or pause, and whether to say so.
//!
//! Some errors are about the one connection that was about to be accepted; the next one may be
//! fine, so the loop goes on. Others are about this process or machine (no file descriptors, no
//! memory): the connection stays in the queue, the next attempt fails the same way, and a loop that
//! goes on at once burns a core while it logs a million lines. So those pause, longer each time,
//! and one line a second tells of all of them.
//!
//! Deliberately absent: the listener, the clock and the log.

use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The first pause.
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause: after it, whoever has freed a descriptor waits no longer than this for the
/// next client.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// Log lines are at least this far apart.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// What an error of `accept(2)` is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcceptErrorKind {
    /// This one connection: the next may be fine.
    Connection,
    /// The process or the machine: the next attempt fails too.
    Resource,
}

/// Sorts an error. Linux hands errors already pending on the new connection to whoever accepts it
/// (accept(2), "Error handling"); they are as good as a client that left.
pub(crate) fn classify(errno: Errno) -> AcceptErrorKind {
    match errno {
        Errno::CONNABORTED
        | Errno::INTR
        | Errno::PROTO
        | Errno::PERM
        | Errno::NETDOWN
        | Errno::NOPROTOOPT
        | Errno::HOSTDOWN
        | Errno::NONET
        | Errno::HOSTUNREACH
        | Errno::OPNOTSUPP
        | Errno::NETUNREACH
        | Errno::TIMEDOUT
        | Errno::CONNRESET => AcceptErrorKind::Connection,
        // Out of descriptors or memory, and whatever is unknown: pausing is never wrong, spinning
        // is.
        _ => AcceptErrorKind::Resource,
    }
}

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackoffStep {
    /// How long to wait before the next attempt; zero for going on at once.
    pub(crate) pause: Duration,
    /// If this is the time for a log line: how many errors it stands for.
    pub(crate) log_errors: Option<u64>,
}

/// Remembers how often it failed. One for each listener of a worker.
#[derive(Debug, Default)]
pub(crate) struct AcceptBackoff {
    next: Option<Duration>,
    unlogged: u64,
    logged_at: Option<Instant>,
}

impl AcceptBackoff {
    /// Whether the last attempt failed for something that all the next ones fail for.
    pub(crate) fn is_out_of_resources(&self) -> bool {
        self.next.is_some()
    }

    /// A connection was accepted: the trouble is over.
    pub(crate) fn succeeded(&mut self) {
        self.next = None;
    }

    /// An accept failed at `now`.
    pub(crate) fn failed(&mut self, now: Instant, errno: Errno) -> BackoffStep {
        let pause = match classify(errno) {
            AcceptErrorKind::Connection => Duration::ZERO,
            AcceptErrorKind::Resource => {
                let pause = self.next.unwrap_or(MIN_PAUSE);
                self.next = Some((pause * 2).min(MAX_PAUSE));
                pause
            }
        };
        self.unlogged += 1;
        let due = self
            .logged_at
            .is_none_or(|logged_at| now.saturating_duration_since(logged_at) >= LOG_INTERVAL);
        let log_errors = due.then(|| std::mem::take(&mut self.unlogged));
        if due {
            self.logged_at = Some(now);
        }
        BackoffStep { pause, log_errors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_errors() {
        for errno in
            [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::INVAL, Errno::BADF]
        {
            assert_eq!(classify(errno), AcceptErrorKind::Resource, "{errno:?}");
        }
        for errno in [Errno::CONNABORTED, Errno::INTR, Errno::PROTO, Errno::NETUNREACH, Errno::PERM]
        {
            assert_eq!(classify(errno), AcceptErrorKind::Connection, "{errno:?}");
        }
    }

    #[test]
    fn out_of_descriptors_pauses_longer_and_longer_but_not_for_ever() {
        let mut backoff = AcceptBackoff::default();
        let now = Instant::now();
        let pauses: Vec<u128> =
            (0..9).map(|_| backoff.failed(now, Errno::MFILE).pause.as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 500, 500]);
        assert!(backoff.is_out_of_resources());
        backoff.succeeded();
        assert!(!backoff.is_out_of_resources());
        assert_eq!(backoff.failed(now, Errno::NFILE).pause, MIN_PAUSE);
    }

    #[test]
    fn a_connection_that_was_aborted_costs_no_pause() {
        let mut backoff = AcceptBackoff::default();
        for _ in 0..100 {
            assert_eq!(backoff.failed(Instant::now(), Errno::CONNABORTED).pause, Duration::ZERO);
            assert!(!backoff.is_out_of_resources());
        }
        assert_eq!(backoff.failed(Instant::now(), Errno::MFILE).pause, MIN_PAUSE);
    }

    #[test]
    fn one_line_a_second_stands_for_all() {
        let mut backoff = AcceptBackoff::default();
        let start = Instant::now();
        let mut logged_at = Vec::new();
        for tenth in 0..=20 {
            let now = start + Duration::from_millis(100) * tenth;
            logged_at.extend(backoff.failed(now, Errno::MFILE).log_errors);
        }
        assert_eq!(logged_at, [1, 10, 10]);
    }
}
