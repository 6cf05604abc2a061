//! Addresses of listeners and of clients: TCP, or a Unix socket.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::runtime::tasks::visits::TaskGroup;

/// The prefix of a Unix socket's path.
const UNIX: &str = "unix:";

/// The address of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListenAddr {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl ListenAddr {
    /// Parses the output of [`Display`](fmt::Display): `unix:/path`, or an IP address and a port.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix(UNIX) {
            Some(path) => Some(Self::Unix(PathBuf::from(path))),
            None => text.parse().ok().map(Self::Tcp),
        }
    }

    /// The TCP address, if it is one.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(addr) => Some(*addr),
            Self::Unix(_) => None,
        }
    }

    /// The path, if it is a Unix socket.
    #[must_use]
    pub fn unix(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(path) => Some(path),
        }
    }
}

impl From<SocketAddr> for ListenAddr {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// The address of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer(Option<SocketAddr>);

impl Peer {
    /// The client of a Unix socket, which has no address.
    pub(crate) const UNIX: Self = Self(None);

    /// Its address, if it has one.
    pub(crate) fn addr(self) -> Option<SocketAddr> {
        self.0
    }

    /// Its IP address, if it has one.
    pub(crate) fn ip(self) -> Option<IpAddr> {
        self.0.map(|addr| addr.ip())
    }
}

impl From<SocketAddr> for Peer {
    /// An IPv4 client of a dual-stack socket is given its IPv4 address.
    fn from(addr: SocketAddr) -> Self {
        match addr.ip().to_canonical() {
            // Unchanged, with the scope of a link-local address.
            IpAddr::V6(_) => Self(Some(addr)),
            IpAddr::V4(ip) => Self(Some((ip, addr.port()).into())),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(addr) => addr.fmt(f),
            None => f.write_str("unix"),
        }
    }
}

/// Identifies one listening address of one service. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ListenerId(u64);

impl ListenerId {
    pub(crate) const fn nth(number: usize) -> Self {
        Self(number as u64)
    }

    /// The group of the listener's sessions.
    pub(crate) const fn group(self) -> TaskGroup {
        TaskGroup::nth(self.0 as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_its_own_display() {
        for text in ["127.0.0.1:6379", "[::]:6379", "unix:/run/pointsman/redis.sock"] {
            assert_eq!(ListenAddr::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(ListenAddr::parse("nonsense"), None);
    }

    #[test]
    fn shows_an_ipv4_client_of_a_dual_stack_socket_as_ipv4() {
        let shown = |text: &str| Peer::from(text.parse::<SocketAddr>().unwrap()).to_string();
        assert_eq!(shown("[::ffff:192.0.2.7]:1234"), "192.0.2.7:1234");
        assert_eq!(shown("[2001:db8::1]:1234"), "[2001:db8::1]:1234");
        assert_eq!(shown("[fe80::1%3]:1234"), "[fe80::1%3]:1234");
        assert_eq!(
            (shown("192.0.2.7:1"), Peer::UNIX.to_string().as_str()),
            ("192.0.2.7:1".to_owned(), "unix")
        );
    }
}
