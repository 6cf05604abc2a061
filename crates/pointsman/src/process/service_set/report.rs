//! The services as the status, the metrics, the probes and the commands see them.

use tracing::info;

use super::{RunningService, ServiceSet};
use crate::admin::service_registry::{ListenerReport, ReportedService};
use crate::logging;
use crate::process::listener_set::Destinations;

impl ServiceSet {
    /// Publishes the list of services for reports.
    pub(super) fn report(&self) {
        let reported = |service: &RunningService| {
            let set = |to| {
                let set = service.sets.iter().find(|set| set.to == to)?;
                let listen = set.addresses.iter().map(|it| it.addr.clone()).collect::<Vec<_>>();
                Some((set.counters.clone(), listen))
            };
            let writers = set(Destinations::Master);
            ReportedService {
                name: service.name.clone(),
                writers: writers.unwrap_or_else(|| (service.writers.clone(), Vec::new())),
                readers: set(Destinations::Replicas),
                sentinels: set(Destinations::Sentinels),
                discovery: service.handle().clone(),
                was_added: service.was_added,
                is_leaving: service.is_leaving,
                last_settings: service.settings,
                effective: self.effective.clone(),
            }
        };
        self.registry.set(self.services.iter().map(reported).collect());
    }
}

pub(super) fn log_serving(service: &ReportedService) {
    let listen = |(_, listen): &ListenerReport| logging::list(listen);
    let (replica_listen, sentinel_listen) =
        (service.readers.as_ref().map(listen), service.sentinels.as_ref().map(listen));
    let listen = listen(&service.writers);
    info!(service = %service.name, listen, replica_listen, sentinel_listen, "serving");
}
