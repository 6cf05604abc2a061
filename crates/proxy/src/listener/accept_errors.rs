//! What to do when `accept(2)` fails: retry immediately or pause.
//!
//! Some errors concern only the connection that was to be accepted; the next one may be fine, so
//! the loop retries. Others concern the process or the machine (no file descriptors, no memory):
//! the connection stays in the queue, the next attempt fails the same way, and a loop that retries
//! immediately uses up a core. So the loop pauses after those, longer each time.

use std::time::Duration;

use rustix::io::Errno;

/// The first pause.
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause: when a descriptor becomes free, the next client waits no longer than this.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Whether an error concerns the process or the machine, so that the next attempt fails, too. Linux
/// passes errors that are already pending on the new connection to accept (accept(2), "Error
/// handling"); they mean that the client has disconnected.
pub(crate) fn is_lasting(errno: Errno) -> bool {
    // Out of descriptors or memory, or unknown: pausing is never wrong, spinning is.
    !matches!(
        errno,
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
            | Errno::CONNRESET
    )
}

/// The backoff state of one listener on one worker.
#[derive(Debug, Default)]
pub(crate) struct AcceptBackoff {
    next: Option<Duration>,
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

    /// Records a failed accept. How long to wait before the next attempt; zero to retry at once.
    pub(crate) fn failed(&mut self, errno: Errno) -> Duration {
        if !is_lasting(errno) {
            return Duration::ZERO;
        }
        let pause = self.next.unwrap_or(MIN_PAUSE);
        self.next = Some((pause * 2).min(MAX_PAUSE));
        pause
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
            assert!(is_lasting(errno), "{errno:?}");
        }
        for errno in [Errno::CONNABORTED, Errno::INTR, Errno::PROTO, Errno::NETUNREACH, Errno::PERM]
        {
            assert!(!is_lasting(errno), "{errno:?}");
        }
    }

    #[test]
    fn doubles_pause_up_to_maximum() {
        let mut backoff = AcceptBackoff::default();
        let pauses: Vec<u128> = (0..9).map(|_| backoff.failed(Errno::MFILE).as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 500, 500]);
        assert!(backoff.is_out_of_resources());
        backoff.succeeded();
        assert!(!backoff.is_out_of_resources());
        assert_eq!(backoff.failed(Errno::NFILE), MIN_PAUSE);
    }

    #[test]
    fn does_not_pause_after_aborted_connection() {
        let mut backoff = AcceptBackoff::default();
        for _ in 0..100 {
            assert_eq!(backoff.failed(Errno::CONNABORTED), Duration::ZERO);
            assert!(!backoff.is_out_of_resources());
        }
        assert_eq!(backoff.failed(Errno::MFILE), MIN_PAUSE);
    }
}
