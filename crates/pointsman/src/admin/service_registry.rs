//! The services as reports and commands see them.
//!
//! The main loop replaces the list at each reload; the admin server reads it. A service that is
//! being removed stays in the list until its last session has ended.

use std::sync::Arc;

use arc_swap::ArcSwap;
use proxy::{ListenAddr, ServiceCounters};
use sentinel::DiscoveryHandle;

use crate::admin::effective_config::ServiceSettings;

/// The counters of a listener set, and its addresses.
pub type ListenerReport = (ServiceCounters, Vec<ListenAddr>);

/// One service, as reports need it.
#[derive(Debug, Clone)]
pub struct ReportedService {
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

/// The list of services. Cheap to clone; all clones share one list.
#[derive(Debug, Clone, Default)]
pub struct ServiceRegistry(Arc<ArcSwap<Vec<Arc<ReportedService>>>>);

impl ServiceRegistry {
    /// The services: those of the configuration in its order, then those that are being removed.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<ReportedService>> {
        self.0.load().to_vec()
    }

    /// Replaces the list.
    pub fn set(&self, services: Vec<ReportedService>) {
        self.0.store(Arc::new(services.into_iter().map(Arc::new).collect()));
    }
}
