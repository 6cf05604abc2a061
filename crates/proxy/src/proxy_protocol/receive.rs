//! Reads the header of the PROXY protocol from a connection, and nothing beyond it.
//!
//! The kernel is asked for a copy of what has arrived, which is parsed; once the header is
//! complete, exactly its bytes are read. So whatever reads the connection next finds its first
//! byte.

use std::future::poll_fn;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::proxy_protocol::parse::{self, MAX_HEADER, ProxyHeader};
use crate::rejection::Rejection;
use crate::runtime::reactor::{Readiness, Registration};

/// Reads the header.
///
/// # Errors
///
/// Why the bytes are no header; `None` if the connection failed, or its peer closed it before the
/// first byte, as health checks do.
pub(crate) async fn receive(socket: &OwnedFd) -> Result<ProxyHeader, Option<Rejection>> {
    let Ok(registration) = Registration::new(socket, Readiness::READ, false) else {
        return Err(None);
    };
    let header = poll_fn(|cx| {
        let ended = registration.ready().has(Readiness::ENDED);
        let polled = registration.attempt(cx, Readiness::READ, || {
            look(socket, ended)?.map(|result| (result, true)).ok_or(Errno::AGAIN)
        });
        polled.map(|result| result.unwrap_or(Err(None)))
    })
    .await;
    registration.deregister(socket);
    let header = header?;
    // All of it has arrived.
    let mut buffer = [0; MAX_HEADER];
    let Some(buffer) = buffer.get_mut(..header.length) else { return Err(None) };
    match rustix::net::recv(socket, buffer, RecvFlags::empty()) {
        Ok((_, length)) if length == header.length => Ok(header),
        Ok(_) => Err(Some(Rejection::HeaderMalformed)),
        Err(_) => Err(None),
    }
}

/// Looks at what has arrived; `None` if more is needed. If the peer has `ended` its direction, all
/// that it sent has arrived.
fn look(
    socket: &OwnedFd,
    ended: bool,
) -> Result<Option<Result<ProxyHeader, Option<Rejection>>>, Errno> {
    let mut buffer = [0; MAX_HEADER];
    let (_, length) = rustix::net::recv(socket, &mut buffer, RecvFlags::PEEK)?;
    if length == 0 {
        return Ok(Some(Err(None)));
    }
    Ok(match parse::parse(buffer.get(..length).unwrap_or_default()) {
        Ok(Some(header)) => Some(Ok(header)),
        Err(fault) => Some(Err(Some(fault))),
        Ok(None) if ended => Some(Err(Some(Rejection::HeaderMalformed))),
        Ok(None) => None,
    })
}
