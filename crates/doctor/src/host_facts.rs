//! What the doctor reads of the host on which it runs: whether a service could listen on its
//! addresses. Only meaningful where Pointsman is to run.

use std::net::SocketAddr;

use sentinel::connections::is_local;

/// Those of the listen addresses that this host does not have now, as may be right for a virtual
/// address, and whether it can listen there nevertheless (`ip_nonlocal_bind`), if that is readable.
#[must_use]
pub fn foreign_addresses(listen: &[SocketAddr]) -> Vec<(SocketAddr, Option<bool>)> {
    let foreign = listen.iter().filter(|addr| !addr.ip().is_unspecified() && !is_local(**addr));
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
