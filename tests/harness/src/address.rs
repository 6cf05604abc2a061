//! Claims a loopback address for one cluster, and ports on it that no other process can take.
//!
//! Binding port 0, noting the number and closing the socket leaves a gap: until the server binds
//! the port, the kernel may give it to any outgoing connection. Linux accepts all of 127.0.0.0/8
//! and uses 127.0.0.1 as the source of outgoing connections to that network, so ports of other
//! addresses in it are used only by processes that bind them. The address is claimed for the
//! lifetime of the [`Address`] by a Unix listener with the address in its abstract name. The claim
//! ends with the process, however that ends, or at the exec of a child that was being started
//! then, and belongs to the same network namespace as the address.
//!
//! IPv6 has a single loopback address, and `localhost` is one address too: several clusters share
//! them. There each port is claimed by its own name, and is below the range of outgoing
//! connections.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// The kind of address that a cluster uses, and the name by which its members announce themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Family {
    /// An address 127.a.b.c that no other cluster uses.
    #[default]
    Ipv4,
    /// `::1`.
    Ipv6,
    /// 127.0.0.1, announced as the name `localhost`.
    Localhost,
    /// This address of an existing interface; for tests in a network namespace.
    On(Ipv4Addr),
}

/// An address and the ports given out on it. Dropping it releases the address.
#[derive(Debug)]
pub struct Address {
    ip: IpAddr,
    family: Family,
    given: Mutex<BTreeSet<u16>>,
    /// The claim on the address, unless it is shared.
    claim: Option<UnixListener>,
    /// The claims on ports of a shared address.
    claims: Mutex<Vec<UnixListener>>,
}

/// Counts the candidates for addresses and ports.
static COUNTER: AtomicU32 = AtomicU32::new(0);

impl Address {
    /// Claims an address. Two clusters with [`Family::Ipv4`] never get the same one.
    ///
    /// # Panics
    /// If a thousand addresses in a row are taken, or if loopback addresses cannot be bound.
    #[must_use]
    pub fn claim(family: Family) -> Self {
        let (ip, claim) = match family {
            Family::Ipv6 => (IpAddr::V6(Ipv6Addr::LOCALHOST), None),
            Family::Localhost => (IpAddr::V4(Ipv4Addr::LOCALHOST), None),
            Family::On(ip) => (IpAddr::V4(ip), None),
            Family::Ipv4 => (0..1000)
                .map(|_| candidate(std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)))
                .find_map(|ip| claim_address(ip).map(|listener| (IpAddr::V4(ip), Some(listener))))
                .expect("a loopback address that nobody uses"),
        };
        Self { ip, family, given: Mutex::default(), claim, claims: Mutex::default() }
    }

    /// The address itself.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The kind of address that was claimed.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The name under which servers on this address announce themselves.
    #[must_use]
    pub fn announced(&self) -> String {
        if self.family == Family::Localhost { "localhost".to_owned() } else { self.ip.to_string() }
    }

    /// A free port that this address has not given out before, so that a killed server finds its
    /// port free when it restarts.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn port(&self) -> SocketAddr {
        if self.claim.is_none() {
            return self.shared_port();
        }
        // Ports that were given out before stay bound until a new one is found; otherwise the
        // kernel might offer them again and again.
        let mut held = Vec::new();
        loop {
            let (socket, addr) = bound(self.ip, 0)
                .unwrap_or_else(|error| panic!("no port can be bound on {}: {error}", self.ip));
            if self.given.lock().expect("no panic under this lock").insert(addr.port()) {
                return addr;
            }
            held.push(socket);
        }
    }

    fn shared_port(&self) -> SocketAddr {
        let candidates = (0..10_000)
            .map(|_| shared(std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)));
        let mut claimed = candidates.filter_map(|port| {
            let claim = claim(&format!("{}:{port}", self.ip))?;
            let (_, addr) = bound(self.ip, port).ok()?;
            self.claims.lock().expect("no panic under this lock").push(claim);
            Some(addr)
        });
        claimed.next().unwrap_or_else(|| panic!("no port is free on {}", self.ip))
    }
}

/// A socket bound to a port; the kernel chooses the port for 0. It does not listen, so a copy that
/// a child of another test inherited before its exec does no harm.
fn bound(ip: IpAddr, port: u16) -> rustix::io::Result<(OwnedFd, SocketAddr)> {
    let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::new(ip, port))?;
    let addr = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, addr))
}

/// Spreads process ids over 127.1.0.1 to 127.254.255.254, so that neighbours rarely try the same
/// address.
fn candidate(process: u32, counter: u32) -> Ipv4Addr {
    let mixed = process.wrapping_mul(0x9E37_79B1).wrapping_add(counter.wrapping_mul(0x85EB_CA6B));
    let [a, b, c, d] = mixed.to_be_bytes();
    Ipv4Addr::new(127, 1 + (a ^ d) % 254, b, 1 + c % 254)
}

/// A port on a shared address, below the ephemeral range, which usually begins at 32768.
fn shared(process: u32, counter: u32) -> u16 {
    let mixed = process.wrapping_mul(0x9E37_79B1).wrapping_add(counter.wrapping_mul(0x85EB_CA6B));
    10_240 + (mixed >> 16) as u16 % 22_000
}

/// Claims a name until the returned listener is dropped.
fn claim(what: &str) -> Option<UnixListener> {
    let name = UnixAddr::from_abstract_name(format!("pointsman-harness-{what}")).ok()?;
    UnixListener::bind_addr(&name).ok()
}

fn claim_address(ip: Ipv4Addr) -> Option<UnixListener> {
    let listener = claim(&ip.to_string())?;
    TcpListener::bind((ip, 0)).ok()?;
    Some(listener)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait::wait_until;

    #[test]
    fn claims_distinct_addresses_and_ports() {
        let addresses: Vec<Address> = (0..50).map(|_| Address::claim(Family::Ipv4)).collect();
        let distinct: BTreeSet<IpAddr> = addresses.iter().map(Address::ip).collect();
        assert_eq!(distinct.len(), addresses.len());
        let ports: BTreeSet<u16> = (0..200).map(|_| addresses[0].port().port()).collect();
        assert_eq!(ports.len(), 200);
    }

    #[test]
    fn claims_distinct_ports_on_shared_address() {
        let (one, other) = (Address::claim(Family::Localhost), Address::claim(Family::Localhost));
        let ports: Vec<u16> =
            (0..100).flat_map(|_| [one.port().port(), other.port().port()]).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 200);
        let taken = TcpListener::bind(("127.0.0.1", ports[0])).expect("a port of ours");
        assert!(bound(one.ip(), ports[0]).is_err());
        drop(taken);
    }

    #[test]
    fn refuses_claimed_address_until_dropped() {
        let address = Address::claim(Family::Ipv4);
        let IpAddr::V4(ip) = address.ip() else { panic!("an IPv4 address") };
        assert!(claim_address(ip).is_none());
        drop(address);
        // A child that another test has forked holds copies of all sockets until its exec.
        wait_until("the address to be free", Duration::from_secs(10), || claim_address(ip));
    }

    #[test]
    fn keeps_outgoing_connections_off_claimed_ports() {
        let address = Address::claim(Family::Ipv4);
        let listener = TcpListener::bind(address.port()).expect("bind");
        let stream =
            std::net::TcpStream::connect(listener.local_addr().expect("addr")).expect("connect");
        assert_eq!(stream.local_addr().expect("addr").ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
}
