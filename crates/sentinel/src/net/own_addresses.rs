//! The addresses of this process's listeners, to which no connection may lead back. They change
//! with reloads.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::loop_guard;

/// The addresses. Cheap to clone; all clones share one list.
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
        loop_guard::leads_back(addr, &self.0.load())
    }
}
