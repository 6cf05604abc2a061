//! Invariants whose breach would lose, repeat or misplace bytes of a stream.
//!
//! Each bound that is checked for one of them has a caller that keeps it, so none is ever broken
//! unless there is a bug here. Where it is, going on with what is left would be silent damage: the
//! session ends for [`EndReason::InternalError`], is counted, and what was found is logged with its
//! place.
//!
//! Such an error travels as an error of the connection at which it was noticed, because that is
//! what ends a session on every way there is.

use std::fmt;
use std::io;
use std::panic::Location;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::session::end_reason::EndReason;

/// An invariant that does not hold.
#[derive(Debug)]
struct Broken(&'static str);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}

/// Tells of it, and makes an error of it that ends the session.
#[cold]
#[track_caller]
pub(crate) fn broken(what: &'static str) -> io::Error {
    tell(what, Location::caller());
    io::Error::other(Broken(what))
}

/// The first `n` bytes of a buffer, as many as somebody says there are.
#[inline]
#[track_caller]
pub(crate) fn first(bytes: &[u8], n: usize) -> io::Result<&[u8]> {
    match bytes.get(..n) {
        Some(first) => Ok(first),
        None => Err(broken("more bytes were read than there was room for")),
    }
}

/// What is behind the first `n` bytes, as many as somebody says have been written.
#[inline]
#[track_caller]
pub(crate) fn behind(bytes: &[u8], n: usize) -> io::Result<&[u8]> {
    match bytes.get(n..) {
        Some(rest) => Ok(rest),
        None => Err(broken("more bytes were written than there were")),
    }
}

/// Tells of it. The reason for the end of the session.
#[cold]
#[track_caller]
pub(crate) fn found(what: &'static str) -> EndReason {
    tell(what, Location::caller());
    EndReason::InternalError
}

/// Whether the error is such a one.
pub(crate) fn is_broken(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Broken>()).is_some()
}

/// One line a second at most: a bug on the way of every session must not fill the log.
fn tell(what: &'static str, place: &Location<'_>) {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    static LINES: Lines = Lines(AtomicU64::new(0));
    if LINES.may_have(ORIGIN.get_or_init(Instant::now).elapsed().as_secs()) {
        tracing::error!(
            what,
            file = place.file(),
            line = place.line(),
            "internal error, closing the session"
        );
    }
}

/// The first second that may have a line again.
struct Lines(AtomicU64);

impl Lines {
    /// Whether there may be a line in that second. There is one then.
    fn may_have(&self, now: u64) -> bool {
        let next = |next| (now >= next).then_some(now + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_once_a_second() {
        let lines = Lines(AtomicU64::new(0));
        let told: Vec<u64> =
            [0, 0, 0, 1, 1, 5, 5, 6].into_iter().filter(|now| lines.may_have(*now)).collect();
        assert_eq!(told, [0, 1, 5, 6]);
    }

    #[test]
    fn tells_a_broken_invariant_from_errors_of_a_connection() {
        let broken = [first(b"ab", 3).unwrap_err(), behind(b"ab", 3).unwrap_err(), broken("x")];
        assert!(broken.iter().all(is_broken));
        assert!(
            !is_broken(&io::ErrorKind::ConnectionReset.into())
                && !is_broken(&io::Error::other("x"))
        );
        assert_eq!((first(b"ab", 2).unwrap(), behind(b"ab", 2).unwrap()), (&b"ab"[..], &b""[..]));
    }
}
