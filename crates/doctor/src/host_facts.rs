//! What the doctor reads of the host on which it runs: whether a service could listen on its
//! addresses. Only meaningful where Pointsman is to run.

use std::net::{SocketAddr, UdpSocket};

/// Those of the listen addresses that this host does not have now, as may be right for a virtual
/// address, and whether it can listen there nevertheless (`ip_nonlocal_bind`), if that is readable.
#[must_use]
pub fn foreign_addresses(listen: &[SocketAddr]) -> Vec<(SocketAddr, Option<bool>)> {
    let foreign = listen.iter().filter(|addr| !addr.ip().is_unspecified() && !is_ours(**addr));
    let with_sysctl = |addr: &SocketAddr| {
        let path = format!("/proc/sys/net/{}/ip_nonlocal_bind", family(*addr));
        (*addr, std::fs::read_to_string(path).ok().map(|text| text.trim() == "1"))
    };
    foreign.map(with_sysctl).collect()
}

/// The name of an address family in sysctls.
pub(crate) fn family(addr: SocketAddr) -> &'static str {
    if addr.is_ipv4() { "ipv4" } else { "ipv6" }
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
