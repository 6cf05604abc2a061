//! Closing listeners, and ending the services that are not used any more.

use std::sync::PoisonError;

use drain::Summary;
use proxy::{ListenerId, Running};
use tracing::{info, warn};

use super::ServiceSet;
use crate::config::Config;
use crate::process::listener_set::Destinations;
use crate::process::settings;

impl ServiceSet {
    /// Begins to close an address.
    pub(super) fn close(
        &mut self,
        set: &str,
        id: ListenerId,
        moved: bool,
        config: &Config,
        workers: &Running,
    ) {
        // Before the workers empty the queue, see `Sockets`.
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        let Some(set) = self.set_mut(set) else { return };
        let closed = set.addresses.iter().position(|it| it.id == id);
        let Some(closed) = closed.map(|at| set.addresses.remove(at)) else { return };
        info!(listener = %set.name, addr = %closed.addr, moved, "closing listener");
        let Some(controller) = workers.close(id, moved, settings::drain(config)) else { return };
        set.closing += 1;
        let number = set.number;
        self.closing.insert(id, number);
        self.drains.spawn(async move { (id, controller.run().await) });
    }

    /// Waits for the end of the next listener that is being closed. Never returns while there is
    /// none. Cancel-safe.
    pub(crate) async fn next_closed(&mut self) -> (ListenerId, Summary) {
        loop {
            match self.drains.join_next().await {
                Some(Ok(closed)) => return closed,
                Some(Err(error)) => warn!(%error, "the drain of a listener has failed"),
                None => return std::future::pending().await,
            }
        }
    }

    /// The sessions of a listener have left, or were cut.
    pub(crate) fn closed(&mut self, id: ListenerId, summary: &Summary, workers: &mut Running) {
        workers.remove(id);
        let number = self.closing.remove(&id);
        let mut sets = self.services.iter_mut().flat_map(|service| &mut service.sets);
        if let Some(set) = sets.find(|set| Some(set.number) == number) {
            set.closing = set.closing.saturating_sub(1);
            let ended = &summary.session_counts;
            info!(
                listener = %set.name, drained = ended.asked, cut = ended.cut, open = ended.open,
                "listener closed"
            );
        }
        self.collect(workers);
    }

    /// Ends the listener sets and services that are not used any more.
    pub(crate) fn collect(&mut self, workers: &mut Running) {
        self.collect_unused(workers);
        self.control.apply();
    }

    /// As [`Self::collect`], except that discovery applies it with the rest of a reload.
    pub(super) fn collect_unused(&mut self, workers: &mut Running) {
        let control = &mut self.control;
        for service in &mut self.services {
            service.sets.retain(|set| {
                let is_used = set.closing > 0 || !set.addresses.is_empty();
                if !is_used {
                    workers.remove_service(set.number);
                    match set.to {
                        Destinations::Master => {}
                        Destinations::Replicas => control.set_replicas(service.discovery, None),
                        Destinations::Sentinels => {
                            control.set_sentinel_pool(service.discovery, None);
                        }
                    }
                }
                is_used
            });
        }
        self.services.retain(|service| {
            // A switchover in progress ends by itself, and its gate with it.
            let is_over =
                service.is_leaving && service.sets.is_empty() && !service.handle().is_switching();
            if is_over {
                control.remove(service.discovery);
                info!(service = service.name, "removed service has ended");
            }
            !is_over
        });
        self.report();
    }

    /// Whether a removed service waits only for its switchover to end.
    pub(crate) fn has_unused(&self) -> bool {
        self.services.iter().any(|service| service.is_leaving && service.sets.is_empty())
    }
}
