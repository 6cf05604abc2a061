//! Reads the header of the PROXY protocol from a connection, and nothing beyond it.
//!
//! The kernel is asked for a copy of what has arrived, which is parsed; once the header is
//! complete, exactly its bytes are read. So whatever reads the connection next finds its first
//! byte.

use std::future::poll_fn;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::proxy_protocol::parse::{self, HeaderFault, MAX_HEADER, ProxyHeader};
use crate::runtime::reactor::{Readiness, Registration};

/// Why no header was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiveError {
    /// The peer closed the connection before its first byte, as health checks do.
    Closed,
    /// The bytes are no header, or end in the middle of one.
    Fault(HeaderFault),
    /// The connection failed.
    Io(Errno),
}

/// Reads the header.
///
/// # Errors
///
/// Why there is none.
pub(crate) async fn receive(socket: &OwnedFd) -> Result<ProxyHeader, ReceiveError> {
    let registered = Registration::new(socket, Readiness::READ, false);
    let registration = registered
        .map_err(|error| ReceiveError::Io(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    let header = poll_fn(|cx| {
        let ended = registration.ready().has(Readiness::ENDED);
        let polled = registration.attempt(cx, Readiness::READ, || {
            look(socket, ended)?.map(|result| (result, true)).ok_or(Errno::AGAIN)
        });
        polled.map(|result| result.unwrap_or_else(|errno| Err(ReceiveError::Io(errno))))
    })
    .await;
    registration.deregister(socket);
    let header = header?;
    // All of it has arrived.
    let mut buffer = [0; MAX_HEADER];
    let buffer = buffer.get_mut(..header.length).ok_or(ReceiveError::Io(Errno::INVAL))?;
    match rustix::net::recv(socket, buffer, RecvFlags::empty()) {
        Ok((_, length)) if length == header.length => Ok(header),
        Ok(_) => Err(ReceiveError::Fault(HeaderFault::Malformed)),
        Err(errno) => Err(ReceiveError::Io(errno)),
    }
}

/// Looks at what has arrived; `None` if more is needed. If the peer has `ended` its direction, all
/// that it sent has arrived.
fn look(socket: &OwnedFd, ended: bool) -> Result<Option<Result<ProxyHeader, ReceiveError>>, Errno> {
    let mut buffer = [0; MAX_HEADER];
    let (_, length) = rustix::net::recv(socket, &mut buffer, RecvFlags::PEEK)?;
    if length == 0 {
        return Ok(Some(Err(ReceiveError::Closed)));
    }
    Ok(match parse::parse(buffer.get(..length).unwrap_or_default()) {
        Ok(Some(header)) => Some(Ok(header)),
        Err(fault) => Some(Err(ReceiveError::Fault(fault))),
        Ok(None) if ended => Some(Err(ReceiveError::Fault(HeaderFault::Malformed))),
        Ok(None) => None,
    })
}
