//! Listening sockets that are bound while the process runs.
//!
//! All addresses of a reload are bound before any of them is served: [`AddressPlan::bind`] fails
//! without an effect. A new address may overlap one that this process still has, for example when
//! `0.0.0.0:6379` becomes `127.0.0.1:6379`. Its sockets then join the group of the older one, which
//! is closed only afterwards, so no client is refused in between.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;

use crate::address::ListenAddr;
use crate::listener::{BindError, bind_one, is_any_v6};
use crate::options::Options;

/// Listening sockets of one address that no service uses yet, each with the index of its worker.
#[derive(Debug)]
pub struct NewListener {
    /// The address, with its actual port.
    pub addr: ListenAddr,
    pub(crate) sockets: Vec<(usize, OwnedFd)>,
}

/// The addresses of the process, from which the mode of a new socket follows.
#[derive(Debug, Clone, Default)]
pub struct AddressPlan {
    /// The number of workers.
    workers: usize,
    /// Ports that have an IPv4 address of their own after the reload.
    v4: Vec<u16>,
    /// The addresses that the process listens on now.
    bound: Vec<SocketAddr>,
}

impl AddressPlan {
    /// `after` are all addresses of the process after the reload, those of the admin server
    /// included; `bound` those of the data plane that are open now.
    #[must_use]
    pub fn new(workers: NonZeroUsize, after: &[SocketAddr], bound: Vec<SocketAddr>) -> Self {
        let v4 = after.iter().filter(|addr| addr.is_ipv4()).map(SocketAddr::port).collect();
        Self { workers: workers.get(), v4, bound }
    }

    /// Binds one address for each worker. Clients that connect wait in the kernel's queue until it
    /// is served.
    ///
    /// # Errors
    ///
    /// Why it cannot be bound.
    pub fn bind(&self, addr: SocketAddr, options: &Options) -> Result<NewListener, BindError> {
        let only_v6 = addr.is_ipv6()
            && (!is_any_v6(addr) || addr.port() != 0 && self.v4.contains(&addr.port()));
        let joins = self.bound.iter().any(|own| overlaps(addr, only_v6, *own));
        let (actual, sockets) = bind_one(self.workers, addr, (joins, only_v6), options)
            .map_err(|source| BindError::new(addr, source))?;
        let sockets = sockets.into_iter().enumerate().collect();
        Ok(NewListener { addr: actual.into(), sockets })
    }
}

/// Whether the kernel would call `addr` in use because of our own socket.
fn overlaps(addr: SocketAddr, only_v6: bool, own: SocketAddr) -> bool {
    let any = addr.ip().is_unspecified() || own.ip().is_unspecified();
    let dual = is_any_v6(addr) && !only_v6 || is_any_v6(own);
    addr.port() != 0
        && addr.port() == own.port()
        && (addr.ip() == own.ip() || any && (addr.is_ipv4() == own.is_ipv4() || dual))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn plan(after: &[SocketAddr], bound: &[SocketAddr]) -> AddressPlan {
        AddressPlan::new(NonZeroUsize::new(2).unwrap(), after, bound.to_vec())
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn joins_own_wildcard_and_no_other_process() {
        let options = Options::default();
        let first = plan(&[], &[]).bind(addr("0.0.0.0:0"), &options).unwrap();
        let any = first.addr.tcp().unwrap();
        let one = SocketAddr::new(addr("127.0.0.1:0").ip(), any.port());
        let refused = plan(&[one], &[]).bind(one, &options).unwrap_err();
        assert!(matches!(refused, BindError::InUse { .. }), "not known as our own: {refused}");
        let second = plan(&[one], &[any]).bind(one, &options).unwrap();
        assert_eq!((second.addr.tcp(), second.sockets.len()), (Some(one), 2));
        // Both families at the place of one.
        let both = SocketAddr::new(addr("[::]:0").ip(), any.port());
        assert!(plan(&[both], &[any]).bind(both, &options).is_ok());
        let other = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let taken = TcpListener::bind(other).unwrap();
        assert!(plan(&[other], &[any]).bind(other, &options).is_err());
        drop(taken);
    }

    #[test]
    fn compares_families_and_ports() {
        let overlap = |one: &str, own: &str| overlaps(addr(one), false, addr(own));
        assert!(overlap("127.0.0.1:1", "127.0.0.1:1") && overlap("[::]:1", "0.0.0.0:1"));
        assert!(overlap("127.0.0.1:1", "[::]:1") && overlap("0.0.0.0:1", "10.0.0.1:1"));
        assert!(!overlap("127.0.0.1:1", "127.0.0.2:1") && !overlap("127.0.0.1:1", "127.0.0.1:2"));
        assert!(!overlap("[::1]:1", "0.0.0.0:1") && !overlap("0.0.0.0:0", "0.0.0.0:0"));
        assert!(!overlaps(addr("[::]:1"), true, addr("0.0.0.0:1")), "it leaves IPv4 alone");
    }
}
