//! What the doctor reads of the host on which it runs: whether a service could listen on its
//! addresses. Only meaningful where Pointsman is to run.

use std::net::{SocketAddr, UdpSocket};

use crate::diagnose::HostFacts;

/// What the start of a service with these listen addresses on this host depends on.
#[must_use]
pub fn host_facts(listen: &[SocketAddr]) -> HostFacts {
    let specific = listen.iter().copied();
    let foreign = specific.filter(|addr| !addr.ip().is_unspecified() && !is_ours(*addr));
    let sysctl = |family: &str| {
        let path = format!("/proc/sys/net/{family}/ip_nonlocal_bind");
        std::fs::read_to_string(path).ok().map(|text| text.trim() == "1")
    };
    HostFacts { foreign_listen: foreign.collect(), nonlocal_bind: [sysctl("ipv4"), sysctl("ipv6")] }
}

/// Whether this host has the address. Its route then leads to itself, so that a datagram socket
/// gets it as its source address; nothing is sent. Binding it would prove nothing where any address
/// may be bound.
fn is_ours(addr: SocketAddr) -> bool {
    // Every loopback address can be bound, but its route has one source address only.
    if addr.ip().is_loopback() {
        return true;
    }
    let any = if addr.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let source = UdpSocket::bind(any)
        .and_then(|socket| socket.connect(addr).and_then(|()| socket.local_addr()));
    source.is_ok_and(|source| source.ip() == addr.ip())
}

#[cfg(test)]
mod tests {
    use super::is_ours;

    #[test]
    fn distinguishes_addresses_of_this_host() {
        assert!(is_ours("127.0.0.1:1".parse().expect("an address")));
        assert!(is_ours("127.9.9.9:1".parse().expect("an address")));
        assert!(!is_ours("192.0.2.9:1".parse().expect("an address")));
    }
}
