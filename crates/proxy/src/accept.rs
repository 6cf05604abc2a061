//! What to do when accepting fails. The errors are of three kinds: one connection was lost and the next may be fine; the
//! system is short of something and must be given time; or nobody knows, which is treated like the second.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

/// The first pause of a shortage, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Accept again at once.
    GoOn,
    /// Wait this long first.
    Pause(Duration),
}

/// Decides, and remembers how long the shortage has lasted.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    pause: Option<Duration>,
}

impl Shortage {
    /// A connection was accepted: whatever was short is not any more.
    pub(crate) fn over(&mut self) {
        self.pause = None;
    }

    /// An accept failed.
    pub(crate) fn failed(&mut self, error: &io::Error) -> Next {
        if is_lost_connection(error) {
            return Next::GoOn;
        }
        let pause = self.pause.map_or(PAUSES.0, |pause| (pause * 2).min(PAUSES.1));
        self.pause = Some(pause);
        Next::Pause(pause)
    }
}

/// The connection that was to be accepted had already failed; Linux reports its pending network errors here (accept(2)).
fn is_lost_connection(error: &io::Error) -> bool {
    let lost = [
        Errno::CONNABORTED,
        Errno::INTR,
        Errno::PROTO,
        Errno::NETDOWN,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::NONET,
        Errno::HOSTUNREACH,
        Errno::OPNOTSUPP,
        Errno::NETUNREACH,
        Errno::PERM,
    ];
    error.raw_os_error().is_some_and(|code| lost.iter().any(|errno| errno.raw_os_error() == code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.raw_os_error())
    }

    #[test]
    fn a_lost_connection_does_not_stop_the_next() {
        let mut shortage = Shortage::default();
        for errno in [Errno::CONNABORTED, Errno::INTR, Errno::PROTO, Errno::HOSTUNREACH] {
            assert_eq!(shortage.failed(&error(errno)), Next::GoOn, "{errno:?}");
        }
    }

    #[test]
    fn a_shortage_is_given_more_and_more_time_and_forgotten_when_over() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            let mut shortage = Shortage::default();
            let pauses: Vec<Next> = (0..12).map(|_| shortage.failed(&error(errno))).collect();
            assert_eq!(pauses[0], Next::Pause(PAUSES.0), "{errno:?}");
            assert_eq!(pauses[11], Next::Pause(PAUSES.1), "{errno:?}");
            shortage.over();
            assert_eq!(shortage.failed(&error(errno)), Next::Pause(PAUSES.0));
        }
    }
}
