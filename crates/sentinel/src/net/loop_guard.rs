//! The loop guard: detects that a connection to an address would lead back to one of this process's
//! own listeners.
//!
//! A sentinel may announce our own address, by mistake or because a virtual address moved here. A
//! connection to it would be forwarded to the master, which answers as a master, and so the address
//! would verify.
//!
//! A listener on the unspecified address has every address of this host, and these change at run
//! time. The kernel is therefore queried before each dial, with a socket that sends nothing:
//! connecting a datagram socket looks up the route and the source address. Binding alone is not a
//! test: with `net.ipv4.ip_nonlocal_bind=1`, common beside keepalived, any address can be bound. A
//! list of the interfaces' addresses would need a netlink socket, which a sandbox may forbid (our
//! systemd unit does), and would be outdated as soon as it was made.

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use arc_swap::ArcSwap;

/// The addresses of our own listeners, which change with reloads. Cheap to clone; all clones share
/// one list.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnAddresses(Arc<ArcSwap<Vec<SocketAddr>>>);

impl OwnAddresses {
    pub(crate) fn new(addrs: &[SocketAddr]) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(addrs.to_vec())))
    }

    pub(crate) fn set(&self, addrs: Vec<SocketAddr>) {
        self.0.store(Arc::new(addrs));
    }

    /// Whether a connection to `addr` would lead back to one of them.
    pub(crate) fn contain(&self, addr: SocketAddr) -> bool {
        leads_back(addr, &self.0.load())
    }
}

/// Whether a connection to `addr` would lead back to one of our own listeners.
#[must_use]
pub fn leads_back(addr: SocketAddr, own: &[SocketAddr]) -> bool {
    leads_back_if(addr, own, is_local)
}

fn leads_back_if(
    addr: SocketAddr,
    own: &[SocketAddr],
    is_local: impl Fn(SocketAddr) -> bool,
) -> bool {
    let to = canonical(addr);
    let takes = |ours: SocketAddr| match (ours.ip().is_unspecified(), to.ip().is_unspecified()) {
        // An inherited listener on :: may accept connections of both families.
        (true, false) => (ours.is_ipv6() || to.is_ipv4()) && is_local(to),
        // Dialling the unspecified address reaches this host.
        (_, true) => true,
        (false, false) => {
            ours.ip() == to.ip() && (scope(ours) == scope(to) || scope(ours) == 0 || scope(to) == 0)
        }
    };
    own.iter().filter(|ours| ours.port() == to.port()).any(|ours| takes(canonical(*ours)))
}

/// An IPv4-mapped IPv6 address is the IPv4 address.
fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip if ip == addr.ip() => addr,
        ip => SocketAddr::new(ip, addr.port()),
    }
}

/// The interface of a link-local address; 0 if there is none.
fn scope(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(addr) => addr.scope_id(),
    }
}

/// Whether the address belongs to this host, by the kernel's current routes. An address that cannot
/// be looked up is not ours: dialling it fails in the same way.
#[must_use]
pub fn is_local(addr: SocketAddr) -> bool {
    let asked = match addr {
        // Any source can be bound if the system permits it, but the route is looked up only for a
        // source of our own. The source that the kernel would choose proves nothing: for an
        // interface's second address it is the first one.
        SocketAddr::V4(to) => {
            UdpSocket::bind((*to.ip(), 0)).and_then(|socket| socket.connect(to)).map(|()| true)
        }
        // To an address of our own, the kernel sends from that very address. It does not check a
        // bound source.
        SocketAddr::V6(to) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).and_then(|socket| {
            socket.connect(to)?;
            Ok(socket.local_addr()?.ip() == *to.ip())
        }),
    };
    asked.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn recognises_own_listeners() {
        let own = ["0.0.0.0:6379", "192.0.2.1:7000", "[fe80::1%2]:7001"].map(at);
        // The test assumes a host with these addresses only.
        let is_local =
            |addr: SocketAddr| addr.ip().is_loopback() || addr.ip() == at("192.0.2.1:1").ip();
        for ours in [
            "127.0.0.1:6379",
            "192.0.2.1:6379",
            "192.0.2.1:7000",
            "[::ffff:192.0.2.1]:7000",
            "[::ffff:127.0.0.1]:6379",
            "0.0.0.0:6379",
            "[::]:6379",
            "[fe80::1%2]:7001",
            "[fe80::1]:7001",
        ] {
            assert!(leads_back_if(at(ours), &own, is_local), "{ours}");
        }
        for other in [
            "127.0.0.1:6380",
            "198.51.100.7:6379",
            "198.51.100.7:7000",
            "[::1]:6379",
            "[fe80::1%3]:7001",
            "[fe80::2%2]:7001",
        ] {
            assert!(!leads_back_if(at(other), &own, is_local), "{other}");
        }
        assert!(leads_back_if(at("[::1]:6379"), &[at("[::]:6379")], is_local));
        assert!(leads_back_if(at("127.0.0.1:6379"), &[at("[::]:6379")], is_local));
    }

    #[test]
    fn asks_the_kernel_which_addresses_are_local() {
        let own = [at("0.0.0.0:6379"), at("[::]:6379")];
        for ours in ["127.0.0.1:6379", "127.1.2.3:6379", "[::ffff:127.0.0.1]:6379"] {
            assert!(leads_back(at(ours), &own), "{ours}");
        }
        // Reserved for documentation: no host has them.
        for other in
            ["192.0.2.7:6379", "[2001:db8::7]:6379", "[fe80::7]:6379", "255.255.255.255:6379"]
        {
            assert!(!leads_back(at(other), &own), "{other}");
        }
    }
}
