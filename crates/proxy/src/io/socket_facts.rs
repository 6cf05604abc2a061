//! What the kernel knows of a client's connection and no session keeps: asked when an operator asks
//! for the sessions.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use socket2::SockRef;

use crate::address::{ListenAddr, Peer};

nix::getsockopt_impl!(
    TcpInfo,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    libc::tcp_info,
    nix::sys::socket::sockopt::GetStruct<libc::tcp_info>
);

/// The option `TCP_INFO`.
#[derive(Debug, Clone, Copy)]
struct TcpInfo;

/// The facts of one connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SocketFacts {
    /// The address that the client connected to.
    pub(crate) listener: Option<ListenAddr>,
    /// Since the last bytes arrived, or since the connection was opened. Unknown at a Unix socket.
    pub(crate) silent: Option<Duration>,
}

impl SocketFacts {
    pub(crate) fn of(socket: &impl AsFd) -> Self {
        let local = SockRef::from(socket).local_addr().ok();
        let listener = local.and_then(|local| match local.as_socket() {
            Some(addr) => Peer::from(addr).addr().map(ListenAddr::Tcp),
            None => local.as_pathname().map(|path| ListenAddr::Unix(path.to_owned())),
        });
        let silent = getsockopt(socket, TcpInfo).ok();
        let silent = silent.map(|info| Duration::from_millis(info.tcpi_last_data_recv.into()));
        Self { listener, silent }
    }
}
