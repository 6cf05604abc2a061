//! The addresses of the listener sets at the start, as configured and as bound.

use std::net::SocketAddr;

use proxy::{Bound, InheritedSockets, ListenAddr, ListenerId};

use crate::process::service_set::ServedAddress;

/// An address that is bound or taken over.
#[derive(Debug, Clone)]
pub(super) struct ConfiguredAddress {
    addr: ListenAddr,
    is_managed: bool,
    pub(super) tls: bool,
}

/// Joins the sockets of a set without and with TLS: the addresses to bind, the inherited sockets,
/// and all of them in the order in which the data plane numbers them.
pub(super) fn sockets_of(
    parts: impl Iterator<Item = (bool, (Vec<ListenAddr>, Vec<InheritedSockets>))>,
    is_managed: bool,
) -> (Vec<SocketAddr>, Vec<InheritedSockets>, Vec<ConfiguredAddress>) {
    let (mut listen, mut inherited) = (Vec::new(), Vec::new());
    let (mut bound, mut taken) = (Vec::new(), Vec::new());
    for (tls, (addresses, sockets)) in parts {
        let configured = |addr: &ListenAddr, is_managed| ConfiguredAddress {
            addr: addr.clone(),
            is_managed,
            tls,
        };
        bound.extend(addresses.iter().map(|addr| configured(addr, false)));
        taken.extend(sockets.iter().map(|it| configured(&it.addr, is_managed)));
        listen.extend(addresses.iter().filter_map(ListenAddr::tcp));
        inherited.extend(sockets);
    }
    bound.extend(taken);
    (listen, inherited, bound)
}

/// The addresses of a listener set, each with the one that was configured.
pub(super) fn served(
    bound: &Bound,
    number: usize,
    configured: &[Vec<ConfiguredAddress>],
) -> Vec<ServedAddress> {
    let ids = bound.listener_ids().get(number).into_iter().flatten();
    let addrs = bound.local_addrs().get(number).into_iter().flatten();
    let configured = configured.get(number).into_iter().flatten();
    let address = |((id, addr), configured): (_, &ConfiguredAddress)| {
        let (id, addr): (&ListenerId, &ListenAddr) = (id, addr);
        ServedAddress {
            id: *id,
            configured: configured.addr.clone(),
            addr: addr.clone(),
            is_managed: configured.is_managed,
            tls: configured.tls,
        }
    };
    ids.zip(addrs).zip(configured).map(address).collect()
}
