//! The options of sessions, of discovery and of listening sockets that a reload changes.

use std::sync::PoisonError;

use proxy::Running;

use super::ServiceSet;
use crate::config::Config;
use crate::process::{listener_set, settings};

impl ServiceSet {
    /// Changes the options of all sessions and the settings of discovery, which applies these
    /// together with everything that [`Self::apply`] has changed.
    pub(crate) fn tune(&mut self, config: &Config, limits: &[usize], workers: &Running) {
        for (name, options) in listener_set::options_of(config, limits, &self.tls) {
            let mut sets = self.services.iter().flat_map(|service| &service.sets);
            if let Some(set) = sets.find(|set| *set.name == *name) {
                workers.tune(set.number, options);
            }
        }
        self.control.set_timeouts(settings::sentinel_timeouts(&config.services));
        for service in &config.services {
            let Some(running) = self.services.iter().find(|it| it.name == service.name) else {
                continue;
            };
            let replicas = (listener_set::rules(service), service.replicas.empty);
            let change = settings::discovery_change(service, replicas);
            self.control.change(running.discovery, change);
        }
        self.control.apply();
    }

    /// Sets the options of the listening sockets that exist before a reload, or those of the
    /// configuration `before` again if the system refuses one.
    ///
    /// # Errors
    ///
    /// The listener set concerned, and why.
    pub(crate) fn retune(
        &self,
        config: &Config,
        limits: &[usize],
        before: &Config,
    ) -> Result<(), String> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let set = |config: &Config, limits: &[usize]| {
            let mut all = listener_set::options_of(config, limits, &self.tls).into_iter();
            all.try_for_each(|(name, options)| {
                sockets.retune(&name, &options).map_err(|error| {
                    format!("cannot change the listening sockets of {name}: {error}")
                })
            })
        };
        let result = set(config, limits);
        if result.is_err() {
            // These were accepted once. The limits do not concern the listening sockets.
            let _ = set(before, &vec![0; before.services.len()]);
        }
        result
    }
}
