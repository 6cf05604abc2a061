//! What to do when `accept(2)` fails: retry immediately or pause, and whether to log it.
//!
//! Some errors concern only the connection that was to be accepted; the next one may be fine, so
//! the loop retries. Others concern the process or the machine (no file descriptors, no memory):
//! the connection stays in the queue, the next attempt fails the same way, and a loop that retries
//! immediately uses up a core while it logs a million lines. So the loop pauses after those, longer
//! each time, and one log line per second reports all of them.

use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The first pause.
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause: when a descriptor becomes free, the next client waits no longer than this.
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// The minimum interval between log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// What an error of `accept(2)` concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AcceptErrorKind {
    /// This connection only: the next one may be fine.
    Connection,
    /// The process or the machine: the next attempt fails too.
    Resource,
}

/// Classifies an error. Linux passes errors that are already pending on the new connection to
/// accept (accept(2), "Error handling"); they mean that the client has disconnected.
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
        // Out of descriptors or memory, or unknown: pausing is never wrong, spinning is.
        _ => AcceptErrorKind::Resource,
    }
}

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackoffStep {
    /// How long to wait before the next attempt; zero to retry immediately.
    pub(crate) pause: Duration,
    /// If a log line is due: the number of errors that it reports.
    pub(crate) log_errors: Option<u64>,
}

/// The backoff state of one listener on one worker.
#[derive(Debug, Default)]
pub(crate) struct AcceptBackoff {
    next: Option<Duration>,
    unlogged: u64,
    logged_at: Option<Instant>,
}

impl AcceptBackoff {
    /// Whether the last attempt failed for a reason that all further ones fail for.
    pub(crate) fn is_out_of_resources(&self) -> bool {
        self.next.is_some()
    }

    /// A connection was accepted: resets the backoff.
    pub(crate) fn succeeded(&mut self) {
        self.next = None;
    }

    /// Records a failed accept at `now`.
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
    fn classifies_accept_errors() {
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
    fn doubles_pause_up_to_maximum() {
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
    fn does_not_pause_after_aborted_connection() {
        let mut backoff = AcceptBackoff::default();
        for _ in 0..100 {
            assert_eq!(backoff.failed(Instant::now(), Errno::CONNABORTED).pause, Duration::ZERO);
            assert!(!backoff.is_out_of_resources());
        }
        assert_eq!(backoff.failed(Instant::now(), Errno::MFILE).pause, MIN_PAUSE);
    }

    #[test]
    fn logs_at_most_once_per_second() {
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
