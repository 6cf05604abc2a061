//! One attempt to open a connection to a target.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::io::stream;
use crate::io::stream::SocketStream;
use crate::options::LiveOptions;
use crate::options::{Options, Splice};
use crate::service::DialFailure;

/// Connects to `addr`, within `connect_timeout` and until `deadline`.
///
/// # Errors
///
/// What kind of failure it was.
pub(crate) async fn connect(
    addr: SocketAddr,
    tuning: &LiveOptions,
    deadline: Instant,
) -> Result<SocketStream, DialFailure> {
    let options = tuning.now();
    let mut line = begin(addr, &options).map_err(|error| sort(&error))?;
    if line.is_connected() {
        return Ok(line);
    }
    let deadline = deadline.min(Instant::now() + options.connect_timeout);
    // Not kept while it waits: every session would carry it.
    drop(options);
    let connecting = poll_fn(|cx| line.poll_connected(cx));
    match tokio::time::timeout_at(deadline.into(), connecting).await {
        Ok(Ok(())) => Ok(line),
        Ok(Err(error)) => Err(sort(&error)),
        Err(_elapsed) => Err(DialFailure::TimedOut),
    }
}

fn begin(addr: SocketAddr, options: &Options) -> io::Result<SocketStream> {
    let socket =
        Socket::new(Domain::for_address(addr), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    stream::set_socket_options(&socket, options)?;
    SocketStream::connect(socket, addr, options.splice == Splice::On)
}

/// Sorts an error of `socket(2)` or `connect(2)`.
fn sort(error: &io::Error) -> DialFailure {
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED | Errno::CONNRESET) => DialFailure::Refused,
        Some(Errno::TIMEDOUT) => DialFailure::TimedOut,
        Some(Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN | Errno::HOSTDOWN) => {
            DialFailure::Unreachable
        }
        Some(Errno::MFILE | Errno::NFILE) => DialFailure::OutOfFiles,
        // ADDRNOTAVAIL is what connect says when there is no local port left.
        Some(Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL | Errno::AGAIN) => {
            DialFailure::Exhausted
        }
        _ => DialFailure::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_sorted_by_what_they_say_of_the_target() {
        let of = |errno: Errno| sort(&io::Error::from(errno));
        assert_eq!(of(Errno::CONNREFUSED), DialFailure::Refused);
        assert_eq!(of(Errno::HOSTUNREACH), DialFailure::Unreachable);
        assert_eq!(of(Errno::ADDRNOTAVAIL), DialFailure::Exhausted);
        assert_eq!(of(Errno::MFILE), DialFailure::OutOfFiles);
        assert_eq!(of(Errno::TIMEDOUT), DialFailure::TimedOut);
        assert_eq!(of(Errno::ACCESS), DialFailure::Other);
    }
}
