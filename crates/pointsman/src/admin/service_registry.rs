//! The services as reports and commands see them.
//!
//! The main loop replaces the list at each reload; the admin server reads it. A service that is
//! being removed stays in the list until its last session has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use proxy::{ListenAddr, ServiceCounters};
use sentinel::DiscoveryHandle;

use crate::admin::effective_config::ServiceSettings;

/// The counters of a listener set, and its addresses.
pub(crate) type ListenerReport = (ServiceCounters, Vec<ListenAddr>);

/// One service, as reports need it.
#[derive(Debug, Clone)]
pub(crate) struct ReportedService {
    /// Its name.
    pub name: String,
    /// Its listeners for writers.
    pub writers: ListenerReport,
    /// Its listeners for readers, if configured.
    pub readers: Option<ListenerReport>,
    /// Its listeners that lead to the sentinels, if configured.
    pub sentinels: Option<ListenerReport>,
    /// The handle on its discovery.
    pub discovery: DiscoveryHandle,
    /// It was added after the start. It must not make a process unready that was ready.
    pub was_added: bool,
    /// It was removed from the configuration, and its sessions are leaving.
    pub is_leaving: bool,
    /// Its settings, or those before it was removed.
    pub settings: ServiceSettings,
}

/// The list of services, and whether a successor was offered their sockets. Cheap to clone; all
/// clones share both.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServiceRegistry {
    services: Arc<ArcSwap<Vec<Arc<ReportedService>>>>,
    is_offered: Arc<AtomicBool>,
}

/// A successor that was offered the sockets may serve at any time, and knows no order that is given
/// meanwhile. Dropped when it has left, or this process has.
#[derive(Debug, Default)]
pub(crate) struct OfferMark(Arc<AtomicBool>);

impl Drop for OfferMark {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl ServiceRegistry {
    /// The services: those of the configuration in its order, then those that are being removed.
    pub(crate) fn list(&self) -> Vec<Arc<ReportedService>> {
        self.services.load().to_vec()
    }

    /// Replaces the list.
    pub(crate) fn set(&self, services: Vec<ReportedService>) {
        self.services.store(Arc::new(services.into_iter().map(Arc::new).collect()));
    }

    /// Notes that a successor is offered the sockets.
    pub(crate) fn offer(&self) -> OfferMark {
        self.is_offered.store(true, Ordering::Release);
        OfferMark(Arc::clone(&self.is_offered))
    }

    /// Whether there is a successor that may serve at any time.
    pub(crate) fn is_offered(&self) -> bool {
        self.is_offered.load(Ordering::Acquire)
    }
}
