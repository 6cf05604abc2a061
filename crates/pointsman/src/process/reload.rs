//! Applies a changed configuration: it is read again as at the start, checked as a whole, and every
//! value that can change is changed at once.
//!
//! `config_reader` reads on a thread of its own; this module applies the result. `config_source`
//! notices that the file has changed.
//!
//! A fault leaves everything as it was. Only a secret file that cannot be read does not prevent the
//! rest: its secret stays in use. Keys that need a restart are named and keep their value
//! until then.
//!
//! Deliberately absent: adding and removing services, and reading the standard input a second time.

use std::sync::{Arc, Mutex, PoisonError};

use drain::Drain;
use proxy::{Running, Sockets};
use sentinel::DiscoveryHandle;
use tracing::{error, info, warn};

use crate::admin::control::ControlAccess;
use crate::admin::effective_config::{EffectiveConfig, EffectiveSettings, ReloadOutcome};
use crate::config::{self, Config, ReloadPlan, Settings};
use crate::logging::LogSettings;
use crate::process::listener_set;
use crate::process::settings::{self, workers};
use crate::system::connection_capacity;
use crate::system::descriptors::Files;
use crate::system::memory::Memory;

/// Everything that a reload can change.
pub struct Reloader {
    /// The values in force.
    pub running: Settings,
    /// The settings that reports use.
    pub effective: EffectiveConfig,
    /// The listening sockets.
    pub sockets: Arc<Mutex<Sockets>>,
    /// The memory, for the limits on connections.
    pub memory: Option<Memory>,
    /// The level of the log.
    pub log: LogSettings,
    /// The discovery of each service, in the order of the configuration.
    pub discovery: Vec<DiscoveryHandle>,
    /// Who may give commands.
    pub(crate) control: ControlAccess,
}

impl Reloader {
    /// Applies what was read, and reports the result.
    pub(crate) fn take(
        &mut self,
        why: &'static str,
        loaded: &config::Loaded,
        drain: &Drain,
        data_plane: &Running,
    ) {
        let change = match loaded.change(&self.running) {
            Ok(change) => change,
            Err(faults) => {
                self.refuse(why, faults.findings().iter().map(ToString::to_string).collect());
                return;
            }
        };
        match self.apply(&change, drain, data_plane, loaded.unread_secrets().len()) {
            Ok(()) => self.report(why, &change, loaded.unread_secrets()),
            Err(fault) => self.refuse(why, vec![fault]),
        }
    }

    /// Leaves everything as it is, and reports why.
    pub(crate) fn refuse(&self, why: &'static str, faults: Vec<String>) {
        for fault in &faults {
            error!(why, "configuration not reloaded: {fault}");
        }
        self.effective.record(ReloadOutcome::Refused, faults);
    }

    fn report(&mut self, why: &'static str, change: &ReloadPlan, unread: Vec<String>) {
        for secret in &unread {
            error!(why, "secret not reloaded, the one before stays in use: {secret}");
        }
        let outcome = if !unread.is_empty() {
            ReloadOutcome::Partial
        } else if change.applied.is_empty() {
            ReloadOutcome::Unchanged
        } else {
            ReloadOutcome::Applied
        };
        self.running = change.settings.clone();
        self.effective.record(outcome, unread);
        let (applied, hash) = (&change.applied, &change.config.hash);
        info!(why, ?applied, config = %hash, "configuration reloaded");
        if !change.pending.is_empty() {
            warn!(keys = ?change.pending, "changed keys need a restart to take effect");
        }
    }

    /// The steps that may fail come first, so that a failure leaves everything as it was.
    fn apply(
        &self,
        change: &ReloadPlan,
        drain: &Drain,
        data_plane: &Running,
        unread: usize,
    ) -> Result<(), String> {
        let config = &change.config;
        let files = Files::allowed(config, workers(config).get());
        let plan = connection_capacity::plan(config, self.memory.as_ref(), files)
            .map_err(|error| error.to_string())?;
        files.raise(plan.connections.total).map_err(|error| error.to_string())?;
        self.retune(config, &plan.connections.services)?;
        for (number, _, options) in listener_set::options_of(config, &plan.connections.services) {
            data_plane.tune(number, options);
        }
        data_plane.allow(plan.connections.total);
        // Without a pause in between: discovery applies the changes of all services together.
        let timeouts = settings::sentinel_timeouts(&config.services);
        for (service, handle) in config.services.iter().zip(&self.discovery) {
            let replicas = (listener_set::rules(service), listener_set::empty(service));
            handle.change(settings::discovery_change(service, timeouts, replicas));
        }
        self.control.set(config);
        drain.configure(settings::drain(config));
        self.log.set(&config.log);
        let settings = EffectiveSettings::of(config, &plan.connections, change.pending.clone());
        self.effective.set(EffectiveSettings { unread_secrets: unread, ..settings });
        Ok(())
    }

    fn retune(&self, config: &Config, limits: &[usize]) -> Result<(), String> {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, name, options) in listener_set::options_of(config, limits) {
            let retuned = sockets.retune(number, &options);
            retuned.map_err(|error| {
                format!("cannot change the listening sockets of {name}: {error}")
            })?;
        }
        Ok(())
    }
}
