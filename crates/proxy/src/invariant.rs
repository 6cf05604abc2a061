//! Checks of invariants whose violation would lose, repeat or misplace bytes of a stream.
//!
//! The caller of each checked bound guarantees it, so a violation is a bug in this program. If one
//! is found, continuing with the remaining bytes would corrupt data silently. Instead the session
//! ends with [`EndReason::InternalError`], which is counted, and the log names the check and its
//! source location.
//!
//! A violation travels as an I/O error of the connection on which it was noticed, because every
//! path of a session ends at such an error.

use std::io;
use std::panic::Location;
use std::sync::LazyLock;
use std::time::Instant;

use crate::end_reason::EndReason;
use crate::log_rate::LogRate;

/// An invariant that does not hold.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Violation(&'static str);

/// Logs the violation and returns it as an error that ends the session.
#[cold]
#[track_caller]
pub(crate) fn violation(what: &'static str) -> io::Error {
    log(what, Location::caller());
    io::Error::other(Violation(what))
}

/// The first `n` bytes of a buffer, where `n` is what an I/O call returned.
#[inline]
#[track_caller]
pub(crate) fn first_bytes(bytes: &[u8], n: usize) -> io::Result<&[u8]> {
    match bytes.get(..n) {
        Some(first) => Ok(first),
        None => Err(violation("more bytes were read than the buffer holds")),
    }
}

/// The first `n` bytes of a buffer, where the caller has made sure that it is long enough.
#[inline]
#[track_caller]
pub(crate) fn first_bytes_mut(bytes: &mut [u8], n: usize) -> io::Result<&mut [u8]> {
    match bytes.get_mut(..n) {
        Some(first) => Ok(first),
        None => Err(violation("a buffer is shorter than it has to be")),
    }
}

/// The bytes after the first `n`, where `n` is what an I/O call returned.
#[inline]
#[track_caller]
pub(crate) fn rest_after(bytes: &[u8], n: usize) -> io::Result<&[u8]> {
    match bytes.get(n..) {
        Some(rest) => Ok(rest),
        None => Err(violation("more bytes were written than were given")),
    }
}

/// Logs the violation and returns the end reason of the session.
#[cold]
#[track_caller]
pub(crate) fn report(what: &'static str) -> EndReason {
    log(what, Location::caller());
    EndReason::InternalError
}

/// Whether the error is a violated invariant, and not an error of the connection.
pub(crate) fn is_violation(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<Violation>()).is_some()
}

/// A bug in the path of every session must not fill the log.
fn log(what: &'static str, place: &Location<'_>) {
    static RATE: LazyLock<LogRate<1>> = LazyLock::new(LogRate::default);
    if let Some(unlogged) = RATE.due(0, Instant::now()) {
        let (file, line) = (place.file(), place.line());
        tracing::error!(what, file, line, unlogged, "internal error, closing the session");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_violations_from_connection_errors() {
        let violations =
            [first_bytes(b"ab", 3).unwrap_err(), rest_after(b"ab", 3).unwrap_err(), violation("x")];
        assert!(violations.iter().all(is_violation));
        assert!(
            !is_violation(&io::ErrorKind::ConnectionReset.into())
                && !is_violation(&io::Error::other("x"))
        );
        let (all, none) = (first_bytes(b"ab", 2).unwrap(), rest_after(b"ab", 2).unwrap());
        assert_eq!((all, none), (&b"ab"[..], &b""[..]));
    }
}
